//! Reads start lines and headers (RFC 9112 sections 2 to 5).
//!
//! httparse splits the bytes, and this decides what the pieces mean, strictly: if two servers in a row read a message
//! differently, a request can be hidden from the first one.

use std::io;
use std::mem::MaybeUninit;
use std::task::{Poll, ready};

use bytes::{Buf, BytesMut};
use http::{Method, StatusCode, Version};
use httparse::{Error, Header, Status};

use super::decode::Framing;
use super::spare;
use crate::http::failure::HeadError;
use crate::http::limits::HeadLimits;
use crate::http::message::Request;
use crate::message::client_headers;
use crate::message::headers::{self, Headers, Names};

/// The most header lines that a message may have, whatever is configured. They are split on the stack.
pub(crate) const MOST_LINES: usize = 256;

/// Space for the lines of a head, uninitialised because clearing these 8 KiB takes 0.1 us.
const NO_LINES: [MaybeUninit<Header<'_>>; MOST_LINES] = [const { MaybeUninit::uninit() }; MOST_LINES];

/// The properties of a request's head that concern its connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestHead {
    pub(super) framing: Framing,
    /// True if the client may send another request on the connection (RFC 9112 section 9.3).
    pub(super) is_persistent: bool,
}

#[derive(Debug)]
pub(super) struct ResponseHead {
    pub(super) status: StatusCode,
    pub(super) headers: Headers,
    pub(super) framing: Framing,
    /// True if the server accepts another request on the connection.
    pub(super) is_persistent: bool,
}

impl ResponseHead {
    /// Returns whether another response follows (RFC 9110 section 15.2). A 101 is followed by another protocol.
    pub(super) fn is_interim(&self) -> bool {
        self.status.is_informational() && self.status != StatusCode::SWITCHING_PROTOCOLS
    }
}

/// Reads a request's head into `request`, whose memory is used again, and returns its length; `None` if more bytes are
/// needed.
pub(super) fn request(
    buffer: &[u8],
    limits: &HeadLimits,
    request: &mut Request,
) -> Result<Option<(RequestHead, usize)>, HeadError> {
    // A server ignores one empty line before a request (RFC 9112 section 2.2); httparse would accept any number.
    let skipped = if buffer.starts_with(b"\r\n") { 2 } else { 0 };
    let bytes = &buffer[skipped..];
    if bytes == b"\r" && skipped == 0 {
        return Ok(None);
    }
    if matches!(bytes.first(), Some(b'\r' | b'\n')) {
        return Err(HeadError::Malformed("expected a method at the start of a request"));
    }
    let mut lines = NO_LINES;
    let mut parsed = httparse::Request::new(&mut []);
    let length = match parsed.parse_with_uninit_headers(bytes, &mut lines[..limits.lines.min(MOST_LINES)]) {
        Ok(Status::Complete(length)) if length <= limits.bytes => length,
        Ok(Status::Complete(_)) => return Err(HeadError::Bytes),
        Ok(Status::Partial) if bytes.len() < limits.bytes => {
            let line = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
            return if line > limits.target + LONGEST_METHOD + REST_OF_LINE {
                Err(HeadError::Target)
            } else {
                Ok(None)
            };
        }
        Ok(Status::Partial) => {
            return Err(if bytes.contains(&b'\n') { HeadError::Bytes } else { HeadError::Target });
        }
        Err(Error::Version) => return Err(version_error(bytes)),
        Err(error) => return Err(HeadError::from(error)),
    };
    only_crlf(&bytes[..length])?;
    let (Some(method), Some(target), Some(version)) = (parsed.method, parsed.path, parsed.version) else {
        return Err(HeadError::Malformed("missing request line"));
    };
    if target.len() > limits.target {
        return Err(HeadError::Target);
    }
    if method.len() > LONGEST_METHOD {
        return Err(HeadError::Malformed("method too long"));
    }
    request.method =
        Method::from_bytes(method.as_bytes()).map_err(|_| HeadError::Malformed("the method is not a token"))?;
    request.version = http_version(version);
    request.target.clear();
    request.target.push_str(target);
    let read = read_headers(parsed.headers, &bytes[..length], &mut request.headers)?;
    let (framing, is_persistent) = (read.request_framing(request.version)?, read.is_persistent(request.version));
    Ok(Some((RequestHead { framing, is_persistent }, skipped + length)))
}

/// Reads a head that arrives in pieces by `fill`. An end of the input before that of the head is an error.
///
/// A head ends with a line, so input that arrives byte by byte is not parsed for every byte. The target is checked early;
/// with a limit of 0 for it, the first piece is always parsed.
pub(super) fn poll<T>(
    input: &mut BytesMut,
    limits: &HeadLimits,
    mut fill: impl FnMut(&mut BytesMut) -> Poll<io::Result<usize>>,
    mut parse: impl FnMut(&[u8]) -> Result<Option<(T, usize)>, HeadError>,
) -> Poll<io::Result<Result<T, HeadError>>> {
    let mut is_worth_parsing = !input.is_empty();
    loop {
        if is_worth_parsing {
            match parse(input) {
                Ok(None) => {}
                Ok(Some((head, length))) => {
                    input.advance(length);
                    return Poll::Ready(Ok(Ok(head)));
                }
                Err(error) => return Poll::Ready(Ok(Err(error))),
            }
        }
        let before = input.len();
        if ready!(fill(input))? == 0 {
            return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
        }
        is_worth_parsing = memchr::memchr(b'\n', &input[before..]).is_some()
            || input.len() >= limits.bytes
            || (before <= limits.target && input.len() > limits.target);
    }
}

/// Tells other versions of HTTP from malformed request lines.
fn version_error(bytes: &[u8]) -> HeadError {
    let line = bytes.split(|byte| matches!(byte, b'\r' | b'\n')).next().unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ').skip(2);
    match (words.next(), words.next()) {
        (Some([b'H', b'T', b'T', b'P', b'/', major, b'.', minor]), None)
            if major.is_ascii_digit() && minor.is_ascii_digit() =>
        {
            HeadError::Version
        }
        _ => HeadError::Malformed("expected a request line: method, target and version with one space between them"),
    }
}

/// The longest method in bytes. The longest registered one has 17 (`UPDATEREDIRECTREF`).
const LONGEST_METHOD: usize = 50;

/// The rest of a request line: the version, two spaces and a CR.
const REST_OF_LINE: usize = " HTTP/1.1 \r".len();

/// Reads the head of a response to a `method` and returns it with its length; `None` if more bytes are needed.
pub(super) fn response(
    buffer: &[u8],
    method: &Method,
    limits: &HeadLimits,
) -> Result<Option<(ResponseHead, usize)>, HeadError> {
    let mut lines = NO_LINES;
    let mut parsed = httparse::Response::new(&mut []);
    let parser = httparse::ParserConfig::default();
    let length = match parser.parse_response_with_uninit_headers(&mut parsed, buffer, &mut lines) {
        Ok(Status::Complete(length)) if length <= limits.bytes => length,
        Ok(Status::Partial) if buffer.len() < limits.bytes => return Ok(None),
        Ok(_) => return Err(HeadError::Bytes),
        Err(error) => return Err(HeadError::from(error)),
    };
    let (Some(status), Some(version)) = (parsed.code, parsed.version) else {
        return Err(HeadError::Malformed("missing status line"));
    };
    let status = StatusCode::from_u16(status).map_err(|_| HeadError::Malformed("invalid status code"))?;
    let mut headers = spare::take();
    let read = read_headers(parsed.headers, &buffer[..length], &mut headers)?;
    let framing = read.response_framing(method, status)?;
    let is_persistent = read.is_persistent(http_version(version));
    Ok(Some((ResponseHead { status, headers, framing, is_persistent }, length)))
}

/// Reads the trailers after a chunked body (RFC 9112 section 7.1.2) and returns them with their length; `None` if more
/// bytes are needed.
pub(super) fn trailers(buffer: &[u8], limits: &HeadLimits) -> Result<Option<(Headers, usize)>, HeadError> {
    if buffer.starts_with(b"\r\n") {
        return Ok(Some((Headers::new(), 2)));
    }
    let mut lines = [httparse::EMPTY_HEADER; MOST_LINES];
    match httparse::parse_headers(buffer, &mut lines[..limits.lines.min(MOST_LINES)]) {
        Ok(Status::Complete((length, lines))) if length <= limits.bytes => {
            only_crlf(&buffer[..length])?;
            Ok(Some((lines.iter().map(|line| (line.name, line.value)).collect(), length)))
        }
        Ok(Status::Partial) if buffer.len() < limits.bytes => Ok(None),
        Ok(_) => Err(HeadError::Bytes),
        Err(error) => Err(HeadError::from(error)),
    }
}

/// Rejects lines that end without a CR. httparse and RFC 9112 section 2.2 allow them, but two servers that read a bare
/// LF differently make smuggling possible.
fn only_crlf(head: &[u8]) -> Result<(), HeadError> {
    // Checking all pairs vectorises to sixteen at a time. Searching for each line end would be slower, because lines
    // are short.
    let pairs = head.iter().zip(head.get(1..).unwrap_or_default());
    let is_bare = |before: u8, byte: u8| byte == b'\n' && before != b'\r';
    let bare = pairs.fold(0, |bare, (before, byte)| bare | u8::from(is_bare(*before, *byte)));
    let bare = bare != 0 || head.starts_with(b"\n");
    if bare { Err(HeadError::Malformed("lines must end in CR LF")) } else { Ok(()) }
}

fn http_version(minor: u8) -> Version {
    if minor == 0 { Version::HTTP_10 } else { Version::HTTP_11 }
}

/// The part of headers that concerns framing and the connection.
#[derive(Default)]
struct ParsedHeaders {
    close: bool,
    keep_alive: bool,
    length: Option<u64>,
    coding: Option<Coding>,
}

/// The transfer codings of all `Transfer-Encoding` lines.
#[derive(Clone, Copy)]
enum Coding {
    Chunked,
    /// `chunked` is the last of several.
    LastChunked,
    /// The last is not `chunked`.
    NotChunked,
}

fn read_headers(lines: &[Header<'_>], head: &[u8], headers: &mut Headers) -> Result<ParsedHeaders, HeadError> {
    headers.set_head(head, lines.iter().map(|line| (line.name.as_bytes(), line.value)), ROOM);
    let mut read = ParsedHeaders::default();
    if !headers.may_contain(FRAMING) {
        return Ok(read);
    }
    for line in lines {
        let (name, value) = (line.name, line.value);
        // The length alone rules out nearly all names.
        match name.len() {
            10 if name.eq_ignore_ascii_case("connection") => read.connection(value)?,
            14 if name.eq_ignore_ascii_case("content-length") => read.content_length(value)?,
            17 if name.eq_ignore_ascii_case("transfer-encoding") => read.transfer_encoding(value),
            _ => {}
        }
    }
    Ok(read)
}

/// The names that [`read_headers`] looks for.
const FRAMING: Names = Names::new(&["connection", "content-length", "transfer-encoding"]);

/// Space for the lines and bytes that a proxy usually adds to a message.
const ROOM: (usize, usize) = (8, 256);

/// Returns whether a `Connection` header must not name this header. Removing it would change the message's destination or
/// length, or what we say about the client ("hop-by-hop abuse").
fn is_protected(name: &str) -> bool {
    const NAMES: [&str; 7] =
        ["host", "content-length", "transfer-encoding", "content-type", "authorization", "cookie", "via"];
    NAMES.iter().any(|protected| name.eq_ignore_ascii_case(protected))
        || client_headers::is_claim(name.as_bytes())
        || client_headers::is_rate_limit(name.as_bytes())
}

impl ParsedHeaders {
    fn connection(&mut self, value: &[u8]) -> Result<(), HeadError> {
        const MALFORMED: HeadError = HeadError::Malformed("`Connection` must not name this header");
        // Nearly all lines consist of one of these.
        if value.eq_ignore_ascii_case(b"keep-alive") {
            self.keep_alive = true;
            return Ok(());
        }
        if value.eq_ignore_ascii_case(b"close") {
            self.close = true;
            return Ok(());
        }
        // The code that removes the named headers decodes them in the same way, so both see the same names.
        let value = headers::text(value).ok_or(MALFORMED)?;
        for option in value.split(',').map(str::trim) {
            if option.eq_ignore_ascii_case("keep-alive") {
                self.keep_alive = true;
            } else if option.eq_ignore_ascii_case("close") {
                self.close = true;
            } else if option.starts_with(':') || is_protected(option) {
                return Err(MALFORMED);
            }
        }
        Ok(())
    }

    /// Accepts one value of digits only (RFC 9110 section 8.6). A receiver may accept equal duplicates, but no honest
    /// sender needs them, nor leading zeros, which some read as octal and others as too long.
    fn content_length(&mut self, value: &[u8]) -> Result<(), HeadError> {
        const MALFORMED: HeadError = HeadError::Malformed("`Content-Length` must be a single number");
        let is_padded = value.len() > 1 && value.starts_with(b"0");
        if self.length.is_some() || value.is_empty() || is_padded || !value.iter().all(u8::is_ascii_digit) {
            return Err(MALFORMED);
        }
        let text = std::str::from_utf8(value).map_err(|_| MALFORMED)?;
        self.length = Some(text.parse().map_err(|_| MALFORMED)?);
        Ok(())
    }

    fn transfer_encoding(&mut self, value: &[u8]) {
        let last = value.rsplit(|byte| *byte == b',').next().unwrap_or_default();
        self.coding = Some(match self.coding {
            None if value.eq_ignore_ascii_case(b"chunked") => Coding::Chunked,
            _ if last.trim_ascii().eq_ignore_ascii_case(b"chunked") => Coding::LastChunked,
            _ => Coding::NotChunked,
        });
    }

    fn is_persistent(&self, version: Version) -> bool {
        !self.close && (version == Version::HTTP_11 || self.keep_alive)
    }

    /// Returns a request's framing by RFC 9112 section 6.3. Ambiguous requests are rejected.
    fn request_framing(&self, version: Version) -> Result<Framing, HeadError> {
        let Some(coding) = self.coding else {
            return Ok(self.length.map_or(Framing::Empty, Framing::of_length));
        };
        if version == Version::HTTP_10 {
            return Err(HeadError::Malformed("HTTP/1.0 does not have `Transfer-Encoding`"));
        }
        self.chunked(coding)
    }

    /// Returns a response's framing by RFC 9112 section 6.3.
    fn response_framing(&self, method: &Method, status: StatusCode) -> Result<Framing, HeadError> {
        if method == Method::HEAD || status.is_informational() || matches!(status.as_u16(), 204 | 304) {
            return Ok(Framing::Empty);
        }
        match self.coding {
            Some(coding) => self.chunked(coding),
            None => Ok(self.length.map_or(Framing::UntilClose, Framing::of_length)),
        }
    }

    /// Requires the transfer coding `chunked` alone and no `Content-Length`. RFC 9112 section 6.1 lets the coding win
    /// but warns of an attack.
    fn chunked(&self, coding: Coding) -> Result<Framing, HeadError> {
        if self.length.is_some() {
            return Err(HeadError::Malformed("a message must not have both `Content-Length` and `Transfer-Encoding`"));
        }
        match coding {
            Coding::Chunked => Ok(Framing::Chunked),
            // `chunked` twice, or together with another coding, is not supported.
            Coding::LastChunked => Err(HeadError::Coding),
            Coding::NotChunked => Err(HeadError::Malformed("the last transfer coding must be `chunked`")),
        }
    }
}

impl From<Error> for HeadError {
    fn from(error: Error) -> Self {
        match error {
            Error::TooManyHeaders => Self::Lines,
            Error::Version => Self::Version,
            Error::HeaderName => {
                Self::Malformed("invalid header: expected `name: value` on one line, without a space before the colon")
            }
            Error::HeaderValue => Self::Malformed("control character in a header's value"),
            Error::NewLine => Self::Malformed("lines must end in CR LF"),
            Error::Token => Self::Malformed("malformed start line"),
            Error::Status => Self::Malformed("invalid status code"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: HeadLimits = HeadLimits { bytes: 400, target: 100, lines: 8 };

    fn outcome(text: &str) -> String {
        let mut request = Request::default();
        match super::request(text.as_bytes(), &LIMITS, &mut request) {
            Ok(Some((head, length))) => {
                let rest = &text[length..];
                format!("{} {} {:?} {:?} rest {rest:?}", request.method, request.target, head.framing, request.headers)
            }
            Ok(None) => "more".into(),
            Err(error) => format!("{error:?}"),
        }
    }

    #[track_caller]
    fn check(text: &str, expected: &str) {
        let outcome = outcome(text);
        assert!(outcome.starts_with(expected), "{text:?}: {outcome}");
    }

    #[test]
    fn heads_are_read_as_they_come() {
        check("GET /a?b HTTP/1.1\r\nHost: x\r\n\r\nNEXT", r#"GET /a?b Empty {"Host": "x"} rest "NEXT""#);
        check("\r\nPOST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", "POST / Length(3)");
        check("POST / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n", "POST / Chunked");
        check("BREW /pot HTTP/1.0\r\nX:  a b\t\r\nx:\r\n\r\n", r#"BREW /pot Empty {"X": "a b", "x": ""} rest """#);
        for whole in ["GET / HTTP/1.1\r\nHost: x\r\n\r\n", "\r\nGET / HTTP/1.1\r\n\r\n"] {
            for end in 0..whole.len() {
                check(&whole[..end], "more");
            }
        }
    }

    #[test]
    fn what_can_be_read_in_two_ways_is_rejected() {
        for (text, expected) in [
            ("GET / HTTP/1.1\nHost: x\n\n", "Malformed"),
            ("GET / HTTP/1.1\r\nHost: x\n\r\n", "Malformed"),
            ("GET / HTTP/1.1\r\nHost: x\r\n\n", "Malformed"),
            ("\r\n\r\nGET / HTTP/1.1\r\n\r\n", "Malformed"),
            ("\nGET / HTTP/1.1\r\n\r\n", "Malformed"),
            (" GET / HTTP/1.1\r\n\r\n", "Malformed"),
            ("GET  / HTTP/1.1\r\n\r\n", "Malformed"),
            ("GET /a b HTTP/1.1\r\n\r\n", "Malformed"),
            ("GET / HTTP/1.1 \r\n\r\n", "Malformed"),
            ("GET / HTTP/2.0\r\n\r\n", "Version"),
            ("GET / http/1.1\r\n\r\n", "Malformed"),
            ("GET / HTTP/1.10\r\n\r\n", "Malformed"),
            ("GET / HTTP/1.2\r\n\r\n", "Version"),
            ("GET /\r\n\r\n", "Malformed"),
            ("GET / HTTP/1.1\r\nHost : x\r\n\r\n", "Malformed"),
            ("GET / HTTP/1.1\r\nA: b\r\n c\r\n\r\n", "Malformed"),
            ("GET / HTTP/1.1\r\n A: b\r\n\r\n", "Malformed"),
            ("GET / HTTP/1.1\r\nA: b\rc\r\n\r\n", "Malformed"),
            ("GET / HTTP/1.1\r\nA: b\0c\r\n\r\n", "Malformed"),
            ("GET / HTTP/1.1\r\nA b\r\n\r\n", "Malformed"),
            ("GET / HTTP/1.1\r\n: b\r\n\r\n", "Malformed"),
            ("POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", "Malformed"),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", "Malformed"),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked, identity\r\n\r\n", "Malformed"),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n", "Malformed"),
            ("POST / HTTP/1.1\r\nTransfer-Encoding:\x0bchunked\r\n\r\n", "Malformed"),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "Coding"),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked, chunked\r\n\r\n", "Coding"),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", "Coding"),
            ("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", "Malformed"),
            ("POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\n", "Malformed"),
            ("POST / HTTP/1.1\r\nContent-Length: 3, 3\r\n\r\n", "Malformed"),
            ("POST / HTTP/1.1\r\nContent-Length: +3\r\n\r\n", "Malformed"),
            ("POST / HTTP/1.1\r\nContent-Length: 0x3\r\n\r\n", "Malformed"),
            ("POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", "Malformed"),
            ("POST / HTTP/1.1\r\nContent-Length:\r\n\r\n", "Malformed"),
            ("POST / HTTP/1.1\r\nContent-Length: 18446744073709551616\r\n\r\n", "Malformed"),
            ("GET / HTTP/1.1\r\nConnection: close, Host\r\n\r\n", "Malformed"),
            ("GET / HTTP/1.1\r\nConnection: X-Forwarded-For\r\n\r\n", "Malformed"),
            ("GET / HTTP/1.1\r\nConnection: :authority\r\n\r\n", "Malformed"),
            ("GET / HTTP/1.1\r\nConnection: x-ratelimit-limit\r\n\r\n", "Malformed"),
            ("GET / HTTP/1.1\r\nConnection: x-hop, \u{e9}\r\n\r\n", "Malformed"),
            ("POST / HTTP/1.1\r\nContent-Length: 03\r\n\r\n", "Malformed"),
        ] {
            check(text, expected);
        }
    }

    #[test]
    fn sizes_are_bounded() {
        let lines = |count: usize| format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(count));
        check(&lines(8), "GET");
        check(&lines(9), "Lines");
        let target = |length: usize| format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(length - 1));
        check(&target(100), "GET");
        check(&target(101), "Target");
        let method = |length: usize| target(100).replacen("GET", &"X".repeat(length), 1);
        check(&method(LONGEST_METHOD), "X");
        check(&method(LONGEST_METHOD + 1), "Malformed");
        check(&method(LONGEST_METHOD)[..LONGEST_METHOD + 1 + 100 + REST_OF_LINE - 1], "more");
        check(&format!("GET /{}", "x".repeat(500)), "Target");
        check(&format!("GET / HTTP/1.1\r\na: {}\r\n\r\n", "x".repeat(400)), "Bytes");
        check(&format!("GET / HTTP/1.1\r\na: {}", "x".repeat(400)), "Bytes");
    }

    #[track_caller]
    fn check_response(method: &str, text: &str, expected: &str) {
        let method = method.parse().unwrap();
        let outcome = match response(text.as_bytes(), &method, &LIMITS) {
            Ok(Some((head, _))) => format!("{} {:?}", head.status.as_u16(), head.framing),
            Ok(None) => "more".into(),
            Err(error) => format!("{error:?}"),
        };
        assert!(outcome.starts_with(expected), "{text:?}: {outcome}");
    }

    #[test]
    fn a_responses_end_is_known_from_its_head() {
        for (method, text, expected) in [
            ("GET", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", "200 Length(5)"),
            ("GET", "HTTP/1.1 200\r\ncontent-length: 0\r\n\r\n", "200 Empty"),
            ("GET", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", "200 Chunked"),
            ("GET", "HTTP/1.0 200 OK\r\n\r\n", "200 UntilClose"),
            ("HEAD", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", "200 Empty"),
            ("GET", "HTTP/1.1 204 No Content\r\n\r\n", "204 Empty"),
            ("GET", "HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n", "304 Empty"),
            ("GET", "HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n", "103 Empty"),
            ("GET", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n", "Malformed"),
            ("GET", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n", "Malformed"),
            ("GET", "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n", "Coding"),
            ("GET", "HTTP/1.1 200 OK\r\na: b\r\n c\r\n\r\n", "Malformed"),
            ("GET", "HTTP/1.1 20x OK\r\n\r\n", "Malformed"),
            ("GET", "SSH-2.0-OpenSSH\r\n", "Version"),
            ("GET", "HTTP/1.1 200 OK\r\na: ", "more"),
        ] {
            check_response(method, text, expected);
        }
    }

    #[test]
    fn trailers_are_headers() {
        let read = |text: &str| trailers(text.as_bytes(), &LIMITS).map(|read| read.map(|(headers, _)| headers.len()));
        assert_eq!(read("\r\n"), Ok(Some(0)));
        assert_eq!(read("a: b\r\nc: d\r\n\r\n"), Ok(Some(2)));
        assert_eq!((read("a: b\r\n"), read("")), (Ok(None), Ok(None)));
        assert!(read("a: b\n\n").is_err() && read("a b\r\n\r\n").is_err());
    }
}
