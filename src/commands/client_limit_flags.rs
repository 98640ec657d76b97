//! Flags for limits and timeouts of the proxy's clients.

use std::num::NonZeroU32;
use std::time::Duration;

use super::upstream_flags::UpstreamArgs;
use super::values::{one_of, parse_duration, parse_positive};
use crate::engine::request::INSPECTED_BYTES;
use crate::http::{HeadLimits, Http2Limits, HttpLimits, Timeouts};
use crate::message::path::EscapedSlashes;

#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Client limits and timeouts")]
pub(super) struct ClientLimitArgs {
    /// Timeout for the first byte on a new connection
    #[arg(long, value_name = "DURATION", env = "WEIR_FIRST_BYTE_TIMEOUT", default_value = "10s", value_parser = parse_duration)]
    first_byte_timeout: Duration,

    /// Timeout for a request's headers, from its first byte
    #[arg(long, value_name = "DURATION", env = "WEIR_HEADER_TIMEOUT", default_value = "10s", value_parser = parse_duration)]
    header_timeout: Duration,

    /// Timeout for a client to send more of a request's body, or to read more of a response
    #[arg(long, value_name = "DURATION", env = "WEIR_BODY_TIMEOUT", default_value = "30s", value_parser = parse_duration)]
    body_timeout: Duration,

    /// How long a connection may be idle between requests
    #[arg(long, value_name = "DURATION", env = "WEIR_IDLE_TIMEOUT", default_value = "60s", value_parser = parse_duration)]
    idle_timeout: Duration,

    /// Timeout for an upgraded connection (such as WebSocket) without traffic
    #[arg(long, value_name = "DURATION", env = "WEIR_TUNNEL_TIMEOUT", default_value = "5m", value_parser = parse_duration)]
    tunnel_timeout: Duration,

    /// Minimum bytes per second for sending a body and reading a response, after 5 s of grace; 0 for no minimum
    #[arg(long, value_name = "BYTES", env = "WEIR_MIN_RATE", default_value_t = 240)]
    min_rate: u64,

    /// Maximum length of a request's target (path and query); longer ones get 414
    #[arg(long, value_name = "BYTES", env = "WEIR_MAX_TARGET_BYTES", default_value_t = 8 * 1024)]
    max_target_bytes: u16,

    /// Maximum size of a request's line and headers; larger ones get 431
    #[arg(long, value_name = "BYTES", env = "WEIR_MAX_HEADER_BYTES", default_value_t = 32 * 1024)]
    max_header_bytes: u16,

    /// Maximum number of headers in a request, up to 256; more get 431
    #[arg(long, value_name = "N", env = "WEIR_MAX_HEADERS", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=256))]
    max_headers: u16,

    /// Maximum size of a request's body; larger ones get 413
    #[arg(long, value_name = "BYTES", env = "WEIR_MAX_BODY_BYTES", default_value_t = 1 << 30)]
    max_body_bytes: u64,

    #[command(flatten)]
    inspection: InspectionArgs,

    /// Requests per connection before it is closed
    #[arg(long, value_name = "N", env = "WEIR_MAX_REQUESTS", default_value_t = 100_000)]
    max_requests: u32,

    #[command(flatten)]
    pub(super) slashes: EscapedSlashesArg,

    #[command(flatten)]
    http2: Http2Args,
}

#[derive(clap::Args, Clone, Copy, Debug)]
pub(super) struct EscapedSlashesArg {
    /// Paths with `%2F` or `%5C`
    #[arg(long, value_name = "WHAT", env = "WEIR_ESCAPED_SLASHES", default_value = "keep", value_parser = one_of(ESCAPED_SLASHES))]
    pub(super) escaped_slashes: EscapedSlashes,
}

#[derive(clap::Args, Debug)]
pub(super) struct InspectionArgs {
    /// Maximum size of a JSON body that limits with `body` read; it is held in memory until the request is decided, and larger ones
    /// are malformed to these limits
    #[arg(long, value_name = "BYTES", env = "WEIR_MAX_INSPECTED_BODY", default_value_t = INSPECTED_BYTES, value_parser = inspected())]
    max_inspected_body: u32,
}

impl InspectionArgs {
    pub(super) const fn bytes(&self) -> usize {
        self.max_inspected_body as usize
    }
}

impl ClientLimitArgs {
    pub(super) fn limits(&self) -> HttpLimits {
        HttpLimits {
            head: HeadLimits {
                bytes: self.max_header_bytes.into(),
                target: self.max_target_bytes.into(),
                lines: self.max_headers.into(),
            },
            body_bytes: self.max_body_bytes,
            inspected_bytes: self.inspection.bytes(),
            requests: self.max_requests,
            http2: self.http2.limits(),
            escaped_slashes: self.slashes.escaped_slashes,
        }
    }

    /// The timeouts for clients, with those for upstreams.
    pub(super) fn timeouts(&self, upstream: &UpstreamArgs) -> Timeouts {
        Timeouts {
            first_byte: self.first_byte_timeout,
            header: self.header_timeout,
            body: self.body_timeout,
            idle: self.idle_timeout,
            tunnel: self.tunnel_timeout,
            min_rate: self.min_rate,
            connect: upstream.connect_timeout,
            response: upstream.response_timeout,
            upstream_body: upstream.upstream_body_timeout,
            upstream_idle: upstream.upstream_idle_timeout,
        }
    }
}

const ESCAPED_SLASHES: &[(&str, &str, EscapedSlashes)] = &[
    ("keep", "Forward them unchanged; limits do not treat them as slashes", EscapedSlashes::Keep),
    ("reject", "Answer 400", EscapedSlashes::Reject),
];

#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Client HTTP/2 connections")]
#[expect(clippy::struct_field_names, reason = "fields are named like their flags")]
struct Http2Args {
    /// Concurrent requests per HTTP/2 connection
    #[arg(long, value_name = "N", env = "WEIR_HTTP2_STREAMS", default_value = "128", value_parser = parse_positive::<NonZeroU32>)]
    http2_streams: NonZeroU32,

    /// Receive window of an HTTP/2 request's body, in bytes; that of the connection is `--http2-streams` times as large
    #[arg(long, value_name = "BYTES", env = "WEIR_HTTP2_STREAM_WINDOW", default_value_t = 256 * 1024, value_parser = window())]
    http2_stream_window: u32,

    /// Bytes of an HTTP/2 response to buffer for a client that does not read
    #[arg(long, value_name = "BYTES", env = "WEIR_HTTP2_SEND_BUFFER", default_value_t = 64 * 1024, value_parser = window())]
    http2_send_buffer: u32,

    /// Requests that an HTTP/2 client may cancel within a second of sending them, per 10 s; more close the connection
    #[arg(long, value_name = "N", env = "WEIR_HTTP2_RESETS", default_value = "100", value_parser = parse_positive::<NonZeroU32>)]
    http2_resets: NonZeroU32,

    /// Requests that may fail on an HTTP/2 connection due to the client's protocol errors; more close the connection
    #[arg(long, value_name = "N", env = "WEIR_HTTP2_ERRORS", default_value = "1024", value_parser = parse_positive::<NonZeroU32>)]
    http2_errors: NonZeroU32,

    /// PING, SETTINGS and other HTTP/2 frames beyond what requests, bodies and time justify; more close the connection
    #[arg(long, value_name = "N", env = "WEIR_HTTP2_CONTROL_FRAMES", default_value = "1000", value_parser = parse_positive::<NonZeroU32>)]
    http2_control_frames: NonZeroU32,

    /// How long an HTTP/2 client with an open request may be silent before Weir sends a PING
    #[arg(long, value_name = "DURATION", env = "WEIR_HTTP2_PING_INTERVAL", default_value = "30s", value_parser = parse_duration)]
    http2_ping_interval: Duration,

    /// How long an HTTP/2 client may take to answer a PING
    #[arg(long, value_name = "DURATION", env = "WEIR_HTTP2_PING_TIMEOUT", default_value = "10s", value_parser = parse_duration)]
    http2_ping_timeout: Duration,
}

/// Up to 16 MiB: each request of a client may hold as much.
fn inspected() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=16 * 1024 * 1024)
}

/// From one frame's size, below which each frame would fill the window, to 31 bits (RFC 9113 section 6.9.1).
fn window() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(16_384..=2_147_483_647)
}

impl Http2Args {
    fn limits(&self) -> Http2Limits {
        Http2Limits {
            max_streams: self.http2_streams.get(),
            stream_window: self.http2_stream_window,
            send_buffer: self.http2_send_buffer,
            max_resets: self.http2_resets.get(),
            max_errors: self.http2_errors.get(),
            max_control_frames: self.http2_control_frames.get(),
            ping_interval: self.http2_ping_interval,
            ping_timeout: self.http2_ping_timeout,
        }
    }
}
