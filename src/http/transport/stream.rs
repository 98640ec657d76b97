//! One type for all kinds of connections.

use std::cell::RefCell;
use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsStream;

/// A connection of a client or to an upstream. Over plain TCP it costs one comparison more than the socket.
#[derive(Debug)]
pub enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    /// TLS over one of the others.
    Tls(Box<TlsStream<Stream>>),
}

/// Calls a method of the wrapped stream.
macro_rules! delegate {
    ($stream:expr, $inner:ident => $call:expr) => {
        match $stream.get_mut() {
            Stream::Tcp(stream) => {
                let $inner = Pin::new(stream);
                $call
            }
            Stream::Unix(stream) => {
                let $inner = Pin::new(stream);
                $call
            }
            Stream::Tls(stream) => {
                let $inner = Pin::new(&mut **stream);
                $call
            }
        }
    };
}

impl Stream {
    /// Returns whether nothing has arrived, as far as that is known without reading. Unknown for TLS.
    pub(crate) fn is_silent(&self, cx: &mut Context<'_>) -> bool {
        match self {
            Self::Tcp(stream) => stream.poll_read_ready(cx).is_pending(),
            Self::Unix(stream) => stream.poll_read_ready(cx).is_pending(),
            Self::Tls(_) => false,
        }
    }

    /// Reads up to [`SMALL_READ`] bytes and appends them to `input`; 0 bytes at the end. `None` if this is not TCP.
    ///
    /// The buffer is shared by all connections of a thread, so idle ones do not keep memory for it.
    pub(crate) fn poll_small_read(
        &self,
        cx: &mut Context<'_>,
        input: &mut BytesMut,
    ) -> Option<Poll<io::Result<usize>>> {
        let Self::Tcp(stream) = self else { return None };
        Some(SCRATCH.with_borrow_mut(|scratch| {
            let count = ready!(poll_receive(stream, cx, scratch))?;
            input.extend_from_slice(&scratch[..count]);
            Poll::Ready(Ok(count))
        }))
    }
}

/// The size of [`Stream::poll_small_read`]'s buffer: usually enough for a request's head.
pub(crate) const SMALL_READ: usize = 4 * 1024;

thread_local! {
    static SCRATCH: RefCell<[u8; SMALL_READ]> = const { RefCell::new([0; SMALL_READ]) };
}

/// As `TcpStream`'s `poll_read`, but calls the system through rustix. glibc's `recv` is a cancellation point, which
/// costs two locked instructions per call in a process with several threads.
fn poll_receive(stream: &TcpStream, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
    loop {
        ready!(stream.poll_read_ready(cx))?;
        let mut received = Err(rustix::io::Errno::AGAIN);
        let _ = stream.try_io(Interest::READABLE, || {
            received = recv(stream, &mut *buffer, RecvFlags::empty()).map(|(count, _)| count);
            // As in tokio: a partially filled buffer was all there is, and another call would return nothing.
            let is_drained = received.is_ok_and(|count| 0 < count && count < buffer.len());
            if is_drained { Err(ErrorKind::WouldBlock.into()) } else { received.map_err(io::Error::from) }
        });
        match received {
            Err(rustix::io::Errno::AGAIN) => {}
            other => return Poll::Ready(other.map_err(io::Error::from)),
        }
    }
}

/// As [`poll_receive`], for `poll_write`.
fn poll_send(stream: &TcpStream, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
    loop {
        ready!(stream.poll_write_ready(cx))?;
        match stream.try_io(Interest::WRITABLE, || Ok(send(stream, bytes, SendFlags::NOSIGNAL)?)) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            sent => return Poll::Ready(sent),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        delegate!(self, stream => stream.poll_read(cx, buffer))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if let Self::Tcp(stream) = &*self {
            return poll_send(stream, cx, bytes);
        }
        delegate!(self, stream => stream.poll_write(cx, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        delegate!(self, stream => stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        delegate!(self, stream => stream.poll_shutdown(cx))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        delegate!(self, stream => stream.poll_write_vectored(cx, pieces))
    }

    fn is_write_vectored(&self) -> bool {
        // Both kinds of sockets have `writev`, and rustls gathers by itself.
        true
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// Sends several pieces in one call and then the end, and expects them on the other side.
    async fn check(mut one: Stream, mut other: Stream) {
        assert!(one.is_write_vectored());
        let pieces = [IoSlice::new(b"one, "), IoSlice::new(b"two")];
        assert_eq!(one.write_vectored(&pieces).await.unwrap(), 8);
        one.write_all(b", three").await.unwrap();
        one.flush().await.unwrap();
        one.shutdown().await.unwrap();
        let mut text = String::new();
        other.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "one, two, three");
    }

    #[tokio::test]
    async fn sockets_of_both_kinds_are_read_and_written() {
        let (one, other) = UnixStream::pair().unwrap();
        check(Stream::Unix(one), Stream::Unix(other)).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        check(Stream::Tcp(one), Stream::Tcp(listener.accept().await.unwrap().0)).await;
    }

    #[test]
    fn a_stream_takes_no_more_room_than_its_largest_socket() {
        // It is moved from hand to hand; TLS, which is kilobytes, is in a box.
        assert!(size_of::<Stream>() <= size_of::<TcpStream>() + size_of::<usize>());
    }
}
