//! Costs that responses report, through the proxy and on both stores.

mod bodies;
mod changing;
mod dated;
mod leaving;
mod uploads;
mod weights;

use serde_json::{Value, json};
use std::sync::Arc;
use weir::clock::Clock;
use weir::engine::algorithms::micros::Micros;
use weir::server::MakeStore;
use weir::store::Store;
use weir::store::redis::{RedisOptions, RedisStore};

use crate::support::NEVER;
use crate::support::redis::{RedisServer, STORE_TIMEOUT};
use crate::support::server::{Setup, Weir};
use crate::support::upstream::Upstream;
use crate::support::wire::Message;
use crate::support::{becomes, eventually};

/// The algorithms that settle. Each allows a hundred.
const ALGORITHMS: [&str; 4] = [
    "count: 100, period: 1h",
    "algorithm: fixed_window, count: 100, period: 1h",
    "algorithm: sliding_log, count: 100, period: 1h",
    "algorithm: sliding_window, count: 100, period: 1h",
];

/// A check listener beside the proxy, on a clock that stands still, so that nothing refills.
fn setup(rules: &str) -> Setup {
    let clock = Clock::set(Micros::from_millis(1_700_000_000_000));
    Setup { check: true, clock, grace: NEVER, ..Setup::new(rules) }
}

/// The same with buckets in Redis.
fn on_redis(rules: &str, server: &RedisServer) -> Setup {
    at(&server.url(), setup(rules))
}

/// The same with buckets in the Redis at this URL.
fn at(url: &str, setup: Setup) -> Setup {
    // A late answer on a busy machine would be an allowance.
    let options = RedisOptions { timeout: STORE_TIMEOUT, ..RedisOptions::new(url.to_owned(), setup.clock.clone()) };
    let target = options.target().unwrap();
    let store: MakeStore = Arc::new(move || Ok(Store::Redis(RedisStore::connect(&target))));
    Setup { store: Some(store), ..setup }
}

/// Starts it in front of an upstream and waits for its store.
fn start(setup: Setup, upstream: &Upstream) -> Weir {
    let weir = setup.start(&format!("http://{}", upstream.address));
    becomes("the store is connected", 1, || weir.metric("weir_store_connections"));
    weir
}

/// Runs a test on memory and on Redis.
fn on_both(rules: &str, upstream: &Upstream, test: impl Fn(&Weir)) {
    test(&start(setup(rules), upstream));
    let server = RedisServer::plain();
    test(&start(on_redis(rules, &server), upstream));
}

/// Answers by path: `/header/5`, `/twice/5` (a list of two), `/trailer/5`, `/both/5` (a header of 5 and a trailer of 99),
/// `/status/401`.
fn answering() -> Upstream {
    Upstream::answering(|request| {
        let path = request.start.split(' ').nth(1).unwrap();
        let (kind, value) = path[1..].split_once('/').unwrap_or((&path[1..], ""));
        let chunked = |head: &str, trailer: &str| {
            format!("HTTP/1.1 200 OK\r\n{head}transfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n{trailer}\r\n")
        };
        match kind {
            "header" => format!("HTTP/1.1 200 OK\r\nx-tokens-used: {value}\r\ncontent-length: 2\r\n\r\nhi"),
            "twice" => chunked(&format!("x-tokens-used: {value}\r\nX-Tokens-Used: {value}\r\n"), ""),
            "trailer" => chunked("", &format!("x-tokens-used: {value}\r\n")),
            "both" => chunked(&format!("x-tokens-used: {value}\r\n"), "x-tokens-used: 99\r\n"),
            "hints" => format!(
                "HTTP/1.1 103 Early Hints\r\nx-tokens-used: 99\r\n\r\n\
                 HTTP/1.1 200 OK\r\nX-Tokens-Used: {value}\r\ncontent-length: 0\r\n\r\n"
            ),
            "status" => format!("HTTP/1.1 {value} Said\r\nx-tokens-used: 7\r\ncontent-length: 0\r\n\r\n"),
            _ => chunked("", ""),
        }
    })
}

fn tokens(numbers: &str) -> String {
    format!(
        "limits: {{ Tokens: {{ by: global, {numbers}, cost_from_response: {{ header: x-tokens-used }}, reserve: 10 }} }}"
    )
}

/// Asks an application's question about a limit.
#[track_caller]
fn ask(weir: &Weir, call: &Value) -> Value {
    let (mut wire, body) = (weir.connect_check(), call.to_string());
    let length = body.len();
    wire.send(format!(
        "POST /json HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    ));
    serde_json::from_slice(&wire.response().body).unwrap()
}

/// The tokens left of a limit.
#[track_caller]
fn left(weir: &Weir, limit: &str) -> u64 {
    let answer = ask(weir, &json!({ "limit": limit, "op": "check", "cost": 0 }));
    answer["limits"][0]["remaining"].as_u64().unwrap_or_else(|| panic!("{answer}"))
}

/// Waits until this many tokens are left. A request does not wait for Redis.
#[track_caller]
fn settles(weir: &Weir, limit: &str, expected: u64) {
    becomes(limit, expected, || left(weir, limit));
}

fn settled(weir: &Weir, limit: &str, result: &str) -> u64 {
    weir.metric(&format!("weir_settlements_total{{limit=\"{limit}\",result=\"{result}\"}}"))
}

fn remaining(response: &Message) -> Option<&str> {
    response.header("ratelimit").and_then(|header| header.split(";r=").nth(1)?.split(';').next())
}

#[test]
fn the_response_says_what_a_request_has_cost() {
    let upstream = answering();
    for numbers in ALGORITHMS {
        on_both(&tokens(numbers), &upstream, |weir| {
            let mut client = weir.connect();
            for (path, then) in [
                ("/header/15", 85),
                ("/header/3", 82),
                ("/trailer/12", 70),
                ("/none", 60),
                ("/header/much", 50),
                ("/trailer/-3", 40),
                ("/twice/5", 30),
                ("/header/0", 30),
                ("/both/4", 26),
                ("/hints/6", 20),
                ("/status/500", 13),
                ("/header/9007199254740991", 0),
            ] {
                let mut response = client.get(path);
                if response.status() == 103 {
                    response = client.response();
                }
                assert_eq!(response.status(), if path == "/status/500" { 500 } else { 200 }, "{path}");
                settles(weir, "Tokens", then);
            }
            let asked = upstream.requests().len();
            assert_eq!(client.get("/header/0").status(), 429);
            assert_eq!(left(weir, "Tokens"), 0, "a denied request gets no refund");
            assert_eq!(upstream.requests().len(), asked);
            let counts = ["charged", "refunded", "unchanged", "absent", "unreadable", "unanswered", "failed"];
            let counts = counts.map(|result| settled(weir, "Tokens", result));
            assert_eq!(counts, [3, 5, 0, 1, 3, 0, 0], "{numbers}");
        });
    }
}

/// A request that costs 60 takes 60 of both.
#[test]
fn a_candidate_pays_what_the_response_says() {
    let rules = tokens("count: 1000, period: 365d, candidate: { count: 100, period: 365d }");
    on_both(&rules, &answering(), |weir| {
        let counted = |result| {
            weir.metric(&format!(
                "weir_candidate_decisions_total{{limit=\"Tokens\",candidate=\"\",result=\"{result}\"}}"
            ))
        };
        let mut client = weir.connect();
        for (then, denied) in [(940, 0), (880, 0), (820, 1)] {
            client.get("/header/60");
            settles(weir, "Tokens", then);
            assert_eq!(counted("denied"), denied, "{then} left");
        }
        assert_eq!(counted("allowed"), 2);
    });
}

#[test]
fn the_field_reaches_the_client_as_it_is() {
    let upstream = answering();
    let weir = start(setup(&tokens(ALGORITHMS[0])), &upstream);
    let mut client = weir.connect();
    let response = client.get("/header/25");
    assert_eq!((response.header("x-tokens-used"), response.text()), (Some("25"), "hi"));
    assert_eq!(remaining(&response), Some("90"), "the headers were written before the cost was known");
    let response = client.get("/trailer/12");
    assert_eq!(response.trailers, [("x-tokens-used".to_owned(), "12".to_owned())]);
}

#[test]
fn only_failed_logins_count() {
    let upstream = answering();
    for numbers in [
        "count: 3, period: 1h",
        "algorithm: fixed_window, count: 3, period: 1h",
        "algorithm: sliding_log, count: 3, period: 1h",
    ] {
        let rules = format!("limits: {{ Logins: {{ by: global, {numbers}, spend_when: {{ status: [401, 5xx] }} }} }}");
        on_both(&rules, &upstream, |weir| {
            let mut client = weir.connect();
            for (path, before, after) in [
                ("/status/200", 3, 3),
                ("/status/401", 3, 2),
                ("/status/403", 2, 2),
                ("/status/503", 2, 1),
                ("/header/99", 1, 1),
                ("/status/401", 1, 0),
            ] {
                let response = client.get(path);
                assert_eq!(remaining(&response), Some(before.to_string().as_str()), "{path}: nothing is taken before");
                settles(weir, "Logins", after);
            }
            let asked = upstream.requests().len();
            assert_eq!(client.get("/status/200").status(), 429);
            assert_eq!(upstream.requests().len(), asked);
            assert_eq!((settled(weir, "Logins", "charged"), settled(weir, "Logins", "unchanged")), (3, 3));
        });
    }
}

#[test]
fn some_answers_cost_what_they_say_and_others_nothing() {
    let upstream = answering();
    let rules = "limits: { Tokens: { by: global, count: 100, period: 1h, cost_from_response: { header: x-tokens-used, reserve: 10 }, \
                 spend_when: { status: 2xx } } }";
    on_both(rules, &upstream, |weir| {
        let mut client = weir.connect();
        for (path, then) in
            [("/header/25", 75), ("/status/500", 75), ("/trailer/60", 15), ("/none", 5), ("/header/1", 5)]
        {
            client.get(path);
            settles(weir, "Tokens", then);
        }
        assert_eq!(client.get("/header/1").status(), 429, "the reserve of 10 is not there");
    });
}

#[test]
fn what_a_denied_request_costs_stays_zero() {
    let upstream = answering();
    let rules = "limits:\n  Tokens: { by: global, count: 100, period: 1h, cost_from_response: { header: x-tokens-used }, reserve: 10 }\n  \
                 Logins: { by: global, count: 5, period: 1h, spend_when: { status: 429 } }\n  \
                 One: { by: global, count: 1, period: 1h }\n";
    on_both(rules, &upstream, |weir| {
        let mut client = weir.connect();
        assert_eq!(client.get("/header/25").status(), 200);
        settles(weir, "Tokens", 75);
        for _ in 0..3 {
            assert_eq!(client.get("/header/25").status(), 429, "denied by a limit, not answered by the upstream");
        }
        assert_eq!((left(weir, "Tokens"), left(weir, "Logins")), (75, 5));
        let results = ["charged", "refunded", "unchanged", "absent", "unreadable", "unanswered", "failed"];
        assert_eq!(results.map(|result| settled(weir, "Tokens", result)).iter().sum::<u64>(), 1);
    });
}

#[test]
fn every_window_of_a_limit_is_settled() {
    let upstream = answering();
    let rules = tokens("rates: [{ count: 50, period: 30d }, { count: 100, period: 365d }]");
    on_both(&rules, &upstream, |weir| {
        weir.connect().get("/header/30");
        let both = || {
            let answer = ask(weir, &json!({ "limit": "Tokens", "op": "check", "cost": 0 }));
            [0, 1].map(|window| answer["limits"][window]["remaining"].as_u64().unwrap())
        };
        eventually("both windows", || if both() == [20, 70] { Ok(()) } else { Err(both()) });
        assert_eq!(settled(weir, "Tokens", "charged"), 1, "one limit");
    });
}

#[test]
fn a_limit_in_shadow_settles_what_it_has_taken() {
    let upstream = answering();
    let rules = "limits:\n  Tokens: { by: global, count: 100, period: 1h, mode: shadow, cost_from_response: { header: x-tokens-used }, reserve: 10 }\n  \
                 Logins: { by: global, count: 1, period: 1h, mode: shadow, spend_when: { status: 500 } }\n";
    on_both(rules, &upstream, |weir| {
        let mut client = weir.connect();
        for (path, tokens, logins) in
            [("/header/95", 5, 1), ("/status/500", 5, 0), ("/header/0", 5, 0), ("/status/500", 5, 0)]
        {
            assert_ne!(client.get(path).status(), 429);
            settles(weir, "Tokens", tokens);
            settles(weir, "Logins", logins);
        }
        for (limit, denied) in [("Tokens", 3), ("Logins", 2)] {
            let metric = format!("weir_decisions_total{{limit=\"{limit}\",result=\"shadow_denied\"}}");
            assert_eq!(weir.metric(&metric), denied, "{limit}");
        }
    });
}

#[test]
fn listeners_that_see_no_response_reserve_and_check() {
    let upstream = answering();
    let rules = "limits:\n  Tokens: { by: global, count: 100, period: 1h, cost_from_response: { header: x-tokens-used }, reserve: 10 }\n  \
                 Logins: { by: global, count: 1, period: 1h, spend_when: { status: 401 } }\n";
    on_both(rules, &upstream, |weir| {
        let request = json!({ "request": { "method": "GET", "url": "http://a/", "ip": "192.0.2.1" } });
        for tokens in [90, 80] {
            assert_eq!(ask(weir, &request)["allowed"], true);
            assert_eq!((left(weir, "Tokens"), left(weir, "Logins")), (tokens, 1));
        }
        // A caller that sees the responses settles by itself.
        ask(weir, &json!({ "limit": "Tokens", "op": "refund", "cost": 7 }));
        assert_eq!(ask(weir, &json!({ "limit": "Logins" }))["allowed"], true);
        assert_eq!((left(weir, "Tokens"), left(weir, "Logins")), (87, 0));
        assert_eq!(ask(weir, &request)["allowed"], false);
        assert_eq!(left(weir, "Tokens"), 87);
    });
}
