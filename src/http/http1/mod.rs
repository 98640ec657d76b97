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
pub(super) mod spare;

pub(super) use client::{Connection, KeepAlive};
pub(super) use server::serve;
