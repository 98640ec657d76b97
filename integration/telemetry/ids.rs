//! The log contains no client's identity unless configured.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use crate::support::PATIENCE;
use crate::support::weir::Weir;
use crate::support::wire::Wire;

/// Part of every text that clients choose. Their address is from a network for documentation (RFC 5737).
const MARK: &str = "m4rk3d";
const ADDRESS: &str = "203.0.113.77";

const LIMITS: &str = "\
limits:
  Header: { match: { path: /a/** }, by: { header: x-id }, burst: 1 }
  Address: { by: ip, burst: 3 }
  Path: { match: { path: \"/a/{id}\" }, by: { path: id }, burst: 1, mode: shadow }
  Query: { by: { query: id }, burst: 1, cost: { header: x-cost } }
  Cookie: { by: { cookie: sid }, burst: 1 }
  Host: { by: host, burst: 2 }
  Method: { by: method, burst: 2 }
";

/// Requests that pass, are denied, or break off in every way.
fn provoke(weir: &Weir) {
    // A complete request asks to close the connection; the others end midway.
    let send = |address, text: String| {
        let is_whole = text.contains("connection: close");
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        if !is_whole {
            stream.shutdown(Shutdown::Write).unwrap();
        }
        // Until the process has decided.
        let _ = stream.read_to_end(&mut Vec::new());
    };
    let headers = format!(
        "host: {MARK}.example\r\nx-id: {MARK}\r\ncookie: sid={MARK}\r\nuser-agent: {MARK}\r\nreferer: http://{MARK}/\r\n\
         x-forwarded-for: {ADDRESS}\r\nauthorization: Basic {MARK}\r\n"
    );
    let target = format!("/a/{MARK}?id={MARK}");
    let request = format!("GET {target} HTTP/1.1\r\n{headers}connection: close\r\n\r\n");
    for _ in 0..5 {
        send(weir.proxy, request.clone());
    }
    for text in [
        format!("{MARK} {target} HTTP/1.1\r\n{headers}connection: close\r\n\r\n"),
        format!("GET /a/{MARK}%zz HTTP/1.1\r\n{headers}\r\n"),
        format!("GET {target} HTTP/1.1\r\n{headers}x-cost: {MARK}\r\n\r\n"),
        format!("GET {target} HTTP/1.1\r\n{headers}{MARK} : x\r\n\r\n"),
        format!("GET {target} HTTP/1.1\r\n{headers}content-length: {MARK}\r\n\r\n"),
        format!("GET {target} HTTP/1.1\r\n{headers}transfer-encoding: {MARK}\r\n\r\n"),
        format!("GET {target} HTTP/9.9\r\n{headers}\r\n"),
        format!("POST {target} HTTP/1.1\r\n{headers}content-length: 9\r\n\r\n{MARK}"),
        format!("GET {target} HTTP/1.1\r\n{headers}"),
        MARK.to_owned(),
        format!("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n{MARK}"),
    ] {
        send(weir.proxy, text);
    }
    let check = weir.listener("check");
    let original = format!(
        "x-forwarded-method: GET\r\nx-forwarded-host: {MARK}.example\r\nx-forwarded-uri: {target}\r\n{headers}\
         x-original-method: GET\r\nx-original-host: {MARK}.example\r\nx-original-uri: {target}\r\nx-real-ip: {ADDRESS}\r\nconnection: close\r\n"
    );
    for path in ["/nginx", "/forward", "/haproxy", &format!("/envoy{target}"), &format!("/{MARK}")] {
        for _ in 0..2 {
            send(check, format!("GET {path} HTTP/1.1\r\n{original}\r\n"));
        }
    }
    for body in [
        format!(r#"{{"limit": "Header", "id": "{MARK}"}}"#),
        format!(r#"{{"limit": "{MARK}", "id": "{MARK}"}}"#),
        format!(r#"{{"request": {{"method": "GET", "url": "http://{MARK}.example{target}", "ip": "{ADDRESS}"}}}}"#),
        format!(r#"{{"{MARK}": "{MARK}"#),
    ] {
        let length = body.len();
        let head =
            format!("host: a\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {length}\r\n");
        for _ in 0..2 {
            send(check, format!("POST /json HTTP/1.1\r\n{head}\r\n{body}"));
        }
    }
}

/// The complete log of a process with a lost upstream, with these settings.
fn log(filter: &str, ids: &str) -> String {
    let mut weir = Weir::serve(
        LIMITS,
        &[
            "--log",
            filter,
            "--log-ids",
            ids,
            "--log-denials",
            "1000/1ms",
            "--upstream",
            "http://127.0.0.1:1",
            "--check",
            "127.0.0.1:0",
            "--trusted-proxies",
            "127.0.0.0/8",
        ],
    );
    provoke(&weir);
    weir.signal("TERM");
    weir.wait();
    weir.log()
}

/// A gateway's mistakes, which are logged once per second: each goes to its own process.
#[test]
fn a_gateway_that_is_wrong_is_told_without_its_client() {
    for (headers, part) in [
        (format!("x-real-ip: {MARK}"), "wrong: a value in `X-Real-IP` is not an IP address"),
        (format!("x-original-method: GET\r\nx-original-url: {MARK}"), "wrong: a value is not an `http://`"),
    ] {
        let weir = Weir::serve(LIMITS, &["--check", "127.0.0.1:0"]);
        let mut wire = Wire::connect(weir.listener("check"));
        wire.send(format!("GET /nginx HTTP/1.1\r\nhost: a\r\n{headers}\r\n\r\n"));
        assert!(wire.response().text().contains(MARK), "the answer tells it");
        weir.until_logged(part);
        assert!(!weir.log().contains(MARK), "{}", weir.log());
    }
}

#[track_caller]
fn check(filter: &str, ids: &str, is_told: bool) {
    let log = log(filter, ids);
    assert!(log.contains("request denied") && log.contains("upstream failed"), "{log}");
    for mark in [MARK, ADDRESS] {
        let lines: Vec<_> = log.lines().filter(|line| line.contains(mark)).collect();
        assert_eq!(!lines.is_empty(), is_told, "{filter} {ids} {mark}: {lines:#?}");
    }
}

#[test]
fn no_id_is_in_the_log_by_itself() {
    check("info", "hash", false);
    check("info", "none", false);
}

#[test]
fn no_id_is_in_what_weir_says_of_itself_in_detail() {
    check("debug", "hash", false);
    check("info,weir=trace", "none", false);
}

#[test]
fn ids_are_in_the_log_of_who_asks_for_them() {
    check("info", "clear", true);
}
