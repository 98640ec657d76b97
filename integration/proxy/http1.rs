//! HTTP/1 clients: what keeps their connections, hints, and what they can pile up.

use std::io::Write;
use std::sync::mpsc;

use bytes::Bytes;
use http::Response;
use parking_lot::Mutex;

use super::upstream_http2::Http2Upstream;
use crate::support::PATIENCE;
use crate::support::server::{Setup, WIDE};
use crate::support::upstream::{Upstream, ok};
use crate::support::weir::Weir;
use crate::support::wire::Message;

const NONE: &str = "limits: { None: { by: global, deny: true } }";

#[test]
fn hints_arrive_before_the_response() {
    let (arrived, waiting) = mpsc::channel();
    let waiting = Mutex::new(waiting);
    let upstream = Upstream::start(move |wire, _| {
        while wire.request().is_some() {
            for _ in 0..2 {
                wire.send("HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n");
                waiting.lock().recv_timeout(PATIENCE).unwrap();
            }
            wire.send(ok("hello"));
        }
    });
    let weir = Setup::new(WIDE).start(&format!("http://{}", upstream.address));
    let mut client = weir.connect();
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    for _ in 0..2 {
        let hint = client.response();
        assert_eq!((hint.status(), hint.header("link")), (103, Some("</a>")));
        arrived.send(()).unwrap();
    }
    assert_eq!(client.response().text(), "hello");
}

/// A denied request's body is not read. If it is there and short, it is discarded.
#[test]
fn a_short_body_that_nobody_wants_costs_no_connection() {
    let weir = Setup::new(NONE).start("http://127.0.0.1:9");
    let chunks = |count: usize, length: usize| format!("{length:x}\r\n{}\r\n", "x".repeat(length)).repeat(count);
    for (what, head, body, stays) in [
        ("no body", "content-length: 0", String::new(), true),
        ("a short one", "content-length: 900", "x".repeat(900), true),
        ("a short one in chunks", "transfer-encoding: chunked", chunks(3, 300) + "0\r\n\r\n", true),
        ("trailers", "transfer-encoding: chunked", chunks(2, 300) + "0\r\nx-sum: 1\r\n\r\n", true),
        ("one byte too few", "content-length: 900", "x".repeat(899), false),
        ("no last chunk", "transfer-encoding: chunked", chunks(3, 300), false),
        ("one of more than 64 KiB", "transfer-encoding: chunked", chunks(70, 1_000) + "0\r\n\r\n", false),
    ] {
        let mut client = weir.connect();
        // The system delivers what is written at once up to 64 KiB as one.
        let _ = client.stream.write_all(format!("POST / HTTP/1.1\r\nhost: a\r\n{head}\r\n\r\n{body}").as_bytes());
        let response = client.response();
        let closes = response.header("connection") == Some("close");
        assert_eq!((response.status(), closes), (429, !stays), "{what}");
        if stays {
            assert_eq!(client.get("/").status(), 429, "after {what}");
        }
    }
}

/// The process stands still until both have sent, so that it finds everything at once.
#[test]
fn a_client_that_waits_for_no_answer_leaves_others_their_turn() {
    let (sent, burst) = (300, 1_000);
    let weir = Weir::serve("limits: { Each: { by: global, burst: 1000 } }", &["--workers", "1"]);
    let (mut eager, mut patient) = (weir.connect(), weir.connect());
    for client in [&mut eager, &mut patient] {
        assert_eq!(client.get("/").status(), 200);
    }
    let request = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";
    weir.signal("STOP");
    eager.send(request.repeat(sent));
    patient.send(request);
    weir.signal("CONT");
    let place =
        |answer: Message| burst - answer.header("ratelimit").unwrap()["\"Each\";r=".len()..].parse::<usize>().unwrap();
    let patients = place(patient.response());
    assert!(patients < sent / 2, "it came {patients}th");
    let eagers: Vec<usize> = (0..sent).map(|_| place(eager.response())).collect();
    assert_eq!(eagers, (3..).filter(|place| *place != patients).take(sent).collect::<Vec<_>>());
}

#[test]
fn an_old_client_keeps_its_connection_after_a_response_without_a_body() {
    let upstream = Http2Upstream::start(|_, _, mut respond| async move {
        // The end comes with a frame of its own, so the response's head does not tell that there is no body.
        let mut stream = respond.send_response(Response::new(()), false).unwrap();
        stream.send_data(Bytes::new(), true).unwrap();
    });
    let weir = upstream.weir();
    let mut client = weir.connect();
    for _ in 0..2 {
        client.send("HEAD / HTTP/1.0\r\nhost: a\r\nconnection: keep-alive\r\n\r\n");
        let response = client.head().unwrap();
        assert_eq!((response.status(), response.header("connection")), (200, Some("keep-alive")));
    }
}

/// Idle connections keep neither a long target nor the bytes that it came in: with either, these would keep 3 MB.
#[test]
fn long_targets_leave_no_memory_behind() {
    let flags = ["--workers", "1", "--max-connections-per-address", "0"];
    let weir = Weir::serve(NONE, &flags);
    let mut clients: Vec<_> = (0..400).map(|_| weir.connect()).collect();
    let mut ask = |target: &str| clients.iter_mut().for_each(|client| assert_eq!(client.get(target).status(), 429));
    ask("/");
    let before = weir.resident();
    ask(&format!("/{}", "x".repeat(8_000)));
    let grown = weir.resident().saturating_sub(before);
    assert!(grown < 1_500, "memory grew by {grown} KiB");
}
