//! Bytes in both directions, after a client and an upstream have switched to another protocol.

use std::fmt::Debug;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional_with_sizes};

use super::activity::Activity;
use super::transport::Stream;

/// Bytes buffered in each direction.
const BUFFER: usize = 16 * 1024;

/// An upstream's connection after a `101 Switching Protocols`.
#[derive(Debug)]
pub(crate) struct Tunnel {
    stream: Stream,
    read_ahead: BytesMut,
    /// Held until the tunnel closes.
    _lease: Box<dyn Debug>,
}

/// One side, and what was read from it before HTTP ended.
#[derive(Debug)]
struct Side<S> {
    stream: S,
    read_ahead: BytesMut,
    activity: Rc<Activity>,
}

impl Tunnel {
    pub(super) fn new(stream: Stream, read_ahead: BytesMut, lease: impl Debug + 'static) -> Self {
        Self { stream, read_ahead, _lease: Box::new(lease) }
    }

    /// Forwards bytes in both directions until both sides have ended. `read_ahead` was read from the client before HTTP
    /// ended.
    pub(super) async fn run<C>(
        self: Box<Self>,
        client: C,
        read_ahead: BytesMut,
        activity: Rc<Activity>,
    ) -> io::Result<()>
    where
        C: AsyncRead + AsyncWrite + Unpin,
    {
        activity.tunnel();
        let mut upstream = Side { stream: self.stream, read_ahead: self.read_ahead, activity: activity.clone() };
        let mut client = Side { stream: client, read_ahead, activity };
        copy_bidirectional_with_sizes(&mut client, &mut upstream, BUFFER, BUFFER).await.map(drop)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Side<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.read_ahead.is_empty() {
            let length = self.read_ahead.len().min(buffer.remaining());
            buffer.put_slice(&self.read_ahead[..length]);
            self.read_ahead.advance(length);
            return Poll::Ready(Ok(()));
        }
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if polled.is_ready() {
            self.activity.moved();
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Side<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        if polled.is_ready() {
            self.activity.moved();
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, pieces)
    }
}
