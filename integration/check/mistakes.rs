//! Mistakes of gateways and others. None of them is an allowance.

use std::time::Duration;

use weir::http::Timeouts;

use super::{body, post, send, stopped};
use crate::support::frames::{DATA, END_HEADERS, END_STREAM, Frames, HEADERS, block, frame};
use crate::support::server::Setup;

const RULES: &str = "limits: { PerAddress: { count: 2, period: 1h } }";

const NGINX: [(&str, &str); 5] = [
    ("host", "limiter"),
    ("x-original-method", "GET"),
    ("x-original-uri", "/"),
    ("x-original-host", "a.example"),
    ("x-real-ip", "192.0.2.1"),
];

/// A gateway's mistake is reported to the gateway, in the log and in a metric, and charges nobody.
#[test]
fn a_gateway_that_asks_wrongly_is_told_what_is_wrong() {
    let weir = stopped(RULES).start("echo");
    let mut wire = weir.connect_check();
    let nginx = |more: &[(&'static str, &'static str)], without: &str| {
        let kept = NGINX.iter().filter(|(name, _)| *name != without);
        kept.chain(more).copied().collect::<Vec<_>>()
    };
    let mut expected = 0;
    for (target, headers, part) in [
        ("/nginx", nginx(&[], "x-original-uri"), "`X-Original-URI` is missing; write `proxy_set_header"),
        ("/nginx", nginx(&[], "x-original-method"), "`X-Original-Method` is missing"),
        ("/nginx", nginx(&[], "x-original-host"), "`X-Original-Host` is missing"),
        ("/nginx", nginx(&[], "x-real-ip"), "the client's address is missing, and PerAddress needs it"),
        ("/nginx", nginx(&[("x-real-ip", "unix:")], "x-real-ip"), "not an IP address"),
        // The client's copy beside the gateway's header.
        ("/nginx", nginx(&[("X-Original-Uri", "/free")], ""), "`X-Original-URI` comes twice"),
        ("/nginx", nginx(&[("X-Real-Ip", "192.0.2.9")], ""), "`X-Real-IP` comes twice"),
        ("/nginx", nginx(&[("X-Original-Url", "http://a.example/free")], ""), "contradict each other"),
        ("/forward", vec![("host", "limiter"), ("x-forwarded-for", "192.0.2.1")], "`X-Forwarded-Method` is missing"),
        ("/haproxy", vec![("host", "a.example")], "HAProxy with `http-request set-header`"),
        ("/envoy/", vec![("host", "a.example")], "the client's address is missing"),
        ("/envoy", vec![("host", "a.example"), ("x-forwarded-for", "192.0.2.1")], "path_prefix: /envoy"),
    ] {
        let answer = send(&mut wire, "GET", target, &headers);
        // No gateway allows on a 400; nginx logs a failed check.
        assert_eq!(answer.status(), 400, "{target} {headers:?}: {answer:?}");
        assert_eq!(answer.header("x-ratelimit-status"), None);
        let detail = body(&answer)["detail"].as_str().unwrap().to_owned();
        assert!(detail.starts_with("the gateway's configuration is wrong: ") && detail.contains(part), "{detail}");
        expected += 1;
    }
    let wrong = |convention: &str| {
        weir.metric(&format!("weir_check_requests_total{{convention=\"{convention}\",result=\"misconfigured\"}}"))
    };
    assert_eq!(wrong("nginx") + wrong("forward") + wrong("haproxy") + wrong("envoy"), expected);
    assert_eq!(weir.metric("weir_decisions_total{limit=\"PerAddress\",result=\"allowed\"}"), 0);
}

/// Without a limit by address no address is needed. NGINX Gateway Fabric does not send one.
#[test]
fn an_address_is_wanted_only_where_a_limit_goes_by_it() {
    let weir = stopped("limits: { ByHost: { by: host, burst: 1 } }").start("echo");
    let mut wire = weir.connect_check();
    let headers = [("host", "a.example"), ("method", "GET"), ("path", "/")];
    assert_eq!(send(&mut wire, "GET", "/nginx", &headers).status(), 200);
    assert_eq!(send(&mut wire, "GET", "/nginx", &headers).status(), 403);
    let shadowed = "limits: { ByHost: { by: host, burst: 1, match: { cidr: 10.0.0.0/8 } } }";
    let weir = stopped(shadowed).start("echo");
    assert_eq!(send(&mut weir.connect_check(), "GET", "/nginx", &headers).status(), 400);
}

#[test]
fn the_client_of_a_chain_is_the_first_that_is_not_trusted() {
    let weir = Setup { trusted: vec!["10.0.0.0/8"], ..stopped(RULES) }.start("echo");
    let mut wire = weir.connect_check();
    let mut ask = |chain: &str| {
        let headers = [("host", "a.example"), ("x-forwarded-for", chain)];
        send(&mut wire, "GET", "/envoy/", &headers).header("ratelimit").unwrap().to_owned()
    };
    assert_eq!(ask("203.0.113.1, 192.0.2.1"), "\"PerAddress\";r=1;t=1800");
    assert_eq!(ask("192.0.2.1, 10.0.0.1, 10.0.0.2"), "\"PerAddress\";r=0;t=1800", "it is the same client");
    assert_eq!(ask("192.0.2.1, 203.0.113.1"), "\"PerAddress\";r=1;t=1800", "this one only says that it is");
}

#[test]
fn other_paths_and_methods_are_no_allowance() {
    let weir = stopped(RULES).start("echo");
    for (method, target, status) in [
        ("GET", "/", 404),
        ("GET", "/nginx/", 404),
        ("POST", "/envoyx/", 404),
        ("GET", "/healthz", 404),
        ("DELETE", "/json", 405),
        ("POST", "/openapi.json", 405),
        ("HEAD", "/openapi.json", 200),
    ] {
        let answer = send(&mut weir.connect_check(), method, target, &[("host", "limiter")]);
        assert_eq!(answer.status(), status, "{method} {target}");
    }
    // A subrequest may have any method.
    for method in ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PROPFIND", "TRACE"] {
        let (address, weir) = ("192.0.2.1", stopped(RULES).start("echo"));
        let headers = [("host", "a.example"), ("x-forwarded-for", address)];
        let mut wire = weir.connect_check();
        let statuses = [(); 3].map(|()| send(&mut wire, method, "/envoy/", &headers).status());
        assert_eq!(statuses, [200, 200, 429], "{method}");
        let nginx = NGINX.map(|(name, value)| (name, if name == "x-original-method" { method } else { value }));
        assert_eq!(send(&mut wire, method, "/nginx", &nginx).status(), 403, "{method}");
    }
}

/// Envoy can send the body with the check. It is neither used nor kept.
#[test]
fn bodies_of_checks_are_passed_over() {
    let weir = stopped(RULES).start("echo");
    let mut wire = weir.connect_check();
    let head = "POST /envoy/ HTTP/1.1\r\nhost: a.example\r\nx-forwarded-for: 192.0.2.1\r\n";
    wire.send(format!("{head}content-length: 5\r\n\r\nhello"));
    assert_eq!(wire.response().status(), 200);
    wire.send(format!("{head}transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"));
    assert_eq!(wire.response().status(), 200, "on the same connection");
    // A body that is too long to skip ends the connection after the answer.
    wire.send(format!("{head}content-length: 100000000\r\n\r\nhello"));
    let answer = wire.response();
    assert_eq!((answer.status(), answer.header("connection")), (429, Some("close")));
    wire.expect_end();
}

#[test]
fn calls_are_bounded_and_have_a_deadline() {
    let timeouts = Timeouts { body: Duration::from_millis(200), ..Timeouts::default() };
    let weir = Setup { timeouts, ..stopped(RULES) }.start("echo");
    let long = " ".repeat(64 * 1024);
    assert_eq!(post(&mut weir.connect_check(), "application/json", &long).status(), 400, "as long as it may be");
    let answer = post(&mut weir.connect_check(), "application/json", &(long + " "));
    assert_eq!((answer.status(), answer.header("connection")), (413, Some("close")));
    assert_eq!(weir.metric("weir_http_listener_limits_total{limit=\"body_bytes\"}"), 1);

    let head = "POST /json HTTP/1.1\r\nhost: limiter\r\ncontent-type: application/json\r\n";
    let mut wire = weir.connect_check();
    let chunk = format!("{:x}\r\n{}\r\n", 40_000, " ".repeat(40_000));
    wire.send(format!("{head}transfer-encoding: chunked\r\n\r\n{chunk}{chunk}0\r\n\r\n"));
    assert_eq!(wire.response().status(), 413, "whether it says so before or not");
    let mut wire = weir.connect_check();
    wire.send(format!("{head}content-length: 20\r\n\r\n{{\"limit\""));
    assert_eq!(wire.response().status(), 408);
    wire.expect_end();
}

#[test]
fn checks_come_by_http2_too() {
    let weir = stopped(RULES).start("echo");
    let address = weir.connect_check().stream.peer_addr().unwrap();
    let mut client = Frames::connect(address);
    let mut ask = |stream: u32| {
        let headers = block(&[
            (":method", "PUT"),
            (":scheme", "http"),
            (":authority", "a.example"),
            (":path", "/envoy/x?y"),
            ("x-forwarded-for", "192.0.2.1"),
        ]);
        client.send(frame(HEADERS, END_HEADERS | END_STREAM, stream, &headers));
        client.stream(stream)[0].status()
    };
    assert_eq!([ask(1), ask(3), ask(5)], [200, 200, 429]);
    let call = br#"{"limit": "PerAddress", "id": "192.0.2.1", "op": "reset"}"#;
    let headers = block(&[
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "limiter"),
        (":path", "/json"),
        ("content-type", "application/json"),
    ]);
    client.send(frame(HEADERS, END_HEADERS, 7, &headers));
    client.send(frame(DATA, END_STREAM, 7, call));
    assert_eq!(client.stream(7)[0].status(), 200);
}
