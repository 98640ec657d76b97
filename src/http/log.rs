//! A bound on how often the same thing is logged.

pub(crate) use crate::limiter::Throttle;
