//! Concurrency: every request in flight holds a slot, which is freed when the request or its lease ends.
//!
//! A slot has the name of its request ([`Slot`]). A spend with the name of a held slot renews it, and freeing a slot twice frees
//! it once. A spend without a name takes no slot, because its caller could not free it; it only learns whether one is free.
//! `lua/concurrency.lua` does the same arithmetic.
//!
//! It is unknown when the next slot becomes free. A denied request gets a `retry_after` of [`RETRY`] and no `reset_after`.

use super::algorithm::Algorithm;
use super::charge::{Charge, Mode, Slot};
use super::decision::{Attempt, Decision, Outcome};
use super::micros::{EXACT, Micros};
use super::numbers::{Numbers, NumbersError};
use super::windows::Refill;

/// A guess: the shortest time that `Retry-After` can express.
pub const RETRY: Micros = Micros(1_000_000);

/// In Redis each slot takes about 130 bytes.
const MOST_SLOTS: u64 = 10_000;

/// In nanoseconds. A lease is renewed three times per span, and a store may be away for a moment.
pub const SHORTEST_LEASE: u64 = 1_000_000_000;

/// In nanoseconds.
pub const DEFAULT_LEASE: u64 = 60 * 1_000_000_000;

/// In nanoseconds. The slots of a process that died are lost for this long.
pub const LONGEST_LEASE: u64 = 24 * 3_600 * 1_000_000_000;

impl Numbers {
    /// Numbers that let `capacity` requests be in flight, each for `lease` nanoseconds unless renewed.
    pub fn concurrency(capacity: u64, lease: u64) -> Result<Self, NumbersError> {
        match (capacity, lease) {
            (0, _) => Err(NumbersError::Burst),
            (capacity, _) if capacity > MOST_SLOTS => Err(NumbersError::TooManySlots(MOST_SLOTS)),
            (_, SHORTEST_LEASE..=LONGEST_LEASE) if lease.is_multiple_of(1_000) => {
                Ok(Self::with(capacity, 0, 0, Algorithm::Concurrency, Refill::span(lease / 1_000)))
            }
            _ => Err(NumbersError::Lease),
        }
    }
}

/// The slots of a bucket and the ends of their leases, the first to end first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slots {
    leases: Vec<(Micros, Slot)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotsEdit {
    /// Leases that have ended by now are dropped.
    now: Micros,
    change: SlotsChange,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotsChange {
    HoldUntil(Slot, Micros),
    Free(Slot),
    FreeAll,
    /// Cuts leases to this end, because the clock has stepped back.
    EndBy(Micros),
}

/// Decides a charge. A cost above 1 takes one slot, too: a request is in flight or not.
pub(super) fn decide(slots: Option<&Slots>, charge: &Charge, now: Micros) -> Attempt<SlotsEdit> {
    let (capacity, lease) = (charge.numbers.burst(), Micros(charge.numbers.span()));
    let held = slots.map_or(0, |slots| slots.held(now));
    let name = charge.slot();
    let is_held = name.is_some_and(|name| slots.is_some_and(|slots| slots.holds(name, now)));
    let decide = |outcome, held: u64, retry_after| Decision {
        delay: 0,
        outcome,
        limit: capacity,
        remaining: capacity.saturating_sub(held),
        retry_after: Some(retry_after),
        reset_after: (held == 0).then_some(Micros(0)),
    };
    let edit = |change| Some(SlotsEdit { now, change });
    match charge.mode {
        Mode::Reset => Attempt::new(decide(Outcome::Allowed, 0, Micros(0)), edit(SlotsChange::FreeAll)),
        Mode::Refund => match name.filter(|_| is_held && charge.cost > 0) {
            Some(name) => Attempt::new(decide(Outcome::Allowed, held - 1, Micros(0)), edit(SlotsChange::Free(name))),
            None => Attempt::new(decide(Outcome::Unchanged, held, Micros(0)), None),
        },
        _ if charge.cost == 0 => Attempt::new(decide(Outcome::Allowed, held, Micros(0)), None),
        mode => {
            // Redis' Lua must be able to tell the instant from its neighbours.
            let end = now.after(lease).min(Micros(EXACT - 1));
            let after = if is_held { held } else { held + 1 };
            if after > capacity && !is_held {
                let outcome = if mode == Mode::SpendUpTo { Outcome::Unchanged } else { charge.short_outcome() };
                let wait = if mode == Mode::SpendUpTo { Micros(0) } else { RETRY };
                // Live requests renew their leases by the current clock. After it has stepped back, the leases of dead ones
                // must not last longer.
                let is_ahead = slots.is_some_and(|slots| slots.ends().is_ahead_of(end));
                let edit = edit(SlotsChange::EndBy(end)).filter(|_| is_ahead);
                // The edit does not belong to the denied charge.
                let counts_denied = edit.is_some();
                return Attempt { counts_denied, ..Attempt::new(decide(outcome, held, wait), edit) };
            }
            // The same name would find room, but the next request usually has another.
            let is_last = after >= capacity && mode != Mode::SpendUpTo;
            let decision = decide(Outcome::Allowed, after, if is_last { RETRY } else { Micros(0) });
            let name = name.filter(|_| mode != Mode::Check);
            Attempt::new(decision, name.and_then(|name| edit(SlotsChange::HoldUntil(name, end))))
        }
    }
}

impl Slots {
    fn held(&self, now: Micros) -> u64 {
        (self.leases.len() - self.ended(now)) as u64
    }

    fn ended(&self, now: Micros) -> usize {
        self.leases.partition_point(|(end, _)| *end <= now)
    }

    pub(super) fn holds(&self, name: Slot, now: Micros) -> bool {
        self.leases.iter().any(|(end, slot)| *slot == name && *end > now)
    }

    pub(super) fn apply(&mut self, edit: &SlotsEdit) {
        self.leases.drain(..self.ended(edit.now));
        match edit.change {
            SlotsChange::HoldUntil(name, end) => {
                self.leases.retain(|(_, slot)| *slot != name);
                let index = self.leases.partition_point(|lease| *lease < (end, name));
                self.leases.insert(index, (end, name));
            }
            SlotsChange::Free(name) => self.leases.retain(|(_, slot)| *slot != name),
            SlotsChange::FreeAll => self.leases.clear(),
            SlotsChange::EndBy(last) => {
                self.leases.iter_mut().filter(|(end, _)| end.is_ahead_of(last)).for_each(|(end, _)| *end = last);
                self.leases.sort_unstable();
            }
        }
    }

    /// The end of the last lease.
    pub(super) fn ends(&self) -> Micros {
        self.leases.last().map_or(Micros(0), |(end, _)| *end)
    }

    pub(super) const fn len(&self) -> usize {
        self.leases.len()
    }
}

#[cfg(test)]
mod tests {
    use super::super::charge::{Bucket, Input};
    use super::*;
    use Mode::{Check, Refund, Reset, Spend, SpendOnly, SpendUpTo};
    use Outcome::{Allowed, Denied, Short, Unchanged};

    /// Charges two slots with a lease of 10 s at seconds, under these names or without one for 0; compares outcome,
    /// rest, the wait in milliseconds and whether all slots are free.
    #[track_caller]
    fn check(charges: &[(u64, Mode, u128)], expected: &[(Outcome, u64, u64, bool)]) {
        let mut slots = Slots::default();
        let numbers = Numbers::concurrency(2, 10_000_000_000).unwrap();
        let answers = charges.iter().map(|(at, mode, name)| {
            let bucket = Bucket::new("L:k", 1);
            let input = (*name > 0).then(|| Box::new(Input::Slot(Slot(*name))));
            let charge = Charge { input, ..Charge::new(bucket, numbers.clone(), 1, *mode) };
            let Attempt { decision, edit, .. } = decide(Some(&slots), &charge, Micros(*at * 1_000_000));
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
                (Short, 0, 1_000, false),
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
                (Short, 0, 1_000, false),
                (Allowed, 0, 0, false),
            ],
        );
    }

    #[test]
    fn what_cannot_be_counted_is_refused() {
        let numbers = |capacity, lease| Numbers::concurrency(capacity, lease).map(|numbers| numbers.span());
        assert_eq!(numbers(MOST_SLOTS, SHORTEST_LEASE), Ok(1_000_000));
        assert_eq!(numbers(1, LONGEST_LEASE), Ok(86_400_000_000));
        assert_eq!(numbers(0, SHORTEST_LEASE), Err(NumbersError::Burst));
        for capacity in [MOST_SLOTS + 1, MOST_SLOTS * 2] {
            assert_eq!(numbers(capacity, SHORTEST_LEASE), Err(NumbersError::TooManySlots(MOST_SLOTS)));
        }
        for lease in [0, SHORTEST_LEASE - 1_000, SHORTEST_LEASE + 1, LONGEST_LEASE + 1_000] {
            assert_eq!(numbers(1, lease), Err(NumbersError::Lease), "{lease}");
        }
    }

    #[test]
    fn a_lease_ends_while_redis_can_count() {
        let input = Some(Box::new(Input::Slot(Slot(1))));
        let numbers = Numbers::concurrency(1, SHORTEST_LEASE).unwrap();
        let charge = Charge { input, ..Charge::new(Bucket::new("L:k", 1), numbers, 1, Spend) };
        let mut slots = Slots::default();
        slots.apply(&decide(None, &charge, Micros(EXACT - 5)).edit.unwrap());
        assert_eq!(slots.ends(), Micros(EXACT - 1));
    }
}
