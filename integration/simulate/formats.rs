//! The words of log formats: units of times, statuses, and the parts that several logs have in common.

use serde_json::{Value, json};
use weir::logs::format::MAX_LINE;

use crate::support::binary::run_in;
use crate::support::process::Finished;

const RULES: &str = "limits:\n  PerIp: { by: ip, burst: 1, count: 1, period: 24h }\n";

/// Simulates these rules on logs in a directory of their own.
fn simulate(limits: &str, logs: &[&str], flags: &[&str]) -> Finished {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("limits.yaml"), limits).unwrap();
    let names: Vec<String> = (0..logs.len()).map(|number| format!("{number}.log")).collect();
    for (name, log) in names.iter().zip(logs) {
        std::fs::write(directory.path().join(name), log).unwrap();
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    run_in(directory.path(), &[&["simulate", "--format", "json"], &names[..], flags].concat())
}

#[track_caller]
fn report(limits: &str, logs: &[&str], flags: &[&str]) -> Value {
    let finished = simulate(limits, logs, flags);
    serde_json::from_str(&finished.out).unwrap_or_else(|_| panic!("{}", finished.text()))
}

#[test]
fn every_servers_status_is_read() {
    const APACHE_TIME: &str = "[22/Nov/2026:10:00:00 +0000]";
    for (format, time) in [
        ("$remote_addr - - [$time_local] \"$request\" $status", APACHE_TIME),
        ("%h - - %t \\\"%r\\\" %>s", APACHE_TIME),
        (
            "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT% - - [%START_TIME%] \"%REQ(:METHOD)% %REQ(:PATH)% %PROTOCOL%\" \
             %RESPONSE_CODE%",
            "[2026-11-22T10:00:00.000Z]",
        ),
    ] {
        let line = |status: u16| format!("192.0.2.1 - - {time} \"GET /a HTTP/1.1\" {status}\n");
        let report = report(RULES, &[&(line(200).repeat(6) + &line(429).repeat(4))], &["--log-format", format]);
        assert_eq!((&report["requests"], &report["answered_429"]), (&10.into(), &4.into()), "{format}: {report}");
    }
}

/// If a line has the time at which its request ended, the duration leads back to the arrival.
#[test]
fn what_a_request_took_has_the_unit_of_its_word() {
    for (format, took) in [("%T", "7"), ("%{s}T", "7"), ("%{ms}T", "7000"), ("%{us}T", "7000000"), ("%D", "7000000")] {
        let (format, line) =
            (format!("%h %{{end:sec}}t %m %U {format}"), format!("192.0.2.1 1795395607 GET /a {took}\n"));
        let report = report(RULES, &[&line], &["--log-format", &format]);
        assert_eq!(
            (&report["requests"], &report["from"]),
            (&1.into(), &"2026-11-23T01:00:00Z".into()),
            "{format}: {report}"
        );
    }
    let format = "$remote_addr [$time_iso8601] $request_method $request_uri $request_time";
    let report = report(RULES, &["192.0.2.1 [2026-11-23T01:00:07+00:00] GET /a 7.000\n"], &["--log-format", format]);
    assert_eq!(report["from"], "2026-11-23T01:00:00Z", "{report}");
}

/// A limit is covered only if every log has the parts that it reads.
#[test]
fn several_logs_tell_what_each_of_them_tells() {
    let whole = json!({
        "time_iso8601": "2026-11-22T10:00:00+00:00", "remote_addr": "192.0.2.1", "request_method": "GET",
        "host": "a.example", "uri": "/a", "query": "k=v", "http_x_api_key": "k", "request_time": "0.100",
        "ssl_client_s_dn": "CN=a",
    });
    for (member, by) in [
        ("remote_addr", "by: ip"),
        ("request_method", "by: method"),
        ("host", "by: host"),
        ("uri", "by: path"),
        ("query", "by: { query: k }"),
        ("http_x_api_key", "by: { header: x-api-key }"),
        ("ssl_client_s_dn", "by: { tls: subject }"),
        ("request_time", "by: global, algorithm: concurrency"),
    ] {
        let limits = format!("limits:\n  All: {{ by: global, burst: 100 }}\n  Part: {{ {by}, burst: 1 }}\n");
        let mut part = whole.clone();
        part.as_object_mut().unwrap().remove(member);
        let [whole, part] = [&whole, &part].map(|line| format!("{line}\n").repeat(2));
        for (logs, status) in [
            ([&*whole, &*whole], "covered"),
            ([&*whole, &*part], "not_covered"),
            ([&*part, &*whole], "not_covered"),
            ([&*part, &*part], "not_covered"),
        ] {
            let report = report(&limits, &logs, &[]);
            assert_eq!(report["limits"]["Part"]["status"], status, "{member}: {report}");
        }
    }
    // Caddy tells all headers but those that it redacts.
    let sample = concat!(env!("CARGO_MANIFEST_DIR"), "/integration/cases/logs/caddy.log");
    let caddy = std::fs::read_to_string(sample).unwrap();
    let limits = "limits:\n  Key: { by: { header: x-api-key }, burst: 1 }\n  Bearer: { by: { header: authorization }, burst: 1 }\n";
    let report = report(limits, &[&caddy, &caddy], &[]);
    let status = ["Key", "Bearer"].map(|limit| report["limits"][limit]["status"].as_str().unwrap());
    assert_eq!(status, ["covered", "not_covered"], "{report}");
}

#[test]
fn a_line_may_have_as_many_bytes_as_the_bound() {
    let line = |length: usize| {
        let bare = "192.0.2.1 - - [22/Nov/2026:10:00:00 +0000] \"GET / HTTP/1.1\" 200 5\n";
        bare.replace("GET /", &format!("GET /{}", "x".repeat(length + 1 - bare.len())))
    };
    let log = line(100).repeat(198) + &line(MAX_LINE) + &line(MAX_LINE + 1);
    let report = report(RULES, &[&log], &[]);
    let counts = ["lines", "requests", "unreadable"].map(|key| report[key].as_u64().unwrap());
    assert_eq!(counts, [200, 199, 1], "{report}");
}

#[test]
fn the_last_line_of_a_short_log_needs_no_end() {
    let line = "192.0.2.1 - - [22/Nov/2026:10:00:00 +0000] \"GET / HTTP/1.1\" 200 5";
    for log in [line.to_owned(), format!("\n{line}"), format!("\n\n{line}"), format!("{line}\n{line}")] {
        let report = report(RULES, &[&log], &[]);
        let requests = log.matches("GET").count();
        assert_eq!(
            (&report["requests"], &report["from"]),
            (&requests.into(), &"2026-11-22T10:00:00Z".into()),
            "{log:?}"
        );
    }
}

#[test]
fn a_recording_tells_the_cookies_that_its_first_line_names() {
    for (cookies, status) in [(json!([]), "not_covered"), (json!(["sid"]), "covered")] {
        let head = json!({ "cookies": cookies, "descriptors": [], "headers": [], "weir_recording": 1 });
        let line = json!({ "at_us": 1_795_233_606_000_000_u64, "method": "GET", "host": "a.example", "target": "/",
            "client": "192.0.2.7", "headers": [["cookie", "sid=a"]] });
        let limits = "limits:\n  All: { by: global, burst: 9 }\n  Sessions: { by: { cookie: sid }, burst: 1 }\n";
        let report = report(limits, &[&format!("{head}\n{line}\n{line}\n")], &[]);
        let limit = &report["limits"]["Sessions"];
        let denied = u64::from(status == "covered");
        assert_eq!((&limit["status"], &limit["denied"]), (&status.into(), &denied.into()), "{report}");
    }
}

/// A name without a unit means seconds, unless a request would have taken longer than the log.
#[test]
fn a_duration_without_a_unit_is_read_in_the_one_that_fits_the_log() {
    for (durations, unit, from) in [
        (["0.5", "1.25"], "seconds", "10:00:09.5Z"),
        (["1", "2"], "seconds", "10:00:09Z"),
        (["500", "1250"], "milliseconds", "10:00:09.5Z"),
        (["500.5", "1250.25"], "milliseconds", "10:00:09.4995Z"),
        (["500000", "1250000"], "microseconds", "10:00:09.5Z"),
        (["500000000", "1250000000"], "nanoseconds", "10:00:09.5Z"),
    ] {
        let line = |second: usize, duration: &str| {
            format!(
                "{{\"time\":\"2026-11-22T10:00:{second}Z\",\"remote_addr\":\"192.0.2.1\",\"request\":\"GET / HTTP/1.1\",\"duration\":{duration}}}\n"
            )
        };
        let found = simulate(RULES, &[&(line(10, durations[0]) + &line(15, durations[1]))], &[]);
        let report: Value = serde_json::from_str(&found.out).unwrap_or_else(|_| panic!("{}", found.text()));
        assert_eq!(report["from"], format!("2026-11-22T{from}"), "{durations:?}");
        assert!(found.err.contains(&format!("note: 0.log: `duration` is read in {unit}; ")), "{}", found.err);
    }
}
