//! Requests that are read ahead: what an upstream sees of them, and when.

use weir::http::{Routes, UpstreamOptions};

use crate::support::becomes;
use crate::support::frames::{DATA, END_HEADERS, END_STREAM, Frames, HEADERS, frame, request};
use crate::support::server::{Setup, WIDE, Weir};
use crate::support::upstream::{Upstream, ok};
use crate::support::wire::Wire;

/// Bytes that are read ahead here.
const MOST: usize = 1_000;

/// A proxy that reads requests to these upstreams ahead, and tries them in order.
fn weir(upstreams: &[&Upstream], most: usize) -> Weir {
    let urls: Vec<_> = upstreams.iter().map(|upstream| format!("http://{}", upstream.address)).collect();
    let routes = Routes::parse(&[urls.join(",")]).unwrap();
    Setup::new(WIDE).start_with(UpstreamOptions { buffer: most, ..UpstreamOptions::new(routes) })
}

/// Answers with the length of the body and how it was framed.
fn measuring() -> Upstream {
    Upstream::answering(|request| {
        assert!(request.body == text(request.body.len()));
        let framing = request.header("content-length").or_else(|| request.header("transfer-encoding"));
        ok(&format!("{} {}", request.body.len(), framing.unwrap_or("none")))
    })
}

/// A body that is different at each place.
fn text(length: usize) -> Vec<u8> {
    (0..length).map(|place| b'a' + u8::try_from(place / 7 % 26).unwrap()).collect()
}

/// Returns once the only worker has read what was sent before, with the number of connections that the upstream has accepted by then.
fn connections(weir: &Weir, upstream: &Upstream) -> usize {
    let before = upstream.requests().len();
    assert_eq!(weir.connect().get("/").status(), 200);
    assert_eq!(upstream.requests().len(), before + 1);
    // Two requests need two connections if one of them is not finished.
    upstream.accepted()
}

fn unbuffered(weir: &Weir, reason: &str) -> u64 {
    weir.metric(&format!("weir_requests_unbuffered_total{{reason=\"{reason}\"}}"))
}

fn chunk(data: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", data.len()).as_bytes(), data, b"\r\n"].concat()
}

fn begin(weir: &Weir, framing: &str) -> Wire {
    let mut client = weir.connect();
    client.send(format!("POST / HTTP/1.1\r\nhost: a\r\n{framing}\r\n\r\n"));
    client
}

#[test]
fn an_upstream_sees_a_request_once_its_slow_client_has_sent_all() {
    for (length, is_buffered) in [(MOST - 1, true), (MOST, true), (MOST + 1, false)] {
        let upstream = measuring();
        let weir = weir(&[&upstream], MOST);
        let body = text(length);
        let mut client = begin(&weir, &format!("content-length: {length}"));
        client.send(&body[..length - 1]);
        if !is_buffered {
            becomes("the request is streamed", 1, || upstream.accepted());
        }
        assert_eq!(connections(&weir, &upstream), if is_buffered { 1 } else { 2 }, "{length}");
        client.send(&body[length - 1..]);
        assert_eq!(client.response().text(), format!("{length} {length}"));
        assert_eq!(unbuffered(&weir, "too_long"), u64::from(!is_buffered));
    }
}

#[test]
fn chunks_are_read_ahead_until_they_are_too_many() {
    for (length, is_buffered) in [(MOST - 1, true), (MOST, true), (MOST + 1, false)] {
        let upstream = measuring();
        let weir = weir(&[&upstream], MOST);
        let mut client = begin(&weir, "transfer-encoding: chunked");
        for part in text(length).chunks(400) {
            client.send(chunk(part));
        }
        if is_buffered {
            assert_eq!(connections(&weir, &upstream), 1, "{length}");
        } else {
            becomes("the request is streamed", 1, || upstream.accepted());
            assert_eq!(connections(&weir, &upstream), 2, "{length}");
        }
        client.send("0\r\n\r\n");
        // What has come to its end has a length, which servers such as those of WSGI need.
        let framing = if is_buffered { length.to_string() } else { "chunked".to_owned() };
        assert_eq!(client.response().text(), format!("{length} {framing}"));
        assert_eq!(unbuffered(&weir, "too_long"), u64::from(!is_buffered));
    }
}

#[test]
fn trailers_come_after_what_was_read_ahead() {
    let upstream = Upstream::answering(|request| ok(request.header("transfer-encoding").unwrap_or("none")));
    let weir = weir(&[&upstream], MOST);
    let mut client = begin(&weir, "transfer-encoding: chunked");
    client.send("2\r\nhi\r\n0\r\nx-sum: 7\r\n\r\n");
    assert_eq!(client.response().text(), "chunked");
    assert_eq!(upstream.requests()[0].body, b"hi");
}

#[test]
fn a_request_over_http2_is_read_ahead_too() {
    let upstream = measuring();
    let weir = weir(&[&upstream], MOST);
    let body = text(MOST);
    let mut client = Frames::connect(weir.proxy);
    client.send(frame(HEADERS, END_HEADERS, 1, &request("POST", "/", &[])));
    client.send(frame(DATA, 0, 1, &body[..MOST - 1]));
    assert_eq!(connections(&weir, &upstream), 1);
    client.send(frame(DATA, END_STREAM, 1, &body[MOST - 1..]));
    let answer = client.stream(1);
    assert_eq!(answer[0].status(), 200);
    assert_eq!(answer[1].payload, format!("{MOST} {MOST}").as_bytes());
}

#[test]
fn an_upstream_never_sees_a_request_whose_client_leaves() {
    for framing in ["content-length: 10", "transfer-encoding: chunked"] {
        let upstream = measuring();
        let weir = weir(&[&upstream], MOST);
        let mut client = begin(&weir, framing);
        client.send(if framing.contains("chunked") { "5\r\nhello\r\n" } else { "hello" });
        assert_eq!(connections(&weir, &upstream), 1);
        drop(client);
        becomes("the request has ended", 0, || weir.metric("weir_http_requests_in_flight"));
        assert_eq!((upstream.accepted(), upstream.requests().len()), (1, 1), "{framing}");
    }
}

#[test]
fn a_client_that_waits_for_100_continue_gets_it_before_the_upstream_is_asked() {
    let upstream = measuring();
    let weir = weir(&[&upstream], MOST);
    let mut client = begin(&weir, "content-length: 5\r\nexpect: 100-continue");
    assert_eq!(client.response().status(), 100);
    assert_eq!(connections(&weir, &upstream), 1);
    client.send(text(5));
    assert_eq!(client.response().text(), "5 5");
}

#[test]
fn what_was_read_ahead_is_sent_again_if_that_changes_nothing() {
    // Reads a request on each connection and closes it.
    let closing = || {
        Upstream::start(|wire, _| {
            wire.request();
        })
    };
    for (method, most, expected) in [("PUT", 5, 200), ("PUT", 4, 502), ("PUT", 0, 502), ("POST", 5, 502)] {
        for framing in ["content-length: 5\r\n\r\n", "transfer-encoding: chunked\r\n\r\n5\r\n"] {
            let (bad, good) = (closing(), measuring());
            let weir = weir(&[&bad, &good], most);
            let mut client = weir.connect();
            client.send(format!("{method} / HTTP/1.1\r\nhost: a\r\n{framing}"));
            client.send(text(5));
            if framing.contains("chunked") {
                client.send("\r\n0\r\n\r\n");
            }
            let response = client.response();
            assert_eq!(response.status(), expected, "{method} {most} {framing}");
            assert_eq!((bad.accepted(), good.accepted()), (1, usize::from(expected == 200)), "{method} {most}");
            if expected == 200 {
                assert_eq!(response.text(), "5 5");
            }
        }
    }
}

#[test]
fn a_denied_request_is_not_read() {
    let upstream = measuring();
    let routes = Routes::parse(&[format!("http://{}", upstream.address)]).unwrap();
    let weir = Setup::new("limits: { None: { deny: true } }")
        .start_with(UpstreamOptions { buffer: MOST, ..UpstreamOptions::new(routes) });
    let mut client = begin(&weir, "content-length: 5\r\nexpect: 100-continue");
    assert_eq!(client.response().status(), 429);
}
