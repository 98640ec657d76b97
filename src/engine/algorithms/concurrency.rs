//! Requests in flight: a slot for each, which it gives back when it ends, or which ends by itself if nobody renews it.
//!
//! A slot has the name that its request gave it ([`super::details::Slot`]), so a spend under a name that is held renews the
//! slot and takes no other, and one that is given back twice is given back once. A spend without a name takes none: whoever
//! asks so cannot give it back, and is told whether there is room. `lua/concurrency.lua` is the same arithmetic.
//!
//! Nobody knows when the next slot comes free, only that it may be at any moment. So whoever finds none is told to come
//! back after [`RETRY`], and when all will be free is told to nobody.

use super::charge::{Charge, Decision, Mode, Outcome};
use super::details::{Slot, Terms};
use super::gcra::is_ahead;
use super::numbers::{EXACT, Micros};

/// What a request that finds no slot is told to wait: a guess, as short as `Retry-After` can say it.
pub const RETRY: Micros = Micros(1_000_000);

/// The slots of a bucket and when each of their leases ends, the first to end first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slots {
    leases: Vec<(Micros, Slot)>,
}

/// What a charge makes of the slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotsEdit {
    /// Leases that have ended by then are forgotten.
    now: Micros,
    change: SlotsChange,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotsChange {
    /// This slot is held until then.
    Hold(Slot, Micros),
    /// This one is free.
    Free(Slot),
    /// All are.
    FreeAll,
    /// None ends later than this: the clock stepped back since.
    End(Micros),
}

/// Decides a charge to slots with this lease, in microseconds; with what is to be written, if anything is.
///
/// A request is in flight or it is not, so a cost above 1 takes one slot as well.
pub(crate) fn decide(slots: Option<&Slots>, charge: &Charge, lease: u64, now: Micros) -> (Decision, Option<SlotsEdit>) {
    let capacity = charge.numbers.burst();
    let held = slots.map_or(0, |slots| slots.held(now));
    let name = name(charge);
    let is_held = name.is_some_and(|name| slots.is_some_and(|slots| slots.holds(name, now)));
    let answer = |outcome, held: u64, retry_after| Decision {
        outcome,
        limit: capacity,
        remaining: capacity.saturating_sub(held),
        retry_after: Some(retry_after),
        reset_after: (held == 0).then_some(Micros(0)),
    };
    let edit = |change| Some(SlotsEdit { now, change });
    match charge.mode {
        Mode::Reset => (answer(Outcome::Allowed, 0, Micros(0)), edit(SlotsChange::FreeAll)),
        Mode::Refund => match name.filter(|_| is_held && charge.cost > 0) {
            Some(name) => (answer(Outcome::Allowed, held - 1, Micros(0)), edit(SlotsChange::Free(name))),
            None => (answer(Outcome::Unchanged, held, Micros(0)), None),
        },
        _ if charge.cost == 0 => (answer(Outcome::Allowed, held, Micros(0)), None),
        mode => {
            let after = if is_held { held } else { held + 1 };
            if after > capacity && !is_held {
                let refused = if mode.can_deny() { Outcome::Denied } else { Outcome::Unchanged };
                let wait = if mode == Mode::SpendUpTo { Micros(0) } else { RETRY };
                // Who is alive renews its lease by the clock as it is; that of the dead must not outlive the step.
                let last = Micros(now.0.saturating_add(lease).min(EXACT - 1));
                let is_ahead = slots.is_some_and(|slots| is_ahead(slots.ends(), last));
                return (answer(refused, held, wait), edit(SlotsChange::End(last)).filter(|_| is_ahead));
            }
            // Under the same name there will be room again; what is asked for next is another one as a rule.
            let is_last = after >= capacity && mode != Mode::SpendUpTo;
            let decision = answer(Outcome::Allowed, after, if is_last { RETRY } else { Micros(0) });
            // The instant must stay one that Redis' Lua can tell from its neighbours.
            let end = Micros(now.0.saturating_add(lease).min(EXACT - 1));
            let hold = name.filter(|_| mode != Mode::Check).and_then(|name| edit(SlotsChange::Hold(name, end)));
            (decision, hold)
        }
    }
}

/// The slot that a charge is about.
fn name(charge: &Charge) -> Option<Slot> {
    match charge.terms.as_deref() {
        Some(Terms::Slot(slot)) => Some(*slot),
        _ => None,
    }
}

impl Slots {
    /// The slots whose lease has not ended.
    fn held(&self, now: Micros) -> u64 {
        (self.leases.len() - self.ended(now)) as u64
    }

    fn ended(&self, now: Micros) -> usize {
        self.leases.partition_point(|(end, _)| *end <= now)
    }

    /// Whether a request holds this slot.
    pub(crate) fn holds(&self, name: Slot, now: Micros) -> bool {
        self.leases.iter().any(|(end, slot)| *slot == name && *end > now)
    }

    /// Does what a charge has decided.
    pub(crate) fn apply(&mut self, edit: &SlotsEdit) {
        self.leases.drain(..self.ended(edit.now));
        match edit.change {
            SlotsChange::Hold(name, end) => {
                self.leases.retain(|(_, slot)| *slot != name);
                let place = self.leases.partition_point(|lease| *lease < (end, name));
                self.leases.insert(place, (end, name));
            }
            SlotsChange::Free(name) => self.leases.retain(|(_, slot)| *slot != name),
            SlotsChange::FreeAll => self.leases.clear(),
            SlotsChange::End(last) => {
                self.leases.iter_mut().filter(|(end, _)| is_ahead(*end, last)).for_each(|(end, _)| *end = last);
                self.leases.sort_unstable();
            }
        }
    }

    /// When the last lease ends.
    pub(crate) fn ends(&self) -> Micros {
        self.leases.last().map_or(Micros(0), |(end, _)| *end)
    }

    /// The slots that take memory.
    pub(crate) const fn len(&self) -> usize {
        self.leases.len()
    }
}

#[cfg(test)]
mod tests {
    use super::super::charge::Bucket;
    use super::super::numbers::Numbers;
    use super::*;
    use Mode::{Check, Refund, Reset, Spend, SpendOnly, SpendUpTo};
    use Outcome::{Allowed, Denied, Unchanged};

    /// Makes charges of 1 to two slots with a lease of 10 ms, at these milliseconds and under these names, 0 being none;
    /// compares outcomes, what remains, the wait in milliseconds and whether all are free.
    #[track_caller]
    fn check(charges: &[(u64, Mode, u128)], expected: &[(Outcome, u64, u64, bool)]) {
        let mut slots = Slots::default();
        let numbers = Numbers::slots(2, 60_000_000_000).unwrap();
        let answers = charges.iter().map(|(at, mode, name)| {
            let bucket = Bucket { key: "L:k".into(), fingerprint: 1 };
            let terms = (*name > 0).then(|| Box::new(Terms::Slot(Slot(*name))));
            let charge = Charge { terms, ..Charge::new(bucket, numbers, 1, *mode) };
            let (decision, edit) = decide(Some(&slots), &charge, 10_000, Micros::from_millis(*at));
            if let Some(edit) = edit {
                slots.apply(&edit);
            }
            let wait = decision.retry_after.unwrap().0 / 1_000;
            (decision.outcome, decision.remaining, wait, decision.reset_after == Some(Micros(0)))
        });
        assert_eq!(answers.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_slot_is_taken_and_given_back_once() {
        check(
            &[(0, Spend, 1), (1, Spend, 2), (2, Spend, 3), (3, Refund, 1), (3, Refund, 1), (4, Spend, 3)],
            &[
                (Allowed, 1, 0, false),
                (Allowed, 0, 1_000, false),
                (Denied, 0, 1_000, false),
                (Allowed, 1, 0, false),
                (Unchanged, 1, 0, false),
                (Allowed, 0, 1_000, false),
            ],
        );
        check(&[(0, Spend, 1), (1, Refund, 1)], &[(Allowed, 1, 0, false), (Allowed, 2, 0, true)]);
        check(
            &[(0, Spend, 1), (0, Spend, 2), (1, Reset, 0), (1, Refund, 2)],
            &[(Allowed, 1, 0, false), (Allowed, 0, 1_000, false), (Allowed, 2, 0, true), (Unchanged, 2, 0, true)],
        );
    }

    #[test]
    fn the_same_name_renews_and_a_lease_that_has_ended_holds_nothing() {
        check(
            &[(0, Spend, 1), (0, Spend, 2), (9, Spend, 1), (10, Spend, 3), (18, Check, 4), (19, Check, 4)],
            &[
                (Allowed, 1, 0, false),
                (Allowed, 0, 1_000, false),
                (Allowed, 0, 1_000, false),
                (Allowed, 0, 1_000, false),
                (Denied, 0, 1_000, false),
                (Allowed, 0, 1_000, false),
            ],
        );
        // What has ended is not there to be given back, and to take it again takes room.
        check(
            &[(0, Spend, 1), (10, Refund, 1), (10, Spend, 2), (10, Spend, 3), (10, Spend, 1)],
            &[
                (Allowed, 1, 0, false),
                (Unchanged, 2, 0, true),
                (Allowed, 1, 0, false),
                (Allowed, 0, 1_000, false),
                (Denied, 0, 1_000, false),
            ],
        );
    }

    #[test]
    fn who_has_no_name_is_only_told() {
        check(
            &[
                (0, Spend, 0),
                (0, Spend, 0),
                (0, Spend, 1),
                (0, Spend, 2),
                (0, Spend, 0),
                (0, Refund, 0),
                (0, SpendOnly, 0),
            ],
            &[
                (Allowed, 1, 0, false),
                (Allowed, 1, 0, false),
                (Allowed, 1, 0, false),
                (Allowed, 0, 1_000, false),
                (Denied, 0, 1_000, false),
                (Unchanged, 0, 0, false),
                (Unchanged, 0, 1_000, false),
            ],
        );
    }

    #[test]
    fn what_must_not_refuse_takes_a_slot_if_there_is_one() {
        check(
            &[(0, SpendOnly, 1), (0, SpendUpTo, 2), (0, SpendUpTo, 3), (0, SpendOnly, 3), (1, SpendUpTo, 2)],
            &[
                (Allowed, 1, 0, false),
                (Allowed, 0, 0, false),
                (Unchanged, 0, 0, false),
                (Unchanged, 0, 1_000, false),
                (Allowed, 0, 0, false),
            ],
        );
    }
}
