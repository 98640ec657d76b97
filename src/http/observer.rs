//! What the HTTP side reports for metrics and logs: the events, and the traits through which a listener receives them.

use std::error::Error;
use std::fmt::{Debug, Display};
use std::time::Duration;

/// Counts what happens on a listener's client connections.
pub(crate) trait Observer {
    fn limit_reached(&self, limit: HttpLimit);

    /// A connection ended before its first request.
    fn connection_failed(&self, failure: ConnectionFailure);

    /// A connection was closed because its address has too many.
    fn connection_rejected(&self);

    fn tls_handshake(&self, is_resumed: bool);

    /// Connections that were upgraded to another protocol: one more if `is_open`, else one less.
    fn tunnel(&self, is_open: bool);
}

/// Counts and logs what happens between a route and its servers.
pub(crate) trait UpstreamObserver: Debug {
    /// A response's headers have arrived, `time` after the request was ready to be sent.
    fn answered(&self, time: Duration);

    /// A server failed a request; `server` is `None` if none could be chosen. `reason` is one of
    /// [`UpstreamError::reason`](super::failure::UpstreamError::reason), or `body` for a response cut off.
    fn failed(&self, server: Option<&dyn Display>, reason: &'static str, error: &dyn Error);

    /// A request is sent a second time.
    fn retried(&self);

    fn ejected(&self);

    /// A DNS lookup returned no address.
    fn unresolved(&self);
}

/// A bound on what one client may use, whatever the rules say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HttpLimit {
    Target,
    HeaderBytes,
    HeaderCount,
    BodyBytes,
    /// Requests on one connection.
    Requests,
    FirstByteTimeout,
    HeaderTimeout,
    IdleTimeout,
    BodyTimeout,
    UploadRate,
    DownloadRate,
    /// Responses that wait for clients which read slowly, in the whole process.
    SlowReaders,
    TunnelTimeout,
    /// Concurrent HTTP/2 requests from one address.
    Streams,
    /// Requests cancelled soon after they were sent (rapid reset).
    Http2Resets,
    /// Frames that are neither requests nor bodies.
    Http2ControlFrames,
    Http2Errors,
    Http2PingTimeout,
}

impl HttpLimit {
    #[cfg(test)]
    pub(crate) const ALL: [Self; 18] = [
        Self::Target,
        Self::HeaderBytes,
        Self::HeaderCount,
        Self::BodyBytes,
        Self::Requests,
        Self::FirstByteTimeout,
        Self::HeaderTimeout,
        Self::IdleTimeout,
        Self::BodyTimeout,
        Self::UploadRate,
        Self::DownloadRate,
        Self::SlowReaders,
        Self::TunnelTimeout,
        Self::Streams,
        Self::Http2Resets,
        Self::Http2ControlFrames,
        Self::Http2Errors,
        Self::Http2PingTimeout,
    ];

    /// The name in metrics.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Target => "target",
            Self::HeaderBytes => "header_bytes",
            Self::HeaderCount => "header_count",
            Self::BodyBytes => "body_bytes",
            Self::Requests => "requests",
            Self::FirstByteTimeout => "first_byte_timeout",
            Self::HeaderTimeout => "header_timeout",
            Self::IdleTimeout => "idle_timeout",
            Self::BodyTimeout => "body_timeout",
            Self::UploadRate => "upload_rate",
            Self::DownloadRate => "download_rate",
            Self::SlowReaders => "slow_readers",
            Self::TunnelTimeout => "tunnel_timeout",
            Self::Streams => "streams",
            Self::Http2Resets => "http2_resets",
            Self::Http2ControlFrames => "http2_control_frames",
            Self::Http2Errors => "http2_errors",
            Self::Http2PingTimeout => "http2_ping_timeout",
        }
    }
}

/// Why a connection ended before its first request, where an operator may want to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionFailure {
    FirstByteTimeout,
    ProxyHeader,
    TlsHandshake,
    TlsHandshakeTimeout,
    PlainHttp,
}

impl ConnectionFailure {
    #[cfg(test)]
    pub(crate) const ALL: [Self; 5] =
        [Self::FirstByteTimeout, Self::ProxyHeader, Self::TlsHandshake, Self::TlsHandshakeTimeout, Self::PlainHttp];

    /// The name in metrics.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::FirstByteTimeout => "first_byte_timeout",
            Self::ProxyHeader => "proxy_header",
            Self::TlsHandshake => "tls_handshake",
            Self::TlsHandshakeTimeout => "tls_handshake_timeout",
            Self::PlainHttp => "plain_http",
        }
    }
}
