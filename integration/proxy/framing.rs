//! Bodies that change their framing: what ends with a stream's last frame on one side ends with a last chunk on the other.

use bytes::Bytes;
use http::{Request, Response};

use super::upstream_http2::Http2Upstream;
use crate::support::frames::{ACK, DATA, END_HEADERS, END_STREAM, Frames, HEADERS, SETTINGS, frame, request};
use crate::support::server::{Setup, WIDE, Weir};
use crate::support::upstream::{Upstream, ok};
use crate::support::wire::Message;

/// On both sides of what is copied behind a head (4096), and of the longest frame (16384).
const SIZES: [usize; 8] = [0, 1, 4096, 4097, 5000, 16384, 16385, 65536];

/// The longest payload that an HTTP/2 sender may use unasked.
const LONGEST_FRAME: usize = 16384;

/// A JSON string of this many bytes that repeats nowhere, so that a part in another place shows.
fn numbered(size: usize) -> Vec<u8> {
    let text: String = (0..).map(|number| format!("{number:x}.")).take(size).collect();
    match size {
        0 => Vec::new(),
        1 => b"7".to_vec(),
        _ => format!("\"{}\"", &text[..size - 2]).into_bytes(),
    }
}

/// Answers with the target and the length of the body.
fn describing() -> Upstream {
    Upstream::answering(|request| ok(&description(request)))
}

fn description(request: &Message) -> String {
    format!("{} {}", request.start.split(' ').nth(1).unwrap(), request.body.len())
}

fn weir(rules: &str, upstream: &Upstream) -> Weir {
    Setup::new(rules).start(&format!("http://{}", upstream.address))
}

/// An HTTP/2 connection with the windows that Weir has announced.
fn connect(weir: &Weir) -> Frames {
    let mut client = Frames::connect(weir.proxy);
    client.next_of(SETTINGS);
    client.send(frame(SETTINGS, ACK, 0, &[]));
    client
}

/// Sends a request without a length, whose last piece ends the stream, and expects the upstream's answer to it.
#[track_caller]
fn upload(client: &mut Frames, stream: u32, headers: &[(&str, &str)], body: &[u8]) {
    let mut bytes = frame(HEADERS, END_HEADERS, stream, &request("POST", "/upload", headers));
    let mut pieces: Vec<_> = body.chunks(LONGEST_FRAME).collect();
    let last = pieces.pop().unwrap_or_default();
    bytes.extend(pieces.into_iter().flat_map(|piece| frame(DATA, 0, stream, piece)));
    bytes.extend(frame(DATA, END_STREAM, stream, last));
    client.send(bytes);
    assert_eq!(answer(client, stream), (200, format!("/upload {}", body.len())));
}

#[track_caller]
fn answer(client: &mut Frames, stream: u32) -> (u16, String) {
    let frames = client.stream(stream);
    let data = frames.iter().filter(|frame| frame.kind == DATA).flat_map(|frame| frame.payload.clone());
    (frames[0].status(), String::from_utf8(data.collect()).unwrap())
}

/// Uploads bodies of all sizes, each followed by another request on the same upstream connection.
#[track_caller]
fn uploads_end_where_they_say(rules: &str, headers: &[(&str, &str)]) {
    let upstream = describing();
    let weir = weir(rules, &upstream);
    for size in SIZES {
        let mut client = connect(&weir);
        let body = numbered(size);
        upload(&mut client, 1, headers, &body);
        assert_eq!(upstream.requests().last().unwrap().body, body, "{size} bytes");
        client.get(3, "/next");
        assert_eq!(answer(&mut client, 3), (200, "/next 0".to_owned()), "after {size} bytes");
        // The same over HTTP/1, in one chunk whose end comes with it.
        let mut client = weir.connect();
        let lines: String = headers.iter().flat_map(|(name, value)| [*name, ": ", *value, "\r\n"]).collect();
        let mut text =
            format!("POST /upload HTTP/1.1\r\nhost: a\r\n{lines}transfer-encoding: chunked\r\n\r\n").into_bytes();
        if size > 0 {
            text.extend([format!("{size:x}\r\n").as_bytes(), &body, b"\r\n"].concat());
        }
        client.send([&text[..], b"0\r\n\r\n"].concat());
        assert_eq!(client.response().text(), format!("/upload {size}"));
        assert_eq!(upstream.requests().last().unwrap().body, body, "{size} bytes over HTTP/1");
        assert_eq!(client.get("/next").text(), "/next 0", "after {size} bytes over HTTP/1");
    }
    assert_eq!(upstream.accepted(), 1, "every request was written to its end");
}

#[test]
fn an_upload_ends_behind_its_last_piece() {
    uploads_end_where_they_say(WIDE, &[]);
}

/// Charges a shared bucket for every body, after reading it.
const READING: &str = "limits: { Wide: { by: { body: /model }, burst: 1000000, missing: shared } }";

#[test]
fn an_upload_that_a_limit_reads_ends_behind_its_last_piece() {
    uploads_end_where_they_say(READING, &[("content-type", "application/json")]);
}

/// The head announces chunks, so there is a last one to write, also if the answer comes first.
#[test]
fn an_empty_upload_is_ended_before_the_next_request() {
    let upstream = Upstream::start(|wire, _| {
        while let Some(mut request) = wire.head() {
            wire.send(ok(&description(&request)));
            wire.body(&mut request, false);
        }
    });
    for (earlier, rules) in [WIDE, READING].into_iter().enumerate() {
        let weir = weir(rules, &upstream);
        let mut client = weir.connect();
        for _ in 0..10 {
            client.send("POST /empty HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n");
            client.send("transfer-encoding: chunked\r\n\r\n0\r\n\r\n");
            assert_eq!(client.response().text(), "/empty 0");
            assert_eq!(client.get("/next").text(), "/next 0");
        }
        let mut client = connect(&weir);
        for stream in (1..20).step_by(4) {
            client.send(frame(
                HEADERS,
                END_HEADERS,
                stream,
                &request("POST", "/empty", &[("content-type", "application/json")]),
            ));
            client.send(frame(DATA, END_STREAM, stream, b""));
            assert_eq!(answer(&mut client, stream), (200, "/empty 0".to_owned()));
            client.get(stream + 2, "/next");
            assert_eq!(answer(&mut client, stream + 2), (200, "/next 0".to_owned()));
        }
        assert_eq!(upstream.accepted(), earlier + 1, "every request was written to its end");
    }
}

#[test]
fn a_download_ends_behind_its_last_piece() {
    let upstream = Http2Upstream::start(|_, request: Request<h2::RecvStream>, mut respond| async move {
        let body = Bytes::from(numbered(request.uri().path()[1..].parse().unwrap()));
        let mut stream = respond.send_response(Response::new(()), body.is_empty()).unwrap();
        if !body.is_empty() {
            stream.send_data(body, true).unwrap();
        }
    });
    let weir = upstream.weir();
    let mut client = weir.connect();
    for size in SIZES {
        assert_eq!(client.get(&format!("/{size}")).body, numbered(size), "{size} bytes");
    }
}
