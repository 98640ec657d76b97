//! Writing little in one piece.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The most that is copied into one piece: the fields and body of a small message.
const SMALL: usize = 2 * 1024;

/// A stream that sends a small message with `send` instead of `writev`, which costs the system 0.2 us more than the copy.
#[derive(Debug)]
pub(super) struct Compact<S>(pub(super) S);

impl<S: AsyncRead + Unpin> AsyncRead for Compact<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Compact<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let stream = Pin::new(&mut self.0);
        if let [piece] = pieces {
            return stream.poll_write(cx, piece);
        }
        let mut whole = [0; SMALL];
        let mut length = 0;
        for piece in pieces {
            let Some(place) = whole.get_mut(length..length + piece.len()) else {
                return stream.poll_write_vectored(cx, pieces);
            };
            place.copy_from_slice(piece);
            length += piece.len();
        }
        stream.poll_write(cx, &whole[..length])
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }
}
