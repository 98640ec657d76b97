//! gRPC over HTTP/2: length-prefixed messages, statuses and timeouts (gRPC's `doc/PROTOCOL-HTTP2.md` and
//! `doc/statuscodes.md`).

use std::borrow::Cow;
use std::fmt::Write as _;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use prost::Message;

use super::messages::Memory;
use crate::message::headers::Headers;
pub(super) use crate::telemetry::metrics::GrpcCode as Code;

/// Bytes of a message's prefix: a flag and the length.
const PREFIX: usize = 5;

/// Bytes of a message by default, as in gRPC's libraries.
pub const DEFAULT_MAX_MESSAGE: usize = 4 * 1024 * 1024;

/// The end of a call without a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code:?}: {message}")]
pub(super) struct Status {
    pub(super) code: Code,
    pub(super) message: Cow<'static, str>,
}

impl Code {
    /// The number on the wire.
    pub(super) const fn number(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Cancelled => 1,
            Self::InvalidArgument => 3,
            Self::DeadlineExceeded => 4,
            Self::NotFound => 5,
            Self::ResourceExhausted => 8,
            Self::Unimplemented => 12,
            Self::Internal => 13,
            Self::Unavailable => 14,
        }
    }

    /// Returns the value of `grpc-status`.
    pub(super) const fn text(self) -> &'static str {
        const TEXTS: [&str; 15] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14"];
        TEXTS[self.number() as usize]
    }
}

impl Status {
    pub(super) fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into() }
    }

    /// The end of a stream when the process ends.
    pub(super) fn ending() -> Self {
        Self::new(Code::Unavailable, "the process is shutting down")
    }

    /// Returns the trailers of a stream.
    pub(super) fn headers(&self) -> Headers {
        let mut headers = Headers::new();
        self.write(&mut headers);
        headers
    }

    pub(super) fn write(&self, headers: &mut Headers) {
        headers.append("grpc-status", self.code.text());
        headers.append_with("grpc-message", |value| escape(&self.message, value));
    }
}

/// Collects the one message of a unary call. A message within one piece is not copied.
#[derive(Debug)]
pub(super) struct MessageReader {
    bytes: Bytes,
    /// Bytes of a message.
    max: usize,
}

impl MessageReader {
    pub(super) fn new(max: usize) -> Self {
        Self { bytes: Bytes::new(), max }
    }

    /// Adds a piece, and returns the bytes of an incomplete message. It grows by what has come, not by what was announced.
    pub(super) fn push(&mut self, piece: Bytes) -> Result<usize, Status> {
        if self.bytes.is_empty() {
            self.bytes = piece;
        } else {
            let mut bytes = BytesMut::from(std::mem::take(&mut self.bytes));
            bytes.extend_from_slice(&piece);
            self.bytes = bytes.freeze();
        }
        match length(&self.bytes, self.max)? {
            Some(length) if self.bytes.len() > PREFIX + length => {
                Err(Status::new(Code::Unimplemented, "the method takes one message, but more came"))
            }
            Some(length) if self.bytes.len() == PREFIX + length => Ok(0),
            _ => Ok(self.bytes.len()),
        }
    }

    /// Returns the message at the end of the request.
    pub(super) fn finish(mut self) -> Result<Bytes, Status> {
        if self.bytes.is_empty() {
            return Err(Status::new(Code::Unimplemented, "the method takes one message, but none came"));
        }
        match length(&self.bytes, self.max)? {
            Some(length) if self.bytes.len() == PREFIX + length => Ok(self.bytes.split_off(PREFIX)),
            _ => Err(Status::new(Code::Internal, "the request ends within a message")),
        }
    }
}

/// Takes the first message of a stream out of what has come, once it is whole.
pub(super) fn next_message(received: &mut BytesMut, max: usize) -> Result<Option<Bytes>, Status> {
    match length(received, max)? {
        Some(length) if received.len() >= PREFIX + length => {
            Ok(Some(received.split_to(PREFIX + length).freeze().split_off(PREFIX)))
        }
        _ => Ok(None),
    }
}

/// Returns the length of the message that begins here, if its prefix is complete.
fn length(bytes: &[u8], max: usize) -> Result<Option<usize>, Status> {
    let [flag, length @ ..] = bytes else { return Ok(None) };
    match flag {
        0 => {}
        1 => return Err(Status::new(Code::Unimplemented, "compressed messages are not supported")),
        _ => return Err(Status::new(Code::Internal, "the first byte of a message must be 0 or 1")),
    }
    let Some(length) = length.first_chunk().map(|bytes| u32::from_be_bytes(*bytes)) else { return Ok(None) };
    match usize::try_from(length) {
        Ok(length) if length <= max => Ok(Some(length)),
        _ => Err(Status::new(Code::ResourceExhausted, format!("the message has {length} bytes, more than {max}"))),
    }
}

/// Returns a message with its prefix.
pub(super) fn frame(message: &impl Message, memory: &mut Memory) -> Bytes {
    memory.take(|bytes| {
        bytes.extend_from_slice(&[0; PREFIX]);
        // It fails only without room, and a vector grows.
        let _ = message.encode(bytes);
        let length = u32::try_from(bytes.len() - PREFIX).unwrap_or(u32::MAX);
        bytes[1..PREFIX].copy_from_slice(&length.to_be_bytes());
    })
}

pub(super) fn decode<M: Message + Default>(bytes: Bytes) -> Result<M, Status> {
    M::decode(bytes).map_err(|error| Status::new(Code::Internal, format!("the message cannot be read: {error}")))
}

/// Returns the message of a [`frame`].
pub(super) fn unframed<M: Message + Default>(mut frame: Bytes) -> Result<M, Status> {
    decode(frame.split_off(PREFIX.min(frame.len())))
}

/// Returns the caller's timeout: the lesser of `grpc-timeout` and Envoy's own header.
pub(super) fn timeout(headers: &Headers) -> Result<Option<Duration>, Status> {
    let given = match headers.get("grpc-timeout") {
        Some(value) => Some(duration(value).ok_or_else(|| {
            let given = String::from_utf8_lossy(value).chars().take(20).collect::<String>();
            Status::new(
                Code::InvalidArgument,
                format!("`grpc-timeout` must be up to 8 digits and one of H, M, S, m, u and n, found `{given}`"),
            )
        })?),
        None => None,
    };
    // Not part of gRPC, so an invalid value is ignored.
    let expected = headers.text("x-envoy-expected-rq-timeout-ms").and_then(|value| value.trim().parse().ok());
    let expected = expected.map(Duration::from_millis);
    Ok(match (given, expected) {
        (Some(given), Some(expected)) => Some(given.min(expected)),
        (given, expected) => given.or(expected),
    })
}

/// Parses `grpc-timeout`.
fn duration(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if !(1..=8).contains(&digits.len()) || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = digits.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0'));
    Some(match unit {
        b'H' => Duration::from_secs(number * 3_600),
        b'M' => Duration::from_secs(number * 60),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

/// Writes a `grpc-message`: everything but printable ASCII is percent-encoded, and `%`.
fn escape(text: &str, to: &mut Vec<u8>) {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if matches!(byte, b' '..=b'~') && byte != b'%' {
            escaped.push(char::from(byte));
        } else {
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    to.extend_from_slice(escaped.trim_end().as_bytes());
}

/// Returns whether a content type is gRPC with protocol buffers.
pub(super) fn is_grpc(content_type: Option<&[u8]>) -> bool {
    content_type.and_then(|kind| kind.strip_prefix(b"application/grpc")).is_some_and(|rest| {
        let rest = rest.strip_prefix(b"+proto").unwrap_or(rest);
        rest.is_empty() || rest.starts_with(b";")
    })
}

/// Returns the message in the pieces of a stream.
#[cfg(any(test, fuzzing))]
pub(super) fn read_message(pieces: &[&[u8]]) -> Result<Bytes, Code> {
    let mut reader = MessageReader::new(DEFAULT_MAX_MESSAGE);
    let pushed = pieces.iter().try_for_each(|piece| reader.push(Bytes::copy_from_slice(piece)).map(drop));
    pushed.and_then(|()| reader.finish()).map_err(|status| status.code)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_request_has_one_message() {
        let whole = [0, 0, 0, 0, 2, 7, 8];
        for (pieces, expected) in [
            (&[&whole[..]][..], Ok(&[7, 8][..])),
            (&[&whole[..3], &whole[3..6], &whole[6..]], Ok(&[7, 8])),
            (&[&[0, 0, 0, 0, 0]], Ok(&[])),
            (&[&[0, 0, 0, 0, 1, 5, 0, 0, 0, 0, 1, 6]], Err(Code::Unimplemented)),
            (&[&whole, &whole], Err(Code::Unimplemented)),
            (&[], Err(Code::Unimplemented)),
            (&[&whole[..6]], Err(Code::Internal)),
            (&[&whole[..2]], Err(Code::Internal)),
            (&[&[1, 0, 0, 0, 0]], Err(Code::Unimplemented)),
            (&[&[1]], Err(Code::Unimplemented)),
            (&[&[2, 0, 0, 0, 0]], Err(Code::Internal)),
            (&[&[0, 0, 64, 0, 1]], Err(Code::ResourceExhausted)),
            (&[&[0, 255, 255, 255, 255]], Err(Code::ResourceExhausted)),
            (&[&[0, 0, 64, 0, 0]], Err(Code::Internal)),
        ] {
            assert_eq!(read_message(pieces), expected.map(Bytes::copy_from_slice), "{pieces:?}");
        }
    }

    proptest! {
        /// However a stream of messages is cut, the same comes of it.
        #[test]
        fn cuts_change_nothing(
            lengths in prop::collection::vec(0_usize..40, 0..4),
            cuts in prop::collection::vec(0_usize..200, 0..6),
        ) {
            let messages: Vec<Bytes> = lengths.iter().map(|length| vec![7_u8; *length].into()).collect();
            let stream: Vec<u8> = messages.iter().flat_map(|message| {
                [&[0, 0, 0, 0, u8::try_from(message.len()).unwrap()], &message[..]].concat()
            }).collect();
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut % (stream.len() + 1)).collect();
            cuts.extend([0, stream.len()]);
            cuts.sort_unstable();
            let pieces: Vec<_> = cuts.windows(2).map(|pair| &stream[pair[0]..pair[1]]).collect();
            let expected = if let [message] = &messages[..] { Ok(message.clone()) } else { Err(Code::Unimplemented) };
            prop_assert_eq!(read_message(&pieces), expected);
        }
    }

    #[test]
    fn timeouts_have_units() {
        for (value, expected) in [
            ("20m", Some(Duration::from_millis(20))),
            ("1S", Some(Duration::from_secs(1))),
            ("2M", Some(Duration::from_mins(2))),
            ("99999999H", Some(Duration::from_hours(99_999_999))),
            ("5u", Some(Duration::from_micros(5))),
            ("0n", Some(Duration::ZERO)),
        ] {
            assert_eq!(timeout(&Headers::from_iter([("grpc-timeout", value)])), Ok(expected));
        }
        for value in ["", "m", "123456789m", "-1m", "1", "1 m", "1s"] {
            let status = timeout(&Headers::from_iter([("grpc-timeout", value)])).unwrap_err();
            assert_eq!(status.code, Code::InvalidArgument, "{value}");
        }
    }

    #[test]
    fn envoys_timeout_counts_beside_that_of_grpc() {
        const ENVOYS: &str = "x-envoy-expected-rq-timeout-ms";
        let given = |lines: &[(&str, &str)]| timeout(&lines.iter().copied().collect()).unwrap();
        let millis = |millis| Some(Duration::from_millis(millis));
        assert_eq!(given(&[]), None);
        assert_eq!(given(&[(ENVOYS, "200")]), millis(200));
        assert_eq!(given(&[(ENVOYS, "soon")]), None);
        assert_eq!(given(&[(ENVOYS, "200"), ("grpc-timeout", "20m")]), millis(20));
        assert_eq!(given(&[(ENVOYS, "20"), ("grpc-timeout", "1S")]), millis(20));
    }

    #[test]
    fn messages_for_people_are_percent_encoded() {
        let mut headers = Headers::new();
        Status::new(Code::NotFound, "100 % é\nnot").write(&mut headers);
        Status::new(Code::Ok, "").write(&mut headers);
        let lines: Vec<_> =
            headers.iter().map(|(n, v)| (str::from_utf8(n).unwrap(), str::from_utf8(v).unwrap())).collect();
        assert_eq!(lines, [("grpc-status", "5"), ("grpc-message", "100 %25 %C3%A9%0Anot"), ("grpc-status", "0")]);
    }

    #[test]
    fn content_types_of_grpc() {
        for (kind, expected) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("application/grpc;charset=x", true),
            ("application/grpc-web", false),
            ("application/grpc+json", false),
            ("application/json", false),
        ] {
            assert_eq!(is_grpc(Some(kind.as_bytes())), expected, "{kind}");
        }
        assert!(!is_grpc(None));
    }
}
