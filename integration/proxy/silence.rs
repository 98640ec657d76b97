//! Silent clients and upstreams: the bounds on each, the blame, and the exceptions.
//!
//! No test waits for a result by sleeping: that a bound has passed is known from another exchange, which began later and has reached it.

use std::io::Write;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use parking_lot::Mutex;
use weir::http::{Routes, Timeouts, UpstreamOptions};

use super::upstream_http2::Http2Upstream;
use crate::support::becomes;
use crate::support::frames::{DATA, END_HEADERS, Frames, HEADERS, RST_STREAM, frame, request};
use crate::support::server::{Setup, WIDE, Weir};
use crate::support::upstream::{Upstream, ok};
use crate::support::wire::Wire;

const SHORT: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_mins(1);

fn setup(change: impl Fn(&mut Timeouts)) -> Setup {
    let mut setup = Setup::new(WIDE);
    setup.timeouts = Timeouts { body: LONG, min_rate: 0, response: LONG, upstream_body: LONG, ..Timeouts::default() };
    change(&mut setup.timeouts);
    setup
}

fn blamed(weir: &Weir) -> [u64; 3] {
    [
        "weir_http_listener_limits_total{limit=\"body_timeout\"}",
        "weir_upstream_errors_total{reason=\"body_timeout\"}",
        "weir_upstream_errors_total{reason=\"response_timeout\"}",
    ]
    .map(|series| weir.metric(series))
}

/// An upstream that begins a response of the type in the path, and continues it when told.
fn pausing() -> (Upstream, Sender<()>) {
    let (go, told) = channel();
    let told = Arc::new(Mutex::new(told));
    let upstream = Upstream::start(move |wire, _| {
        while let Some(head) = wire.request() {
            let kind = head.start.split(' ').nth(1).unwrap().trim_start_matches('/').replace('_', "; ");
            let length = "transfer-encoding: chunked";
            wire.send(format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\n{length}\r\n\r\n3\r\none\r\n"));
            if told.lock().recv().is_err() {
                return;
            }
            wire.send("3\r\ntwo\r\n0\r\n\r\n");
        }
    });
    (upstream, go)
}

/// Begins a response and reads its first part.
fn begin(weir: &Weir, kind: &str) -> Wire {
    let mut client = weir.connect();
    client.send(format!("GET /{kind} HTTP/1.1\r\nhost: a\r\n\r\n"));
    assert_eq!(client.head().unwrap().status(), 200);
    assert_eq!((client.line(), client.line()), ("3".into(), "one".into()));
    client
}

fn finish(client: &mut Wire) {
    let rest: Vec<String> = (0..4).map(|_| client.line()).collect();
    assert_eq!(rest, ["3", "two", "0", ""]);
}

/// Waits until a client's silence has been punished that begins now.
fn outlast_the_clients_bound(weir: &Weir) {
    let mut idle = weir.connect();
    idle.send("POST /text/plain HTTP/1.1\r\nhost: a\r\ncontent-length: 8\r\n\r\nabc");
    assert_eq!(idle.response().status(), 408);
}

#[test]
fn the_bound_on_silent_clients_does_not_end_an_upstreams_response() {
    let (upstream, go) = pausing();
    let weir = setup(|timeouts| timeouts.body = SHORT).start(&format!("http://{}", upstream.address));
    let mut client = begin(&weir, "text/plain");
    let uploads = setup(|timeouts| timeouts.body = SHORT).start("echo");
    outlast_the_clients_bound(&uploads);
    go.send(()).unwrap();
    finish(&mut client);
    assert_eq!(blamed(&weir), [0, 0, 0]);
}

#[test]
fn an_upstream_that_falls_silent_is_cut_off_and_blamed() {
    let (upstream, _go) = pausing();
    let weir = setup(|timeouts| timeouts.upstream_body = SHORT).start(&format!("http://{}", upstream.address));
    begin(&weir, "text/plain").expect_end();
    assert_eq!(blamed(&weir), [0, 1, 0]);
    let mut client = Frames::connect(weir.proxy);
    client.get(1, "/text/plain");
    let frames = client.stream(1);
    assert_eq!((frames[0].status(), &frames[1].payload[..]), (200, &b"one"[..]));
    assert_eq!((frames[2].kind, frames[2].error()), (RST_STREAM, 2), "INTERNAL_ERROR");
    assert_eq!(blamed(&weir), [0, 2, 0]);
    becomes("nothing is in flight", 0, || weir.metric("weir_http_requests_in_flight"));
}

#[test]
fn an_http2_upstream_that_falls_silent_is_cut_off_and_blamed() {
    let (_go, told) = tokio::sync::watch::channel(());
    let upstream = silent_after_headers("text/plain", told);
    let weir = setup(|timeouts| timeouts.upstream_body = SHORT).start(&upstream.url());
    let mut client = weir.connect();
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    assert_eq!(client.head().unwrap().status(), 200);
    client.expect_end();
    assert_eq!(blamed(&weir), [0, 1, 0]);
}

/// An HTTP/2 server whose response has only headers until the channel changes.
fn silent_after_headers(kind: &'static str, told: tokio::sync::watch::Receiver<()>) -> Http2Upstream {
    Http2Upstream::start(move |_, request, mut respond| {
        let mut told = told.clone();
        async move {
            let response = Response::builder().header("content-type", kind).body(()).unwrap();
            let mut body = respond.send_response(response, false).unwrap();
            let _ = told.changed().await;
            let _ = body.send_data(Bytes::from_static(b"end"), true);
            drop(request);
        }
    })
}

#[test]
fn event_streams_and_grpc_may_be_silent_and_nothing_else() {
    for (kind, may_be) in [
        ("text/event-stream", true),
        ("Text/Event-Stream_charset=utf-8", true),
        ("application/grpc", true),
        ("application/grpc-web+proto", true),
        ("text/event-streams", false),
        ("application/json", false),
    ] {
        let (upstream, go) = pausing();
        let bounds = |timeouts: &mut Timeouts| (timeouts.body, timeouts.upstream_body) = (SHORT, SHORT);
        let weir = setup(bounds).start(&format!("http://{}", upstream.address));
        let mut client = begin(&weir, kind);
        let (other, _stopped) = pausing();
        let clock = setup(bounds).start(&format!("http://{}", other.address));
        begin(&clock, "text/plain").expect_end();
        if may_be {
            go.send(()).unwrap();
            finish(&mut client);
        } else {
            client.expect_end();
        }
        assert_eq!(blamed(&weir), [0, u64::from(!may_be), 0], "{kind}");
    }
}

/// A call in both directions may be silent in both, even beyond the grace of `--min-rate`.
#[test]
fn a_grpc_call_may_be_silent_in_both_directions() {
    let (go, told) = tokio::sync::watch::channel(());
    let upstream = silent_after_headers("application/grpc", told);
    let mut setup = setup(|timeouts| (timeouts.body, timeouts.upstream_body) = (SHORT, SHORT));
    setup.timeouts.min_rate = 240;
    let weir = setup.start(&upstream.url());
    let mut client = Frames::connect(weir.proxy);
    let head = request("POST", "/watch", &[("content-type", "application/grpc"), ("te", "trailers")]);
    client.send(frame(HEADERS, END_HEADERS, 1, &head));
    assert_eq!(client.next_of(HEADERS).status(), 200);
    let mut slow = Setup::new(WIDE);
    slow.timeouts.body = LONG;
    outlast_the_clients_bound(&slow.start("echo"));
    go.send(()).unwrap();
    let frames = client.stream(1);
    assert_eq!(frames.iter().map(|frame| frame.kind).collect::<Vec<_>>(), [DATA], "{frames:?}");
}

#[test]
fn an_event_stream_ends_for_a_client_that_does_not_read() {
    let upstream = Upstream::start(|wire, _| {
        wire.request();
        wire.send("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n");
        while wire.stream.write_all(&[b'x'; 16 * 1024]).is_ok() {}
    });
    let weir = setup(|timeouts| timeouts.body = SHORT).start(&format!("http://{}", upstream.address));
    let mut client = weir.connect();
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    becomes("it is closed", 1, || blamed(&weir)[0]);
    becomes("nothing is in flight", 0, || weir.metric("weir_http_requests_in_flight"));
    assert_eq!(blamed(&weir), [1, 0, 0]);
}

/// The client would send more, but the upstream takes nothing.
#[test]
fn an_upload_that_the_upstream_does_not_take_is_a_504() {
    let (stop, told) = channel::<()>();
    let told = Mutex::new(told);
    let upstream = Upstream::start(move |wire, _| {
        wire.head();
        let _ = told.lock().recv();
    });
    let bounds = |timeouts: &mut Timeouts| (timeouts.body, timeouts.response) = (SHORT, SHORT);
    let weir = setup(bounds).start(&format!("http://{}", upstream.address));
    let mut client = weir.connect();
    let mut uploading = client.stream.try_clone().unwrap();
    let upload = std::thread::spawn(move || {
        let _ = uploading.write_all(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000000\r\n\r\n");
        while uploading.write_all(&[b'x'; 16 * 1024]).is_ok() {}
    });
    assert_eq!(client.response().status(), 504);
    assert_eq!(blamed(&weir), [0, 0, 1]);
    drop((client, stop));
    upload.join().unwrap();
}

/// The time that a client takes for its body is not its upstream's.
#[test]
fn a_slow_upload_is_no_slow_upstream() {
    let upstream = Upstream::start(|wire, _| {
        while let Some(head) = wire.request() {
            if head.start.starts_with("GET /mute") {
                return wire.expect_end();
            }
            wire.send(ok("hello"));
        }
    });
    let mut options = UpstreamOptions::new(Routes::parse(&[format!("http://{}", upstream.address)]).unwrap());
    options.try_timeout = Some(2 * SHORT);
    let weir = setup(|_| {}).start_with(options);
    let mut client = weir.connect();
    client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 8\r\n\r\nabc");
    for _ in 0..2 {
        assert_eq!(weir.connect().get("/mute").status(), 504);
    }
    client.send("defgh");
    assert_eq!(client.response().text(), "hello");
}

/// The next headers do not forgive a response that was not completed.
#[test]
fn an_upstream_whose_responses_are_incomplete_is_ejected() {
    for closes in [true, false] {
        let bad = Upstream::start(move |wire, _| {
            if wire.request().is_some() {
                wire.send("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc");
                if !closes {
                    wire.expect_end();
                }
            }
        });
        let good = Upstream::saying("whole");
        let weir = setup(|timeouts| timeouts.upstream_body = SHORT)
            .start(&format!("http://{},http://{}", bad.address, good.address));
        let ask = || {
            let mut client = weir.connect();
            client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
            let is_whole = client.head().unwrap().header("content-length") == Some("5");
            client.exactly(if is_whole { 5 } else { 3 });
            if !is_whole {
                client.expect_end();
            }
            is_whole
        };
        let whole = (0..14).filter(|_| ask()).count();
        assert_eq!(whole, 14 - 5, "it has five chances");
        assert_eq!(weir.metric("weir_upstream_ejections_total"), 1);
    }
}

/// The upstream sends 16 of them, which takes five times the timeout.
#[test]
fn interim_responses_give_an_upstream_no_more_time() {
    let upstream = Upstream::start(|wire, _| {
        wire.request();
        for _ in 0..16 {
            if wire.stream.write_all(b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n").is_err() {
                return;
            }
            std::thread::sleep(SHORT / 3);
        }
        let _ = wire.stream.write_all(ok("late").as_bytes());
    });
    let weir = setup(|timeouts| timeouts.response = SHORT).start(&format!("http://{}", upstream.address));
    let mut client = weir.connect();
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    let last = loop {
        let response = client.response();
        if response.status() != 103 {
            break response;
        }
    };
    assert_eq!((last.status(), blamed(&weir)), (504, [0, 0, 1]));
}
