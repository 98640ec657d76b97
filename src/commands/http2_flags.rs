//! Limits for clients' HTTP/2 connections.

use std::num::NonZeroU32;
use std::time::Duration;

use super::values::parse_duration;
use crate::http::Http2Limits;

/// Limits for a client's HTTP/2 connection.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Client HTTP/2 connections")]
#[expect(clippy::struct_field_names, reason = "a field is named like its flag, and a flag by what it is about")]
pub(super) struct Http2Args {
    /// Concurrent requests per HTTP/2 connection
    #[arg(long, value_name = "N", env = "WEIR_HTTP2_STREAMS", default_value = "128")]
    http2_streams: NonZeroU32,

    /// Receive window of an HTTP/2 request's body, in bytes
    #[arg(long, value_name = "BYTES", env = "WEIR_HTTP2_STREAM_WINDOW", default_value_t = 256 * 1024, value_parser = window())]
    http2_stream_window: u32,

    /// Receive window of an HTTP/2 connection, for all its request bodies, in bytes
    #[arg(long, value_name = "BYTES", env = "WEIR_HTTP2_CONNECTION_WINDOW", default_value_t = 1024 * 1024, value_parser = window())]
    http2_connection_window: u32,

    /// Bytes of an HTTP/2 response to buffer for a client that does not read
    #[arg(long, value_name = "BYTES", env = "WEIR_HTTP2_SEND_BUFFER", default_value_t = 64 * 1024, value_parser = window())]
    http2_send_buffer: u32,

    /// Requests that an HTTP/2 client may cancel within a second of sending them, per 10 s; more close the connection
    #[arg(long, value_name = "N", env = "WEIR_HTTP2_RESETS", default_value = "100")]
    http2_resets: NonZeroU32,

    /// Requests that may fail on an HTTP/2 connection due to the client's protocol errors; more close the connection
    #[arg(long, value_name = "N", env = "WEIR_HTTP2_ERRORS", default_value = "1024")]
    http2_errors: NonZeroU32,

    /// PING, SETTINGS and other HTTP/2 frames beyond what requests, bodies and time justify; more close the connection
    #[arg(long, value_name = "N", env = "WEIR_HTTP2_CONTROL_FRAMES", default_value = "1000")]
    http2_control_frames: NonZeroU32,

    /// How long an HTTP/2 client with an open request may be silent before Weir sends a PING
    #[arg(long, value_name = "DURATION", env = "WEIR_HTTP2_PING_INTERVAL", default_value = "30s", value_parser = parse_duration)]
    http2_ping_interval: Duration,

    /// How long an HTTP/2 client may take to answer a PING
    #[arg(long, value_name = "DURATION", env = "WEIR_HTTP2_PING_TIMEOUT", default_value = "10s", value_parser = parse_duration)]
    http2_ping_timeout: Duration,
}

/// From one frame's size, below which each frame would fill the window, to 31 bits (RFC 9113 section 6.9.1).
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
