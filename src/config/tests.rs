//! The files as a whole: the cases of the systems whose users come to Weir, and what people see of a mistake.

use std::fmt::Write;

use serde_json::Value as Json;

use super::{check as check_sources, *};
use crate::engine::algorithms::micros::Micros;
use crate::engine::limit::fingerprint::Fingerprinter;

mod envoy_ratelimit;
mod limits;
mod lints;
mod overrides;
mod rule_tests;
mod server_only;
mod teams;

/// 2026-11-20, so that expiry does not depend on the day of the test.
const NOW: Micros = Micros(1_795_132_800_000_000);

pub(super) fn cases() -> Vec<Json> {
    let text = include_str!("../../integration/cases/config.jsonl");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn sources(limits: &str, overrides: &[&str]) -> Sources {
    let limits = Source { name: "limits.yaml".into(), text: limits.into() };
    let overrides: Vec<Source> =
        (1..).zip(overrides).map(|(n, text)| Source { name: format!("o{n}.yaml"), text: (*text).into() }).collect();
    Sources { limits: Some(limits), overrides, ..Sources::default() }
}

fn load_texts(limits: &str, overrides: &[&str]) -> LoadResult {
    load(&sources(limits, overrides), Fingerprinter::new((1, 2)), NOW)
}

#[test]
fn every_case_loads_or_fails_as_it_should() {
    let mut failed = String::new();
    for case in cases() {
        let overrides: Vec<&str> = case["overrides"].as_str().into_iter().collect();
        let loaded = load_texts(case["limits"].as_str().unwrap(), &overrides);
        let warns = case["expect_warning"] != Json::Bool(true) || loaded.report.warnings > 0;
        if loaded.rules.is_some() != (case["expect"] == "ok") || !warns {
            let _ = writeln!(failed, "{}: {}\n{}", case["case"], case["why"], loaded.report);
        }
    }
    assert!(failed.is_empty(), "{failed}");
}

/// Loads `limits` and wants all of `expected` in the report; an empty list wants no problem at all.
#[track_caller]
fn check(limits: &str, overrides: &[&str], expected: &[&str]) {
    let loaded = load_texts(limits, overrides);
    let report = loaded.report.to_string();
    assert_eq!(loaded.rules.is_some(), loaded.report.errors == 0);
    for part in expected {
        assert!(report.contains(part), "`{part}` is not in\n{report}");
    }
    assert!(!expected.is_empty() || report.is_empty(), "{report}");
}

#[test]
fn the_sample_is_good() {
    check(include_str!("../../limits.yaml"), &["{}", "[]"], &[]);
}

#[test]
fn all_mistakes_are_shown_at_once_with_their_places() {
    let limits = "\
limits:
  Requests:
    by: ipp
    counts: 20
    burst: 010
    period: 60
overrides:
  Request:10.0.0.1: { count: 5, period: 1s }
";
    let expected = "\
error: unknown id component `ipp`
 --> limits.yaml:3:9
  |
3 |     by: ipp
  |         ^^^
  = help: did you mean `ip`?

error: unknown key `counts` in a limit
 --> limits.yaml:4:5
  |
4 |     counts: 20
  |     ^^^^^^
  = help: did you mean `count`?

error: `010` has a leading zero
 --> limits.yaml:5:12
  |
5 |     burst: 010
  |            ^^^
  = help: write 10; some programs read a leading zero as octal

error: `60` has no unit
 --> limits.yaml:6:13
  |
6 |     period: 60
  |             ^^
  = help: write 60s for seconds, 60ms, 60m or 60h

error: unknown limit `Request`
 --> limits.yaml:8:3
  |
8 |   Request:10.0.0.1: { count: 5, period: 1s }
  |   ^^^^^^^^^^^^^^^^
  = help: did you mean `Requests`?

";
    assert_eq!(load_texts(limits, &[]).report.to_string(), expected);
}

/// Keys are not missing, and limits are not unknown, because of a mistake that is reported already.
#[test]
fn one_broken_place_is_one_finding() {
    let limit = |text: &str| format!("limits:\n  A: {{ {text} }}\n");
    let over = "overrides:\n  A:10.0.0.1: { count: 1, period: 1s }\n  A:10.0.0.2: { count: 2, period: 1s }\n";
    for (limits, part) in [
        (format!("limts:\n  A: {{ count: 1, period: 1s }}\n{over}"), "did you mean `limits`?"),
        (format!("rules:\n  A: {{ count: 1, period: 1s }}\n{over}"), "Weir's word is `limits`"),
        (over.to_owned(), "the file has no `limits`"),
        (format!("domain: a\n{over}"), "`weir import`"),
        (limit("match: { path: /v1/{id} }, count: 1, period: 1s"), "write \"/v1/{id}\""),
        (limit("limit: 5"), "Weir's word is `count`"),
        (limit("count: 5, window: 1s"), "Weir's word is `period`"),
        (limit("cout: 5, period: 1s"), "did you mean `cost` or `count`?"),
        (limit("count: 5, perid: 1s"), "did you mean `period`?"),
        (limit("count: , period: 1s"), "`count` has no value"),
        (limit("rates: [{ cout: 5, period: 1s }]"), "`count`"),
        (limit("count: 5, period: 1s, candidate: { max: 4, period: 1s }"), "`count`"),
        (limit("count: 5, period: 1s, elevated: { brst: 9 }"), "`burst`"),
        (limit("algoritm: fixed_window, aligned: clock, count: 1, period: 1s"), "`algorithm`"),
        (limit("algorithm: fixed_windw, aligned: clock, count: 1, period: month"), "`fixed_window`"),
        (limit("algorithm: leaky_bucket, count: 1, period: 1s"), "`gcra`, the default, is a leaky bucket"),
        (limit("algorithm: concurrency, limit: 1"), "`capacity`"),
        (limit("algorithm: concurency, capacity: 1"), "`concurrency`"),
        (limit("count: 5, period: 1s, match: { pth: '/x/{id}' }, by: { path: id }"), "`path`"),
        (limit("count: 5, period: 1s, match: { headers: { x: { preffix: a } } }"), "`prefix`"),
        (limit("count: 5, period: 1s, by: { headr: id }"), "`header`"),
        (limit("count: 5, period: 1s, cost: { headr: id }"), "`header`"),
        (limit("count: 5, period: 1s, cost_from_response: { headr: id }"), "`header`"),
        (limit("count: 5, period: 1s, spend_when: { code: 401 }"), "`status`"),
        (limit("count: 5, period: 1s, deny_with: { staus: 503 }"), "`status`"),
        (limit("count: 5, period: 1s") + "overrides:\n  A:10.0.0.1: { limit: 9 }\n", "`count`"),
        (limit("count: 5, period: 1s") + "overrides:\n  A: { count: 9, period: 1s, id: [10.0.0.1] }\n", "`ids`"),
    ] {
        for overrides in [&[][..], &["A:10.0.0.3: { unlimited: true }"]] {
            let report = load_texts(&limits, overrides).report;
            assert_eq!((report.errors, report.warnings), (1, 0), "{limits}\n{report}");
            assert!(report.to_string().contains(part), "`{part}` is not in\n{report}");
        }
    }
}

#[test]
fn a_problem_names_the_file_it_is_in() {
    let limits = "limits:\n  A: { count: 1, period: 1s }\noverrides:\n  A:10.0.0.1: { deny: true }\n";
    let second = "A:10.0.0.2: { deny: true }\nA:10.0.0.2: { deny: true }\n";
    check(limits, &[second], &["o1.yaml:2:1", "the first one is at o1.yaml:1"]);
    let third = "- A: { deny: true, ids: [10.0.0.3, 10.0.0.1] }";
    check(limits, &[third], &["o1.yaml:1:36", "the first one is at limits.yaml:4", "duplicate override"]);
}

#[test]
fn the_files_as_a_whole_are_checked() {
    let one = "{ count: 1, period: 1s }";
    for (limits, expected) in [
        (String::new(), "the file is empty"),
        ("---\n".into(), "a rules file must be a map, found nothing"),
        ("[]".into(), "found a list"),
        ("limits:\n".into(), "`limits: {}`"),
        ("overrides: {}".into(), "the file has no `limits`"),
        ("limts: {}".into(), "did you mean `limits`?"),
        ("limits: {}\nlimits: {}".into(), "duplicate key `limits`"),
        ("limits: {}\noverrides:\n".into(), "write `overrides: {}`"),
        (format!("limits:\n  A: {one}\n  a: {one}\n"), "names are case-insensitive"),
        (format!("limits:\n  A: {one}\n  A: {one}\n"), "the first one is on line 2"),
        (format!("limits:\n  A:10.0.0.1: {one}\n"), "belongs under `overrides`"),
        (format!("limits:\n  1A: {one}\n"), "start with a letter"),
        (format!("limits:\n  {}: {one}\n", "A".repeat(65)), "too long"),
        (format!("limits:\n  A: {{ short: b, count: 1, period: 1s }}\n  B: {one}\n"), "is already in use"),
        ("limits:\n  A:\n".into(), "`A` is empty"),
        ("limits:\n  A: 5\n".into(), "a limit must be a map"),
        ("limits:\n  A: { by: ip }\n".into(), "`A` never applies"),
        // Before the limits, overrides are read in a second pass.
        (format!("overrides:\n  A:x: {one}\nlimits:\n  A: {one}\n"), "`x` is not a valid id for `A`"),
        (format!("overrides:\n  A:10.0.0.1: {one}\nlimits:\n  A: {one}\n"), ""),
        (format!("\u{feff}limits:\r\n  A: {one}\r\n"), ""),
    ] {
        let expected: Vec<&str> = Some(expected).filter(|part| !part.is_empty()).into_iter().collect();
        check(&limits, &[], &expected);
    }
}

#[test]
fn hostile_files_end_soon() {
    let one = "{ count: 1, period: 1s }";
    let mut many = String::from("limits:\n");
    for number in 0..10_000 {
        let _ = writeln!(many, "  Limit{number}: {{ count: 1, period: 1s, match: {{ path: /v1/{number} }} }}");
    }
    check(&many, &[], &[]);
    let mut unknown = String::new();
    for number in 0..20_000 {
        let _ = writeln!(unknown, "Nothing{number}:10.0.0.1: {one}");
    }
    check("limits:\n  Nothing: { count: 1, period: 1s }\n", &[&unknown], &["and 19950 more"]);
    let colons = format!("A:{}x: {one}", "a:".repeat(1_000).get(..900).unwrap_or_default());
    let addresses: Vec<String> = ["a", "b", "c", "d"].map(|name| format!("{{ header: {name}, as: address }}")).into();
    let by = format!("by: [{}, {{ header: e, as: integer }}]", addresses.join(", "));
    let limits = format!("limits:\n  A: {{ {by}, count: 1, period: 1s }}\n");
    check(&limits, &[&colons], &["too many colons"]);
    // The most ways to read colons that there can be.
    check(&limits, &[&format!("A:{}x: {one}", "a:".repeat(20))], &["is not a valid id for `A`"]);
    check(&format!("limits:\n  {}: {one}\n", "k".repeat(10_000)), &[], &["error"]);
    check(&format!("limits:\n  A: {{ {}: 1 }}\n", "k".repeat(1_000)), &[], &["unknown key"]);
    let long = format!("Account: {{ deny: true, ids: [\"{}\"] }}", "9".repeat(1_000_000));
    check("limits:\n  Account: { by: { header: a }, count: 1, period: 1s }\n", &[&long], &["the id is too long"]);
}
