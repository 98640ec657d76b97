//! Errors of requests and upstreams, and the responses to them.

use std::fmt::Debug;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use http::StatusCode;

use super::message::{BodyError, Request};
use crate::message::connection::{HttpLimit, UpstreamFailure};
use crate::message::reply::{Reply, problem};

/// An error in a message's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HeadError {
    #[error("{0}")]
    Malformed(&'static str),
    #[error("unsupported HTTP version")]
    Version,
    #[error("`chunked` is the only supported transfer coding")]
    Coding,
    #[error("the target is too long")]
    Target,
    #[error("the headers are too large")]
    Bytes,
    #[error("there are too many headers")]
    Lines,
}

/// An error that prevents a response from an upstream.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpstreamError {
    #[error("no address: {0}")]
    Unresolved(Rc<io::Error>),
    #[error("no address within {0:?}")]
    ResolveTimeout(Duration),
    #[error("no free connection within {0:?}")]
    Busy(Duration),
    #[error("cannot connect: {0}")]
    Connect(#[source] io::Error),
    /// Not the upstream's fault: this process or machine is out of descriptors, ports or memory.
    #[error("out of resources for a connection: {0}")]
    Exhausted(#[source] io::Error),
    #[error("no connection within {0:?}")]
    ConnectTimeout(Duration),
    #[error("no response in time")]
    ResponseTimeout,
    #[error("no response within {0:?}, the timeout of one try")]
    TryTimeout(Duration),
    #[error("the connection broke before the response: {0}")]
    Closed(#[source] io::Error),
    #[error("malformed response: {0}")]
    Head(#[source] HeadError),
    #[error("unrequested protocol switch")]
    SwitchedProtocols,
    /// Not the upstream's fault: the client stopped sending its body.
    #[error("the client stopped sending")]
    UploadStalled,
    /// Not the upstream's fault: the client's body is malformed.
    #[error("the client's body is invalid: {0}")]
    Upload(#[source] BodyError),
}

impl BodyError {
    /// The response to a request whose body is too long. The rest of it is not read.
    pub(crate) fn too_long() -> Reply {
        let mut reply = problem(StatusCode::PAYLOAD_TOO_LARGE, "the request's body is too long");
        reply.headers.append("connection", "close");
        reply
    }
}

impl HeadError {
    /// Returns the response. The connection ends with it, because the start of the next request is not known.
    pub(super) fn reply(self) -> Reply {
        let status = match self {
            Self::Malformed(_) => StatusCode::BAD_REQUEST,
            Self::Version => StatusCode::HTTP_VERSION_NOT_SUPPORTED,
            Self::Coding => StatusCode::NOT_IMPLEMENTED,
            Self::Target => StatusCode::URI_TOO_LONG,
            Self::Bytes | Self::Lines => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        };
        problem(status, &self.to_string())
    }

    pub(super) const fn limit(self) -> Option<HttpLimit> {
        match self {
            Self::Target => Some(HttpLimit::Target),
            Self::Bytes => Some(HttpLimit::HeaderBytes),
            Self::Lines => Some(HttpLimit::HeaderCount),
            _ => None,
        }
    }
}

impl UpstreamError {
    /// `None` if the upstream is not at fault.
    pub(crate) const fn reason(&self) -> Option<UpstreamFailure> {
        self.description().0
    }

    /// Returns the response. It contains no addresses, so clients learn nothing about the upstream.
    pub(crate) fn reply(&self) -> Reply {
        if let Self::Upload(BodyError::TooLong(_)) = self {
            return BodyError::too_long();
        }
        let (reason, status, detail) = self.description();
        let mut reply = problem(status, detail);
        // The rest of the client's body is not read.
        if reason.is_none() {
            reply.headers.append("connection", "close");
        }
        reply
    }

    pub(crate) const fn limit(&self) -> Option<HttpLimit> {
        if let Self::Upload(BodyError::TooLong(_)) = self { Some(HttpLimit::BodyBytes) } else { None }
    }

    /// The reason and the response's status and detail.
    const fn description(&self) -> (Option<UpstreamFailure>, StatusCode, &'static str) {
        const UNAVAILABLE: StatusCode = StatusCode::SERVICE_UNAVAILABLE;
        const BAD_GATEWAY: StatusCode = StatusCode::BAD_GATEWAY;
        const TIMEOUT: StatusCode = StatusCode::GATEWAY_TIMEOUT;
        match self {
            Self::Busy(_) => (Some(UpstreamFailure::Busy), UNAVAILABLE, "no connection to the upstream is free"),
            Self::Exhausted(_) => (Some(UpstreamFailure::Exhausted), UNAVAILABLE, "no connection is available"),
            Self::Unresolved(_) => (Some(UpstreamFailure::Resolve), BAD_GATEWAY, "the upstream cannot be reached"),
            Self::Connect(_) => (Some(UpstreamFailure::Connect), BAD_GATEWAY, "the upstream cannot be reached"),
            Self::ResolveTimeout(_) => {
                (Some(UpstreamFailure::Resolve), TIMEOUT, "the upstream cannot be reached in time")
            }
            Self::ConnectTimeout(_) => {
                (Some(UpstreamFailure::ConnectTimeout), TIMEOUT, "the upstream cannot be reached in time")
            }
            Self::ResponseTimeout | Self::TryTimeout(_) => {
                (Some(UpstreamFailure::ResponseTimeout), TIMEOUT, "the upstream did not respond in time")
            }
            Self::Closed(_) => {
                (Some(UpstreamFailure::Closed), BAD_GATEWAY, "the upstream closed the connection without a response")
            }
            Self::Head(_) | Self::SwitchedProtocols => {
                (Some(UpstreamFailure::Malformed), BAD_GATEWAY, "the upstream sent a response that cannot be forwarded")
            }
            Self::UploadStalled => (None, StatusCode::REQUEST_TIMEOUT, "the request's body was not received in time"),
            Self::Upload(_) => (None, StatusCode::BAD_REQUEST, "the request's body is incomplete or invalid"),
        }
    }
}

/// The right to send one request to an endpoint, held until the response has ended.
pub(crate) trait Lease: Debug + 'static {
    /// The endpoint cut its response off.
    fn cut_off(&self, error: &BodyError, now: Instant);

    /// The response has come to its end.
    fn completed(&self);
}

/// A request that got no response.
#[derive(Debug)]
pub(crate) struct SendFailed<L> {
    pub(crate) error: UpstreamError,
    pub(crate) lease: L,
    /// The request, if nothing of a response has come. Over HTTP/2: if moreover none of it was processed.
    pub(crate) request: Option<Request>,
    /// True if a part of its body is gone.
    pub(crate) was_taken: bool,
    /// True if some of it may have reached the upstream.
    pub(crate) was_sent: bool,
}
