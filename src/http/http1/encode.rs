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

/// Bytes to be written: heads and small parts, then at most one large part and the end of its chunk.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// The buffer for heads. It must not be added to behind a large part, which is flushed first.
    pub(super) text: Vec<u8>,
    written: usize,
    large: Bytes,
    tail: Bytes,
    /// Bytes of the current message that the system has accepted.
    pub(super) total: u64,
}

const CRLF: &[u8] = b"\r\n";

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        self.written == self.text.len() && self.large.is_empty() && self.tail.is_empty()
    }

    /// Drops what was not written, because the receiver takes no more.
    pub(super) fn discard(&mut self) {
        *self = Self { total: self.total, ..Self::default() };
    }

    pub(super) fn has_room(&self) -> bool {
        self.large.is_empty() && self.tail.is_empty() && self.text.len() < FULL
    }

    fn data(&mut self, data: Bytes, tail: &'static [u8]) {
        if data.len() <= SMALL {
            self.text.extend_from_slice(&data);
            self.text.extend_from_slice(tail);
        } else {
            self.large = data;
            self.tail = Bytes::from_static(tail);
        }
    }

    /// Writes everything. Ready when done.
    pub(super) fn poll_flush<S: AsyncWrite + Unpin>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while !self.is_empty() {
            let text = &self.text[self.written..];
            let stream = Pin::new(&mut *stream);
            let count = if self.large.is_empty() && self.tail.is_empty() {
                ready!(stream.poll_write(cx, text))?
            } else {
                let pieces = [IoSlice::new(text), IoSlice::new(&self.large), IoSlice::new(&self.tail)];
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

    fn advance(&mut self, mut count: usize) {
        self.total += count as u64;
        let of_text = count.min(self.text.len() - self.written);
        self.written += of_text;
        count -= of_text;
        let of_large = count.min(self.large.len());
        self.large.advance(of_large);
        self.tail.advance((count - of_large).min(self.tail.len()));
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
    /// Adds a part of a body, `None` for its end, to the outbox, which must have room. Returns whether the body has ended;
    /// `is_end` says whether a part was the last.
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
                outbox.data(data, b"");
            }
            Self::UntilClose => outbox.data(data, b""),
            Self::Chunked => {
                // An empty chunk would end the body.
                if !data.is_empty() {
                    // Writing to a vector cannot fail.
                    let _ = write!(outbox.text, "{:x}\r\n", data.len());
                    outbox.data(data, CRLF);
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
                let text = &mut outbox.text;
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

    /// What is written by a body of these pieces, through a stream that takes `step` bytes at a time.
    fn write(mut framing: Framing, pieces: &[&[u8]], trailers: &Headers, step: usize) -> Result<Vec<u8>, BodyError> {
        let (mut stream, mut outbox) = (Slow { bytes: Vec::new(), step }, Outbox::default());
        let mut cx = Context::from_waker(std::task::Waker::noop());
        for piece in pieces {
            framing.data(Bytes::copy_from_slice(piece), &mut outbox)?;
            assert!(outbox.poll_flush(&mut stream, &mut cx).is_ready() && outbox.is_empty());
        }
        framing.end(trailers, &mut outbox)?;
        assert!(outbox.poll_flush(&mut stream, &mut cx).is_ready());
        Ok(stream.bytes)
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
            let all: Vec<u8> = pieces.iter().flat_map(|piece| piece.iter().copied()).collect();
            let count = all.len().min(self.step);
            self.bytes.extend_from_slice(&all[..count]);
            Poll::Ready(Ok(count))
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
        let long = vec![b'x'; SMALL + 1];
        for step in [1, 3, 5000] {
            let text = |framing, pieces: &[&[u8]], trailers| {
                String::from_utf8(write(framing, pieces, trailers, step).unwrap()).unwrap()
            };
            assert_eq!(text(Framing::Length(5), &[b"abc", b"de"], &some), "abcde");
            assert_eq!(text(Framing::UntilClose, &[b"abc"], &some), "abc");
            assert_eq!(text(Framing::Empty, &[], &none), "");
            assert_eq!(text(Framing::Chunked, &[b"abc", b""], &none), "3\r\nabc\r\n0\r\n\r\n");
            assert_eq!(text(Framing::Chunked, &[], &some), "0\r\nX-Sum: 1\r\n\r\n");
            let chunks = text(Framing::Chunked, &[&long, b"y"], &none);
            assert_eq!(chunks, format!("1001\r\n{}\r\n1\r\ny\r\n0\r\n\r\n", "x".repeat(SMALL + 1)));
        }
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
