//! Tests beside the rules: what is read, and what is said of mistakes.

use super::*;
use crate::config::rule_tests::{EPOCH, RuleTest, TestedRules, tested_rules, tests};
use crate::engine::algorithms::micros::Micros;

const LIMITS: &str = "limits:\n  Orders: { count: 1, period: 1s }\n  Logins: { count: 1, period: 1m }\n  \
                      Tried: { count: 1, period: 1m, candidates: { low: { burst: 1 }, high: { burst: 2 } } }\n";

fn read(text: &str) -> Result<Vec<RuleTest>, String> {
    let rules = load_texts(LIMITS, &[]).rules.unwrap();
    let source = Source { name: "tests.yaml".into(), text: text.into() };
    tests(&source, None, &rules).map_err(|report| report.to_string())
}

/// The report on a test with these steps.
#[track_caller]
fn check_steps(steps: &str, expected: &[&str]) {
    let report = read(&format!("tests:\n  a: {steps}\n")).unwrap_err();
    for part in expected {
        assert!(report.contains(part), "`{part}` is not in\n{report}");
    }
    assert_eq!(report.matches("error: ").count(), expected.len(), "{report}");
}

#[test]
fn steps_follow_each_other() {
    let text = "tests:\n  a:\n    - { get: /, expect: allow }\n    - { after: 1s, get: /, repeat: 3, every: 100ms }\n    \
                - { after: 0, get: / }\n    - { at: 2s, limit: Orders, id: 10.0.0.1 }\n  \
                b: { epoch: 2026-02-01, steps: [{ domain: d, descriptor: { k: v }, expect: deny }] }\n";
    let found = read(text).unwrap();
    let at: Vec<_> = found[0].steps.iter().map(|step| (step.line, step.at.0 / 1_000)).collect();
    assert_eq!(at, [(3, 0), (4, 1_000), (5, 1_200), (6, 2_000)]);
    assert_eq!((found[0].epoch, found[1].epoch), (EPOCH, Micros(EPOCH.0 + 31 * 86_400_000_000)));
}

#[test]
fn mistakes_are_told_all_at_once_with_their_places() {
    let text = "\
tests:
  a client waits:
    - { get: v1, ip: 10.1.2, expect: { deny: Order, retry: 1s } }
    - { at: 1, post: /x, cost: 2 }
    - { expect: allow }
";
    let expected = "\
error: `v1`: a target must be a path, or an `http://` or `https://` URL
 --> tests.yaml:3:14
";
    let report = read(text).unwrap_err();
    assert!(report.starts_with(expected), "{report}");
    for part in [
        "error: `10.1.2` is not a valid IP address\n --> tests.yaml:3:22",
        "error: unknown limit `Order`\n --> tests.yaml:3:46",
        "help: did you mean `Orders`?",
        "error: unknown key `retry` in `expect`\n --> tests.yaml:3:53",
        "error: `1` has no unit\n --> tests.yaml:4:13",
        "error: `cost` does not apply to a request\n --> tests.yaml:4:26",
        "error: the step asks nothing\n --> tests.yaml:5:7",
    ] {
        assert!(report.contains(part), "`{part}` is not in\n{report}");
    }
}

#[test]
fn a_step_is_clear() {
    for (steps, expected) in [
        ("[{ get: /, post: /, expect: allow }]", "a step asks one thing, not both `get` and `post`"),
        ("[{ get: /, expect: allowed }]", "did you mean `allow`?"),
        ("[{ get: /, expect: { allow: Orders, deny: Orders } }]", "a step has one verdict"),
        ("[{ get: /, expect: { deny: Orders, limit: Orders } }]", "`deny` names the limit already"),
        ("[{ get: /, expect: { allowed: 1 } }]", "`allowed` counts the requests of `repeat`"),
        ("[{ get: /, expect: { remaining: 1.5 } }]", "is not a whole number"),
        ("[{ get: /, expect: { retry_after: soon } }]", "invalid duration"),
        ("[{ get: /, expect: { status: 42 } }]", "not an HTTP status"),
        ("[{ get: /, expect: { headers: { \"a b\": 1 } } }]", "invalid header name `a b`"),
        ("[{ get: /, expect: { limits: { Order: allow } } }]", "unknown limit `Order`"),
        ("[{ get: /, expect: { limits: { Orders: denyy } } }]", "did you mean `deny`?"),
        ("[{ get: /, expect: { limits: { Orders: { candidate: allow } } } }]", "the limit has no `candidate`"),
        (
            "[{ get: /, expect: { limits: { Orders: { candidates: {} } } } }]",
            "`candidates` is empty, so it cannot fail",
        ),
        ("[{ get: /, expect: { limits: { Tried: { candidate: allow } } } }]", "the limit has no `candidate`"),
        ("[{ get: /, expect: { limits: { Tried: { candidates: { lwo: allow } } } } }]", "did you mean `low`?"),
        ("[{ get: /, expect: { limits: { Tried: { candidates: { low: deny } } } } }]", "unknown value `deny`"),
        ("[{ get: / }]", "expects nothing, so it cannot fail"),
        ("[{ get: /, expect: {} }]", "`expect` is empty, so it cannot fail"),
        ("[{ get: /, expect: allow }, { get: /, expect: {} }]", "`expect` is empty, so it cannot fail"),
        ("[{ get: /, expect: { headers: {} } }]", "`headers` is empty, so it cannot fail"),
        ("[{ get: /, expect: { limits: {} } }]", "`limits` is empty, so it cannot fail"),
        ("[{ get: /, expect: { limits: { Orders: {} } } }]", "`Orders` is empty, so it cannot fail"),
        ("[{ limit: Orders, id: 10.0.0.1, mode: reset, cost: 2, expect: allow }]", "a reset has no `cost`"),
        ("[]", "expects nothing, so it cannot fail"),
        ("{ epoch: tomorrow, steps: [{ get: /, expect: allow }] }", "neither a date nor"),
        ("{ epoch: 2026-01-01 }", "a test needs `steps`"),
        ("5", "a test must be a list"),
        ("[{ at: 1s, after: 1s, get: /, expect: allow }]", "`at` or `after`, not both"),
        ("[{ at: 2s, get: /, expect: allow }, { at: 1s, get: / }]", "before the end of the last one"),
        ("[{ every: 1s, get: /, expect: allow }]", "`every` needs `repeat`"),
        ("[{ repeat: 0, get: /, expect: allow }]", "`repeat` must be at least 1"),
        ("[{ repeat: 100001, get: /, expect: allow }]", "`repeat` is too large"),
        ("[{ repeat: 100000, every: 999w, get: /, expect: allow }]", "the test takes longer than"),
        ("[{ after: 1ns, get: /, expect: allow }]", "whole microseconds"),
        ("[{ request: PURGE, expect: allow }]", "is not a method and a target"),
        ("[{ request: get /, expect: allow }]", "must be in upper case"),
        ("[{ get: /, host: \"a b\", expect: allow }]", "`/`: the `Host` header is not a valid host"),
        ("[{ get: /, headers: { \"a b\": 1 }, expect: allow }]", "invalid header name `a b`"),
        ("[{ limit: Orders, ip: 10.0.0.1, expect: allow }]", "`ip` does not apply to a charge by name"),
        ("[{ limit: Order, id: a, expect: allow }]", "unknown limit `Order`"),
        ("[{ limit: Orders, mode: spends, expect: allow }]", "did you mean `spend`?"),
        ("[{ domain: d, expect: allow }]", "needs `descriptor` or `descriptors`"),
        ("[{ domain: d, descriptors: [], expect: allow }]", "`descriptors` has 0 descriptors"),
        ("[{ domain: d, descriptor: {}, expect: allow }]", "a descriptor has 0 entries"),
        ("[{ limit: Orders, id: a, expect: { status: 200 } }]", "`status` is that of a request"),
        (
            "[{ domain: d, descriptor: { k: v }, expect: { limits: { Orders: { id: a } } } }]",
            "`id` is that of a request",
        ),
    ] {
        check_steps(steps, &[expected]);
    }
}

#[test]
fn a_file_of_tests_names_its_rules() {
    let tested = |text: &str| tested_rules(&Source { name: "tests.yaml".into(), text: text.into() });
    let of = |limits: Option<&str>, overrides: &[&str]| TestedRules::Of {
        limits: limits.map(Into::into),
        overrides: overrides.iter().map(Into::into).collect(),
    };
    assert_eq!(tested("limits: a.yaml\ntests: {}\n").unwrap(), of(Some("a.yaml"), &[]));
    assert_eq!(tested("tests: {}\noverrides: [o.yaml, p.yaml]\n").unwrap(), of(None, &["o.yaml", "p.yaml"]));
    assert_eq!(tested("tests: {}\nlimits: {}\n").unwrap(), TestedRules::Own);
    assert_eq!(tested("{}").unwrap(), TestedRules::Own);
    let report = tested("limits: a.yaml\ntest: {}\ntests: {}\n").unwrap_err().to_string();
    assert!(
        report.contains("unknown key `test` in a file of tests") && report.contains("did you mean `tests`?"),
        "{report}"
    );
}

#[test]
fn rules_load_whatever_their_tests_say() {
    check(&format!("{LIMITS}tests:\n  a: [{{ got: /, expect: 5 }}]\n"), &[], &[]);
    check(&format!("tests: 5\n{LIMITS}"), &[], &[]);
}
