//! What a connection to an upstream knows of the endpoint that it belongs to.

use std::error::Error;
use std::fmt::Debug;
use std::time::Instant;

use super::failure::UpstreamError;
use super::message::Request;

/// The right to send one request to an endpoint, held until the response has ended.
pub(crate) trait Lease: Debug + 'static {
    /// The endpoint cut its response off.
    fn cut_off(&self, error: &dyn Error, now: Instant);
}

/// A request that got no response.
#[derive(Debug)]
pub(crate) struct SendFailed<L> {
    pub(crate) error: UpstreamError,
    pub(crate) lease: L,
    /// The request, if nothing of its body was taken and nothing of a response has come.
    pub(crate) request: Option<Request>,
    /// True if some of it may have reached the upstream.
    pub(crate) was_sent: bool,
}
