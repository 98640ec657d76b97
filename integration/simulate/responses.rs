//! Costs that depend on the response, where the log contains it.

use serde_json::Value;

use super::{directory, simulate};

/// A request every minute, with the status and the bytes of each response.
fn log(responses: &[(u16, &str)]) -> String {
    let line = |(minute, (status, bytes)): (usize, &(u16, &str))| {
        format!("192.0.2.1 - - [22/Nov/2026:10:{minute:02}:00 +0000] \"POST /login HTTP/1.1\" {status} {bytes}\n")
    };
    responses.iter().enumerate().map(line).collect()
}

#[track_caller]
fn denied(limit: &str, log: &str, flags: &[&str]) -> Value {
    let limits = format!("limits:\n  Tested: {{ by: ip, algorithm: fixed_window, {limit} }}\n");
    let found = simulate(directory(&limits, log).path(), &[&["--format", "json"], flags].concat());
    let report: Value = serde_json::from_str(&found.out).unwrap_or_else(|_| panic!("{}", found.text()));
    let tested = &report["limits"]["Tested"];
    assert_eq!(tested["status"], "covered", "{report}");
    tested["denied"].clone()
}

#[test]
fn only_responses_with_the_status_are_charged() {
    let (failed, passed) = ((401, "5"), (200, "5"));
    let limit = "count: 3, period: 24h, spend_when: { status: [401] }";
    for (responses, expected) in [
        (vec![passed; 20], 0),
        (vec![failed; 10], 7),
        // The third failure is the fifth request.
        ([failed, passed].repeat(5), 5),
        ([vec![passed; 9], vec![failed; 4]].concat(), 1),
    ] {
        assert_eq!(denied(limit, &log(&responses), &[]), expected, "{responses:?}");
    }
}

#[test]
fn the_bytes_of_responses_are_charged() {
    let limit = "count: 1000, period: 24h, cost_from_response: { bytes: response, reserve: 1 }";
    for (responses, expected) in [
        (vec![(200, "400"); 10], 7),
        (vec![(200, "1"); 10], 0),
        (vec![(304, "-"); 10], 0),
        (vec![(200, "1000000"); 10], 9),
    ] {
        assert_eq!(denied(limit, &log(&responses), &[]), expected, "{responses:?}");
    }
}

/// A limit that looks at no status needs none in the log.
#[test]
fn bytes_are_charged_where_the_log_has_no_status() {
    let line =
        |second: u64, bytes: &str| format!("192.0.2.1 {}.000 \"GET /a HTTP/1.1\" {bytes}\n", 1_795_233_600 + second);
    let format = ["--log-format", "$remote_addr $msec \"$request\" $body_bytes_sent"];
    let limit = "count: 1000, period: 24h, cost_from_response: { bytes: response, reserve: 1 }";
    for (bytes, expected) in [("400", 7), ("1", 0), ("1000000", 9)] {
        let log: String = (0..10).map(|second| line(second, bytes)).collect();
        assert_eq!(denied(limit, &log, &format), expected, "{bytes}");
    }
    let limits = format!(
        "limits:\n  All: {{ by: global, burst: 99 }}\n  Tested: {{ {limit}, spend_when: {{ status: [200] }} }}\n"
    );
    let found = simulate(directory(&limits, &line(0, "400")).path(), &format);
    assert!(
        found.out.contains("Tested: not covered by this log, which lacks the status of responses\n"),
        "{}",
        found.text()
    );
}

/// What a response takes is taken at its end.
#[test]
fn costs_are_settled_when_responses_end() {
    let line = |start: u64, took: u64| {
        format!("192.0.2.1 {}.000 {took}.000 \"POST /login HTTP/1.1\" 401\n", 1_795_233_600 + start + took)
    };
    let limit = "count: 1, period: 24h, spend_when: { status: [401] }";
    let format = ["--log-format", "$remote_addr $msec $request_time \"$request\" $status"];
    // The second one comes while the first is answered, the third one later.
    assert_eq!(denied(limit, &(line(5, 1) + &line(0, 10) + &line(11, 1)), &format), 1);
    assert_eq!(denied(limit, &(line(0, 4) + &line(5, 1) + &line(11, 1)), &format), 2);
}

/// No more responses are in flight at once than there may be keys.
#[test]
fn costs_that_are_charged_too_early_are_told() {
    let line = |start: u64| format!("192.0.2.1 {}.000 10.000 \"POST /login HTTP/1.1\" 401\n", 1_795_233_610 + start);
    let log: String = (0..5).map(line).collect();
    let limits = "limits: { Tested: { by: ip, count: 9, period: 24h, spend_when: { status: [401] } } }";
    let directory = directory(limits, &log);
    let format = ["--log-format", "$remote_addr $msec $request_time \"$request\" $status"];
    let told =
        "2 costs that responses report were charged before these ended, because more than --max-keys were in flight\n";
    for (max_keys, is_told) in [("3", true), ("5", false)] {
        let found = simulate(directory.path(), &[&format[..], &["--max-keys", max_keys]].concat());
        assert!(found.code == Some(0) && found.out.contains(told) == is_told, "{}", found.text());
    }
}

#[test]
fn a_line_without_a_status_is_left_out() {
    let line =
        |status: &str| format!("192.0.2.1 - - [22/Nov/2026:10:00:00 +0000] \"POST /login HTTP/1.1\" {status} 5\n");
    let limits = "limits:\n  All: { by: global, burst: 9999 }\n  Tested: { by: ip, count: 3, period: 24h, spend_when: { status: [401] } }\n";
    let found = simulate(directory(limits, &(line("401").repeat(3) + &line("-"))).path(), &[]);
    let told = "Tested leaves out 1 of 4 lines (25.0%), which lack the status of responses, such as access.log:4\n";
    assert!(found.out.contains(told), "{}", found.text());
}
