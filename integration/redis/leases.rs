//! Leases of two workers on one server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::timeout;
use weir::engine::algorithms::algorithm::Aligned;
use weir::engine::algorithms::charge::{Charge, Mode};
use weir::engine::algorithms::decision::{Decision, Outcome};
use weir::engine::algorithms::lease::LeaseTerms;
use weir::engine::algorithms::numbers::Numbers;
use weir::store::redis::RedisStore;

use super::{charge, connected, decide, fixed, options};
use crate::support::eventually_async;
use crate::support::redis::RedisServer;

/// A lease that does not end during a test.
const TERMS: LeaseTerms = LeaseTerms { tokens: 50, span: 600_000_000 };

fn leased(key: &str, numbers: &Numbers) -> Charge {
    Charge { lease: Some(TERMS), ..charge(key, numbers, 1, Mode::Spend) }
}

async fn two(server: &RedisServer) -> [Arc<RedisStore>; 2] {
    let options = options(&server.url());
    [connected(&options).await, connected(&options).await]
}

/// Returns the tokens left in the first bucket; `None` if the request is denied.
async fn passes(store: &RedisStore, charges: &[Charge]) -> Option<u64> {
    let decisions = decide(store, charges).await.unwrap();
    assert!(decisions.details.is_empty(), "{decisions:?}");
    (!decisions.iter().any(Decision::is_denied)).then(|| decisions[0].remaining)
}

/// The bucket of a key as the server has it.
fn bucket(server: &RedisServer, key: &str) -> Vec<String> {
    server.cli(&["GET", &format!("weir:{{0}}:{key}")]).split(' ').map(String::from).collect()
}

/// Asks, and leaves before the server has answered.
async fn leave(server: &RedisServer, store: &RedisStore, charges: &[Charge]) {
    server.freeze();
    assert!(timeout(Duration::from_millis(20), decide(store, charges)).await.is_err());
    server.thaw();
}

#[tokio::test]
async fn a_client_that_leaves_takes_no_leased_tokens_along() {
    let server = RedisServer::plain();
    let store = connected(&options(&server.url())).await;
    let (leased, counted) = (leased("A:1", &fixed(1_000)), charge("B:1", fixed(1_000), 1, Mode::Spend));
    let both = [leased.clone(), counted];
    // The fourth request in a row asks for a lease.
    for _ in 0..3 {
        passes(&store, std::slice::from_ref(&leased)).await.unwrap();
    }
    leave(&server, &store, std::slice::from_ref(&leased)).await;
    eventually_async("the unclaimed lease is given back", async || match bucket(&server, "A:1") {
        bucket if bucket.len() == 4 && bucket[1] == "4" => Ok(()),
        bucket => Err(bucket),
    })
    .await;
    while store.health().leased_tokens == 0 {
        passes(&store, std::slice::from_ref(&leased)).await.unwrap();
    }
    // A lease serves one charge, and the server is asked about the other.
    let (tokens, served) = (store.health().leased_tokens, store.health().leased_decisions);
    leave(&server, &store, &both).await;
    let health = store.health();
    assert_eq!((health.leased_tokens, health.leased_decisions), (tokens, served));
    passes(&store, &both).await.unwrap();
    assert_eq!(store.health().leased_tokens, tokens - 1);
}

#[tokio::test]
async fn a_hot_id_makes_few_calls_and_exactly_its_burst_passes() {
    let server = RedisServer::plain();
    let window = Numbers::fixed_window(1_000, 1_000, 3_600_000_000_000, Aligned::First).unwrap();
    for (key, numbers) in [("A:even", fixed(1_000)), ("A:window", window)] {
        let stores = two(&server).await;
        let (charges, before) = ([leased(key, &numbers)], server.calls("evalsha"));
        let (mut passed, mut least) = (0, u64::MAX);
        loop {
            let both = [passes(&stores[0], &charges).await, passes(&stores[1], &charges).await];
            passed += both.iter().flatten().count();
            least = both.into_iter().flatten().fold(least, u64::min);
            if both == [None, None] {
                break;
            }
        }
        let calls = server.calls("evalsha") - before;
        assert_eq!((passed, least), (1_000, 0), "{key}");
        assert!(calls < 250, "{key}: {calls} calls");
        let health = stores.map(|store| store.health());
        assert!(health.iter().all(|health| health.leased_decisions > 300 && health.leased_tokens == 0), "{health:?}");
    }
}

#[tokio::test]
async fn workers_that_stop_give_back_what_is_left() {
    let server = RedisServer::plain();
    let stores = two(&server).await;
    let charges = [leased("A:1", &fixed(1_000))];
    for _ in 0..100 {
        for store in &stores {
            passes(store, &charges).await.unwrap();
        }
    }
    let [_, level, .., held] = &bucket(&server, "A:1")[..] else { panic!("no bucket") };
    assert!(held.starts_with('+') && level.parse::<u64>().unwrap() > 200, "{level} {held}");
    for store in &stores {
        assert!(store.health().leased_tokens > 0);
        store.give_back_leases().await;
        assert_eq!(store.health().leased_tokens, 0);
    }
    assert_eq!(bucket(&server, "A:1")[1..], ["200", "1", "0"], "{:?}", bucket(&server, "A:1"));
    // A store that is dropped without that keeps its tokens: nobody knows whether they were used.
    let [store, other] = stores;
    for _ in 0..20 {
        passes(&store, &charges).await.unwrap();
    }
    let held = store.health().leased_tokens;
    drop(store);
    let remaining = decide(&other, &[charge("A:1", fixed(1_000), 0, Mode::Check)]).await.unwrap()[0].remaining;
    assert_eq!((remaining, held > 0), (780 - held, true));
}

#[tokio::test]
async fn tokens_of_a_request_that_another_limit_denies_are_put_back() {
    let server = RedisServer::plain();
    let [store, _] = two(&server).await;
    let charges = [leased("A:1", &fixed(1_000)), charge("B:1", fixed(100), 1, Mode::Spend)];
    let mut passed = 0;
    for _ in 0..200 {
        passed += usize::from(passes(&store, &charges).await.is_some());
    }
    assert_eq!(passed, 100);
    let denied = decide(&store, &charges).await.unwrap();
    let state = denied.iter().map(|decision| (decision.outcome, decision.remaining)).collect::<Vec<_>>();
    assert_eq!(state, [(Outcome::Unchanged, 900), (Outcome::Denied, 0)]);
    store.give_back_leases().await;
    assert_eq!(bucket(&server, "A:1")[1], "100");
}

/// The server has lost the bucket, and another worker has leased tokens of the one that came after it.
#[tokio::test]
async fn a_lease_of_a_lost_bucket_gives_nothing_back() {
    let server = RedisServer::plain();
    let stores = two(&server).await;
    let charges = [leased("A:1", &fixed(1_000))];
    for (store, spent) in stores.iter().zip([7, 5]) {
        server.cli(&["FLUSHALL"]);
        for _ in 0..spent {
            passes(store, &charges).await.unwrap();
        }
        assert!(store.health().leased_tokens > 0);
    }
    let before = bucket(&server, "A:1");
    stores[0].give_back_leases().await;
    assert_eq!(bucket(&server, "A:1"), before);
}

/// Any requests passed after the first of them was asked and before the last was answered.
fn assert_within(numbers: &Numbers, mut passed: Vec<(Duration, Duration)>) {
    passed.sort_by_key(|(_, answered)| *answered);
    for (last, (_, answered)) in passed.iter().enumerate() {
        let mut asked = Duration::MAX;
        for (count, (earlier, _)) in (1..).zip(passed[..=last].iter().rev()) {
            asked = asked.min(*earlier);
            let span = answered.saturating_sub(asked).as_nanos();
            let refilled = span * u128::from(numbers.count()) / u128::from(numbers.period());
            let most = u128::from(numbers.burst()) + refilled + 1;
            assert!(count <= most, "{numbers}: {count} within {span} ns, {most} may");
        }
    }
}

#[tokio::test]
async fn workers_that_ask_for_more_than_the_limit_never_pass_more() {
    let server = RedisServer::plain();
    for (key, burst, count) in [("A:large", 600, 600), ("A:small", 20, 2_000)] {
        let numbers = Numbers::new(burst, count, 1_000_000_000).unwrap();
        let stores = [two(&server).await, two(&server).await].concat();
        let (start, mut clients) = (Instant::now(), JoinSet::new());
        for store in stores.iter().cycle().take(12) {
            let (store, lease) = (store.clone(), LeaseTerms { tokens: 50, span: 100_000 });
            let charges = [Charge { lease: Some(lease), ..charge(key, &numbers, 1, Mode::Spend) }];
            clients.spawn(async move {
                let mut passed = Vec::new();
                for _ in 0..600 {
                    let asked = start.elapsed();
                    if passes(&store, &charges).await.is_some() {
                        passed.push((asked, start.elapsed()));
                    }
                    tokio::task::yield_now().await;
                }
                passed
            });
        }
        let passed = clients.join_all().await.concat();
        // A small bucket is empty most of the time.
        let leased: u64 = stores.iter().map(|store| store.health().leased_decisions).sum();
        assert!(leased > 0 || burst == 20, "{key}");
        assert!(passed.len() as u64 >= burst, "{key}: {}", passed.len());
        assert_within(&numbers, passed);
    }
}
