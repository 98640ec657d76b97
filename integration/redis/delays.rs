//! Delays: memory and Redis book the same places, and bookings never exceed the rate.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRunner};
use tokio::runtime::Runtime;
use weir::engine::algorithms::algorithm::Aligned;
use weir::engine::algorithms::calendar::{Calendar, Unit};
use weir::engine::algorithms::charge::{Bucket, Charge, Input, Mode};
use weir::engine::algorithms::decision::{Decision, Decisions};
use weir::engine::algorithms::delay::Delay;
use weir::engine::algorithms::micros::Micros;
use weir::engine::algorithms::numbers::Numbers;
use weir::store::Batch;
use weir::store::memory::{DEFAULT_MAX_KEYS, MemoryStore};
use weir::store::redis::RedisStore;

use super::{charge, on_set_clock};
use crate::support::redis::RedisServer;

const TRACES: u32 = 500;

/// An instant in 2025, which is the end of a month in UTC.
const START: u64 = 1_761_955_200_000_000;

const SECOND: u64 = 1_000_000_000;

/// A charge of one of a few buckets after some microseconds.
#[derive(Clone, Debug)]
struct Step {
    after: u64,
    asks: Vec<(u8, u64, Mode)>,
    /// The rules take effect again.
    reloads: bool,
    patience: u64,
}

#[derive(Clone, Debug)]
struct Trace {
    numbers: Vec<Numbers>,
    delay: u64,
    steps: Vec<Step>,
}

fn numbers() -> impl Strategy<Value = Numbers> {
    let even = (1..6_u64, 1..6_u64).prop_map(|(burst, count)| Numbers::new(burst, count, SECOND).unwrap());
    let windows = (1..6_u64, 1..6_u64, any::<bool>()).prop_map(|(burst, count, by_clock)| {
        let aligned = if by_clock { Aligned::Clock } else { Aligned::First };
        Numbers::fixed_window(burst, count, SECOND, aligned).unwrap()
    });
    let months = (1..4_u64, 1..4_u64).prop_map(|(burst, count)| {
        Numbers::calendar_window(burst, count, Calendar::find(Unit::Month(1), "UTC").unwrap()).unwrap()
    });
    prop_oneof![4 => even, 4 => windows, 1 => months]
}

fn step() -> impl Strategy<Value = Step> {
    let mode = prop_oneof![
        20 => Just(Mode::Spend),
        1 => Just(Mode::Check),
        1 => Just(Mode::SpendOnly),
        1 => Just(Mode::SpendUpTo),
        1 => Just(Mode::Refund),
    ];
    let ask = (0..2_u8, 0..4_u64, mode);
    let asks = proptest::collection::vec(ask, 1..3).prop_map(|mut asks| {
        asks.sort_by_key(|(bucket, ..)| *bucket);
        asks.dedup_by_key(|(bucket, ..)| *bucket);
        asks
    });
    let after = prop_oneof![4 => Just(0), 3 => 0..300_000_u64, 1 => 0..2_000_000_u64];
    let patience = prop_oneof![6 => Just(u64::MAX), 1 => 0..2_000_000_u64];
    (after, asks, prop::bool::weighted(0.1), patience).prop_map(|(after, asks, reloads, patience)| Step {
        after,
        asks,
        reloads,
        patience,
    })
}

fn traces() -> impl Strategy<Value = Trace> {
    let steps = proptest::collection::vec(step(), 1..24);
    (proptest::collection::vec(numbers(), 2), 1_000..3_000_000_u64, steps).prop_map(|(numbers, delay, steps)| Trace {
        numbers,
        delay,
        steps,
    })
}

fn charges(trace: &Trace, step: &Step, number: u64) -> Vec<Charge> {
    let charge = |(bucket, cost, mode): &(u8, u64, Mode)| {
        let numbers = &trace.numbers[usize::from(*bucket)];
        let delay = Delay { most: Micros(trace.delay), patience: Micros(trace.delay.min(step.patience)) };
        let charge = charge(&format!("{number}:{bucket}"), numbers, *cost, *mode);
        // Pseudo-random, as the store expects of fingerprints.
        let fingerprint = charge.bucket.fingerprint.wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835);
        let bucket = Bucket { fingerprint, ..charge.bucket };
        Charge { bucket, input: Some(Box::new(Input::Delay(delay))), ..charge }
    };
    step.asks.iter().map(charge).collect()
}

/// Passes of one bucket: the time and the tokens.
#[derive(Default)]
struct Passes(Vec<(u64, u64)>);

impl Passes {
    /// Checks that no span of time has more than the burst and what comes back within it.
    fn check(&self, numbers: &Numbers) -> Result<(), TestCaseError> {
        let Some(period) = numbers.windows().map_or(Some(numbers.period() / 1_000), |_| None) else { return Ok(()) };
        for (first, (from, _)) in self.0.iter().enumerate() {
            let mut tokens = 0;
            for (at, cost) in &self.0[first..] {
                tokens += cost;
                // A wait is rounded up to a microsecond, so a span may be one too short.
                let back = (u128::from(at - from) + 1) * u128::from(numbers.count()) / u128::from(period) + 1;
                let most = u128::from(numbers.burst()) + back;
                prop_assert!(u128::from(tokens) <= most, "{tokens} tokens of {numbers} in {} us", at - from);
            }
        }
        Ok(())
    }

    /// Checks that no window of the clock has more than the burst.
    fn check_windows(&self, numbers: &Numbers) -> Result<(), TestCaseError> {
        if !numbers.to_string().contains("clock") {
            return Ok(());
        }
        let mut windows = std::collections::BTreeMap::<u64, u64>::new();
        for (at, cost) in &self.0 {
            *windows.entry(at / 1_000_000).or_default() += cost;
        }
        prop_assert!(windows.values().all(|tokens| *tokens <= numbers.burst()), "{windows:?} of {numbers}");
        Ok(())
    }
}

struct Stores {
    runtime: Runtime,
    redis: Arc<RedisStore>,
    time: Arc<AtomicU64>,
    memory: MemoryStore,
    traces: std::cell::Cell<u64>,
    delayed: std::cell::Cell<u64>,
}

impl Stores {
    fn new(server: &RedisServer) -> Self {
        let (runtime, redis, time) = on_set_clock(server);
        let memory = MemoryStore::new(DEFAULT_MAX_KEYS);
        Self { runtime, redis, time, memory, traces: 0.into(), delayed: 0.into() }
    }

    fn play(&self, trace: &Trace) -> Result<(), TestCaseError> {
        let number = self.traces.replace(self.traces.get() + 1);
        let (mut now, mut effective_from) = (START - 1_500_000, 0);
        let mut passes: [Passes; 2] = std::array::from_fn(|_| Passes::default());
        let mut last = [0; 2];
        let has_refunds = trace.steps.iter().any(|step| step.asks.iter().any(|(.., mode)| *mode == Mode::Refund));
        for step in &trace.steps {
            now += step.after;
            effective_from = if step.reloads { now } else { effective_from };
            let charges = charges(trace, step, number);
            let batch = Batch { charges: &charges, effective_from: Micros(effective_from), now: Micros(now) };
            self.time.store(now, Ordering::Relaxed);
            let memory = self.memory.decide(&batch).unwrap();
            let redis = self.runtime.block_on(self.redis.decide(&batch));
            prop_assert_eq!(&redis, &Ok(memory.clone()), "Redis and memory, {:?}", step);
            prop_assert!(memory.iter().all(|decision| decision.delay().0 <= trace.delay.min(step.patience)));
            if memory.iter().any(Decision::is_denied) {
                prop_assert!(memory.iter().all(|decision| decision.delay == 0), "a denied request does not wait");
                continue;
            }
            self.note(step, now, &memory, &mut passes, &mut last, has_refunds)?;
        }
        for (passes, numbers) in passes.iter().zip(&trace.numbers).filter(|_| !has_refunds) {
            passes.check(numbers)?;
            passes.check_windows(numbers)?;
        }
        Ok(())
    }

    /// Notes what passes, and checks the order.
    fn note(
        &self,
        step: &Step,
        now: u64,
        decisions: &Decisions,
        passes: &mut [Passes; 2],
        last: &mut [u64; 2],
        has_refunds: bool,
    ) -> Result<(), TestCaseError> {
        for ((bucket, cost, mode), decision) in step.asks.iter().zip(decisions.iter()) {
            let bucket = usize::from(*bucket);
            let taken = match mode {
                Mode::Spend | Mode::SpendOnly
                    if decision.outcome == weir::engine::algorithms::decision::Outcome::Allowed =>
                {
                    *cost
                }
                _ => 0,
            };
            self.delayed.set(self.delayed.get() + u64::from(decision.delay > 0));
            if taken > 0 {
                let at = now + decision.delay().0;
                prop_assert!(has_refunds || at >= last[bucket], "nobody overtakes: {at} before {}", last[bucket]);
                last[bucket] = at;
                passes[bucket].0.push((at, taken));
            }
        }
        Ok(())
    }
}

#[test]
fn memory_and_redis_book_the_same_places_within_the_rate() {
    let server = RedisServer::plain();
    let stores = Stores::new(&server);
    let config =
        Config { cases: TRACES, rng_algorithm: RngAlgorithm::XorShift, failure_persistence: None, ..Config::default() };
    TestRunner::new(config).run(&traces(), |trace| stores.play(&trace)).unwrap();
    assert!(stores.delayed.get() > u64::from(TRACES), "{} charges were delayed", stores.delayed.get());
    assert_eq!(stores.redis.health().corrupt_values, 0);
}
