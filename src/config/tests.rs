//! The files as a whole: the cases of the systems whose users come to Weir, and what people see of a mistake.

use std::fmt::Write;
use std::time::{Duration, Instant};

use serde_json::Value as Json;

use super::*;
use crate::engine::fingerprint::Fingerprinter;
use crate::engine::form::Form;
use crate::engine::identity::{self, Component};
use crate::engine::limit::{Cost, LimitMode, Missing, StoreErrorPolicy, WHOLE_SHARE};
use crate::engine::matching::HostPattern;
use crate::engine::numbers::{Allowance, Micros, Numbers};
use crate::engine::overrides::Origin;
use crate::engine::request::Request;

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

#[test]
fn every_field_reaches_the_engine() {
    let limits = r#"
limits:
  Full:
    match:
      methods: [POST, PUT]
      host: ["API.example.com", "*.example.org"]
      path: "/v1/{kind}/{id}/**"
      headers: { X-Plan: free, x-a: { prefix: b }, x-r: { regex: "^\\d+$" }, x-p: { present: false } }
      cidr: [10.0.0.0/8, 192.0.2.7]
    by: [{ header: X-Id, as: integer }, { path: id }, ip/56, { cookie: sid }, { query: q, as: hostname-set }]
    rates: [{ burst: 20, count: 10, period: 1s }, { count: 1000, period: 1d }]
    cost: { header: X-Cost }
    mode: enforce
    enforce_for: 12.5%
    missing: shared
    on_store_error: local
    short: f
    algorithm: token_bucket
  Plain: {}
  Fixed: { by: global, burst: 3, cost: { query: n }, mode: off }
overrides:
  Plain:192.0.2.1: { count: 5, period: 1s, until: 2026-12-31, comment: why }
"#;
    let loaded = load_texts(limits, &["- Plain: { unlimited: true, ids: [{ id: \"::ffff:192.0.2.9\", comment: x }] }"]);
    let Some(rules) = loaded.rules else { panic!("{}", loaded.report) };
    let [full, plain, fixed] = rules.limits() else { panic!("three limits") };

    assert_eq!((full.name.as_str(), full.short.as_str()), ("Full", "f"));
    assert_eq!(full.conditions.methods, ["POST", "PUT"]);
    let hosts = [HostPattern::Exact("api.example.com".into()), HostPattern::Below(".example.org".into())];
    assert_eq!(full.conditions.hosts, hosts);
    assert!(full.conditions.paths[0].is_open() && full.conditions.paths[0].matches("/v1/a/b/c"));
    let tests: Vec<String> =
        full.conditions.headers.iter().map(|header| format!("{} {:?}", header.name, header.test)).collect();
    let expected =
        [r#"x-plan Value("free")"#, r#"x-a Prefix("b")"#, r#"x-r Regex(Regex("^\\d+$"))"#, "x-p Present(false)"];
    assert_eq!(tests, expected);
    let networks: Vec<String> = full.conditions.networks.iter().map(ToString::to_string).collect();
    assert_eq!(networks, ["10.0.0.0/8", "192.0.2.7/32"]);
    let by = [
        (identity::Source::Header("x-id".parse().unwrap()), Form::Integer),
        (identity::Source::PathParameter { name: "id".into(), segment: 2 }, Form::Text),
        (identity::Source::Ip { ipv6_prefix: 56 }, Form::Text),
        (identity::Source::Cookie("sid".into()), Form::Text),
        (identity::Source::Query("q".into()), Form::HostnameSet),
    ];
    assert_eq!(full.by, by.map(|(source, form)| Component { source, form }));
    let second = 1_000_000_000;
    let windows = [Numbers::new(20, 10, second).unwrap(), Numbers::new(1_000, 1_000, 86_400 * second).unwrap()];
    assert_eq!(full.allowance, Allowance::Windows(windows.into()));
    assert_eq!(full.cost, Cost::Header("x-cost".parse().unwrap()));
    assert_eq!((full.mode, full.enforce_for), (LimitMode::Enforce, 125_000));
    assert_eq!((full.missing, full.on_store_error), (Missing::Shared, StoreErrorPolicy::Local));

    let whole = Component { source: identity::Source::Ip { ipv6_prefix: 128 }, form: Form::Text };
    assert_eq!((&plain.allowance, plain.short.as_str()), (&Allowance::Disabled, "Plain"));
    assert_eq!(plain.by, [whole]);
    assert_eq!((plain.cost.clone(), plain.enforce_for, plain.mode), (Cost::Fixed(1), WHOLE_SHARE, LimitMode::Enforce));
    let first = plain.overrides.get(0).unwrap();
    assert_eq!(first.until, Some(Micros(1_798_761_600_000_000)));
    assert_eq!(first.allowance, Allowance::Windows([Numbers::new(5, 5, second).unwrap()].into()));
    assert_eq!(first.origin, Origin { file: 0, line: 22, comment: Some("why".into()) });
    let second = plain.overrides.get(1).unwrap();
    assert_eq!(second.origin, Origin { file: 1, line: 1, comment: Some("x".into()) });
    assert_eq!(rules.file(second.origin.file), "o1.yaml");
    let headers = http::HeaderMap::new();
    let client = "192.0.2.9".parse().unwrap();
    let request = Request { method: "GET", host: "a", path: "/", query: None, headers: &headers, client, now: NOW };
    assert_eq!(rules.charges(&request).unwrap().unlimited, [1], "the folded address is found");

    assert_eq!((fixed.by.len(), fixed.mode), (0, LimitMode::Off));
    assert_eq!(fixed.allowance, Allowance::Windows([Numbers::fixed(3).unwrap()].into()));
    assert_eq!(fixed.cost, Cost::Query("n".into()));
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
error: `ipp` is no component of an id
 --> limits.yaml:3:9
  |
3 |     by: ipp
  |         ^^^
  = help: did you mean `ip`?

error: a limit has no field `counts`
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
  = help: write 10: some programs read a leading zero as octal

error: `60` has no unit
 --> limits.yaml:6:13
  |
6 |     period: 60
  |             ^^
  = help: write 60s for seconds, 60ms, 60m or 60h

error: no limit has the name `Request`
 --> limits.yaml:8:3
  |
8 |   Request:10.0.0.1: { count: 5, period: 1s }
  |   ^^^^^^^^^^^^^^^^
  = help: did you mean `Requests`?

";
    assert_eq!(load_texts(limits, &[]).report.to_string(), expected);
}

#[test]
fn a_problem_names_the_file_it_is_in() {
    let limits = "limits:\n  A: { count: 1, period: 1s }\noverrides:\n  A:10.0.0.1: { deny: true }\n";
    let second = "A:10.0.0.2: { deny: true }\nA:10.0.0.2: { deny: true }\n";
    check(limits, &[second], &["o1.yaml:2:1", "the first one is at o1.yaml:1"]);
    let third = "- A: { deny: true, ids: [10.0.0.3, 10.0.0.1] }";
    check(limits, &[third], &["o1.yaml:1:36", "the first one is at limits.yaml:4", "ambiguous"]);
}

#[test]
fn numbers_say_what_would_be_right() {
    for (fields, expected) in [
        ("burst: 5", ""),
        ("count: 5", "`count` without `period`"),
        ("period: 1s", "`period` without `count`"),
        ("burst: 5, period: 1s", "add `count`"),
        ("count: 0, period: 1s", "count must be at least 1"),
        ("burst: 0", "write `deny: true`"),
        ("count: 1, period: 0s", "period must be longer than 0"),
        ("count: 2000000000, period: 1s", "the largest count is 1000000000"),
        ("burst: 1000000000, count: 1, period: 2160h", "the largest burst is 1158"),
        ("count: 5000000, period: 1s", "warning: a token comes back"),
        ("unlimited: true, burst: 1", "`unlimited: true` and `burst` together"),
        ("unlimited: true, deny: true", "contradict"),
        ("unlimited: true", ""),
        ("unlimited: false, deny: false, count: 1, period: 1s", ""),
        ("unlimited: yes", "write `true`"),
        ("rates: [{ count: 10, period: 1s }, { burst: 50, count: 1000, period: 1d }]", ""),
        ("rates: []", "give 1 to 8"),
        ("rates: [{ burst: 1 }]", "a window needs"),
        ("rates: [{}]", "a window needs"),
        ("rates: [{ count: 1, period: 1s }], burst: 3", "move it into one of the `rates`"),
        ("rates: { count: 1, period: 1s }", "is a list"),
        ("rates: [{ count: x, period: 1s }, { count: 1, period: y }]", "`y` is no duration"),
        ("burst:", "`burst` has no value"),
        ("count: [1], period: 1s", "this is a list"),
    ] {
        let expected: Vec<&str> = Some(expected).filter(|part| !part.is_empty()).into_iter().collect();
        check(&format!("limits:\n  A: {{ {fields} }}\n"), &[], &expected);
    }
}

#[test]
fn fields_say_what_would_be_right() {
    for (fields, expected) in [
        ("by: ip", ""),
        ("by: ip/64", ""),
        ("by: ip/0", "no IPv6 prefix"),
        ("by: ip/064", "no IPv6 prefix"),
        ("by: ip/129", "1 to 128"),
        ("by: headers", "a map such as"),
        ("by: header", "write `{ header: NAME }`"),
        ("by: x-api-key", "write `{ header: x-api-key }`"),
        ("by: { header: x-api-key, as: integr }", "did you mean `integer`?"),
        ("by: { header: \"x y\" }", "no name of a header"),
        ("by: { header: a, query: b }", "one source, this has 2"),
        ("by: { as: text }", "one source, this has 0"),
        ("by: { ip: 64 }", "`ip/64`"),
        ("by: { host: true, as: registered-domain }", ""),
        ("by: { descriptor: x }", "not supported by this version"),
        ("by: [ip, global]", "leave it out"),
        ("by: [ip, ip]", "twice"),
        ("by: []", "by: global"),
        ("by: [[ip]]", "no list"),
        ("by: { path: id }", "`match` has none"),
        ("by: { path: id }, match: { path: /v1 }", "have no parameters"),
        ("by: { path: id }, match: { path: \"/v1/{ids}\" }", "did you mean `ids`?"),
        ("by: { path: id }, match: { path: [\"/a/{id}\", \"/b/c/{id}\"] }", "different places"),
        ("by: { path: id }, match: { path: [\"/a/{id}\", \"/b\"] }", "every pattern needs it"),
        ("by: { path: id }, match: { path: [\"/a/{id}\", \"/b/{id}/**\"] }", ""),
        ("match: { methods: post }", "write POST"),
        ("match: { methods: [GET, PSOT] }", "did you mean POST?"),
        ("match: { methods: [] }", "the list is empty"),
        ("match: { methods: \"GET POST\" }", "no method"),
        ("match: { host: https://api.example.com/v1 }", "write the host alone, api.example.com"),
        ("match: { host: api.example.com:443 }", "write api.example.com"),
        ("match: { host: api.*.com }", "no host to match"),
        ("match: { host: \"::1\" }", "write an IPv6 address in brackets"),
        ("match: { host: [localhost, \"*.Example.com\", \"[::1]\"] }", ""),
        ("match: { path: v1 }", "write `/v1`"),
        ("match: { headers: { x-plan: free, x-v: 2 } }", ""),
        ("match: { headers: { x-plan: { prefix: a, regex: b } } }", "this has 2"),
        ("match: { headers: { x-plan: { regex: \"(\" } } }", "unclosed group"),
        ("match: { headers: { x-plan: { regex: \"(?i)^\\\\d+\\\\b\" } } }", ""),
        ("match: { headers: { x-plan: { present: true } } }", ""),
        ("match: { headers: { x-plan: true } }", "`{ present: true }`"),
        ("match: { headers: { x-plan: a, X-Plan: b } }", "twice"),
        ("match: { headers: { x-plan: } }", "has no value"),
        ("match: { headers: [x-plan] }", "is a map"),
        ("match: { cidr: [10.0.0.0/8, \"2001:db8::/32\", 192.0.2.7] }", ""),
        ("match: { cidr: 10.1.2.3/8 }", "write 10.0.0.0/8"),
        ("match: { cidr: \"::ffff:10.0.0.0/104\" }", "write 10.0.0.0/8"),
        ("match: { cidr: ten }", "no network"),
        ("match: { when: x }", "not supported by this version"),
        ("match: { domain: x }", "not supported by this version"),
        ("match: /v1", "`match` is a map"),
        ("match: { paths: /v1 }", "did you mean `path`?"),
        ("cost: 5", ""),
        ("cost: { header: x-cost }", ""),
        ("cost: { query: n }", ""),
        ("cost: { cookie: n }", "no field `cookie`"),
        ("cost: -1", "negative"),
        ("cost: 0", "warning: with a cost of 0"),
        ("cost: 11", "warning: the cost is above the burst, 10"),
        ("mode: shadow", ""),
        ("mode: of", "did you mean `off`?"),
        ("enforce_for: 0.5%", ""),
        ("mode: shadow, enforce_for: 5%", "warning: `enforce_for` has no effect"),
        ("enforce_for: 10", "write 10%"),
        ("enforce_for: 101%", "0% to 100%"),
        ("enforce_for: 1.00001%", "four digits"),
        ("missing: ignore", "known are `skip`, `deny`, `shared`"),
        ("on_store_error: fail", "known are"),
        ("short: rq", ""),
        ("short: \"a:b\"", "no short name"),
        ("algorithm: token_bucket", ""),
        ("algorithm: fixed_window", "not supported by this version"),
        ("algorithm: magic", "known are"),
        ("elevated: { burst: 1 }", "not supported by this version"),
        ("cost_from_response: { header: x }", "not supported by this version"),
    ] {
        let expected: Vec<&str> = Some(expected).filter(|part| !part.is_empty()).into_iter().collect();
        field(fields, &expected);
    }
}

#[test]
fn the_files_as_a_whole_are_checked() {
    let one = "{ count: 1, period: 1s }";
    for (limits, expected) in [
        (String::new(), "the file is empty"),
        ("---\n".into(), "a rules file is a map, this is nothing"),
        ("[]".into(), "this is a list"),
        ("limits:\n".into(), "`limits: {}`"),
        ("overrides: {}".into(), "the file has no `limits`"),
        ("limts: {}".into(), "did you mean `limits`?"),
        ("limits: {}\nlimits: {}".into(), "`limits` stands here twice"),
        ("limits: {}\noverrides:\n".into(), "write `overrides: {}`"),
        (format!("limits:\n  A: {one}\n  a: {one}\n"), "names have no case"),
        (format!("limits:\n  A: {one}\n  A: {one}\n"), "the first one is in line 2"),
        (format!("limits:\n  A:10.0.0.1: {one}\n"), "belongs under `overrides`"),
        (format!("limits:\n  1A: {one}\n"), "begins with a letter"),
        (format!("limits:\n  {}: {one}\n", "A".repeat(65)), "too long"),
        (format!("limits:\n  A: {{ short: b, count: 1, period: 1s }}\n  B: {one}\n"), "stands for another limit"),
        ("limits:\n  A:\n".into(), "`A` has no fields"),
        ("limits:\n  A: 5\n".into(), "a limit is a map"),
        ("limits:\n  A: { by: ip }\n".into(), "`A` applies to nothing"),
        // Before the limits, overrides are read in a second pass.
        (format!("overrides:\n  A:x: {one}\nlimits:\n  A: {one}\n"), "`x` can never be an id of `A`"),
        (format!("overrides:\n  A:10.0.0.1: {one}\nlimits:\n  A: {one}\n"), ""),
        (format!("\u{feff}limits:\r\n  A: {one}\r\n"), ""),
    ] {
        let expected: Vec<&str> = Some(expected).filter(|part| !part.is_empty()).into_iter().collect();
        check(&limits, &[], &expected);
    }
}

#[test]
fn overrides_say_what_would_be_right() {
    let limits = "
limits:
  Ip: { by: ip, count: 10, period: 1s }
  Range: { by: ip/64 }
  Account: { by: { header: x-id, as: integer }, count: 10, period: 1s }
  Pair: { by: [{ header: x-id, as: integer }, ip], count: 10, period: 1s, cost: 5 }
  All: { by: global, count: 10, period: 1s }
overrides:
  Range:2001:db8::/64: { count: 1, period: 1s }
";
    for (overrides, expected) in [
        ("Ip:10.0.0.1: { count: 20, period: 1s, comment: x, until: 2027-01-01 }", ""),
        ("Ip:10.0.0.1: { unlimited: true }", ""),
        ("Ip:10.0.0.1: {}", "gives no numbers"),
        ("Ip:10.0.0.1:\n", "has no numbers"),
        ("Ip:10.0.0.1: 5", "an override is a map"),
        ("Ip:10.0.0.1: { unlimited: false }", "gives no numbers"),
        ("Ip:10.0.0.1: { count: 20 }", "without `period`"),
        ("Ip:300.0.0.1: { count: 20 }", "no IP address"),
        ("Ip:10.0.0.1: { count: 20, period: 1s, until: soon }", "neither a date nor"),
        ("Ip:10.0.0.1: { count: 20, period: 1s, until: 2020-01-01 }", "warning: this override has expired"),
        ("Ip:10.0.0.1: { deny: true, elevated: {} }", "not supported by this version"),
        ("Ip:10.0.0.1: { deny: true, ids: [10.0.0.2] }", "beside the id in the key"),
        ("Ip: { deny: true, cidr: 10.0.0.0/8 }", ""),
        ("Ip: { deny: true, cidr: [10.0.0.0/8, 10.0.0.0/8] }", "ambiguous"),
        ("Ip: { deny: true, cidr: 10.0.0.1/8 }", "write 10.0.0.0/8"),
        ("Ip: { deny: true, regex: \"^10[.]\" }", ""),
        ("Ip: { deny: true, regex: \"[\" }", "no regular expression"),
        ("All: { deny: true, regex: x }", "it has no ids to match"),
        ("All:x: { deny: true }", "by: global"),
        ("Ip: { deny: true, ids: [] }", "the list is empty"),
        ("Ip: { deny: true, ids: 10.0.0.1 }", "write `ids: [...]`"),
        ("Ip: { deny: true, ids: [{ comment: x }] }", "has no `id`"),
        ("Ip: { deny: true, ids: [{ id: 10.0.0.1, coment: x }] }", "did you mean `comment`?"),
        ("Ip: { deny: true, ids: [10.0.0.1], cidr: 10.0.0.0/8 }", "one too many"),
        ("Ip: { deny: true }", "names no id"),
        ("ip:10.0.0.1: { deny: true }", "did you mean `Ip`?"),
        ("\":x\": { deny: true }", "before the colon"),
        ("\"Ip:\": { deny: true }", "the id is empty"),
        ("overrides: { Ip:10.0.0.1: { deny: true } }", "without such a key"),
        ("- Ip:\n  deny: true\n  ids: [10.0.0.1]\n", "indent it further"),
        ("- [Ip]", "this is a list"),
        ("- {}", "is empty"),
        ("- Ip:10.0.0.1: { deny: true }", ""),
        ("", "the file is empty"),
        ("# nothing\n", "the file is empty"),
        ("~", "this is nothing"),
        ("Ip:10.0.0.1: { deny: true }\n---\nIp:10.0.0.2: { deny: true }\n", "a second YAML document"),
        ("Account: { deny: true, ids: [1234, \"5678\"] }", ""),
        ("Account: { deny: true, ids: [007] }", "write 7"),
        ("Account:1.5: { deny: true }", "no unsigned 64-bit integer"),
        ("Pair:7:::1: { count: 20, period: 1s }", ""),
        ("Pair:7: { count: 20, period: 1s }", ""),
        ("Pair:7:10.0.0.1: { count: 4, period: 1s }", "warning: the limit's cost is above this burst, 4"),
        ("Range:2001:db8::1: { deny: true }", "write the range, 2001:db8::/64"),
    ] {
        let expected: Vec<&str> = Some(expected).filter(|part| !part.is_empty()).into_iter().collect();
        check(limits, &[overrides], &expected);
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
    check(&limits, &[&format!("A:{}x: {one}", "a:".repeat(20))], &["can never be an id of `A`"]);
    check(&format!("limits:\n  {}: {one}\n", "k".repeat(10_000)), &[], &["error"]);
    check(&format!("limits:\n  A: {{ {}: 1 }}\n", "k".repeat(1_000)), &[], &["has no field"]);
    let long = format!("Account: {{ deny: true, ids: [\"{}\"] }}", "9".repeat(1_000_000));
    check("limits:\n  Account: { by: { header: a }, count: 1, period: 1s }\n", &[&long], &["the id is too long"]);
}
