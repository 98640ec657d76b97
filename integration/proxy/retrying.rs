//! Retries: requests that are repeated, and requests that must not be.

use std::time::Duration;

use weir::http::{Routes, UpstreamOptions};

use crate::support::server::{Setup, WIDE, Weir};
use crate::support::upstream::{Upstream, ok};
use crate::support::wire::Message;

/// A proxy in front of these upstreams, which it tries in order.
fn weir(upstreams: &[&Upstream], try_timeout: Option<Duration>) -> Weir {
    let urls: Vec<_> = upstreams.iter().map(|upstream| format!("http://{}", upstream.address)).collect();
    let routes = Routes::parse(&[urls.join(",")]).unwrap();
    Setup::new(WIDE).start_with(UpstreamOptions { try_timeout, ..UpstreamOptions::new(routes) })
}

/// Reads a request on each connection and closes it with this answer.
fn closing_with(answer: &'static str) -> Upstream {
    Upstream::start(move |wire, _| {
        wire.request();
        wire.send(answer);
    })
}

fn ask(weir: &Weir, method: &str) -> Message {
    let mut client = weir.connect();
    let body = if matches!(method, "POST" | "PUT") { "content-length: 2\r\n\r\nhi" } else { "\r\n" };
    client.send(format!("{method} / HTTP/1.1\r\nhost: a\r\n{body}"));
    client.response()
}

#[test]
fn a_request_that_was_sent_is_repeated_only_if_that_changes_nothing() {
    for (method, expected) in
        [("GET", 200), ("OPTIONS", 200), ("DELETE", 200), ("POST", 502), ("PUT", 502), ("PATCH", 502), ("BREW", 502)]
    {
        let (bad, good) = (closing_with(""), Upstream::saying("good"));
        let weir = weir(&[&bad, &good], None);
        assert_eq!(ask(&weir, method).status(), expected, "{method}");
        assert_eq!(bad.accepted(), 1, "{method}");
        assert_eq!(good.requests().len(), usize::from(expected == 200), "{method}");
        assert_eq!(weir.metric("weir_upstream_retries_total"), u64::from(expected == 200), "{method}");
    }
}

#[test]
fn once_an_answer_has_begun_nothing_is_repeated() {
    for part in ["HTTP/1.1 200 OK\r\ncontent-le", "HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n", "SSH-2.0-x\r\n\r\n"] {
        let (bad, good) = (closing_with(part), Upstream::saying("good"));
        assert_eq!(ask(&weir(&[&bad, &good], None), "GET").status(), 502, "{part}");
        assert_eq!(good.requests().len(), 0, "{part}");
    }
}

#[test]
fn a_request_is_sent_twice_at_most() {
    let bad = [closing_with(""), closing_with(""), closing_with("")];
    let good = Upstream::saying("good");
    let weir = weir(&[&bad[0], &bad[1], &bad[2], &good], None);
    assert_eq!(ask(&weir, "GET").status(), 502);
    assert_eq!(bad.iter().map(Upstream::accepted).sum::<usize>(), 2);
    assert_eq!(good.accepted(), 0);
    assert_eq!(weir.metric("weir_upstream_errors_total{reason=\"closed\"}"), 2);
}

#[test]
fn an_idle_connection_that_closes_on_the_next_request_is_no_loss() {
    for (method, expected) in [("GET", 200), ("POST", 502)] {
        // Answers once on each connection, and reads another request before it closes.
        let upstream = Upstream::start(|wire, _| {
            wire.request();
            wire.send(ok("once"));
            wire.request();
        });
        let weir = weir(&[&upstream], None);
        assert_eq!(ask(&weir, method).text(), "once");
        assert_eq!(ask(&weir, method).status(), expected, "{method}");
        assert_eq!(upstream.accepted(), if expected == 200 { 2 } else { 1 }, "{method}");
    }
}

#[test]
fn a_server_that_takes_too_long_is_given_up_for_another() {
    let slow = Upstream::start(|wire, _| {
        wire.request();
        wire.expect_end();
    });
    for (method, expected) in [("GET", 200), ("POST", 504)] {
        let good = Upstream::saying("good");
        let weir = weir(&[&slow, &good], Some(Duration::from_millis(100)));
        let response = ask(&weir, method);
        assert_eq!(response.status(), expected, "{method} {}", response.text());
        assert_eq!(weir.metric("weir_upstream_errors_total{reason=\"response_timeout\"}"), 1);
    }
}

#[test]
fn a_request_that_is_sent_twice_is_charged_once() {
    let (bad, good) = (closing_with(""), Upstream::saying("good"));
    let limits = "limits: { Few: { by: global, burst: 5, count: 5, period: 1h } }";
    let urls = format!("http://{},http://{}", bad.address, good.address);
    let weir = Setup::new(limits).start(&urls);
    let response = ask(&weir, "GET");
    assert_eq!((response.status(), bad.accepted()), (200, 1));
    let left = response.header("ratelimit").unwrap();
    assert!(left.contains("r=4"), "{left}");
}
