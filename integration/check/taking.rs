//! The limits of a call that take their cost: limits in shadow, candidates and `spend_only` beside enforced limits.

use serde_json::{Value, json};

use super::{body, call, on_redis, stopped};
use crate::support::redis::RedisServer;
use crate::support::server::Weir;
use crate::support::wire::Wire;

const RULES: &str = "limits:
  Enforced: { by: { header: x-id }, rates: [{ count: 5, period: 1h }, { count: 3, period: 2h }] }
  Watched: { by: { header: x-id }, rates: [{ count: 5, period: 1h }, { count: 3, period: 2h }], mode: shadow }
  Tried: { by: { header: x-id }, count: 1, period: 1h, candidate: { rates: [{ count: 5, period: 1h }, { count: 3, period: 2h }] } }
  Other: { by: { header: x-id }, count: 1, period: 1h }
";

/// Each window of the answer: its outcome and what is left.
fn ask(wire: &mut Wire, asked: &Value) -> (u16, Vec<String>) {
    let answer = call(wire, asked);
    let told = body(&answer);
    let shown = |limit: &Value| format!("{} {}", limit["outcome"].as_str().unwrap(), limit["remaining"]);
    (answer.status(), told["limits"].as_array().unwrap().iter().map(shown).collect())
}

fn check(weir: &Weir) {
    let mut wire = weir.connect_check();
    let of = |limit: &str, id: &str, op: &str| json!({ "limit": limit, "id": id, "op": op });
    // A window that has room takes nothing beside one that has none: enforced, in shadow, and when the caller only spends.
    for (limit, op, full) in [
        ("Enforced", "spend", (429, "denied")),
        ("Watched", "spend", (200, "short")),
        ("Enforced", "spend_only", (200, "short")),
    ] {
        let asked = of(limit, op, op);
        for used in 1..=3 {
            let expected = vec![format!("allowed {}", 5 - used), format!("allowed {}", 3 - used)];
            assert_eq!(ask(&mut wire, &asked), (200, expected), "{asked}");
        }
        for _ in 0..6 {
            let expected = vec!["unchanged 2".to_owned(), format!("{} 0", full.1)];
            assert_eq!(ask(&mut wire, &asked), (full.0, expected), "{asked}");
        }
    }
    // The candidate takes as if it stood in the place of its limit, also when that denies.
    let candidate = |result| {
        weir.metric(&format!("weir_candidate_decisions_total{{limit=\"Tried\",candidate=\"\",result=\"{result}\"}}"))
    };
    for (number, status) in [200, 429, 429, 429, 429].into_iter().enumerate() {
        assert_eq!(ask(&mut wire, &of("Tried", "a", "spend")).0, status, "{number}");
    }
    assert_eq!((candidate("allowed"), candidate("denied")), (3, 2));
    // What another limit denies is not its to take.
    assert_eq!(ask(&mut wire, &of("Other", "b", "spend")).0, 200);
    let both = json!({ "limits": [{ "limit": "Tried", "id": "b" }, { "limit": "Other", "id": "b" }] });
    for _ in 0..4 {
        assert_eq!(ask(&mut wire, &both).0, 429);
    }
    for status in [200, 429, 429, 429] {
        assert_eq!(ask(&mut wire, &of("Tried", "b", "spend")).0, status);
    }
    assert_eq!(candidate("denied"), 3);
}

#[test]
fn limits_take_by_one_rule_in_memory() {
    check(&stopped(RULES).start("echo"));
}

#[test]
fn limits_take_by_one_rule_in_one_call_to_redis() {
    let server = RedisServer::plain();
    let weir = on_redis(RULES, &server);
    let before = server.calls("evalsha");
    check(&weir);
    // Each call above is one, or is denied as the one before it.
    let asked = server.calls("evalsha") - before;
    assert_eq!(asked + weir.metric("weir_remembered_denials_total"), 3 * 9 + 5 + 1 + 4 + 4);
}
