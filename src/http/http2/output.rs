//! Gathers what a connection writes while its task runs.
//!
//! The library flushes each time that it is polled, and after each frame whose payload is longer than a kilobyte. With 16
//! streams that is a `send` per response. Here the connection's task flushes, once, when all its streams have had their turn.

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::AsyncWrite;

use crate::http::transport::Stream;

/// The most bytes that are gathered: as many as the library gathers by itself. Copying more costs more than a system call.
const MOST: usize = 16 * 1024;

/// A connection's socket, and the bytes that it has not been given yet.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) stream: RefCell<Stream>,
    gathered: RefCell<Gathered>,
    /// True if the connection's task flushes, false if the library does.
    is_gathering: Cell<bool>,
}

#[derive(Debug, Default)]
struct Gathered {
    /// What the socket has not been given yet.
    unsent: BytesMut,
    /// True if something was written since the last flush. TLS holds bytes back as well.
    is_dirty: bool,
}

thread_local! {
    /// The memory for gathering, which a connection has only while its task runs or its client does not read.
    static SPARE: RefCell<BytesMut> = RefCell::default();
}

impl Gathered {
    fn push(&mut self, bytes: &[u8]) {
        if self.unsent.capacity() == 0 {
            self.unsent = SPARE.take();
        }
        self.unsent.extend_from_slice(bytes);
    }

    /// The socket has been given so many bytes.
    fn advance(&mut self, count: usize) {
        self.unsent.advance(count);
        if self.unsent.is_empty() {
            SPARE.set(std::mem::take(&mut self.unsent));
        }
    }
}

impl Output {
    pub(super) fn new(stream: Stream) -> Self {
        Self { stream: RefCell::new(stream), gathered: RefCell::default(), is_gathering: Cell::new(false) }
    }

    /// From now on, the caller flushes.
    pub(super) fn gather(&self) {
        self.is_gathering.set(true);
    }

    /// Returns whether the caller flushes, so that the library need not.
    pub(super) const fn is_gathering(&self) -> bool {
        self.is_gathering.get()
    }

    pub(super) fn poll_write(&self, bytes: &[u8], cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut gathered = self.gathered.borrow_mut();
        gathered.is_dirty = true;
        loop {
            let unsent = &gathered.unsent;
            if self.is_gathering.get() && unsent.len() + bytes.len() <= MOST {
                gathered.push(bytes);
                return Poll::Ready(Ok(bytes.len()));
            }
            let mut stream = self.stream.borrow_mut();
            let stream = Pin::new(&mut *stream);
            if unsent.is_empty() {
                return stream.poll_write(cx, bytes);
            }
            let count = ready!(stream.poll_write_vectored(cx, &[IoSlice::new(unsent), IoSlice::new(bytes)]))?;
            let own = count.min(unsent.len());
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            gathered.advance(own);
            if count > own {
                return Poll::Ready(Ok(count - own));
            }
        }
    }

    pub(super) fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut gathered = self.gathered.borrow_mut();
        if !gathered.is_dirty {
            return Poll::Ready(Ok(()));
        }
        let mut stream = self.stream.borrow_mut();
        while !gathered.unsent.is_empty() {
            let count = ready!(Pin::new(&mut *stream).poll_write(cx, &gathered.unsent))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            gathered.advance(count);
        }
        ready!(Pin::new(&mut *stream).poll_flush(cx))?;
        gathered.is_dirty = false;
        Poll::Ready(Ok(()))
    }

    pub(super) fn poll_shutdown(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_flush(cx))?;
        Pin::new(&mut *self.stream.borrow_mut()).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use proptest::prelude::*;
    use tokio::io::AsyncReadExt;
    use tokio::net::UnixStream;

    use super::*;

    fn pair() -> (Output, UnixStream) {
        let (one, other) = UnixStream::pair().unwrap();
        (Output::new(Stream::Unix(one)), other)
    }

    async fn write(output: &Output, bytes: &[u8]) -> usize {
        poll_fn(|cx| output.poll_write(bytes, cx)).await.unwrap()
    }

    #[tokio::test]
    async fn what_is_gathered_goes_out_with_a_flush() {
        let (output, other) = pair();
        let mut read = [0; 32];
        assert_eq!(write(&output, b"settings").await, 8);
        other.readable().await.unwrap();
        assert_eq!(other.try_read(&mut read).unwrap(), 8, "the library flushes by itself");
        output.gather();
        for part in [&b"head"[..], b"body", b"head"] {
            assert_eq!(write(&output, part).await, 4);
        }
        assert_eq!(other.try_read(&mut read).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        poll_fn(|cx| output.poll_flush(cx)).await.unwrap();
        other.readable().await.unwrap();
        assert_eq!((other.try_read(&mut read).unwrap(), &read[..12]), (12, &b"headbodyhead"[..]));
        assert_eq!(output.gathered.borrow().unsent.capacity(), 0, "an idle connection keeps no memory");
    }

    #[tokio::test]
    async fn the_end_follows_what_was_gathered() {
        let (output, mut other) = pair();
        output.gather();
        write(&output, b"goaway").await;
        poll_fn(|cx| output.poll_shutdown(cx)).await.unwrap();
        let mut text = String::new();
        other.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "goaway");
    }

    #[tokio::test]
    async fn a_client_that_does_not_read_holds_up_a_bounded_number_of_bytes() {
        let (output, _other) = pair();
        output.gather();
        let piece = [7; 5_000];
        let mut is_pending = false;
        for _ in 0..10_000 {
            is_pending = poll_fn(|cx| Poll::Ready(output.poll_write(&piece, cx).is_pending())).await;
            assert!(output.gathered.borrow().unsent.len() <= MOST);
            if is_pending {
                break;
            }
        }
        assert!(is_pending);
    }

    /// A client that reads as fast as it is written to, and never all.
    #[test]
    fn what_was_sent_takes_no_memory() {
        let mut gathered = Gathered::default();
        gathered.push(b"always left");
        for _ in 0..10_000 {
            gathered.push(&[7; 1_000]);
            gathered.advance(1_000);
        }
        assert_eq!(gathered.unsent.len(), 11);
        assert!(gathered.unsent.capacity() <= 2 * MOST);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn every_byte_arrives_once_and_in_order(
            parts in prop::collection::vec((0..60_000usize, any::<bool>()), 1..20),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
            let (sent, read) = runtime.block_on(async {
                let (output, mut other) = pair();
                output.gather();
                let mut read = Vec::new();
                let writing = async {
                    let mut sent = Vec::new();
                    for (number, (length, is_end)) in (0u8..).zip(parts) {
                        let part: Vec<u8> = (0..length).map(|at| at.to_le_bytes()[at % 2] ^ number).collect();
                        let mut left = &part[..];
                        while !left.is_empty() {
                            left = &left[write(&output, left).await..];
                        }
                        if is_end {
                            poll_fn(|cx| output.poll_flush(cx)).await.unwrap();
                        }
                        sent.extend(part);
                    }
                    poll_fn(|cx| output.poll_shutdown(cx)).await.unwrap();
                    sent
                };
                let (sent, _) = tokio::join!(writing, other.read_to_end(&mut read));
                (sent, read)
            });
            prop_assert!(sent == read);
        }
    }
}
