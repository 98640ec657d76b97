//! The slots that a request in flight holds, from its decision to its end.
//!
//! A slot is named before the store is asked for it, and its holder has [`HeldSlots`] from then on. So a request that is
//! dropped in between, because its client has gone, gives back what the store is about to grant. Giving back a name twice
//! does nothing, so it can be retried until the lease has ended.
//!
//! No request waits for its slot to be given back. Memory answers at once. Redis is asked at once, so that it knows before
//! the client's next request, and a task checks the answers. The same task renews the slots of long requests.

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
use crate::clock::micros;
use crate::engine::algorithms::charge::{Charge, Input, Mode, Slot};
use crate::engine::algorithms::decision::{Decision, Decisions, Outcome};
use crate::engine::algorithms::micros::Micros;
use crate::store::{Batch, Store, StoreAnswer, StoreError};
use crate::telemetry::metrics::Tally;

/// The interval of the task: a quarter of the shortest lease.
const TICK: Duration = Duration::from_millis(250);

/// Slots renewed or given back again at once. Redis answers such a batch, eight calls, within 2 ms.
const AT_ONCE: usize = 512;

/// Slots given back whose answer is checked. Beyond that, the lease ends those that failed.
const MOST_RETURNS: usize = 16_384;

/// The longest time that a stopping worker waits for slots to be given back.
const LAST_RETURNS: Duration = Duration::from_secs(1);

/// A worker's slots.
pub(super) struct SlotTable {
    shared: Arc<Shared>,
    store: Store,
    /// A random number that makes slot names unique per worker.
    origin: u64,
    /// The number of the next slot.
    count: Cell<u64>,
    /// A few per request in flight, and bounded as those are.
    held: RefCell<HashMap<Key, Lease>>,
    /// Slots that were given back, until the store has answered.
    returns: RefCell<VecDeque<(Lease, StoreAnswer)>>,
    /// The wall clock, and the instant when it was read.
    clock: Cell<(Micros, Instant)>,
    /// Wakes the task when the table gets its first slot.
    first: Notify,
    is_closed: Cell<bool>,
    gauge: Tally,
}

/// A slot, and whether it is in the memory that replaces a failed store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    slot: Slot,
    is_local: bool,
}

/// A slot that is held or asked for.
struct Lease {
    /// The charge that renews it.
    charge: Charge,
    effective_from: Micros,
    duration: Duration,
    /// The time at which it was taken or last renewed, read before the store was asked.
    since: Instant,
    renew_at: Instant,
    /// True once the metric counts it, from the store's answer on.
    is_counted: bool,
}

/// The slots of a request in flight. Dropping this gives them back.
pub struct HeldSlots {
    slots: Rc<SlotTable>,
    keys: SmallVec<[Key; 1]>,
}

impl SlotTable {
    pub(super) fn new(shared: Arc<Shared>, store: Store) -> Rc<Self> {
        let gauge = shared.metrics.gauge_tally(&shared.metrics.listeners.slots);
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

    /// Names a slot for each charge that takes one. Returns `None` if none does. `now` is the wall clock at `start`.
    pub(super) fn name(
        self: &Rc<Self>,
        charges: &mut [Charge],
        effective_from: Micros,
        now: Micros,
        start: Instant,
    ) -> Option<Box<HeldSlots>> {
        let takes_slot = |charge: &Charge| {
            charge.numbers.is_slots() && matches!(charge.mode, Mode::Spend | Mode::SpendOnly) && charge.cost > 0
        };
        if self.is_closed.get() || !charges.iter().any(takes_slot) {
            return None;
        }
        self.clock.set((now, start));
        let mut slots = Box::new(HeldSlots { slots: self.clone(), keys: SmallVec::new() });
        for charge in charges.iter_mut().filter(|charge| takes_slot(charge)) {
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
        Micros(now.0.saturating_add(micros(at.elapsed()).0))
    }

    /// Sends a lease's charge to the store that has its slot.
    fn ask(&self, is_local: bool, lease: &Lease) -> StoreAnswer {
        let charges = std::slice::from_ref(&lease.charge);
        let batch = Batch { charges, effective_from: lease.effective_from, now: self.now() };
        if is_local {
            return StoreAnswer::Ready(self.shared.local.decide(&batch));
        }
        if Handle::try_current().is_err() {
            // The last tasks of a worker are dropped after its runtime has ended, which the store's client needs.
            return StoreAnswer::Ready(Err(StoreError::Down));
        }
        self.store.ask(&batch)
    }

    /// Gives a slot back, unless that has happened.
    fn give_back(&self, key: Key) {
        let Some(mut lease) = self.held.borrow_mut().remove(&key) else { return };
        lease.charge.mode = Mode::Refund;
        let answer = self.ask(key.is_local, &lease);
        if lease.is_counted {
            self.gauge.dec();
        }
        let mut returns = self.returns.borrow_mut();
        if !matches!(answer, StoreAnswer::Ready(Ok(_))) && returns.len() < MOST_RETURNS {
            returns.push_back((lease, answer));
        }
    }

    /// Counts a slot in the metric.
    fn count(&self, key: Key) {
        if let Some(held) = self.held.borrow_mut().get_mut(&key) {
            held.is_counted = true;
            self.gauge.inc();
        }
    }

    /// Renews slots and retries failed returns, as long as the worker runs.
    pub(super) async fn keep(self: Rc<Self>) {
        loop {
            if self.held.borrow().is_empty() && self.returns.borrow().is_empty() {
                self.first.notified().await;
            }
            sleep(TICK).await;
            self.retry_returns();
            self.renew().await;
        }
    }

    fn retry_returns(&self) {
        let (mut again, now) = (0, Instant::now());
        self.returns.borrow_mut().retain_mut(|(lease, answer)| match answer.poll() {
            None => true,
            Some(Ok(_)) => false,
            Some(Err(_)) if now >= lease.since + lease.duration => false,
            Some(Err(_)) => {
                if again < AT_ONCE {
                    again += 1;
                    *answer = self.ask(false, lease);
                }
                true
            }
        });
    }

    /// Renews the slots that are due.
    async fn renew(&self) {
        let soon = Instant::now() + TICK;
        let is_due = |(key, held): (&Key, &Lease)| (held.renew_at <= soon).then_some(*key);
        let due: Vec<Key> = self.held.borrow().iter().filter_map(is_due).collect();
        for keys in due.chunks(AT_ONCE) {
            let since = Instant::now();
            let ask = |key: &Key| Some((*key, self.ask(key.is_local, self.held.borrow().get(key)?)));
            let asked: Vec<(Key, StoreAnswer)> = keys.iter().filter_map(ask).collect();
            for (key, answer) in asked {
                // Without an answer, the next tick tries again.
                let Ok(decisions) = answer.wait().await else { continue };
                if let Some(lease) = self.held.borrow_mut().get_mut(&key) {
                    if decisions.first().is_some_and(|decision| decision.outcome == Outcome::Allowed) {
                        lease.since = since;
                    }
                    lease.renew_at = since + lease.duration / 3;
                }
            }
        }
    }

    /// Gives all slots back and waits for the store. Their holders are about to be dropped.
    pub(super) async fn close(&self) {
        self.is_closed.set(true);
        let all: Vec<Key> = self.held.borrow().keys().copied().collect();
        let give_back = async {
            for keys in all.chunks(AT_ONCE) {
                for key in keys {
                    self.give_back(*key);
                }
                self.await_returns().await;
            }
            self.await_returns().await;
        };
        if timeout(LAST_RETURNS, give_back).await.is_err() {
            tracing::warn!("some slots of requests in flight were not given back; their leases will end");
        }
    }

    async fn await_returns(&self) {
        let returns = std::mem::take(&mut *self.returns.borrow_mut());
        for (_, answer) in returns {
            if let Err(error) = answer.wait().await {
                tracing::debug!("a slot was not given back: {error}");
            }
        }
    }
}

impl HeldSlots {
    fn hold(&mut self, key: Key, charge: &Charge, effective_from: Micros) {
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

    /// Applies the store's decisions. Returns `None` if no slot was granted.
    pub(super) fn decided(mut self: Box<Self>, charges: &[Charge], decisions: &Decisions) -> Option<Box<Self>> {
        self.keep_only(|slot| taken(charges, decisions).any(|(taken, _)| taken == slot));
        (!self.keys.is_empty()).then_some(self)
    }

    /// Keeps the slots that the store may have granted without an answer, or has granted where it has decided some charges only.
    pub(super) fn unanswered(&mut self, charges: &[Charge], error: &StoreError) {
        let StoreError::Partial(partial) = error else {
            return self.keep_only(|_| error.is_ambiguous());
        };
        let is_gap = |slot| {
            let of_slot = |place: &usize| charges.get(*place).is_some_and(|charge| charge.slot() == Some(slot));
            partial.undecided.iter().any(of_slot)
        };
        let is_taken = |slot| taken(charges, &partial.decisions).any(|(taken, _)| taken == slot);
        // Giving back a slot that was not granted does nothing.
        self.keep_only(|slot| is_taken(slot) || is_gap(slot));
    }

    /// Applies the decisions of the memory that replaces a failed store.
    pub(super) fn decided_locally(&mut self, charges: &[Charge], decisions: &Decisions, effective_from: Micros) {
        for (slot, charge) in taken(charges, decisions) {
            let key = Key { slot, is_local: true };
            self.hold(key, charge, effective_from);
            self.slots.count(key);
        }
    }

    /// Keeps the slots that are held, and forgets those that never were.
    fn keep_only(&mut self, is_held: impl Fn(Slot) -> bool) {
        let slots = &self.slots;
        self.keys.retain(|key| {
            let stays = is_held(key.slot);
            if stays {
                slots.count(*key);
            } else {
                slots.held.borrow_mut().remove(key);
            }
            stays
        });
    }
}

impl std::fmt::Debug for HeldSlots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(&self.keys).finish()
    }
}

impl Drop for HeldSlots {
    fn drop(&mut self) {
        for key in self.keys.drain(..) {
            self.slots.give_back(key);
        }
    }
}

/// The slots that were taken, and their charges. If one charge was denied, none.
fn taken<'c>(charges: &'c [Charge], decisions: &Decisions) -> impl Iterator<Item = (Slot, &'c Charge)> {
    let is_denied = decisions.iter().any(Decision::is_denied);
    let taken = charges
        .iter()
        .zip(decisions.iter())
        .filter(move |(_, decision)| !is_denied && decision.outcome == Outcome::Allowed);
    taken.filter_map(|(charge, _)| Some((charge.slot()?, charge)))
}

#[cfg(test)]
mod tests {
    use tokio::task::{LocalSet, spawn_local};

    use super::*;
    use crate::engine::algorithms::algorithm::Algorithm;
    use crate::engine::algorithms::charge::Bucket;
    use crate::engine::algorithms::numbers::Numbers;
    use crate::engine::deciding::DecisionSubject;
    use crate::engine::limit::Limit;
    use crate::engine::limit::allowance::Allowance;
    use crate::engine::limit::fingerprint::Fingerprinter;
    use crate::engine::limit::rules::Rules;
    use crate::engine::request::sample;
    use crate::limiter::{DecisionRequest, Limiter, LimiterVerdict};
    use crate::message::headers::Headers;
    use crate::store::PartialAnswer;
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

    async fn ask(limiter: &Limiter) -> LimiterVerdict {
        let headers = Headers::new();
        let request = sample(&headers);
        let asked = DecisionRequest::new(DecisionSubject::Request(&request), DecisionListener::Proxy, Instant::now());
        limiter.decide(DecisionRequest { sees_response: true, ..asked }).await.unwrap()
    }

    /// Whether a slot is free, asked as by a listener that does not see requests end.
    async fn is_free(limiter: &Limiter) -> bool {
        let headers = Headers::new();
        let request = sample(&headers);
        let asked = DecisionRequest::new(DecisionSubject::Request(&request), DecisionListener::Check, Instant::now());
        limiter.decide(asked).await.unwrap().verdict.is_allowed()
    }

    /// The first slot is granted; nobody knows about the second, although another charge was refused; the third is another's.
    #[tokio::test]
    async fn a_slot_that_may_have_been_granted_is_given_back() {
        let tasks = async {
            let limiter = limiter();
            let numbers = Numbers::concurrency(5, 60_000_000_000).unwrap();
            let charge = |number: u32| {
                Charge::new(Bucket::new(format!("L:{number}"), number.into()), numbers.clone(), 1, Mode::Spend)
            };
            let mut charges = [0, 1, 2].map(charge);
            let mut held = limiter.slots.name(&mut charges, Micros(0), Micros(0), Instant::now()).unwrap();
            let granted = |outcome| Decision { outcome, ..Decision::unknown(5) };
            let decisions =
                [Outcome::Allowed, Outcome::Unchanged, Outcome::Unchanged].map(granted).into_iter().collect();
            let partial = PartialAnswer { decisions, undecided: vec![1], error: StoreError::Down };
            held.unanswered(&charges, &StoreError::Partial(Box::new(partial)));
            let kept: Vec<Slot> = held.keys.iter().map(|key| key.slot).collect();
            assert_eq!(kept, charges[..2].iter().filter_map(Charge::slot).collect::<Vec<_>>());
            drop(held);
            assert!(limiter.slots.held.borrow().is_empty());
        };
        LocalSet::new().run_until(tasks).await;
    }

    #[tokio::test]
    async fn a_slot_is_held_until_it_is_dropped() {
        let tasks = async {
            let limiter = limiter();
            let first = ask(&limiter).await;
            assert!(first.verdict.is_allowed() && first.slots.is_some());
            let second = ask(&limiter).await;
            assert!(!second.verdict.is_allowed() && second.slots.is_none() && !is_free(&limiter).await);
            drop(first);
            assert!(is_free(&limiter).await && is_free(&limiter).await, "a check takes no slot");
        };
        LocalSet::new().run_until(tasks).await;
    }

    #[tokio::test]
    async fn a_task_that_panics_gives_its_slot_back() {
        let tasks = async {
            let limiter = limiter();
            let inner = limiter.clone();
            let panicked = spawn_local(async move {
                let decided = ask(&inner).await;
                assert!(!decided.verdict.is_allowed(), "on purpose");
            });
            assert!(panicked.await.is_err_and(|error| error.is_panic()));
            assert!(is_free(&limiter).await);
        };
        LocalSet::new().run_until(tasks).await;
    }

    #[tokio::test]
    async fn closing_gives_all_slots_back_and_grants_no_more() {
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
