//! Metrics, the access log, traces and the log of denied requests.

use http::{Method, Version};

use crate::message::headers::Headers;

pub mod access_log;
pub mod denials;
pub mod http_counters;
pub mod metrics;
pub mod most_denied;
mod summary;
pub mod throttle;
pub mod traces;
pub mod would_deny;

/// A request's head, as the client sent it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestHead<'a> {
    pub(crate) method: &'a Method,
    pub(crate) target: &'a str,
    pub(crate) version: Version,
    pub(crate) headers: &'a Headers,
}
