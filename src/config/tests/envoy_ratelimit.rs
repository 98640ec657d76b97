//! Files of envoyproxy/ratelimit: what they come to, and what is refused.

use super::*;
use crate::engine::charging::plan::Plan;
use crate::engine::limit::allowance::Allowance;
use crate::engine::limit::{LimitMode, StoreErrorPolicy};
use crate::engine::request::{DescriptorEntry, Request, sample};
use crate::message::headers::Headers;

fn load_files(limits: Option<&str>, files: &[&str]) -> LoadResult {
    let named = |name: String, text: &str| Source { name, text: text.to_owned() };
    let sources = Sources {
        limits: limits.map(|text| named("limits.yaml".into(), text)),
        envoy_ratelimit: (1..).zip(files).map(|(n, text)| named(format!("r{n}.yaml"), text)).collect(),
        ..Sources::default()
    };
    load(&sources, Fingerprinter::new((1, 2)), NOW)
}

/// Loads a file and wants all of `expected` in the report; an empty list wants no problem at all.
#[track_caller]
fn check(files: &[&str], expected: &[&str]) {
    let loaded = load_files(None, files);
    let report = loaded.report.to_string();
    assert_eq!(loaded.rules.is_some(), loaded.report.errors == 0);
    for part in expected {
        assert!(report.contains(part), "`{part}` is not in\n{report}");
    }
    assert!(!expected.is_empty() || report.is_empty(), "{report}");
}

/// A file of one descriptor with these fields.
#[track_caller]
fn descriptor(fields: &str, expected: &str) {
    let file = format!("domain: d\ndescriptors:\n  - {{ {fields} }}\n");
    let expected: Vec<&str> = Some(expected).filter(|part| !part.is_empty()).into_iter().collect();
    check(&[&file], &expected);
}

#[test]
fn every_field_reaches_the_engine() {
    let file = "
domain: test-domain
descriptors:
  - key: path
    value: /v1/*
    share_threshold: true
    shadow_mode: true
    quota_mode: true
    metadata: { a: 1 }
    rate_limit: { name: Paths, unit: WEEK, requests_per_unit: 7, replaces: [{ name: Other }] }
    descriptors:
      - { key: user, rate_limit: { unlimited: true } }
      - { key: user, value: bad, rate_limit: { unit: day, requests_per_unit: 0 } }
";
    let loaded = load_files(Some("limits: { Own: { count: 1, period: 1s } }"), &[file]);
    let rules = loaded.rules.unwrap_or_else(|| panic!("{}", loaded.report));
    let [own, user, bad, paths] = rules.limits() else { panic!("four limits") };
    assert_eq!(own.name, "Own");
    assert_eq!(user.name, "test-domain/path=%2Fv1%2F*/user");
    assert_eq!((&user.allowance, user.by.len(), user.mode), (&Allowance::Unlimited, 1, LimitMode::Enforce));
    assert_eq!((bad.name.as_str(), &bad.allowance), ("test-domain/path=%2Fv1%2F*/user=bad", &Allowance::Deny));
    assert_eq!((paths.name.as_str(), paths.short.as_str()), ("test-domain/path=%2Fv1%2F*", paths.name.as_str()));
    assert_eq!((paths.by.len(), paths.mode, paths.on_store_error), (0, LimitMode::Shadow, StoreErrorPolicy::Deny));
    let Allowance::Windows(windows) = &paths.allowance else { panic!("{:?}", paths.allowance) };
    assert_eq!(windows[0].to_string(), "burst 7, 7 per clock window of 168h");
    let rule = paths.rule.as_deref().unwrap();
    assert_eq!(
        (rule.name.as_str(), rule.is_quota, rule.replaces.as_slice()),
        ("Paths", true, &["Other".to_owned()][..])
    );
    assert!(rule.metadata.is_some() && rules.knows_domain("test-domain") && !rules.knows_domain("test"));

    let headers = Headers::new();
    let entries = [DescriptorEntry { key: "path", value: "/v1/x" }, DescriptorEntry { key: "user", value: "u" }];
    let request = Request { domain: Some("test-domain"), descriptor: &entries, client: None, ..sample(&headers) };
    assert_eq!(Plan::of_request(&rules, &request, None).unwrap().unlimited, [1]);
    // The limits of limits.yaml are for requests, and those of a domain for that domain.
    assert!(
        Plan::of_request(&rules, &Request { domain: Some("other"), ..request }, None).unwrap().unlimited.is_empty()
    );
    assert_eq!(
        Plan::of_request(&rules, &Request { domain: None, descriptor: &[], ..sample(&headers) }, None)
            .unwrap()
            .charges
            .len(),
        1
    );
}

#[test]
fn whole_files_say_what_would_be_right() {
    for (text, expected) in [
        ("", "the file is empty"),
        ("[]", "the file must be a map, found a list"),
        ("domain: d\ndescriptors: [", "YAML"),
        ("descriptors: []", "the file needs `domain`"),
        ("domain: \"\"\ndescriptors: []", "the domain is empty"),
        ("domain:\ndescriptors: []", "the file needs `domain`"),
        ("domain: d\ndescriptor: []", "did you mean `descriptors`?"),
        ("domain: d\ndescriptors: { key: k }", "`descriptors` must be a list, found a map"),
        ("domain: d\ndescriptors: [a]", "a descriptor must be a map, found a single value"),
        ("domain: d\ndescriptors: [[{ key: k }]]", "a descriptor must be a map, found a list"),
        ("domain: d\ndomain: d", "duplicate key"),
        ("domain: d", ""),
        ("domain: d\ndescriptors:\n", ""),
        ("name: n\ndomain: d", ""),
        ("name: [n]\ndomain: d", "expected text, found a list"),
        ("---\ndomain: d\n---\ndomain: e\n---\n", ""),
        ("domain: d\n---\n[]", "the file must be a map, found a list"),
        ("domain: d\n---\ndescriptors: []", "the file needs `domain`"),
    ] {
        let expected: Vec<&str> = Some(expected).filter(|part| !part.is_empty()).into_iter().collect();
        check(&[text], &expected);
    }
    check(&["domain: d", "domain: e"], &[]);
}

#[test]
fn what_several_files_and_documents_say_of_a_domain_holds_together() {
    let one = |value: &str, requests: u32| {
        format!(
            "domain: d\ndescriptors:\n  - {{ key: k, value: {value}, rate_limit: {{ unit: day, requests_per_unit: {requests} }} }}\n"
        )
    };
    let both = format!("{}---\n{}", one("a", 1), one("b", 2));
    for files in [&[both.as_str()][..], &[&one("a", 1), &one("b", 2)], &[&one("a", 1), "domain: e", &one("b", 2)]] {
        let loaded = load_files(None, files);
        let rules = loaded.rules.unwrap_or_else(|| panic!("{}", loaded.report));
        let headers = Headers::new();
        for (value, expected) in [("a", 1), ("b", 2)] {
            let entries = [DescriptorEntry { key: "k", value }];
            let request = Request { domain: Some("d"), descriptor: &entries, client: None, ..sample(&headers) };
            let charges = Plan::of_request(&rules, &request, None).unwrap().charges;
            assert_eq!(
                charges.iter().map(|charge| charge.numbers.burst()).collect::<Vec<_>>(),
                [expected],
                "{files:?}"
            );
        }
    }
    check(&[&one("a", 1), &format!("# another\n{}", one("a", 2))], &["r2.yaml:4:5", "the first one, at r1.yaml:3"]);
    check(&[&format!("{}---\n{}", one("a", 1), one("a", 2))], &["r1.yaml:7:5", "the first one, on line 3"]);
}

#[test]
fn descriptors_say_what_would_be_right() {
    for (fields, expected) in [
        ("key: k", ""),
        ("key: k, value: v, rate_limit: { unit: Second, requests_per_unit: 5 }", ""),
        ("key: \"\"", "the key is empty"),
        ("value: v", "a descriptor needs `key`"),
        ("key: [k]", "expected text, found a list"),
        ("0: k", "unknown key `0` in a descriptor"),
        ("key: k, ratelimit: {}", "did you mean `rate_limit`?"),
        ("key: k, rate_limit: { unit: second, requestsperunit: 1 }", "did you mean `requests_per_unit`?"),
        ("key: k, rate_limit: { unit: fortnight, requests_per_unit: 1 }", "unknown unit `fortnight`"),
        ("key: k, rate_limit: { unit: minutes, requests_per_unit: 1 }", "did you mean `minute`?"),
        ("key: k, rate_limit: { requests_per_unit: 1 }", "`rate_limit` needs `unit`"),
        ("key: k, rate_limit: { unit: day }", "`rate_limit` needs `requests_per_unit`"),
        ("key: k, rate_limit: { unit: day, requests_per_unit: 0 }", ""),
        ("key: k, rate_limit: { unit: day, requests_per_unit: 4294967295 }", ""),
        ("key: k, rate_limit: { unit: day, requests_per_unit: 4294967296 }", "the largest number is 4294967295"),
        ("key: k, rate_limit: { unit: day, requests_per_unit: -1 }", "is negative"),
        ("key: k, rate_limit: { unlimited: true }", ""),
        ("key: k, rate_limit: { unlimited: true, unit: day }", "`unlimited: true` and `unit` cannot be combined"),
        ("key: k, rate_limit: { unlimited: yes }", "write `true`"),
        ("key: k, rate_limit: [5]", "`rate_limit` must be a map, found a list"),
        ("key: k, rate_limit: { unit: day, requests_per_unit: 1, name: \"a\\\"b\" }", "would break a header"),
        (
            "key: k, rate_limit: { unit: day, requests_per_unit: 1, name: a, replaces: [{ name: a }] }",
            "replaces itself",
        ),
        ("key: k, rate_limit: { unit: day, requests_per_unit: 1, replaces: [{ name: \"\" }] }", "needs `name`"),
        ("key: k, rate_limit: { unit: day, requests_per_unit: 1, replaces: [{}] }", "needs `name`"),
        ("key: k, rate_limit: { unit: day, requests_per_unit: 1, replaces: a }", "`replaces` must be a list"),
        ("key: k, value: v, share_threshold: true", "needs a value with `*`"),
        ("key: k, share_threshold: true", "needs a value with `*`"),
        ("key: k, value: v*, share_threshold: true", ""),
        ("key: k, value: v, share_threshold: false", ""),
        ("key: k, shadow_mode: 1", "write `true`"),
        ("key: k, metadata: [1]", "`metadata` must be a map, found a list"),
        ("key: k, detailed_metric: true", "warning: `detailed_metric` has no effect"),
        ("key: \"k*\"", "warning: a key has no wildcards"),
        ("key: \"k*\", value: v", ""),
        ("key: k, shadow_mode: true", "warning: `shadow_mode` has no effect without `rate_limit` [no-effect]"),
        ("key: k, quota_mode: true", "warning: `quota_mode` has no effect without `rate_limit` [no-effect]"),
        ("key: k, metadata: { a: 1 }", "warning: `metadata` has no effect without `rate_limit` [no-effect]"),
        ("key: k, shadow_mode: true, rate_limit: { unlimited: true }", ""),
        ("key: k, shadow_mode: false, quota_mode: false, metadata:", ""),
        ("key: k, detailed_metric: false, value_to_metric: false", ""),
        ("key: k, descriptors: [{ key: l, values: x }]", "did you mean `value`?"),
    ] {
        descriptor(fields, expected);
    }
}

#[test]
fn what_stands_twice_on_a_level_differs_in_its_unit() {
    let limit = |unit: &str| format!("{{ key: k, value: v, rate_limit: {{ unit: {unit}, requests_per_unit: 1 }} }}");
    let (second, day) = (limit("second"), limit("day"));
    let below = "{ key: k, value: v, descriptors: [{ key: l }] }";
    for (items, expected) in [
        ([second.as_str(), day.as_str()], ""),
        ([&second, &second], "duplicate descriptor `k=v`"),
        ([&second, &second], "the first one, on line 3, also has a limit per second"),
        ([&second, "{ key: k, value: v }"], "only limits with different units"),
        (["{ key: k }", "{ key: k }"], "duplicate descriptor `k`"),
        (["{ key: k }", "{ key: k, value: \"\" }"], "duplicate descriptor `k`"),
        (["{ key: k, value: v* }", "{ key: k, value: v* }"], "duplicate descriptor `k=v*`"),
        (["{ key: k }", &second], ""),
        ([below, &second], "has no limit per unit"),
        ([below, "{ key: j, descriptors: [{ key: l }] }"], ""),
    ] {
        let file = format!("domain: d\ndescriptors:\n  - {}\n  - {}\n", items[0], items[1]);
        let expected: Vec<&str> = Some(expected).filter(|part| !part.is_empty()).into_iter().collect();
        check(&[&file], &expected);
    }
    let file = format!("domain: d\ndescriptors:\n  - {second}\n  - {day}\n");
    let rules = load_files(None, &[&file]).rules.unwrap();
    let names: Vec<&str> = rules.limits().iter().map(|limit| limit.name.as_str()).collect();
    assert_eq!(names, ["d/k=v", "d/k=v,day"]);
}

#[test]
fn all_mistakes_are_shown_at_once_with_their_places() {
    let file = "\
domain: d
descriptors:
  - key: k
    ratelimit: { unit: second }
  - key: l
    rate_limit: { unit: eon, requests_per_unit: 1 }
    descriptors:
      - { value: v }
";
    let expected = "\
error: unknown key `ratelimit` in a descriptor
 --> r1.yaml:4:5
  |
4 |     ratelimit: { unit: second }
  |     ^^^^^^^^^
  = help: did you mean `rate_limit`?

error: unknown unit `eon`
 --> r1.yaml:6:25
  |
6 |     rate_limit: { unit: eon, requests_per_unit: 1 }
  |                         ^^^
  = help: expected one of `second`, `minute`, `hour`, `day`, `week`, `month`, `year`

error: a descriptor needs `key`
 --> r1.yaml:8:9
  |
8 |       - { value: v }
  |         ^^
  = help: add `key:` with a key that the gateway sends

";
    assert_eq!(load_files(None, &[file]).report.to_string(), expected);
}

#[test]
fn hostile_files_end_soon() {
    let deep = (0..20).fold(String::from("{ key: k }"), |below, _| format!("{{ key: k, descriptors: [{below}] }}"));
    check(&[&format!("domain: d\ndescriptors: [{deep}]")], &["nested deeper than 32 levels"]);
    let entry = |n| format!("  - {{ key: k, value: v{n}, rate_limit: {{ unit: day, requests_per_unit: 1 }} }}");
    let many: Vec<_> = (0..20_000).map(entry).collect();
    check(&[&format!("domain: d\ndescriptors:\n{}\n", many.join("\n"))], &[]);
}
