//! 5.3: HTTP/2 in front of HTTP/1.1. Frames and header blocks are written byte by byte, including those that no library
//! sends.

use super::Recorder;
use crate::support::server::{Setup, WIDE, Weir};
use crate::support::wire::Wire;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

type Lines = &'static [(&'static str, &'static str)];

/// An HTTP/2 request and its expected result.
struct Row {
    /// The headers in order, pseudo-headers included.
    headers: Lines,
    /// DATA, if any, and trailers after it.
    body: Option<&'static str>,
    trailers: Lines,
    /// The status, or `rejected` if the stream is reset or the connection ends: the library takes a name that cannot be
    /// decoded for a connection error.
    back: &'static str,
    /// As in the other tables.
    seen: &'static [&'static str],
}

/// The headers of a valid request, and more.
macro_rules! get {
    ($($more:expr),* $(,)?) => {
        &[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "a.example"), $($more),*]
    };
}

macro_rules! post {
    ($($more:expr),* $(,)?) => {
        &[(":method", "POST"), (":scheme", "http"), (":path", "/"), (":authority", "a.example"), $($more),*]
    };
}

const ROW: Row = Row { headers: get!(), body: None, trailers: &[], back: "200", seen: &[] };

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// A header block of literals without indexing and without Huffman coding (RFC 7541 section 6.2.2).
fn block(headers: Lines) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in headers {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).ok().filter(|length| *length < 127).unwrap());
            block.extend(text.as_bytes());
        }
    }
    block
}

/// The status at the start of a header block (RFC 7541 sections 6.1 and 6.2, appendices A and B).
fn status(block: &[u8]) -> u16 {
    const INDEXED: [u16; 7] = [200, 204, 206, 304, 400, 404, 500];
    match block[0] {
        indexed @ 0x88..=0x8e => INDEXED[usize::from(indexed - 0x88)],
        0x08 | 0x18 | 0x48 => {
            let (is_packed, length) = (block[1] & 0x80 != 0, usize::from(block[1] & 0x7f));
            let text = &block[2..2 + length];
            if is_packed { unpack(text) } else { std::str::from_utf8(text).unwrap().parse().unwrap() }
        }
        other => panic!("a response begins with {other:#x}"),
    }
}

/// Three Huffman-coded digits: `0` to `2` have five bits, the others six.
fn unpack(text: &[u8]) -> u16 {
    let bits: Vec<u16> = text.iter().flat_map(|byte| (0..8).rev().map(move |bit| u16::from(byte >> bit & 1))).collect();
    let (mut place, mut number) = (0, 0);
    for _ in 0..3 {
        let read = |count: usize| bits[place..place + count].iter().fold(0, |code, bit| code << 1 | bit);
        let (digit, length) = if read(5) < 3 { (read(5), 5) } else { (read(6) - 0b01_1001 + 3, 6) };
        (number, place) = (number * 10 + digit, place + length);
    }
    number
}

/// The result of stream 1.
fn outcome(client: &mut Wire) -> String {
    loop {
        let head = client.exactly(9);
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        let payload = client.exactly(length);
        match (head[3], head[8]) {
            (SETTINGS, _) if head[4] == 0 => client.send(frame(SETTINGS, 1, 0, &[])),
            (HEADERS, 1) => match status(&payload) {
                100..200 => {}
                status => return status.to_string(),
            },
            (RST_STREAM, 1) | (GOAWAY, _) => return "rejected".into(),
            _ => {}
        }
    }
}

fn connect(weir: &Weir) -> Wire {
    let mut client = weir.connect();
    client.send([PREFACE, &frame(SETTINGS, 0, 0, &[])].concat());
    client
}

#[track_caller]
fn check(row: &Row) {
    let what = format!("5.3 {:?} {:?}", row.headers, row.body);
    let recorder = Recorder::start("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello");
    let weir = Setup::new(WIDE).start(&recorder.url());
    let mut client = connect(&weir);
    let is_last = row.body.is_none() && row.trailers.is_empty();
    let mut sent = frame(HEADERS, END_HEADERS | u8::from(is_last), 1, &block(row.headers));
    if let Some(body) = row.body {
        sent.extend(frame(DATA, u8::from(row.trailers.is_empty()), 1, body.as_bytes()));
    }
    if !row.trailers.is_empty() {
        sent.extend(frame(HEADERS, END_HEADERS | END_STREAM, 1, &block(row.trailers)));
    }
    client.send(sent);
    assert_eq!(outcome(&mut client), row.back, "{what}");
    recorder.check(&what, row.seen);
}

#[test]
fn requests_become_requests() {
    for row in [
        Row {
            headers: get!(("x-a", "1"), ("cookie", "a=1"), ("te", "trailers"), ("cookie", "b=2")),
            seen: &[
                "GET / HTTP/1.1",
                "host: a.example",
                "x-a: 1",
                "cookie: a=1; b=2",
                "-te",
                "via: 2 weir",
                "x-forwarded-for: 127.0.0.1",
                "x-forwarded-host: a.example",
                "-content-length",
                "-transfer-encoding",
            ],
            ..ROW
        },
        Row {
            headers: get!(("x_api_key", "1"), ("x_forwarded_for", "1.2.3.4"), ("transfer_encoding", "chunked")),
            seen: &["GET / HTTP/1.1", "-x_api_key", "-x_forwarded_for", "-transfer_encoding"],
            ..ROW
        },
        Row {
            headers: &[
                (":method", "GET"),
                (":scheme", "http"),
                (":path", "//a/../%2e?b=%20"),
                ("host", "a.example:81"),
            ],
            seen: &["GET //a/../%2e?b=%20 HTTP/1.1", "host: a.example:81"],
            ..ROW
        },
        Row {
            headers: &[(":method", "OPTIONS"), (":scheme", "http"), (":path", "*"), (":authority", "a.example")],
            seen: &["OPTIONS * HTTP/1.1", "host: a.example"],
            ..ROW
        },
        Row {
            headers: post!(),
            body: Some("0\r\n\r\nGET /evil HTTP/1.1\r\nhost: a\r\n\r\n"),
            seen: &["POST / HTTP/1.1", "transfer-encoding: chunked", "=0\r\n\r\nGET /evil HTTP/1.1\r\nhost: a\r\n\r\n"],
            ..ROW
        },
        Row {
            headers: post!(("content-length", "2")),
            body: Some("hi"),
            seen: &["POST / HTTP/1.1", "content-length: 2", "-transfer-encoding", "=hi"],
            ..ROW
        },
        Row {
            headers: post!(("content-length", "2"), ("expect", "100-continue")),
            body: Some("hi"),
            seen: &["POST / HTTP/1.1", "-expect", "=hi"],
            ..ROW
        },
        Row {
            headers: post!(),
            body: Some("hi"),
            trailers: &[("x-sum", "1"), ("content-length", "9"), ("host", "b"), ("authorization", "x")],
            seen: &["POST / HTTP/1.1", "=hi", "+x-sum: 1", "-+content-length", "-+host", "-+authorization"],
            ..ROW
        },
    ] {
        check(&row);
    }
}

#[test]
fn fields_that_would_be_others_behind_us_are_rejected() {
    for (headers, back) in [
        (get!(("X-Upper", "1")) as Lines, "rejected"),
        (get!(("x a", "1")), "rejected"),
        (get!(("x:a", "1")), "rejected"),
        (get!(("x\r\nevil", "1")), "rejected"),
        (get!(("x\0", "1")), "rejected"),
        (get!(("", "1")), "rejected"),
        (get!(("x-\u{e9}", "1")), "rejected"),
        (get!(("x", "1\r\nevil: 2")), "rejected"),
        (get!(("x", "1\n2")), "rejected"),
        (get!(("x", "1\r")), "rejected"),
        (get!(("x", "1\0")), "rejected"),
        (get!(("content-length", "")), "400"),
        (get!(("x", " 1")), "400"),
        (get!(("x", "1\t")), "400"),
        (get!(("transfer-encoding", "chunked")), "rejected"),
        (get!(("connection", "close")), "rejected"),
        (get!(("keep-alive", "timeout=5")), "rejected"),
        (get!(("proxy-connection", "close")), "rejected"),
        (get!(("upgrade", "websocket")), "rejected"),
        (get!(("te", "trailers, deflate")), "rejected"),
        (get!(("host", "b.example")), "400"),
        (get!(("host", "a.example"), ("host", "a.example")), "400"),
        (get!(("expect", "tea")), "417"),
        (get!(("content-length", "+2")), "rejected"),
        (get!(("content-length", "2")), "rejected"),
        (get!((":path", "/b")), "rejected"),
        (get!((":unknown", "1")), "rejected"),
        (get!(("x", "1"), (":method", "GET")), "rejected"),
        (&[("x", "1"), (":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "a")], "rejected"),
        (&[(":scheme", "http"), (":path", "/"), (":authority", "a")], "rejected"),
        (&[(":method", "GET"), (":scheme", "http"), (":authority", "a")], "rejected"),
        (&[(":method", "GET"), (":path", "/"), (":authority", "a")], "rejected"),
        (&[(":method", "GET"), (":scheme", "http"), (":path", ""), (":authority", "a")], "rejected"),
        (&[(":method", "GET"), (":scheme", "http"), (":path", "x"), (":authority", "a")], "rejected"),
        (&[(":method", "GET"), (":scheme", "http"), (":path", "*"), (":authority", "a")], "400"),
        (&[(":method", "GET"), (":scheme", "http"), (":path", "/a b"), (":authority", "a")], "rejected"),
        (&[(":method", "GET"), (":scheme", "http"), (":path", "/ HTTP/1.1\r\nx: y"), (":authority", "a")], "rejected"),
        (&[(":method", "GET"), (":scheme", "http"), (":path", "/a\\b"), (":authority", "a")], "400"),
        (&[(":method", "GET"), (":scheme", "http"), (":path", "/%00"), (":authority", "a")], "400"),
        (&[(":method", "G T"), (":scheme", "http"), (":path", "/"), (":authority", "a")], "rejected"),
        (
            &[(":method", "GET / HTTP/1.1\r\nx: y"), (":scheme", "http"), (":path", "/"), (":authority", "a")],
            "rejected",
        ),
        (&[(":method", "get"), (":scheme", "http"), (":path", "/"), (":authority", "a")], "400"),
        (&[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "a b")], "rejected"),
        (&[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "a\r\nx: y")], "rejected"),
        (&[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "u@a")], "400"),
        (&[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "a/b")], "rejected"),
        (&[(":method", "GET"), (":scheme", "ftp"), (":path", "/"), (":authority", "a")], "400"),
        (&[(":method", "GET"), (":scheme", "http://b"), (":path", "/"), (":authority", "a")], "rejected"),
        (&[(":method", "GET"), (":scheme", "http"), (":path", "/")], "400"),
        (&[(":method", "CONNECT"), (":authority", "a.example:443")], "405"),
        (&[(":method", "TRACE"), (":scheme", "http"), (":path", "/"), (":authority", "a")], "405"),
    ] {
        check(&Row { headers, back, ..ROW });
    }
}

#[test]
fn a_body_is_as_long_as_it_says() {
    for (length, body) in [("1", "hi"), ("3", "hi"), ("0", "hi"), ("5", "")] {
        let headers: Lines = Box::leak(Box::new([
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/"),
            (":authority", "a"),
            ("content-length", length),
        ]));
        check(&Row { headers, body: Some(body), back: "rejected", seen: &["cut"], ..ROW });
    }
    for (headers, back) in [
        (post!(("content-length", "2"), ("content-length", "2")) as Lines, "400"),
        (post!(("content-length", "02")), "400"),
        (post!(("content-length", "2"), ("content-length", "9")), "rejected"),
        (post!(("content-length", "9"), ("content-length", "2")), "rejected"),
        (post!(("content-length", "2, 2")), "rejected"),
        (post!(("content-length", "")), "rejected"),
    ] {
        check(&Row { headers, body: Some("hi"), back, ..ROW });
    }
}
