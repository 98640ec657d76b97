//! Concurrent requests share a call and nothing else.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use weir::engine::algorithms::charge::{Charge, Mode};
use weir::engine::algorithms::decision::Decisions;
use weir::engine::algorithms::micros::Micros;
use weir::engine::algorithms::numbers::Numbers;
use weir::engine::algorithms::tag::Tag;
use weir::store::redis::{RedisOptions, RedisStore};
use weir::store::{Batch, StoreError};

use super::{charge, connected, decide, fixed, hurried, options, resumes, spend};
use crate::support::cluster::RedisCluster;
use crate::support::injector::{Injector, Trouble};
use crate::support::redis::{RedisConfig, RedisServer};

/// The most charges in one call.
const BOUND: u64 = 128;

/// Spends 1 of a bucket of `burst`.
fn one(key: &str, burst: u64) -> Charge {
    charge(key, fixed(burst), 1, Mode::Spend)
}

/// Asks each request in its own task and returns the answers in order.
async fn together(store: &Arc<RedisStore>, requests: Vec<Vec<Charge>>) -> Vec<Result<Decisions, StoreError>> {
    let ask = |charges: Vec<Charge>| {
        let store = store.clone();
        tokio::spawn(async move { decide(&store, &charges).await })
    };
    let tasks: Vec<_> = requests.into_iter().map(ask).collect();
    let mut answers = Vec::new();
    for task in tasks {
        answers.push(task.await.unwrap());
    }
    answers
}

/// What remains after each request, by its first charge; -1 for a denial.
fn remaining(answers: &[Result<Decisions, StoreError>]) -> Vec<i64> {
    let first = |answer: &Result<Decisions, StoreError>| {
        let decision = answer.as_ref().unwrap()[0];
        if decision.is_denied() { -1 } else { i64::try_from(decision.remaining).unwrap() }
    };
    answers.iter().map(first).collect()
}

#[tokio::test]
async fn those_of_one_turn_are_decided_in_the_order_of_asking_in_one_call_and_written_once() {
    let server = RedisServer::plain();
    let store = connected(&options(&server.url())).await;
    spend(&store).await.unwrap();
    server.cli(&["CONFIG", "RESETSTAT"]);
    let requests = vec![
        vec![one("H:1", 3)],
        vec![one("H:1", 3), one("I:1", 5)],
        vec![charge("H:1", fixed(3), 2, Mode::Spend), one("I:1", 5)],
        vec![one("I:1", 5)],
        vec![charge("H:1", fixed(3), 0, Mode::Check)],
        vec![charge("H:1", fixed(3), 1, Mode::Refund)],
    ];
    let answers = together(&store, requests).await;
    assert_eq!(remaining(&answers), [2, 1, -1, 3, 1, 2]);
    assert_eq!((server.calls("evalsha"), server.calls("eval")), (1, 0));
    assert_eq!((server.calls("time"), server.calls("get"), server.calls("set")), (1, 2, 2));
}

#[tokio::test]
async fn those_that_are_asked_in_turn_are_one_call_and_find_what_those_before_have_left() {
    let server = RedisServer::plain();
    let store = connected(&hurried(&server.url())).await;
    decide(&store, &[charge("H:1", fixed(10), 8, Mode::Spend)]).await.unwrap();
    server.cli(&["CONFIG", "RESETSTAT"]);
    let log = Numbers::sliding_log(10, 1_000_000_000_000).unwrap();
    let each = |mode, cost| [charge("H:1", fixed(10), cost, mode), charge("H:1#log", &log, cost, mode)];
    let steps = [each(Mode::Reset, 0), each(Mode::SpendUpTo, 6), each(Mode::Check, 0), each(Mode::Check, 5)];
    let batches: Vec<_> =
        steps.iter().map(|charges| Batch { charges, effective_from: Micros(0), now: Micros(0) }).collect();
    let decided = store.decide_in_turn(&batches).await.unwrap();
    assert_eq!(decided.iter().map(|it| it.remaining).collect::<Vec<_>>(), [10, 10, 4, 4, 4, 4, 4, 4]);
    assert!(decided[6].is_denied() && decided[7].retry_after.is_some_and(|wait| wait.0 > 900_000_000));
    assert_eq!((server.calls("evalsha"), server.calls("eval")), (1, 0));
    let twice = [charge("H:1", fixed(10), 1, Mode::Spend), charge("H:1", fixed(10), 1, Mode::Spend)];
    let wrong = [Batch { charges: &twice, effective_from: Micros(0), now: Micros(0) }];
    assert_eq!(store.decide_in_turn(&wrong).await, Err(StoreError::Duplicate));
    server.freeze();
    assert!(matches!(store.decide_in_turn(&batches).await, Err(StoreError::Late(_))));
    server.thaw();
}

#[tokio::test]
async fn sixty_four_at_once_spend_exactly_the_burst_in_a_call_each_turn() {
    let server = RedisServer::plain();
    let store = connected(&options(&server.url())).await;
    spend(&store).await.unwrap();
    server.cli(&["CONFIG", "RESETSTAT"]);
    let mut allowed = 0;
    for _ in 0..20 {
        let answers = together(&store, vec![vec![one("H:1", 1_000)]; 64]).await;
        allowed += answers.iter().filter(|answer| !answer.as_ref().unwrap()[0].is_denied()).count();
    }
    assert_eq!((allowed, server.calls("evalsha")), (1_000, 20));
}

/// Has one id ask `flood` times, and then 40 others, while `servers` are frozen; all charge one bucket beside, at `tags[1]`. Returns
/// how many had charged it when each of the others had, and which of the flood's requests charged it, in the order of their charges.
async fn flooded(
    store: &Arc<RedisStore>,
    servers: &[RedisServer],
    tags: [u8; 2],
    flood: usize,
) -> (Vec<u64>, Vec<usize>) {
    let request = |id: &str| {
        let mut charges = vec![one(&format!("Id:{id}"), 100_000), one("Shared:1", 100_000)];
        for (charge, tag) in charges.iter_mut().zip(tags) {
            charge.bucket.tag = Tag::Fixed(tag);
        }
        charges
    };
    decide(store, &request("0")).await.unwrap();
    servers.iter().for_each(RedisServer::freeze);
    let others = (0..40).map(|id| request(&format!("other{id}")));
    let requests = std::iter::repeat_with(|| request("flood")).take(flood).chain(others).collect();
    let asking = together(store, requests);
    let thawing = async {
        // All have asked before this is woken up.
        tokio::task::yield_now().await;
        servers.iter().for_each(RedisServer::thaw);
    };
    let (answers, ()) = tokio::join!(asking, thawing);
    let place = |answer: &Result<Decisions, StoreError>| Some(99_999 - answer.as_ref().ok()?[1].remaining);
    let others = answers[flood..].iter().map(|answer| place(answer).expect("it is answered")).collect();
    let places = answers[..flood].iter().enumerate();
    let mut of_flood: Vec<(u64, usize)> = places.filter_map(|(asked, answer)| Some((place(answer)?, asked))).collect();
    of_flood.sort_unstable();
    (others, of_flood.into_iter().map(|(_, asked)| asked).collect())
}

/// The round trip is more than half of the timeout: who waited for a whole one would be too late after its own.
#[tokio::test]
async fn a_flood_of_one_id_costs_no_other_a_round_trip() {
    let server = RedisServer::plain();
    let injector = Injector::to(&server.address());
    let url = format!("redis://{}", injector.address);
    injector.set(Trouble::Delay(Duration::from_millis(220)));
    let store = connected(&RedisOptions { timeout: Duration::from_millis(420), ..options(&url) }).await;
    let flood = std::iter::repeat_n(vec![one("F:1", 1_000)], 300);
    let answers = together(&store, flood.chain((0..40).map(|id| vec![one(&format!("O:{id}"), 5)])).collect()).await;
    assert!(answers[300..].iter().all(Result::is_ok), "{:?}", &answers[300..]);
}

/// Only the way makes a server far: one that is near and slow gets no further calls, so the requests that wait are not charged.
#[tokio::test]
async fn a_server_that_is_near_and_silent_gets_no_further_calls() {
    let server = RedisServer::plain();
    let store = connected(&RedisOptions { timeout: Duration::from_millis(400), ..options(&server.url()) }).await;
    spend(&store).await.unwrap();
    server.freeze();
    let sent = (0..2 * BOUND).map(|id| vec![one(&format!("S:{id}"), 5)]);
    let waiting = || (0..40).map(|id| vec![one(&format!("W:{id}"), 5)]);
    let answers = together(&store, sent.chain(waiting()).collect()).await;
    assert!(answers.iter().all(Result::is_err), "{answers:?}");
    server.thaw();
    resumes(&store).await;
    assert_eq!(remaining(&together(&store, waiting().collect()).await), [4; 40]);
}

#[tokio::test]
async fn a_flood_of_one_id_delays_no_other() {
    let server = RedisServer::plain();
    let store = connected(&options(&server.url())).await;
    let (others, flood) = flooded(&store, std::slice::from_ref(&server), [0, 0], 2_000).await;
    // Two calls of 64 requests are on their way when the others ask. Then each of them has its turn before the flood has a second.
    assert!(others.iter().all(|place| (129..=169).contains(place)), "{others:?}");
    assert!(others.is_sorted(), "{others:?}");
    assert!(flood.len() == 2_000 && flood.is_sorted(), "{flood:?}");
}

#[tokio::test]
async fn a_flood_of_one_id_delays_no_other_at_a_bucket_of_all_in_a_cluster() {
    let cluster = RedisCluster::start(3, 0);
    let store = connected(&options(&cluster.url())).await;
    let (others, flood) = flooded(&store, &cluster.nodes, [0, 31], 6_000).await;
    // 16 calls of 128 requests are on their way when the others ask, and as many may be again when they charge.
    assert!(others.iter().all(|place| *place <= 2 * 2_048 + 80), "{others:?}");
    assert_eq!(flood.len(), 6_000);
}

#[tokio::test]
async fn a_line_holds_a_part_of_the_queue() {
    let server = RedisServer::plain();
    let store = connected(&RedisOptions { queue: 1_000, ..options(&server.url()) }).await;
    spend(&store).await.unwrap();
    server.freeze();
    let of = |id: &str, count| std::iter::repeat_n(vec![one(id, 10_000)], count);
    let requests = of("H:1", 2_000).chain(of("I:1", 10)).collect();
    let (answers, ()) = tokio::join!(together(&store, requests), async {
        tokio::task::yield_now().await;
        server.thaw();
    });
    let passed = answers.iter().map(Result::is_ok);
    let expected = (0..2_010).map(|asked| !(2 * 128 + 250..2_000).contains(&asked));
    assert!(passed.eq(expected), "{} of the flood", answers[..2_000].iter().filter(|answer| answer.is_ok()).count());
    assert!(answers.iter().flat_map(Result::as_ref).all(|decisions| !decisions[0].is_denied()));
    assert_eq!(answers[1_999], Err(StoreError::Busy { sent: false }));
}

#[tokio::test]
async fn a_bucket_that_cannot_be_read_is_the_error_of_those_who_charge_it() {
    let rights = "~weir:{0}:* +evalsha +eval +get +set +del +pttl +pexpire +persist +time +ping";
    let user = format!("user weir on >secret resetchannels -@all {rights}");
    let server = RedisServer::start(&RedisConfig { lines: vec![user], ..RedisConfig::default() });
    let store = connected(&options(&format!("redis://weir:secret@{}", server.address()))).await;
    server.cli(&["CONFIG", "RESETSTAT"]);
    // The user may not call LLEN.
    let log = Numbers::sliding_log(3, 1_000_000_000_000).unwrap();
    let logged = charge("L:1#log", &log, 1, Mode::Spend);
    let requests = vec![
        vec![one("H:1", 3)],
        vec![one("H:1", 3), logged.clone()],
        vec![one("H:1", 3)],
        vec![logged],
        vec![one("H:1", 3), one("I:1", 3)],
    ];
    let mut answers = together(&store, requests).await;
    for place in [3, 1] {
        let Err(StoreError::Failed(text)) = answers.remove(place) else { panic!("the log is not read") };
        assert!(text.contains("can't run this command") || text.contains("ACL failure"), "{text}");
    }
    assert_eq!(remaining(&answers), [2, 1, 0]);
    assert_eq!(server.calls("evalsha"), 1);
    assert!(store.health().connected);
}

#[tokio::test]
async fn a_write_that_fails_is_the_error_of_those_who_charge_the_bucket() {
    let server = RedisServer::plain();
    let store = connected(&options(&server.url())).await;
    decide(&store, &[one("U:1", 1)]).await.unwrap();
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let requests =
        vec![vec![one("H:1", 1)], vec![one("U:1", 1)], vec![one("H:1", 1)], vec![one("U:1", 1), one("I:1", 1)]];
    let answers = together(&store, requests).await;
    let shown = |answer: &Result<Decisions, StoreError>| match answer {
        Ok(decisions) => decisions[0].is_denied().to_string(),
        Err(StoreError::Failed(text)) => text[..3].to_owned(),
        Err(error) => error.to_string(),
    };
    // The second spend of `H:1` saw an empty bucket only because of the first, which was undone.
    assert_eq!(answers.iter().map(shown).collect::<Vec<_>>(), ["OOM", "true", "OOM", "true"]);
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(remaining(&together(&store, vec![vec![one("H:1", 1)], vec![one("I:1", 1)]]).await), [0, 0]);
}

#[tokio::test]
async fn a_call_has_a_bound_of_charges_and_of_bytes_and_one_effective_from() {
    let server = RedisServer::plain();
    let store = connected(&options(&server.url())).await;
    spend(&store).await.unwrap();
    let calls = async |requests: Vec<Vec<Charge>>| {
        server.cli(&["CONFIG", "RESETSTAT"]);
        let count = requests.len();
        let answers = together(&store, requests).await;
        assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), count);
        (answers, server.calls("evalsha"))
    };
    let bound = usize::try_from(BOUND).unwrap();
    let (answers, of_charges) = calls(vec![vec![one("H:1", 1_000)]; 2 * bound + 1]).await;
    assert_eq!(remaining(&answers), (0..=2 * 128).map(|spent| 999 - spent).collect::<Vec<_>>());
    assert_eq!(of_charges, 3);
    // A request alone may have more charges than fit with others.
    let wide = |name: &str| (0..=BOUND).map(|id| one(&format!("{name}:{id}"), 3)).collect::<Vec<_>>();
    assert_eq!(calls(vec![vec![one("H:1", 1_000)], wide("W"), vec![one("H:1", 1_000)]]).await.1, 3);
    let long = |id: usize| vec![one(&format!("N:{id}{}", "n".repeat(1_000)), 3)];
    let (_, of_bytes) = calls((0..bound).map(long).collect()).await;
    assert!((4..=6).contains(&of_bytes), "{of_bytes} calls for 128 KiB of keys");

    server.cli(&["CONFIG", "RESETSTAT"]);
    let mut reloading = JoinSet::new();
    for request in 0..6 {
        let store = store.clone();
        reloading.spawn(async move {
            let charges = [one("H:1", 1_000)];
            let batch = Batch { charges: &charges, effective_from: Micros(request / 3), now: Micros(0) };
            store.decide(&batch).await.unwrap()
        });
    }
    reloading.join_all().await;
    assert_eq!(server.calls("evalsha"), 2);
}

#[tokio::test]
async fn a_frozen_server_makes_all_of_a_call_late_once() {
    let server = RedisServer::plain();
    let store = connected(&hurried(&server.url())).await;
    resumes(&store).await;
    server.freeze();
    let answers = together(&store, vec![vec![one("H:1", 1_000)]; 10]).await;
    assert!(answers.iter().all(|answer| matches!(answer, Err(StoreError::Late(_)))), "{answers:?}");
    // Ten requests in one call. The owner's probe may have given the connection up.
    assert!(!store.health().breaker_open);
    server.thaw();
    resumes(&store).await;
    // The server may have run the call after it thawed; the call is not repeated.
    let left = decide(&store, &[charge("H:1", fixed(1_000), 0, Mode::Check)]).await.unwrap()[0].remaining;
    assert!([990, 1_000].contains(&left), "{left}");
}

#[tokio::test]
async fn a_request_that_is_given_up_before_it_is_sent_is_not_charged_and_leaves_the_others_their_answers() {
    let server = RedisServer::plain();
    let store = connected(&options(&server.url())).await;
    server.cli(&["CONFIG", "RESETSTAT"]);
    let charges = [one("H:1", 1_000)];
    let mut requests: Vec<_> = (0..4).map(|_| Box::pin(decide(&store, &charges))).collect();
    for request in &mut requests {
        tokio::select! {
            biased;
            answer = request => panic!("{answer:?} before anything was sent"),
            () = std::future::ready(()) => {}
        }
    }
    // It began the call, which is not sent yet: this test has kept the thread.
    drop(requests.remove(0));
    let mut answers = Vec::new();
    for request in requests {
        answers.push(request.await);
    }
    assert_eq!(remaining(&answers), [999, 998, 997]);
    assert_eq!(server.calls("evalsha"), 1);
}
