//! HTTP/1.1 and HTTP/1.0, in and out (RFC 9112).
//!
//! The codec is our own, on top of httparse's tokens, because a proxy that enforces something must read a message as the
//! server behind it does: what libraries forgive (a bare LF, two lengths, a length beside chunks) is what requests are
//! smuggled by. [`head`] and [`decode`] read, [`encode`] writes, and none of them does input or output; [`server`] is a
//! client's connection and [`client`] an upstream's.

mod client;
mod client_io;
mod decode;
mod encode;
mod head;
#[cfg(any(test, fuzzing))]
pub(super) mod properties;
mod server;

pub(super) use client::{Connection, Keep};
pub(super) use server::serve;

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::BytesMut;
use tokio_util::io::poll_read_buf;

use super::transport::{SMALL_READ, Stream};

/// What is read at once where a long body is expected: as much as a socket usually has.
const BODY_READ: usize = 64 * 1024;

/// Reads what there is, 0 bytes at the end. `expected` are the bytes that are known to come.
fn poll_fill(
    stream: &mut Stream,
    input: &mut BytesMut,
    expected: usize,
    cx: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    if expected <= SMALL_READ
        && let Some(read) = stream.poll_small_read(cx, input)
    {
        return read;
    }
    input.reserve(if expected > SMALL_READ { BODY_READ } else { SMALL_READ });
    poll_read_buf(Pin::new(stream), cx, input)
}
