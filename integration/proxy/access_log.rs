//! The proxy's access log.

use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support::binary::{self, run_in};
use crate::support::frames::{Frames, RST_STREAM, SETTINGS, frame};
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

/// A disk that is full after 16 KiB: what was written is not counted as lost.
#[test]
fn every_request_is_either_in_the_log_or_counted_as_lost() {
    let weir = Weir::launch(LIMITS, |_| {
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' XFSZ && ulimit -f 32 && exec \"$@\"", "sh", binary::PATH]);
        command.args(Weir::arguments(&["--access-log", "access.log", "--workers", "1"]));
        command
    });
    let mut client = weir.connect();
    // In one batch, which is cut in the middle of a line.
    for _ in 0..1_000 {
        assert_eq!(client.get_with("/free", &[("user-agent", "x")]).status(), 200);
    }
    let written = || {
        let text = std::fs::read_to_string(log_of(&weir)).unwrap_or_default();
        text.lines().filter(|line| serde_json::from_str::<Value>(line).is_ok()).count() as u64
    };
    weir.until_logged("cannot write the access log");
    becomes("lines and losses", 1_000, || written() + weir.metric("weir_access_log_dropped_total"));
    assert!(written() > 10, "{}", written());
}

/// The members of a line: the status, the upstream's error, and the cause of a response's early end.
type Expected = (u64, Option<&'static str>, Option<&'static str>);

#[test]
fn the_log_tells_what_went_wrong_and_is_read_back() {
    let large: &'static str = ok(&"x".repeat(64 << 20)).leak();
    let upstream = Upstream::start(move |wire, _| {
        while let Some(head) = wire.request() {
            let begun = "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc";
            match head.start.split(' ').nth(1).unwrap() {
                "/whole" => wire.send(ok("whole")),
                "/large" => drop(wire.stream.write_all(large.as_bytes())),
                "/closes" => return,
                "/babbles" => return wire.send("220 mail.example ESMTP\r\n\r\n"),
                "/mute" => return wire.expect_end(),
                "/breaks" => return wire.send(begun),
                "/resets" => {
                    wire.send(begun);
                    // Unread bytes make the system reset the connection.
                    return socket2::SockRef::from(&wire.stream).set_linger(Some(std::time::Duration::ZERO)).unwrap();
                }
                "/chunks" => {
                    return wire.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\nx\r\n");
                }
                _ => {
                    wire.send(begun);
                    return wire.expect_end();
                }
            }
        }
    });
    let refusing = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (to_upstream, to_nobody) = (format!("http://{}", upstream.address), format!("/nobody=http://{refusing}"));
    let flags = [
        &["--upstream", &to_upstream, "--upstream", &to_nobody, "--access-log", "access.log", "--workers", "1"][..],
        &["--response-timeout", "2s", "--upstream-body-timeout", "2s", "--body-timeout", "1s"],
    ];
    let weir = Weir::serve(LIMITS, &flags.concat());
    let mut count = 0;
    let mut check = |what: &str, expected: Expected| {
        count += 1;
        let line = lines(&log_of(&weir), count).pop().unwrap();
        let record: Value = serde_json::from_str(&line).unwrap();
        let text = |name: &str| record.get(name).and_then(Value::as_str);
        let told = (record["status"].as_u64().unwrap(), text("upstream_error"), text("cut"));
        assert_eq!(told, expected, "{what}: {line}");
    };
    let ask = |path: &str| {
        let mut client = weir.connect();
        client.send(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n"));
        client
    };
    let rows: [(&str, Expected); 9] = [
        ("/whole", (200, None, None)),
        ("/nobody", (502, Some("connect"), None)),
        ("/closes", (502, Some("closed"), None)),
        ("/babbles", (502, Some("malformed"), None)),
        ("/mute", (504, Some("response_timeout"), None)),
        ("/breaks", (200, Some("body"), Some("upstream"))),
        ("/resets", (200, Some("body"), Some("upstream"))),
        ("/chunks", (200, Some("body"), Some("upstream"))),
        ("/stops", (200, Some("body_timeout"), Some("timeout"))),
    ];
    for (path, expected) in rows {
        let mut client = ask(path);
        client.head();
        check(path, expected);
        let mut client = Frames::connect(weir.proxy);
        client.get(1, path);
        client.stream(1);
        check(&format!("{path} over HTTP/2"), expected);
    }
    // Clients that leave in the middle of a response.
    let mut client = ask("/stops");
    client.head();
    drop(client);
    check("a client that leaves", (200, None, Some("client")));
    let mut client = Frames::connect(weir.proxy);
    client.get(1, "/stops");
    client.next_of(crate::support::frames::DATA);
    client.send(frame(RST_STREAM, 0, 1, &[0, 0, 0, 8]));
    check("a client that resets its stream", (200, None, Some("client")));
    // Clients that do not read.
    let client = ask("/large");
    check("a client that does not read", (200, None, Some("timeout")));
    drop(client);
    let mut client = Frames::connect(weir.proxy);
    client.send(frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]));
    client.get(1, "/whole");
    check("a client without a window", (200, None, Some("timeout")));
    // A client that does not send its body gets a response, and no upstream is at fault.
    let mut client = weir.connect();
    client.send("POST /whole HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nabc");
    client.response();
    check("a client that does not send", (408, None, None));

    let simulated =
        run_in(weir.directory(), &["simulate", "access.log", "--limits", "limits.yaml", "--format", "json"]);
    let report: Value = serde_json::from_str(&simulated.out).unwrap_or_else(|_| panic!("{}", simulated.text()));
    assert_eq!((&report["lines"], &report["unreadable"]), (&count.into(), &0.into()), "{report}");
}
