//! The share of a log that was decided: told first, and required by a flag.

use std::ffi::OsString;
use std::path::Path;

use proptest::prelude::*;
use serde_json::Value;

use super::{directory, simulate};

const RULES: &str = "limits:\n  PerIp: { by: ip, burst: 1, count: 1, period: 24h }\n";

fn line(client: &str, second: u32) -> String {
    let (minute, second) = (second / 60 % 60, second % 60);
    format!("{client} - - [22/Nov/2026:10:{minute:02}:{second:02} +0000] \"GET /a HTTP/1.1\" 200 5 \"-\" \"curl/8\"\n")
}

fn log(decided: u32, unread: u32) -> String {
    let decided = (0..decided).map(|second| line("192.0.2.1", second));
    decided.chain((0..unread).map(|second| line("a.example", second))).collect()
}

#[test]
fn the_share_of_decided_lines_comes_first_and_may_be_required() {
    for (decided, unread, share) in [(100, 0, "100.0%"), (199, 1, "99.5%"), (1, 1, "50.0%"), (2999, 1, ">99.9%")] {
        let directory = directory(RULES, &log(decided, unread));
        let all = decided + unread;
        let first = format!("{} of {} lines ({share}) decided\n", commas(decided), commas(all));
        let text = simulate(directory.path(), &["--allow-unread"]);
        assert!(text.code == Some(0) && text.out.starts_with(&first), "{}", text.out);
        let page = simulate(directory.path(), &["--allow-unread", "--format", "html"]).out;
        let (told, verdict) = (first.trim().replace('>', "&gt;"), "would be denied");
        assert!(page.find(&told).unwrap_or(usize::MAX) < page.find(verdict).unwrap_or(0), "{page}");
        let json: Value = serde_json::from_str(&simulate(directory.path(), &["--format", "json"]).out).unwrap();
        assert_eq!((&json["coverage"]["decided"], &json["coverage"]["of"]), (&decided.into(), &all.into()));
        for (required, is_enough) in [("50%", true), ("99.4%", decided > 1), ("99.6%", decided > 199 || unread == 0)] {
            let found = simulate(directory.path(), &["--allow-unread", "--require-coverage", required]);
            let case = format!("{first}{required}: {}", found.text());
            assert_eq!(found.code, Some(i32::from(!is_enough)), "{case}");
            assert_eq!(found.err.contains(&format!("less than --require-coverage {required}")), !is_enough, "{case}");
        }
    }
}

fn commas(number: u32) -> String {
    if number < 1_000 { number.to_string() } else { format!("{},{:03}", number / 1_000, number % 1_000) }
}

/// It is said even if nothing would be denied.
#[test]
fn what_instants_do_not_tell_is_said_before_the_verdict() {
    let at = |time: &str, more: &str| {
        format!("{{\"time\":\"{time}\",\"remote_addr\":\"192.0.2.1\",\"request\":\"GET / HTTP/1.1\"{more}}}\n")
    };
    for (log, told) in [
        (at("2026-11-22T10:00:00Z", ""), "the log has only ends, in whole seconds: brief bursts look larger"),
        (at("2026-11-22T10:00:00.123Z", ""), "the log has only the ends of requests: bursts look smaller"),
        (
            at("2026-11-22T10:00:00Z", ",\"request_time\":1"),
            "the log has whole seconds: bursts within a second look larger",
        ),
        (at("2026-11-22T10:00:00.123Z", ",\"request_time\":0.012"), "0 of 1 request (0%) would be denied"),
    ] {
        let found = simulate(directory(RULES, &log).path(), &[]);
        let second = found.out.lines().nth(1).unwrap_or_default();
        assert!(second.starts_with(told), "{log}: {}", found.out);
    }
}

#[test]
fn more_late_requests_than_one_in_a_hundred_are_an_error() {
    for (late, is_tolerated) in [(1, true), (2, false)] {
        let text: String = (0..10_000).map(|number| line("192.0.2.1", 600 + number / 100)).collect();
        let late_lines: String = (0..late * 100).map(|number| line("192.0.2.2", number % 60)).collect();
        let directory = directory(RULES, &(text + &late_lines));
        let found = simulate(directory.path(), &[]);
        assert_eq!(found.code, Some(i32::from(!is_tolerated)), "{}", found.text());
        assert!(found.out.contains("requests (") && found.out.contains("came too far out of order"), "{}", found.out);
        assert_eq!(simulate(directory.path(), &["--allow-unread"]).code, Some(0));
    }
}

/// Runs the command in this process.
fn report(directory: &Path) -> Value {
    let path = |name: &str| directory.join(name).into_os_string();
    let mut arguments: Vec<OsString> = ["weir", "simulate", "--format", "json", "--limits"].map(OsString::from).into();
    arguments.extend([path("limits.yaml"), path("access.log")]);
    let (mut out, mut err) = (Vec::new(), Vec::new());
    weir::commands::run(arguments, None, &mut out, &mut err).unwrap();
    serde_json::from_slice(&out).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&err)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Each line that is read is decided or told, whatever stands in it.
    #[test]
    fn what_is_decided_and_what_is_told_are_what_was_read(
        lines in prop::collection::vec(
            prop_oneof![
                4 => (0u32..250, 0u32..3_600).prop_map(|(host, second)| line(&format!("192.0.2.{host}"), second)),
                1 => (0u32..9).prop_map(|second| line("a.example", second)),
                1 => (0u32..9).prop_map(|second| line("192.0.2.1", second).replace("GET /a HTTP/1.1", "-")),
                1 => "[ -~]{0,90}\n",
                1 => ("(web-1  \\| |\\[pod/web/nginx\\] |<13>Nov 27 04:00:00 host nginx: )", 0u32..9)
                    .prop_map(|(prefix, second)| prefix + &line("192.0.2.7", second)),
            ],
            1..80,
        ),
    ) {
        // The format is known.
        let text = line("192.0.2.1", 0) + &lines.concat();
        let directory = directory(RULES, &text);
        let report = report(directory.path());
        let told = report["left_out"].as_array().unwrap().iter().map(|reason| reason["lines"].as_u64().unwrap());
        let read = text.lines().filter(|line| !line.trim().is_empty()).count() as u64;
        let (decided, told) = (report["requests"].as_u64().unwrap(), told.sum::<u64>());
        prop_assert_eq!((decided + told, &report["lines"]), (read, &read.into()), "{}", report);
        let of_limit = &report["limits"]["PerIp"];
        prop_assert_eq!(of_limit["requests"].as_u64().unwrap(), decided, "{}", report);
    }
}
