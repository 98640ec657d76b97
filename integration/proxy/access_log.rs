//! The proxy's access log.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::frames::Frames;
use crate::support::upstream::{Upstream, ok};
use crate::support::weir::Weir;
use crate::support::{becomes, eventually};

const LIMITS: &str = "
limits:
  Tight:  { match: { path: /tight }, by: global, burst: 1 }
  Shadow: { match: { path: /shadow }, by: global, burst: 1, mode: shadow }
  Wide:   { match: { path: /wide }, by: { header: x-id }, burst: 100 }
";

fn log_of(weir: &Weir) -> PathBuf {
    weir.directory().join("access.log")
}

/// Waits until the log has this many lines.
#[track_caller]
fn lines(log: &Path, count: usize) -> Vec<String> {
    eventually("the lines are written", || {
        let text = std::fs::read_to_string(log).unwrap_or_default();
        let lines: Vec<_> = text.lines().map(str::to_owned).collect();
        if lines.len() >= count { Ok(lines) } else { Err(text) }
    })
}

#[test]
fn json_tells_of_limits_and_upstreams_and_of_no_id() {
    let upstream = Upstream::answering(|_| ok("hello"));
    let flags = ["--upstream", &format!("http://{}", upstream.address), "--access-log", "access.log", "--workers", "1"];
    let weir = Weir::serve(LIMITS, &flags);
    let mut client = weir.connect();
    for path in ["/tight?a=b", "/tight", "/shadow", "/shadow", "/wide", "/free"] {
        client.get_with(path, &[("user-agent", "te\"st"), ("x-request-id", "r1"), ("x-id", "secret-id")]);
    }
    let lines = lines(&log_of(&weir), 6);
    assert!(!lines.concat().contains("secret-id"), "{lines:?}");
    let records: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told = |record: &Value| {
        let text = |name: &str| record[name].as_str().unwrap_or("-").to_owned();
        (record["status"].as_u64().unwrap(), text("verdict"), text("limit"), record["remaining"].as_u64())
    };
    let expected = [
        (200, "allowed", "Tight", Some(0)),
        (429, "denied", "Tight", Some(0)),
        (200, "allowed", "Shadow", Some(0)),
        (200, "shadow", "Shadow", Some(0)),
        (200, "allowed", "Wide", Some(99)),
        (200, "unlimited", "-", None),
    ];
    for (record, (status, verdict, limit, remaining)) in records.iter().zip(expected) {
        assert_eq!(told(record), (status, verdict.to_owned(), limit.to_owned(), remaining), "{record}");
    }
    let first = &records[0];
    assert_eq!(
        (&first["target"], &first["method"], &first["protocol"]),
        (&"/tight?a=b".into(), &"GET".into(), &"HTTP/1.1".into())
    );
    assert_eq!((&first["client"], &first["host"]), (&"127.0.0.1".into(), &"a.example".into()));
    assert_eq!((&first["user_agent"], &first["request_id"]), (&"te\"st".into(), &"r1".into()));
    assert_eq!((&first["bytes"], &first["attempts"]), (&5.into(), &1.into()));
    assert_eq!(first["upstream"], upstream.address.to_string());
    assert!(first["duration_ms"].as_f64().unwrap() >= first["upstream_ms"].as_f64().unwrap(), "{first}");
    assert!(records[1].get("upstream").is_none(), "a denied request has no upstream: {}", records[1]);
    assert_eq!(weir.metric("weir_access_log_dropped_total"), 0);
}

#[test]
fn requests_whose_head_is_rejected_are_logged_too() {
    let flags = ["--max-target-bytes", "100", "--access-log", "access.log", "--workers", "1"];
    let weir = Weir::serve(LIMITS, &flags);
    let (long, many) = (format!("/{}", "x".repeat(100)), "a: b\r\n".repeat(101));
    for head in [
        "GET / HTTP/1.1\r\nhost a\r\n\r\n".to_owned(),
        format!("GET {long} HTTP/1.1\r\nhost: a\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nhost: a\r\n{many}\r\n"),
    ] {
        let mut client = weir.connect();
        client.send(head);
        client.response();
    }
    let mut client = Frames::connect(weir.proxy);
    client.get(1, &long);
    client.stream(1);
    let records: Vec<Value> = lines(&log_of(&weir), 4).iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let expected =
        [(400, "HTTP/1.1", ""), (414, "HTTP/1.1", "target"), (431, "HTTP/1.1", ""), (414, "HTTP/2.0", "target")];
    for (record, (status, protocol, reason)) in records.iter().zip(expected) {
        assert_eq!((&record["status"], &record["protocol"]), (&status.into(), &protocol.into()), "{record}");
        assert!(record["rejected"].as_str().is_some_and(|rejected| rejected.contains(reason)), "{record}");
        assert_eq!((&record["client"], record.get("target")), (&"127.0.0.1".into(), None), "{record}");
        assert!(record["bytes"].as_u64() > Some(0), "{record}");
    }
}

#[test]
fn a_client_that_goes_away_is_logged_too() {
    let upstream = Upstream::start(|wire, _| while wire.request().is_some() {});
    let flags = ["--upstream", &format!("http://{}", upstream.address), "--access-log", "access.log"];
    let weir = Weir::serve(LIMITS, &flags);
    let mut client = weir.connect();
    client.send("GET /free HTTP/1.1\r\nhost: a\r\n\r\n");
    becomes("the request is under way", 1, || weir.metric("weir_http_requests_in_flight"));
    drop(client);
    let line = &lines(&log_of(&weir), 1)[0];
    assert!(line.contains("\"status\":499,\"bytes\":0"), "{line}");
}

#[test]
fn the_combined_format_goes_to_a_file_that_can_be_moved_away() {
    let flags = ["--access-log", "access.log", "--access-log-format", "combined", "--workers", "1"];
    let weir = Weir::serve(LIMITS, &flags);
    let log = log_of(&weir);
    let headers = [("referer", "https://b.example/"), ("user-agent", "curl/8")];
    weir.get("/free", &headers);
    let line = lines(&log, 1)[0].clone();
    let (before, after) = (line.split(" [").next().unwrap(), line.split("] ").nth(1).unwrap());
    assert_eq!(before, "127.0.0.1 - -");
    assert!(after.starts_with("\"GET /free HTTP/1.1\" 200 "), "{line}");
    assert!(after.ends_with(" \"https://b.example/\" \"curl/8\""), "{line}");
    for (signal, moved) in [("USR1", "access.log.1"), ("HUP", "access.log.2")] {
        let moved = weir.directory().join(moved);
        std::fs::rename(&log, &moved).unwrap();
        weir.signal(signal);
        eventually("the file is opened again", || if log.exists() { Ok(()) } else { Err(signal) });
        weir.get("/free", &headers);
        assert_eq!((lines(&log, 1).len(), lines(&moved, 1).len()), (1, 1));
    }
}

#[test]
fn what_was_logged_last_is_written_at_the_end() {
    let mut weir = Weir::serve(LIMITS, &["--access-log", "access.log"]);
    (0..10).for_each(|_| drop(weir.get("/free", &[])));
    weir.signal("TERM");
    assert!(weir.wait().success());
    assert_eq!(std::fs::read_to_string(log_of(&weir)).unwrap().lines().count(), 10);
}

#[test]
fn a_disk_that_takes_nothing_costs_lines_and_no_request() {
    let weir = Weir::serve(LIMITS, &["--access-log", "/dev/full"]);
    (0..10).for_each(|_| assert_eq!(weir.get("/free", &[]).status(), 200));
    becomes("the lines are counted", 10, || weir.metric("weir_access_log_dropped_total"));
    weir.until_logged("cannot write the access log");
}
