//! Writes heads and bodies (RFC 9112).

use std::io::{self, IoSlice, Write};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::{Method, StatusCode};
use tokio::io::AsyncWrite;

use super::decode::Framing;
use crate::http::forwarding;
use crate::http::message::{BodyError, Piece};
use crate::message::headers::Headers;

/// Up to this length, a body's part is copied behind the head, so that one `send` writes both. A `writev` costs 0.2 us
/// more than a `send`, which is more than this copy.
pub(super) const SMALL: usize = 4 * 1024;

/// From this length on, the outbox is flushed before more is added. It is longer than a head and the part of the body
/// that was read with it (4 KiB), so those leave together with the large part behind them.
const FULL: usize = 6 * 1024;

/// The memory for heads that an idle connection keeps.
const KEPT: usize = 8 * 1024;

/// Bytes to be written, in the order in which they were added: whatever is added goes out behind everything before it.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// Heads, small parts of bodies, and what frames them.
    text: Vec<u8>,
    /// Bytes of `text` that the system has accepted.
    written: usize,
    /// A large part of a body, which goes out behind the first `large_at` bytes of `text` and before the others.
    large: Bytes,
    large_at: usize,
    /// Bytes of the current message that the system has accepted.
    pub(super) total: u64,
}

const CRLF: &[u8] = b"\r\n";

impl Outbox {
    /// The end of what is to be written. Adds only: what is there may have been written.
    pub(super) fn text(&mut self) -> &mut Vec<u8> {
        &mut self.text
    }

    pub(super) fn is_empty(&self) -> bool {
        self.written == self.text.len() && self.large.is_empty()
    }

    /// Drops what was not written, because the receiver takes no more.
    pub(super) fn discard(&mut self) {
        *self = Self { total: self.total, ..Self::default() };
    }

    pub(super) fn has_room(&self) -> bool {
        self.large.is_empty() && self.text.len() < FULL
    }

    /// Adds a part of a body. There is a place for one large part at a time; another one is copied.
    fn data(&mut self, data: Bytes) {
        if data.len() <= SMALL || !self.large.is_empty() {
            self.text.extend_from_slice(&data);
        } else {
            self.large = data;
            self.large_at = self.text.len();
        }
    }

    /// Writes everything. Ready when done.
    pub(super) fn poll_flush<S: AsyncWrite + Unpin>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while !self.is_empty() {
            let (before, after) = self.text[self.written..].split_at(self.before_large());
            let stream = Pin::new(&mut *stream);
            let count = if self.large.is_empty() {
                ready!(stream.poll_write(cx, after))?
            } else {
                let pieces = [IoSlice::new(before), IoSlice::new(&self.large), IoSlice::new(after)];
                ready!(stream.poll_write_vectored(cx, &pieces))?
            };
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.advance(count);
        }
        self.text.clear();
        self.written = 0;
        if self.text.capacity() > KEPT {
            self.text = Vec::new();
        }
        // TLS buffers data until it is flushed. For a plain socket this does nothing.
        Pin::new(stream).poll_flush(cx)
    }

    /// The bytes of the text that go out before the large part.
    fn before_large(&self) -> usize {
        if self.large.is_empty() { 0 } else { self.large_at.saturating_sub(self.written) }
    }

    fn advance(&mut self, count: usize) {
        self.total += count as u64;
        let before = count.min(self.before_large());
        let of_large = (count - before).min(self.large.len());
        self.large.advance(of_large);
        self.written += count - of_large;
    }
}

/// Writes a request's head, with the header that frames its body if it needs one.
pub(super) fn request_head(text: &mut Vec<u8>, method: &Method, target: &str, headers: &Headers, framing: Framing) {
    text.extend_from_slice(method.as_str().as_bytes());
    text.push(b' ');
    text.extend_from_slice(target.as_bytes());
    text.extend_from_slice(b" HTTP/1.1\r\n");
    headers.write(text);
    match framing {
        // Without either header, a server reads no body.
        Framing::Empty => {}
        // The client's own header was validated, and its body was read by it.
        Framing::Length(_) if headers.contains("content-length") => {}
        _ => framing_header(text, framing),
    }
    text.extend_from_slice(CRLF);
}

/// Writes a response's status line and headers, without the empty line at the end.
pub(super) fn response_start(text: &mut Vec<u8>, status: StatusCode, headers: &Headers) {
    text.extend_from_slice(b"HTTP/1.1 ");
    text.extend_from_slice(status.as_str().as_bytes());
    text.push(b' ');
    text.extend_from_slice(status.canonical_reason().unwrap_or_default().as_bytes());
    text.extend_from_slice(CRLF);
    headers.write(text);
}

pub(super) fn line(text: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    text.extend_from_slice(name);
    text.extend_from_slice(b": ");
    text.extend_from_slice(value);
    text.extend_from_slice(CRLF);
}

/// Writes the header that frames the body.
pub(super) fn framing_header(text: &mut Vec<u8>, framing: Framing) {
    match framing {
        Framing::Empty => text.extend_from_slice(b"content-length: 0\r\n"),
        Framing::Length(length) => {
            line(text, b"content-length", itoa::Buffer::new().format(length).as_bytes());
        }
        Framing::Chunked => text.extend_from_slice(b"transfer-encoding: chunked\r\n"),
        Framing::UntilClose => {}
    }
}

impl Framing {
    /// Adds a part of a body, `None` for its end, to the outbox. Returns whether the body has ended; `is_end` says whether a
    /// part was the last.
    pub(super) fn encode(
        &mut self,
        piece: Option<Piece>,
        is_end: impl FnOnce() -> bool,
        outbox: &mut Outbox,
    ) -> Result<bool, BodyError> {
        let trailers = match piece {
            Some(Piece::Data(data)) => {
                self.data(data, outbox)?;
                if !is_end() {
                    return Ok(false);
                }
                Headers::new()
            }
            Some(Piece::Trailers(trailers)) => forwarding::trailers(trailers),
            None => Headers::new(),
        };
        self.end(&trailers, outbox)?;
        Ok(true)
    }

    pub(super) fn data(&mut self, data: Bytes, outbox: &mut Outbox) -> Result<(), BodyError> {
        match self {
            Self::Empty => return Err(wrong_length()),
            Self::Length(left) => {
                *left = left.checked_sub(data.len() as u64).ok_or_else(wrong_length)?;
                outbox.data(data);
            }
            Self::UntilClose => outbox.data(data),
            Self::Chunked => {
                // An empty chunk would end the body.
                if !data.is_empty() {
                    // Writing to a vector cannot fail.
                    let _ = write!(outbox.text(), "{:x}\r\n", data.len());
                    outbox.data(data);
                    outbox.text().extend_from_slice(CRLF);
                }
            }
        }
        Ok(())
    }

    /// Ends the body. Only chunked bodies can have trailers; others drop them (RFC 9110 section 6.5.1).
    pub(super) fn end(&mut self, trailers: &Headers, outbox: &mut Outbox) -> Result<(), BodyError> {
        match std::mem::take(self) {
            Self::Empty | Self::Length(0) | Self::UntilClose => Ok(()),
            Self::Length(_) => Err(wrong_length()),
            Self::Chunked => {
                let text = outbox.text();
                text.extend_from_slice(b"0\r\n");
                trailers.write(text);
                text.extend_from_slice(CRLF);
                Ok(())
            }
        }
    }
}

/// The connection cannot be used any more.
fn wrong_length() -> BodyError {
    BodyError::Malformed("the body's length differs from the announced one".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is written by a body of these pieces, through a stream that takes `step` bytes at a time. Flushes only when it must,
    /// as connections do. The last piece ends the body by itself, unless there are trailers.
    fn write(mut framing: Framing, pieces: &[&[u8]], trailers: &Headers, step: usize) -> Result<Vec<u8>, BodyError> {
        let (mut stream, mut outbox) = (Slow { bytes: Vec::new(), step }, Outbox::default());
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut left = pieces.len();
        let mut parts = pieces.iter().map(|piece| Piece::Data(Bytes::copy_from_slice(piece)));
        loop {
            let part = match left {
                0 if !trailers.is_empty() => Some(Piece::Trailers(trailers.clone())),
                _ => parts.next(),
            };
            left = left.saturating_sub(1);
            let has_ended = framing.encode(part, || left == 0 && trailers.is_empty(), &mut outbox)?;
            if has_ended || !outbox.has_room() {
                assert!(outbox.poll_flush(&mut stream, &mut cx).is_ready() && outbox.is_empty());
            }
            if has_ended {
                return Ok(stream.bytes);
            }
        }
    }

    struct Slow {
        bytes: Vec<u8>,
        step: usize,
    }

    impl AsyncWrite for Slow {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            let count = bytes.len().min(self.step);
            self.bytes.extend_from_slice(&bytes[..count]);
            Poll::Ready(Ok(count))
        }

        fn poll_write_vectored(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            pieces: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            let step = self.step;
            let before = self.bytes.len();
            self.bytes.extend(pieces.iter().flat_map(|piece| piece.iter()).take(step));
            Poll::Ready(Ok(self.bytes.len() - before))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn bodies_are_framed() {
        let (none, some) = (Headers::new(), Headers::from_iter([("X-Sum", "1")]));
        for step in [1, 3, 5000] {
            let text = |framing, pieces: &[&[u8]], trailers| {
                String::from_utf8(write(framing, pieces, trailers, step).unwrap()).unwrap()
            };
            assert_eq!(text(Framing::Length(5), &[b"abc", b"de"], &some), "abcde");
            assert_eq!(text(Framing::UntilClose, &[b"abc"], &some), "abc");
            assert_eq!(text(Framing::Empty, &[], &none), "");
            assert_eq!(text(Framing::Chunked, &[b"abc"], &none), "3\r\nabc\r\n0\r\n\r\n");
            assert_eq!(text(Framing::Chunked, &[], &some), "0\r\nX-Sum: 1\r\n\r\n");
            for size in [SMALL - 1, SMALL, SMALL + 1, FULL, 4 * FULL] {
                let (long, chunk) = ("x".repeat(size), format!("{size:x}\r\n{}\r\n", "x".repeat(size)));
                let long = long.as_bytes();
                assert_eq!(text(Framing::Chunked, &[long], &none), format!("{chunk}0\r\n\r\n"));
                assert_eq!(text(Framing::Chunked, &[long], &some), format!("{chunk}0\r\nX-Sum: 1\r\n\r\n"));
                assert_eq!(text(Framing::Chunked, &[b"y", long], &none), format!("1\r\ny\r\n{chunk}0\r\n\r\n"));
                let both = text(Framing::Chunked, &[long, b"y", long], &none);
                assert_eq!(both, format!("{chunk}1\r\ny\r\n{chunk}0\r\n\r\n"));
            }
        }
    }

    /// Callers flush before they add more. If one does not, nothing is lost or out of order.
    #[test]
    fn what_is_added_without_room_goes_out_in_order() {
        let (mut outbox, mut sent) = (Outbox::default(), Vec::new());
        let parts = [vec![b'a'; 10], vec![b'b'; SMALL + 1], vec![b'c'; SMALL + 2], vec![b'd'; 5]];
        for part in &parts {
            outbox.data(Bytes::copy_from_slice(part));
        }
        assert!(outbox.poll_flush(&mut sent, &mut Context::from_waker(std::task::Waker::noop())).is_ready());
        assert!(sent == parts.concat());
    }

    #[test]
    fn a_body_that_is_not_as_long_as_announced_is_an_error() {
        let none = Headers::new();
        assert_eq!(write(Framing::Length(2), &[b"abc"], &none, 9), Err(wrong_length()));
        assert_eq!(write(Framing::Length(4), &[b"abc"], &none, 9), Err(wrong_length()));
        assert_eq!(write(Framing::Empty, &[b"abc"], &none, 9), Err(wrong_length()));
    }

    #[test]
    fn heads_are_lines() {
        let headers = Headers::from_iter([("Host", "a"), ("x-y", "")]);
        let mut text = Vec::new();
        request_head(&mut text, &Method::POST, "/a?b", &headers, Framing::Length(3));
        assert_eq!(text, b"POST /a?b HTTP/1.1\r\nHost: a\r\nx-y: \r\ncontent-length: 3\r\n\r\n");
        text.clear();
        response_start(&mut text, StatusCode::IM_A_TEAPOT, &headers);
        framing_header(&mut text, Framing::Chunked);
        assert_eq!(text, b"HTTP/1.1 418 I'm a teapot\r\nHost: a\r\nx-y: \r\ntransfer-encoding: chunked\r\n");
    }
}
