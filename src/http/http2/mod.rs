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

pub(super) use client::Connection;
pub(super) use server::serve;

/// How long a client has to read that its connection is over, and a server of ours to answer the last `PING`.
const LINGER: Duration = Duration::from_secs(1);
