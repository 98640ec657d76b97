//! Events for metrics and logs, and the traits through which a listener receives them.

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
    /// [`UpstreamError::reason`](super::failure::UpstreamError::reason), or of [`BodyError::reason`](super::message::BodyError::reason) for a response cut off.
    fn failed(&self, server: Option<&dyn Display>, reason: &'static str, error: &dyn Error);

    /// A request is sent a second time.
    fn retried(&self);

    fn ejected(&self);

    /// A DNS lookup returned no address.
    fn unresolved(&self);
}

/// Declares an enum whose variants have a name in metrics.
macro_rules! labels {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident => $label:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum $name {
            $($(#[$doc])* $variant,)*
        }

        impl $name {
            #[cfg(test)]
            pub(crate) const ALL: [Self; [$($label),*].len()] = [$(Self::$variant),*];

            pub(crate) const fn label(self) -> &'static str {
                match self {
                    $(Self::$variant => $label,)*
                }
            }
        }
    };
}

labels! {
    /// A bound on what one client may use, whatever the rules say.
    HttpLimit {
        Target => "target",
        HeaderBytes => "header_bytes",
        HeaderCount => "header_count",
        BodyBytes => "body_bytes",
        /// Requests on one connection.
        Requests => "requests",
        FirstByteTimeout => "first_byte_timeout",
        HeaderTimeout => "header_timeout",
        IdleTimeout => "idle_timeout",
        BodyTimeout => "body_timeout",
        UploadRate => "upload_rate",
        DownloadRate => "download_rate",
        /// Responses that wait for clients which read slowly, in the whole process.
        SlowReaders => "slow_readers",
        TunnelTimeout => "tunnel_timeout",
        /// Concurrent HTTP/2 requests from one address.
        Streams => "streams",
        /// Requests cancelled soon after they were sent (rapid reset).
        Http2Resets => "http2_resets",
        /// Frames that are neither requests nor bodies.
        Http2ControlFrames => "http2_control_frames",
        Http2Errors => "http2_errors",
        Http2PingTimeout => "http2_ping_timeout",
    }
}

/// The cause of a response's early end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// It closed, or sent what is no body.
    Upstream,
    /// It left.
    Client,
    /// Nothing moved in time.
    Timeout,
}

impl Cut {
    /// The member `cut` of the access log.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Upstream => "upstream",
            Self::Client => "client",
            Self::Timeout => "timeout",
        }
    }
}

labels! {
    /// A reason for a connection's end before its first request that operators may want to know.
    ConnectionFailure {
        FirstByteTimeout => "first_byte_timeout",
        ProxyHeader => "proxy_header",
        TlsHandshake => "tls_handshake",
        TlsHandshakeTimeout => "tls_handshake_timeout",
        PlainHttp => "plain_http",
        PlainPort => "tls_on_plain_port",
    }
}
