//! Decisions in a Redis Cluster of three masters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use weir::clock::Clock;
use weir::engine::algorithms::charge::{Charge, Dated, Mode};
use weir::engine::algorithms::decision::Outcome;
use weir::engine::algorithms::micros::Micros;
use weir::engine::algorithms::numbers::Numbers;
use weir::engine::algorithms::tag::Tag;
use weir::store::redis::{RedisOptions, RedisStore};

use super::{charge, connected, decide, fixed, options};
use crate::support::binary::run;
use crate::support::cluster::RedisCluster;
use crate::support::redis::{RedisConfig, RedisServer};
use crate::support::weir::Weir;
use crate::support::{becomes, eventually_async};

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

/// The client leaves while one node is silent, and what the other one takes then is given back.
#[tokio::test]
async fn what_a_client_that_leaves_has_reserved_is_given_back_while_a_node_is_silent() {
    let config = RedisConfig { lines: vec!["cluster-require-full-coverage no".into()], ..RedisConfig::default() };
    let cluster = RedisCluster::start_with(&config, 3, 0);
    let store = connected(&RedisOptions { timeout: Duration::from_secs(2), ..options(&cluster.url()) }).await;
    let charges = [("A:1", 0), ("B:1", 63)].map(|(key, tag)| Charge { dated: Dated::Reserved, ..spend(key, tag, 10) });
    decide(&store, &charges).await.unwrap();
    let [charged, silent] = ["A:1", "B:1"].map(|bucket| holder(&cluster, bucket));
    assert_ne!(charged, silent);
    cluster.nodes[silent].freeze();
    let before = cluster.nodes[charged].calls("evalsha");
    tokio::time::timeout(Duration::from_millis(20), decide(&store, &charges)).await.unwrap_err();
    // A check, a spend, and the refund.
    eventually_async("the node is called", async || match cluster.nodes[charged].calls("evalsha") - before {
        3.. => Ok(()),
        calls => Err(calls),
    })
    .await;
    assert_eq!(left(&store, &charges[..1]).await, [9]);
}

/// The node that has a bucket.
fn holder(cluster: &RedisCluster, bucket: &str) -> usize {
    cluster.nodes.iter().position(|node| !node.cli(&["KEYS", &format!("*:{bucket}")]).is_empty()).unwrap()
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

/// Refunds of several hash slots at once give back what was taken at their instants, not the youngest tokens.
#[tokio::test]
async fn refunds_across_hash_slots_keep_their_dates() {
    let cluster = RedisCluster::start(3, 0);
    let time = Arc::new(AtomicU64::new(1_760_000_000_000_000));
    let clock = Clock::Set(time.clone());
    let store = connected(&RedisOptions { clock, ..options(&cluster.url()) }).await;
    let log = Numbers::sliding_log(10, 60_000_000_000).unwrap();
    let tagged = |key: &str, tag| {
        let mut spend = Charge { dated: Dated::Reserved, ..charge(key, &log, 1, Mode::Spend) };
        spend.bucket.tag = Tag::Fixed(tag);
        spend
    };
    let charges = [tagged("A:1", 0), tagged("B:1", 31), tagged("C:1", 63)];
    let first = decide(&store, &charges).await.unwrap();
    time.fetch_add(30_000_000, Ordering::Relaxed);
    decide(&store, &charges).await.unwrap();
    let refunds: Vec<Charge> = charges
        .iter()
        .enumerate()
        .map(|(place, charge)| {
            let dated = Dated::At(first.taken(place).expect("the answer has the instant"));
            Charge { mode: Mode::Refund, dated, ..charge.clone() }
        })
        .collect();
    decide(&store, &refunds).await.unwrap();
    // Only the younger entries are left, and the window ends a minute after them.
    let looks = charges.map(|charge| Charge { cost: 0, mode: Mode::Check, ..charge });
    for decision in decide(&store, &looks).await.unwrap().iter() {
        assert_eq!((decision.remaining, decision.reset_after), (9, Some(Micros(60_000_000))), "{decision:?}");
    }
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

/// A master of a cluster that goes on without it, the gateway, and an id whose bucket is on another master.
struct Outage {
    cluster: RedisCluster,
    weir: Weir,
    node: usize,
    id: String,
    /// The requests so far.
    asked: u64,
}

impl Outage {
    /// Serves `Ids`, whose buckets are full, and `Shared`, which is on the node that will be gone.
    fn prepare(ids: &str, shared: &str) -> Self {
        let config = RedisConfig { lines: vec!["cluster-require-full-coverage no".into()], ..RedisConfig::default() };
        let cluster = RedisCluster::start_with(&config, 3, 0);
        let rules = format!(
            "limits:\n  Ids: {{ by: {{ header: x-id }}, {ids} }}\n  Shared: {{ by: global, algorithm: gcra, {shared} }}\n"
        );
        let weir = Weir::serve(&rules, &["--workers", "1", "--store", &cluster.url(), "--store-timeout", "400ms"]);
        becomes("the store is connected", 1, || weir.metric("weir_store_connections"));
        let empty = || cluster.nodes.iter().for_each(|node| drop(node.cli(&["FLUSHALL"])));
        let has = |node: &RedisServer, limit: &str| node.cli(&["KEYS", &format!("*:{limit}*")]).contains(limit);
        let node_of = |limit| cluster.nodes.iter().position(|node| has(node, limit)).expect("it has a bucket");
        for asked in 1..20 {
            let id = format!("id{asked}");
            assert_eq!(weir.get("/", &[("x-id", &id)]).status(), 200);
            let (node, other) = (node_of("Shared"), node_of("Ids"));
            empty();
            if node != other {
                return Self { cluster, weir, node, id, asked };
            }
        }
        panic!("the ids are not spread");
    }

    /// The answers to this many requests: 200, 429 and 503.
    fn ask(&self, times: usize) -> [usize; 3] {
        let answers: Vec<u16> = (0..times).map(|_| self.weir.get("/", &[("x-id", &self.id)]).status()).collect();
        let counts = [200, 429, 503].map(|status| answers.iter().filter(|answer| **answer == status).count());
        assert_eq!(counts.iter().sum::<usize>(), times, "{answers:?}");
        counts
    }
}

/// Limits whose nodes answer hold, and `on_store_error` decides for the others, and for them alone.
#[test]
fn a_node_that_is_gone_takes_no_limit_of_another_node_down() {
    for (shared, meanwhile, afterwards) in [
        ("burst: 1000, on_store_error: allow", [5, 15, 0], [0, 5, 0]),
        // What was taken is given back.
        ("burst: 1000, on_store_error: deny", [0, 0, 20], [5, 5, 0]),
        // Each gateway counts by itself.
        ("burst: 3, on_store_error: local", [3, 17, 0], [2, 8, 0]),
    ] {
        for kills in [false, true] {
            let mut outage = Outage::prepare("burst: 5", shared);
            let node = outage.node;
            if kills {
                outage.cluster.nodes[node].kill();
            } else {
                outage.cluster.nodes[node].freeze();
            }
            assert_eq!(outage.ask(20), meanwhile, "{shared}, killed: {kills}");
            let result = |limit: &str, result: &str| {
                outage.weir.metric(&format!("weir_decisions_total{{limit=\"{limit}\",result=\"{result}\"}}"))
            };
            let taken = outage.asked + meanwhile[0] as u64;
            assert_eq!(result("Ids", "allowed"), taken, "{shared}, killed: {kills}");
            assert_eq!(result("Ids", "denied"), if shared.contains("allow") { 15 } else { 0 }, "{shared}");
            if kills {
                outage.cluster.nodes[node].restart();
            } else {
                outage.cluster.nodes[node].thaw();
            }
            outage.cluster.until_whole();
            outage.weir.until_connected();
            let times = afterwards.iter().sum();
            assert_eq!(outage.ask(times), afterwards, "{shared}, killed: {kills}");
        }
    }
}

/// A lease serves a limit without any node.
#[test]
fn a_node_that_is_gone_takes_no_limit_down_that_a_lease_serves() {
    for (shared, passing, others) in [
        ("burst: 1000, on_store_error: allow", 40, 429),
        ("burst: 1000, on_store_error: deny", 0, 503),
        ("burst: 5, on_store_error: local", 5, 429),
    ] {
        let mut outage = Outage::prepare("burst: 40, lease: { tokens: 10, for: 10s }", shared);
        let mut before = 0;
        while outage.weir.metric("weir_leased_tokens") == 0 {
            before += outage.ask(1)[0];
        }
        let node = outage.node;
        outage.cluster.nodes[node].kill();
        let passed = passing.min(40 - before);
        let answers = if others == 429 { [passed, 60 - passed, 0] } else { [passed, 0, 60 - passed] };
        assert_eq!(outage.ask(60), answers, "{shared}, {before} before");
    }
}
