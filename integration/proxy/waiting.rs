//! Timeouts: what ends when nothing moves, and what does not.

use std::time::{Duration, Instant};

use weir::http::Timeouts;

use crate::support::server::{Setup, WIDE, Weir};
use crate::support::upstream::{Upstream, ok};
use crate::support::{NEVER, PATIENCE};

const SHORT: Duration = Duration::from_millis(150);

/// For what must not end although it takes longer: each step has all of this, even on a busy machine.
const AMPLE: Duration = Duration::from_secs(2);

/// The pause between two steps, and how many pauses are longer than [`AMPLE`].
const STEP: Duration = Duration::from_millis(250);
const STEPS: usize = 10;
/// No timeouts except those that `change` shortens.
fn weir(upstream: &Upstream, change: impl Fn(&mut Timeouts)) -> Weir {
    let mut setup = Setup::new(WIDE);
    setup.timeouts = Timeouts {
        first_byte: NEVER,
        header: NEVER,
        body: NEVER,
        idle: NEVER,
        tunnel: NEVER,
        min_rate: 0,
        connect: NEVER,
        response: NEVER,
        upstream_body: NEVER,
        upstream_idle: NEVER,
    };
    change(&mut setup.timeouts);
    setup.start(&format!("http://{}", upstream.address))
}

/// Not before its time. `start` is before the event that starts the timer: a busy machine may show the event to the test later.
/// No other timeout ends anything during a test.
#[track_caller]
fn check_took(start: Instant, expected: Duration) {
    let took = start.elapsed();
    assert!(took >= expected.mul_f64(0.9), "took {took:?}");
}

#[test]
fn a_client_that_says_nothing_is_closed() {
    let upstream = Upstream::saying("hello");
    let weir = weir(&upstream, |timeouts| timeouts.first_byte = SHORT);
    let start = Instant::now();
    weir.connect().expect_end();
    check_took(start, SHORT);
}

#[test]
fn a_head_that_trickles_is_closed() {
    let upstream = Upstream::saying("hello");
    let weir = weir(&upstream, |timeouts| timeouts.header = SHORT * 2);
    for is_first in [true, false] {
        let mut client = weir.connect();
        if !is_first {
            assert_eq!(client.get("/").text(), "hello");
        }
        let start = Instant::now();
        let mut trickling = client.stream.try_clone().unwrap();
        let trickle = std::thread::spawn(move || {
            use std::io::Write;
            for byte in b"GET / HTTP/1.1\r\nhost: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" {
                if trickling.write_all(&[*byte]).is_err() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        client.expect_end();
        check_took(start, SHORT * 2);
        trickle.join().unwrap();
    }
}

#[test]
fn an_idle_connection_is_closed_later_than_a_slow_head() {
    let upstream = Upstream::saying("hello");
    let weir = weir(&upstream, |timeouts| {
        timeouts.header = SHORT;
        timeouts.idle = SHORT * 3;
    });
    let mut client = weir.connect();
    let start = Instant::now();
    client.get("/");
    client.expect_end();
    check_took(start, SHORT * 3);
}

#[test]
fn a_mute_upstream_is_a_504() {
    let upstream = Upstream::start(|wire, _| {
        wire.request();
        wire.expect_end();
    });
    let weir = weir(&upstream, |timeouts| timeouts.response = SHORT);
    let mut client = weir.connect();
    for _ in 0..2 {
        let start = Instant::now();
        let response = client.get("/");
        check_took(start, SHORT);
        assert_eq!(response.status(), 504);
        assert!(response.text().contains("did not respond in time"), "{}", response.text());
    }
    assert_eq!(weir.metric("weir_upstream_errors_total{reason=\"response_timeout\"}"), 2);
}

#[test]
fn an_upload_may_take_longer_than_the_response() {
    let upstream = Upstream::saying("hello");
    let weir = weir(&upstream, |timeouts| timeouts.response = AMPLE);
    let mut client = weir.connect();
    client.send(format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {STEPS}\r\n\r\n"));
    for _ in 0..STEPS {
        std::thread::sleep(STEP);
        client.send("x");
    }
    assert_eq!(client.response().text(), "hello");
}

#[test]
fn an_upload_that_stops_is_a_408() {
    let upstream = Upstream::start(|wire, _| {
        wire.head();
        wire.exactly(3);
        wire.expect_end();
    });
    let weir = weir(&upstream, |timeouts| timeouts.body = SHORT);
    let mut client = weir.connect();
    let start = Instant::now();
    client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 8\r\n\r\nabc");
    let response = client.response();
    check_took(start, SHORT);
    assert_eq!((response.status(), response.header("connection")), (408, Some("close")));
    client.expect_end();
    assert_eq!(weir.metric("weir_http_listener_limits_total{limit=\"body_timeout\"}"), 1);
}

#[test]
fn an_upload_to_the_built_in_upstream_that_stops_is_a_408() {
    let mut setup = Setup::new(WIDE);
    setup.timeouts.body = SHORT;
    let weir = setup.start("echo");
    let mut client = weir.connect();
    client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 8\r\n\r\nabc");
    assert_eq!(client.response().status(), 408);
    client.expect_end();
    assert_eq!(weir.metric("weir_http_listener_limits_total{limit=\"body_timeout\"}"), 1);
}

#[test]
fn a_response_that_stops_is_cut_off() {
    let upstream = Upstream::start(|wire, _| {
        wire.request();
        wire.send("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc");
        wire.expect_end();
    });
    let weir = weir(&upstream, |timeouts| timeouts.upstream_body = SHORT);
    let mut client = weir.connect();
    let start = Instant::now();
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    client.head();
    client.exactly(3);
    client.expect_end();
    check_took(start, SHORT);
}

#[test]
fn a_response_that_moves_may_take_its_time() {
    let upstream = Upstream::start(|wire, _| {
        wire.request();
        wire.send(format!("HTTP/1.1 200 OK\r\ncontent-length: {STEPS}\r\n\r\n"));
        for _ in 0..STEPS {
            std::thread::sleep(STEP);
            wire.send("x");
        }
        wire.request();
    });
    let weir = weir(&upstream, |timeouts| {
        timeouts.body = AMPLE;
        timeouts.upstream_body = AMPLE;
        timeouts.response = AMPLE;
    });
    assert_eq!(weir.connect().get("/").text(), "x".repeat(STEPS));
}

#[test]
fn an_idle_connection_to_the_upstream_is_closed() {
    let (told, ended) = std::sync::mpsc::channel();
    let upstream = Upstream::start(move |wire, _| {
        wire.request();
        wire.send(ok("hello"));
        wire.expect_end();
        told.send(()).unwrap();
    });
    let weir = weir(&upstream, |timeouts| timeouts.upstream_idle = SHORT);
    let start = Instant::now();
    weir.connect().get("/");
    ended.recv_timeout(PATIENCE).unwrap();
    check_took(start, SHORT);
}
