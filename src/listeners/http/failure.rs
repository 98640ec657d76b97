//! Requests that a listener rejects, and the replies to them.

use http::StatusCode;

use crate::http::failure::UpstreamError;
use crate::http::message::BodyError;
use crate::http::observer::HttpLimit;
use crate::message::reply::{Reply, problem};

/// Why a request is answered by Weir although no limit denies it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// It cannot be forwarded.
    #[error("{0}")]
    Malformed(&'static str),
    /// Its method is for a tunnel or for debugging.
    #[error("{0}")]
    Method(&'static str),
    #[error("the only expectation that is understood is `100-continue`")]
    Expectation,
    #[error("the body is longer than {0} bytes")]
    TooLong(u64),
    /// Its host is not one that the TLS connection was made for.
    #[error("this connection is for another host")]
    Misdirected,
    /// A load balancer did not name the client's address, and a limit needs it.
    #[error("the load balancer does not say who the client is")]
    Nameless,
    #[error("this request has come by here before")]
    Loop,
    /// No `--upstream` matches it.
    #[error("no route leads there")]
    NoRoute,
    /// The limiter cannot decide it, for example because the cost that it names is invalid.
    #[error("{0}")]
    InvalidRequest(String),
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
}

/// The methods that may pass, for `Allow`. Others may pass too; these are the registered ones that make sense.
pub(crate) const ALLOWED: &str = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";

impl Failure {
    pub(crate) fn reply(&self) -> Reply {
        let (status, detail) = match self {
            Self::Malformed(detail) => (StatusCode::BAD_REQUEST, *detail),
            Self::Method(detail) => (StatusCode::METHOD_NOT_ALLOWED, *detail),
            Self::Expectation => {
                (StatusCode::EXPECTATION_FAILED, "the only expectation that is understood is `100-continue`")
            }
            Self::TooLong(_) => return BodyError::too_long(),
            Self::Misdirected => (StatusCode::MISDIRECTED_REQUEST, "this connection is for another host"),
            Self::Nameless => (StatusCode::FORBIDDEN, "the load balancer does not say who the client is"),
            Self::Loop => (StatusCode::LOOP_DETECTED, "this request has come by here too often"),
            Self::NoRoute => (StatusCode::NOT_FOUND, "no route leads there"),
            Self::InvalidRequest(reason) => return problem(StatusCode::BAD_REQUEST, reason),
            Self::Upstream(error) => return error.reply(),
        };
        let mut reply = problem(status, detail);
        match self {
            Self::Method(_) => reply.headers.append("allow", ALLOWED),
            Self::Malformed(_) => reply.headers.append("connection", "close"),
            _ => {}
        }
        reply
    }

    /// The limit of the listener that was reached.
    pub(super) const fn limit(&self) -> Option<HttpLimit> {
        match self {
            Self::TooLong(_) => Some(HttpLimit::BodyBytes),
            Self::Upstream(error) => error.limit(),
            _ => None,
        }
    }
}
