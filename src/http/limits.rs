//! Bounds and timeouts, independent of the rules.

use std::time::Duration;

use crate::message::path::EscapedSlashes;

/// Bounds on what a client may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpLimits {
    /// On a request's head.
    pub head: HeadLimits,
    /// Bytes of a request's body. Bodies stream, so this bounds time, not memory.
    pub body_bytes: u64,
    /// Requests per connection; the last is answered with `Connection: close`. This moves long-lived clients to another
    /// process now and then.
    pub requests: u32,
    /// On an HTTP/2 connection.
    pub http2: Http2Limits,
    /// The most bytes of a request's body that are held for limits that read it.
    pub inspected_bytes: usize,
    /// The meaning of `%2F` and `%5C` in a path.
    pub escaped_slashes: EscapedSlashes,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self {
            head: HeadLimits::default(),
            body_bytes: 1 << 30,
            inspected_bytes: 64 * 1024,
            requests: 100_000,
            http2: Http2Limits::default(),
            escaped_slashes: EscapedSlashes::default(),
        }
    }
}

/// Bounds on the size of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLimits {
    /// Bytes of the start line and headers.
    pub bytes: usize,
    /// Bytes of the target. RFC 9112 section 3 recommends at least 8000.
    pub target: usize,
    /// Header lines, at most 256.
    pub lines: usize,
}

impl Default for HeadLimits {
    fn default() -> Self {
        Self { bytes: 32 * 1024, target: 8 * 1024, lines: 100 }
    }
}

/// Bounds on a client's HTTP/2 connection.
///
/// `max_streams` times `stream_window` bounds the memory for received bodies, times `send_buffer` that for responses, and
/// times [`HeadLimits::bytes`] that for heads. By default a client can fill 44 MiB; one with a single small request takes
/// about 10 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http2Limits {
    /// Concurrent streams; further ones are rejected with `REFUSED_STREAM`. RFC 9113 section 6.5.2 recommends at least
    /// 100, and nginx allows 128.
    pub max_streams: u32,
    /// Bytes of one request's body that may be in flight or wait for the upstream (CVE-2019-9511 and CVE-2019-9517 are about
    /// the other direction). With a round trip of 20 ms this allows 13 MB/s.
    pub stream_window: u32,
    /// Bytes of one response that wait for the client's window or socket (CVE-2019-9517).
    pub send_buffer: u32,
    /// Requests that a client may cancel within 10 s, each within a second of its arrival and before its response
    /// (CVE-2023-44487, rapid reset). More end the connection. Cancelled requests are charged.
    pub max_resets: u32,
    /// Streams that may end in a protocol error by the client. Each is a request that was started for nothing
    /// (CVE-2025-8671, `MadeYouReset`).
    pub max_errors: u32,
    /// Frames that carry neither requests nor bodies, beyond what requests, bodies and time explain: SETTINGS, PING,
    /// PRIORITY, `WINDOW_UPDATE`, `RST_STREAM` and unknown ones (CVE-2019-9512, CVE-2019-9513, CVE-2019-9514,
    /// CVE-2019-9515). The library bounds empty and tiny DATA frames (CVE-2019-9518): 100, and half of
    /// [`Self::connection_window`].
    pub max_control_frames: u32,
    /// A client that waits for a response and is silent for this long is sent a PING.
    pub ping_interval: Duration,
    /// The timeout for the answer to the PING.
    pub ping_timeout: Duration,
}

impl Default for Http2Limits {
    fn default() -> Self {
        Self {
            max_streams: 128,
            stream_window: 256 * 1024,
            send_buffer: 64 * 1024,
            max_resets: 100,
            max_errors: 1024,
            max_control_frames: 1000,
            ping_interval: Duration::from_secs(30),
            ping_timeout: Duration::from_secs(10),
        }
    }
}

impl Http2Limits {
    /// Returns the window of a connection: as large as those of its streams together, up to the protocol's maximum (RFC 9113
    /// section 6.9.1). So uploads that wait for a slow upstream leave room for the others.
    pub(super) fn connection_window(&self) -> u32 {
        self.max_streams.saturating_mul(self.stream_window).min(i32::MAX.unsigned_abs())
    }
}

/// Timeouts for clients and upstream servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For a client's first byte.
    pub first_byte: Duration,
    /// From a request's first byte to the end of its headers.
    pub header: Duration,
    /// For a client to send more of a body or to read more of a response.
    pub body: Duration,
    /// For another request on a client's connection.
    pub idle: Duration,
    /// For any bytes on a connection that was upgraded to another protocol.
    pub tunnel: Duration,
    /// Bytes per second that a client must send of a body and read of a response, averaged over the time spent waiting
    /// for it and after a grace period. 0 for no minimum.
    pub min_rate: u64,
    /// For a connection to the upstream, including name resolution.
    pub connect: Duration,
    /// From the end of the request to the upstream's response headers, and for any progress of a request that the upstream
    /// does not take.
    pub response: Duration,
    /// For an upstream to send more of a response, unless that is a stream of events or of gRPC messages.
    pub upstream_body: Duration,
    /// The idle timeout of upstream connections. It should be shorter than the upstream's own: node and uvicorn
    /// close after 5 s.
    pub upstream_idle: Duration,
}

/// Timeouts of a route, in place of those of [`Timeouts`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouteTimeouts {
    pub response: Option<Duration>,
    pub upstream_body: Option<Duration>,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            first_byte: Duration::from_secs(10),
            header: Duration::from_secs(10),
            body: Duration::from_secs(30),
            idle: Duration::from_mins(1),
            tunnel: Duration::from_mins(5),
            min_rate: 240,
            // The kernel repeats a lost SYN, or one that a full queue has dropped, after 1 s.
            connect: Duration::from_secs(3),
            response: Duration::from_secs(30),
            upstream_body: Duration::from_mins(5),
            upstream_idle: Duration::from_secs(4),
        }
    }
}
