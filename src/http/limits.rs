//! What the listener itself takes, whatever the rules say.

use super::http1::HeadLimits;
use super::http2::Http2Limits;
use crate::message::path::EscapedSlashes;

/// How much of everything the proxy takes from a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpLimits {
    /// The head of a request.
    pub head: HeadLimits,
    /// Bytes of a request's body. Bodies stream, so this keeps nothing in memory; it ends those that never end.
    pub body_bytes: u64,
    /// Requests of one connection; the last is answered with `Connection: close`. So that a client which stays for ever
    /// comes to another process now and then.
    pub requests: u32,
    /// The connections of HTTP/2.
    pub http2: Http2Limits,
    /// What `%2F` and `%5C` in a path mean.
    pub escaped_slashes: EscapedSlashes,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self {
            head: HeadLimits::default(),
            body_bytes: 1 << 30,
            requests: 100_000,
            http2: Http2Limits::default(),
            escaped_slashes: EscapedSlashes::default(),
        }
    }
}
