//! Refunds give back what their own requests have taken, whatever has been taken since, and whatever the clocks say.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use weir::clock::Clock;

use super::leaving::Held;
use super::{ask, at, settled, setup, start};
use crate::support::becomes;
use crate::support::redis::{RedisConfig, RedisServer};
use crate::support::server::{Setup, Weir};

fn tokens(numbers: &str) -> String {
    format!(
        "limits: {{ Tokens: {{ by: {{ header: x-id }}, {numbers}, cost_from_response: {{ header: x-tokens-used }}, reserve: 10 }} }}"
    )
}

#[track_caller]
fn spend(weir: &Weir, id: &str, cost: u64) -> Value {
    ask(weir, &json!({ "limit": "Tokens", "id": id, "op": "spend", "cost": cost }))
}

#[track_caller]
fn left(weir: &Weir, id: &str) -> u64 {
    let answer = ask(weir, &json!({ "limit": "Tokens", "id": id, "op": "check", "cost": 0 }));
    answer["limits"][0]["remaining"].as_u64().unwrap_or_else(|| panic!("{answer}"))
}

/// The entries of an id's log: how many tokens were taken at each instant, the oldest first.
fn entries(server: &RedisServer, id: &str) -> Vec<usize> {
    let log = server.cli(&["LRANGE", &format!("weir:{{0}}:Tokens:{id}#log"), "0", "-1"]);
    let instants: Vec<&str> = log.lines().collect();
    instants.chunk_by(|one, other| one == other).map(<[_]>::len).collect()
}

/// The way of each refund to Redis takes longer than that of its spend, because the server is frozen meanwhile.
#[test]
fn a_refund_hits_its_own_entries_whatever_clock_redis_has() {
    for clock_offset in [-3_600, 0, 3_600] {
        let server = RedisServer::start(&RedisConfig { clock_offset: Some(clock_offset), ..RedisConfig::default() });
        let held = Held::start();
        let setup =
            Setup { clock: Clock::machine(), ..setup(&tokens("algorithm: sliding_log, count: 100, period: 1h")) };
        let weir = start(at(&server.url(), setup), &held.upstream);
        for (number, id) in (1..).zip(["a", "b", "c"]) {
            spend(&weir, id, 7);
            let mut client = weir.connect();
            client.send(format!("GET / HTTP/1.1\r\nhost: a\r\nx-id: {id}\r\n\r\n"));
            held.has_one();
            spend(&weir, id, 20);
            spend(&weir, "other", 5);
            server.freeze();
            held.answer(4);
            assert_eq!(client.response().status(), 200);
            server.thaw();
            becomes("it is settled", number, || settled(&weir, "Tokens", "refunded"));
            assert_eq!(entries(&server, id), [7, 4, 20], "a clock that is {clock_offset} s ahead");
        }
        assert_eq!(entries(&server, "other"), [5, 5, 5]);
    }
}

/// The windows of an hour begin 800 s before the clock's first instant.
#[test]
fn a_refund_that_comes_when_the_window_has_changed_is_not_of_the_new_one() {
    const FIRST: u64 = 1_700_000_000_000_000;
    let later = |seconds: u64| FIRST + seconds * 1_000_000;
    let server = RedisServer::plain();
    for (numbers, after, last) in [
        ("algorithm: fixed_window, aligned: clock, count: 100, period: 1h", 80, 80),
        // 4 of the previous window count, and are over when another window has passed.
        ("algorithm: sliding_window, count: 100, period: 1h", 76, 90),
        ("algorithm: sliding_log, count: 100, period: 1h", 76, 80),
    ] {
        let held = Held::start();
        let time = Arc::new(AtomicU64::new(FIRST));
        let setup = Setup { clock: Clock::Set(time.clone()), ..setup(&tokens(numbers)) };
        server.cli(&["FLUSHALL"]);
        let weir = start(at(&server.url(), setup), &held.upstream);
        let mut client = weir.connect();
        client.send("GET / HTTP/1.1\r\nhost: a\r\nx-id: a\r\n\r\n");
        held.has_one();
        time.store(later(3_000), Ordering::Relaxed);
        spend(&weir, "a", 20);
        spend(&weir, "b", 30);
        held.answer(4);
        assert_eq!(client.response().status(), 200);
        becomes("it is settled", 1, || settled(&weir, "Tokens", "refunded"));
        assert_eq!((left(&weir, "a"), left(&weir, "b")), (after, 70), "{numbers}");
        // What the first request has taken is over.
        time.store(later(if numbers.contains("sliding_window") { 4_600 + 3_600 } else { 3_601 }), Ordering::Relaxed);
        assert_eq!(left(&weir, "a"), last, "{numbers}");
    }
}
