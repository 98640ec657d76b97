//! Writes heads and bodies (RFC 9112).

use std::io::{self, IoSlice, Write};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{BufMut, Bytes};
use http::{Method, StatusCode};
use tokio::io::AsyncWrite;

use super::decode::Framing;
use super::spare;
use crate::http::forwarding;
use crate::http::message::{BodyError, Piece, Response};
use crate::message::headers::Headers;

/// Up to this length, a body's part is copied behind the head, so that one `send` writes both. A `writev` costs 0.2 us
/// more than a `send`, which is more than this copy.
pub(super) const SMALL: usize = 4 * 1024;

/// From this length on, the outbox is flushed before more is added. It is longer than a head and the part of the body
/// that was read with it (4 KiB), so those leave together with the large part behind them.
const FULL: usize = 6 * 1024;

/// Bytes to be written: one queue, in the order of the wire. Whatever is added goes out behind everything before it.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// The first is written next.
    parts: Vec<Part>,
    /// Bytes of the first part that the system has accepted.
    written: usize,
    /// True until everything was flushed. TLS holds bytes back that it has accepted.
    is_dirty: bool,
    /// Bytes of the current message that the system has accepted.
    pub(super) total: u64,
}

#[derive(Debug)]
enum Part {
    /// Heads, small parts of bodies, and what frames them.
    Text(Vec<u8>),
    /// A large part of a body.
    Data(Bytes),
}

/// Parts that are written by one system call: a head, a large part of a body, and what frames it.
const AT_ONCE: usize = 4;

const CRLF: &[u8] = b"\r\n";

impl Part {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) => text,
            Self::Data(data) => data,
        }
    }
}

impl Outbox {
    /// The end of the queue, as a buffer that can only be added to.
    pub(super) fn text(&mut self) -> &mut (impl BufMut + use<>) {
        self.is_dirty = true;
        if !matches!(self.parts.last(), Some(Part::Text(_))) {
            self.parts.push(Part::Text(spare::take_text()));
        }
        match self.parts.last_mut() {
            Some(Part::Text(text)) => text,
            _ => unreachable!("the last part is text"),
        }
    }

    /// Adds a part of a body.
    fn data(&mut self, data: Bytes) {
        if data.len() <= SMALL {
            self.text().put_slice(&data);
        } else {
            self.is_dirty = true;
            self.parts.push(Part::Data(data));
        }
    }

    /// Returns whether everything was handed to the system.
    pub(super) const fn is_empty(&self) -> bool {
        !self.is_dirty
    }

    /// Returns whether more may be added before it is flushed.
    pub(super) fn has_room(&self) -> bool {
        self.parts.iter().all(|part| matches!(part, Part::Text(_))) && self.len() < FULL
    }

    /// The memory that it takes, in bytes.
    pub(super) fn len(&self) -> usize {
        self.parts.iter().map(|part| part.bytes().len()).sum()
    }

    /// Drops what was not written, because the receiver takes no more.
    pub(super) fn discard(&mut self) {
        *self = Self { total: self.total, ..Self::default() };
    }

    /// Writes everything. Ready when done.
    pub(super) fn poll_flush<S: AsyncWrite + Unpin>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.is_dirty {
            return Poll::Ready(Ok(()));
        }
        while self.drop_written() {
            let count = ready!(self.poll_write(Pin::new(&mut *stream), cx))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += count;
            self.total += count as u64;
        }
        ready!(Pin::new(stream).poll_flush(cx))?;
        self.is_dirty = false;
        Poll::Ready(Ok(()))
    }

    /// Writes the first parts. There is at least one byte.
    fn poll_write(&self, stream: Pin<&mut impl AsyncWrite>, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if let [only] = &self.parts[..] {
            return stream.poll_write(cx, &only.bytes()[self.written..]);
        }
        let (mut slices, mut written) = ([IoSlice::new(&[]); AT_ONCE], self.written);
        for (slice, part) in slices.iter_mut().zip(&self.parts) {
            *slice = IoSlice::new(&part.bytes()[std::mem::take(&mut written)..]);
        }
        stream.poll_write_vectored(cx, &slices[..self.parts.len().min(AT_ONCE)])
    }

    /// Removes the parts that are written. Returns whether there is something left to write.
    fn drop_written(&mut self) -> bool {
        while let Some(first) = self.parts.first() {
            let length = first.bytes().len();
            if self.written < length {
                return true;
            }
            self.written -= length;
            if let Part::Text(text) = self.parts.remove(0) {
                spare::keep_text(text);
            }
        }
        false
    }
}

/// Writes a request's head, with the header that frames its body if it needs one.
pub(super) fn request_head(text: &mut impl BufMut, method: &Method, target: &str, headers: &Headers, framing: Framing) {
    text.put_slice(method.as_str().as_bytes());
    text.put_u8(b' ');
    text.put_slice(target.as_bytes());
    text.put_slice(b" HTTP/1.1\r\n");
    headers.write(text);
    match framing {
        // Without either header, a server reads no body.
        Framing::Empty => {}
        // The client's own header was validated, and its body was read by it.
        Framing::Length(_) if headers.contains("content-length") => {}
        _ => framing_header(text, framing),
    }
    text.put_slice(CRLF);
}

/// Writes a response's status line and headers, without the empty line at the end.
pub(super) fn response_start(text: &mut impl BufMut, status: StatusCode, headers: &Headers) {
    text.put_slice(b"HTTP/1.1 ");
    text.put_slice(status.as_str().as_bytes());
    text.put_u8(b' ');
    text.put_slice(status.canonical_reason().unwrap_or_default().as_bytes());
    text.put_slice(CRLF);
    headers.write(text);
}

/// The same, with the header that frames the body unless the response has one.
pub(super) fn framed_start(text: &mut impl BufMut, response: &Response, framing: Option<Framing>) {
    response_start(text, response.status, &response.headers);
    if let Some(framing) = framing
        && !response.headers.contains("content-length")
    {
        framing_header(text, framing);
    }
}

pub(super) fn line(text: &mut impl BufMut, name: &[u8], value: &[u8]) {
    text.put_slice(name);
    text.put_slice(b": ");
    text.put_slice(value);
    text.put_slice(CRLF);
}

/// Writes the header that frames the body.
pub(super) fn framing_header(text: &mut impl BufMut, framing: Framing) {
    match framing {
        Framing::Empty => text.put_slice(b"content-length: 0\r\n"),
        Framing::Length(length) => {
            line(text, b"content-length", itoa::Buffer::new().format(length).as_bytes());
        }
        Framing::Chunked => text.put_slice(b"transfer-encoding: chunked\r\n"),
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
                    // Writing to memory cannot fail.
                    let _ = write!(outbox.text().writer(), "{:x}\r\n", data.len());
                    outbox.data(data);
                    outbox.text().put_slice(CRLF);
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
                text.put_slice(b"0\r\n");
                trailers.write(text);
                text.put_slice(CRLF);
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

    #[test]
    fn there_is_room_for_short_text_and_for_nothing_behind_a_long_part() {
        let mut outbox = Outbox::default();
        assert!(outbox.is_empty() && outbox.has_room());
        outbox.text().put_slice(&[b'x'; FULL - SMALL - 1]);
        outbox.data(Bytes::from_static(&[b'x'; SMALL]));
        assert_eq!((outbox.len(), outbox.has_room()), (FULL - 1, true));
        outbox.text().put_slice(b"x");
        assert_eq!((outbox.len(), outbox.has_room()), (FULL, false));
        outbox.discard();
        outbox.data(Bytes::from_static(&[b'x'; SMALL + 1]));
        assert_eq!((outbox.len(), outbox.has_room()), (SMALL + 1, false));
    }

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

    /// TLS takes what the socket has no room for. It goes out by later flushes only.
    #[test]
    fn what_tls_holds_back_is_not_sent_yet() {
        struct Holding(usize);

        impl AsyncWrite for Holding {
            fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
                Poll::Ready(Ok(bytes.len()))
            }

            fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.0 += 1;
                if self.0 < 3 { Poll::Pending } else { Poll::Ready(Ok(())) }
            }

            fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(Ok(()))
            }
        }

        let (mut outbox, mut stream) = (Outbox::default(), Holding(0));
        let mut cx = Context::from_waker(std::task::Waker::noop());
        assert!(outbox.is_empty());
        outbox.text().put_slice(b"head");
        for flushes in 1..=5 {
            let flushed = outbox.poll_flush(&mut stream, &mut cx).is_ready();
            assert_eq!((flushed, outbox.is_empty()), (flushes >= 3, flushes >= 3));
        }
        assert_eq!((stream.0, outbox.total), (3, 4), "nothing is left to flush");
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
