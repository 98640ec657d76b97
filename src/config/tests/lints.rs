//! The lints: what each finds and what it leaves alone, and how a file silences them.

use std::fmt::Write;

use super::super::lints::MOST_COMPARED;
use super::*;

fn lint(limits: &str, overrides: &[&str]) -> LoadResult {
    check_sources(&sources(limits, overrides), Fingerprinter::new((1, 2)), NOW, &[])
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
        "@  A: { match: { headers: { x-k: { present: false } } }, by: { header: x-k }, count: 1, period: 1s }\n",
        &["never-matches 3:15"],
    ),
    (
        "@  A: { match: { headers: { cookie: { present: false } } }, by: { cookie: sid }, count: 1, period: 1s }\n",
        &["never-matches 3:15"],
    ),
    (
        "@  A: { match: { headers: { x-k: { present: true, not: { prefix: \"\" } } } }, by: ip/64, count: 1, period: 1s }\n",
        &["never-matches 3:15"],
    ),
    (
        "@  A: { match: { headers: { x-k: { value: \"a\\nb\" } } }, by: ip/64, count: 1, period: 1s }\n",
        &["never-matches 3:15"],
    ),
    (
        "@  A: { match: { cidr: { not: [0.0.0.0/0, \"::/0\"] } }, by: ip/64, count: 1, period: 1s }\n",
        &["never-matches 3:15"],
    ),
    (
        "@  A: { match: { descriptor: { k: { present: false } } }, by: { descriptor: k }, count: 1, period: 1s }\n",
        &["never-matches 3:15"],
    ),
    (
        "@  A: { match: { headers: { x-k: { present: false } } }, by: { header: x-k }, missing: shared, count: 1, period: 1s }\n",
        &[],
    ),
    ("@  A: { match: { headers: { x-k: { present: false } } }, by: { header: x-other }, count: 1, period: 1s }\n", &[]),
    ("@  A: { match: { cidr: { not: [0.0.0.0/0] } }, by: ip/64, count: 1, period: 1s }\n", &[]),
    ("@  A: { match: { headers: { x-k: { not: { prefix: \"\" } } } }, by: ip/64, count: 1, period: 1s }\n", &[]),
    (
        "@  A: { match: { headers: { authorization: { present: false } } }, by: credentials, count: 1, period: 1s }\n",
        &["never-matches 3:15"],
    ),
    (
        "@  A: { match: { path: [/a/b, { prefix: /a/c }, { not: /a/** }] }, by: ip/64, count: 1, period: 1s }\n",
        &["never-matches 3:15"],
    ),
    ("@  A: { match: { path: { not: /** } }, by: ip/64, count: 1, period: 1s }\n", &["never-matches 3:15"]),
    (
        "@  A: { match: { host: [x.a.test, { not: '*.a.test' }] }, by: ip/64, count: 1, period: 1s }\n",
        &["never-matches 3:15"],
    ),
    (
        "@  A: { match: { cidr: [10.0.0.0/8, { not: [10.0.0.0/9, 10.128.0.0/9] }] }, by: ip/64, count: 1, period: 1s }\n",
        &["never-matches 3:15"],
    ),
    ("@  A: { match: { host: [a.test, { not: b.test }] }, by: ip/64, count: 1, period: 1s }\n", &["no-effect 3:15"]),
    (
        "@  A: { match: { path: [/a/**, { prefix: /v }, { not: [/a/b, /b] }] }, by: ip/64, count: 1, period: 1s }\n",
        &["no-effect 3:15"],
    ),
    (
        "@  A: { match: { cidr: [10.0.0.0/8, { not: 192.0.2.0/24 }] }, by: ip/64, count: 1, period: 1s }\n",
        &["no-effect 3:15"],
    ),
    (
        "@  A: { match: { host: ['*.a', { not: b.a }], path: [/a/**, { not: { regex: x } }], cidr: [10.0.0.0/8, { not: 10.1.0.0/16 }] }, by: ip/64, count: 1, period: 1s }\n",
        &[],
    ),
    // credentials-header
    ("@  A: { by: { header: authorization }, count: 1, period: 1s }\n", &["credentials-header 3:12"]),
    ("@  A: { by: [ip/64, { header: Authorization }], count: 1, period: 1s }\n", &["credentials-header 3:12"]),
    ("@  A: { by: credentials, count: 1, period: 1s }\n", &[]),
    ("  A: { by: credentials, count: 1, period: 1s }\n", &["free-id 2:12"]),
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
    ("@  A: { by: host, count: 9000, period: 1s, lease: { tokens: 9, for: 1s } }\n", &[]),
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
    // Requests that are exempt from the stricter limit alone are denied by the other.
    (
        "@  A: { by: ip/64, count: 60000, period: 1m }\nexempt: [{ match: { cidr: 192.0.2.0/24 }, limits: [Guard] }]\n",
        &[],
    ),
    (
        "@  A: { by: ip/64, count: 60000, period: 1m }\nexempt: [{ match: { cidr: 192.0.2.0/24 } }]\n",
        &["hidden-limit 3:3"],
    ),
    (
        "  A: { match: { path: { prefix: /ab } }, by: ip/64, count: 5, period: 1s }\n  B: { match: { path: { prefix: /a } }, by: ip/64, count: 5, period: 1s }\n",
        &["hidden-limit 2:3"],
    ),
    (
        "  A: { match: { path: { prefix: /ab } }, by: ip/64, count: 5, period: 1s }\n  B: { match: { path: [{ prefix: /a }, { not: /abc }] }, by: ip/64, count: 5, period: 1s }\n",
        &[],
    ),
    (
        "@  A: { match: { path: /a/** }, by: [ip/64, method], burst: 2000, count: 1000, period: 1s }\n",
        &["hidden-limit 3:3"],
    ),
    ("@  A: { match: { methods: [GET], path: /x/y }, by: ip/64, count: 9000, period: 1s }\n", &["hidden-limit 3:3"]),
    ("  A: { by: ip/64, count: 9, period: 1s }\n  B: { by: global, count: 5, period: 1s }\n", &["hidden-limit 2:3"]),
    (
        "  A: { match: { path: /a }, by: ip/64, count: 9, period: 1s }\n  B: { match: { path: /a }, by: ip/64, deny: true }\n",
        &["hidden-limit 2:3"],
    ),
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
    (
        "  A: { match: { path: /a }, by: ip/64, count: 1, period: 1s }\n  B: { match: { path: /b }, by: ip/64, count: 1, period: 1s }\n",
        &[],
    ),
    (
        "  A: { match: { path: \"/a/{x}\" }, by: ip/64, count: 2, period: 1s }\n  B: { match: { path: /a/b }, by: ip/64, count: 1, period: 1s }\n",
        &[],
    ),
    ("  A: { by: ip/64, count: 9, period: 1s }\n  B: { by: global, count: 5, period: 1s, enforce_for: 50% }\n", &[]),
    ("  A: { by: ip/64, rates: [{ count: 10, period: 1s }, { count: 100, period: 1m }] }\n", &[]),
    // free-id
    ("  A: { by: { header: x-key }, count: 1, period: 1s }\n", &["free-id 2:12"]),
    ("  A: { by: [ip/64, { query: key }], count: 1, period: 1s }\n", &["free-id 2:12"]),
    ("  A: { by: { cookie: sid }, count: 1, period: 1s }\n", &["free-id 2:12"]),
    ("  A: { match: { path: \"/a/{id}\" }, by: { path: id }, count: 1, period: 1s }\n", &["free-id 2:40"]),
    (
        "  A: { by: { header: x-key }, count: 1, period: 1s }\n  B: { match: { path: /a }, by: ip/64, count: 9, period: 1s }\n",
        &["free-id 2:12"],
    ),
    (
        "  A: { by: { header: x-key }, count: 1, period: 1s }\n  B: { by: ip/64, count: 9, period: 1s, mode: shadow }\n",
        &["free-id 2:12"],
    ),
    ("@  A: { by: { header: x-key }, count: 1, period: 1s }\n", &[]),
    ("  A: { by: { header: x-key }, count: 1, period: 1s, max_keys: 9 }\n", &[]),
    ("  A: { by: { header: x-key }, count: 1, period: 1s, mode: shadow }\n", &[]),
    ("  A: { by: { tls: subject }, count: 1, period: 1s }\n", &[]),
    ("  A: { by: { header: x-key }, missing: deny, count: 1, period: 1s }\n", &[]),
    ("  A: { by: { query: key }, missing: deny, count: 1, period: 1s }\n", &["free-id 2:12"]),
    ("  A: { match: { path: \"/a/{id}\" }, by: { path: id, as: integer }, count: 1, period: 1s }\n", &[]),
    // whole-ipv6-address
    ("  A: { by: ip/128, count: 1, period: 1s }\n", &["whole-ipv6-address 2:12"]),
    ("  A: { by: [method, ip/65], count: 1, period: 1s }\n", &["whole-ipv6-address 2:21"]),
    ("  A: { count: 1, period: 1s }\n", &[]),
    ("  A: { by: ip, count: 1, period: 1s }\n", &[]),
    ("  A: { by: ip/64, count: 1, period: 1s }\n", &[]),
    ("  A: { by: ip/128, count: 1, period: 1s, match: { cidr: 10.0.0.0/8 } }\n", &[]),
    ("  A: { by: ip/128, count: 1, period: 1s }\n  B: { by: ip/56, count: 20, period: 1s }\n", &[]),
    ("  A: { by: ip/128, mode: off, count: 1, period: 1s }\n", &[]),
    // fails-open
    ("  A: { match: { path: /login }, by: ip/64, count: 1, period: 1s }\n", &["fails-open 2:3"]),
    (
        "  A: { match: { methods: [POST], path: \"/v1/{x}/Forgot-Password/**\" }, by: ip/64, count: 1, period: 1s }\n",
        &["fails-open 2:3"],
    ),
    (
        "  A: { match: { path: [/a, /sign-in] }, by: ip/64, count: 1, period: 1s, on_store_error: allow }\n",
        &["fails-open 2:90"],
    ),
    ("  A: { match: { path: { prefix: /v1/Login } }, by: ip/64, count: 1, period: 1s }\n", &["fails-open 2:3"]),
    ("  A: { match: { path: { regex: login } }, by: ip/64, count: 1, period: 1s }\n", &[]),
    ("  A: { match: { path: /login }, by: ip/64, count: 1, period: 1s, on_store_error: local }\n", &[]),
    ("  A: { match: { methods: [GET], path: /login }, by: ip/64, count: 1, period: 1s }\n", &[]),
    ("  A: { match: { path: /authors/loginsight }, by: ip/64, count: 1, period: 1s }\n", &[]),
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
        "  A: { match: { cidr: 10.0.0.0/8 }, by: ip, count: 1, period: 1s }\noverrides:\n  A:192.0.2.1: { burst: 8 }\n  A:10.0.0.1: { burst: 8 }\n",
        &["override-never-applies 4:3"],
    ),
    (
        "  A: { match: { cidr: { not: 10.0.0.0/8 } }, by: ip/64, count: 1, period: 1s }\noverrides:\n  A: { burst: 8, cidr: [10.1.0.0/16, 10.0.0.0/7] }\n",
        &["override-never-applies 4:25"],
    ),
    (
        "  A: { match: { methods: [POST], host: \"*.a.example\" }, by: [method, host], count: 1, period: 1s }\noverrides:\n  A:GET: { burst: 8 }\n  A:POST:b.example: { burst: 8 }\n  A:POST:x.a.example: { burst: 8 }\n",
        &["override-never-applies 4:3", "override-never-applies 5:3"],
    ),
    (
        "@  A: { match: { headers: { x-k: { not: [a] } } }, by: { header: x-k }, count: 1, period: 1s }\noverrides:\n  A:a: { burst: 8 }\n  A:b: { burst: 8 }\n",
        &["override-never-applies 5:3"],
    ),
    (
        "  A: { match: { claims: { plan: free } }, by: { claim: plan }, count: 1, period: 1s }\noverrides:\n  A:paid: { burst: 8 }\n  A:free: { burst: 8 }\njwt: { main: { issuer: a, audiences: [], jwks_url: \"https://a/\" } }\n",
        &["override-never-applies 4:3"],
    ),
    (
        "  A: { match: { path: /a/** }, by: path, count: 1, period: 1s }\noverrides:\n  A:/b: { burst: 8 }\n  A:/a/b: { burst: 8 }\n",
        &["override-never-applies 4:3"],
    ),
    (
        "  A: { match: { path: [{ prefix: /a }, { not: /ab }] }, by: path, count: 1, period: 1s }\noverrides:\n  A:/b: { burst: 8 }\n  A:/ab: { burst: 8 }\n  A:/ac: { burst: 8 }\n",
        &["override-never-applies 4:3", "override-never-applies 5:3"],
    ),
    (
        "  A: { by: ip/64, count: 1, period: 1s }\noverrides:\n  A:192.0.2.1: { burst: 8, until: 2020-01-01 }\n  A:192.0.2.2: { burst: 8, until: 2099-01-01 }\n",
        &["override-never-applies 4:35"],
    ),
    // override-for-network
    (
        "  A: { by: ip, count: 1, period: 1s }\noverrides:\n  A:2001:db8::1: { burst: 8 }\n  A:2001:db8:0:1::/64: { burst: 8 }\n  A:192.0.2.1: { burst: 8 }\n",
        &["override-for-network 4:3"],
    ),
    // other-limit-denies
    (
        "  A: { by: ip, count: 9, period: 1s }\n  B: { by: ip, count: 90, period: 1h }\noverrides:\n  A:192.0.2.1: { unlimited: true }\n  A:192.0.2.2: { unlimited: true }\n  B:192.0.2.2: { unlimited: true }\n",
        &["other-limit-denies 5:3"],
    ),
    (
        "  A: { by: ip, count: 9, period: 1s }\n  B: { by: ip, count: 90, period: 1h }\noverrides:\n  A:192.0.2.1: { unlimited: true }\n  B: { unlimited: true, cidr: 192.0.2.0/24 }\n",
        &[],
    ),
    (
        "@  A: { by: { header: x-k }, count: 9, period: 1s }\n  B: { by: { header: x-k }, count: 90, period: 1h }\noverrides:\n  A:a: { unlimited: true }\n  B: { unlimited: true, regex: ^a$ }\n",
        &[],
    ),
    (
        "  A: { by: ip, count: 9, period: 1s }\n  B: { by: ip, match: { path: /b }, count: 90, period: 1h }\n  C: { by: ip, count: 900, period: 1d, mode: shadow }\n  D: { by: global, count: 9000, period: 1s }\noverrides:\n  A:192.0.2.1: { unlimited: true }\n",
        &[],
    ),
    // no-effect
    (
        "  A: { by: ip, count: 9, period: 1s }\noverrides:\n  A:192.0.2.1: { count: 9, period: 1s }\n",
        &["no-effect 4:3"],
    ),
    (
        "  A: { by: ip, count: 9, period: 1s }\noverrides:\n  A:192.0.2.1: { count: 9, period: 1s }\n  A: { cidr: 192.0.2.0/24, deny: true }\n",
        &[],
    ),
    (
        "  A: { by: [method, host], count: 9, period: 1s }\noverrides:\n  A:GET:a.example: { count: 9, period: 1s }\n  A:GET: { deny: true }\n",
        &[],
    ),
    // unanchored-regex
    (
        "@  A: { by: { header: x-k }, count: 9, period: 1s }\noverrides:\n  - A: { regex: '^gold|silver', unlimited: true }\n  - A: { regex: 'a-.*', unlimited: true }\n",
        &["unanchored-regex 5:17", "unanchored-regex 6:17"],
    ),
    (
        "@  A: { by: { header: x-k }, count: 9, period: 1s }\noverrides:\n  - A: { regex: [^gold, gold$, ^gold$, .*gold.*, (?i)^gold, ^a|^b], unlimited: true }\n",
        &[],
    ),
    // denies-everything
    ("  A: { deny: true }\n", &["denies-everything 2:14"]),
    ("  A: { by: ip, deny: true }\n", &["denies-everything 2:22"]),
    ("  A: { by: ip, deny: true }\noverrides:\n  A:192.0.2.1: { unlimited: true }\n", &[]),
    ("  A: { match: { path: /a }, deny: true }\n", &[]),
    ("  A: { deny: true, mode: shadow }\n", &[]),
    // claimable-exemption
    ("@exempt: [{ match: { path: /health } }]\n", &["claimable-exemption 3:19"]),
    ("@exempt: [{ match: { headers: { x-a: b } }, limits: [Guard] }]\n", &["claimable-exemption 3:19"]),
    ("@exempt: [{ match: { cidr: [10.0.0.0/8, 0.0.0.0/0] } }]\n", &["claimable-exemption 3:19"]),
    ("@exempt: [{ match: { cidr: { not: 10.0.0.0/8 } } }]\n", &["claimable-exemption 3:19"]),
    ("@exempt: [{ match: { cidr: 10.0.0.0/8, headers: { x-a: b } } }, { match: { domain: d } }]\n", &[]),
    ("@exempt: [{ match: { cidr: 10.0.0.0/8 }, limits: [Guard, Guard] }]\n", &["no-effect 3:57"]),
    // exempts-nothing
    ("@  A: { match: { path: /health }, unlimited: true }\n", &["exempts-nothing 3:45"]),
    ("  A: { by: ip, unlimited: true }\noverrides:\n  A:192.0.2.1: { deny: true }\n", &[]),
    // enforces-nothing
    ("  A: { by: ip, count: 9, period: 1s, enforce_for: 0% }\n", &["enforces-nothing 2:51"]),
    ("  A: { by: ip, count: 9, period: 1s, enforce_for: 1% }\n", &[]),
    // review-due
    ("  A: { by: ip, count: 9, period: 1s, review_by: 2026-11-19 }\n", &["review-due 2:49"]),
    ("  A: { by: ip, count: 9, period: 1s, mode: off, review_by: 2020-02-29 }\n", &["review-due 2:60"]),
    ("  A: { by: ip, count: 9, period: 1s, review_by: 2026-11-20 }\n", &[]),
    ("  A: { by: ip, count: 9, period: 1s, review_by: 2020-01-31, ignore_lints: [review-due] }\n", &[]),
    // shadow-candidate
    (
        "  A: { by: ip, count: 9, period: 1s, mode: shadow, candidate: { count: 5, period: 1s } }\n",
        &["shadow-candidate 2:63"],
    ),
    ("  A: { by: ip, count: 9, period: 1s, candidate: { count: 5, period: 1s } }\n", &[]),
    // never-refills
    ("  A: { by: ip, burst: 9 }\n", &["never-refills 2:23"]),
    ("  A: { by: { tls: subject }, burst: 9 }\n", &[]),
    ("  A: { by: ip, algorithm: concurrency, burst: 9 }\n", &[]),
    ("  A: { by: ip, algorithm: sliding_log, count: 9, period: 1h }\n", &[]),
    ("  A: { by: ip, algorithm: fixed_window, count: 9, period: 24h }\n", &[]),
    // ban-of-others, chosen-number
    (
        "  A: { by: { header: x-id }, max_keys: 9, count: 9, period: 1s, ban: { after: 3, within: 1m, for: 1h } }\n",
        &["ban-of-others 2:70"],
    ),
    ("  A: { by: ip, count: 9, period: 1s, ban: { after: 3, within: 1m, for: 1h } }\n", &[]),
    ("  A: { by: ip, count: { header: x-rate, at_most: 90, default: 9 }, period: 1s }\n", &["chosen-number 2:23"]),
    // chosen-cost
    ("  A: { by: ip, count: 9, period: 1s, cost: { header: x-cost } }\n", &["chosen-cost 2:44"]),
    ("  A: { by: ip, count: 9, period: 1s, cost: { query: n } }\n", &["chosen-cost 2:44"]),
    ("@  A: { by: ip, count: 9, period: 1s, cost: { query: n } }\n", &[]),
    ("  A: { by: ip, count: 9, period: 1s, cost: { header: x-cost, missing: deny } }\n", &[]),
    ("  A: { by: ip, count: 9, period: 1s, cost: { body: /n } }\n", &[]),
    // literal-path
    (
        "  A: { by: ip, count: 9, period: 1s, match: { path: [/a/:id, '/a/<int:id>', '/b/[slug]', '/b/[0-9]+'] } }\n",
        &["literal-path 2:54", "literal-path 2:62", "literal-path 2:77", "literal-path 2:90"],
    ),
    ("  A: { by: ip, count: 9, period: 1s, match: { path: ['/a/b:verb', '/a/{id}', '/a/b[1]'] } }\n", &[]),
    // What is reported where it is read.
    ("  A: { by: ip/64, count: 1, period: 1s, cost: 0 }\n", &["counts-nothing 2:47"]),
    ("  A: { by: ip/64, count: 2000001, period: 1s }\n", &["finer-than-clock 2:26"]),
    ("  A: { by: ip/64, count: 1, period: 1s, mode: shadow, enforce_for: 5% }\n", &["no-effect 2:55"]),
    (
        "  A: { by: ip/64, count: 9, period: 1m, cost_from_response: { usage: gemini, weights: { cache_write: 2 } } }\n",
        &["no-effect 2:89"],
    ),
    ("  A: { by: ip/64 }\n", &["no-numbers 2:3"]),
    ("  A: { by: ip/64, count: 1, period: 1s, match: { methods: [PSOT] } }\n", &["unknown-method 2:60"]),
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
    let elsewhere = ["underscore-header", "untested-limit", "unusable-key", "unused-ignore"];
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
    let limits = "limits:\n  A: { by: ip/128, count: 1, period: 1s, ignore_lints: [whole-ipv6-address, override-never-applies] }\n  B: { by: ip/128, count: 1, period: 1s }\n";
    let expired = "A:192.0.2.1: { burst: 2, until: 2020-01-01 }\nB:192.0.2.1: { burst: 2, until: 2020-01-01 }\n";
    let found = found(&lint(limits, &[expired]));
    assert_eq!(found, ["whole-ipv6-address 3:12", "override-never-applies 2:33"]);
    // Without the linter, the warnings that every start prints are silenced, too.
    assert_eq!(load_texts(limits, &[expired]).report.warnings, 1);
}

#[test]
fn what_silences_nothing_is_a_finding() {
    let limits =
        "ignore_lints: [no-limits]\nlimits:\n  A: { by: ip/64, count: 1, period: 1s, ignore_lints: [free-id] }\n";
    assert_eq!(found(&lint(limits, &[])), ["unused-ignore 1:16", "unused-ignore 3:56"]);
    assert_eq!(load_texts(limits, &[]).report.warnings, 0);
    let narrow =
        "ignore_lints: [free-id]\nlimits:\n  A: { by: { header: x }, count: 1, period: 1s, ignore_lints: [free-id] }\n";
    assert_eq!(found(&lint(narrow, &[])), ["unused-ignore 1:16"]);
}

#[test]
fn a_wrong_name_is_an_error_that_suggests_the_nearest() {
    check(
        "ignore_lints: [free-ids]\nlimits: {}",
        &[],
        &["unknown lint `free-ids`", "did you mean `free-id`?", ":1:16"],
    );
    check("limits: { A: { count: 1, period: 1s, ignore_lints: [x] } }", &[], &["unknown lint `x`", "expected one of"]);
    check("limits: { A: { count: 1, period: 1s, ignore_lints: free-id } }", &[], &["must be a list"]);
    check("ignore_lints: [free-id, free-id]\nlimits: {}", &[], &["duplicate lint `free-id`"]);
}

#[test]
fn very_many_limits_are_not_compared() {
    let limits = |count| {
        (0..count).fold("limits:\n".to_owned(), |mut text, number| {
            let _ = writeln!(text, "  L{number}: {{ by: ip/64, count: 1, period: 1s }}");
            text
        })
    };
    assert_eq!(lint(&limits(3), &[]).report.warnings, 2);
    assert_eq!(lint(&limits(MOST_COMPARED + 1), &[]).report.warnings, 0);
}
