//! HTTP/2 (RFC 9113).
//!
//! Frames, compression and flow control come from the `h2` crate, without hyper's layer, which spawns a task per stream
//! and cannot send interim responses. [`server`] is a client's connection and [`stream`] a request on it, [`client`] an
//! upstream's connection.

mod body;
mod client;
mod client_stream;
mod convert;
mod drive;
mod output;
mod server;
mod stream;
mod tasks;
mod watch;

use std::time::Duration;

pub(super) use client::{Connection, StreamSlot};
pub(super) use server::serve;

/// The time for a client to read that its connection is over, and to answer the last PING.
const LINGER: Duration = Duration::from_secs(1);
