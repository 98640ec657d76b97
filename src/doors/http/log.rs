//! A bound on how often the same thing is logged.

pub(in crate::doors) use crate::gate::Throttle;
