//! Requests and responses that the proxy forwards unchanged, and its changes to others.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::support::eventually;
use crate::support::server::{Setup, WIDE, Weir};
use crate::support::upstream::{Upstream, ok};
use crate::support::wire::Message;

fn weir(upstream: &Upstream) -> Weir {
    Setup::new(WIDE).start(&format!("http://{}", upstream.address))
}

fn lines(message: &Message) -> Vec<String> {
    let mut lines: Vec<_> = message.headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    lines.sort();
    lines
}

#[test]
fn the_upstream_sees_the_request_and_who_sent_it_and_nothing_of_the_hop() {
    let upstream = Upstream::saying("hello");
    let weir = weir(&upstream);
    let mut client = weir.connect();
    client.send(
        "PATCH //a/../b%2f%41?c=%20&d HTTP/1.1\r\nHost: A.example:81\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\n\
         Upgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\nTE: trailers\r\nKeep-Alive: timeout=9\r\nX-Forwarded-For: 9.9.9.9\r\n\
         X-Forwarded-Proto: https\r\nForwarded: for=9.9.9.9\r\nProxy-Authorization: Basic eDp5\r\nX-Twice: 1\r\n\
         X-Twice: 2\r\nAuthorization: Bearer t\r\nContent-Length: 3\r\n\r\nabc",
    );
    assert_eq!(client.response().text(), "hello");
    let request = &upstream.requests()[0];
    assert_eq!(request.start, "PATCH //a/../b%2f%41?c=%20&d HTTP/1.1");
    assert_eq!(request.text(), "abc");
    assert_eq!(
        lines(request),
        [
            "authorization: Bearer t",
            "content-length: 3",
            "host: A.example:81",
            "via: 1.1 weir",
            "x-forwarded-for: 127.0.0.1",
            "x-forwarded-host: A.example:81",
            "x-forwarded-proto: http",
            "x-twice: 1",
            "x-twice: 2",
        ]
    );
}

#[test]
fn a_trusted_peer_is_believed() {
    let upstream = Upstream::saying("hello");
    let mut setup = Setup::new(WIDE);
    setup.trusted = vec!["127.0.0.0/8"];
    let weir = setup.start(&format!("http://{}", upstream.address));
    let mut client = weir.connect();
    client.send("GET / HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 9.9.9.9\r\nx-forwarded-proto: https\r\n\r\n");
    client.response();
    let request = &upstream.requests()[0];
    assert_eq!(request.header("x-forwarded-for"), Some("9.9.9.9, 127.0.0.1"));
    assert_eq!(request.header("x-forwarded-proto"), Some("https"));
}

/// A limit must not go by what an upstream does not get from this client.
#[test]
fn the_rules_see_the_claims_of_trusted_peers_only() {
    const LIMITS: &str = "limits:
  RealAddress: { by: { header: x-real-ip }, match: { path: /address }, count: 1, period: 1h, missing: shared }
  Plain: { by: global, match: { path: /plain, headers: { x-forwarded-proto: { not: [https] } } }, count: 1, period: 1h }
  Entry: { by: { header: x-queue-entry }, match: { path: /entry }, count: 1, period: 1h, missing: shared }
";
    for (trusted, expected) in [(Vec::new(), [429, 429, 429]), (vec!["127.0.0.0/8"], [200, 200, 429])] {
        let upstream = Upstream::saying("hello");
        let mut setup = Setup::new(LIMITS);
        setup.trusted = trusted;
        let weir = setup.start(&format!("http://{}", upstream.address));
        let mut client = weir.connect();
        let mut ask = |path: &str, headers: &str| {
            client.send(format!("GET {path} HTTP/1.1\r\nhost: a\r\n{headers}\r\n"));
            client.response().status()
        };
        let last = [
            ("/address", ["x-real-ip: 192.0.2.1\r\n", "X-Real-IP: 192.0.2.2\r\n"]),
            ("/plain", ["", "X-Forwarded-Proto: https\r\n"]),
            ("/entry", ["x-queue-entry: 1\r\n", "X-Queue-Entry: 2\r\n"]),
        ]
        .map(|(path, [first, second])| {
            assert_eq!(ask(path, first), 200, "{path}");
            ask(path, second)
        });
        assert_eq!(last, expected);
    }
}

#[test]
fn the_client_sees_the_response_and_nothing_of_the_hop() {
    let upstream = Upstream::answering(|_| {
        "HTTP/1.1 201 Made\r\nconnection: x-hop\r\nx-hop: 1\r\nkeep-alive: timeout=5\r\nset-cookie: a\r\n\
         set-cookie: b\r\nserver: s\r\ndate: Thu, 01 Jan 1970 00:00:00 GMT\r\ncontent-length: 2\r\n\r\nok"
            .to_owned()
    });
    let weir = weir(&upstream);
    let response = weir.connect().get("/");
    assert_eq!((response.status(), response.text()), (201, "ok"));
    assert_eq!(
        lines(&response),
        [
            "content-length: 2",
            "date: Thu, 01 Jan 1970 00:00:00 GMT",
            "ratelimit-policy: \"Wide\";q=1000000;w=1",
            "ratelimit: \"Wide\";r=999999;t=1",
            "server: s",
            "set-cookie: a",
            "set-cookie: b",
        ]
    );
}

#[test]
fn an_absolute_target_counts_more_than_the_host_field() {
    let upstream = Upstream::saying("hello");
    let weir = weir(&upstream);
    let mut client = weir.connect();
    client.send("GET http://b.example/x?y HTTP/1.1\r\nhost: a.example\r\n\r\n");
    assert_eq!(client.response().status(), 200);
    let request = &upstream.requests()[0];
    assert_eq!((request.start.as_str(), request.header("host")), ("GET /x?y HTTP/1.1", Some("b.example")));
}

#[test]
fn an_old_client_gets_an_answer_that_it_understands() {
    let upstream = Upstream::answering(|_| {
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n".to_owned()
    });
    let weir = weir(&upstream);
    let mut client = weir.connect();
    client.send("GET / HTTP/1.0\r\n\r\n");
    let response = client.response();
    // The version is the sender's (RFC 9110 section 6.2); the message contains nothing newer.
    assert_eq!(response.start, "HTTP/1.1 200 OK");
    assert_eq!((response.header("transfer-encoding"), response.text()), (None, "abc"));
    let request = &upstream.requests()[0];
    assert_eq!(request.start, "GET / HTTP/1.1");
    assert_eq!(request.header("host"), Some(upstream.address.to_string().as_str()));
    assert_eq!(request.header("via"), Some("1.0 weir"));
}

#[test]
fn what_cannot_be_forwarded_is_a_problem() {
    let upstream = Upstream::saying("hello");
    let weir = weir(&upstream);
    for (request, status, part) in [
        ("GET / HTTP/1.1\r\n\r\n", 400, "`Host`"),
        ("GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", 400, "`Host`"),
        ("GET / HTTP/1.1\r\nhost: a b\r\n\r\n", 400, "not a valid host"),
        ("CONNECT a:443 HTTP/1.1\r\nhost: a:443\r\n\r\n", 405, "tunnels"),
        ("TRACE / HTTP/1.1\r\nhost: a\r\n\r\n", 405, "TRACE"),
        ("POST / HTTP/1.1\r\nhost: a\r\nexpect: tea\r\ncontent-length: 1\r\n\r\n", 417, "100-continue"),
    ] {
        let mut client = weir.connect();
        client.send(request);
        let response = client.response();
        assert_eq!(response.status(), status, "{request}");
        assert_eq!(response.header("content-type"), Some("application/problem+json"));
        assert!(response.text().contains(part), "{request}: {}", response.text());
        assert_eq!(response.header("allow").is_some(), status == 405);
    }
    assert_eq!(upstream.accepted(), 0);
}

#[test]
fn a_response_without_a_body_has_none() {
    let upstream = Upstream::answering(|request| match request.start.split(' ').next() {
        Some("HEAD") => "HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n".to_owned(),
        Some("DELETE") => "HTTP/1.1 204 No Content\r\n\r\n".to_owned(),
        Some("OPTIONS") => "HTTP/1.1 304 Not Modified\r\netag: \"x\"\r\n\r\n".to_owned(),
        _ => ok("body"),
    });
    let weir = weir(&upstream);
    let mut client = weir.connect();
    for (method, status) in [("HEAD", 200), ("DELETE", 204), ("OPTIONS", 304)] {
        client.send(format!("{method} / HTTP/1.1\r\nhost: a\r\n\r\n"));
        let response = client.head().unwrap();
        assert_eq!(response.status(), status, "{method}");
        assert_eq!(response.header("content-length").map(ToOwned::to_owned), (method == "HEAD").then(|| "500".into()));
        // The next bytes are a response, not a body.
        assert_eq!(client.get("/").text(), "body", "after {method}");
    }
    assert_eq!(upstream.accepted(), 1, "none of them costs the upstream's connection");
}

#[test]
fn bodies_pass_piece_by_piece_both_ways() {
    // Each side sends its next piece after it has received the other's; a proxy that collects hangs.
    let upstream = Upstream::start(|wire, _| {
        let head = wire.head().unwrap();
        assert_eq!(head.header("transfer-encoding"), Some("chunked"));
        wire.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n");
        for number in 0..5 {
            assert_eq!(wire.line(), "2");
            assert_eq!(wire.line(), format!("q{number}"));
            wire.send(format!("2\r\na{number}\r\n"));
        }
        assert_eq!((wire.line(), wire.line()), ("0".into(), String::new()));
        wire.send("0\r\nx-sum: 5\r\n\r\n");
        wire.request();
    });
    let weir = weir(&upstream);
    let mut client = weir.connect();
    client.send("POST / HTTP/1.1\r\nhost: a\r\nte: trailers\r\ntransfer-encoding: chunked\r\n\r\n");
    let head = client.head().unwrap();
    assert_eq!(head.header("transfer-encoding"), Some("chunked"));
    for number in 0..5 {
        client.send(format!("2\r\nq{number}\r\n"));
        assert_eq!(client.line(), "2");
        assert_eq!(client.line(), format!("a{number}"));
    }
    client.send("0\r\n\r\n");
    assert_eq!((client.line(), client.line(), client.line()), ("0".into(), "x-sum: 5".into(), String::new()));
}

#[test]
fn a_response_that_ends_with_its_connection_is_passed_on_whole() {
    let upstream = Upstream::start(|wire, _| {
        wire.request();
        wire.send("HTTP/1.1 200 OK\r\n\r\nuntil the end");
    });
    let weir = weir(&upstream);
    let mut client = weir.connect();
    assert_eq!(client.get("/").text(), "until the end");
    assert_eq!(client.get("/").text(), "until the end");
    assert_eq!(upstream.accepted(), 2);
}

#[test]
fn the_upstreams_connections_are_used_again() {
    let upstream = Upstream::saying("hello");
    let weir = weir(&upstream);
    for _ in 0..3 {
        let mut client = weir.connect();
        for _ in 0..20 {
            assert_eq!(client.get("/").text(), "hello");
        }
    }
    assert_eq!(upstream.accepted(), 1);
}

#[test]
fn a_large_body_flows_and_does_not_pile_up() {
    const SIZE: usize = 64 << 20;
    // The upstream reads nothing until told. Until then the client can send what fits into socket buffers and the
    // proxy.
    let go = Arc::new(Mutex::new(()));
    let received = Arc::new(AtomicUsize::new(0));
    let held = go.lock();
    let upstream = {
        let (go, received) = (go.clone(), received.clone());
        Upstream::start(move |wire, _| {
            let head = wire.head().unwrap();
            drop(go.lock());
            let mut left: usize = head.header("content-length").unwrap().parse().unwrap();
            while left > 0 {
                let piece = left.min(1 << 20);
                wire.exactly(piece);
                left -= piece;
                received.fetch_add(piece, Ordering::Relaxed);
            }
            wire.send(format!("HTTP/1.1 200 OK\r\ncontent-length: {SIZE}\r\n\r\n"));
            let piece = vec![b'r'; 1 << 20];
            for _ in 0..SIZE >> 20 {
                wire.send(&piece);
            }
            wire.request();
        })
    };
    let weir = weir(&upstream);
    let mut client = weir.connect();
    client.send(format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {SIZE}\r\n\r\n"));
    let sent = Arc::new(AtomicUsize::new(0));
    let sender = {
        let (sent, mut stream) = (sent.clone(), client.stream.try_clone().unwrap());
        std::thread::spawn(move || {
            let piece = vec![b'q'; 64 << 10];
            while sent.load(Ordering::Relaxed) < SIZE {
                stream.write_all(&piece).unwrap();
                sent.fetch_add(piece.len(), Ordering::Relaxed);
            }
        })
    };
    let mut before = usize::MAX;
    let stuck = eventually("the client is held back", || {
        std::thread::sleep(Duration::from_millis(100));
        let now = sent.load(Ordering::Relaxed);
        let is_stuck = now == before && now > 0;
        before = now;
        if is_stuck { Ok(now) } else { Err(now) }
    });
    assert!(stuck < SIZE / 2, "the proxy took {stuck} bytes that the upstream did not read");
    drop(held);
    let response = client.head().unwrap();
    assert_eq!(received.load(Ordering::Relaxed), SIZE);
    sender.join().unwrap();
    assert_eq!(response.header("content-length"), Some(SIZE.to_string().as_str()));
    for _ in 0..SIZE >> 20 {
        assert!(client.exactly(1 << 20).iter().all(|byte| *byte == b'r'));
    }
}
