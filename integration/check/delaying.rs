//! Limits with `delay` at the check listener.

use std::time::Duration;

use serde_json::{Value, json};
use weir::limiter::DelayBounds;

use super::{body, call, send, stopped};
use crate::support::becomes;
use crate::support::server::{Setup, Weir};

/// A limit of 10, of which this many come back each second.
fn rules(count: u64) -> String {
    json!({ "limits": { "L": { "by": { "header": "x-key" }, "burst": 10, "count": count, "period": "1s", "delay": "10s" } } })
        .to_string()
}

fn weir(rules: &str, answers: Duration) -> Weir {
    let delays = DelayBounds { answers, ..DelayBounds::default() };
    Setup { delays, ..stopped(rules) }.start("echo")
}

/// limitd's `wait`. It rounds the wait up to a millisecond, as `delay_ms` is.
#[test]
fn an_application_is_told_how_long_to_wait() {
    // The rate, a first charge, then the cost of a wait, and what it is told: allowed, the wait, what remains.
    let cases: [(u64, u64, u64, Value); 5] = [
        (5, 0, 1, json!([true, 0, 9])),
        (5, 10, 3, json!([true, 600, 0])),
        (5, 10, 0, json!([true, 0, 0])),
        (3, 10, 1, json!([true, 334, 0])),
        // limitd never answers.
        (5, 0, 11, json!([false, 0, 10])),
    ];
    for (count, taken, cost, expected) in cases {
        let weir = weir(&rules(count), Duration::ZERO);
        let mut wire = weir.connect_check();
        body(&call(&mut wire, &json!({ "limit": "L", "id": "k", "cost": taken })));
        let asked = json!({ "limit": "L", "id": "k", "cost": cost, "max_delay_ms": 5_000 });
        let answer = body(&call(&mut wire, &asked));
        let found = json!([answer["allowed"], answer["delay_ms"], answer["limits"][0]["remaining"]]);
        assert_eq!(found, expected, "{count} a second, {cost} of {taken}: {answer}");
        if cost == 11 {
            assert_eq!((&answer["retry_after_ms"], &answer["limits"][0]["outcome"]), (&Value::Null, &json!("denied")));
        }
    }
}

#[test]
fn an_application_that_waits_less_is_denied_and_not_charged() {
    let weir = weir(&rules(5), Duration::ZERO);
    let mut wire = weir.connect_check();
    let mut wait = |cost: u64, most: Value| {
        let mut asked = json!({ "limit": "L", "id": "k", "cost": cost });
        if !most.is_null() {
            asked["max_delay_ms"] = most;
        }
        let answer = body(&call(&mut wire, &asked));
        json!([answer["allowed"], answer["delay_ms"], answer["retry_after_ms"]])
    };
    assert_eq!(wait(10, json!(0)), json!([true, 0, 0]));
    assert_eq!(wait(3, json!(599)), json!([false, 0, 600]));
    // Who does not say that it waits is denied as well.
    assert_eq!(wait(3, Value::Null), json!([false, null, 600]));
    assert_eq!(wait(3, json!(600)), json!([true, 600, 0]));
    assert_eq!(wait(1, json!(600)), json!([false, 0, 800]));
    assert_eq!(wait(1, json!(20_000)), json!([true, 800, 0]));
}

#[test]
fn answers_to_gateways_are_held_as_long_as_the_operator_allows() {
    let slow =
        json!({ "limits": { "L": { "by": "global", "burst": 1, "count": 1, "period": "100ms", "delay": "10s" } } });
    let weir = weir(&slow.to_string(), Duration::from_millis(250));
    let asks = ["/forward"; 4];
    let headers = [
        ("x-forwarded-for", "192.0.2.1"),
        ("x-forwarded-method", "GET"),
        ("x-forwarded-uri", "/"),
        ("host", "a.example"),
        ("x-forwarded-host", "a.example"),
    ];
    let statuses = asks.map(|path| send(&mut weir.connect_check(), "GET", path, &headers).status());
    // At once, after 100 and after 200 ms; 300 ms are more than allowed.
    assert_eq!(statuses, [200, 200, 200, 429]);
    becomes("two were held", 2, || weir.metric("weir_decisions_total{limit=\"L\",result=\"delayed\"}"));
    becomes("none is held", 0, || weir.metric("weir_delayed_requests"));
}
