//! The log of denials: a sample, and their number.

use std::collections::HashSet;

use serde_json::Value;

use super::lines;
use crate::support::eventually;
use crate::support::weir::Weir;

const DENIED: &str = "request denied";

const LIMITS: &str = "\
limits:
  Shut: { match: { path: /shut }, by: global, burst: 1 }
  PerId: { match: { path: /id }, by: { header: x-id }, burst: 1, count: 1, period: 1h }
  Never: { match: { path: /never }, by: { header: x-id }, deny: true }
  Watched: { match: { path: /watched }, by: { header: x-id }, burst: 1, mode: shadow }
";

/// Sends requests to `/shut`, many at a time, on some connections. All but the first are denied.
fn flood(weir: &Weir, count: usize) {
    const AT_ONCE: usize = 100;
    let mut clients: Vec<_> = (0..4).map(|_| weir.connect()).collect();
    for round in 0..count / AT_ONCE {
        let client = &mut clients[round % 4];
        client.send("GET /shut HTTP/1.1\r\nhost: a\r\n\r\n".repeat(AT_ONCE));
        for _ in 0..AT_ONCE {
            client.response();
        }
    }
}

/// The logged denials of a limit, and the number of others that these lines report.
fn told(weir: &Weir, limit: &str) -> (usize, u64) {
    let mut lines = [lines(weir, DENIED), lines(weir, "request would have been denied")].concat();
    lines.retain(|line| line["limit"] == limit);
    let mut rest = super::lines(weir, "more requests denied");
    rest.retain(|line| line["limit"] == limit);
    let suppressed = lines.iter().chain(&rest).map(|line| line["suppressed"].as_u64().unwrap()).sum();
    (lines.len(), suppressed)
}

#[test]
fn ten_thousand_denials_are_a_few_lines_that_add_up() {
    let mut weir = Weir::serve(LIMITS, &["--workers", "2", "--log-denials", "5/1h"]);
    flood(&weir, 5_000);
    // New rules with the same limit: the count is not lost.
    std::fs::write(weir.limits_file(), format!("{LIMITS}  Another: {{ by: ip, count: 1000000, period: 1s }}\n"))
        .unwrap();
    weir.signal("HUP");
    weir.until_logged("new rules are in force");
    flood(&weir, 5_000);
    weir.signal("TERM");
    weir.wait();
    let (count, suppressed) = told(&weir, "Shut");
    assert_eq!((count, count as u64 + suppressed), (5, 9_999), "{}", weir.log());
    assert!(lines(&weir, "more requests denied").len() <= 2, "one for each worker: {}", weir.log());
}

#[test]
fn a_flood_that_is_over_is_told_without_another_denial() {
    let weir = Weir::serve(LIMITS, &["--log-denials", "1/100ms"]);
    flood(&weir, 300);
    eventually("all are told", || match told(&weir, "Shut") {
        (lines, suppressed) if lines as u64 + suppressed == 299 => Ok(()),
        other => Err(other),
    });
}

/// The log line of the last denial on this path with this id, by a process with these flags.
fn line(flags: &[&str], path: &str, id: &str) -> Value {
    let weir = Weir::serve(LIMITS, flags);
    for _ in 0..2 {
        weir.get(path, &[("x-id", id), ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")]);
    }
    eventually("it is told", || {
        let mut found = [lines(&weir, DENIED), lines(&weir, "request would have been denied")].concat();
        found.pop().ok_or_else(|| weir.log())
    })
}

/// Members of a line that may be missing.
const MAYBE: [&str; 5] = ["id", "path", "host", "retry_after", "trace_id"];

#[track_caller]
fn check(flags: &[&str], path: &str, result: &str, expected: [Option<&str>; 5]) {
    let line = line(&[&["--log-denials", "9/s"], flags].concat(), path, "alice");
    assert_eq!((&line["result"], &line["listener"], &line["method"]), (&result.into(), &"proxy".into(), &"GET".into()));
    let text = |name: &str| match &line[name] {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    let hash = |text: &str| text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    for (name, expected) in MAYBE.into_iter().zip(expected) {
        match (text(name), expected) {
            (Some(found), Some("#")) => assert!(hash(&found), "{name}: {line}"),
            (found, expected) => assert_eq!(found.as_deref(), expected, "{name}: {line}"),
        }
    }
}

#[test]
fn a_line_tells_the_limit_and_of_the_client_what_it_may() {
    let trace = Some("4bf92f3577b34da6a3ce929d0e0e4736");
    check(&[], "/id", "denied", [Some("#"), None, None, Some("3600"), trace]);
    check(&["--log-ids", "none"], "/id", "denied", [None, None, None, Some("3600"), trace]);
    check(
        &["--log-ids", "clear"],
        "/id",
        "denied",
        [Some("alice"), Some("/id"), Some("a.example"), Some("3600"), trace],
    );
    check(&[], "/watched", "shadow_denied", [Some("#"), None, None, None, trace]);
    check(&[], "/never", "denied", [Some("#"), None, None, None, trace]);
    check(&["--log-ids", "clear"], "/never", "denied", [Some("alice"), Some("/never"), Some("a.example"), None, trace]);
}

#[test]
fn a_store_that_is_away_is_told_where_it_denies() {
    let limits = "limits: { Closed: { by: ip, count: 1, period: 1s, on_store_error: deny } }";
    let weir = Weir::serve(limits, &["--store", "redis://127.0.0.1:1"]);
    assert_eq!(weir.get("/", &[]).status(), 503);
    weir.until_logged("error_denied");
}

#[test]
fn lines_of_one_id_have_one_hash_and_those_of_others_another() {
    let weir = Weir::serve(LIMITS, &["--log-denials", "100/s"]);
    let mut client = weir.connect();
    for id in ["alice", "bob", "alice", "bob", "alice"] {
        client.get_with("/id", &[("x-id", id)]);
    }
    let lines = eventually("they are told", || match lines(&weir, DENIED) {
        lines if lines.len() == 3 => Ok(lines),
        lines => Err(lines),
    });
    let ids: Vec<_> = lines.iter().map(|line| line["id"].as_str().unwrap()).collect();
    assert_eq!((ids[0] == ids[2], ids.iter().collect::<HashSet<_>>().len()), (true, 2), "{ids:?}");
}

#[test]
fn denials_at_the_check_listener_are_told_by_request_and_by_name() {
    let weir = Weir::serve(LIMITS, &["--check", "127.0.0.1:0", "--log-denials", "9/s", "--log-ids", "clear"]);
    let mut client = crate::support::wire::Wire::connect(weir.listener("check"));
    for body in [
        r#"{"limit": "PerId", "id": "carol"}"#,
        r#"{"request": {"method": "BREW", "url": "http://a.example/id", "headers": {"x-id": "carol"}}}"#,
    ] {
        for _ in 0..2 {
            client.send(format!(
                "POST /json HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            ));
            client.response();
        }
    }
    // Once by name, since the first call passed, and both requests.
    let lines = eventually("they are told", || match lines(&weir, DENIED) {
        lines if lines.len() == 3 => Ok(lines),
        lines => Err((lines, weir.log())),
    });
    for line in &lines {
        assert_eq!(
            (&line["listener"], &line["limit"], &line["id"]),
            (&"check".into(), &"PerId".into(), &"carol".into())
        );
    }
    assert_eq!((&lines[0]["method"], &lines[1]["method"]), (&Value::Null, &"_OTHER".into()));
}

#[test]
fn nothing_is_told_where_nobody_wants_to_know() {
    for flags in [["--log-denials", "off"], ["--log", "info,weir::telemetry::denials=warn"]] {
        let mut weir = Weir::serve(LIMITS, &flags);
        flood(&weir, 200);
        weir.signal("TERM");
        weir.wait();
        assert!(weir.log().contains("\"stopped\"") && !weir.log().contains("denied"), "{}", weir.log());
    }
}
