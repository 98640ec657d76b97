//! Numbers that change while requests and buckets are in use: by a reload, elevated numbers, the end of an override, or
//! numbers in a call.

use std::sync::atomic::Ordering;

use serde_json::json;
use weir::clock::Clock;

use super::leaving::Held;
use super::{answering, ask, left, on_both, on_redis, settles, setup, start};
use crate::support::redis::RedisServer;
use crate::support::server::{Setup, Weir, rules};
use crate::support::upstream::Upstream;
use crate::support::wire::Message;

const ALGORITHMS: [&str; 4] = ["gcra", "fixed_window", "sliding_log", "sliding_window"];

/// Runs a test on memory and on Redis, with a clock that the test moves by seconds.
fn on_both_with_time(rules: &str, test: impl Fn(&Weir, &dyn Fn(i64))) {
    let upstream = Upstream::saying("hi");
    let play = |setup: Setup| {
        let clock = setup.clock.clone();
        let pass = |seconds: i64| {
            let Clock::Set(now) = &clock else { panic!("the clock is not set by hand") };
            now.store(now.load(Ordering::Relaxed).strict_add_signed(seconds * 1_000_000), Ordering::Relaxed);
        };
        test(&start(setup, &upstream), &pass);
    };
    play(setup(rules));
    let server = RedisServer::plain();
    play(on_redis(rules, &server));
}

#[test]
fn a_request_that_began_under_older_rules_is_settled_by_those_in_force() {
    let of = |algorithm: &str, count: u64| {
        format!(
            "limits: {{ Tokens: {{ by: global, algorithm: {algorithm}, count: {count}, period: 1h, \
             cost_from_response: {{ header: x-tokens-used }}, reserve: 2 }} }}"
        )
    };
    for algorithm in ALGORITHMS {
        // The slow request's final cost, and what remains of 1,000 then.
        for (cost, then) in [(1, 101), (50, 52)] {
            let held = Held::start();
            on_both(&of(algorithm, 10), &held.upstream, |weir| {
                std::thread::scope(|scope| {
                    let slow = scope.spawn(|| weir.connect().get("/").status());
                    held.has_one();
                    weir.shared.replace(rules(&of(algorithm, 1_000)), None);
                    ask(weir, &json!({ "limit": "Tokens", "cost": 898 }));
                    assert_eq!(left(weir, "Tokens"), 100, "{algorithm}");
                    held.answer(cost);
                    assert_eq!(slow.join().unwrap(), 200);
                });
                settles(weir, "Tokens", then);
            });
        }
    }
}

#[test]
fn what_costs_more_than_the_plain_burst_is_settled_whole_while_elevated_numbers_are_on() {
    let upstream = answering();
    let rules = "limits: { Tokens: { by: global, count: 20, period: 1h, cost_from_response: { header: x-tokens-used }, reserve: 1, \
                 elevated: { count: 200, period: 1h, for: 15m, activations_per_month: 5 } } }";
    on_both(rules, &upstream, |weir| {
        let mut client = weir.connect();
        // The first empties the bucket, the second has 20 of 200 deducted, the third takes the rest.
        for then in [0, 80, 0] {
            assert_eq!(client.get("/header/100").status(), 200);
            settles(weir, "Tokens", then);
        }
        assert_eq!(client.get("/header/100").status(), 429);
    });
    // More than the base burst is refunded, too.
    on_both(&rules.replace("reserve: 1,", "reserve: 100,"), &upstream, |weir| {
        assert_eq!(weir.connect().get("/header/30").status(), 200);
        settles(weir, "Tokens", 170);
    });
}

/// The clock of these tests starts at 2023-11-14T22:13:20Z.
#[test]
fn an_override_ends_when_it_says_and_not_with_the_last_charge_before() {
    let rules = "limits: { Calls: { by: { header: x-id }, count: 5, period: 1h } }\n\
                 overrides:\n  'Calls:a': { count: 100, period: 1s, until: 2023-11-14T22:13:24Z }\n  \
                 'Calls:b': { count: 100, period: 10s, until: 2023-11-14T22:13:24Z }\n";
    on_both_with_time(rules, |weir, pass| {
        for id in ["a", "b"] {
            assert_eq!(ask(weir, &json!({ "limit": "Calls", "id": id, "cost": 100 }))["allowed"], true);
        }
        pass(6);
        // One was full before its override ended; of the other, 60 were used then, which is its whole burst now.
        for (id, remaining, allowed) in [("a", 5, true), ("b", 0, false)] {
            let asked = ask(weir, &json!({ "limit": "Calls", "id": id, "op": "check", "cost": 0 }));
            assert_eq!(asked["limits"][0]["remaining"], remaining, "{asked}");
            assert_eq!(ask(weir, &json!({ "limit": "Calls", "id": id }))["allowed"], allowed, "{id}");
        }
    });
}

#[test]
fn numbers_of_a_call_hold_from_the_call_on() {
    let rules = "limits: { Calls: { by: { header: x-id }, per_call: true, count: 5, period: 1h } }";
    on_both_with_time(rules, |weir, pass| {
        let call = |count: u64, period: &str, cost: u64| {
            ask(weir, &json!({ "limit": "Calls", "id": "a", "count": count, "period": period, "cost": cost }))
        };
        assert_eq!(call(100, "1s", 100)["allowed"], true);
        pass(2);
        assert_eq!(call(5, "1h", 1)["limits"][0]["remaining"], 4, "the bucket was full again before this call");
        assert_eq!(call(100, "1s", 1)["limits"][0]["remaining"], 98, "usage stays");
    });
}

#[test]
fn a_bucket_that_is_full_by_the_numbers_of_the_last_call_is_full() {
    for algorithm in ["gcra", "fixed_window"] {
        let rules = format!(
            "limits: {{ Calls: {{ by: {{ header: x-id }}, per_call: true, algorithm: {algorithm}, count: 1, period: 1h }} }}"
        );
        on_both_with_time(&rules, |weir, pass| {
            let plain = || ask(weir, &json!({ "limit": "Calls", "id": "a" }));
            let call = json!({ "limit": "Calls", "id": "a", "count": 10, "period": "10s", "cost": 10 });
            assert_eq!(ask(weir, &call)["allowed"], true);
            pass(9);
            let denied = plain();
            assert_eq!((&denied["allowed"], &denied["retry_after_ms"]), (&json!(false), &json!(1_000)), "{algorithm}");
            pass(1);
            assert_eq!(plain()["allowed"], true, "{algorithm}");
            // Slower numbers have written it now.
            pass(9);
            assert_eq!(plain()["retry_after_ms"], 3_591_000, "{algorithm}");
        });
    }
}

/// Redis' clock steps back when it is corrected or a replica takes over.
#[test]
fn a_clock_that_was_ahead_keeps_nobody_out_for_longer_than_the_limit_does() {
    for (algorithm, longest) in [
        ("algorithm: gcra", 60),
        ("algorithm: fixed_window", 60),
        ("algorithm: fixed_window, aligned: clock", 60),
        ("algorithm: fixed_window, burst: 20", 120),
        ("algorithm: sliding_log", 60),
        ("algorithm: sliding_window", 120),
        ("elevated: { count: 20, period: 60s, for: 60s, activations_per_month: 5 }", 120),
    ] {
        let rules = format!("limits: {{ Calls: {{ by: global, count: 10, period: 60s, {algorithm} }} }}");
        on_both_with_time(&rules, |weir, pass| {
            let spend = || ask(weir, &json!({ "limit": "Calls" }));
            for ahead in [3_600, 2] {
                pass(ahead);
                let taken = (0..50).take_while(|_| spend()["allowed"] == true).count();
                assert!(taken >= 10, "{algorithm}: {taken}");
                pass(-ahead);
                let denied = spend();
                let wait = denied["limits"][0]["retry_after_ms"].as_i64().unwrap();
                assert!(denied["allowed"] == false && (1..=longest * 1_000).contains(&wait), "{algorithm}: {denied}");
                // The clock has moved on, but reading the bucket does not restart its wait.
                let seconds = (wait + 999) / 1_000;
                for _ in 0..seconds {
                    pass(1);
                    ask(weir, &json!({ "limit": "Calls", "op": "check", "cost": 20 }));
                }
                assert_eq!(spend()["allowed"], true, "{algorithm}: after {seconds} s");
                pass(600);
            }
        });
    }
}

/// Two gateways may reload at different times.
#[test]
fn older_rules_of_another_gateway_leave_what_is_used() {
    let of = |algorithm: &str, count: u64| {
        format!("limits: {{ Calls: {{ by: global, algorithm: {algorithm}, count: {count}, period: 1h }} }}")
    };
    for algorithm in ALGORITHMS {
        let upstream = Upstream::saying("hi");
        let server = RedisServer::plain();
        let [older, newer] = [10, 1_000].map(|count| start(on_redis(&of(algorithm, count), &server), &upstream));
        assert_eq!(ask(&newer, &json!({ "limit": "Calls", "cost": 900 }))["allowed"], true);
        assert_eq!(ask(&older, &json!({ "limit": "Calls" }))["allowed"], false, "{algorithm}");
        ask(&older, &json!({ "limit": "Calls", "op": "refund", "cost": 1 }));
        assert_eq!((left(&older, "Calls"), left(&newer, "Calls")), (0, 101), "{algorithm}");
        let status = |weir: &Weir| -> Message { weir.connect().get("/") };
        assert_eq!((status(&older).status(), status(&newer).status()), (429, 200));
    }
}
