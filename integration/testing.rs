//! `weir test` and `weir diff`, as a user runs them.

mod formats;
mod watch;

use crate::support::binary::run_in;
use crate::support::process::Finished;
use crate::support::redis::RedisServer;

/// A test of every algorithm, of what a response settles, and of what listeners other than the proxy ask.
const RULES: &str = r#"
limits:
  Everyone: { by: ip, burst: 2, count: 1, period: 1s }
  Windows: { match: { path: /windows }, algorithm: fixed_window, aligned: clock, count: 2, period: 1m }
  Log: { match: { path: /log }, algorithm: sliding_log, count: 2, period: 10s }
  Sliding: { match: { path: /sliding }, algorithm: sliding_window, count: 2, period: 10s }
  InFlight: { match: { path: /slow }, by: global, algorithm: concurrency, burst: 1 }
  Spent: { match: { path: /spent }, burst: 100, cost_from_response: { header: x-tokens }, reserve: 10 }
  Failed: { match: { path: /login }, by: { header: x-user }, burst: 2, spend_when: { status: 401 } }
  Watched: { match: { path: /watched }, burst: 1, mode: shadow }
  Tried: { match: { path: /tried }, burst: 9, candidates: { low: { burst: 1 }, high: { burst: 7 }, now: { burst: 2, enforce_for: 100% } } }
  Alone: { match: { path: /tried }, burst: 9, candidate: { burst: 1 } }
  Costly: { match: { path: /costly }, burst: 5, cost: { header: x-cost } }
  Free: { match: { path: /free }, unlimited: true }
  Closed: { match: { path: /closed }, deny: true }
  Uploads: { by: { descriptor: user }, match: { domain: uploads }, burst: 2 }
  Extended: { by: { descriptor: plan }, match: { descriptor: { plan: "*" }, path: /extended }, burst: 1 }
  Queued: { match: { path: /queued }, by: global, burst: 1, count: 2, period: 1s, delay: 1s }
  Certified: { by: { tls: subject }, match: { host: pki.example.com }, burst: 1 }
overrides:
  Everyone:10.0.0.9: { burst: 100, count: 1, period: 1s, until: 2026-06-30 }
tests:
  a bucket refills:
    - { get: /, repeat: 2, expect: { allow: Everyone, status: 200 } }
    - { get: /, expect: { deny: Everyone, status: 429, retry_after: 1s, headers: { retry-after: 1, x-ratelimit-limit: } } }
    - { after: 999ms, get: /, expect: deny }
    - { after: 1ms, get: /, expect: { verdict: allow, remaining: 0 } }
    - { at: 1m, get: /, repeat: 5, every: 500ms, expect: { allowed: 4, denied: 1 } }
  each test has buckets of its own:
    - { get: "/?a=b", expect: { remaining: 1, headers: { ratelimit: '"Everyone";r=1;t=1' } } }
  windows begin with the minute:
    epoch: 2026-03-01T12:00:59Z
    steps:
      - { get: /windows, repeat: 2, every: 100ms, expect: allow }
      - { get: /windows, ip: 10.0.0.8, after: 900ms, expect: { limits: { Windows: { remaining: 1, reset_after: 1m } } } }
  a log slides:
    - { get: /log, repeat: 2 }
    - { get: /log, ip: 127.0.0.1, after: 5s, expect: { deny: Log, retry_after: 5s } }
  a window slides:
    - { get: /sliding, repeat: 2 }
    - { get: /sliding, after: 5s, expect: { deny: Sliding } }
  requests in flight hold their slots:
    - { get: /slow, lasts: 2s, expect: allow }
    - { get: /slow, ip: 10.0.0.1, at: 1s, expect: { deny: InFlight } }
    - { get: /slow, ip: 10.0.0.1, at: 2s, expect: allow }
    - { get: /slow, ip: 10.0.0.1, at: 2s, expect: allow }
  the response tells the cost:
    - { post: /spent, response: { headers: { x-tokens: 60 } }, expect: { limits: { Spent: { remaining: 90 } } } }
    - { post: /spent, expect: { limits: { Spent: { remaining: 30 } } } }
  only failures count:
    - { post: /login, ip: 10.0.0.1, headers: { x-user: eve }, response: { status: 401 }, repeat: 2 }
    - { post: /login, ip: 10.0.0.2, headers: { x-user: eve }, expect: { deny: Failed, retry_after: never } }
    - { post: /login, ip: 10.0.0.2, headers: { x-user: ann }, expect: { limits: { Failed: { id: ann } } } }
  requests wait for their turn:
    - { get: /queued, ip: 10.0.1.1, expect: { verdict: allow, delay: 0s } }
    - { get: /queued, ip: 10.0.1.2, expect: { verdict: allow, delay: 500ms } }
    - { get: /queued, ip: 10.0.1.3, expect: { limits: { Queued: { verdict: allow, delay: 1s }, Everyone: { delay: 0s } } } }
    - { get: /queued, ip: 10.0.1.4, expect: { deny: Queued, delay: 0s } }
    - { after: 250ms, limit: Queued, expect: { verdict: deny } }
    - { after: 250ms, limit: Queued, expect: { verdict: allow, delay: 1s } }
  shadow denies nothing:
    - { get: /watched, expect: { limits: { Watched: allow } } }
    - { get: /watched, expect: { verdict: allow, limits: { Watched: would_deny, Closed: none } } }
  candidates deny nothing:
    - { get: /tried, ip: 10.0.0.9, expect: { limits: { Tried: { candidates: { low: allow, high: allow, now: none } } } } }
    - { get: /tried, ip: 10.0.0.9, expect: { verdict: allow, limits: { Tried: { candidates: { low: would_deny, high: allow } }, Alone: { candidate: would_deny } } } }
    - { get: /tried, ip: 10.0.0.9, expect: { deny: Tried, limits: { Tried: { candidates: { low: would_deny, high: allow } } } } }
  some need no bucket:
    - { get: /free, expect: { limits: { Free: unlimited } } }
    - { get: /closed, expect: { deny: Closed, retry_after: never, headers: { retry-after: } } }
  a cost is a number:
    - { get: /costly, headers: { x-cost: many }, expect: { deny: Costly } }
    - { get: /costly, headers: { x-cost: 4 }, expect: { limits: { Costly: { remaining: 1 } } } }
  an override ends:
    epoch: 2026-06-30T23:59:59Z
    steps:
      - { get: /, ip: 10.0.0.9, expect: { limits: { Everyone: { burst: 100 } } } }
      - { get: /, ip: 10.0.0.9, after: 1s, expect: { limits: { Everyone: { burst: 2 } } } }
  an application charges by name:
    - { limit: Everyone, id: 10.0.0.1, cost: 2, expect: { allow: Everyone, remaining: 0 } }
    - { limit: Everyone, id: 10.0.0.1, mode: refund, expect: { remaining: 1 } }
    - { limit: Everyone, id: [10.0.0.1], mode: check, cost: 2, expect: { deny: Everyone } }
    - { limit: InFlight, mode: check, expect: allow }
  a gateway asks with descriptors:
    - { domain: uploads, descriptor: { user: eve }, hits: 2, expect: { allow: Uploads, remaining: 0 } }
    - { domain: uploads, descriptors: [{ user: eve }, { user: ann }], expect: { deny: Uploads } }
    - { domain: uploads, descriptor: { user: ann }, expect: { remaining: 1 } }
  ext_authz has context extensions:
    - { get: /extended, descriptor: { plan: free }, expect: { limits: { Extended: { id: free } } } }
  certificates have subjects:
    - { get: "https://pki.example.com/", tls_subject: CN=eve, expect: { limits: { Certified: { id: CN=eve } } } }
"#;

/// The limits of [`RULES`] that decide requests of tests and deny none.
const UNDENIED: &str = "no test sees these limits deny: Alone, Certified, Extended, Spent, Windows\n";

/// Runs `weir` in a directory with these files.
#[track_caller]
fn check(files: &[(&str, &str)], arguments: &[&str], code: i32) -> String {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let finished: Finished = run_in(folder.path(), arguments);
    assert_eq!(finished.code, Some(code), "{arguments:?}: {}", finished.text());
    finished.text()
}

fn count(rules: &str) -> usize {
    rules
        .split_once("\ntests:\n")
        .unwrap()
        .1
        .lines()
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .count()
}

/// A denied request is counted, and the wait is that after the count.
const COUNTING: &str = r"
limits:
  Burst: { match: { path: /two }, by: ip, count: 1, period: 1s }
  Hour: { match: { path: /two }, by: ip, algorithm: sliding_window, count: 3, period: 1h, count_denied: true }
  Logins:
    match: { path: /rates }
    by: ip
    algorithm: sliding_window
    count_denied: true
    rates: [{ count: 2, period: 1m }, { count: 4, period: 1h }]
tests:
  another limit counts what is denied:
    - { get: /two, expect: allow }
    - { at: 1s, get: /two, expect: allow }
    - { at: 1500ms, get: /two, expect: { deny: Burst, retry_after: 4798500ms, headers: { retry-after: 4799 } } }
    - { at: 80m, get: /two, expect: allow }
  a microsecond less is too early:
    - { get: /two, expect: allow }
    - { at: 1s, get: /two, expect: allow }
    - { at: 1500ms, get: /two, expect: deny }
    - { at: 4799999999us, get: /two, expect: { deny: Hour } }
  another window counts what is denied:
    - { get: /rates, repeat: 2, expect: allow }
    - { at: 10s, get: /rates, expect: deny }
    - { at: 20s, get: /rates, expect: { retry_after: 4480s, limits: { Logins: { retry_after: 4480s } }, headers: { retry-after: 4480 } } }
    - { at: 75m, get: /rates, expect: allow }
  a microsecond less is too early for it:
    - { get: /rates, repeat: 2, expect: allow }
    - { at: 10s, get: /rates, expect: deny }
    - { at: 20s, get: /rates, expect: deny }
    - { at: 4499999999us, get: /rates, expect: deny }
";

/// The first costs 10 + 20 x 0.1 + 20 x 4, so that 8 are left.
const PRICES: &str = r#"
limits:
  Spend: { burst: 100, cost_from_response: { usage: openai, weights: { cached_input: 0.1, output: 4 }, reserve: 9 } }
tests:
  tokens cost by their kind:
    - post: /
      response: { body: '{"usage":{"prompt_tokens":30,"prompt_tokens_details":{"cached_tokens":20},"completion_tokens":20}}' }
    - { post: /, expect: { deny: Spend, remaining: 8 } }
"#;

#[test]
fn the_body_of_a_response_costs_by_kinds_of_tokens() {
    assert_eq!(check(&[("limits.yaml", PRICES)], &["test"], 0), "1 passed, 0 failed\n");
}

#[test]
fn a_test_finds_the_wait_that_the_proxy_tells() {
    let passed = format!("{} passed, 0 failed\n", count(COUNTING));
    assert_eq!(check(&[("limits.yaml", COUNTING)], &["test"], 0), passed);
}

#[test]
fn tests_say_what_rules_do() {
    let passed = format!("{UNDENIED}{} passed, 0 failed\n", count(RULES));
    assert_eq!(check(&[("limits.yaml", RULES)], &["test"], 0), passed);
    assert_eq!(check(&[("a.yaml", RULES)], &["test", "a.yaml"], 0), passed);
    assert_eq!(check(&[("limits.yaml", RULES)], &["test", "--filter", "an "], 0), "2 passed, 0 failed\n");
    let checked = check(&[("limits.yaml", RULES)], &["check", "limits.yaml"], 0);
    assert!(checked.contains(&format!("limits.yaml: ok, 17 limits, 1 override, {} tests", count(RULES))), "{checked}");
}

#[test]
fn redis_answers_alike_and_keeps_nothing() {
    let redis = RedisServer::plain();
    let text = check(&[("limits.yaml", RULES)], &["test", "--store", &redis.url()], 0);
    assert_eq!(text, format!("{UNDENIED}{} passed, 0 failed\n", count(RULES)));
    assert_eq!(redis.cli(&["dbsize"]).trim(), "0");
}

/// A limit that cannot deny without an override is not missed. Beside a test that fails, or that is not run, nothing is said.
#[test]
fn limits_that_no_test_sees_deny_are_told() {
    let rules = |more: &str| {
        format!(
            "limits:\n  A: {{ match: {{ path: /a }}, burst: 1 }}\n  Far: {{ match: {{ path: /far }}, burst: 1 }}\n  \
             Free: {{ match: {{ path: /free }}, unlimited: true }}\n  Off: {{ burst: 1, mode: off }}\n  \
             Shadow: {{ match: {{ path: /s }}, burst: 1, mode: shadow }}\ntests:\n  a: [{{ get: /a, expect: allow }}]\n  \
             s: [{{ get: /s, repeat: 2, expect: allow }}]\n{more}"
        )
    };
    let few = rules("");
    let all = rules(
        "  d: [{ get: /a, repeat: 2, expect: { denied: 1 } }, { get: /far, repeat: 2, expect: { denied: 1 } }]\n",
    );
    let failing = rules("  f: [{ get: /a, expect: deny }]\n");
    let other = "limits: { L: { burst: 1 } }\ntests: { l: [{ get: /, expect: allow }] }\n";
    let untouched = "no test touches these limits: Far\nno test sees these limits deny: A\n";
    let none = "limits: { L: { burst: 1 } }\n";
    let files = [
        ("few.yaml", &*few),
        ("all.yaml", &*all),
        ("failing.yaml", &*failing),
        ("other.yaml", other),
        ("none.yaml", none),
    ];
    for (arguments, code, told) in [
        (&["few.yaml"][..], 0, format!("{untouched}2 passed, 0 failed\n")),
        (&["few.yaml", "--require-denials"], 1, format!("{untouched}2 passed, 0 failed\n")),
        (&["few.yaml", "--filter", "s"], 0, "1 passed, 0 failed\n".to_owned()),
        (&["all.yaml", "--require-denials"], 0, "3 passed, 0 failed\n".to_owned()),
        (
            &["all.yaml", "none.yaml", "--require-denials"],
            1,
            "none.yaml has no tests\nnone.yaml: no test touches these limits: L\n3 passed, 0 failed\n".to_owned(),
        ),
    ] {
        assert_eq!(check(&files, &[&["test"], arguments].concat(), code), told, "{arguments:?}");
    }
    let text = check(&files, &["test", "failing.yaml", "--require-denials"], 1);
    assert!(text.ends_with("2 passed, 1 failed\n") && !text.contains("no test"), "{text}");
    let text = check(&files, &["test", "all.yaml", "few.yaml", "other.yaml"], 0);
    let told = "few.yaml: no test touches these limits: Far\nfew.yaml: no test sees these limits deny: A\n\
                other.yaml: no test sees these limits deny: L\n6 passed, 0 failed\n";
    assert_eq!(text, told);
    let checked = check(&files, &["check", "few.yaml"], 0);
    assert!(checked.contains("no test sees `Far` deny [untested-limit]\n --> few.yaml:3:3"), "{checked}");
    assert!(checked.starts_with("few.yaml: ok, 5 limits, 0 overrides, 2 tests, 6 warnings\n"), "{checked}");
    for unwarned in ["failing.yaml", "none.yaml"] {
        let text = check(&files, &["check", unwarned], (unwarned == "failing.yaml").into());
        assert!(!text.contains("no test"), "{text}");
    }
    let silent = few.replace("  Far: {", "  Far: { ignore_lints: [untested-limit],");
    let checked = check(&[("silent.yaml", &silent)], &["check", "silent.yaml"], 0);
    assert!(checked.contains("`A` deny") && !checked.contains("`Far` deny"), "{checked}");
    check(&files, &["test", "few.yaml", "--require-denials", "--filter", "s"], 2);
    let scenario = r#"{"case":"s","limits":{"L":{"burst":1}},"steps":[{"at_ms":0,"op":"spend","limit":"L","id":"k","expect":{"allowed":true}}]}"#;
    let text = check(&[("s.jsonl", scenario)], &["test", "s.jsonl", "--require-denials"], 1);
    assert_eq!(text, "error: `--require-denials` needs tests of rules; scenarios have limits of their own\n");
}

#[test]
fn a_difference_says_where_and_what() {
    let rules = "limits:\n  Orders: { burst: 2, count: 1, period: 1s }\ntests:\n  a client waits:\n    \
                 - { get: /a, ip: 10.1.2.3, repeat: 3, expect: allow }\n  a header is sent:\n    \
                 - { get: /b?c, repeat: 2 }\n    - { after: 100ms, get: /b?c, expect: { status: 429, retry_after: 1s, \
                 headers: { retry-after: 2, server: } } }\n  this passes: [{ get: /, expect: allow }]\n";
    let expected = "\
limits.yaml:5: a client waits
  step 1: GET /a from 10.1.2.3, 3 of 3, at 0s
  verdict  expected allow, got deny
  limits   Orders denies: burst 2, 1 per 1s, 0 left, retry after 1s
limits.yaml:8: a header is sent
  step 2: GET /b?c from 127.0.0.1, at 100ms
  retry_after  expected 1s, got 900ms
  retry-after  expected `2`, got `1`
  limits       Orders denies: burst 2, 1 per 1s, 0 left, retry after 900ms
";
    let files = [("limits.yaml", rules)];
    assert_eq!(check(&files, &["test"], 1), format!("{expected}1 passed, 2 failed\n"));
    let text = check(&files, &["check", "limits.yaml"], 1);
    assert!(text.ends_with(&format!("{expected}limits.yaml: 2 of 3 tests failed\n")), "{text}");
}

#[test]
fn tests_have_files_of_their_own_and_sit_beside_scenarios() {
    let rules = "limits: { L: { burst: 1 } }";
    let tests = "limits: ../rules/l.yaml\noverrides: ../rules/o.yaml\ntests:\n  a: [{ get: /, ip: 10.0.0.1, repeat: 2, expect: allow }]\n";
    let scenario = r#"{"case":"s","limits":{"L":{"burst":1}},"steps":[{"at_ms":0,"op":"spend","limit":"L","id":"k","expect":{"allowed":true}}]}"#;
    let files = [
        ("rules/l.yaml", rules),
        ("rules/o.yaml", "L:10.0.0.1: { burst: 2 }"),
        ("tests/a.yaml", tests),
        ("tests/plain.yaml", "tests:\n  b: [{ get: /, repeat: 2, expect: { allowed: 1, denied: 1 } }]\n"),
        ("tests/s.jsonl", scenario),
        ("tests/s", scenario),
    ];
    let all = ["test", "tests/a.yaml", "tests/plain.yaml", "tests/s.jsonl", "tests/s", "--limits", "rules/l.yaml"];
    // The second file of tests sees what the first one, of the same rules, does not.
    assert_eq!(check(&files, &all, 0), "4 passed, 0 failed\n");
    let one = check(&files, &["test", "tests/a.yaml"], 0);
    assert_eq!(one, "no test sees these limits deny: L\n1 passed, 0 failed\n");
    // The environment is for the gateway, not for its tests.
    let text = check(&files, &["test", "tests/plain.yaml"], 1);
    assert!(text.contains("there is no rules file here\n --> limits.yaml"), "{text}");
}

#[test]
fn the_configuration_gives_rules_and_no_store() {
    let rules = "limits: { L: { burst: 1 } }\ntests: { a: [{ get: /, expect: allow }] }";
    let config = "limits: l.yaml\nstore: redis://127.0.0.1:1\nshadow: true\n";
    let files = [("l.yaml", rules), ("weir.yaml", config)];
    let text = check(&files, &["test", "--config", "weir.yaml"], 0);
    assert_eq!(text, "no test sees these limits deny: L\n1 passed, 0 failed\n");
}

#[test]
fn what_cannot_run_says_why() {
    let rules = "limits: { L: { burst: 1 } }";
    let tests = |steps: &str| format!("{rules}\ntests: {{ a: [{steps}] }}\n");
    let told = |limits: &str, arguments: &[&str], part: &str| {
        let text = check(&[("limits.yaml", limits)], arguments, 1);
        assert!(text.contains(part), "{text}");
    };
    told(rules, &["test"], "error: limits.yaml has no tests; add them under `tests:`");
    told(&tests("{ get: /, expect: allow }"), &["test", "--filter", "b"], "no test in limits.yaml has `b` in its name");
    told(&tests("{ get: /, expect: { deny: M } }"), &["test"], "error: unknown limit `M`");
    told(&tests("{ get: /, expect: { deny: M } }"), &["check", "limits.yaml"], "error: unknown limit `M`");
    let queue = "limits: { Q: { algorithm: queue, capacity: 2, fields: { path: path } } }\ntests: { a: [{ get: /, expect: allow }] }";
    told(queue, &["test"], "got the store did not answer; queues and scripts need `--store redis://...`");
    let text =
        check(&[("limits.yaml", &tests("{ get: /, expect: allow }"))], &["test", "--store", "redis://127.0.0.1:1"], 3);
    assert!(text.contains("error:"), "{text}");
}

#[test]
fn a_rules_file_that_is_not_read_is_told() {
    const ONE: &str = "limits: { L: { burst: 1 } }\ntests: { one: [{ get: /, expect: allow }] }\n";
    let told = check(&[("one.yaml", ONE)], &["check", "one.yaml", "--limits", "other.yaml"], 0);
    assert!(told.contains("warning: --limits other.yaml is not read"), "{told}");
    for arguments in [&["check", "one.yaml", "--limits", "one.yaml"][..], &["check", "one.yaml"]] {
        let told = check(&[("one.yaml", ONE)], arguments, 0);
        assert!(!told.contains("is not read"), "{arguments:?}: {told}");
    }
}

#[test]
fn a_diff_tells_by_its_exit_code_what_is_stricter() {
    let limit = |count: u32| format!("limits: {{ \"L\": {{ count: {count}, period: 1s }}, M: {{ burst: 1 }} }}\n");
    let (ten, five) = (limit(10), limit(5));
    let files = [
        ("ten.yaml", ten.as_str()),
        ("five.yaml", five.as_str()),
        ("broken.yaml", "limits: []"),
        ("more.yaml", "L:10.0.0.1: { unlimited: true }"),
    ];
    let stricter = "L: stricter\n  numbers         burst 10, 10 per 1s -> burst 5, 5 per 1s (stricter)\n  \
                    buckets         carry over what was used\n\n1 stricter, 1 unchanged\nstricter: L\n";
    assert_eq!(check(&files, &["diff", "ten.yaml", "five.yaml"], 1), stricter);
    assert!(check(&files, &["diff", "five.yaml", "ten.yaml"], 0).ends_with("1 looser, 1 unchanged\n"));
    assert_eq!(check(&files, &["diff", "ten.yaml", "ten.yaml"], 0), "2 unchanged\n");
    let broken = check(&files, &["diff", "ten.yaml", "broken.yaml"], 3);
    assert!(broken.contains("broken.yaml:1:"), "{broken}");
    check(&files, &["diff", "ten.yaml", "none.yaml"], 3);
    check(&files, &["diff", "ten.yaml"], 2);
    check(&files, &["diff", "-", "-"], 2);
    let gone = check(&files, &["diff", "ten.yaml", "ten.yaml", "--overrides-old", "more.yaml"], 1);
    assert!(gone.contains("10.0.0.1 (more.yaml:1): gone, was unlimited (stricter)"), "{gone}");
    let table = check(&files, &["diff", "ten.yaml", "five.yaml", "--format", "markdown"], 1);
    let row = "| L | **stricter** | `numbers` burst 10, 10 per 1s -> burst 5, 5 per 1s (stricter) | carry over what was used |";
    assert!(table.contains(row), "{table}");
    check(&files, &["diff", "ten.yaml", "five.yaml", "--log", "access.log"], 2);
    let help = check(&files, &["diff", "--help"], 0);
    assert!(help.contains("\nFor the requests of a log, see `weir simulate --against`.\n"), "{help}");
    let json = check(&files, &["diff", "five.yaml", "ten.yaml", "--format", "json"], 0);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&json["stricter"], &json["limits"]["L"]["looser"], &json["unchanged"][0]),
        (&false.into(), &true.into(), &"M".into())
    );
}

/// 400 requests at ten times the rate: the limit's count passes in each second, nobody waits longer than the delay, and other ids
/// do not wait.
#[test]
fn a_flood_passes_at_the_rate_of_its_limit() {
    let directory = tempfile::tempdir().unwrap();
    let rules = "
limits:
  Queue: { by: { header: x-account }, burst: 1, count: 20, period: 1s, delay: 500ms }
tests:
  a flood:
    - { get: /, headers: { x-account: a }, repeat: 200, every: 5ms, expect: { allowed: 30, denied: 170 } }
    - { at: 995ms, get: /, headers: { x-account: b }, expect: { verdict: allow, delay: 0s } }
    - { at: 1s, get: /, headers: { x-account: a }, repeat: 200, every: 5ms, expect: { allowed: 20, denied: 180 } }
    - { at: 2s, get: /, headers: { x-account: a }, expect: { verdict: allow, delay: 500ms } }
    - { at: 2s, get: /, headers: { x-account: a }, expect: { deny: Queue } }
";
    std::fs::write(directory.path().join("limits.yaml"), rules).unwrap();
    let Finished { code, out, .. } = run_in(directory.path(), &["test", "limits.yaml"]);
    assert_eq!((code, &*out), (Some(0), "1 passed, 0 failed\n"));
    let wrong = rules.replace("delay: 0s", "delay: 50ms");
    std::fs::write(directory.path().join("limits.yaml"), wrong).unwrap();
    let text = run_in(directory.path(), &["test", "limits.yaml"]).text();
    assert!(text.contains("delay") && text.contains("expected 50ms, got 0s"), "{text}");
}

/// Nothing of a scenario is read and not used.
#[test]
fn a_scenario_that_cannot_fail_or_says_what_is_not_read_fails() {
    let scenario = |more: &str, step: &str| {
        format!("{{\"case\":\"s\",{more}\"limits\":{{\"L\":{{\"burst\":1}}}},\"steps\":[{step}]}}\n")
    };
    let step = |more: &str| format!("{{\"at_ms\":0,\"op\":\"spend\",\"limit\":\"L\",\"id\":\"k\"{more}}}");
    let expects = step(",\"expect\":{\"allowed\":true}");
    let check_one = |text: &str, code: i32| check(&[("s.jsonl", text)], &["test", "s.jsonl"], code);
    assert_eq!(check_one(&scenario("", &expects), 0), "1 passed, 0 failed\n");
    assert_eq!(check_one(&scenario("\"note\":\"n\",\"source\":\"s\",", &expects), 0), "1 passed, 0 failed\n");
    for (text, told) in [
        (scenario("\"epoch\":1,", &expects), "unknown key `epoch`"),
        (scenario("\"tolerance\":1,", &expects), "unknown key `tolerance`; did you mean `tolerance_ms`?"),
        (scenario("\"tolerance_ms\":\"1\",", &expects), "`tolerance_ms` cannot be \"1\""),
        (scenario("", &step("")), "it expects nothing, so it cannot fail; add `expect` to a step"),
        (scenario("", &step(",\"expect\":{}")), "it expects nothing"),
        (scenario("", ""), "it expects nothing"),
        (
            scenario("", &format!("{expects},{}", step(",\"costs\":2"))),
            "step 2 (spend at 0 ms): unknown key `costs`; did you mean `cost`?",
        ),
        (scenario("", &format!("{expects},{}", step(",\"expect\":\"deny\""))), "`expect` cannot be \"deny\""),
        (scenario("", &expects.replace("\"L\"", "\"M\"")), "rejected as a mistake: unknown limit `M`"),
        (
            scenario(
                "",
                "{\"at_ms\":0,\"op\":\"batch\",\"charges\":[{\"limit\":\"L\",\"id\":\"k\",\"weight\":2}],\"expect\":{\"allowed\":true}}",
            ),
            "unknown key `weight`",
        ),
    ] {
        let told_at = format!("s.jsonl:1: s: {}", if told.starts_with("step") { "" } else { told });
        let found = check_one(&text, 1);
        assert!(found.contains(told) && found.ends_with("0 passed, 1 failed\n"), "{told_at}: {found}");
    }
    for text in ["", "\n\n"] {
        let found = check_one(text, 1);
        assert_eq!(found, "error: s.jsonl has no tests; add them under `tests:`\n");
    }
    let files = [("s.jsonl", scenario("", &expects)), ("none.jsonl", "\n".to_owned())];
    let files = files.each_ref().map(|(name, text)| (*name, text.as_str()));
    let found = check(&files, &["test", "s.jsonl", "none.jsonl"], 0);
    assert_eq!(found, "none.jsonl has no tests\n1 passed, 0 failed\n");
}

/// Plays one scenario, with a limit `L` that has these settings beside `burst: 5`, `Q` of two slots and the free `U`.
#[track_caller]
fn play(settings: &str, more: &str, steps: &str, code: i32) -> String {
    let scenario = format!(
        "{{\"case\":\"s\",{more}\"limits\":{{\"L\":{{\"burst\":5{settings}}},\"Q\":{{\"algorithm\":\"concurrency\",\"burst\":2}},\
         \"U\":{{\"unlimited\":true}},\"D\":{{\"deny\":true}},\"S\":{{\"deny\":true,\"mode\":\"shadow\"}}}},\"steps\":[{steps}]}}\n"
    );
    check(&[("s.jsonl", &scenario)], &["test", "s.jsonl"], code)
}

/// A step that charges `L`, with more keys.
fn charge(op: &str, more: &str) -> String {
    format!("{{\"at_ms\":0,\"op\":\"{op}\",\"limit\":\"L\",\"id\":\"k\"{more}}}")
}

fn batch(op: &str, charges: &str, expect: &str) -> String {
    format!("{{\"at_ms\":0,\"op\":\"{op}\",\"charges\":[{charges}],\"expect\":{expect}}}")
}

/// Whatever a step says is used, or the scenario fails and says why.
#[test]
fn a_scenario_says_what_has_no_effect_in_a_step() {
    let allowed = ",\"expect\":{\"allowed\":true}";
    let is_allowed = "{\"allowed\":true}";
    let one = "{\"limit\":\"L\",\"id\":\"k\"}";
    let with = |more: &str| format!("{{\"limit\":\"L\",\"id\":\"k\"{more}}}");
    let gone = |more: &str| format!("{{\"limit\":\"M\",\"id\":\"k\",\"mode\":\"allow_only\"{more}}}");
    for (steps, told) in [
        (charge("spend", &format!(",\"id\":\"j\"{allowed}")), "invalid JSON: duplicate key `id` at line 1"),
        (
            charge("reset", &format!(",\"cost\":1{allowed}")),
            "`cost` does not apply to `op: reset`, which has `limit`, `id`",
        ),
        (charge("spend", &format!(",\"n\":2{allowed}")), "`n` does not apply to `op: spend`"),
        (charge("spend", &format!(",\"taken_ms_ago\":2{allowed}")), "`taken_ms_ago` does not apply to `op: spend`"),
        (
            charge("spend", &format!(",\"slot\":\"a\"{allowed}")),
            "`slot` applies to `algorithm: concurrency`, which `L` does not have",
        ),
        (charge("spend", &format!(",\"slot\":1{allowed}")), "`slot` cannot be 1"),
        (charge("refund", &format!(",\"taken_ms_ago\":\"1\"{allowed}")), "`taken_ms_ago` cannot be \"1\""),
        (charge("spends", allowed), "unknown operation `spends`; did you mean `spend`?"),
        (charge("batch", allowed), "`id` does not apply to `op: batch`, which has `charges`"),
        (charge("concurrent_spend", allowed), "`op: concurrent_spend` needs `n`, the number of calls, from 1 to 10000"),
        (charge("concurrent_spend", &format!(",\"n\":0{allowed}")), "needs `n`"),
        (charge("concurrent_spend", &format!(",\"n\":10001{allowed}")), "needs `n`"),
        (charge("concurrent_spend", &format!(",\"n\":\"2\"{allowed}")), "`n` cannot be \"2\""),
        (
            "{\"at_ms\":0,\"op\":\"spend\",\"limit\":7,\"id\":\"k\",\"expect\":{\"error\":true}}".to_owned(),
            "`limit` cannot be 7",
        ),
        (charge("spend", ",\"cost\":-1,\"expect\":{\"error\":true,\"remaining\":3}"), "has no answer to compare"),
        (batch("batch", "", is_allowed), "`op: batch` charges nothing; add a charge to `charges`"),
        (batch("batch_refund", "", is_allowed), "`op: batch_refund` charges nothing"),
        (batch("batch", &with(",\"mode\":5"), is_allowed), "charge 1: `mode` cannot be 5"),
        (
            batch("batch", &format!("{one},{}", with(",\"mode\":\"reset\",\"cost\":1")), is_allowed),
            "charge 2: `cost` does not apply to `mode: reset`",
        ),
        (
            batch("batch", &with(",\"taken_ms_ago\":1"), is_allowed),
            "charge 1: `taken_ms_ago` does not apply to `mode: spend`",
        ),
        (
            batch("batch_refund", &with(",\"mode\":\"spend\""), is_allowed),
            "charge 1: `mode` does not apply to `op: batch_refund`",
        ),
        (
            batch("batch_reset", &with(",\"cost\":1"), is_allowed),
            "charge 1: `cost` does not apply to `op: batch_reset`",
        ),
        (
            batch("batch", &with(",\"mode\":\"allow_only\""), is_allowed),
            "`mode: allow_only` charges nothing, and `L` is in force",
        ),
        (batch("batch", &gone(",\"slot\":\"a\""), is_allowed), "charge 1: `slot` does not apply to `mode: allow_only`"),
        (batch("batch", &gone(""), "{\"remaining\":3}"), "`remaining` cannot be compared here"),
    ] {
        let found = play("", "", &steps, 1);
        assert!(found.contains(told) && found.ends_with("0 passed, 1 failed\n"), "{steps}\n`{told}` is not in {found}");
    }
    // What differs from the cases above in one point is right.
    for steps in [
        charge("reset", allowed),
        charge("refund", ",\"taken_ms_ago\":1,\"expect\":{\"remaining\":5}"),
        charge("concurrent_spend", ",\"n\":10000,\"expect\":{\"allowed_count\":5,\"denied_count\":9995}"),
        charge("concurrent_spend", ",\"n\":1,\"expect\":{\"allowed_count\":1}"),
        "{\"at_ms\":0,\"op\":\"spend\",\"limit\":\"Q\",\"id\":\"k\",\"slot\":\"a\",\"expect\":{\"remaining\":1}}".to_owned(),
        "{\"at_ms\":0,\"op\":\"concurrent_spend\",\"limit\":\"D\",\"id\":\"k\",\"n\":3,\"expect\":{\"denied_count\":3}}".to_owned(),
        charge("spend", ",\"cost\":-1,\"expect\":{\"error\":true}"),
        batch("batch", &gone(""), is_allowed),
        batch("batch", &with(",\"mode\":\"reset\""), is_allowed),
        batch("batch", "{\"limit\":\"U\",\"id\":\"k\"}", "{\"remaining\":3}"),
    ] {
        assert_eq!(play("", "", &steps, 0), "1 passed, 0 failed\n", "{steps}");
    }
}

/// Times may differ by the tolerance, and counts by nothing.
#[test]
fn a_tolerance_is_one_of_times() {
    let spend = |remaining: u32, reset: &str| {
        charge("spend", &format!(",\"expect\":{{\"remaining\":{remaining},\"reset_ms\":{reset}}}"))
    };
    let refilled = ",\"count\":1,\"period\":\"1s\"";
    for (remaining, reset, code) in
        [(4, "1000", 0), (4, "1002", 0), (4, "998", 0), (4, "1002.1", 1), (3, "1000", 1), (5, "1000", 1)]
    {
        let found = play(refilled, "\"tolerance_ms\":2,", &spend(remaining, reset), code);
        let told = if remaining == 4 { "reset_ms is 1000.0" } else { "remaining is 4" };
        assert_eq!(found.contains(told), code == 1, "{remaining} {reset}: {found}");
    }
    let found = play("", "\"tolerance_ms\":-1,", &charge("spend", ",\"expect\":{\"allowed\":true}"), 1);
    assert!(found.contains("`tolerance_ms` cannot be -1"), "{found}");
}

/// Scenarios treat modes like `weir serve`: a limit in shadow counts and denies nothing, and one that is off does not count.
#[test]
fn the_mode_of_a_limit_holds_in_scenarios() {
    let expect = |op: &str, cost: u32, expect: &str| charge(op, &format!(",\"cost\":{cost},\"expect\":{expect}"));
    let passes = "{\"allowed\":true}";
    let used = |allowed: bool| format!("{{\"allowed\":{allowed},\"remaining\":0}}");
    let batch = batch(
        "batch",
        "{\"limit\":\"L\",\"id\":\"k\"},{\"limit\":\"Q\",\"id\":\"k\"}",
        "{\"allowed\":true,\"remaining\":1}",
    );
    let shut = |limit: &str, allowed: bool| {
        format!(
            "{{\"at_ms\":0,\"op\":\"spend\",\"limit\":\"{limit}\",\"id\":\"k\",\"expect\":{{\"allowed\":{allowed}}}}}"
        )
    };
    let calls = charge("concurrent_spend", ",\"n\":9,\"expect\":{\"allowed_count\":9,\"denied_count\":0}");
    for (settings, steps) in [
        ("", vec![expect("spend", 5, &used(true)), expect("spend", 1, &used(false)), expect("check", 1, &used(false))]),
        (
            ",\"mode\":\"shadow\"",
            vec![
                expect("spend", 5, &used(true)),
                expect("spend", 1, &used(true)),
                expect("check", 1, &used(true)),
                batch.clone(),
                calls.clone(),
            ],
        ),
        (",\"enforce_for\":\"0%\"", vec![expect("spend", 5, &used(true)), expect("spend", 1, &used(true))]),
        (",\"mode\":\"off\"", vec![expect("spend", 5, passes), expect("spend", 5, passes), batch, calls]),
        ("", vec![shut("D", false), shut("S", true)]),
    ] {
        assert_eq!(play(settings, "", &steps.join(","), 0), "1 passed, 0 failed\n", "{settings}");
    }
    let compared = play(",\"mode\":\"off\"", "", &expect("spend", 1, "{\"remaining\":4}"), 1);
    assert!(compared.contains("`remaining` cannot be compared here"), "{compared}");
}

/// `weir serve` reads bodies up to a size, beyond which they are malformed. Tests and `explain` take them alike.
#[test]
fn a_body_is_read_as_far_as_the_gateway_reads_it() {
    let body = |bytes: usize| format!("{{\"m\": \"a\", \"p\": \"{}\"}}", "x".repeat(bytes - 19));
    let limits = "limits: { L: { by: { body: /m }, burst: 1, malformed: deny } }\n";
    let rules = |bytes: usize, headers: &str| {
        let request = format!("post: /, headers: {{ {headers} }}, body: '{}'", body(bytes));
        format!(
            "{limits}tests: {{ a: [{{ {request}, expect: allow }}, {{ {request}, expect: deny }}], b: [{{ {request}, expect: {{ deny: L, retry_after: never }} }}] }}\n"
        )
    };
    let json = "content-type: application/json";
    // The third of these is compressed, so its JSON is that of nobody.
    for (bytes, headers, flags, passed) in [
        (65_536, json, &[][..], "1 passed, 1 failed\n"),
        (65_537, json, &[], "1 passed, 1 failed\n"),
        (100, "content-encoding: gzip", &[], "1 passed, 1 failed\n"),
        (65_537, json, &["--max-inspected-body", "65537"], "1 passed, 1 failed\n"),
        (100, json, &["--max-inspected-body", "99"], "1 passed, 1 failed\n"),
    ] {
        let rules = rules(bytes, headers);
        let is_read = (bytes == 65_536) || flags == ["--max-inspected-body", "65537"];
        let found = check(&[("limits.yaml", &rules)], &[&["test"], flags].concat(), 1);
        assert!(
            found.ends_with(passed) && found.contains(if is_read { ": b\n" } else { ": a\n" }),
            "{bytes} {flags:?}: {found}"
        );
        let (folder, data) = (tempfile::tempdir().unwrap(), body(bytes));
        std::fs::write(folder.path().join("limits.yaml"), &rules).unwrap();
        let explain = ["explain", "POST", "/", "-H", headers, "--data", &data];
        let explained = run_in(folder.path(), &[&explain[..], flags].concat());
        assert_eq!(explained.out.contains("(malformed)"), !is_read, "{bytes} {flags:?}: {}", explained.text());
        let is_long = !is_read && headers == json;
        assert_eq!(
            explained.err.contains(&format!("the body has {bytes} bytes; `weir serve` reads up to ")),
            is_long,
            "{}",
            explained.err
        );
    }
    // The file of flags gives it as well.
    let files = [("limits.yaml", rules(100, json)), ("weir.yaml", "max-inspected-body: 99\n".to_owned())];
    let files = files.each_ref().map(|(name, text)| (*name, text.as_str()));
    assert!(check(&files, &["test", "--config", "weir.yaml"], 1).contains(": a\n"));
}

#[test]
fn tests_that_a_check_cannot_run_are_told() {
    let rules = "limits: { Q: { algorithm: queue, capacity: 2, fields: { path: path } } }\n\
                 tests: { a: [{ get: /, expect: allow }], b: [{ get: /, expect: allow }] }\n";
    let text = check(&[("limits.yaml", rules)], &["check", "limits.yaml"], 0);
    assert!(text.contains(", 2 tests not run: they need Redis, `weir test --store redis://...`"), "{text}");
    let json = check(&[("limits.yaml", rules)], &["check", "--format", "json", "limits.yaml"], 0);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["checked"][0]["tests"], serde_json::json!({ "passed": 0, "failed": 0, "not_run": 2 }));
}
