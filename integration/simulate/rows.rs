//! Small logs and what is found in them.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::binary::{PATH, run_in};
use crate::support::process::{Finished, finish};

/// A combined line of an address at a second after midnight.
fn line(second: u32, address: &str, path: &str) -> String {
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!(
        "{address} - - [22/Nov/2026:{hour:02}:{minute:02}:{second:02} +0000] \"GET {path} HTTP/1.1\" 200 5 \"-\" \"curl/8\"\n"
    )
}

/// Simulates these rules on a log in a directory of their own.
#[track_caller]
fn simulate(limits: &str, log: &str, flags: &[&str]) -> (tempfile::TempDir, Finished) {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("limits.yaml"), limits).unwrap();
    std::fs::write(directory.path().join("access.log"), log).unwrap();
    let finished = again(directory.path(), flags);
    (directory, finished)
}

fn again(directory: &Path, flags: &[&str]) -> Finished {
    run_in(directory, &[&["simulate", "access.log"], flags].concat())
}

#[track_caller]
fn report(finished: &Finished) -> Value {
    assert_eq!(finished.code, Some(0), "{}", finished.text());
    serde_json::from_str(&finished.out).unwrap()
}

/// One address sends five requests at once, another one every ten seconds.
fn two_clients() -> String {
    let mut log = String::new();
    for second in 0..6 {
        log += &line(second * 10, "192.0.2.1", "/a");
    }
    (0..5).for_each(|_| log += &line(60, "192.0.2.2", "/a"));
    log
}

const BY_IP: &str = "limits:\n  PerIp: { count: 3, period: 1m }\n";

#[test]
fn the_verdict_comes_first_and_ids_are_hashed() {
    let (directory, finished) = simulate(BY_IP, &two_clients(), &[]);
    assert_eq!(finished.code, Some(0), "{}", finished.text());
    let text = &finished.out;
    assert!(
        super::behind_coverage(text)
            .starts_with("3 of 11 requests (27.3%) would be denied, 2026-11-22 00:00:00 to 2026-11-22 00:01:00 UTC\n"),
        "{text}"
    );
    for part in ["PerIp: 2 of 2 ids (100.0%) would be denied", "max 6", "whole seconds", " #"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("192.0.2"), "{text}");
    assert!(again(directory.path(), &["--show-ids"]).out.contains("2 192.0.2.2"));
}

#[test]
fn json_has_the_counts_of_each_limit() {
    let (_directory, finished) = simulate(BY_IP, &two_clients(), &["--format", "json"]);
    let report = report(&finished);
    let limit = &report["limits"]["PerIp"];
    let counts = ["requests", "denied", "ids", "ids_denied"].map(|key| limit[key].as_u64().unwrap());
    assert_eq!((counts, &report["lines"], &report["unreadable"]), ([11, 3, 2, 2], &11.into(), &0.into()), "{report}");
    let slices = &report["slices"];
    let sum = |name: &str| slices[name].as_array().unwrap().iter().map(|count| count.as_u64().unwrap()).sum::<u64>();
    assert_eq!((sum("admitted"), sum("denied")), (8, 3));
}

#[test]
fn a_broken_line_is_counted_and_shown_and_a_log_of_them_is_an_error() {
    let log = format!("{}oops\n{}", line(0, "192.0.2.1", "/"), line(1, "192.0.2.1", "/").repeat(98));
    let (_directory, finished) = simulate(BY_IP, &log, &["--format", "json"]);
    let report = report(&finished);
    assert_eq!((&report["lines"], &report["unreadable"]), (&100.into(), &1.into()));
    assert!(finished.err.contains("access.log:2: unreadable line: expected "), "{}", finished.err);
    let (_directory, finished) = simulate(BY_IP, "oops\n", &["--log-format", "combined"]);
    assert_eq!(finished.code, Some(1), "{}", finished.text());
}

#[test]
fn a_limit_that_needs_what_the_log_does_not_tell_is_not_covered() {
    let limits = "
limits:
  Accounts: { by: { header: x-account }, count: 1, period: 1h }
  Flights:  { by: ip, algorithm: concurrency, burst: 1 }
  Agents:   { by: { header: user-agent }, count: 1, period: 1h }
  Costly:   { cost_from_response: { header: x-tokens }, count: 1, period: 1h }
  Off:      { count: 1, period: 1h, mode: off }
";
    let (_directory, finished) = simulate(limits, &two_clients(), &["--format", "json"]);
    let report = report(&finished);
    let limit = |name: &str| {
        let limit = &report["limits"][name];
        (limit["status"].as_str().unwrap(), limit["missing"][0].as_str(), limit["denied"].as_u64().unwrap())
    };
    assert_eq!(limit("Accounts"), ("not_covered", Some("the header `x-account`"), 0));
    assert_eq!(limit("Flights"), ("not_covered", Some("how long requests take"), 0));
    assert_eq!(limit("Agents"), ("covered", None, 10));
    assert_eq!(limit("Costly").0, "not_covered");
    assert_eq!(limit("Off"), ("off", None, 0));
}

#[test]
fn several_files_are_one_log_and_standard_input_is_read() {
    let log = two_clients();
    let (directory, _) = simulate(BY_IP, &log[..log.find("192.0.2.2").unwrap()], &[]);
    std::fs::write(directory.path().join("second.log"), &log[log.find("192.0.2.2").unwrap()..]).unwrap();
    let both = again(directory.path(), &["second.log", "--format", "json"]);
    assert_eq!(report(&both)["limits"]["PerIp"]["denied"], 3);
    let command = format!("cat access.log second.log | {PATH} simulate - --format json");
    let piped = finish(Command::new("sh").args(["-c", &command]).current_dir(directory.path()));
    assert_eq!(report(&piped)["limits"]["PerIp"]["denied"], 3);
}

#[test]
fn two_rules_files_are_compared_request_by_request() {
    let (directory, _) = simulate(BY_IP, &two_clients(), &[]);
    let other = "limits:\n  PerIp: { count: 6, period: 1m }\n  Paths: { by: path, burst: 10 }\n";
    std::fs::write(directory.path().join("other.yaml"), other).unwrap();
    let finished = again(directory.path(), &["--against", "other.yaml", "--format", "json", "--show-ids"]);
    let report = report(&finished);
    let against = &report["against"];
    assert_eq!((&against["only_here"], &against["only_there"], &against["both"]), (&2.into(), &0.into(), &1.into()));
    assert_eq!(against["limits"]["PerIp"]["only_here"]["requests"], 3);
    assert_eq!(against["limits"]["Paths"]["only_there"]["most_denied"][0]["id"], "/a");
    let text = again(directory.path(), &["--against", "other.yaml"]).out;
    assert!(text.contains("Requests denied only by limits.yaml: 2, only by other.yaml: 0, by both: 1"), "{text}");
}

/// Thirty clients; client n sends about n requests per minute.
fn many_clients() -> String {
    let mut log = String::new();
    for second in 0..180 {
        for client in 1..=30 {
            if second % 60 * client % 60 < client {
                log += &line(second, &format!("192.0.2.{client}"), "/");
            }
        }
    }
    log
}

/// The denied requests and ids with these numbers.
fn denied(log: &str, burst: u64, count: u64) -> (u64, u64) {
    let limits = format!("limits:\n  PerIp: {{ burst: {burst}, count: {count}, period: 1m }}\n");
    let (_directory, finished) = simulate(&limits, log, &["--format", "json"]);
    let limit = &report(&finished)["limits"]["PerIp"];
    (limit["denied"].as_u64().unwrap(), limit["ids_denied"].as_u64().unwrap())
}

#[test]
fn the_suggested_numbers_keep_the_share_and_one_less_does_not() {
    let log = many_clients();
    let requests = log.lines().count() as u64;
    for (flag, share, allowed) in [("--deny-at-most", "2%", requests / 50), ("--deny-at-most-ids", "10%", 3)] {
        let limits = "limits:\n  PerIp: { count: 10, period: 1m }\n";
        let (_directory, finished) = simulate(limits, &log, &["--format", "json", flag, share]);
        let suggestion = &report(&finished)["limits"]["PerIp"]["suggestion"];
        let number = |what: &str| suggestion[what]["number"].as_u64().unwrap();
        let denied = |burst, count| {
            let (requests, ids) = denied(&log, burst, count);
            if flag == "--deny-at-most" { requests } else { ids }
        };
        let both = number("both");
        assert!(denied(both, both) <= allowed && denied(both - 1, both - 1) > allowed, "{flag} {suggestion}");
        let burst = number("burst");
        assert!(denied(burst, 10) <= allowed && denied(burst - 1, 10) > allowed, "{flag} {suggestion}");
    }
}

#[test]
fn the_report_does_not_depend_on_the_number_of_threads() {
    let mut log = String::new();
    for number in 0..10_000_u32 {
        let address = format!("192.0.{}.{}", number % 7, number * number % 251);
        let _ = write!(log, "{}", line(number / 10, &address, &format!("/{}", number % 13)));
    }
    let limits = "limits:\n  PerIp: { count: 3, period: 1m }\n  Paths: { by: path, count: 100, period: 1m }\n";
    let flags = ["--show-ids", "--deny-at-most", "1%", "--threads"];
    let (directory, one) = simulate(limits, &log, &[&flags[..], &["1"]].concat());
    assert_eq!(one.code, Some(0), "{}", one.text());
    assert!(one.out.contains("PerIp: "), "{}", one.out);
    assert_eq!(again(directory.path(), &[&flags[..], &["4"]].concat()), one);
}

/// Six requests in the same second: two pass at once, three wait for up to 1.5 s, one is denied.
#[test]
fn delayed_requests_pass_and_are_counted() {
    let limits = "limits:\n  Queue: { burst: 2, count: 2, period: 1s, delay: 1500ms }\n";
    let log = line(0, "192.0.2.1", "/a").repeat(6) + &line(10, "192.0.2.1", "/a");
    let (directory, finished) = simulate(limits, &log, &["--format", "json", "--deny-at-most", "0%"]);
    let report = report(&finished);
    let limit = &report["limits"]["Queue"];
    // Quantiles are at most 1/64 too high.
    for object in [&report, limit] {
        let counts = ["requests", "denied", "delayed"].map(|key| object[key].as_u64().unwrap());
        assert_eq!(counts, [7, 1, 3], "{report}");
        assert_eq!(object["delay_ms"], serde_json::json!({ "p50": 1_007, "p99": 1_500, "max": 1_500 }));
    }
    assert_eq!(limit["suggestion"]["burst"]["number"], 3, "with the same delay, one more passes");
    let text = again(directory.path(), &[]).out;
    assert!(
        text.contains("\ndelayed, and then passed: 3 of 7 requests (42.9%): p50 1007ms, p99 1500ms, max 1500ms\n"),
        "{text}"
    );
    let (_directory, finished) = simulate(BY_IP, &two_clients(), &["--format", "json"]);
    let report = self::report(&finished);
    assert_eq!((&report["delayed"], &report["delay_ms"]), (&0.into(), &Value::Null));
}

/// A request of 3 s that waits for 1 s holds its slot from the first to the fourth second.
#[test]
fn a_delayed_request_takes_its_slot_when_it_has_waited() {
    let limits = "limits:\n  Queue: { match: { path: /a }, by: global, burst: 1, count: 1, period: 1s, delay: 2s }\n  \
                  Slots: { by: global, algorithm: concurrency, capacity: 1 }\n";
    // When it arrives and how long it takes in milliseconds, and its path.
    let entries = [(0, 0, "/a"), (1, 3_000, "/a"), (500, 200, "/b"), (2_500, 500, "/b"), (4_500, 100, "/b")];
    let line = |(at, took, path): (u32, u32, &str)| {
        // The log is that of a server that had a delay, too.
        let delay = if took == 3_000 { 700 } else { 0 };
        let time = format!("2026-11-22T00:00:{:02}.{:03}Z", at / 1_000, at % 1_000);
        format!(
            "{{\"bytes\":5,\"verdict\":\"allowed\",\"protocol\":\"HTTP/1.1\",\"time\":\"{time}\",\"duration_ms\":{},\"delay_ms\":{delay},\"client\":\"192.0.2.1\",\"method\":\"GET\",\"target\":\"{path}\"}}\n",
            took + delay
        )
    };
    let log: String = entries.map(line).concat();
    let (_directory, finished) = simulate(limits, &log, &["--format", "json"]);
    let report = report(&finished);
    assert_eq!((&report["delayed"], &report["limits"]["Slots"]["denied"]), (&1.into(), &1.into()), "{report}");
    let (most, from) = (&report["delay_ms"]["max"], &report["limits"]["Slots"]["first"]);
    assert_eq!((most, from), (&999.into(), &"2026-11-22T00:00:02.5Z".into()), "{report}");
}

/// A candidate that is enforced for some ids: they have its numbers, and it is counted for the others only.
#[test]
fn an_enforced_candidate_is_shown_with_its_share_and_numbers() {
    let log: String = (0..300).map(|number| line(number, &format!("192.0.2.{}", number % 100), "/a")).collect();
    let simulate = |candidate: &str, flags: &[&str]| {
        let limits = format!("limits:\n  PerIp: {{ burst: 5, count: 1, period: 1d{candidate} }}\n");
        simulate(&limits, &log, flags).1
    };
    let json = ["--format", "json"];
    for (candidate, requests, denied, beside, denied_beside, shown) in [
        ("", 300, 0, None, 0, ["numbers      burst 5, 1 per 24h\n", ""]),
        (
            ", candidate: { burst: 2 }",
            300,
            0,
            Some(300),
            100,
            [
                "numbers      burst 5, 1 per 24h\n",
                "candidate    burst 2, never refills; would deny 100 of 300 requests (33.3%)\n",
            ],
        ),
        (
            ", candidate: { burst: 2, enforce_for: 100% }",
            300,
            100,
            Some(0),
            0,
            [
                "numbers      burst 5, 1 per 24h, but for ids in the share of the candidate\n",
                "candidate    burst 2, never refills, for 100% of ids\n",
            ],
        ),
    ] {
        let report = report(&simulate(candidate, &json));
        let limit = &report["limits"]["PerIp"];
        assert_eq!((&limit["requests"], &limit["denied"]), (&requests.into(), &denied.into()), "{limit}");
        assert_eq!(limit["candidate"]["requests"].as_u64(), beside, "{limit}");
        assert_eq!(limit["candidate_denied"].as_u64().unwrap_or_default(), denied_beside, "{limit}");
        let text = simulate(candidate, &[]).out;
        assert!(shown.iter().all(|shown| text.contains(shown)), "{text}");
    }
    let several = ", candidates: { low: { burst: 2, enforce_for: 100% }, lower: { burst: 1 }, high: { burst: 4 } }";
    let limit = &report(&simulate(several, &json))["limits"]["PerIp"];
    let denied = ["low", "lower", "high"].map(|name| limit["candidates"][name]["denied"].as_u64());
    assert_eq!(
        (denied, &limit["denied"], &limit["candidate"]),
        ([Some(0), Some(200), Some(0)], &100.into(), &Value::Null)
    );
    let shown = [
        "low: burst 2, never refills, for 100% of ids",
        "lower: burst 1, never refills; would deny 200 of 300 requests (66.7%)",
        "high: burst 4, never refills; would deny 0 of 300 requests (0%)",
    ];
    for (format, before) in [("text", "  candidate    "), ("html", "")] {
        let told = simulate(several, &["--format", format]).out;
        assert!(shown.iter().all(|shown| told.contains(&format!("{before}{shown}"))), "{told}");
    }
    let half = ", candidate: { burst: 2, enforce_for: 50% }";
    let limit = &report(&simulate(half, &json))["limits"]["PerIp"];
    let number = |value: &Value| value.as_u64().unwrap();
    let (beside, denied) = (number(&limit["candidate"]["requests"]), number(&limit["denied"]));
    // Each id sends three requests. Those in the share are denied the third, and the candidate would deny it to the others.
    assert!((90..210).contains(&beside) && beside.is_multiple_of(3), "{limit}");
    assert_eq!((denied, number(&limit["candidate_denied"])), ((300 - beside) / 3, beside / 3), "{limit}");
    assert_eq!(
        (&limit["candidate"]["enforce_for_percent"], &limit["candidate"]["numbers"]),
        (&50.0.into(), &"burst 2, never refills".into())
    );
    let text = simulate(half, &[]).out;
    let shown = format!(
        "  candidate    burst 2, never refills, for 50% of ids; would deny {} of {beside} requests (33.3%) of the others\n",
        beside / 3
    );
    assert!(text.contains(&shown), "{text}");
    let page = simulate(half, &["--format", "html"]).out;
    assert!(page.contains(shown.trim().strip_prefix("candidate    ").unwrap()), "{page}");
}
