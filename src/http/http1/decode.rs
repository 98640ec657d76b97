//! Reads bodies (RFC 9112 sections 6 and 7).

use std::task::Poll;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::head;
use crate::http::limits::HeadLimits;
use crate::http::message::{BodyError, Piece};

/// The rule that ends a body (RFC 9112 section 6.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Framing {
    /// There is no body, or an empty one.
    #[default]
    Empty,
    /// After this many bytes.
    Length(u64),
    /// After the last chunk.
    Chunked,
    /// At the end of the connection. For responses only.
    UntilClose,
}

impl Framing {
    pub(super) const fn of_length(length: u64) -> Self {
        if length == 0 { Self::Empty } else { Self::Length(length) }
    }
}

/// The sender of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sender {
    /// Whatever an upstream could read differently is rejected.
    Client,
    /// Old servers pad a chunk's size with blanks, which nginx and HAProxy skip.
    Upstream,
}

/// The longest line with a chunk's size and extensions. Only attackers send extensions, to hide in them what one side
/// reads as the chunk's end and the other does not. A size has at most 16 digits.
const LONGEST_CHUNK_LINE: usize = 256;

/// Bounds on trailers: a checksum, a status, a signature.
const TRAILERS: HeadLimits = HeadLimits { bytes: 8 * 1024, target: 0, lines: 32 };

/// The part of a body that is still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decoder {
    Ended,
    /// This many bytes, at least one.
    Length(u64),
    /// The size of the next chunk.
    ChunkSize,
    /// This many bytes of a chunk, at least one, then more chunks.
    Chunk(u64),
    /// The CR LF after a chunk.
    ChunkEnd,
    /// The trailers.
    Trailers,
    /// Everything up to the end of the connection.
    UntilClose,
}

impl Decoder {
    pub(super) const fn new(framing: Framing) -> Self {
        match framing {
            Framing::Empty => Self::Ended,
            Framing::Length(length) => Self::Length(length),
            Framing::Chunked => Self::ChunkSize,
            Framing::UntilClose => Self::UntilClose,
        }
    }

    pub(super) const fn is_end(self) -> bool {
        matches!(self, Self::Ended)
    }

    /// Returns whether the sender may close the connection now without cutting the body off.
    pub(super) const fn may_close(self) -> bool {
        matches!(self, Self::Ended | Self::UntilClose)
    }

    /// Returns the bytes still to come, if that is known.
    pub(super) const fn length(self) -> Option<u64> {
        match self {
            Self::Ended => Some(0),
            Self::Length(length) => Some(length),
            _ => None,
        }
    }

    /// Returns a lower bound on the bytes still to come.
    pub(super) fn expected(self) -> usize {
        match self {
            Self::Length(left) | Self::Chunk(left) => usize::try_from(left).unwrap_or(usize::MAX),
            Self::UntilClose => usize::MAX,
            _ => 0,
        }
    }

    /// Appends the rest of a body with a length to `text` if all of it is there; returns whether it was.
    pub(super) fn take_whole(&mut self, buffer: &mut BytesMut, text: &mut dyn BufMut) -> bool {
        let Self::Length(left) = *self else { return false };
        let Some(rest) = usize::try_from(left).ok().and_then(|left| buffer.get(..left)) else { return false };
        text.put_slice(rest);
        buffer.advance(rest.len());
        *self = Self::Ended;
        true
    }

    /// Takes the next part out of the buffer and leaves what follows the body. `None` at the end, pending if more bytes
    /// are needed; nobody is woken.
    pub(super) fn decode(&mut self, buffer: &mut BytesMut, sender: Sender) -> Poll<Option<Result<Piece, BodyError>>> {
        self.next_piece(buffer, sender).map(Result::transpose)
    }

    fn next_piece(&mut self, buffer: &mut BytesMut, sender: Sender) -> Poll<Result<Option<Piece>, BodyError>> {
        loop {
            match *self {
                Self::Ended => return Poll::Ready(Ok(None)),
                _ if buffer.is_empty() => return Poll::Pending,
                Self::UntilClose => return Poll::Ready(Ok(Some(Piece::Data(take(buffer, u64::MAX))))),
                Self::Length(left) => {
                    let data = take(buffer, left);
                    let left = left - data.len() as u64;
                    *self = if left == 0 { Self::Ended } else { Self::Length(left) };
                    return Poll::Ready(Ok(Some(Piece::Data(data))));
                }
                Self::Chunk(left) => {
                    let data = take(buffer, left);
                    let left = left - data.len() as u64;
                    *self = if left == 0 { Self::ChunkEnd } else { Self::Chunk(left) };
                    return Poll::Ready(Ok(Some(Piece::Data(data))));
                }
                Self::ChunkEnd => match buffer[..] {
                    [b'\r', b'\n', ..] => {
                        buffer.advance(2);
                        *self = Self::ChunkSize;
                    }
                    [b'\r'] => return Poll::Pending,
                    _ => return Poll::Ready(Err(malformed("expected CR LF after a chunk"))),
                },
                Self::ChunkSize => {
                    let Some((size, length)) = chunk_size(buffer, sender)? else { return Poll::Pending };
                    buffer.advance(length);
                    *self = if size == 0 { Self::Trailers } else { Self::Chunk(size) };
                }
                Self::Trailers => {
                    let trailers = head::trailers(buffer, &TRAILERS);
                    let trailers = trailers.map_err(|error| malformed(format!("invalid trailers: {error}")))?;
                    let Some((headers, length)) = trailers else { return Poll::Pending };
                    buffer.advance(length);
                    *self = Self::Ended;
                    return Poll::Ready(Ok((!headers.is_empty()).then_some(Piece::Trailers(headers))));
                }
            }
        }
    }
}

/// Up to this length, parts are copied out of the buffer. Sharing the buffer costs an allocation, and the buffer cannot
/// be reused meanwhile.
const SMALL: usize = 1024;

fn take(buffer: &mut BytesMut, most: u64) -> Bytes {
    let length = usize::try_from(most).unwrap_or(usize::MAX).min(buffer.len());
    if length <= SMALL {
        let data = Bytes::copy_from_slice(&buffer[..length]);
        buffer.advance(length);
        data
    } else {
        buffer.split_to(length).freeze()
    }
}

/// Returns the size of a chunk and the length of its line. Extensions are skipped (RFC 9112 section 7.1.1).
fn chunk_size(buffer: &[u8], sender: Sender) -> Result<Option<(u64, usize)>, BodyError> {
    let invalid = || malformed("invalid chunk size");
    let line = &buffer[..buffer.len().min(LONGEST_CHUNK_LINE)];
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    if digits > 15 {
        return Err(malformed("chunk size too large"));
    }
    let is_blank = |byte: &&u8| sender == Sender::Upstream && digits > 0 && matches!(byte, b' ' | b'\t');
    let blanks = line[digits..].iter().take_while(is_blank).count();
    match line.get(digits + blanks) {
        None if line.len() < LONGEST_CHUNK_LINE => return Ok(None),
        Some(b'\r' | b';') if digits > 0 => {}
        // Clients put no blanks before an extension ("BWS") but to smuggle: some readers end the size there.
        _ => return Err(invalid()),
    }
    let Some(end) = line.iter().position(|byte| matches!(byte, b'\r' | b'\n')) else {
        return if line.len() < LONGEST_CHUNK_LINE { Ok(None) } else { Err(malformed("chunk extensions too long")) };
    };
    match &line[end..] {
        [b'\r', b'\n', ..] => {}
        [b'\r'] if line.len() < LONGEST_CHUNK_LINE => return Ok(None),
        _ => return Err(invalid()),
    }
    if line[digits..end].iter().any(|byte| byte.is_ascii_control() && *byte != b'\t') {
        return Err(invalid());
    }
    let text = std::str::from_utf8(&line[..digits]).map_err(|_| invalid())?;
    let size = u64::from_str_radix(text, 16).map_err(|_| invalid())?;
    Ok(Some((size, end + 2)))
}

fn malformed(error: impl Into<String>) -> BodyError {
    BodyError::Malformed(error.into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Decodes what comes in pieces of these lengths: the body, the number of trailers, and what is left after it.
    fn decode(
        framing: Framing,
        text: &[u8],
        step: usize,
        sender: Sender,
    ) -> Result<(Vec<u8>, usize, Vec<u8>, bool), BodyError> {
        let mut decoder = Decoder::new(framing);
        let (mut buffer, mut body, mut trailers) = (BytesMut::new(), Vec::new(), 0);
        let mut pieces = text.chunks(step);
        loop {
            match decoder.decode(&mut buffer, sender)? {
                Poll::Ready(Some(Piece::Data(data))) => body.extend_from_slice(&data),
                Poll::Ready(Some(Piece::Trailers(headers))) => trailers += headers.len(),
                Poll::Ready(None) => break,
                Poll::Pending => match pieces.next() {
                    Some(piece) => buffer.extend_from_slice(piece),
                    None => break,
                },
            }
        }
        buffer.extend(pieces.flatten());
        Ok((body, trailers, buffer.to_vec(), decoder.is_end()))
    }

    const SENDERS: [Sender; 2] = [Sender::Client, Sender::Upstream];

    #[track_caller]
    fn check(framing: Framing, text: &str, body: &str, trailers: usize, rest: &str) {
        for (step, sender) in [1, 2, 3, 7, 1000].into_iter().flat_map(|step| SENDERS.map(|sender| (step, sender))) {
            let decoded = decode(framing, text.as_bytes(), step, sender).unwrap();
            assert_eq!(decoded, (body.into(), trailers, rest.into(), true), "{text:?} in pieces of {step}");
        }
    }

    #[test]
    fn a_body_ends_where_it_says() {
        check(Framing::Empty, "GET", "", 0, "GET");
        check(Framing::Length(3), "abcGET", "abc", 0, "GET");
        check(Framing::Chunked, "3\r\nabc\r\n0\r\n\r\nGET", "abc", 0, "GET");
        check(
            Framing::Chunked,
            "A\r\n0123456789\r\n02\r\nab\r\n0\r\nx: y\r\nz: 1\r\n\r\nGET",
            "0123456789ab",
            2,
            "GET",
        );
        check(Framing::Chunked, "3;name=\"v a\"\r\nabc\r\n0;x\r\n\r\n", "abc", 0, "");
        assert_eq!(
            decode(Framing::UntilClose, b"abc", 2, Sender::Upstream),
            Ok((b"abc".to_vec(), 0, Vec::new(), false))
        );
        assert!(!decode(Framing::Chunked, b"3\r\nabc\r\n", 3, Sender::Client).unwrap().3, "the last chunk is missing");
    }

    #[test]
    fn chunks_that_two_readers_would_read_differently_are_rejected() {
        for text in [
            "\r\n",
            "x\r\nabc\r\n",
            "0x3\r\nabc\r\n",
            "+3\r\nabc\r\n",
            "-3\r\nabc\r\n",
            " 3\r\nabc\r\n",
            "3 3\r\nabc\r\n",
            "3 x\r\nabc\r\n",
            "3 \nabc\r\n",
            " \r\nabc\r\n",
            "3\nabc\n",
            "3\rabc\r\n",
            "3;a\nabc\r\n",
            "3;a\rb\r\nabc\r\n",
            "3\r\nabcd\r\n",
            "3\r\nabc\n0\r\n\r\n",
            "3\r\nabc0\r\n\r\n",
            "10000000000000000\r\n",
            "ffffffffffffffffff\r\n",
            "0\r\na b\r\n\r\n",
            "0\r\nx: y\n\r\n",
        ] {
            for (step, sender) in [1, 1000].into_iter().flat_map(|step| SENDERS.map(|sender| (step, sender))) {
                let decoded = decode(Framing::Chunked, text.as_bytes(), step, sender);
                assert!(decoded.is_err(), "{text:?} became {decoded:?}");
            }
        }
        let long = format!("3;{}\r\nabc\r\n", "x".repeat(300));
        let decoded = decode(Framing::Chunked, long.as_bytes(), 1000, Sender::Client);
        assert_eq!(decoded, Err(malformed("chunk extensions too long")));
    }

    #[test]
    fn blanks_behind_a_chunks_size_are_skipped_for_upstreams_only() {
        let many = " ".repeat(200);
        for size in ["3 ", "3\t ", "3 ;x", "3 ; x=\"y\"", &format!("3{many}")] {
            let text = format!("{size}\r\nabc\r\n0  \r\n\r\nGET");
            for step in [1, 2, 1000] {
                let decoded = decode(Framing::Chunked, text.as_bytes(), step, Sender::Upstream).unwrap();
                assert_eq!(decoded, (b"abc".to_vec(), 0, b"GET".to_vec(), true), "{size:?} in pieces of {step}");
                let decoded = decode(Framing::Chunked, text.as_bytes(), step, Sender::Client);
                assert_eq!(decoded, Err(malformed("invalid chunk size")), "{size:?}");
            }
        }
        for step in [1, 1000] {
            let endless = format!("3{}", " ".repeat(300));
            assert!(decode(Framing::Chunked, endless.as_bytes(), step, Sender::Upstream).is_err());
        }
    }

    proptest! {
        #[test]
        fn chunks_are_read_alike_however_they_come(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..8), step in 1usize..50) {
            let mut text = Vec::new();
            for chunk in &chunks {
                text.extend(format!("{:x}\r\n", chunk.len()).bytes());
                text.extend(chunk);
                text.extend(b"\r\n");
            }
            text.extend(b"0\r\n\r\nrest");
            let decoded = decode(Framing::Chunked, &text, step, Sender::Client).unwrap();
            prop_assert_eq!(decoded, (chunks.concat(), 0, b"rest".to_vec(), true));
        }

        #[test]
        fn no_bytes_make_it_panic_or_matter_how_they_are_cut(text in "[0-3a;\\r\\n:x ]{0,40}", step in 1usize..5, sender in prop::sample::select(&SENDERS[..])) {
            let whole = decode(Framing::Chunked, text.as_bytes(), 1000, sender);
            let cut = decode(Framing::Chunked, text.as_bytes(), step, sender);
            prop_assert_eq!(whole.is_err(), cut.is_err());
            if let (Ok(whole), Ok(cut)) = (whole, cut) {
                prop_assert_eq!((whole.0, whole.3), (cut.0, cut.3));
            }
        }
    }
}
