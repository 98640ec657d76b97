//! The flags about what one HTTP/2 connection of a client may take.

use std::num::NonZeroU32;
use std::time::Duration;

use super::values::parse_duration;
use crate::http::Http2Limits;

/// What one HTTP/2 connection of a client may take.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "HTTP/2 connections of clients")]
#[expect(clippy::struct_field_names, reason = "a field is named like its flag, and a flag by what it is about")]
pub(super) struct Http2Args {
    /// Requests at once on an HTTP/2 connection
    #[arg(long, value_name = "N", env = "WEIR_HTTP2_STREAMS", default_value = "128")]
    http2_streams: NonZeroU32,

    /// Bytes of one HTTP/2 request's body that may wait for the upstream, or be on their way
    #[arg(long, value_name = "BYTES", env = "WEIR_HTTP2_STREAM_WINDOW", default_value_t = 256 * 1024, value_parser = window())]
    http2_stream_window: u32,

    /// Bytes of all requests' bodies of an HTTP/2 connection that may wait for upstreams, or be on their way
    #[arg(long, value_name = "BYTES", env = "WEIR_HTTP2_CONNECTION_WINDOW", default_value_t = 1024 * 1024, value_parser = window())]
    http2_connection_window: u32,

    /// Bytes of one HTTP/2 response that may wait for a client that does not read
    #[arg(long, value_name = "BYTES", env = "WEIR_HTTP2_SEND_BUFFER", default_value_t = 64 * 1024, value_parser = window())]
    http2_send_buffer: u32,

    /// Requests that an HTTP/2 client may take back within a second of sending them, in 10 s; more end the connection
    #[arg(long, value_name = "N", env = "WEIR_HTTP2_RESETS", default_value = "100")]
    http2_resets: NonZeroU32,

    /// Requests of an HTTP/2 connection that may end because the client breaks the protocol; more end the connection
    #[arg(long, value_name = "N", env = "WEIR_HTTP2_ERRORS", default_value = "1024")]
    http2_errors: NonZeroU32,

    /// PING, SETTINGS and other HTTP/2 frames that neither requests, bodies nor the time explain; more end the connection
    #[arg(long, value_name = "N", env = "WEIR_HTTP2_CONTROL_FRAMES", default_value = "1000")]
    http2_control_frames: NonZeroU32,

    /// How long an HTTP/2 client with an open request may be silent until it is sent a PING
    #[arg(long, value_name = "DURATION", env = "WEIR_HTTP2_PING_INTERVAL", default_value = "30s", value_parser = parse_duration)]
    http2_ping_interval: Duration,

    /// How long an HTTP/2 client may take to answer a PING
    #[arg(long, value_name = "DURATION", env = "WEIR_HTTP2_PING_TIMEOUT", default_value = "10s", value_parser = parse_duration)]
    http2_ping_timeout: Duration,
}

/// Windows are from a frame to what 31 bits hold (RFC 9113 section 6.9.1). One smaller than a frame would be full after
/// each.
fn window() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(16_384..=2_147_483_647)
}

impl Http2Args {
    pub(super) fn limits(&self) -> Http2Limits {
        Http2Limits {
            max_streams: self.http2_streams.get(),
            stream_window: self.http2_stream_window,
            connection_window: self.http2_connection_window,
            send_buffer: self.http2_send_buffer,
            max_resets: self.http2_resets.get(),
            max_errors: self.http2_errors.get(),
            max_control_frames: self.http2_control_frames.get(),
            ping_interval: self.http2_ping_interval,
            ping_timeout: self.http2_ping_timeout,
        }
    }
}
