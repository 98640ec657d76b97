//! What a decision reads, writes and answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::task::JoinSet;
use weir::engine::charge::{Charge, Mode, Outcome};
use weir::engine::numbers::{Micros, Numbers};
use weir::store::redis::RedisOptions;
use weir::store::{Clock, StoreError};

use super::{charge, connected, decide, fixed, options};
use crate::support::redis::RedisServer;

/// 10 tokens, one back each second.
fn slow() -> Numbers {
    Numbers::new(10, 1, 1_000_000_000).unwrap()
}

#[tokio::test]
async fn one_call_a_request_and_no_write_where_nothing_is_taken() {
    let server = RedisServer::plain();
    let store = connected(&options(&server.url())).await;
    let spend_all = [charge("A:1", slow(), 10, Mode::Spend), charge("B:1", fixed(10), 4, Mode::Spend)];
    assert!(decide(&store, &spend_all).await.unwrap().iter().all(|decision| decision.outcome == Outcome::Allowed));
    let before = (server.cli(&["GET", "weir:{0}:A:1"]), server.cli(&["GET", "weir:{0}:B:1"]));
    let idle: [&[Charge]; 7] = [
        &[charge("B:1", fixed(10), 1, Mode::Spend), charge("A:1", slow(), 10, Mode::Spend)],
        &[charge("B:1", fixed(10), 1, Mode::Refund), charge("A:1", slow(), 10, Mode::Spend)],
        &[charge("B:1", fixed(10), 0, Mode::Reset), charge("A:1", slow(), 11, Mode::Check)],
        &[charge("A:1", slow(), 0, Mode::Spend), charge("B:1", fixed(10), 3, Mode::Check)],
        &[charge("A:1", slow(), 10, Mode::SpendOnly)],
        &[charge("C:1", slow(), 3, Mode::Refund)],
        &[charge("C:1", slow(), 0, Mode::SpendOnly)],
    ];
    server.cli(&["CONFIG", "RESETSTAT"]);
    for charges in idle {
        decide(&store, charges).await.unwrap();
    }
    assert_eq!((server.calls("evalsha"), server.calls("eval")), (7, 0));
    assert_eq!((server.calls("set"), server.calls("del"), server.calls("get")), (0, 0, 11));
    let after = (server.cli(&["GET", "weir:{0}:A:1"]), server.cli(&["GET", "weir:{0}:B:1"]));
    assert_eq!((before, server.cli(&["DBSIZE"])), (after, "2".into()));
}

#[tokio::test]
async fn the_value_carries_its_expiry_and_a_full_bucket_is_no_key() {
    let server = RedisServer::plain();
    let store = connected(&options(&server.url())).await;
    let left = |key: &str| server.cli(&["PTTL", key]).parse::<i64>().unwrap();
    decide(&store, &[charge("A:1", slow(), 5, Mode::Spend), charge("B:1", fixed(10), 1, Mode::Spend)]).await.unwrap();
    let expiry = left("weir:{0}:A:1");
    assert!((1_000..=5_000).contains(&expiry), "{expiry}");
    assert_eq!(left("weir:{0}:B:1"), -1, "a bucket that never refills stays");
    // 1 per nanosecond: full again before a millisecond is over.
    let fast = Numbers::new(1, 1, 1).unwrap();
    decide(&store, &[charge("C:1", fast, 1, Mode::Spend)]).await.unwrap();
    assert_eq!((server.calls("set"), server.calls("expire") + server.calls("pexpire")), (3, 0));

    let given = RedisOptions { clock: Clock::set(Micros::from_millis(1)), ..options(&server.url()) };
    let given = connected(&given).await;
    decide(&given, &[charge("D:1", slow(), 1, Mode::Spend), charge("E:1", fixed(2), 1, Mode::Spend)]).await.unwrap();
    for key in ["weir:{0}:D:1", "weir:{0}:E:1"] {
        assert!((500_000..=600_000).contains(&left(key)), "{key}: {}", left(key));
    }

    let full = [charge("A:1", slow(), 9, Mode::Refund), charge("B:1", fixed(10), 0, Mode::Reset)];
    decide(&store, &full).await.unwrap();
    assert_eq!(server.cli(&["EXISTS", "weir:{0}:A:1", "weir:{0}:B:1"]), "0");
}

#[tokio::test]
async fn a_lost_script_is_sent_again() {
    let server = RedisServer::plain();
    let store = connected(&options(&server.url())).await;
    let spend = [charge("A:1", fixed(3), 1, Mode::Spend)];
    for remaining in [2, 1, 0] {
        server.cli(&["SCRIPT", "FLUSH"]);
        assert_eq!(decide(&store, &spend).await.unwrap()[0].remaining, remaining);
    }
    assert_eq!((server.calls("eval"), server.calls("evalsha")), (3, 3));
}

#[tokio::test]
async fn a_key_of_another_type_is_an_error_and_nothing_is_written() {
    let server = RedisServer::plain();
    let store = connected(&options(&server.url())).await;
    server.cli(&["LPUSH", "weir:{0}:B:1", "mine"]);
    let charges = [charge("A:1", fixed(3), 1, Mode::Spend), charge("B:1", fixed(3), 1, Mode::Spend)];
    let Err(StoreError::Refused(text)) = decide(&store, &charges).await else { panic!("a list is no bucket") };
    assert!(text.starts_with("WRONGTYPE "), "{text}");
    assert_eq!(
        (server.cli(&["EXISTS", "weir:{0}:A:1"]), server.cli(&["LLEN", "weir:{0}:B:1"])),
        ("0".into(), "1".into())
    );
    assert!(store.status().connected);
}

#[tokio::test]
async fn text_that_is_no_bucket_is_a_full_one_and_is_counted() {
    let server = RedisServer::plain();
    let store = connected(&options(&server.url())).await;
    let foreign = ["hello", "", "1 2 3", "1 2 3 4 5", "-1 2 3 4", "1 2 0 4", "1 9007199254740992 3 4", "0x1 2 3 4"];
    for (place, text) in foreign.into_iter().enumerate() {
        server.cli(&["SET", "weir:{0}:A:1", text]);
        let decision = decide(&store, &[charge("A:1", fixed(3), 1, Mode::Spend)]).await.unwrap()[0];
        assert_eq!((decision.outcome, decision.remaining), (Outcome::Allowed, 2), "{text}");
        assert_eq!(store.corrupt_values(), place as u64 + 1, "{text}");
        assert!(server.cli(&["GET", "weir:{0}:A:1"]).ends_with(" 1 1 0"));
    }
}

#[tokio::test]
async fn sixty_four_at_once_from_two_workers_spend_exactly_the_burst() {
    let server = RedisServer::plain();
    let stores = [connected(&options(&server.url())).await, connected(&options(&server.url())).await];
    let allowed = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for task in 0..64 {
        let (store, allowed) = (stores[task % 2].clone(), allowed.clone());
        tasks.spawn(async move {
            let spend = [charge("A:1", fixed(1_000), 1, Mode::Spend)];
            for _ in 0..20 {
                if !decide(&store, &spend).await.unwrap()[0].is_denied() {
                    allowed.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    assert_eq!(allowed.load(Ordering::Relaxed), 1_000);
}

#[tokio::test]
async fn one_bucket_twice_in_a_request_is_a_mistake() {
    let server = RedisServer::plain();
    let store = connected(&options(&server.url())).await;
    let twice = [charge("A:1", fixed(3), 1, Mode::Spend), charge("A:1", fixed(3), 1, Mode::Check)];
    assert_eq!(decide(&store, &twice).await, Err(StoreError::Duplicate));
}

#[test]
fn the_script_runs_by_hand() {
    let server = RedisServer::plain();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/lua/gcra.lua");
    let eval = |arguments: &str| {
        let arguments: Vec<&str> = ["--eval", script].into_iter().chain(arguments.split(' ')).collect();
        server.cli(&arguments).replace('\n', " ")
    };
    // A microsecond after 1 s, 1 of 2 tokens is left, which is full again a second after it was spent.
    assert_eq!(eval("k , 1000001 0 2 1000000 1 1 spend"), "0 0 1 0 1000000");
    assert_eq!(eval("k j , 1500001 0 2 1000000 1 2 check 2 1000000 1 1 spend"), "0 1 1 500000 500000 2 2 0 0");
    assert_eq!(server.cli(&["GET", "k"]), "1000001 1000000 1000000 1");
    // Several requests: one argument each. The last finds what the first has left; the second is denied and changes nothing.
    let several = ["a", "a", "b", "a", ",", "0", "0", "5 1 1 2 spend", "5 1 1 2 spend 1 1 1 2 spend", "5 1 1 3 spend"];
    let several = server.cli(&[&["--eval", script][..], &several].concat()).replace('\n', " ");
    assert_eq!(several, "0 0 3 0 2 2 3 0 2 1 1 -1 0 0 0 3 5");
    // A bucket that is none fails its request, in place of that request's integers.
    server.cli(&["LPUSH", "l", "mine"]);
    let failing = ["l", "c", ",", "0", "0", "1 1 1 1 spend", "1 1 1 1 spend"];
    let failing = server.cli(&[&["--eval", script][..], &failing].concat());
    assert!(failing.contains("WRONGTYPE") && failing.ends_with("0\n0\n1\n1"), "{failing}");
    assert!(eval("k , 0").starts_with("ERR usage: KEY [KEY ...] , NOW EFFECTIVE_FROM"));
    assert!(eval("k , 0 0 2 1 1 1 take").starts_with("ERR unknown mode take"));
}
