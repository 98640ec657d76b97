//! The slots of requests in flight, for `concurrency`: taken at the arrival, given back at the end, renewed in between.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::engine::algorithms::charge::{Charge, Input, Mode, Slot};
use crate::engine::algorithms::decision::{Decision, Decisions, Outcome};
use crate::engine::algorithms::micros::Micros;
use crate::store::Batch;
use crate::store::memory::MemoryStore;

/// The most slots in flight. A request beyond gives its slots back at once.
const MOST_SLOTS: usize = 1_000_000;

/// Requests in flight, by the next thing that happens to them.
#[derive(Default)]
pub(super) struct Slots {
    held: BinaryHeap<Reverse<HeldSlot>>,
    named: u128,
}

struct HeldSlot {
    /// Its renewal, or its end.
    at: Micros,
    slot: Slot,
    ends: Micros,
    charge: Charge,
}

impl HeldSlot {
    fn key(&self) -> (Micros, Slot) {
        (self.at, self.slot)
    }

    /// Renews a slot after a third of its lease, as the limiter does.
    fn next(self, now: Micros) -> Self {
        let at = now.after(Micros((self.charge.numbers.span() / 3).max(1))).min(self.ends);
        Self { at, ..self }
    }
}

impl PartialEq for HeldSlot {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for HeldSlot {}

impl PartialOrd for HeldSlot {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for HeldSlot {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

impl Slots {
    /// Names the slots that the charges of a request take.
    pub(super) fn name(&mut self, charges: &mut [Charge]) {
        for charge in charges.iter_mut().filter(|charge| charge.numbers.is_slots() && charge.cost > 0) {
            self.named += 1;
            charge.input = Some(Box::new(Input::Slot(Slot(self.named))));
        }
    }

    /// Keeps the slots that the store has granted until the request ends.
    pub(super) fn hold(&mut self, charges: &[Charge], decisions: &Decisions, now: Micros, ends: Micros) {
        for (slot, charge) in granted(charges, decisions) {
            let ends = if self.held.len() < MOST_SLOTS { ends } else { now };
            let charge = Charge { mode: Mode::SpendOnly, ..charge.clone() };
            self.held.push(Reverse(HeldSlot { at: now, slot, ends, charge }.next(now)));
        }
    }

    /// Gives back the slots of a request that waits, and takes them when it has waited. As a log cannot say which slots are free
    /// then, it is not denied.
    pub(super) fn hold_later(
        &mut self,
        charges: &[Charge],
        decisions: &Decisions,
        store: &MemoryStore,
        [effective_from, now, from, ends]: [Micros; 4],
    ) {
        for (slot, charge) in granted(charges, decisions) {
            let mut charge = Charge { mode: Mode::Refund, ..charge.clone() };
            // The memory store decides a single slot without fail.
            let _ = store.decide(&Batch { charges: std::slice::from_ref(&charge), effective_from, now });
            charge.mode = Mode::SpendOnly;
            if self.held.len() < MOST_SLOTS {
                self.held.push(Reverse(HeldSlot { at: from, slot, ends, charge }));
            }
        }
    }

    /// Renews slots and gives back those of requests that have ended by `now`.
    pub(super) fn advance(&mut self, store: &MemoryStore, effective_from: Micros, now: Micros) {
        while self.held.peek().is_some_and(|held| held.0.at <= now) {
            let Some(Reverse(mut held)) = self.held.pop() else { return };
            let at = held.at;
            let is_over = at >= held.ends;
            if is_over {
                held.charge.mode = Mode::Refund;
            }
            let batch = Batch { charges: std::slice::from_ref(&held.charge), effective_from, now: at };
            // The memory store decides a single slot without fail.
            let _ = store.decide(&batch);
            if !is_over {
                self.held.push(Reverse(held.next(at)));
            }
        }
    }
}

/// The slots that the store has granted to a request.
fn granted<'c>(charges: &'c [Charge], decisions: &'c Decisions) -> impl Iterator<Item = (Slot, &'c Charge)> {
    let is_denied = decisions.iter().any(Decision::is_denied);
    let pairs = charges.iter().zip(decisions.iter()).filter(move |_| !is_denied);
    pairs.filter_map(|(charge, decision)| {
        Some((charge.slot()?, charge)).filter(|_| decision.outcome == Outcome::Allowed)
    })
}
