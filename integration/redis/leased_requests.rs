//! Leases of gateways, over sockets.

use std::thread;

use crate::support::becomes;
use crate::support::redis::RedisServer;
use crate::support::weir::Weir;

const PAGE: &str = include_str!("../../docs/redis.md");

fn serve(limits: &str, redis: &RedisServer, workers: &str) -> Weir {
    let weir = Weir::serve(limits, &["--store", &redis.url(), "--workers", workers]);
    weir.until_connected();
    weir
}

/// The first rules of the section on leases.
fn example() -> &'static str {
    let section = PAGE.split("\n## Leases\n").nth(1).unwrap();
    section.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap()
}

/// The requests are those of a second at 50 and 95 % of the limit; a slow machine takes longer.
#[test]
fn the_example_of_the_page_decides_most_requests_from_leases() {
    let redis = RedisServer::plain();
    let limits = example();
    assert!(limits.contains("count: 10000\n") && limits.contains("header: x-tenant"), "{limits}");
    for (tenant, requests) in [("half", 5_000), ("nearly all", 9_500)] {
        let weir = serve(limits, &redis, "2");
        let connections = 4;
        thread::scope(|scope| {
            for _ in 0..connections {
                scope.spawn(|| {
                    let mut wire = weir.connect();
                    for _ in 0..requests / connections {
                        assert_eq!(wire.get_with("/", &[("x-tenant", tenant)]).status(), 200, "{tenant}");
                    }
                });
            }
        });
        let leased = weir.metric("weir_leased_decisions_total");
        assert!(leased * 2 >= requests, "{tenant}: {leased} of {requests} requests");
    }
}

/// The tokens that a bucket that never refills has used in Redis, those that are leased among them.
fn used(redis: &RedisServer, key: &str) -> u64 {
    redis.cli(&["GET", &format!("weir:{{0}}:{key}")]).split(' ').nth(1).unwrap().parse().unwrap()
}

/// A request waits for another limit, which denies it. Meanwhile a second request has ended the lease that the first one took from.
#[test]
fn tokens_of_a_denied_request_return_to_the_store_if_their_lease_has_ended() {
    let redis = RedisServer::plain();
    let limits = "limits:\n  \
        Leased: { by: { header: x-id }, burst: 1000, cost: { header: x-cost }, lease: { tokens: 20, for: 10s } }\n  \
        Other: { match: { path: /other }, by: { header: x-id }, burst: 1 }\n";
    let weir = serve(limits, &redis, "1");
    let ask = |path: &str, cost: &str| weir.get(path, &[("x-id", "7"), ("x-cost", cost)]).status();
    assert_eq!(ask("/other", "1"), 200);
    let (mut spent, leased) = (1, || weir.metric("weir_leased_tokens"));
    while leased() == 0 {
        assert_eq!(ask("/", "1"), 200);
        spent += 1;
    }
    let held = leased();
    redis.freeze();
    thread::scope(|scope| {
        let denied = scope.spawn(|| ask("/other", "2"));
        becomes("the first request has taken from the lease", held - 2, leased);
        let cost = (held + 1).to_string();
        let other = scope.spawn(move || ask("/", &cost));
        becomes("the second request ends the lease", 0, leased);
        redis.thaw();
        assert_eq!((denied.join().unwrap(), other.join().unwrap()), (429, 200));
    });
    spent += held + 1;
    becomes("nothing of the denied request is used", spent, || used(&redis, "Leased:7") - leased());
}
