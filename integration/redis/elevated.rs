//! Elevated numbers are the same arithmetic in the script and in the engine: random traces get the same answers from both
//! stores, with buckets beside them that have none, and with numbers that come and go.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tokio::runtime::Runtime;
use weir::engine::charge::{Bucket, Charge, Decisions, Mode};
use weir::engine::numbers::{EXACT, Micros, Numbers};
use weir::engine::terms::{Elevated, Terms};
use weir::store::memory::{DEFAULT_MAX_KEYS, MemoryStore};
use weir::store::redis::{RedisOptions, RedisStore};
use weir::store::{Batch, Clock, StoreError};

use super::model::traces::{Cost, any_length, even, fixed};
use super::{connected, options};
use crate::support::redis::RedisServer;

/// Buckets of a trace, and sets of numbers they are charged under.
const BUCKETS: u128 = 4;
const NUMBERS: usize = 3;

/// Some instant in 2025.
const START: u64 = 1_760_000_000_000_000;

/// A charge, in terms of the numbers it is made under.
#[derive(Clone, Debug)]
struct Ask {
    bucket: u128,
    numbers: usize,
    cost: Cost,
    mode: Mode,
}

#[derive(Clone, Debug)]
enum Clocked {
    /// This many 64ths of the time in which these numbers fill a bucket, and so many microseconds more or less.
    Share(usize, u64, i64),
    Back(u64),
    To(u64),
}

#[derive(Clone, Debug)]
struct Step {
    clock: Clocked,
    /// Before now, or from an arbitrary instant on.
    effective_from: Result<u64, u64>,
    asks: Vec<Ask>,
}

fn numbers() -> impl Strategy<Value = Numbers> {
    prop_oneof![6 => even(), 1 => fixed()]
}

/// What a bucket is charged under.
type Allowed = (Numbers, Option<Arc<Elevated>>);

/// Numbers, some with others that switch on by themselves: with a higher burst, or with one
/// that is not, as that of a bucket may become when the rules change. They are on for a part of the time that fills a
/// bucket, so that the clock meets their end, or for any.
fn allowed() -> impl Strategy<Value = Allowed> {
    let more = prop_oneof![8 => any_length(6), 1 => any_length(50)];
    let span = prop_oneof![3 => (1..300u64).prop_map(Ok), 1 => any_length(53).prop_map(Err)];
    let activations = prop_oneof![4 => 1..4u64, 1 => any_length(52)];
    let elevated = (numbers(), more, any::<bool>(), span, activations);
    (numbers(), proptest::option::weighted(0.6, elevated)).prop_map(|(base, elevated)| {
        let elevated = elevated.map(|elevated| {
            let (other, more, is_related, span, activations) = elevated;
            let burst = base.burst().saturating_add(more);
            let related = Numbers::new(burst, other.count().max(1), other.period().max(1)).ok().filter(|_| is_related);
            let span = span.map_or_else(|any| any, |share| time_to_fill(&base) / 64 * share).clamp(1, EXACT - 1);
            let activations_per_month = activations.max(1);
            Arc::new(Elevated { numbers: related.unwrap_or(other), span, activations_per_month })
        });
        (base, elevated)
    })
}

/// How long an empty bucket takes to be full, about.
fn time_to_fill(numbers: &Numbers) -> u64 {
    numbers.time_for(numbers.capacity()).map_or(1_000_000, |full| full.0)
}

fn step() -> impl Strategy<Value = Step> {
    let mode = prop_oneof![
        6 => Just(Mode::Spend), 1 => Just(Mode::Check), 2 => Just(Mode::SpendOnly), 1 => Just(Mode::SpendUpTo), 2 => Just(Mode::Refund), 1 => Just(Mode::Reset),
    ];
    let ask = (0..BUCKETS, 0..NUMBERS, Cost::any(), mode).prop_map(|(bucket, numbers, cost, mode)| Ask {
        bucket,
        numbers,
        cost,
        mode,
    });
    let clock = prop_oneof![
        6 => (0..NUMBERS, 0..=70u64, -1..=1i64).prop_map(|(numbers, share, more)| Clocked::Share(numbers, share, more)),
        2 => any_length(40).prop_map(Clocked::Back),
        1 => any_length(53).prop_map(Clocked::To),
    ];
    let effective_from = prop_oneof![4 => any_length(45).prop_map(Ok), 1 => any_length(64).prop_map(Err)];
    (clock, effective_from, vec(ask, 1..4)).prop_map(|(clock, effective_from, asks)| Step {
        clock,
        effective_from,
        asks,
    })
}

impl Clocked {
    fn advance(&self, now: u64, allowed: &[Allowed]) -> u64 {
        let next = match *self {
            Self::Share(place, share, more) => {
                (now + time_to_fill(&allowed[place].0) / 64 * share).saturating_add_signed(more)
            }
            Self::Back(span) => now.saturating_sub(span),
            Self::To(instant) => instant,
        };
        // Elevated numbers that switch on in the last microsecond of the clock would end with it, and be forgotten.
        next.min(EXACT - 2)
    }
}

fn charges(step: &Step, allowed: &[Allowed], trace: u64) -> Vec<Charge> {
    let mut charges: Vec<Charge> = Vec::new();
    for Ask { bucket, numbers: place, cost, mode } in &step.asks {
        // Far apart, so that each bucket has a shard of its own: a sweep would forget a bucket that is full, and after a
        // step back of the clock it would not have been.
        let fingerprint = bucket * (u128::MAX / BUCKETS);
        let (numbers, elevated) = allowed[*place].clone();
        let burst = elevated.as_ref().map_or(0, |elevated| elevated.numbers.burst()).max(numbers.burst());
        let cost = cost.of(burst);
        if charges.iter().all(|charge| charge.bucket.fingerprint != fingerprint) {
            let bucket = Bucket { key: format!("{trace}:{bucket}"), fingerprint };
            let terms = elevated.map(|elevated| Box::new(Terms::Elevated(elevated)));
            charges.push(Charge { terms, ..Charge::new(bucket, numbers, cost, *mode) });
        }
    }
    charges
}

/// Asks for each batch in a task of its own, the earlier ones first, and gives the answers in the same order.
async fn together(redis: &Arc<RedisStore>, batches: &[Batch<'_>]) -> Vec<Result<Decisions, StoreError>> {
    let tasks: Vec<_> = batches
        .iter()
        .map(|batch| {
            let (redis, charges, effective_from, now) =
                (redis.clone(), batch.charges.to_vec(), batch.effective_from, batch.now);
            tokio::spawn(async move { redis.decide(&Batch { charges: &charges, effective_from, now }).await })
        })
        .collect();
    let mut answers = Vec::new();
    for task in tasks {
        answers.push(task.await.unwrap());
    }
    answers
}

/// A Redis, a store on it that runs on the runtime, and the time that this store decides by.
fn clocked() -> (RedisServer, Runtime, Arc<RedisStore>, Arc<AtomicU64>) {
    let server = RedisServer::plain();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let time = Arc::new(AtomicU64::new(START));
    // A machine that has other things to do is no disagreement.
    let timeout = Duration::from_secs(10);
    let redis = RedisOptions { clock: Clock::Set(time.clone()), timeout, ..options(&server.url()) };
    let redis = runtime.block_on(connected(&redis));
    (server, runtime, redis, time)
}

/// Requests that share a call find the buckets as those before them left them, as they would have one after the other.
#[test]
fn random_traces_of_elevated_numbers_get_the_same_answers_from_memory_and_from_redis() {
    let (server, runtime, redis, time) = clocked();
    let (traces, turns) = (Cell::new(0), Cell::new(0));
    let config = Config { cases: 500, failure_persistence: None, ..Config::default() };
    // The clock and the rules stand still within a turn: one step's, and what all steps of the turn ask.
    let turn = (step(), vec(step(), 1..12));
    let trace = (vec(allowed(), NUMBERS), vec(turn, 1..8));
    TestRunner::new(config)
        .run(&trace, |(numbers, trace)| {
            traces.set(traces.get() + 1);
            time.store(START, Ordering::Relaxed);
            let memory = MemoryStore::new(DEFAULT_MAX_KEYS);
            for (first, steps) in &trace {
                let now = first.clock.advance(time.load(Ordering::Relaxed), &numbers);
                time.store(now, Ordering::Relaxed);
                let effective_from = Micros(first.effective_from.map_or_else(|at| at, |ago| now.saturating_sub(ago)));
                let charged: Vec<Vec<Charge>> =
                    steps.iter().map(|step| charges(step, &numbers, traces.get())).collect();
                let batches: Vec<Batch<'_>> =
                    charged.iter().map(|charges| Batch { charges, effective_from, now: Micros(now) }).collect();
                let expected: Vec<_> = batches.iter().map(|batch| memory.decide(batch)).collect();
                let answers = runtime.block_on(together(&redis, &batches));
                turns.set(turns.get() + 1);
                prop_assert_eq!(answers, expected, "at {} from {:?}: {:?}", now, effective_from, charged);
            }
            Ok(())
        })
        .unwrap();
    assert_eq!((redis.corrupt_values(), server.calls("eval")), (0, 1));
    assert_eq!(server.calls("evalsha"), turns.get(), "a turn is one call");
}
