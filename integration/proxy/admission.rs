//! Bounds on an address' connections and concurrent requests, and on slow readers.

use std::num::NonZeroU32;

use weir::http::ConnectionLimits;
use weir::message::client_address::TrustedProxies;

use super::upstream_http2::{Http2Upstream, say};
use crate::support::becomes;
use crate::support::frames::{Frames, RST_STREAM, SETTINGS, frame};
use crate::support::server::{Setup, WIDE};
use crate::support::upstream::{Upstream, ok};
use crate::support::weir::Weir as Process;

fn limited(trusted: &[&str]) -> Setup {
    let mut setup = Setup::new(WIDE);
    let exempt = TrustedProxies::new(trusted.iter().map(|network| network.parse().unwrap()).collect());
    setup.connections = ConnectionLimits { per_address: NonZeroU32::new(2), exempt, ..ConnectionLimits::default() };
    setup
}

#[test]
fn an_address_that_has_its_share_gets_no_more_until_it_gives_some_back() {
    let weir = limited(&[]).start("echo");
    let (mut first, mut second) = (weir.connect(), weir.connect());
    assert_eq!([first.get("/").status(), second.get("/").status()], [200, 200]);
    weir.connect().expect_end();
    // Counted after the connection is closed.
    becomes("a rejection is counted", 1, || weir.metric("weir_http_connections_rejected_total{reason=\"address\"}"));
    assert_eq!(first.get("/").status(), 200, "those who are in stay");
    drop(second);
    becomes("the share is given back", 1, || weir.metric("weir_http_connections"));
    assert_eq!(weir.connect().get("/").status(), 200);
}

#[test]
fn a_trusted_proxy_is_exempt() {
    let weir = limited(&["127.0.0.0/8"]).start("echo");
    let mut connections: Vec<_> = (0..5).map(|_| weir.connect()).collect();
    for connection in &mut connections {
        assert_eq!(connection.get("/").status(), 200);
    }
}

/// The error code of a stream that may be retried (RFC 9113 section 7).
const REFUSED_STREAM: u32 = 7;

const CANCEL: u32 = 8;

#[test]
fn an_address_has_its_share_of_streams_over_all_its_connections() {
    let upstream = Upstream::start(|wire, _| {
        wire.request();
        wire.expect_end();
    });
    let mut setup = Setup::new(WIDE);
    setup.connections = ConnectionLimits { streams_per_address: NonZeroU32::new(3), ..ConnectionLimits::default() };
    let weir = setup.start(&format!("http://{}", upstream.address));
    let in_flight = || weir.metric("weir_http_requests_in_flight");
    let (mut first, mut second) = (Frames::connect(weir.proxy), Frames::connect(weir.proxy));
    first.get(1, "/");
    first.get(3, "/");
    second.get(1, "/");
    becomes("three requests are under way", 3, in_flight);
    second.get(3, "/");
    let refused = second.stream(3);
    assert_eq!((refused.len(), refused[0].kind, refused[0].error()), (1, RST_STREAM, REFUSED_STREAM));
    assert_eq!(weir.metric("weir_http_listener_limits_total{limit=\"streams\"}"), 1);
    first.send(frame(RST_STREAM, 0, 1, &CANCEL.to_be_bytes()));
    becomes("one has ended", 2, in_flight);
    second.get(5, "/");
    becomes("another has its place", 3, in_flight);
    drop((first, second));
}

/// A client that gives no window, so that every response waits for it.
fn unwilling(address: std::net::SocketAddr, requests: u32) -> Frames {
    let mut client = Frames::connect(address);
    client.send(frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]));
    (0..requests).for_each(|number| client.get(2 * number + 1, "/"));
    client
}

#[test]
fn small_responses_that_nobody_reads_are_bounded_too() {
    let mut setup = Setup::new(WIDE);
    setup.connections = ConnectionLimits { response_memory: 4 * 128 * 1024, ..ConnectionLimits::default() };
    let weir = setup.start("echo");
    let slow = unwilling(weir.proxy, 10);
    becomes("six are broken off", 6, || weir.metric("weir_http_listener_limits_total{limit=\"slow_readers\"}"));
    assert_eq!(weir.metric("weir_http_requests_in_flight"), 4);
    drop(slow);
    becomes("no request waits", 0, || weir.metric("weir_http_requests_in_flight"));
    let mut client = Frames::connect(weir.proxy);
    client.get(1, "/");
    assert_eq!(client.stream(1)[0].status(), 200);
}

/// Waiting responses take less than is counted for them. `most` of them fit into 8 MiB.
#[track_caller]
fn check_memory(upstream: &str, most: u64) {
    let flags = ["--upstream", upstream, "--workers", "1", "--response-memory", "8388608"];
    let weir = Process::serve(WIDE, &flags);
    let before = weir.resident();
    let slow: Vec<Frames> = (0..2).map(|_| unwilling(weir.proxy, 100)).collect();
    becomes("the others are broken off", 200 - most, || {
        weir.metric("weir_http_listener_limits_total{limit=\"slow_readers\"}")
    });
    let grown = weir.resident().saturating_sub(before);
    assert!(grown < 16 * 1024, "memory grew by {grown} KiB");
    drop(slow);
}

#[test]
fn responses_that_wait_take_no_more_memory_than_they_may() {
    let body = ok(&"x".repeat(1024 * 1024));
    let upstream = Upstream::answering(move |_| body.clone());
    check_memory(&format!("http://{}", upstream.address), 64);
}

#[test]
fn nor_do_those_of_http2_upstreams() {
    let upstream = Http2Upstream::start(|_, _, respond| async move { say(respond, "x".repeat(512 * 1024)) });
    check_memory(&upstream.url(), 21);
}
