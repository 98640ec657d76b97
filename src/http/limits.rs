//! What the listener itself takes, whatever the rules say.

use std::time::Duration;

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

/// How large a head may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLimits {
    /// Bytes of start line and headers.
    pub bytes: usize,
    /// Bytes of the target. RFC 9112 section 3 wants 8000 at least.
    pub target: usize,
    /// Lines of headers, at most 256.
    pub lines: usize,
}

impl Default for HeadLimits {
    fn default() -> Self {
        Self { bytes: 32 * 1024, target: 8 * 1024, lines: 100 }
    }
}

/// What one connection of a client may take.
///
/// The memory of a connection is bounded by `connection_window` for what comes, by `max_streams` times `send_buffer` for
/// what goes, and by `max_streams` times [`HeadLimits::bytes`] for heads: 13 MiB by default if a client fills it all, and
/// some 10 KiB if it has one small request at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http2Limits {
    /// Streams at once; one more is refused with `REFUSED_STREAM`. RFC 9113 section 6.5.2 wants at least 100, and nginx
    /// has 128.
    pub max_streams: u32,
    /// Bytes of one request's body that may be on their way or wait for the upstream: at 20 ms to the client this is
    /// 13 MB/s.
    pub stream_window: u32,
    /// The same for all requests of a connection. Four uploads that stand still do not hold up the others, and a client
    /// cannot make us keep more than this (CVE-2019-9511 and CVE-2019-9517 are the other direction).
    pub connection_window: u32,
    /// Bytes of one response that wait for the client's window or socket (CVE-2019-9517).
    pub send_buffer: u32,
    /// Requests that a client may take back within 10 s, each within a second of its coming and before its response
    /// (CVE-2023-44487, rapid reset). More end the connection. Each is charged all the same.
    pub max_resets: u32,
    /// Streams of a connection that may end because the client breaks the rules on them: each is a request that was
    /// begun for nothing (CVE-2025-8671, `MadeYouReset`).
    pub max_errors: u32,
    /// Frames that are neither requests nor bodies and that neither these nor the time explain: SETTINGS, PING, PRIORITY,
    /// `WINDOW_UPDATE`, `RST_STREAM` and unknown ones (CVE-2019-9512, CVE-2019-9513, CVE-2019-9514, CVE-2019-9515). Empty
    /// and tiny DATA frames (CVE-2019-9518) are bounded by the library: 100, and half of `connection_window`.
    pub max_control_frames: u32,
    /// How long nothing may be heard of a client that waits for a response, until it is asked by a PING.
    pub ping_interval: Duration,
    /// How long it has for the answer.
    pub ping_timeout: Duration,
}

impl Default for Http2Limits {
    fn default() -> Self {
        Self {
            max_streams: 128,
            stream_window: 256 * 1024,
            connection_window: 1024 * 1024,
            send_buffer: 64 * 1024,
            max_resets: 100,
            max_errors: 1024,
            max_control_frames: 1000,
            ping_interval: Duration::from_secs(30),
            ping_timeout: Duration::from_secs(10),
        }
    }
}
