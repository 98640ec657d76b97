//! The protocols through which requests come. Every door fills a [`Request`](crate::engine::request::Request), asks the
//! [`Gate`](crate::gate::Gate) and turns the verdict into its protocol's answer; no door knows a limit.

pub mod admin;
mod convert;
pub mod proxy;
