//! The lints: what each finds and what it leaves alone, and how a file silences them.

use std::fmt::Write;

use super::super::lints::MOST_COMPARED;
use super::*;

fn lint(limits: &str, overrides: &[&str]) -> LoadResult {
    check_sources(&sources(limits, overrides), Fingerprinter::new((1, 2)), NOW)
}

/// The findings as `name line:column`.
fn found(loaded: &LoadResult) -> Vec<String> {
    assert_eq!(loaded.report.errors, 0, "{}", loaded.report);
    let problems = loaded.report.problems.iter();
    let shown = problems.map(|problem| {
        let (lint, place) = (problem.lint.unwrap(), problem.place.unwrap());
        assert!(problem.source_line.is_some() && !problem.help.is_empty() && problem.severity == Severity::Warning);
        format!("{} {}:{}", lint.name(), place.line, place.column)
    });
    shown.collect()
}

/// A limit that the other lints have nothing to say about.
const GUARD: &str = "  Guard: { by: ip/64, count: 1000, period: 1s }\n";

/// Texts below `limits:`, and the findings in each. `@` stands for [`GUARD`].
const ROWS: &[(&str, &[&str])] = &[
    // never-matches
    (
        "@  A: { match: { headers: { x-k: { present: false } } }, by: { header: x-k }, burst: 1 }\n",
        &["never-matches 3:15"],
    ),
    (
        "@  A: { match: { headers: { cookie: { present: false } } }, by: { cookie: sid }, burst: 1 }\n",
        &["never-matches 3:15"],
    ),
    (
        "@  A: { match: { headers: { x-k: { present: true, not: { prefix: \"\" } } } }, by: ip/64, burst: 1 }\n",
        &["never-matches 3:15"],
    ),
    ("@  A: { match: { headers: { x-k: { value: \"a\\nb\" } } }, by: ip/64, burst: 1 }\n", &["never-matches 3:15"]),
    ("@  A: { match: { cidr: { not: [0.0.0.0/0, \"::/0\"] } }, by: ip/64, burst: 1 }\n", &["never-matches 3:15"]),
    (
        "@  A: { match: { descriptor: { k: { present: false } } }, by: { descriptor: k }, burst: 1 }\n",
        &["never-matches 3:15"],
    ),
    (
        "@  A: { match: { headers: { x-k: { present: false } } }, by: { header: x-k }, missing: shared, burst: 1 }\n",
        &[],
    ),
    ("@  A: { match: { headers: { x-k: { present: false } } }, by: { header: x-other }, burst: 1 }\n", &[]),
    ("@  A: { match: { cidr: { not: [0.0.0.0/0] } }, by: ip/64, burst: 1 }\n", &[]),
    ("@  A: { match: { headers: { x-k: { not: { prefix: \"\" } } } }, by: ip/64, burst: 1 }\n", &[]),
    (
        "@  A: { match: { headers: { authorization: { present: false } } }, by: credentials, burst: 1 }\n",
        &["never-matches 3:15"],
    ),
    // credentials-header
    ("@  A: { by: { header: authorization }, burst: 1 }\n", &["credentials-header 3:12"]),
    ("@  A: { by: [ip/64, { header: Authorization }], burst: 1 }\n", &["credentials-header 3:12"]),
    ("@  A: { by: credentials, burst: 1 }\n", &[]),
    ("  A: { by: credentials, burst: 1 }\n", &["free-id 2:12"]),
    // idle-lease
    ("@  A: { by: host, count: 20, period: 1s, lease: { tokens: 50, for: 100ms } }\n", &["idle-lease 3:48"]),
    ("@  A: { by: host, count: 39, period: 1s, lease: { tokens: 50, for: 100ms } }\n", &["idle-lease 3:48"]),
    ("@  A: { by: host, count: 40, period: 1s, lease: { tokens: 50, for: 100ms } }\n", &[]),
    ("@  A: { by: host, count: 40, period: 1s, cost: 2, lease: { tokens: 50, for: 100ms } }\n", &["idle-lease 3:57"]),
    ("@  A: { by: host, count: 900, period: 1s, cost: 9, lease: { tokens: 8, for: 1s } }\n", &["idle-lease 3:58"]),
    ("@  A: { by: host, count: 900, period: 1s, cost: 9, lease: { tokens: 9, for: 1s } }\n", &[]),
    ("@  A: { by: host, burst: 7, count: 900, period: 1s, lease: { tokens: 9, for: 1s } }\n", &["idle-lease 3:59"]),
    ("@  A: { by: host, burst: 8, count: 900, period: 1s, lease: { tokens: 9, for: 1s } }\n", &[]),
    ("@  A: { by: host, count: 9000, period: 1h, lease: { tokens: 9, for: 1s } }\n", &[]),
    ("@  A: { by: host, burst: 9000, lease: { tokens: 9, for: 1s } }\n", &[]),
    (
        "@  A: { by: host, rates: [{ count: 9, period: 1s }, { count: 90, period: 1h }], lease: { tokens: 9, for: 100ms } }\n",
        &[],
    ),
    (
        "@  A: { by: host, rates: [{ count: 9, period: 1s }, { count: 90, period: 30s }], lease: { tokens: 9, for: 100ms } }\n",
        &["idle-lease 3:88"],
    ),
    // hidden-limit
    ("@  A: { by: ip/64, count: 1000, period: 1s }\n", &["hidden-limit 3:3"]),
    ("@  A: { by: ip/64, count: 60000, period: 1m }\n", &["hidden-limit 3:3"]),
    (
        "@  A: { match: { path: /a/** }, by: [ip/64, method], burst: 2000, count: 1000, period: 1s }\n",
        &["hidden-limit 3:3"],
    ),
    ("@  A: { match: { methods: [GET], path: /x/y }, by: ip/64, count: 9000, period: 1s }\n", &["hidden-limit 3:3"]),
    ("  A: { by: ip/64, count: 9, period: 1s }\n  B: { by: global, count: 5, period: 1s }\n", &["hidden-limit 2:3"]),
    ("  A: { by: ip/64, count: 9, period: 1s }\n  B: { by: ip/64, deny: true }\n", &["hidden-limit 2:3"]),
    ("  A: { by: ip/64, rates: [{ count: 10, period: 1s }, { count: 1000, period: 1m }] }\n", &["hidden-limit 2:54"]),
    (
        "  A: { by: ip/64, algorithm: sliding_log, count: 9, period: 1h }\n  B: { by: ip/64, algorithm: sliding_log, count: 8, period: 1h }\n",
        &["hidden-limit 2:3"],
    ),
    ("@  A: { by: ip/64, algorithm: sliding_log, count: 2000, period: 1s }\n", &["hidden-limit 3:3"]),
    ("@  A: { by: ip/64, algorithm: sliding_window, count: 2001, period: 1s }\n", &["hidden-limit 3:3"]),
    (
        "  A: { by: ip/64, count: 2, period: 1s }\n  B: { by: global, algorithm: sliding_window, count: 2, period: 1s }\n",
        &["hidden-limit 2:3"],
    ),
    (
        "  A: { by: ip/64, count: 9, period: 1s, elevated: { count: 90, period: 1s, for: 1m, activations_per_month: 1 } }\n  B: { by: ip/64, count: 5, period: 1s }\n",
        &["hidden-limit 2:3"],
    ),
    // What waits for one is denied by the other.
    ("  A: { by: ip/64, count: 9, period: 1s }\n  B: { by: ip/64, count: 5, period: 1s, delay: 1s }\n", &[]),
    (
        "  A: { by: ip/64, count: 99, period: 1s }\n  B: { by: ip/64, count: 50, period: 1s, lease: { tokens: 5, for: 1s } }\n",
        &[],
    ),
    // The slots of a process that died are free sooner.
    (
        "  A: { by: ip/64, algorithm: concurrency, burst: 9, lease: 2m }\n  B: { by: ip/64, algorithm: concurrency, burst: 5, lease: 1m }\n",
        &[],
    ),
    ("@  A: { by: ip/64, burst: 2000, count: 999, period: 1s }\n", &[]),
    ("@  A: { by: ip/64, burst: 999, count: 2000, period: 1s }\n", &[]),
    ("@  A: { by: ip/32, count: 2000, period: 1s }\n", &[]),
    ("@  A: { by: ip/64, count: 2000, period: 1s, cost: 5 }\n", &[]),
    ("@  A: { by: ip/64, count: 2000, period: 1s, mode: shadow }\n", &[]),
    ("@  A: { by: ip/64, algorithm: sliding_window, count: 2000, period: 1s }\n", &[]),
    ("  A: { match: { path: /a }, by: ip/64, burst: 1 }\n  B: { match: { path: /b }, by: ip/64, burst: 1 }\n", &[]),
    (
        "  A: { match: { path: \"/a/{x}\" }, by: ip/64, burst: 2 }\n  B: { match: { path: /a/b }, by: ip/64, burst: 1 }\n",
        &[],
    ),
    ("  A: { by: ip/64, count: 9, period: 1s }\n  B: { by: global, count: 5, period: 1s, enforce_for: 50% }\n", &[]),
    ("  A: { by: ip/64, rates: [{ count: 10, period: 1s }, { count: 100, period: 1m }] }\n", &[]),
    // free-id
    ("  A: { by: { header: x-key }, burst: 1 }\n", &["free-id 2:12"]),
    ("  A: { by: [ip/64, { query: key }], burst: 1 }\n", &["free-id 2:12"]),
    ("  A: { by: { cookie: sid }, burst: 1 }\n", &["free-id 2:12"]),
    ("  A: { match: { path: \"/a/{id}\" }, by: { path: id }, burst: 1 }\n", &["free-id 2:40"]),
    (
        "  A: { by: { header: x-key }, burst: 1 }\n  B: { match: { path: /a }, by: ip/64, burst: 9 }\n",
        &["free-id 2:12"],
    ),
    ("  A: { by: { header: x-key }, burst: 1 }\n  B: { by: ip/64, burst: 9, mode: shadow }\n", &["free-id 2:12"]),
    ("@  A: { by: { header: x-key }, burst: 1 }\n", &[]),
    ("  A: { by: { header: x-key }, burst: 1, max_keys: 9 }\n", &[]),
    ("  A: { by: { header: x-key }, burst: 1, mode: shadow }\n", &[]),
    ("  A: { by: { tls: subject }, burst: 1 }\n", &[]),
    ("  A: { match: { path: \"/a/{id}\" }, by: { path: id, as: integer }, burst: 1 }\n", &[]),
    // whole-ipv6-address
    ("  A: { by: ip/128, burst: 1 }\n", &["whole-ipv6-address 2:12"]),
    ("  A: { by: [method, ip/65], burst: 1 }\n", &["whole-ipv6-address 2:21"]),
    ("  A: { burst: 1 }\n", &[]),
    ("  A: { by: ip, burst: 1 }\n", &[]),
    ("  A: { by: ip/64, burst: 1 }\n", &[]),
    ("  A: { by: ip/128, burst: 1, match: { cidr: 10.0.0.0/8 } }\n", &[]),
    ("  A: { by: ip/128, burst: 1 }\n  B: { by: ip/56, burst: 20 }\n", &[]),
    ("  A: { by: ip/128, mode: off, burst: 1 }\n", &[]),
    // fails-open
    ("  A: { match: { path: /login }, by: ip/64, burst: 1 }\n", &["fails-open 2:3"]),
    (
        "  A: { match: { methods: [POST], path: \"/v1/{x}/Forgot-Password/**\" }, by: ip/64, burst: 1 }\n",
        &["fails-open 2:3"],
    ),
    ("  A: { match: { path: [/a, /sign-in] }, by: ip/64, burst: 1, on_store_error: allow }\n", &["fails-open 2:78"]),
    ("  A: { match: { path: /login }, by: ip/64, burst: 1, on_store_error: local }\n", &[]),
    ("  A: { match: { methods: [GET], path: /login }, by: ip/64, burst: 1 }\n", &[]),
    ("  A: { match: { path: /authors/loginsight }, by: ip/64, burst: 1 }\n", &[]),
    // window-edge
    ("  A: { by: ip/64, algorithm: fixed_window, count: 9, period: 1m }\n", &["window-edge 2:30"]),
    ("  A: { by: ip/64, algorithm: fixed_window, count: 9, period: 24h }\n", &[]),
    ("  A: { by: ip/64, algorithm: fixed_window, count: 9, period: month }\n", &[]),
    ("  A: { by: ip/64, algorithm: sliding_window, count: 9, period: 1m }\n", &[]),
    // cost-above-burst
    ("  A: { by: ip/64, count: 9, period: 1m, cost: 10 }\n", &["cost-above-burst 2:47"]),
    ("  A: { by: ip/64, count: 9, period: 1m, cost: 9 }\n", &[]),
    (
        "  A: { by: ip/64, count: 9, period: 1m, cost: 9 }\noverrides:\n  A:192.0.2.1: { burst: 8 }\n",
        &["cost-above-burst 4:3"],
    ),
    // override-never-applies
    (
        "  A: { match: { cidr: 10.0.0.0/8 }, by: ip, burst: 1 }\noverrides:\n  A:192.0.2.1: { burst: 8 }\n  A:10.0.0.1: { burst: 8 }\n",
        &["override-never-applies 4:3"],
    ),
    (
        "  A: { match: { cidr: { not: 10.0.0.0/8 } }, by: ip/64, burst: 1 }\noverrides:\n  A: { burst: 8, cidr: [10.1.0.0/16, 10.0.0.0/7] }\n",
        &["override-never-applies 4:25"],
    ),
    (
        "  A: { match: { methods: [POST], host: \"*.a.example\" }, by: [method, host], burst: 1 }\noverrides:\n  A:GET: { burst: 8 }\n  A:POST:b.example: { burst: 8 }\n  A:POST:x.a.example: { burst: 8 }\n",
        &["override-never-applies 4:3", "override-never-applies 5:3"],
    ),
    (
        "@  A: { match: { headers: { x-k: { not: [a] } } }, by: { header: x-k }, burst: 1 }\noverrides:\n  A:a: { burst: 8 }\n  A:b: { burst: 8 }\n",
        &["override-never-applies 5:3"],
    ),
    (
        "  A: { match: { claims: { plan: free } }, by: { claim: plan }, burst: 1 }\noverrides:\n  A:paid: { burst: 8 }\n  A:free: { burst: 8 }\njwt: { main: { issuer: a, audiences: [], jwks_url: \"https://a/\" } }\n",
        &["override-never-applies 4:3"],
    ),
    (
        "  A: { match: { path: /a/** }, by: path, burst: 1 }\noverrides:\n  A:/b: { burst: 8 }\n  A:/a/b: { burst: 8 }\n",
        &["override-never-applies 4:3"],
    ),
    (
        "  A: { by: ip/64, burst: 1 }\noverrides:\n  A:192.0.2.1: { burst: 8, until: 2020-01-01 }\n  A:192.0.2.2: { burst: 8, until: 2099-01-01 }\n",
        &["override-never-applies 4:35"],
    ),
    // override-for-network
    (
        "  A: { by: ip, burst: 1 }\noverrides:\n  A:2001:db8::1: { burst: 8 }\n  A:2001:db8:0:1::/64: { burst: 8 }\n  A:192.0.2.1: { burst: 8 }\n",
        &["override-for-network 4:3"],
    ),
    // What is reported where it is read.
    ("  A: { by: ip/64, burst: 1, cost: 0 }\n", &["counts-nothing 2:35"]),
    ("  A: { by: ip/64, count: 2000001, period: 1s }\n", &["finer-than-clock 2:26"]),
    ("  A: { by: ip/64, burst: 1, mode: shadow, enforce_for: 5% }\n", &["no-effect 2:43"]),
    ("  A: { by: ip/64 }\n", &["no-numbers 2:3"]),
    ("  A: { by: ip/64, burst: 1, match: { methods: [PSOT] } }\n", &["unknown-method 2:48"]),
    ("  {}\n", &["no-limits 1:1"]),
];

fn text(row: &str) -> String {
    format!("limits:\n{}", row.replace('@', GUARD))
}

#[test]
fn each_lint_finds_what_it_is_for_and_nothing_else() {
    let mut differences = String::new();
    for (row, expected) in ROWS {
        let found = found(&lint(&text(row), &[]));
        if found != *expected {
            let _ = writeln!(differences, "{row}found {found:?}\nexpected {expected:?}\n");
        }
    }
    assert!(differences.is_empty(), "{differences}");
}

#[test]
fn each_lint_has_a_row() {
    // These need more than a text.
    let elsewhere = ["underscore-header", "unusable-key", "unused-ignore"];
    for lint in Lint::ALL {
        let mut names = ROWS.iter().flat_map(|(_, found)| *found).filter_map(|found| found.split(' ').next());
        assert!(names.any(|name| name == lint.name()) || elsewhere.contains(&lint.name()), "{}", lint.name());
    }
    assert!(Lint::ALL.is_sorted_by_key(|lint| lint.name()));
}

#[test]
fn a_file_silences_each_lint_by_its_name() {
    for (row, expected) in ROWS {
        let mut names: Vec<&str> = expected.iter().filter_map(|found| found.split(' ').next()).collect();
        names.dedup();
        let list = names.join(", ");
        for text in [format!("ignore_lints: [{list}]\n{}", text(row)), format!("{}ignore_lints: [{list}]\n", text(row))]
        {
            assert_eq!(found(&lint(&text, &[])), Vec::<String>::new(), "{text}");
        }
    }
}

#[test]
fn a_limit_silences_findings_about_itself_and_its_overrides() {
    let limits = "limits:\n  A: { by: ip/128, burst: 1, ignore_lints: [whole-ipv6-address, override-never-applies] }\n  B: { by: ip/128, burst: 1 }\n";
    let expired = "A:192.0.2.1: { burst: 2, until: 2020-01-01 }\nB:192.0.2.1: { burst: 2, until: 2020-01-01 }\n";
    let found = found(&lint(limits, &[expired]));
    assert_eq!(found, ["whole-ipv6-address 3:12", "override-never-applies 2:33"]);
    // Without the linter, the warnings that every start prints are silenced, too.
    assert_eq!(load_texts(limits, &[expired]).report.warnings, 1);
}

#[test]
fn what_silences_nothing_is_a_finding() {
    let limits = "ignore_lints: [no-limits]\nlimits:\n  A: { by: ip/64, burst: 1, ignore_lints: [free-id] }\n";
    assert_eq!(found(&lint(limits, &[])), ["unused-ignore 1:16", "unused-ignore 3:44"]);
    assert_eq!(load_texts(limits, &[]).report.warnings, 0);
    let narrow = "ignore_lints: [free-id]\nlimits:\n  A: { by: { header: x }, burst: 1, ignore_lints: [free-id] }\n";
    assert_eq!(found(&lint(narrow, &[])), ["unused-ignore 1:16"]);
}

#[test]
fn a_wrong_name_is_an_error_that_suggests_the_nearest() {
    check(
        "ignore_lints: [free-ids]\nlimits: {}",
        &[],
        &["unknown lint `free-ids`", "did you mean `free-id`?", ":1:16"],
    );
    check("limits: { A: { burst: 1, ignore_lints: [x] } }", &[], &["unknown lint `x`", "expected one of"]);
    check("limits: { A: { burst: 1, ignore_lints: free-id } }", &[], &["must be a list"]);
    check("ignore_lints: [free-id, free-id]\nlimits: {}", &[], &["duplicate lint `free-id`"]);
}

#[test]
fn very_many_limits_are_not_compared() {
    let limits = |count| {
        (0..count).fold("limits:\n".to_owned(), |mut text, number| {
            let _ = writeln!(text, "  L{number}: {{ by: ip/64, burst: 1 }}");
            text
        })
    };
    assert_eq!(lint(&limits(3), &[]).report.warnings, 2);
    assert_eq!(lint(&limits(MOST_COMPARED + 1), &[]).report.warnings, 0);
}
