//! Routes to upstreams, and their failures.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::num::{NonZeroU32, NonZeroUsize};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use weir::http::{HealthCheck, Routes, UpstreamOptions};

use crate::support::server::{Setup, WIDE, Weir};
use crate::support::upstream::{Upstream, ok};
use crate::support::wire::{Message, Wire};
use crate::support::{becomes, eventually};

const SHORT: Duration = Duration::from_secs(1);

/// A proxy with these routes and options.
fn weir(routes: &[String], change: impl FnOnce(&mut Setup, &mut UpstreamOptions)) -> Weir {
    let mut options = UpstreamOptions::new(Routes::parse(routes).unwrap());
    let mut setup = Setup::new(WIDE);
    change(&mut setup, &mut options);
    setup.start_with(options)
}

/// A route for all requests to these upstreams.
fn to(upstreams: &[&Upstream]) -> [String; 1] {
    let urls: Vec<_> = upstreams.iter().map(|upstream| format!("http://{}", upstream.address)).collect();
    [urls.join(",")]
}

/// An address that refuses connections. The system gives this port to nobody, unlike one that was just closed.
fn refusing() -> String {
    "http://127.0.0.1:1".to_owned()
}

/// The answers to several requests on one connection, separated by spaces.
fn answers(client: &mut Wire, count: usize) -> String {
    let answers: Vec<_> = (0..count).map(|_| client.get("/").text().to_owned()).collect();
    answers.join(" ")
}

fn post(client: &mut Wire) -> u16 {
    client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nhi");
    client.response().status()
}

#[test]
fn requests_go_by_host_and_path_prefix() {
    let [exact, wild, v1, rest] = ["exact", "wild", "v1", "rest"].map(Upstream::saying);
    let route = |matcher: &str, upstream: &Upstream| format!("{matcher}http://{}", upstream.address);
    let routes = [
        route("/v1=", &v1),
        route("", &rest),
        route("*.example.com=", &wild),
        route("API.example.com/v2=", &exact),
        "/echo=echo".to_owned(),
    ];
    let weir = weir(&routes, |_, _| {});
    let mut client = weir.connect();
    for (host, target, expected) in [
        ("api.example.com", "/v2/x?y=/v1", "exact"),
        ("API.Example.COM:8080", "/v2", "exact"),
        ("api.example.com", "/v1", "wild"),
        ("x.y.example.com", "/v1", "wild"),
        ("example.com", "/v1/x", "v1"),
        ("a", "//%761/../v1/x", "v1"),
        ("a", "/v10", "rest"),
        ("a", "/", "rest"),
    ] {
        client.send(format!("GET {target} HTTP/1.1\r\nhost: {host}\r\n\r\n"));
        assert_eq!(client.response().text(), expected, "{host}{target}");
    }
    assert!(client.get("/echo/x").text().contains("\"target\":\"/echo/x\""));
}

#[test]
fn a_request_without_a_route_is_a_404_and_is_charged() {
    let weir = weir(&["api.example.com/v1=echo".to_owned()], |_, _| {});
    let response = weir.connect().get("/v1");
    assert_eq!((response.status(), response.header("content-type")), (404, Some("application/problem+json")));
    assert!(response.header("ratelimit").is_some());
}

#[test]
fn servers_take_turns_and_keep_their_connections() {
    let [a, b] = ["a", "b"].map(Upstream::saying);
    let weir = weir(&to(&[&a, &b]), |_, _| {});
    assert_eq!(answers(&mut weir.connect(), 6), "a b a b a b");
    assert_eq!((a.accepted(), b.accepted()), (1, 1));
}

#[test]
fn the_busy_server_is_passed_over() {
    let (go, wait) = mpsc::channel::<()>();
    let wait = parking_lot::Mutex::new(wait);
    let slow = Upstream::answering(move |_| {
        wait.lock().recv().unwrap();
        ok("slow")
    });
    let quick = Upstream::saying("quick");
    let weir = weir(&to(&[&slow, &quick]), |_, _| {});
    let mut waiting = weir.connect();
    waiting.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    eventually("the slow server has a request", || if slow.accepted() == 1 { Ok(()) } else { Err(()) });
    assert_eq!(answers(&mut weir.connect(), 3), "quick quick quick");
    go.send(()).unwrap();
    assert_eq!(waiting.response().text(), "slow");
}

#[test]
fn a_request_that_cannot_be_delivered_goes_to_another_server() {
    let b = Upstream::saying("b");
    let routes = [format!("{},http://{}", refusing(), b.address)];
    let weir = weir(&routes, |_, _| {});
    let mut client = weir.connect();
    for _ in 0..4 {
        assert_eq!(post(&mut client), 200);
    }
    assert_eq!(weir.metric("weir_upstream_retries_total"), 2);
    assert_eq!(weir.metric("weir_upstream_errors_total{reason=\"connect\"}"), 2);
}

#[test]
fn a_server_that_fails_is_left_alone_for_a_while() {
    let good = Upstream::saying("good");
    let bad = Upstream::start(|wire, _| {
        wire.request();
    });
    let weir = weir(&to(&[&bad, &good]), |_, _| {});
    let mut client = weir.connect();
    let statuses: Vec<_> = (0..20).map(|_| post(&mut client)).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 502).count(), 5, "{statuses:?}");
    assert_eq!(statuses[10..], [200; 10]);
    assert_eq!(weir.metric("weir_upstream_ejections_total"), 1);
    becomes("the state is counted", 1, || weir.metric("weir_upstream_endpoints{state=\"ejected\"}"));
    becomes("the state is counted", 1, || weir.metric("weir_upstream_endpoints{state=\"healthy\"}"));
}

#[test]
fn a_server_that_says_that_nobody_is_there_is_left_alone_too() {
    let good = Upstream::saying("good");
    let bad = Upstream::answering(|_| "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n".to_owned());
    let weir = weir(&to(&[&bad, &good]), |_, _| {});
    let mut client = weir.connect();
    let statuses: Vec<_> = (0..14).map(|_| client.get("/").status()).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 503).count(), 5, "{statuses:?}");
}

#[test]
fn the_only_server_is_never_left_alone() {
    let failures = Arc::new(AtomicUsize::new(0));
    let counted = failures.clone();
    let upstream = Upstream::start(move |wire, _| {
        wire.request();
        if counted.fetch_add(1, Ordering::Relaxed) >= 10 {
            wire.send(ok("back"));
        }
    });
    let weir = weir(&to(&[&upstream]), |_, _| {});
    let mut client = weir.connect();
    for _ in 0..10 {
        assert_eq!(client.get("/").status(), 502);
    }
    assert_eq!(client.get("/").text(), "back");
    assert_eq!(weir.metric("weir_upstream_ejections_total"), 0);
}

#[test]
fn health_checks_take_servers_out_and_in() {
    let well = Arc::new(AtomicBool::new(false));
    let answer = well.clone();
    let a = Upstream::answering(move |request| match request.start.as_str() {
        "GET /healthz?full HTTP/1.1" if answer.load(Ordering::Relaxed) => ok("fine"),
        "GET /healthz?full HTTP/1.1" => "HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n".to_owned(),
        _ => ok("a"),
    });
    let b = Upstream::saying("b");
    let weir = weir(&to(&[&a, &b]), |_, options| {
        options.health_check = Some(HealthCheck {
            path: "/healthz?full".to_owned(),
            interval: Duration::from_millis(20),
            timeout: Duration::from_secs(5),
            unhealthy: NonZeroU32::new(2).unwrap(),
            healthy: NonZeroU32::new(2).unwrap(),
        });
    });
    let mut client = weir.connect();
    eventually("a is left out", || match answers(&mut client, 4).as_str() {
        "b b b b" => Ok(()),
        other => Err(other.to_owned()),
    });
    becomes("the state is counted", 1, || weir.metric("weir_upstream_endpoints{state=\"unhealthy\"}"));
    let is_check = |request: &Message| request.start.starts_with("GET /healthz");
    let check = a.requests().into_iter().find(is_check).unwrap();
    assert_eq!(check.header("host"), Some(a.address.to_string().as_str()));
    well.store(true, Ordering::Relaxed);
    eventually("a is back", || match answers(&mut client, 4).as_str() {
        "a b a b" | "b a b a" => Ok(()),
        other => Err(other.to_owned()),
    });
}

#[test]
fn requests_beyond_the_connections_wait_in_line() {
    let (go, wait) = mpsc::channel::<()>();
    let wait = parking_lot::Mutex::new(wait);
    let upstream = Upstream::answering(move |request| {
        wait.lock().recv().unwrap();
        ok(request.start.split(' ').nth(1).unwrap())
    });
    let weir = weir(&to(&[&upstream]), |setup, options| {
        options.connections = NonZeroUsize::MIN;
        setup.timeouts.connect = Duration::from_mins(1);
    });
    let mut clients = [weir.connect(), weir.connect(), weir.connect()];
    for (number, client) in clients.iter_mut().enumerate() {
        client.send(format!("GET /{number} HTTP/1.1\r\nhost: a\r\n\r\n"));
        becomes("the request is under way", 1 + number as u64, || weir.metric("weir_http_requests_in_flight"));
    }
    for (number, client) in clients.iter_mut().enumerate() {
        assert_eq!(upstream.requests().len(), number);
        go.send(()).unwrap();
        assert_eq!(client.response().text(), format!("/{number}"));
    }
    assert_eq!(upstream.accepted(), 1);
}

#[test]
fn nobody_waits_in_line_for_ever() {
    let upstream = Upstream::start(|wire, _| {
        wire.request();
        wire.expect_end();
    });
    let weir = weir(&to(&[&upstream]), |setup, options| {
        options.connections = NonZeroUsize::MIN;
        setup.timeouts.connect = SHORT;
    });
    let mut first = weir.connect();
    first.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    eventually("the first is there", || if upstream.accepted() == 1 { Ok(()) } else { Err(()) });
    let response = weir.connect().get("/");
    assert_eq!(response.status(), 503, "{}", response.text());
    assert_eq!(weir.metric("weir_upstream_errors_total{reason=\"busy\"}"), 1);
    assert_eq!(upstream.accepted(), 1);
}

#[test]
fn names_are_resolved() {
    let upstream = Upstream::saying("here");
    let weir = weir(&[format!("http://localhost:{}", upstream.address.port())], |_, _| {});
    assert_eq!(answers(&mut weir.connect(), 3), "here here here");
}

#[test]
fn a_name_without_an_address_is_a_502_at_once() {
    // RFC 6761 section 6.4: such a name never exists.
    let weir = weir(&["http://weir.invalid".to_owned()], |setup, _| setup.timeouts.connect = Duration::from_mins(1));
    let response = weir.connect().get("/");
    assert_eq!(response.status(), 502, "{}", response.text());
    assert!(weir.metric("weir_upstream_resolve_errors_total") >= 1);
    assert_eq!(weir.metric("weir_upstream_errors_total{reason=\"resolve\"}"), 1);
}

#[test]
fn a_unix_socket_is_an_upstream_too() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app=1.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut seen = Vec::new();
        for _ in 0..2 {
            seen.push(read_head(&mut stream));
            stream.write_all(ok("unix").as_bytes()).unwrap();
        }
        seen
    });
    let weir = weir(&[format!("unix:{}", path.display())], |_, _| {});
    let mut client = weir.connect();
    assert_eq!(client.get("/x").text(), "unix");
    // The upstream gets a `Host` even if the client sent none, as HTTP/1.1 requires one.
    client.send("GET /y HTTP/1.0\r\n\r\n");
    assert_eq!(client.response().text(), "unix");
    let seen = server.join().unwrap();
    assert!(seen[0].starts_with("GET /x HTTP/1.1\r\nhost: a.example\r\n"), "{seen:?}");
    assert!(seen[1].contains("\r\nhost: localhost\r\n"), "{seen:?}");
}

/// Returns whether this process has sent a SYN to this port of 127.0.0.1 that was not answered.
fn is_connecting(port: u16) -> bool {
    let connections = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let (peer, syn_sent) = (format!("0100007F:{port:04X}"), "02");
    connections.lines().any(|line| line.split_whitespace().skip(2).take(2).eq([peer.as_str(), syn_sent]))
}

#[test]
fn a_connection_that_a_full_queue_drops_once_is_waited_for() {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    // Room for one connection. The kernel drops further SYNs, and repeats its own after a second.
    socket.listen(0).unwrap();
    let listener = TcpListener::from(socket);
    let address = listener.local_addr().unwrap();
    let _first = TcpStream::connect(address).unwrap();
    let weir = weir(&[format!("http://{address}")], |_, _| {});
    let mut client = weir.connect();
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    eventually("the connection is not accepted", || if is_connecting(address.port()) { Ok(()) } else { Err(()) });
    std::thread::spawn(move || {
        let first = listener.accept().unwrap();
        let mut wire = Wire::new(listener.accept().unwrap().0);
        wire.request();
        wire.send(ok("late"));
        drop(first);
    });
    let response = client.response();
    assert_eq!((response.status(), response.text()), (200, "late"));
}

/// Reads to the end of a head.
fn read_head(stream: &mut impl Read) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.extend(byte);
    }
    String::from_utf8(head).unwrap()
}
