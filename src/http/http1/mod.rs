//! HTTP/1.1 and HTTP/1.0 (RFC 9112).
//!
//! The codec is our own, on top of httparse's tokens: a proxy that enforces limits must read a message exactly as the
//! server behind it does, and what libraries tolerate (a bare LF, two lengths, a length with chunks) is how requests
//! are smuggled. [`head`] and [`decode`] read, [`encode`] writes, and none of them does I/O. [`server`] is a client's
//! connection and [`client`] an upstream's.

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

/// Bytes read at once where a long body is expected: as much as a socket usually buffers.
const BODY_READ: usize = 64 * 1024;

/// Reads what is available; 0 bytes at the end. At least `expected` bytes are known to come.
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
