//! Random limits, charges and times for all algorithms in memory: memory, the scripts and a naive reference agree on
//! every decision.

mod elevated;
mod holds;
mod lease_users;
mod leases;
mod pictures;
mod reference;
mod traces;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use holds::{HeldTrace, held_traces};
use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence, RngAlgorithm, TestCaseError, TestRunner};
use reference::Reference;
use tokio::runtime::Runtime;
use traces::{Request, Trace};
use weir::engine::algorithms::decision::{Decision, Decisions, Detail, Outcome};
use weir::engine::algorithms::micros::Micros;
use weir::store::memory::{DEFAULT_MAX_KEYS, MemoryStore};
use weir::store::redis::RedisStore;
use weir::store::{Batch, StoreError};

use super::on_set_clock;
use crate::support::redis::RedisServer;

const TRACES: u32 = 6_000;

/// The file of failed seeds, which every run tries first.
const FAILURES: &str = "proptest-regressions/redis/model.txt";

/// All implementations.
struct Stores {
    runtime: Runtime,
    redis: Arc<RedisStore>,
    /// The clock for Redis' decisions.
    time: Arc<AtomicU64>,
    memory: MemoryStore,
    /// Traces begun, their requests, traces that ended early, and charges that switched elevated numbers on.
    traces: Cell<u64>,
    requests: Cell<u64>,
    ended: Cell<u64>,
    raised: Cell<usize>,
}

impl Stores {
    fn new(server: &RedisServer) -> Self {
        let (runtime, redis, time) = on_set_clock(server);
        let ([traces, requests, ended], raised) = ([0; 3].map(Cell::new), Cell::new(0));
        Self { runtime, redis, time, memory: MemoryStore::new(DEFAULT_MAX_KEYS), traces, requests, ended, raised }
    }

    /// Plays a trace.
    fn play(&self, trace: &Trace) -> Result<(), TestCaseError> {
        let number = self.traces.replace(self.traces.get() + 1);
        let requests = trace.requests(number);
        self.requests.set(self.requests.get() + requests.len() as u64);
        self.compare(&requests)
    }

    /// Plays requests on each implementation and compares.
    fn compare(&self, requests: &[Request]) -> Result<(), TestCaseError> {
        let from_redis = self.runtime.block_on(self.ask_redis(requests));
        let mut reference = Reference::default();
        for (request, from_redis) in requests.iter().zip(from_redis) {
            let Request { charges, effective_from, now } = request;
            if is_beyond_calendar(&from_redis) {
                self.ended.set(self.ended.get() + 1);
                return Ok(());
            }
            let batch = Batch { charges, effective_from: Micros(*effective_from), now: Micros(*now) };
            let from_memory = self.memory.decide(&batch);
            let claimed: Vec<Decision> = from_memory.iter().flat_map(|decisions| decisions.iter()).copied().collect();
            let expected = reference.decide(charges, *effective_from, *now, &claimed);
            let raised =
                |(_, detail): &&(usize, Detail)| detail.elevation().is_some_and(|elevation| elevation.triggered);
            self.raised.set(self.raised.get() + expected.details.iter().filter(raised).count());
            prop_assert_eq!(&from_memory, &Ok(expected), "memory and the reference, {:?}", request);
            prop_assert_eq!(&from_redis, &from_memory, "Redis and memory, {:?}", request);
        }
        Ok(())
    }

    /// Plays a trace with reservations. Returns how many charges were part of any.
    fn play_held(&self, trace: &HeldTrace) -> Result<usize, TestCaseError> {
        let number = self.traces.replace(self.traces.get() + 1);
        let (requests, held) = trace.requests(number);
        self.compare(&requests)?;
        Ok(held)
    }

    /// Plays requests of one charge each. Returns the decisions of both stores, which must be the same.
    fn agreed(&self, requests: &[Request]) -> Vec<Decision> {
        let from_redis = self.runtime.block_on(self.ask_redis(requests));
        let decide = |Request { charges, effective_from, now }: &Request| {
            let batch = Batch { charges, effective_from: Micros(*effective_from), now: Micros(*now) };
            self.memory.decide(&batch)
        };
        let from_memory: Vec<_> = requests.iter().map(decide).collect();
        assert_eq!(from_redis, from_memory);
        from_memory.into_iter().map(|decisions| decisions.unwrap()[0]).collect()
    }

    /// Asks Redis in order. Requests of one instant under the same rules share a call; others wait for its answers, as those of further
    /// calls would be decided in turn.
    async fn ask_redis(&self, requests: &[Request]) -> Vec<Result<Decisions, StoreError>> {
        let mut answers = Vec::with_capacity(requests.len());
        for shared in requests.chunk_by(|one, next| (one.effective_from, one.now) == (next.effective_from, next.now)) {
            answers.extend(self.ask_redis_at_once(shared).await);
        }
        answers
    }

    async fn ask_redis_at_once(&self, requests: &[Request]) -> Vec<Result<Decisions, StoreError>> {
        // The runtime starts tasks in the order of their spawning, and the store reads the clock before it waits.
        let asked: Vec<_> = requests
            .iter()
            .cloned()
            .map(|Request { charges, effective_from, now }| {
                let (redis, time) = (self.redis.clone(), self.time.clone());
                tokio::spawn(async move {
                    time.store(now, Ordering::Relaxed);
                    let (effective_from, now) = (Micros(effective_from), Micros(now));
                    redis.decide(&Batch { charges: &charges, effective_from, now }).await
                })
            })
            .collect();
        let mut answers = Vec::with_capacity(asked.len());
        for answer in asked {
            answers.push(answer.await.unwrap());
        }
        answers
    }
}

/// Returns whether a request left its calendar: its clock has stepped back by more than a window behind a bucket's
/// date. Memory keeps that bucket, so the stores differ from there on.
fn is_beyond_calendar(answer: &Result<Decisions, StoreError>) -> bool {
    matches!(answer, Err(StoreError::Failed(text)) if text.contains("the clock is not within the windows of"))
}

#[test]
fn memory_and_redis_and_a_naive_reference_agree_on_reservations() {
    let server = RedisServer::plain();
    let stores = Stores::new(&server);
    let config = Config {
        cases: TRACES,
        rng_algorithm: RngAlgorithm::XorShift,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct("proptest-regressions/redis/holds.txt"))),
        ..Config::default()
    };
    let held = Cell::new(0);
    let play = |trace: HeldTrace| {
        held.set(held.get() + stores.play_held(&trace)?);
        Ok(())
    };
    TestRunner::new(config).run(&held_traces(), play).unwrap();
    assert!(held.get() > TRACES as usize, "{} charges were part of reservations", held.get());
    assert_eq!(stores.redis.health().corrupt_values, 0);
}

/// A bucket has at most 1,000 holds. One that has ended makes room for another.
#[test]
fn reservations_of_a_bucket_are_bounded() {
    let server = RedisServer::plain();
    let stores = Stores::new(&server);
    let from_memory = stores.agreed(&holds::many_reservations());
    let is_denied = |place: &usize| from_memory[*place].outcome == Outcome::Denied;
    let denied: Vec<usize> = (0..from_memory.len()).filter(is_denied).collect();
    assert_eq!(denied, [1_000, 1_002]);
}

/// The burst is lowered while more than that is used. The end of a hold forgets none of it, and what is given back is the excess first.
#[test]
fn a_hold_ends_beside_what_a_lowered_limit_has_in_excess() {
    let server = RedisServer::plain();
    let decisions = Stores::new(&server).agreed(&holds::under_lowered_numbers());
    let told: Vec<_> = decisions.iter().map(|decision| (decision.outcome, decision.remaining)).collect();
    let allowed = [6, 0, 0, 1].map(|remaining| (Outcome::Allowed, remaining));
    assert_eq!(told, allowed);
}

#[test]
fn memory_and_redis_and_a_naive_reference_agree_on_every_decision() {
    let server = RedisServer::plain();
    let stores = Stores::new(&server);
    let config = Config {
        cases: TRACES,
        // Without optimisation the default takes as long as everything else: each part of a trace has its own
        // generator.
        rng_algorithm: RngAlgorithm::XorShift,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(FAILURES))),
        ..Config::default()
    };
    TestRunner::new(config).run(&traces::traces(), |trace| stores.play(&trace)).unwrap();
    let (traces, requests, ended) = (stores.traces.get(), stores.requests.get(), stores.ended.get());
    assert!(ended * 5 < traces, "{ended} of {traces} traces ended early");
    assert!(
        stores.raised.get() as u64 * 10 > traces,
        "elevated numbers were switched on {} times",
        stores.raised.get()
    );
    assert_eq!((stores.redis.health().corrupt_values, server.calls("eval")), (0, 1));
    let calls = server.calls("evalsha");
    assert!(calls * 10 < requests * 9, "requests shared calls: {calls} for {requests}");
}
