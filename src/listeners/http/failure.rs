//! Requests that a listener rejects, and the replies to them.

use http::StatusCode;

use crate::http::failure::UpstreamError;
use crate::http::message::BodyError;
use crate::message::connection::HttpLimit;
use crate::message::reply::{Reply, problem};

/// A request that no limit denies and no upstream answers.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// It cannot be forwarded.
    #[error("{0}")]
    Malformed(&'static str),
    /// A method that the proxy does not forward.
    #[error("{0}")]
    Method(&'static str),
    #[error("the only supported expectation is `100-continue`")]
    Expectation,
    #[error("the body is longer than {0} bytes")]
    TooLong(u64),
    /// The TLS connection was made for other hosts.
    #[error("this connection is for another host")]
    Misdirected,
    /// A load balancer did not send the client's address, and a limit needs it.
    #[error("the load balancer did not send the client's address")]
    UnknownClient,
    #[error("this request has passed this proxy too often")]
    Loop,
    #[error("no route matches this request")]
    NoRoute,
    /// The limiter cannot decide it, for example because the cost that it names is invalid.
    #[error("{0}")]
    InvalidRequest(String),
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
}

/// The common registered methods, for `Allow`. Others may pass, too.
pub(crate) const ALLOWED: &str = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";

impl Failure {
    pub(crate) fn reply(&self) -> Reply {
        let status = match self {
            Self::Malformed(_) | Self::InvalidRequest(_) => StatusCode::BAD_REQUEST,
            Self::Method(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::Expectation => StatusCode::EXPECTATION_FAILED,
            Self::TooLong(_) => return BodyError::too_long(),
            Self::Misdirected => StatusCode::MISDIRECTED_REQUEST,
            Self::UnknownClient => StatusCode::FORBIDDEN,
            Self::Loop => StatusCode::LOOP_DETECTED,
            Self::NoRoute => StatusCode::NOT_FOUND,
            Self::Upstream(error) => return error.reply(),
        };
        let mut reply = problem(status, &self.to_string());
        match self {
            Self::Method(_) => reply.headers.append("allow", ALLOWED),
            Self::Malformed(_) => reply.headers.append("connection", "close"),
            _ => {}
        }
        reply
    }

    /// Returns the listener's limit that was reached, if any.
    pub(super) const fn limit(&self) -> Option<HttpLimit> {
        match self {
            Self::TooLong(_) => Some(HttpLimit::BodyBytes),
            Self::Upstream(error) => error.limit(),
            _ => None,
        }
    }
}
