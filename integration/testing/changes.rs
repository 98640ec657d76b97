//! Changes between the requests of a test, candidates, clients behind proxies, and tables of cases: through both stores.

use super::check;
use crate::support::redis::RedisServer;

const RULES: &str = r#"
limits:
  Api: { by: ip, burst: 2, count: 1, period: 1m, candidate: { burst: 1, count: 1, period: 1m } }
  Logins: { match: { path: /login }, by: ip, burst: 1, count: 1, period: 1m, on_store_error: deny }
  Codes: { match: { path: /code }, by: ip, burst: 1, count: 1, period: 1m, on_store_error: local }
  Half: { match: { path: /half }, by: { header: x-user }, burst: 1, enforce_for: 50% }
tests:
  a candidate is decided beside its limit:
    - { get: /, expect: { verdict: allow, limits: { Api: { verdict: allow, candidate: allow } } } }
    - { get: /, expect: { verdict: allow, limits: { Api: { candidate: deny }, Logins: { candidate: none } } } }
  half of the ids are denied, and always the same:
    - { get: /half, ip: 10.0.0.1, headers: { x-user: u1 }, expect: allow }
    - { get: /half, ip: 10.0.0.1, headers: { x-user: u1 }, expect: { limits: { Half: U1 } } }
    - { get: /half, ip: 10.0.0.2, headers: { x-user: u2 }, expect: allow }
    - { get: /half, ip: 10.0.0.2, headers: { x-user: u2 }, expect: { limits: { Half: U2 } } }
  a block ends by itself or by an operator:
    - { block: "Api:10.0.0.1", for: 10m }
    - { get: /, ip: 10.0.0.1, expect: { deny: Api, retry_after: 10m } }
    - { get: /, ip: 10.0.0.2, expect: allow }
    - { after: 10m, get: /, ip: 10.0.0.1, expect: allow }
    - { block: "Api:10.0.0.1", for: 10m }
    - { after: 1m, unblock: "Api:10.0.0.1" }
    - { get: /, ip: 10.0.0.1, expect: allow }
  a live override is set, expires, and is deleted:
    - { set_override: "Api:10.0.0.1", numbers: { burst: 9, count: 9, period: 1m }, for: 1h }
    - { get: /, ip: 10.0.0.1, expect: { limits: { Api: { burst: 9, remaining: 8 } } } }
    - { after: 1h, get: /, ip: 10.0.0.1, expect: { limits: { Api: { burst: 2 } } } }
    - { set_override: "Api:10.0.0.1", numbers: { deny: true } }
    - { get: /, ip: 10.0.0.1, expect: { deny: Api } }
    - { delete_override: "Api:10.0.0.1" }
    - { get: /, ip: 10.0.0.1, expect: allow }
  other rules keep what is used:
    - { get: /, repeat: 2, expect: allow }
    - { reload: next.yaml }
    - { get: /, expect: { allow: Api, remaining: 0, limits: { New: { burst: 7 } } } }
    - { get: /, expect: { deny: Api } }
  a store that is down:
    - { store: down }
    - { get: /, repeat: 9, expect: allow }
    - { get: /login, expect: { verdict: deny, status: 503, limits: { Logins: deny, Api: allow } } }
    - { get: /code, expect: allow }
    - { get: /code, expect: { deny: Codes } }
    - { store: up }
    - { get: /login, expect: { verdict: allow, remaining: 0 } }
  clients behind a proxy:
    trusted_proxies: 10.0.0.0/8
    steps:
      - { get: /, ip: 10.0.0.1, headers: { x-forwarded-for: "192.0.2.1" }, repeat: 2, expect: { limits: { Api: { id: 192.0.2.1 } } } }
      - { get: /, ip: 10.0.0.1, headers: { x-forwarded-for: "192.0.2.1" }, expect: deny }
      - { get: /, ip: 198.51.100.1, headers: { x-forwarded-for: "192.0.2.1" }, expect: { limits: { Api: { id: 198.51.100.1 } } } }
  a path has its limit:
    cases:
      - { path: /login, limits: { Logins: allow, Codes: none }, second: deny }
      - { path: /code, limits: { Logins: none, Codes: allow }, second: deny }
      - { path: /, limits: { Logins: none, Codes: none }, second: allow }
    steps:
      - { get: $path, expect: { limits: $limits } }
      - { request: GET $path?again, expect: $second }
"#;

const NEXT: &str = "limits:\n  Api: { by: ip, burst: 3, count: 1, period: 1m }\n  New: { burst: 7 }\n";

/// The rules with what the ids of `Half` get.
fn rules() -> String {
    RULES.replace("U1", "deny").replace("U2", "would_deny")
}

#[test]
fn steps_change_what_operators_and_reloads_change() {
    let files = [("limits.yaml", &*rules()), ("next.yaml", NEXT)];
    let text = check(&files, &["test"], 0);
    assert!(text.ends_with("10 passed, 0 failed\n"), "{text}");
    let redis = RedisServer::plain();
    assert_eq!(check(&files, &["test", "--store", &redis.url()], 0), text);
    assert_eq!(redis.cli(&["dbsize"]).trim(), "0");
    check(&files, &["check"], 0);
}

#[test]
fn a_change_that_cannot_be_made_fails_the_test() {
    let fails = |steps: &str, expected: &str| {
        let rules = format!(
            "limits: {{ Api: {{ by: ip, burst: 1 }} }}\ntests:\n  t:\n    {steps}\n    - {{ get: /, expect: allow }}\n"
        );
        let text = check(&[("limits.yaml", &rules), ("broken.yaml", "limits: [")], &["test"], 1);
        assert!(text.contains(expected), "{text}");
    };
    fails(
        "- { unblock: 'Api:10.0.0.1' }",
        "  step 1: unblock Api:10.0.0.1, at 0s\n  change  expected done, got Api:10.0.0.1 is not blocked\n",
    );
    fails("- { delete_override: 'Api:10.0.0.1' }", "got Api:10.0.0.1 has no live override");
    fails("- { set_override: 'Api:10.0.0.1', numbers: { count: 1 } }", "`count` without `period`");
    fails("- { block: 'Apl:10.0.0.1', for: 1m }", "did you mean `Api`?");
    fails("- { block: 'Api:10.0.0.1' }", "a step needs `for`");
    fails("- { store: gone }", "unknown value `gone`");
    fails("- { store: down, expect: allow }", "`expect` does not apply to `store`");
    fails("- { store: down, reload: limits.yaml }", "a step changes one thing");
    fails("- { reload: none.yaml }", "none.yaml");
    fails("- { reload: broken.yaml }", "broken.yaml");
}

#[test]
fn a_case_that_fails_is_named_and_rows_are_alike() {
    let run = |cases: &str, expected: &str| {
        let rules = format!(
            "limits: {{ Api: {{ match: {{ path: /a }}, by: ip, deny: true }} }}\ntests:\n  t:\n    cases: {cases}\n    \
             steps: [{{ get: $path, expect: $verdict }}]\n"
        );
        let text = check(&[("limits.yaml", &rules)], &["test"], 1);
        assert!(text.contains(expected), "{text}");
    };
    run(
        "[{ path: /a, verdict: deny }, { path: /b, verdict: deny }]",
        "limits.yaml:5: t (path: /b, verdict: deny)\n  step 1: GET /b from 127.0.0.1, at 0s\n",
    );
    run("[{ path: /a, verdict: deny }, { path: /b }]", "the row has other names than the first one");
    run("[{ path: /a, verdict: deny, more: 1 }]", "no step has `$more`");
    run("[]", "`cases` has 0 rows");
}
