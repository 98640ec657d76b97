//! What must hold of heads and bodies whatever the bytes are. The proptests below and `integration/fuzz.sh` look for
//! bytes of which it does not.

#![expect(clippy::unwrap_used, reason = "a property that does not hold is a panic")]

use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use http::Method;

use super::decode::{Decoder, Framing, Sender};
use super::encode::{self, Outbox};
use super::head;
use crate::http::forwarding;
use crate::http::limits::HeadLimits;
use crate::http::message::{BodyError, Piece, Request};
use crate::message::headers::{self, Headers};

const LIMITS: HeadLimits = HeadLimits { bytes: 2048, target: 1024, lines: 32 };

/// For what we send on: a space after each colon and a CR before each LF, where there were none, make it longer.
const SENT: HeadLimits = HeadLimits { bytes: 2 * LIMITS.bytes, ..LIMITS };

/// A head of a request that is taken is the same wherever the input is cut, and as we send it on, another reader finds
/// the same request in it, with a body of the same length.
pub(crate) fn request_head(bytes: &[u8]) {
    let (mut request, mut again) = (Request::default(), Request::default());
    let Ok(Some((head, length))) = head::request(bytes, &LIMITS, &mut request) else { return };
    for end in [0, length / 2, length.saturating_sub(2), length - 1] {
        assert!(matches!(head::request(&bytes[..end], &LIMITS, &mut again), Ok(None)), "it was a head before its end");
    }
    let (mut kept, options) =
        (request.headers.clone(), request.headers.all("connection").map(<[u8]>::to_vec).collect::<Vec<_>>());
    forwarding::strip(&mut kept);
    assert_ne!(head.framing, Framing::UntilClose, "a request does not end with its connection");
    let mut sent = Vec::new();
    encode::request_head(&mut sent, &request.method, &request.target, &kept, head.framing);
    let read = Second::read(&sent);
    assert_eq!(read.start, format!("{} {} HTTP/1.1", request.method, request.target).as_bytes());
    assert_eq!(read.framing(), head.framing);
    let names = options.iter().flat_map(|line| line.split(|byte| *byte == b',')).map(<[u8]>::trim_ascii);
    for name in names.filter(|name| !name.is_empty()) {
        assert!(read.all(name).next().is_none(), "`Connection` names a header that was sent on");
    }
    let (head_again, end) = head::request(&sent, &SENT, &mut again).unwrap().unwrap();
    assert_eq!((head_again.framing, end), (head.framing, sent.len()));
    assert_eq!((&again.method, &again.target), (&request.method, &request.target));
}

/// The same for a response to GET or HEAD.
pub(crate) fn response_head(bytes: &[u8]) {
    for method in [Method::GET, Method::HEAD] {
        let Ok(Some((head, length))) = head::response(bytes, &method, &LIMITS) else { continue };
        for end in [0, length / 2, length - 1] {
            // An empty line more before it is read over, and is no head by itself.
            assert!(
                matches!(head::response(&bytes[..end], &method, &LIMITS), Ok(None)),
                "it was a head before its end"
            );
        }
        let mut kept = head.headers.clone();
        forwarding::strip(&mut kept);
        let mut sent = Vec::new();
        encode::response_start(&mut sent, head.status, &kept);
        if head.framing == Framing::Chunked {
            encode::framing_header(&mut sent, Framing::Chunked);
        }
        sent.extend_from_slice(b"\r\n");
        Second::read(&sent);
        let (again, end) = head::response(&sent, &method, &SENT).unwrap().unwrap();
        assert_eq!((again.status, again.framing, end), (head.status, head.framing, sent.len()));
    }
}

/// A chunked body is the same however it is cut, and what we make of it is the same body. The first byte says how it is
/// cut.
pub(crate) fn chunks(bytes: &[u8]) {
    for sender in [Sender::Client, Sender::Upstream] {
        chunks_of(sender, bytes);
    }
}

fn chunks_of(sender: Sender, bytes: &[u8]) {
    let Some((step, text)) = bytes.split_first() else { return };
    let whole = decode(sender, text, usize::MAX);
    let cut = decode(sender, text, usize::from(*step % 16) + 1);
    assert_eq!(whole.is_err(), cut.is_err(), "{whole:?} and {cut:?}");
    let (Ok(whole), Ok(cut)) = (whole, cut) else { return };
    assert_eq!((&whole.body, &whole.trailers, whole.is_end), (&cut.body, &cut.trailers, cut.is_end));
    if !whole.is_end {
        return;
    }
    assert_eq!(whole.rest, cut.rest);
    let (mut framing, mut outbox) = (Framing::Chunked, Outbox::default());
    for piece in whole.body.chunks(1000) {
        framing.data(Bytes::copy_from_slice(piece), &mut outbox).unwrap();
    }
    let trailers: Headers = whole.trailers.iter().map(|(name, value)| (name, value)).collect();
    framing.end(&trailers, &mut outbox).unwrap();
    let mut sent = Vec::new();
    assert!(outbox.poll_flush(&mut sent, &mut Context::from_waker(Waker::noop())).is_ready());
    // What we send is read by the strictest.
    let again = decode(Sender::Client, &sent, usize::MAX).unwrap();
    assert_eq!((again.body, again.trailers, again.is_end, again.rest), (whole.body, whole.trailers, true, Vec::new()));
}

/// What a body was decoded to.
#[derive(Debug)]
struct Read {
    body: Vec<u8>,
    trailers: Vec<(Vec<u8>, Vec<u8>)>,
    is_end: bool,
    rest: Vec<u8>,
}

fn decode(sender: Sender, text: &[u8], step: usize) -> Result<Read, BodyError> {
    let (mut decoder, mut buffer) = (Decoder::new(Framing::Chunked), BytesMut::new());
    let mut read = Read { body: Vec::new(), trailers: Vec::new(), is_end: false, rest: Vec::new() };
    let mut pieces = text.chunks(step);
    loop {
        match decoder.decode(&mut buffer, sender)? {
            Poll::Ready(Some(Piece::Data(data))) => {
                assert!(!data.is_empty(), "a piece of nothing would end the body where it is sent on");
                read.body.extend_from_slice(&data);
            }
            Poll::Ready(Some(Piece::Trailers(headers))) => {
                read.trailers = headers.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
            }
            Poll::Ready(None) => break,
            Poll::Pending => match pieces.next() {
                Some(piece) => buffer.extend_from_slice(piece),
                None => break,
            },
        }
    }
    buffer.extend(pieces.flatten());
    read.is_end = decoder.is_end();
    read.rest = buffer.to_vec();
    Ok(read)
}

/// A reader of its own, as strict as can be: lines, a colon, a space.
struct Second<'a> {
    start: &'a [u8],
    lines: Vec<(&'a [u8], &'a [u8])>,
}

impl<'a> Second<'a> {
    fn read(text: &'a [u8]) -> Self {
        let text = text.strip_suffix(b"\r\n\r\n").unwrap();
        assert!(!text.contains(&0), "a NUL");
        let mut lines = text.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        let ends = memchr::memmem::find_iter(text, b"\r\n").count();
        let (returns, feeds) = (memchr::memchr_iter(b'\r', text).count(), memchr::memchr_iter(b'\n', text).count());
        assert_eq!((returns, feeds), (ends, ends), "a bare CR or LF");
        let start = lines.next().unwrap();
        let lines = lines.map(|line| {
            let colon = memchr::memchr(b':', line).unwrap();
            let (name, value) = (&line[..colon], line[colon + 1..].strip_prefix(b" ").unwrap());
            assert!(headers::is_name(name) && headers::is_value(value) && value == value.trim_ascii(), "{line:?}");
            (name, value)
        });
        Self { start, lines: lines.collect() }
    }

    fn all(&self, name: &[u8]) -> impl Iterator<Item = &'a [u8]> {
        self.lines.iter().filter(move |(given, _)| given.eq_ignore_ascii_case(name)).map(|(_, value)| *value)
    }

    /// The body of a request.
    fn framing(&self) -> Framing {
        let lengths: Vec<_> = self.all(b"content-length").collect();
        let codings: Vec<_> = self.all(b"transfer-encoding").collect();
        match (&lengths[..], &codings[..]) {
            ([], []) => Framing::Empty,
            ([length], []) => Framing::of_length(std::str::from_utf8(length).unwrap().parse().unwrap()),
            ([], [b"chunked"]) => Framing::Chunked,
            other => panic!("two readers would frame this differently: {other:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Text that is often almost a message: what messages are made of, and what they must not contain.
    fn almost(parts: &'static [&'static str]) -> impl Strategy<Value = Vec<u8>> {
        let odd =
            prop_oneof![Just(" "), Just("\r\n"), Just("\n"), Just("\r"), Just("\0"), Just("\t"), Just(","), Just(":")];
        let part = prop_oneof![8 => prop::sample::select(parts), 1 => odd];
        prop::collection::vec(part, 0..12).prop_map(|parts| parts.concat().into_bytes())
    }

    const FIELDS: [&str; 16] = [
        "Host: a\r\n",
        "Content-Length: 5\r\n",
        "Content-Length: 0\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Connection: close\r\n",
        "Connection: x-hop, te\r\n",
        "X-Hop: 1\r\n",
        "x: \u{e9}\r\n",
        "y:\r\n",
        "y: \r\n",
        "z: 1 \n",
        "z:\t1\t\r\n",
        "z:1\n",
        "Te: trailers\r\n",
        "\r\n",
        "Upgrade: h2c\r\n",
    ];

    proptest! {
        #[test]
        fn requests(headers in almost(&FIELDS), start in prop::sample::select(&["GET / HTTP/1.1\r\n", "POST /?x HTTP/1.0\r\n", "\r\nX * HTTP/1.1\r\n"][..])) {
            request_head(&[start.as_bytes(), &headers, b"\r\n"].concat());
        }

        #[test]
        fn responses(headers in almost(&FIELDS), start in prop::sample::select(&["HTTP/1.1 200 OK\r\n", "HTTP/1.0 204 \r\n", "HTTP/1.1 100\r\n"][..])) {
            response_head(&[start.as_bytes(), &headers, b"\r\n"].concat());
        }

        #[test]
        fn bodies(step: u8, text in almost(&["3\r\nabc\r\n", "1;x\r\n\n\r\n", "2 \r\nab\r\n", "0\r\n", "\r\n", "x: y\r\n", "a", "0"])) {
            chunks(&[&[step], &text[..]].concat());
        }

        #[test]
        fn anything(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            request_head(&bytes);
            response_head(&bytes);
            chunks(&bytes);
        }
    }
}
