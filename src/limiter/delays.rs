//! Requests that wait because a limit has `delay:`.
//!
//! Their charges are booked in the buckets already, and stay booked if the client leaves: others have their times behind them, and a
//! client that leaves and comes again would pass more often than the limit allows. nginx's `limit_req` counts so, too. A worker
//! that has its maximum of waiting requests books no more: charges that do not fit at once are then denied.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;
use tokio::time::sleep_until;

use super::decision_request::{DecisionRequest, LimiterVerdict, Patience};
use super::slots::HeldSlots;
use super::{Limiter, Shared};
use crate::clock::micros;
use crate::engine::algorithms::charge::{Charge, ChargeOrigin, Mode};
use crate::engine::algorithms::decision::Decisions;
use crate::engine::algorithms::micros::Micros;
use crate::engine::charging::plan::Plan;
use crate::engine::deciding::verdict::{LimitDecision, Unanswered, Verdict, VerdictKind};
use crate::engine::limit::StoreErrorPolicy;
use crate::store::{Batch, StoreError};
use crate::telemetry::metrics::{LocalTimer, Tally};

/// The default maximum number of requests that a worker holds.
pub const DEFAULT_MAX_DELAYED: usize = 1_024;

/// Bounds of delays.
#[derive(Clone, Copy, Debug)]
pub struct DelayBounds {
    /// The requests that each worker may hold.
    pub most: usize,
    /// The longest time that a decision listener holds its answer if the caller does not say how long it waits.
    pub answers: Duration,
}

impl Default for DelayBounds {
    fn default() -> Self {
        Self { most: DEFAULT_MAX_DELAYED, answers: Duration::ZERO }
    }
}

/// The share of a worker's maximum that one bucket may take, as a divisor.
const SHARE_OF_A_BUCKET: usize = 4;

/// A worker's waiting requests.
pub(super) struct DelayTable {
    most: usize,
    /// Requests that wait, or may have to when the store has answered.
    places: Cell<usize>,
    /// Waiting requests by the fingerprint of the bucket that they wait for.
    waiting: RefCell<HashMap<u128, usize>>,
    gauge: Tally,
    seconds: LocalTimer,
}

/// A place in a [`DelayTable`].
pub(super) struct DelayPlace {
    table: Rc<DelayTable>,
    /// The buckets that its request waits for.
    buckets: SmallVec<[u128; 1]>,
}

impl DelayTable {
    pub(super) fn new(shared: &Shared) -> Rc<Self> {
        let listeners = &shared.metrics.listeners;
        Rc::new(Self {
            most: shared.delays.most,
            places: Cell::new(0),
            waiting: RefCell::default(),
            gauge: shared.metrics.gauge_tally(&listeners.delayed),
            seconds: listeners.delay_seconds.local(),
        })
    }

    pub(super) fn flush(&self) {
        self.seconds.flush();
    }

    /// Returns `None` if the table is full.
    fn reserve(self: &Rc<Self>) -> Option<DelayPlace> {
        let places = self.places.get();
        if places >= self.most {
            return None;
        }
        self.places.set(places + 1);
        Some(DelayPlace { table: self.clone(), buckets: SmallVec::new() })
    }

    fn has_room_for(&self, bucket: u128) -> bool {
        let most = self.most.div_ceil(SHARE_OF_A_BUCKET);
        self.waiting.borrow().get(&bucket).is_none_or(|waiting| *waiting < most)
    }
}

impl DelayPlace {
    /// From here on, its request waits for these buckets.
    fn wait_for(&mut self, buckets: impl Iterator<Item = u128>) {
        let mut waiting = self.table.waiting.borrow_mut();
        for bucket in buckets {
            *waiting.entry(bucket).or_default() += 1;
            self.buckets.push(bucket);
        }
        self.table.gauge.inc();
    }
}

impl Drop for DelayPlace {
    fn drop(&mut self) {
        let table = &self.table;
        table.places.set(table.places.get() - 1);
        if !self.buckets.is_empty() {
            table.gauge.dec();
        }
        let mut waiting = table.waiting.borrow_mut();
        for bucket in self.buckets.drain(..) {
            if let Some(count) = waiting.get_mut(&bucket) {
                *count -= 1;
                if *count == 0 {
                    waiting.remove(&bucket);
                }
            }
        }
    }
}

/// How a request that waits was decided.
struct Booking {
    effective_from: Micros,
    /// The wall clock at `start`.
    now: Micros,
    start: Instant,
    /// True if the memory that replaces the store has decided its slots.
    is_local: bool,
}

impl Booking {
    fn now(&self) -> Micros {
        self.now.after(micros(self.start.elapsed()))
    }
}

impl Limiter {
    /// Returns the wait that a decision listener allows. `deadline` is the end of the caller's wait, if it is known.
    pub fn patience(&self, deadline: Option<Instant>) -> Patience {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        Patience::Held(micros(left.unwrap_or(self.shared.delays.answers)))
    }

    /// Sets how long the charges of a plan may be delayed, and takes a place for a request that the limiter would hold.
    pub(super) fn bound_delays(&self, plan: &mut Plan, asked: &DecisionRequest<'_>) -> Option<DelayPlace> {
        if plan.charges.iter().all(|charge| charge.delay().is_none()) {
            return None;
        }
        let (place, most) = match asked.patience {
            Patience::None => (None, Micros(0)),
            Patience::Caller(most) => (None, most),
            // A check takes nothing, so nobody waits.
            Patience::Held(most) if asked.intent.mode == Mode::Check => (None, most),
            Patience::Held(most) => {
                let place = self.delays.reserve();
                let most = if place.is_some() { most } else { Micros(0) };
                (place, most)
            }
        };
        plan.bound_delays(|charge| {
            let has_room = place.is_none() || self.delays.has_room_for(charge.bucket.fingerprint);
            if has_room { most } else { Micros(0) }
        });
        place
    }

    /// Books what an allowed request has to wait for. Its verdict is not counted yet if it has slots to take.
    pub(super) fn held(
        mut place: DelayPlace,
        (plan, decisions): (Plan, &Decisions),
        decided: &mut LimiterVerdict,
        asked: &DecisionRequest<'_>,
    ) -> Box<HeldRequest> {
        let delayed = plan.charges.iter().zip(decisions.iter()).filter(|(_, decision)| decision.delay > 0);
        place.wait_for(delayed.map(|(charge, _)| charge.bucket.fingerprint));
        let booking = Booking {
            effective_from: decided.view.rules().effective_from,
            now: asked.now(),
            start: asked.start,
            is_local: plan.charges.iter().any(|charge| charge.slot().is_some() && charge.origin.is_local),
        };
        // They are given back here: a request that waits must not keep others from them.
        let had_slots = decided.slots.take().is_some();
        let slots = plan.charges.iter().filter(|charge| had_slots && charge.slot().is_some()).cloned().collect();
        let ends = tokio::time::Instant::now() + wait(&decided.verdict);
        Box::new(HeldRequest { booking, place, ends, slots, uncounted: had_slots.then_some(plan) })
    }

    /// Waits until the charges of an allowed request fit, if they do not yet. If this is dropped, they stay booked.
    pub async fn hold(&self, decided: &mut LimiterVerdict) {
        if let Some(held) = decided.held.take() {
            // They are logged.
            decided.denials.clear();
            // In a box, as few requests wait.
            Box::pin(self.wait_for(*held, decided)).await;
        }
    }

    async fn wait_for(&self, held: HeldRequest, decided: &mut LimiterVerdict) {
        let HeldRequest { booking, place, ends, slots, uncounted } = held;
        let uncounted = Uncounted { decided, plan: uncounted, at: (booking.start, booking.now) };
        sleep_until(ends).await;
        self.delays.seconds.observe(wait(&uncounted.decided.verdict));
        drop(place);
        if !slots.is_empty() {
            self.take_slots(uncounted.decided, &slots, &booking).await;
        }
    }

    /// Takes the slots of a request that has waited, or denies it.
    async fn take_slots(&self, decided: &mut LimiterVerdict, slots: &[Charge], booking: &Booking) {
        let mut charges: Vec<Charge> = slots.to_vec();
        let (start, now, effective_from) = (Instant::now(), booking.now(), booking.effective_from);
        let Some(mut named) = self.slots.name(&mut charges, effective_from, now, start) else { return };
        let batch = Batch { charges: &charges, effective_from, now };
        let memory = booking.is_local.then_some(&self.shared.local);
        let answer = match memory {
            Some(memory) => memory.decide(&batch),
            None => self.store.decide(&batch).await,
        };
        match answer {
            Ok(decisions) if booking.is_local => {
                named.unanswered(&charges, &StoreError::Down);
                named.decided_locally(&charges, &decisions, effective_from);
                decided.slots = Some(named);
                decided.decide_slots(&charges, &decisions);
            }
            Ok(decisions) => {
                decided.slots = named.decided(&charges, &decisions);
                decided.decide_slots(&charges, &decisions);
            }
            Err(error) => {
                self.note_failure(&error);
                named.unanswered(&charges, &error);
                self.decide_slots_without_store(decided, &charges, &mut named, booking);
                decided.slots = Some(named);
            }
        }
        decided.slots = decided.slots.take().filter(|_| decided.verdict.is_allowed());
    }
}

impl Limiter {
    /// Applies `on_store_error` of the limits whose slots the store did not decide.
    fn decide_slots_without_store(
        &self,
        decided: &mut LimiterVerdict,
        charges: &[Charge],
        named: &mut HeldSlots,
        booking: &Booking,
    ) {
        let view = decided.view.clone();
        let policy = |origin: &ChargeOrigin| view.rules().limit(origin.limit).map(|limit| limit.on_store_error);
        let (mut local, mut locals, mut unanswered) = (Vec::new(), Vec::new(), Vec::new());
        for charge in charges {
            let origin = charge.origin;
            match policy(&origin) {
                Some(StoreErrorPolicy::Local) => {
                    local.push(charge.clone());
                    locals.push(Unanswered { limit: origin.limit, denies: false });
                }
                _ if origin.is_candidate() => {}
                policy => {
                    let denies = origin.is_enforced() && policy == Some(StoreErrorPolicy::Deny);
                    unanswered.push(Unanswered { limit: origin.limit, denies });
                }
            }
        }
        decided.leave_unanswered(unanswered);
        let (effective_from, now) = (booking.effective_from, booking.now());
        if !decided.verdict.is_allowed() {
            return;
        }
        match self.shared.local.decide(&Batch { charges: &local, effective_from, now }) {
            Ok(decisions) => {
                named.decided_locally(&local, &decisions, effective_from);
                decided.decide_slots(&local, &decisions);
            }
            Err(error) => {
                self.note_failure(&error);
                decided.leave_unanswered(locals);
            }
        }
    }
}

impl LimiterVerdict {
    /// Replaces what was decided about slots before the wait. Denies the request if one of these decisions does.
    fn decide_slots(&mut self, charges: &[Charge], decisions: &Decisions) {
        self.replace_answers(|answers| {
            for (charge, decision) in charges.iter().zip(decisions.iter()) {
                let fingerprint = Some(charge.bucket.fingerprint);
                let of_slot = answers.iter_mut().filter(|answer| answer.fingerprint == fingerprint);
                of_slot.for_each(|answer| answer.decision = *decision);
            }
        });
    }

    fn leave_unanswered(&mut self, unanswered: Vec<Unanswered>) {
        self.replace_answers(|answers| {
            answers.retain(|answer| unanswered.iter().all(|limit| limit.limit != answer.limit));
        });
        if unanswered.iter().any(|limit| limit.denies) {
            self.verdict.kind = VerdictKind::Unavailable;
        }
        self.verdict.unanswered.extend(unanswered);
    }

    fn replace_answers(&mut self, replace: impl FnOnce(&mut Vec<LimitDecision>)) {
        let mut answers = std::mem::take(&mut self.verdict.answers);
        replace(&mut answers);
        let Verdict { kind, answers, binding, .. } = Verdict::of(&[], answers);
        (self.verdict.kind, self.verdict.answers, self.verdict.binding) = (kind, answers, binding);
    }
}

/// A verdict that is final only after the wait. Dropping this counts it, also if the client leaves.
struct Uncounted<'a> {
    decided: &'a mut LimiterVerdict,
    /// `None` if the verdict is counted already.
    plan: Option<Plan>,
    /// The arrival of the request.
    at: (Instant, Micros),
}

impl Drop for Uncounted<'_> {
    fn drop(&mut self) {
        if let Some(plan) = self.plan.take() {
            let LimiterVerdict { view, verdict, .. } = &*self.decided;
            self.decided.denials = view.count_verdict(verdict, &plan, self.at);
        }
    }
}

fn wait(verdict: &Verdict) -> Duration {
    Duration::from_micros(verdict.delay().0)
}

/// An allowed request that has to wait.
pub(super) struct HeldRequest {
    booking: Booking,
    place: DelayPlace,
    ends: tokio::time::Instant,
    /// The charges of slots, which it takes when it has waited.
    slots: Vec<Charge>,
    /// The plan of a verdict that is not counted yet.
    uncounted: Option<Plan>,
}
