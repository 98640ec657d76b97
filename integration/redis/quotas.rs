//! Activations of elevated numbers that buckets share under the name of a quota.

use std::collections::HashSet;
use std::sync::Arc;

use tokio::task::JoinSet;
use weir::engine::algorithms::calendar::{Calendar, Unit};
use weir::engine::algorithms::charge::{Charge, Elevated, Input, Mode};
use weir::engine::algorithms::micros::Micros;
use weir::engine::algorithms::numbers::Numbers;
use weir::engine::algorithms::tag::tag_of;
use weir::store::redis::RedisStore;
use weir::store::{Batch, StoreError};

use super::deciding::{eval, server_time};
use super::{charge, connected, decide, fixed, options};
use crate::support::cluster::RedisCluster;
use crate::support::redis::RedisServer;

/// Charges 2 of a bucket of 1 that may be raised to 10, so often in a month.
fn raised(key: &str, quota: &str, activations_per_month: u64) -> Charge {
    let numbers = Numbers::new(10, 10, 60_000_000_000).unwrap();
    let elevated = Elevated { numbers, span: 900_000_000, activations_per_month, quota: Some(quota.into()) };
    let input = Some(Box::new(Input::Elevated(Arc::new(elevated))));
    Charge { input, ..charge(key, Numbers::new(1, 1, 60_000_000_000).unwrap(), 2, Mode::Spend) }
}

/// Spends; returns the activations left if the numbers were switched on.
async fn switch_on(store: &RedisStore, charge: Charge) -> Result<Option<u64>, StoreError> {
    let decisions = decide(store, &[charge]).await?;
    Ok(decisions.detail(0).unwrap().elevation().unwrap().activations_left)
}

#[test]
fn the_script_counts_activations_in_quotas() {
    const START: u64 = 1_711_929_540_000_000;
    const QUOTA: &str = "weir:{0}:!quota:7:t";
    let server = RedisServer::plain();
    let eval = |arguments: &str| eval(&server, "elevated.lua", arguments);
    let at = |key: &str, seconds: u64, quota: &str, mode: &str| {
        let now = START + seconds * 1_000_000;
        let word = format!("elevated:1:20:100000:1:5000000:2{quota}");
        eval(&format!("weir:{{0}}:{key} {QUOTA} , {now} 0 2 500000 {word} 3 {mode}"))
    };
    assert_eq!(at("a", 0, ":7:t", "check"), "0 0 17 0 300000 0 elevated 1 1 1");
    assert_eq!(server.cli(&["DBSIZE"]), "0");
    assert_eq!(at("a", 0, ":7:t", "spend"), "0 0 17 0 300000 0 elevated 1 1 1");
    assert_eq!(server.cli(&["GET", QUOTA]), format!("1 {}", START + 60_000_000));
    assert!(server.cli(&["PTTL", QUOTA]).parse::<u64>().unwrap() > 0);
    let own = server.cli(&["GET", "weir:{0}:a"]);
    assert!(own.ends_with(&format!(" {} 0 0", START + 5_000_000)), "{own}");
    assert_eq!(at("b", 0, ":7:t", "spend_only"), "0 0 17 0 300000 0 elevated 1 1 0");
    assert_eq!(at("c", 1, ":7:t", "spend"), "0 1 2 59000000 0 0 elevated 0 0 -1", "until the month is over");
    assert_eq!(at("c", 1, ":8:t", "spend"), "0 0 17 0 300000 0 elevated 1 1 1");
    assert_eq!(at("c", 50, ":7:t", "reset"), "0 0 2 0 0 0 elevated 0 0 -1");
    assert_eq!(at("c", 50, "", "spend"), "0 0 17 0 300000 0 elevated 1 1 1", "its own are all left");
    assert_eq!(at("b", 60, ":7:t", "spend"), "0 0 17 0 300000 0 elevated 1 1 1");
    // Other text counts as a quota of which nothing is used, as for buckets.
    server.cli(&["SET", QUOTA, "mine"]);
    assert_eq!(at("d", 61, ":7:t", "spend"), "1 0 17 0 300000 0 elevated 1 1 1");
    server.cli(&["DEL", QUOTA]);
    server.cli(&["LPUSH", QUOTA, "mine"]);
    assert_eq!(at("e", 61, ":7:t", "spend"), "1 0 17 0 300000 0 elevated 1 1 1");
    assert!(at("a", 61, ":", "spend").starts_with("ERR usage"));
    assert!(at("a", 61, "t", "spend").starts_with("ERR usage"));
}

#[tokio::test]
async fn a_quota_lives_until_the_month_is_over_by_the_clock_of_the_server() {
    const QUOTA: &str = "weir:{0}:!quota:18:t";
    let server = RedisServer::plain();
    let store = connected(&options(&server.url())).await;
    assert_eq!(switch_on(&store, raised("A:12345678", "t", 5)).await, Ok(Some(4)));
    let month = Calendar::find(Unit::Month(1), "UTC").unwrap();
    let now = Micros(server_time(&server));
    let lives = (month.start(month.number(now) + 1).0 - now.0) / 1_000 + 60_000;
    let left = server.cli(&["PTTL", QUOTA]).parse::<u64>().unwrap();
    assert!((lives.saturating_sub(2_000)..=lives + 2_000).contains(&left), "{left} of {lives}");
    // The quota is read with the bucket, and written only for an activation.
    let (sets, calls) = (server.calls("set"), server.calls("evalsha"));
    assert_eq!(switch_on(&store, raised("A:12345678", "t", 5)).await, Ok(None), "it is on already");
    let denied = [raised("B:12345678", "t", 5), charge("C:12345678", fixed(1), 2, Mode::Spend)];
    assert!(decide(&store, &denied).await.unwrap()[1].is_denied());
    assert_eq!((server.calls("set") - sets, server.calls("evalsha") - calls), (1, 2));
    assert!(server.cli(&["GET", QUOTA]).starts_with("1 "));
    server.cli(&["SET", QUOTA, "4 9007199254740992"]);
    assert_eq!(switch_on(&store, raised("B:12345678", "t", 5)).await, Ok(Some(4)), "no quota has this text");
    assert_eq!(store.health().corrupt_values, 1);
}

#[tokio::test]
async fn of_64_buckets_at_once_exactly_as_many_switch_on_as_the_quota_has() {
    let server = RedisServer::plain();
    let stores = [connected(&options(&server.url())).await, connected(&options(&server.url())).await];
    let mut asked = JoinSet::new();
    for number in 0..64 {
        let store = Arc::clone(&stores[number % 2]);
        // Every other request has two charges, and neither or both switch on.
        asked.spawn(async move {
            let keys = [format!("A{number}:x"), format!("B{number}:x")];
            let charges: Vec<Charge> = keys.iter().take(1 + number / 2 % 2).map(|key| raised(key, "t", 9)).collect();
            let batch = Batch { charges: &charges, effective_from: Micros(0), now: Micros(0) };
            let decisions = store.decide(&batch).await.unwrap();
            decisions.iter().filter(|decision| decision.limit == 10).count()
        });
    }
    let raised: usize = asked.join_all().await.into_iter().sum();
    assert_eq!(raised, 9);
}

/// A declared key of another hash slot would fail the call.
#[tokio::test]
async fn a_cluster_shares_a_quota_between_buckets_of_one_hash_tag_as_one_server_does() {
    let cluster = RedisCluster::start(3, 0);
    let server = RedisServer::plain();
    let ids: Vec<String> = (0..40).map(|id| format!("i{id}")).collect();
    let tags: HashSet<u8> = ids.iter().map(|id| tag_of(&raised(&format!("A:{id}"), "t", 1).bucket)).collect();
    assert!(tags.len() > 10 && tags.len() < 40, "{tags:?}");
    for store in [connected(&options(&cluster.url())).await, connected(&options(&server.url())).await] {
        let mut used = HashSet::new();
        for (limit, id) in ["A", "B"].into_iter().flat_map(|limit| ids.iter().map(move |id| (limit, id))) {
            let charge = raised(&format!("{limit}:{id}"), "t", 1);
            let is_first = used.insert(tag_of(&charge.bucket));
            assert_eq!(switch_on(&store, charge).await, Ok(is_first.then_some(0)), "{limit}:{id}");
        }
    }
}
