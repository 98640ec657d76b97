//! Facts that users of other limiters rely on and scenarios of `weir test` cannot express: overrides, numbers in calls,
//! invalid calls, calls to the store, and the store's failure.
//!
//! `cases/contracts.jsonl` has one fact per line: `{case, rules, steps: [{at_ms, call, expect}]}`. `rules` is a rules
//! file and `call` an application's call. In `expect`, `status` and `retry-after` are the response's, `mistake` is the
//! place of the first mistake, `limits` is the number of limits that decide, `store_calls` and `store_keys` are Redis'
//! calls and keys after the step; the others are members of the answer for the named limit.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use weir::clock::Clock;
use weir::config::{self, Source};
use weir::engine::algorithms::micros::Micros;
use weir::engine::limit::fingerprint::Fingerprinter;
use weir::listeners::admin::tokens::Tokens;

use super::{body, call, charge, on_redis, on_redis_with, stopped};
use crate::support::becomes;
use crate::support::redis::RedisServer;
use crate::support::server::{Setup, Weir};
use crate::support::wire::Wire;

const FACTS: &str = include_str!("../cases/contracts.jsonl");

/// Plays all facts, each with its own rules and clock, and reports all differences at once.
fn play_all(start: impl Fn(Setup) -> Weir, store: Option<&RedisServer>) {
    let facts: Vec<Value> = FACTS.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(facts.len(), 51);
    let differences: Vec<String> = facts.iter().filter_map(|fact| play(fact, &start, store).err()).collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

fn play(fact: &Value, start: &impl Fn(Setup) -> Weir, store: Option<&RedisServer>) -> Result<(), String> {
    let setup = stopped(&fact["rules"].to_string());
    let Clock::Set(clock) = setup.clock.clone() else { panic!("the clock is set") };
    let begin = clock.load(Ordering::Relaxed);
    let weir = start(setup);
    let mut wire = weir.connect_check();
    for (number, step) in (1..).zip(fact["steps"].as_array().unwrap()) {
        clock.store(begin + step["at_ms"].as_u64().unwrap() * 1_000, Ordering::Relaxed);
        let asked_before = store.map(asked);
        let answer = call(&mut wire, &step["call"]);
        let told = body(&answer);
        for (key, expected) in step["expect"].as_object().unwrap() {
            let found = match key.as_str() {
                "status" => answer.status().into(),
                "retry-after" => answer.header("retry-after").into(),
                "allowed" => told["allowed"].clone(),
                "mistake" => told["errors"][0]["pointer"].clone(),
                "limits" => told["limits"].as_array().map(Vec::len).into(),
                "limit" | "remaining" | "retry_after_ms" | "reset_after_ms" => told["limits"][0][key].clone(),
                "activations_left" => told["limits"][0]["elevated"][key].clone(),
                "store_calls" | "store_keys" if store.is_none() => continue,
                "store_calls" => (store.map(asked).unwrap() - asked_before.unwrap()).into(),
                "store_keys" => store.unwrap().cli(&["DBSIZE"]).parse::<u64>().unwrap().into(),
                _ => panic!("no answer has a `{key}`"),
            };
            if found != *expected {
                let (case, call) = (&fact["case"], &step["call"]);
                return Err(format!("{case}: step {number}, {call}: {key} is {found}, expected {expected}: {told}"));
            }
        }
    }
    Ok(())
}

/// The calls that decide, counted by the server.
fn asked(server: &RedisServer) -> u64 {
    server.calls("evalsha")
}

#[test]
fn facts_of_other_limiters_hold_on_memory() {
    play_all(|setup| setup.start("echo"), None);
}

#[test]
fn facts_of_other_limiters_hold_on_redis() {
    let server = RedisServer::plain();
    let start = |setup| {
        server.cli(&["FLUSHALL"]);
        on_redis_with(setup, &server)
    };
    play_all(start, Some(&server));
}

/// limitd-redis empties the whole database for this.
fn check_reset_of_all(weir: &Weir) {
    let mut wire = weir.connect_check();
    let mut take = |id: &str, cost: u64| {
        let told = body(&call(&mut wire, &json!({ "limit": "L", "id": id, "cost": cost })));
        (told["allowed"].clone(), told["limits"][0]["remaining"].clone(), told["limits"][0]["reset_after_ms"].clone())
    };
    for id in ["a", "b"] {
        assert_eq!(take(id, 10), (json!(true), json!(0), json!(2_000)));
    }
    let mut admin = Wire::connect(weir.admin);
    admin.send("POST /limits/L/reset HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer s3cret\r\n\r\n");
    assert_eq!(admin.response().status(), 200);
    for id in ["a", "b"] {
        assert_eq!(take(id, 1), (json!(true), json!(9), json!(200)));
    }
}

#[test]
fn a_reset_of_all_refills_every_bucket() {
    let rules = "limits: { L: { by: { header: x-key }, burst: 10, count: 5, period: 1s } }";
    let setup = || Setup { admin_tokens: Tokens::one("s3cret").unwrap(), ..stopped(rules) };
    check_reset_of_all(&setup().start("echo"));
    check_reset_of_all(&on_redis_with(setup(), &RedisServer::plain()));
}

/// limitd-redis accepts 10,000 and tries them one by one. Here a limit has a maximum, and all are tried at once.
#[test]
fn the_first_of_a_thousand_regular_expressions_wins_and_one_more_is_rejected() {
    let with = |count: u64| {
        let each = (0..count).map(
            |n| json!({ "L": { "regex": format!(r"172\.16\.{n}"), "burst": 1_000 + n, "count": 10, "period": "1s" } }),
        );
        let limit = json!({ "by": { "header": "x-key" }, "burst": 10, "count": 5, "period": "1s" });
        json!({ "limits": { "L": limit }, "overrides": each.collect::<Vec<_>>() }).to_string()
    };
    let weir = stopped(&with(1_000)).start("echo");
    let mut wire = weir.connect_check();
    for (id, expected) in [("172.16.7.1", 1_007), ("172.16.77.1", 1_007), ("172.16.999", 1_009), ("172.17.1.1", 10)] {
        assert_eq!(body(&call(&mut wire, &charge("L", id)))["limits"][0]["limit"], expected, "{id}");
    }
    let source = Source { name: "limits.yaml".into(), text: with(1_001) };
    let sources = config::Sources { limits: Some(source), ..config::Sources::default() };
    let loaded = config::load(&sources, Fingerprinter::new((1, 2)), Micros(0));
    assert!(loaded.rules.is_none());
    let report = loaded.report.to_string();
    assert!(report.contains("more than 1000 regular expressions for one limit"), "{report}");
    assert!(report.contains("combine them with `|`, or list ids"), "{report}");
}

#[test]
fn limits_that_count_nothing_ask_no_store_for_requests() {
    let server = RedisServer::plain();
    let rules = "limits:\n  Free: { by: ip, unlimited: true }\n  Off: { by: ip, count: 1, period: 1m, mode: off }";
    let weir = on_redis(rules, &server);
    let before = asked(&server);
    let mut client = weir.connect();
    for _ in 0..3 {
        let response = client.get("/");
        assert_eq!((response.status(), response.header("ratelimit")), (200, None));
    }
    assert_eq!((asked(&server), server.cli(&["DBSIZE"]).as_str()), (before, "0"));
    assert_eq!(weir.metric("weir_decisions_total{limit=\"Free\",result=\"unlimited\"}"), 3);
}

/// Boulder passes requests when its store fails, and reports it.
#[test]
fn a_store_error_lets_the_request_pass_and_is_recorded() {
    let mut server = RedisServer::plain();
    let weir = on_redis("limits: { L: { by: ip, burst: 20, count: 20, period: 1s } }", &server);
    let mut client = weir.connect();
    assert!(client.get("/").header("ratelimit").is_some());
    assert_eq!(weir.metric("weir_store_errors_total{kind=\"down\"}"), 0);
    server.kill();
    becomes("the store is away", 0, || weir.metric("weir_store_connections"));
    let response = client.get("/");
    assert_eq!((response.status(), response.header("ratelimit")), (200, None));
    assert_eq!(weir.metric("weir_store_errors_total{kind=\"down\"}"), 1);
    assert_eq!(weir.metric("weir_decisions_total{limit=\"L\",result=\"error_allowed\"}"), 1);
}

/// As in Boulder, where a spend ignores the client's context; otherwise clients could avoid charges by hanging up.
#[test]
fn a_client_that_goes_away_does_not_cancel_its_spend() {
    let server = RedisServer::plain();
    let weir = on_redis("limits: { L: { by: { header: x-key }, burst: 20, count: 20, period: 1s } }", &server);
    let spend = "POST /json HTTP/1.1\r\nhost: limiter\r\ncontent-type: application/json\r\ncontent-length: 25\r\n\r\n\
        {\"limit\":\"L\",\"id\":\"json\"}";
    let request = "GET / HTTP/1.1\r\nhost: a.example\r\nx-key: proxy\r\n\r\n";
    let listeners: [(&str, Wire, &str); 2] =
        [("json", weir.connect_check(), spend), ("proxy", weir.connect(), request)];
    for (id, mut wire, bytes) in listeners {
        server.freeze();
        wire.send(bytes);
        becomes("the request is there", 1, || weir.metric("weir_http_requests_in_flight"));
        drop(wire);
        // By then the end of the connection has reached the listener.
        std::thread::sleep(Duration::from_millis(50));
        server.thaw();
        let check = json!({ "limit": "L", "id": id, "op": "check", "cost": 0 });
        let answer = body(&call(&mut weir.connect_check(), &check));
        let left = &answer["limits"][0];
        assert_eq!((&left["remaining"], &left["reset_after_ms"]), (&json!(19), &json!(50)), "{id}: {answer}");
        becomes("nothing is in flight", 0, || weir.metric("weir_http_requests_in_flight"));
    }
}
