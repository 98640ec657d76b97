//! Upstreams that are down, break off or misbehave, and whether their connections are used again.

use crate::support::server::{Setup, WIDE, Weir};
use crate::support::upstream::{Upstream, ok};
use crate::support::wire::Message;
use crate::support::{PATIENCE, becomes, eventually};
use std::net::TcpListener;

fn weir(upstream: &Upstream) -> Weir {
    Setup::new(WIDE).start(&format!("http://{}", upstream.address))
}

/// The proxy's own problem document, which names no address, with the headers of the charged limit.
#[track_caller]
fn check_problem(response: &Message, status: u16, part: &str) {
    assert_eq!(response.status(), status, "{}", response.text());
    assert_eq!(response.header("content-type"), Some("application/problem+json"));
    assert!(response.text().contains(part) && !response.text().contains("127.0.0.1"), "{}", response.text());
    assert!(response.header("ratelimit").is_some(), "the request was charged");
}

#[test]
fn an_upstream_that_refuses_is_a_502() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let weir = Setup::new(WIDE).start(&format!("http://{free}"));
    let mut client = weir.connect();
    for _ in 0..2 {
        check_problem(&client.get("/"), 502, "cannot be reached");
    }
    assert_eq!(weir.metric("weir_upstream_errors_total{reason=\"connect\"}"), 2);
}

#[test]
fn an_upstream_that_closes_without_an_answer_is_a_502() {
    let upstream = Upstream::start(|wire, _| {
        wire.request();
    });
    let weir = weir(&upstream);
    let mut client = weir.connect();
    check_problem(&client.get("/"), 502, "closed the connection");
    assert_eq!(upstream.accepted(), 1, "a request that was sent is not sent again");
    assert_eq!(weir.metric("weir_upstream_errors_total{reason=\"closed\"}"), 1);
}

#[test]
fn an_upstream_that_speaks_no_http_is_a_502() {
    let upstream = Upstream::start(|wire, _| {
        wire.request();
        wire.send("220 mail.example ESMTP\r\n\r\n");
    });
    check_problem(&weir(&upstream).connect().get("/"), 502, "cannot be forwarded");
}

#[test]
fn an_upgrade_that_nobody_asked_for_is_a_502() {
    let upstream = Upstream::start(|wire, _| {
        wire.request();
        wire.send("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n");
        wire.request();
    });
    check_problem(&weir(&upstream).connect().get("/"), 502, "cannot be forwarded");
}

#[test]
fn an_upstream_that_closed_an_idle_connection_is_asked_on_another() {
    let (upstream, ended) = Upstream::closing(|_| Some(ok("once")));
    let weir = weir(&upstream);
    let mut client = weir.connect();
    for number in 1..=5 {
        client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nhi");
        assert_eq!(client.response().text(), "once");
        assert_eq!(upstream.accepted(), number);
        // The proxy sees the end of the connection before the next request, so it knows that it sent nothing on it.
        ended.recv_timeout(PATIENCE).unwrap();
    }
}

#[test]
fn a_connection_is_used_again_only_after_a_clean_exchange() {
    let cases: [(&str, &str); 4] = [
        ("said to be the last", "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok"),
        ("followed by unrequested bytes", "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok0123"),
        ("of HTTP/1.0", "HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok"),
        (
            "a second response",
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil",
        ),
    ];
    for (what, answer) in cases {
        let upstream = Upstream::answering(|_| answer.to_owned());
        let weir = weir(&upstream);
        let mut client = weir.connect();
        assert_eq!(client.get("/").text(), "ok", "{what}");
        assert_eq!(client.get("/").text(), "ok", "{what}");
        assert_eq!(upstream.accepted(), 2, "{what}");
    }
}

#[test]
fn an_answer_before_the_end_of_the_request_costs_the_upstreams_connection() {
    let upstream = Upstream::start(|wire, number| {
        wire.head();
        wire.send(ok(&number.to_string()));
        wire.expect_end();
    });
    let weir = weir(&upstream);
    for number in ["0", "1"] {
        let mut client = weir.connect();
        client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\nonly this");
        assert_eq!(client.response().text(), number);
    }
}

#[test]
fn a_response_that_breaks_off_does_not_look_whole() {
    let upstream =
        Upstream::answering(|_| "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\nx".to_owned());
    let weir = weir(&upstream);
    let mut client = weir.connect();
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    assert_eq!(client.head().unwrap().status(), 200);
    assert_eq!((client.line(), client.line()), ("3".into(), "abc".into()));
    client.expect_end();
    assert_eq!(weir.metric("weir_upstream_errors_total{reason=\"body\"}"), 1);
}

#[test]
fn a_client_that_goes_away_costs_the_upstreams_connection() {
    let (told, ended) = std::sync::mpsc::channel();
    let upstream = Upstream::start(move |wire, _| {
        wire.request();
        wire.expect_end();
        told.send(()).unwrap();
    });
    let weir = weir(&upstream);
    let mut client = weir.connect();
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    eventually("the request arrives", || if upstream.accepted() == 1 { Ok(()) } else { Err(()) });
    drop(client);
    ended.recv_timeout(PATIENCE).unwrap();
    becomes("nothing is in flight", 0, || weir.metric("weir_http_requests_in_flight"));
}

#[test]
fn a_body_that_is_no_body_is_the_clients_mistake() {
    let upstream = Upstream::start(|wire, _| {
        wire.head();
        wire.expect_end();
    });
    let weir = weir(&upstream);
    let mut client = weir.connect();
    client.send("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n");
    check_problem(&client.response(), 400, "body");
    client.expect_end();
    assert_eq!(weir.metric("weir_upstream_errors_total{reason=\"closed\"}"), 0);
}
