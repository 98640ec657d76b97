//! HTTP/2, in and out (RFC 9113).
//!
//! Frames, compression and flow control are the `h2` crate's. hyper, which has it too, makes a task of each stream and a
//! body of each message, and has no way to send an interim response; so it is used as it is. [`server`] is a client's
//! connection and [`stream`] a request on it, [`client`] a connection to an upstream.

mod body;
mod client;
mod convert;
mod server;
mod stream;
mod tasks;
mod watch;

use std::time::Duration;

use super::http1::HeadLimits;

pub(super) use body::Upload;
pub(super) use client::{Connection, Download};
pub(super) use server::serve;
pub(super) use stream::Responder;

/// How long a client has to read that its connection is over, and a server of ours to answer the last `PING`.
const LINGER: Duration = Duration::from_secs(1);

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

/// Streams that were reset by us and are remembered for a moment, because the client may still send on them: one that is
/// forgotten counts as a mistake of the client. A limiter refuses many requests whose bodies are on their way.
const REMEMBERED_RESETS: usize = 512;

/// Requests that may be reset while they wait to be accepted. They are accepted before more is read, see
/// [`watch::Watched`], so this is more than fits into one read; the bound is [`Http2Limits::max_resets`].
const PENDING_RESETS: usize = 4096;

impl Http2Limits {
    /// The library answers 431 to heads of this size and ends the connection at four times as much. The bound on
    /// CONTINUATION frames follows from it (CVE-2024-27316), and it bounds what a small compressed block unfolds to
    /// (CVE-2016-1544). It counts 32 bytes for each header (RFC 9113 section 6.5.2), and it has some room above our own
    /// limits, because only what we refuse ourselves is counted.
    fn header_list(head: &HeadLimits) -> u32 {
        u32::try_from(2 * head.bytes + 32 * head.lines).unwrap_or(u32::MAX)
    }

    fn server(&self, head: &HeadLimits) -> h2::server::Builder {
        let mut builder = h2::server::Builder::new();
        builder
            .max_concurrent_streams(self.max_streams)
            .max_header_list_size(Self::header_list(head))
            .initial_window_size(self.stream_window)
            .initial_connection_window_size(self.connection_window)
            .max_send_buffer_size(self.send_buffer as usize)
            .max_local_error_reset_streams(Some(self.max_errors as usize))
            .max_concurrent_reset_streams(REMEMBERED_RESETS)
            .max_pending_accept_reset_streams(PENDING_RESETS);
        builder
    }
}
