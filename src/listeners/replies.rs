//! Replies that several listeners give.

use http::{Method, StatusCode};

use crate::message::reply::{Reply, problem};

/// Replies to a request with another method.
pub(super) fn method_not_allowed(method: &Method, allowed: &str) -> Reply {
    let mut reply = problem(StatusCode::METHOD_NOT_ALLOWED, &format!("use {allowed} instead of {method}"));
    reply.headers.append("allow", allowed);
    reply
}
