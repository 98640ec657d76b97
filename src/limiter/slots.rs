//! The slots that requests in flight hold, from the moment they are asked for until they are given back.
//!
//! A slot gets its name before the store is asked for it, and whoever waits for the answer has [`HeldSlots`] already:
//! a request that is dropped in between, because its client has gone, gives back what the store is about to give it. To
//! give back under a name does nothing the second time, so it may be tried again until the lease has ended.
//!
//! Giving back never waits. In memory it is done at once; Redis is asked at once, so that it is told before whatever the
//! same client asks next, and a task looks at the answers. The same task renews the slots of requests that take long.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::Shared;
use crate::engine::algorithms::charge::{Charge, Input, Mode, Slot};
use crate::engine::algorithms::decision::{Decision, Decisions, Outcome};
use crate::engine::algorithms::micros::Micros;
use crate::store::{Batch, Store, StoreAnswer, StoreError};
use crate::telemetry::metrics::Tally;

/// How often the task looks at what is due: a quarter of the shortest lease.
const TICK: Duration = Duration::from_millis(250);

/// Slots that are renewed or given back again at once: eight calls, which Redis answers within some 2 ms, so that they
/// are not late by themselves.
const AT_ONCE: usize = 512;

/// Slots given back whose answer is waited for. Beyond that nobody looks at it, and if it is an error the lease ends it.
const MOST_RETURNS: usize = 16_384;

/// How long the end of a worker waits until its slots are given back.
const LAST_RETURNS: Duration = Duration::from_secs(1);

/// A worker's slots.
pub(super) struct SlotTable {
    shared: Arc<Shared>,
    store: Store,
    /// Tells the names of this worker from those of all others: a random number.
    origin: u64,
    /// Tells the names of this worker apart.
    count: Cell<u64>,
    /// One or a few for each request in flight, and so bounded as those are.
    held: RefCell<HashMap<Key, Lease>>,
    returns: RefCell<VecDeque<Return>>,
    /// The wall clock, and when it said so.
    clock: Cell<(Micros, Instant)>,
    /// The first slot of all wakes the task.
    first: Notify,
    is_closed: Cell<bool>,
    gauge: Tally,
}

/// A slot, and whether it is one of the memory that stands in for the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    slot: Slot,
    is_local: bool,
}

/// A slot that is held, or that is being asked for.
struct Lease {
    /// What renews it.
    charge: Charge,
    effective_from: Micros,
    duration: Duration,
    /// When it was taken or renewed last, by the clock before the store was asked.
    since: Instant,
    renew_at: Instant,
    /// Whether the metric has it: from the store's answer on.
    is_counted: bool,
}

/// A slot that was given back.
struct Return {
    charge: Charge,
    effective_from: Micros,
    asked: StoreAnswer,
    /// When its lease has ended in any case.
    until: Instant,
}

/// The slots of a request in flight. They are given back when this is dropped.
pub struct HeldSlots {
    slots: Rc<SlotTable>,
    keys: SmallVec<[Key; 1]>,
}

impl std::fmt::Debug for HeldSlots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(&self.keys).finish()
    }
}

impl SlotTable {
    pub(super) fn new(shared: Arc<Shared>, store: Store) -> Rc<Self> {
        let gauge = shared.metrics.slots_tally();
        Rc::new(Self {
            shared,
            store,
            origin: rand::random(),
            count: Cell::new(0),
            held: RefCell::default(),
            returns: RefCell::default(),
            clock: Cell::new((Micros(0), Instant::now())),
            first: Notify::new(),
            is_closed: Cell::new(false),
            gauge,
        })
    }

    /// Gives a name to each of these charges that takes a slot; `None` if none does. The store is asked next, at `now`,
    /// which is the wall clock at `start`.
    pub(super) fn name(
        self: &Rc<Self>,
        charges: &mut [Charge],
        effective_from: Micros,
        now: Micros,
        start: Instant,
    ) -> Option<Box<HeldSlots>> {
        let is_taken = |charge: &Charge| matches!(charge.mode, Mode::Spend | Mode::SpendOnly) && charge.cost > 0;
        if !charges.iter().any(|charge| charge.numbers.is_slots() && is_taken(charge)) || self.is_closed.get() {
            return None;
        }
        self.clock.set((now, start));
        let mut slots = Box::new(HeldSlots { slots: self.clone(), keys: SmallVec::new() });
        for charge in charges.iter_mut().filter(|charge| charge.numbers.is_slots() && is_taken(charge)) {
            let count = self.count.get();
            self.count.set(count.wrapping_add(1));
            let slot = Slot(u128::from(self.origin) << 64 | u128::from(count));
            charge.input = Some(Box::new(Input::Slot(slot)));
            slots.hold(Key { slot, is_local: false }, charge, effective_from);
        }
        Some(slots)
    }

    fn now(&self) -> Micros {
        let (now, at) = self.clock.get();
        Micros(now.0.saturating_add(u64::try_from(at.elapsed().as_micros()).unwrap_or(u64::MAX)))
    }

    /// Asks the store that has a slot for what is to be done with it.
    fn ask(&self, is_local: bool, charge: &Charge, effective_from: Micros) -> StoreAnswer {
        let batch = Batch { charges: std::slice::from_ref(charge), effective_from, now: self.now() };
        if is_local {
            return StoreAnswer::Ready(self.shared.local.decide(&batch));
        }
        if Handle::try_current().is_err() {
            // What is left of a worker's tasks is dropped when its runtime has ended, which nobody can ask through.
            return StoreAnswer::Ready(Err(StoreError::Down));
        }
        self.store.ask(&batch)
    }

    /// Gives a slot back; nothing if it was given back already.
    fn give_back(&self, key: Key) {
        let Some(held) = self.held.borrow_mut().remove(&key) else { return };
        let Lease { charge, effective_from, duration, since, is_counted, .. } = held;
        let charge = Charge { mode: Mode::Refund, ..charge };
        let asked = self.ask(key.is_local, &charge, effective_from);
        if is_counted {
            self.gauge.dec();
        }
        let mut returns = self.returns.borrow_mut();
        if !matches!(asked, StoreAnswer::Ready(Ok(_))) && returns.len() < MOST_RETURNS {
            returns.push_back(Return { charge, effective_from, asked, until: since + duration });
        }
    }

    /// The slot is not ours any more, or never was.
    fn forget(&self, key: Key) {
        self.held.borrow_mut().remove(&key);
    }

    /// The store has answered, and the slot may be held.
    fn count(&self, key: Key) {
        if let Some(held) = self.held.borrow_mut().get_mut(&key) {
            held.is_counted = true;
            self.gauge.inc();
        }
    }

    /// Renews slots and looks after those that were given back, for as long as the worker runs.
    pub(super) async fn keep(self: Rc<Self>) {
        loop {
            if self.held.borrow().is_empty() && self.returns.borrow().is_empty() {
                self.first.notified().await;
            }
            sleep(TICK).await;
            self.look_at_returns();
            self.renew().await;
        }
    }

    /// Tries again what has failed.
    fn look_at_returns(&self) {
        let (mut again, now) = (0, Instant::now());
        self.returns.borrow_mut().retain_mut(|given| match given.asked.poll() {
            None => true,
            Some(Ok(_)) => false,
            Some(Err(_)) if now >= given.until => false,
            Some(Err(_)) => {
                if again < AT_ONCE {
                    again += 1;
                    given.asked = self.ask(false, &given.charge, given.effective_from);
                }
                true
            }
        });
    }

    /// Renews the slots for which it is time.
    async fn renew(&self) {
        let soon = Instant::now() + TICK;
        let is_due = |(key, held): (&Key, &Lease)| (held.renew_at <= soon).then_some(*key);
        let due: Vec<Key> = self.held.borrow().iter().filter_map(is_due).collect();
        for keys in due.chunks(AT_ONCE) {
            let since = Instant::now();
            let ask = |key: &Key| {
                let held = self.held.borrow();
                let held = held.get(key)?;
                Some((*key, self.ask(key.is_local, &held.charge, held.effective_from)))
            };
            let asked: Vec<(Key, StoreAnswer)> = keys.iter().filter_map(ask).collect();
            for (key, asked) in asked {
                // Without an answer it is tried again at the next tick.
                let Ok(decisions) = asked.wait().await else { continue };
                if let Some(held) = self.held.borrow_mut().get_mut(&key) {
                    held.renewed(since, decisions.first());
                }
            }
        }
    }

    /// Gives everything back, since whoever holds it is about to be dropped, and waits until the store knows.
    pub(super) async fn close(&self) {
        self.is_closed.set(true);
        let all: Vec<Key> = self.held.borrow().keys().copied().collect();
        let told = async {
            for keys in all.chunks(AT_ONCE) {
                for key in keys {
                    self.give_back(*key);
                }
                self.await_returns().await;
            }
            self.await_returns().await;
        };
        if timeout(LAST_RETURNS, told).await.is_err() {
            tracing::warn!("some slots of requests in flight were not given back; their leases end by themselves");
        }
    }

    async fn await_returns(&self) {
        let returns = std::mem::take(&mut *self.returns.borrow_mut());
        for given in returns {
            if let Err(error) = given.asked.wait().await {
                tracing::debug!("a slot was not given back: {error}");
            }
        }
    }
}

impl Lease {
    /// The store has answered a renewal that was asked for at `since`.
    fn renewed(&mut self, since: Instant, decision: Option<&Decision>) {
        if decision.is_some_and(|decision| decision.outcome == Outcome::Allowed) {
            self.since = since;
        }
        self.renew_at = since + self.duration / 3;
    }
}

impl HeldSlots {
    /// A slot is held from here on, as far as anybody knows.
    fn hold(&mut self, key: Key, charge: &Charge, effective_from: Micros) {
        if !charge.numbers.is_slots() {
            return;
        }
        let (since, duration) = (Instant::now(), Duration::from_micros(charge.numbers.span()));
        let charge = Charge { mode: Mode::SpendOnly, ..charge.clone() };
        let held = Lease { charge, effective_from, duration, since, renew_at: since + duration / 3, is_counted: false };
        let mut all = self.slots.held.borrow_mut();
        if all.is_empty() {
            self.slots.first.notify_one();
        }
        all.insert(key, held);
        self.keys.push(key);
    }

    /// The store has decided; `None` if that leaves no slot.
    pub(super) fn decided(mut self: Box<Self>, charges: &[Charge], decisions: &Decisions) -> Option<Box<Self>> {
        self.keep_only(|slot| taken(charges, decisions).any(|taken| taken == slot));
        (!self.keys.is_empty()).then_some(self)
    }

    /// The store has given no answer. What it was sent may have been taken all the same; nothing else was.
    pub(super) fn unanswered(&mut self, error: &StoreError) {
        self.keep_only(|_| error.is_ambiguous());
    }

    /// The memory that stands in for the store has decided.
    pub(super) fn decided_locally(&mut self, charges: &[Charge], decisions: &Decisions, effective_from: Micros) {
        for slot in taken(charges, decisions) {
            let is_it = |charge: &&Charge| charge.slot() == Some(slot);
            if let Some(charge) = charges.iter().find(is_it) {
                let key = Key { slot, is_local: true };
                self.hold(key, charge, effective_from);
                self.slots.count(key);
            }
        }
    }

    /// The store has answered: these are held, and the others never were.
    fn keep_only(&mut self, is_held: impl Fn(Slot) -> bool) {
        let slots = &self.slots;
        self.keys.retain(|key| {
            let stays = is_held(key.slot);
            if stays {
                slots.count(*key);
            } else {
                slots.forget(*key);
            }
            stays
        });
    }
}

impl Drop for HeldSlots {
    fn drop(&mut self) {
        for key in self.keys.drain(..) {
            self.slots.give_back(key);
        }
    }
}

/// The slots that these charges have taken: none if one of them was denied.
fn taken(charges: &[Charge], decisions: &Decisions) -> impl Iterator<Item = Slot> {
    let is_denied = decisions.iter().any(Decision::is_denied);
    let taken =
        charges.iter().zip(decisions).filter(move |(_, decision)| !is_denied && decision.outcome == Outcome::Allowed);
    taken.filter_map(|(charge, _)| charge.slot())
}

#[cfg(test)]
mod tests {
    use tokio::task::{LocalSet, spawn_local};

    use super::*;
    use crate::engine::algorithms::algorithm::Algorithm;
    use crate::engine::algorithms::numbers::Numbers;
    use crate::engine::rules::allowance::Allowance;
    use crate::engine::rules::fingerprint::Fingerprinter;
    use crate::engine::rules::limit::Limit;
    use crate::engine::rules::request::sample;
    use crate::engine::rules::rule_set::Rules;
    use crate::limiter::{Ask, AskSubject, Limiter, Ruling};
    use crate::message::headers::Headers;
    use crate::store::memory::MemoryStore;
    use crate::telemetry::metrics::{DecisionListener, Metrics};

    /// A limiter that lets one request be in flight.
    fn limiter() -> Rc<Limiter> {
        let windows = [Numbers::concurrency(1, 60_000_000_000).unwrap()].into();
        let allowance = Allowance::Windows(windows);
        let limit = Limit { allowance, by: Vec::new(), algorithm: Algorithm::Concurrency, ..Limit::new("One") };
        let rules = Rules::new(vec![limit], Fingerprinter::new((1, 2)), Micros(0), Vec::new());
        let store = || MemoryStore::new(1_000);
        let shared = Shared::new(rules, Arc::new(Metrics::new().unwrap()), store());
        Rc::new(Limiter::new(Arc::new(shared), Store::Memory(Arc::new(store()))))
    }

    async fn ask(limiter: &Limiter) -> Ruling {
        let headers = Headers::new();
        let request = sample(&headers);
        let ask = Ask::new(AskSubject::Request(&request), DecisionListener::Proxy, Instant::now());
        limiter.decide(Ask { sees_response: true, ..ask }).await.unwrap()
    }

    /// Whether a slot is free, asked as by a listener that does not see requests end.
    async fn is_free(limiter: &Limiter) -> bool {
        let headers = Headers::new();
        let request = sample(&headers);
        let ask = Ask::new(AskSubject::Request(&request), DecisionListener::Check, Instant::now());
        limiter.decide(ask).await.unwrap().verdict.is_allowed()
    }

    #[tokio::test]
    async fn a_slot_is_held_as_long_as_somebody_keeps_it() {
        let tasks = async {
            let limiter = limiter();
            let first = ask(&limiter).await;
            assert!(first.verdict.is_allowed() && first.slots.is_some());
            let second = ask(&limiter).await;
            assert!(!second.verdict.is_allowed() && second.slots.is_none() && !is_free(&limiter).await);
            drop(first);
            assert!(is_free(&limiter).await && is_free(&limiter).await, "who asks so takes none");
        };
        LocalSet::new().run_until(tasks).await;
    }

    #[tokio::test]
    async fn a_task_that_panics_gives_its_slot_back() {
        let tasks = async {
            let limiter = limiter();
            let inner = limiter.clone();
            let panicked = spawn_local(async move {
                let ruling = ask(&inner).await;
                assert!(!ruling.verdict.is_allowed(), "on purpose");
            });
            assert!(panicked.await.is_err_and(|error| error.is_panic()));
            assert!(is_free(&limiter).await);
        };
        LocalSet::new().run_until(tasks).await;
    }

    #[tokio::test]
    async fn at_the_end_everything_is_given_back_once_and_nothing_more_is_taken() {
        let tasks = async {
            let limiter = limiter();
            let held = ask(&limiter).await;
            limiter.close().await;
            assert!(is_free(&limiter).await);
            let late = ask(&limiter).await;
            assert!(late.verdict.is_allowed() && late.slots.is_none() && is_free(&limiter).await);
            drop(held);
        };
        LocalSet::new().run_until(tasks).await;
    }
}
