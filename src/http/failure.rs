//! What can go wrong with a request, and what its client is told. Errors become responses here and nowhere else.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use http::StatusCode;

use super::http1::HeadError;
use super::message::BodyError;
use crate::engine::answer::reply::{self, Reply};
use crate::telemetry::metrics::HttpLimit;

/// Why a request gets an answer of ours that is no refusal by a limit.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// Its head cannot be read.
    #[error(transparent)]
    Head(HeadError),
    /// It is no request that we can forward.
    #[error("{0}")]
    Malformed(&'static str),
    /// Its method is for a tunnel or for debugging.
    #[error("{0}")]
    Method(&'static str),
    /// It expects something else than `100-continue`.
    #[error("the only expectation that is understood is `100-continue`")]
    Expectation,
    /// Its body is longer than the listener takes.
    #[error("the body is longer than {0} bytes")]
    TooLong(u64),
    /// Its host is not the one that the TLS connection was made for.
    #[error("this connection is for another host")]
    Misdirected,
    /// A load balancer does not say whose it is, and a limit goes by that.
    #[error("the load balancer does not say who the client is")]
    Nameless,
    /// It has been here too often.
    #[error("this request has come by here before")]
    Loop,
    /// No `--upstream` is for it.
    #[error("no route leads there")]
    NoRoute,
    /// The service cannot answer such a request.
    #[error("{0}")]
    InvalidRequest(String),
    /// The upstream gave no response.
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
}

/// Why an upstream gave no response.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpstreamError {
    #[error("no address is known: {0}")]
    Unresolved(Rc<io::Error>),
    #[error("no address is known within {0:?}")]
    ResolveTimeout(Duration),
    #[error("no connection to spare within {0:?}")]
    Busy(Duration),
    #[error("cannot connect: {0}")]
    Connect(#[source] io::Error),
    /// Not the upstream's fault: this process or machine has no descriptor, port or memory left for a connection.
    #[error("no connection can be opened from here: {0}")]
    Exhausted(#[source] io::Error),
    #[error("no connection within {0:?}")]
    ConnectTimeout(Duration),
    #[error("no response in time")]
    ResponseTimeout,
    #[error("no response within {0:?}, the time of one try")]
    TryTimeout(Duration),
    #[error("the connection broke before the response: {0}")]
    Closed(#[source] io::Error),
    #[error("its response cannot be read: {0}")]
    Head(#[source] HeadError),
    #[error("it switched protocols unasked")]
    SwitchedProtocols,
    /// Not the upstream's fault: the client stopped in the middle of its body.
    #[error("the client stopped sending")]
    UploadStalled,
    /// Not the upstream's fault: what the client sends as a body is none.
    #[error("the client's body cannot be read: {0}")]
    Upload(#[source] BodyError),
}

/// The methods that may pass, for `Allow`. Others may pass too; these are the registered ones that make sense.
pub(crate) const ALLOWED: &str = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";

impl Failure {
    /// The answer. It names no addresses: what is behind us is not the client's business.
    pub(crate) fn response(&self) -> Reply {
        let (status, detail) = match self {
            Self::Head(error) => return head(*error),
            Self::Malformed(detail) => (StatusCode::BAD_REQUEST, *detail),
            Self::Method(detail) => (StatusCode::METHOD_NOT_ALLOWED, *detail),
            Self::Expectation => {
                (StatusCode::EXPECTATION_FAILED, "the only expectation that is understood is `100-continue`")
            }
            Self::TooLong(_) | Self::Upstream(UpstreamError::Upload(BodyError::TooLong(_))) => {
                (StatusCode::PAYLOAD_TOO_LARGE, "the request's body is too long")
            }
            Self::Misdirected => (StatusCode::MISDIRECTED_REQUEST, "this connection is for another host"),
            Self::Nameless => (StatusCode::FORBIDDEN, "the load balancer does not say who the client is"),
            Self::Loop => (StatusCode::LOOP_DETECTED, "this request has come by here too often"),
            Self::NoRoute => (StatusCode::NOT_FOUND, "no route leads there"),
            Self::InvalidRequest(reason) => return reply::problem(StatusCode::BAD_REQUEST, reason),
            Self::Upstream(error) => error.status(),
        };
        let mut reply = reply::problem(status, detail);
        match self {
            Self::Method(_) => {
                reply.headers.append("allow", ALLOWED);
            }
            Self::Malformed(_)
            | Self::TooLong(_)
            | Self::Upstream(UpstreamError::UploadStalled | UpstreamError::Upload(_)) => {
                reply.headers.append("connection", "close");
            }
            _ => {}
        }
        reply
    }

    /// The limit of the listener that it is about, if it is about one.
    pub(crate) const fn limit(&self) -> Option<HttpLimit> {
        match self {
            Self::Head(HeadError::Target) => Some(HttpLimit::Target),
            Self::Head(HeadError::Bytes) => Some(HttpLimit::HeaderBytes),
            Self::Head(HeadError::Lines) => Some(HttpLimit::HeaderCount),
            Self::TooLong(_) | Self::Upstream(UpstreamError::Upload(BodyError::TooLong(_))) => {
                Some(HttpLimit::BodyBytes)
            }
            _ => None,
        }
    }
}

/// The answer to a head that cannot be read.
fn head(error: HeadError) -> Reply {
    let status = match error {
        HeadError::Malformed(_) => StatusCode::BAD_REQUEST,
        HeadError::Version => StatusCode::HTTP_VERSION_NOT_SUPPORTED,
        HeadError::Coding => StatusCode::NOT_IMPLEMENTED,
        HeadError::Target => StatusCode::URI_TOO_LONG,
        HeadError::Bytes | HeadError::Lines => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
    };
    reply::problem(status, &error.to_string())
}

impl UpstreamError {
    /// The label `reason` of `weir_upstream_errors_total`; `None` if the upstream is not to blame.
    pub(crate) const fn reason(&self) -> Option<&'static str> {
        match self {
            Self::Unresolved(_) | Self::ResolveTimeout(_) => Some("resolve"),
            Self::Busy(_) => Some("busy"),
            Self::Connect(_) => Some("connect"),
            Self::Exhausted(_) => Some("exhausted"),
            Self::ConnectTimeout(_) => Some("connect_timeout"),
            Self::ResponseTimeout | Self::TryTimeout(_) => Some("response_timeout"),
            Self::Closed(_) => Some("closed"),
            Self::Head(_) | Self::SwitchedProtocols => Some("malformed"),
            Self::UploadStalled | Self::Upload(_) => None,
        }
    }

    const fn status(&self) -> (StatusCode, &'static str) {
        match self {
            Self::Busy(_) => (StatusCode::SERVICE_UNAVAILABLE, "the upstream has no connection to spare"),
            Self::Exhausted(_) => (StatusCode::SERVICE_UNAVAILABLE, "there is no connection to spare"),
            Self::Unresolved(_) | Self::Connect(_) => (StatusCode::BAD_GATEWAY, "the upstream cannot be reached"),
            Self::ResolveTimeout(_) | Self::ConnectTimeout(_) => {
                (StatusCode::GATEWAY_TIMEOUT, "the upstream cannot be reached in time")
            }
            Self::ResponseTimeout | Self::TryTimeout(_) => {
                (StatusCode::GATEWAY_TIMEOUT, "the upstream did not answer in time")
            }
            Self::Closed(_) => (StatusCode::BAD_GATEWAY, "the upstream closed the connection without an answer"),
            Self::Head(_) | Self::SwitchedProtocols => {
                (StatusCode::BAD_GATEWAY, "the upstream gave an answer that cannot be passed on")
            }
            Self::UploadStalled => (StatusCode::REQUEST_TIMEOUT, "the request's body did not come in time"),
            Self::Upload(_) => (StatusCode::BAD_REQUEST, "the request's body cannot be read to its end"),
        }
    }
}
