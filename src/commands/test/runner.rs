//! Runs a test: its requests go through the limiter as those of a listener do, with the test's clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::super::store_flags::StoreArgs;
use super::asking::{ask, charges};
use super::buckets::{connected, forget};
use super::comparison::{ComparedRequest, Counts, Difference};
use super::denials_seen::Seen;
use crate::clock::Clock;
use crate::config::rule_tests::{RuleTest, Step};
use crate::engine::algorithms::charge::Charge;
use crate::engine::algorithms::micros::Micros;
use crate::engine::limit::rules::Rules;
use crate::limiter::{HeldSlots, Limiter, Shared};
use crate::store::memory::MemoryStore;
use crate::store::{Store, StorePlan};
use crate::telemetry::metrics::Metrics;

/// The buckets of a test in memory.
const MAX_KEYS: usize = 100_000;

/// The store that holds the buckets of tests.
pub(super) struct StoreSource<'a> {
    remote: Option<(&'a StoreArgs, Duration)>,
}

/// Runs the tests of a file.
pub(super) struct Runner<'a> {
    shared: Arc<Shared>,
    stores: &'a StoreSource<'a>,
    clock: Arc<AtomicU64>,
    /// Keeps the buckets of tests apart, and those of other runs on the same Redis.
    played: u64,
    needs_redis: bool,
    /// By limit, in the order of the rules.
    seen: Vec<Seen>,
}

/// The slots of requests in flight, and when these end.
type InFlight = Vec<(Micros, Box<HeldSlots>)>;

impl<'a> StoreSource<'a> {
    pub(super) const fn memory() -> Self {
        Self { remote: None }
    }

    /// Validates the flags without connecting.
    pub(super) fn of(args: &'a StoreArgs, timeout: Duration) -> Result<Self, String> {
        Ok(match args.plan(Clock::machine(), Some(timeout))? {
            StorePlan::Memory(_) => Self::memory(),
            StorePlan::Redis(_) => Self { remote: Some((args, timeout)) },
        })
    }

    /// Opens the store of a test. No other test has its buckets.
    async fn open(&self, clock: &Arc<AtomicU64>, number: u64) -> Result<Store, String> {
        let Some((args, timeout)) = self.remote else {
            return Ok(Store::Memory(Arc::new(MemoryStore::new(MAX_KEYS))));
        };
        let suffix = format!("test-{}-{number}", std::process::id());
        let plan = args.with_prefix(&suffix).plan(Clock::Set(Arc::clone(clock)), Some(timeout))?;
        connected(plan.open()).await
    }
}

impl<'a> Runner<'a> {
    /// `needs_redis`: the rules have limits that do not work in memory.
    pub(super) fn new(rules: Rules, needs_redis: bool, stores: &'a StoreSource<'a>) -> Result<Self, String> {
        let metrics = Metrics::new().map_err(|error| error.to_string())?;
        let seen = vec![Seen::default(); rules.limits().len()];
        let shared = Arc::new(Shared::new(rules, Arc::new(metrics), MemoryStore::new(1)));
        Ok(Self { shared, stores, clock: Arc::default(), played: 0, needs_redis, seen })
    }

    /// The most that the tests so far have seen of each limit, in the order of the rules.
    pub(super) fn seen(&self) -> &[Seen] {
        &self.seen
    }

    /// Runs a test. Returns the first difference, and an error if the store cannot be reached.
    pub(super) async fn play(&mut self, test: &RuleTest) -> Result<Option<Difference>, String> {
        self.played += 1;
        self.shared.forget_blocks();
        let store = self.stores.open(&self.clock, self.played).await?;
        let limiter = Limiter::new(self.shared.clone(), store.clone());
        let mut used = Vec::new();
        let mut in_flight = InFlight::new();
        let mut difference = None;
        for (number, step) in (1..).zip(&test.steps) {
            let found = self.step(&limiter, test, (number, step), &mut in_flight).await;
            if store.is_remote() {
                used.extend(Self::used(&limiter, test, step));
            }
            if let Err(found) = found {
                difference = Some(*found);
                break;
            }
        }
        drop(in_flight);
        limiter.close().await;
        if store.is_remote() {
            forget(&store, used).await;
        }
        Ok(difference)
    }

    async fn step(
        &mut self,
        limiter: &Limiter,
        test: &RuleTest,
        (position, step): (usize, &Step),
        in_flight: &mut InFlight,
    ) -> Result<(), Box<Difference>> {
        let mut counts = Counts::default();
        for number in 0..step.repeat {
            let at = step.at.after(Micros(step.every.0.saturating_mul(number)));
            let now = test.epoch.after(at);
            self.clock.store(now.0, Ordering::Relaxed);
            in_flight.retain(|(ends, _)| *ends > now);
            let mut asked = ask(limiter, &step.subject, now).await;
            // What a response settles, and what a denied request counts, goes to Redis without waiting for it.
            limiter.settled().await;
            if let Some((slots, lasts)) = asked.slots.take() {
                in_flight.push((now.after(lasts), slots));
            }
            counts.add(&asked);
            if let Ok(decided) = &asked.decided {
                Seen::add(&mut self.seen, &decided.verdict);
            }
            let view = limiter.view();
            let place = ComparedRequest { rules: view.rules(), step, position, number, at, now };
            place.compare(&asked, counts, self.needs_redis)?;
        }
        Ok(())
    }

    /// The charges of a step.
    fn used(limiter: &Limiter, test: &RuleTest, step: &Step) -> Vec<Charge> {
        let view = limiter.view();
        let rules: &Rules = view.rules();
        let plan = charges(rules, &step.subject, test.epoch.after(step.at));
        plan.map(|plan| plan.charges.into_vec()).unwrap_or_default()
    }
}
