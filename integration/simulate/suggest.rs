//! `weir suggest`: numbers from logs that deny no more than is asked for, with tests that pass.

use std::fmt::Write as _;
use std::path::Path;

use proptest::prelude::*;
use serde_json::Value;

use super::directory;
use crate::support::binary::run_in;
use crate::support::process::Finished;

fn suggest(directory: &Path, flags: &[&str]) -> Finished {
    run_in(directory, &[&["suggest", "access.log"], flags].concat())
}

/// Requests of clients, by second and path.
fn log(requests: &[(u32, u8, u8)]) -> String {
    requests.iter().fold(String::new(), |mut log, (second, client, path)| {
        let (minute, second) = (second / 60, second % 60);
        let _ = writeln!(
            log,
            "192.0.2.{client} - - [22/Nov/2026:10:{minute:02}:{second:02} +0000] \"GET /p{path} HTTP/1.1\" 200 5 \"-\" \"a\""
        );
        log
    })
}

/// The counts of the candidates, by limit.
fn suggested(document: &str) -> Vec<(String, u64)> {
    let sections = document.split("\n## ").skip(1).filter(|section| section.contains("candidate: { count: "));
    let number = |section: &str| section.split("count: ").nth(1)?.split(',').next()?.parse().ok();
    sections.filter_map(|section| Some((section.split(':').next()?.to_owned(), number(section)?))).collect()
}

fn rules(counts: &[(String, u64)]) -> String {
    let count = |name: &str| counts.iter().find(|(other, _)| other == name).map_or(1_000, |(_, count)| *count);
    format!(
        "limits:\n  PerIp: {{ by: ip, count: {}, period: 1m }}\n  \
         Narrow: {{ match: {{ path: /p1 }}, by: ip, algorithm: sliding_log, count: {}, period: 10s }}\n  \
         All: {{ by: global, algorithm: fixed_window, count: {}, period: 30s }}\n",
        count("PerIp"),
        count("Narrow"),
        count("All")
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    /// With all suggestions in force at once, no limit denies more than the share, and the tests hold.
    #[test]
    fn suggestions_deny_no_more_than_is_asked_for_and_pass_their_tests(
        mut requests in prop::collection::vec((0..300_u32, 1..8_u8, 0..3_u8), 20..300),
        share in prop::sample::select(vec![0, 1, 5, 20, 60]),
        of_ids in any::<bool>(),
    ) {
        requests.sort_unstable();
        let directory = directory(&rules(&[]), &log(&requests));
        let flag = if of_ids { "--deny-at-most-ids" } else { "--deny-at-most" };
        let done = suggest(directory.path(), &[flag, &format!("{share}%")]);
        prop_assert_eq!(done.code, Some(0), "{}", done.text());
        let counts = suggested(&done.out);
        let names = |name: &str| counts.iter().any(|(other, _)| other == name);
        prop_assert!(names("PerIp") && names("All"), "{}", done.out);

        let mut adopted = rules(&counts);
        adopted.push_str("tests:\n");
        for tests in done.out.split("\ntests:\n").skip(1) {
            adopted.push_str(tests.split("```").next().unwrap());
        }
        prop_assert!(adopted.contains("next does not"), "{}", done.out);
        std::fs::write(directory.path().join("limits.yaml"), &adopted).unwrap();
        let tested = run_in(directory.path(), &["test"]);
        prop_assert_eq!(tested.code, Some(0), "{}{}", adopted, tested.text());
        let report = run_in(directory.path(), &["simulate", "access.log", "--format", "json"]);
        let report: Value = serde_json::from_str(&report.out).unwrap();
        for (name, limit) in report["limits"].as_object().unwrap() {
            let [denied, all] = if of_ids { ["ids_denied", "ids"] } else { ["denied", "requests"] };
            let [denied, all] = [&limit[denied], &limit[all]].map(|number| number.as_u64().unwrap());
            prop_assert!(denied * 100 <= all * share, "{name} denies {denied} of {all}: {}\n{adopted}", done.out);
        }
    }
}

#[test]
fn limits_without_a_suggestion_say_why() {
    let rules = "
limits:
  Account: { by: { header: x-account }, count: 5, period: 1m }
  Two: { by: ip, rates: [{ count: 2, period: 1s }, { count: 90, period: 1h }] }
  Tried: { by: ip, count: 50, period: 1m, candidate: { count: 5, period: 1m } }
  Right: { by: ip, algorithm: sliding_log, count: 3, period: 1m }
  Absent: { match: { path: /absent }, by: ip, count: 5, period: 1m }
  Shadow: { by: ip, count: 50, period: 1m, mode: shadow }
";
    let directory = directory(rules, &log(&[(1, 1, 0), (2, 1, 0), (3, 1, 0)]));
    let done = suggest(directory.path(), &[]);
    assert_eq!(done.code, Some(0), "{}", done.text());
    for why in [
        "- `Account`: the log lacks the header `x-account`",
        "- `Two`: it has several windows",
        "- `Tried`: it has a candidate already",
        "- `Right`: 3 in any 1m is what the log suggests",
        "- `Absent`: it decided no request",
        "in shadow and denies nothing, so these may be its own numbers: `count: 3, period: 1m`",
    ] {
        assert!(done.out.contains(why), "{why}: {}", done.out);
    }
    let one = suggest(directory.path(), &["--limit", "Two"]);
    assert!(one.out.contains("No limit gets other numbers.\n") && !one.out.contains("Account`:"), "{}", one.out);
    for (flags, told) in [(&["--limit", "Shadwo"][..], "Shadow"), (&["--deny-at-most", "1"], "expected a share")] {
        let done = suggest(directory.path(), flags);
        assert!(done.code == Some(2) && done.err.contains(told), "{}", done.text());
    }
    let pipe = run_in(directory.path(), &["suggest", "-"]);
    assert!(pipe.code == Some(2) && pipe.err.contains("the logs are read twice"), "{}", pipe.text());
}

/// With the suggestion for the hour, the limit of a minute sees far more requests of the id with an override.
#[test]
fn limits_that_the_suggestions_of_others_change_are_named() {
    let rules = "
limits:
  Minute: { by: ip, count: 20, period: 1m }
  Hour: { by: ip, count: 1, period: 1h }
overrides:
  - Minute: { ids: [192.0.2.2], count: 1, period: 1m }
";
    let mut requests: Vec<(u32, u8, u8)> = (0..60).map(|number| (number * 5, 2, 0)).collect();
    requests.extend((0..540).map(|number| (number % 300, 3 + u8::try_from(number % 45).unwrap(), 0)));
    requests.sort_unstable();
    let directory = directory(rules, &log(&requests));
    let done = suggest(directory.path(), &["--deny-at-most", "1%"]);
    assert_eq!(done.code, Some(0), "{}", done.text());
    assert!(done.out.contains("- `Minute`: no numbers"), "{}", done.out);
    let changed = done.out.split("## Limits that the suggestions change").nth(1).unwrap();
    assert!(changed.contains("- `Minute` denies ") && changed.contains(" with the suggestions"), "{}", done.out);
}

/// Each kind of condition and id that a test can have.
#[test]
fn a_test_meets_the_conditions_of_its_limit() {
    for (conditions, by, step) in [
        ("path: '/p0/**', methods: [POST, GET]", "ip", "{ post: /p0/, ip: 192.0.2.1, "),
        ("path: { prefix: /p }, cidr: { not: 10.0.0.0/8 }", "ip", "{ get: /p, ip: 192.0.2.1, "),
        ("path: { not: { regex: x } }", "ip", "{ get: /, ip: 192.0.2.1, "),
        ("path: '/{name}'", "{ path: name }", "{ get: /1, ip: 192.0.2.1, "),
        ("methods: [PURGE]", "ip", "{ request: \"PURGE /\", ip: 192.0.2.1, "),
        ("cidr: 203.0.113.0/24", "ip", "{ get: /, ip: 203.0.113.1, "),
        ("cidr: '2001:db8::/32'", "ip/64", "{ get: /, ip: \"2001:db8::\", "),
        ("headers: { user-agent: a b }", "{ header: referer }", "headers: { referer: \"1\", user-agent: \"a b\" }, "),
    ] {
        let rules = format!("limits:\n  One: {{ match: {{ {conditions} }}, by: {by}, count: 500, period: 1m }}\n");
        let method = if conditions.contains("PURGE") { "PURGE" } else { "GET" };
        let client = if conditions.contains("2001") { "2001:db8::9" } else { "203.0.113.7" };
        let line = format!("{client} - - [22/Nov/2026:10:00:00 +0000] \"{method} /p0 HTTP/1.1\" 200 5 \"r\" \"a b\"\n");
        let line = if conditions.contains("/**") { line.replace("/p0", "/p0/x") } else { line };
        let directory = directory(&rules, &line.repeat(4));
        let done = suggest(directory.path(), &[]);
        assert!(done.code == Some(0) && done.out.contains(step), "{conditions}: {}", done.text());
        assert!(done.out.contains("\"One: 4 requests pass at once, the next does not\":"), "{}", done.out);
    }
    for (conditions, why) in [
        ("path: { regex: ^/p }", "its conditions have patterns"),
        ("path: ['/{x}', { not: /1 }]", "its conditions have exceptions"),
        ("path: { not: / }", "its conditions have exceptions"),
        ("cidr: { not: 192.0.2.0/24 }", "its conditions have exceptions"),
    ] {
        let rules = format!("limits:\n  One: {{ match: {{ {conditions} }}, by: ip, count: 500, period: 1m }}\n");
        let line = "203.0.113.7 - - [22/Nov/2026:10:00:00 +0000] \"GET /p0 HTTP/1.1\" 200 5\n";
        let done = suggest(directory(&rules, &line.repeat(4)).path(), &[]);
        assert!(done.code == Some(0) && done.out.contains(why), "{conditions}: {}", done.text());
    }
}
