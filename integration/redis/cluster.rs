//! Decisions in a Redis Cluster of three masters.

use std::sync::Arc;

use tokio::task::JoinSet;
use weir::engine::algorithms::charge::{Charge, Mode};
use weir::engine::algorithms::decision::Outcome;
use weir::engine::algorithms::tag::Tag;
use weir::store::redis::RedisStore;

use super::{charge, connected, decide, fixed, options};
use crate::support::binary::run;
use crate::support::cluster::RedisCluster;

/// A spend of 1 from a bucket with this tag that never refills.
fn spend(key: &str, tag: u8, burst: u64) -> Charge {
    let mut spend = charge(key, fixed(burst), 1, Mode::Spend);
    spend.bucket.tag = Tag::Fixed(tag);
    spend
}

/// The tokens left in each bucket.
async fn left(store: &RedisStore, charges: &[Charge]) -> Vec<u64> {
    let look = |charge: &Charge| Charge { cost: 0, ..charge.clone() };
    let looks: Vec<Charge> = charges.iter().map(look).collect();
    decide(store, &looks).await.unwrap().iter().map(|decision| decision.remaining).collect()
}

#[test]
fn every_scenario_passes_on_a_cluster() {
    let cluster = RedisCluster::start(3, 0);
    let file = "integration/cases/decisions.jsonl";
    let cases = std::fs::read_to_string(file).unwrap().lines().count();
    let text = run(&["test", file, "--store", &cluster.url()]).text();
    assert_eq!(text.lines().last(), Some(format!("{cases} passed, 0 failed").as_str()), "{text}");
    let calls: Vec<u64> = cluster.nodes.iter().map(|node| node.calls("evalsha")).collect();
    assert!(calls.iter().all(|calls| *calls > 10), "all nodes take part: {calls:?}");
    assert!(cluster.nodes.iter().all(|node| node.cli(&["DBSIZE"]) == "0"));
}

#[tokio::test]
async fn a_request_across_hash_slots_takes_all_or_nothing() {
    let cluster = RedisCluster::start(3, 0);
    let store = connected(&options(&cluster.url())).await;
    // Tags of three nodes, and two limits with one tag.
    let charges = [spend("A:1", 0, 10), spend("B:1", 31, 2), spend("C:1", 63, 10), spend("D:1", 63, 10)];
    for remaining in [[9, 1, 9, 9], [8, 0, 8, 8]] {
        let decided = decide(&store, &charges).await.unwrap();
        assert!(decided.iter().all(|decision| decision.outcome == Outcome::Allowed), "{decided:?}");
        assert_eq!(decided.iter().map(|decision| decision.remaining).collect::<Vec<_>>(), remaining);
    }
    let decided = decide(&store, &charges).await.unwrap();
    let outcomes: Vec<Outcome> = decided.iter().map(|decision| decision.outcome).collect();
    assert_eq!(outcomes, [Outcome::Unchanged, Outcome::Denied, Outcome::Unchanged, Outcome::Unchanged]);
    assert_eq!(decided.iter().map(|decision| decision.remaining).collect::<Vec<_>>(), [8, 0, 8, 8]);
    assert_eq!(left(&store, &charges).await, [8, 0, 8, 8]);
}

/// A request that is denied after its checks gives back what it took in other hash slots.
#[tokio::test]
async fn concurrent_requests_across_hash_slots_never_take_too_much_and_lose_nothing() {
    let cluster = RedisCluster::start(3, 0);
    let store = connected(&options(&cluster.url())).await;
    let charges = Arc::new([spend("A:1", 0, 40), spend("B:1", 31, 10), spend("C:1", 63, 30)]);
    let mut asking = JoinSet::new();
    for _ in 0..60 {
        let (store, charges) = (Arc::clone(&store), Arc::clone(&charges));
        asking.spawn(async move {
            let decided = decide(&store, charges.as_ref()).await.unwrap();
            u64::from(decided.iter().all(|decision| decision.outcome == Outcome::Allowed))
        });
    }
    let allowed: u64 = asking.join_all().await.iter().sum();
    assert!((1..=10).contains(&allowed), "{allowed}");
    assert_eq!(left(&store, charges.as_ref()).await, [40 - allowed, 10 - allowed, 30 - allowed]);
    // What is left passes, one after the other.
    for _ in allowed..10 {
        assert!(decide(&store, charges.as_ref()).await.unwrap().iter().all(|decision| !decision.is_denied()));
    }
    assert!(decide(&store, charges.as_ref()).await.unwrap()[1].is_denied());
}

/// Some keys of the hash slot are at the old node and some at the new one, so calls with both are answered by neither.
#[tokio::test]
async fn requests_follow_a_hash_slot_that_moves() {
    let cluster = RedisCluster::start(3, 0);
    let store = connected(&options(&cluster.url())).await;
    let hash_slot = cluster.hash_slot("weir:{122}:A:1");
    let (from, to) = (cluster.owner(hash_slot), (cluster.owner(hash_slot) + 1) % 3);
    let all: Vec<Charge> = (0..8).map(|id| spend(&format!("A:{id}"), 7, 100)).collect();
    let mut spent = vec![0; all.len()];
    let spend_some = async |spent: &mut Vec<u64>, ids: &[usize]| {
        let charges: Vec<Charge> = ids.iter().map(|id| all[*id].clone()).collect();
        let decided = decide(&store, &charges).await.unwrap_or_else(|error| panic!("{ids:?}: {error}"));
        for (id, decision) in ids.iter().zip(decided.iter()) {
            spent[*id] += 1;
            assert_eq!((decision.outcome, decision.remaining), (Outcome::Allowed, 100 - spent[*id]), "{id}");
        }
    };
    // The old node has four of the keys.
    spend_some(&mut spent, &[0, 1, 2, 3]).await;
    cluster.begin_move(hash_slot, to);
    for ids in [&[0][..], &[0, 1], &[4], &[4, 5], &[3, 6], &[0, 4, 7]] {
        spend_some(&mut spent, ids).await;
    }
    cluster.finish_move(hash_slot, to);
    cluster.nodes[from].cli(&["CONFIG", "RESETSTAT"]);
    for _ in 0..3 {
        spend_some(&mut spent, &[0, 1, 2, 3, 4, 5, 6, 7]).await;
    }
    assert!(cluster.nodes[from].calls("evalsha") <= 1, "the new node is asked from the first redirect on");
}
