//! One type for every kind of connection.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsStream;

/// A connection, of a client or to an upstream. For plain TCP it costs a comparison more than the socket itself.
#[derive(Debug)]
pub enum Stream {
    /// TCP.
    Tcp(TcpStream),
    /// A unix socket.
    Unix(UnixStream),
    /// TLS over one of the others.
    Tls(Box<TlsStream<Stream>>),
}

/// Calls a method of what the stream really is.
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
    /// Whether nothing has come, as far as that is known without reading. What TLS holds back is not.
    pub(crate) fn is_silent(&self, cx: &mut Context<'_>) -> bool {
        match self {
            Self::Tcp(stream) => stream.poll_read_ready(cx).is_pending(),
            Self::Unix(stream) => stream.poll_read_ready(cx).is_pending(),
            Self::Tls(_) => false,
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
