//! Costs that are the bytes of requests' bodies.

use super::leaving::Held;
use super::{left, on_both, settled, settles, setup, start};
use crate::support::frames::{DATA, END_HEADERS, END_STREAM, Frames, HEADERS, RST_STREAM, frame, request};
use crate::support::process::free_port;
use crate::support::upstream::Upstream;

const RULES: &str = "limits: { Bytes: { by: global, count: 100, period: 1h, cost: { bytes: request } } }";

/// Sends a body of unknown length, in two parts.
fn chunked(path: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"
    )
}

#[test]
fn a_request_costs_the_bytes_of_its_body() {
    let upstream = Upstream::saying("stored");
    on_both(RULES, &upstream, |weir| {
        let mut client = weir.connect();
        client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello");
        assert_eq!(client.response().status(), 200);
        assert_eq!(left(weir, "Bytes"), 95, "it is taken before the request passes");
        client.send(chunked("/"));
        assert_eq!(client.response().status(), 200);
        settles(weir, "Bytes", 84);
        assert_eq!(client.get("/").status(), 200);
        settles(weir, "Bytes", 84);

        let mut client = Frames::connect(weir.proxy);
        client.send(frame(HEADERS, END_HEADERS, 1, &request("POST", "/", &[])));
        client.send(frame(DATA, 0, 1, b"hello"));
        client.send(frame(DATA, END_STREAM, 1, b" world"));
        assert_eq!(client.stream(1)[0].status(), 200);
        settles(weir, "Bytes", 73);
        client.send(frame(HEADERS, END_HEADERS, 3, &request("POST", "/", &[("content-length", "11")])));
        client.send(frame(DATA, END_STREAM, 3, b"hello world"));
        assert_eq!(client.stream(3)[0].status(), 200);
        assert_eq!(left(weir, "Bytes"), 62);
    });
}

#[test]
fn a_body_that_does_not_fit_is_not_read() {
    let upstream = Upstream::saying("stored");
    on_both(RULES, &upstream, |weir| {
        let asked = upstream.requests().len();
        let mut client = weir.connect();
        client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 101\r\nexpect: 100-continue\r\n\r\n");
        assert_eq!(client.response().status(), 429);
        assert_eq!((left(weir, "Bytes"), upstream.requests().len()), (100, asked));
        let body = "x".repeat(100);
        weir.connect().send(format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n{body}"));
        settles(weir, "Bytes", 0);
        let mut client = weir.connect();
        client.send(chunked("/"));
        assert_eq!(client.response().status(), 429, "a body of unknown length needs a token");
        let mut client = weir.connect();
        client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n");
        assert_eq!(client.response().status(), 200, "an empty one needs none");
    });
}

#[test]
fn a_body_of_unknown_length_takes_all_that_is_left_and_no_more() {
    let upstream = Upstream::saying("stored");
    on_both(RULES, &upstream, |weir| {
        let body = "x".repeat(0x60);
        let long = format!("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n60\r\n{body}\r\n0\r\n\r\n");
        let mut client = weir.connect();
        for then in [4, 0] {
            client.send(&long);
            assert_eq!(client.response().status(), 200);
            settles(weir, "Bytes", then);
        }
        client.send(&long);
        assert_eq!(client.response().status(), 429);
    });
}

#[test]
fn a_body_that_breaks_off_costs_what_has_come() {
    let held = Held::start();
    on_both(RULES, &held.upstream, |weir| {
        let mut client = Frames::connect(weir.proxy);
        client.send(frame(HEADERS, END_HEADERS, 1, &request("POST", "/", &[("content-length", "50")])));
        client.send(frame(DATA, 0, 1, b"hello"));
        held.has_one();
        assert_eq!(left(weir, "Bytes"), 50);
        client.send(frame(RST_STREAM, 0, 1, &8u32.to_be_bytes()));
        settles(weir, "Bytes", 95);

        let mut client = weir.connect();
        client.send("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n");
        held.has_one();
        drop(client);
        settles(weir, "Bytes", 90);
        assert_eq!(["charged", "refunded"].map(|result| settled(weir, "Bytes", result)), [1, 1]);
    });
}

#[test]
fn a_body_that_was_not_sent_costs_nothing() {
    let weir = setup(RULES).start(&format!("http://127.0.0.1:{}", free_port()));
    let mut client = weir.connect();
    client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello");
    assert_eq!(client.response().status(), 502);
    settles(&weir, "Bytes", 100);
}

#[test]
fn an_upgrade_costs_nothing_and_goes_through() {
    let upstream = Upstream::start(|wire, _| {
        wire.head();
        wire.send("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n");
        let bytes = wire.exactly(5);
        wire.send(bytes);
    });
    let weir = start(setup(RULES), &upstream);
    let mut client = weir.connect();
    client.send("GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n");
    assert_eq!(client.head().unwrap().status(), 101);
    client.send("hello");
    assert_eq!(client.exactly(5), b"hello");
    settles(&weir, "Bytes", 100);
}
