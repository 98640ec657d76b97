//! The files as a whole: the cases of the systems whose users come to Weir, and what people see of a mistake.

use std::fmt::Write;
use std::time::{Duration, Instant};

use serde_json::Value as Json;

use super::*;
use crate::engine::fingerprint::Fingerprinter;
use crate::engine::numbers::Micros;

/// 2026-11-20, so that expiry does not depend on the day of the test.
const NOW: Micros = Micros(1_795_132_800_000_000);

pub(super) fn cases() -> Vec<Json> {
    let text = include_str!("../../integration/cases/config.jsonl");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn load_texts(limits: &str, overrides: &[&str]) -> Loaded {
    let limits = Source { name: "limits.yaml".into(), text: limits.into() };
    let overrides: Vec<Source> =
        (1..).zip(overrides).map(|(n, text)| Source { name: format!("o{n}.yaml"), text: (*text).into() }).collect();
    load(&limits, &overrides, Fingerprinter::new((1, 2)), NOW)
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
    let started = Instant::now();
    let loaded = load_texts(limits, overrides);
    let report = loaded.report.to_string();
    assert_eq!(loaded.rules.is_some(), loaded.report.errors == 0);
    for part in expected {
        assert!(report.contains(part), "`{part}` is not in\n{report}");
    }
    assert!(!expected.is_empty() || report.is_empty(), "{report}");
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
}

/// A limit with these fields, beside valid numbers.
#[track_caller]
fn field(fields: &str, expected: &[&str]) {
    check(&format!("limits:\n  A: {{ count: 10, period: 1s, {fields} }}\n"), &[], expected);
}
