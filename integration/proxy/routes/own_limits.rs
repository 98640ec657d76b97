//! Timeouts, sizes, health checks and connections of routes.

use std::sync::Mutex;
use std::sync::mpsc;

use super::weir;
use crate::support::upstream::{Upstream, ok};
use crate::support::{PATIENCE, becomes};

/// Above what any answer of these tests takes.
const LONG: &str = "10m";

#[test]
fn a_route_has_its_own_timeouts() {
    let silent = Upstream::start(|wire, _| {
        let Some(request) = wire.request() else { return };
        if request.start.contains("/begun") {
            wire.send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\na");
        }
        // Until the proxy closes.
        wire.request();
    });
    let routes = "  /: { upstream: http://UPSTREAM }\n  \
                  /quick: { upstream: http://UPSTREAM, response-timeout: 50ms }\n  \
                  /tries: { upstream: http://UPSTREAM, upstream-try-timeout: 50ms }\n  \
                  /begun: { upstream: http://UPSTREAM, upstream-body-timeout: 50ms }\n";
    let weir = weir(&silent, routes, &["--response-timeout", LONG, "--upstream-body-timeout", LONG]);
    for path in ["/quick", "/tries"] {
        let answer = weir.get(path, &[]);
        assert_eq!(answer.status(), 504, "{path}: {}", answer.text());
    }
    let mut client = weir.connect();
    client.send("GET /begun HTTP/1.1\r\nhost: a\r\n\r\n");
    let head = client.head().unwrap();
    assert_eq!(head.status(), 200);
    assert_eq!(client.exactly(1), b"a");
    client.expect_end();
}

#[test]
fn a_route_has_its_own_size_of_bodies_on_both_sides_of_the_bound() {
    let upstream = Upstream::answering(|request| ok(&request.body.len().to_string()));
    let routes = "  /small: { upstream: http://UPSTREAM, max-body-bytes: 10 }\n  \
                  /large: { upstream: http://UPSTREAM, max-body-bytes: 100 }\n  \
                  /: { upstream: http://UPSTREAM }\n";
    let weir = weir(&upstream, routes, &["--max-body-bytes", "50"]);
    for (path, most) in [("/small", 10), ("/large", 100), ("/", 50)] {
        for (length, expected) in [(most, 200), (most + 1, 413)] {
            let body = "x".repeat(length);
            let counted = format!("POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n{body}");
            let chunked = format!(
                "POST {path} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n{length:x}\r\n{body}\r\n0\r\n\r\n"
            );
            for request in [counted, chunked] {
                let mut client = weir.connect();
                client.send(&request);
                let answer = client.response();
                assert_eq!(answer.status(), expected, "{request}: {}", answer.text());
            }
            let file = weir.directory().join("body");
            std::fs::write(&file, &body).unwrap();
            let url = format!("http://{}{path}", weir.proxy);
            let data = format!("@{}", file.display());
            let arguments = [
                "-sS",
                "--http2-prior-knowledge",
                "-o",
                "/dev/null",
                "-w",
                "%{http_code}",
                "--data-binary",
                &data,
                &url,
            ];
            let status = crate::support::process::succeed(std::process::Command::new("curl").args(arguments));
            assert_eq!(status, expected.to_string(), "{path} {length} over HTTP/2");
        }
    }
    // The next request on a connection has the bound of its own route.
    let mut client = weir.connect();
    for (path, length) in [("/small", 10), ("/large", 100), ("/", 50)] {
        client.send(format!(
            "POST {path} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n{length:x}\r\n{}\r\n0\r\n\r\n",
            "x".repeat(length)
        ));
        assert_eq!(client.response().text(), length.to_string());
    }
}

#[test]
fn a_route_is_checked_by_its_own_path() {
    let (told, checked) = mpsc::channel();
    let told = Mutex::new(told);
    let upstream = Upstream::answering(move |request| {
        let path = request.start.split(' ').nth(1).unwrap().to_owned();
        if path.starts_with("/up") {
            told.lock().unwrap().send(path.clone()).unwrap();
        }
        if path == "/up/b" { "HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n".to_owned() } else { ok("") }
    });
    let routes = "  /a: { upstream: http://UPSTREAM, health-check: /up/a, health-interval: 10ms }\n  \
                  /b: { upstream: http://UPSTREAM, health-check: /up/b, health-interval: 10ms, health-threshold: 1/1 }\n  \
                  /c: { upstream: http://UPSTREAM }\n";
    let weir = weir(&upstream, routes, &["--workers", "1"]);
    let mut seen: Vec<_> = (0..8).map(|_| checked.recv_timeout(PATIENCE).unwrap()).collect();
    seen.sort();
    seen.dedup();
    assert_eq!(seen, ["/up/a", "/up/b"]);
    let endpoints = |state: &str| weir.metric(&format!("weir_upstream_endpoints{{state=\"{state}\"}}"));
    becomes("the endpoint that fails its check is known", 1, || endpoints("unhealthy"));
    assert_eq!(endpoints("healthy"), 2);
}

#[test]
fn a_route_reads_its_own_part_of_requests_ahead() {
    // Chunks that were read to their end have a length.
    let upstream = Upstream::answering(|request| ok(request.header("content-length").unwrap_or("chunks")));
    let routes = "  /more: { upstream: http://UPSTREAM, buffer-requests: 10 }\n  \
                  /none: { upstream: http://UPSTREAM, buffer-requests: 0 }\n  \
                  /: { upstream: http://UPSTREAM }\n";
    let weir = weir(&upstream, routes, &["--buffer-requests", "5"]);
    for (path, length, expected) in
        [("/more", 10, "10"), ("/more", 11, "chunks"), ("/", 5, "5"), ("/", 6, "chunks"), ("/none", 1, "chunks")]
    {
        let mut client = weir.connect();
        let body = "x".repeat(length);
        client.send(format!(
            "POST {path} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n{length:x}\r\n{body}\r\n0\r\n\r\n"
        ));
        assert_eq!(client.response().text(), expected, "{path} {length}");
    }
}

#[test]
fn a_route_has_its_own_number_of_connections() {
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let upstream = Upstream::start(move |wire, _| {
        while wire.request().is_some() {
            released.lock().unwrap().recv().unwrap();
            wire.send(ok(""));
        }
    });
    let routes = "  /one: { upstream: http://UPSTREAM, upstream-connections: 1, connect-timeout: 50ms }\n  \
                  /more: { upstream: http://UPSTREAM }\n";
    let weir = weir(&upstream, routes, &["--workers", "1", "--connect-timeout", LONG]);
    let mut first = weir.connect();
    first.send("GET /one HTTP/1.1\r\nhost: a\r\n\r\n");
    becomes("the upstream has the first", 1, || upstream.accepted() as u64);
    assert_eq!(weir.get("/one", &[]).status(), 503, "no connection was free in time");
    let mut other = weir.connect();
    other.send("GET /more HTTP/1.1\r\nhost: a\r\n\r\n");
    becomes("the upstream has one of the other route", 2, || upstream.accepted() as u64);
    for _ in 0..2 {
        release.send(()).unwrap();
    }
    assert_eq!((first.response().status(), other.response().status()), (200, 200));
}
