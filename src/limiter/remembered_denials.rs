//! Denials that hold for a moment: a flood on one id asks Redis about ten times per second, not once per request.
//!
//! The store's answer to a plan is remembered until its shortest `Retry-After` ends. It answers the same plan and no other: a reload,
//! an override and a reset of a limit make other charges. What gives tokens back through this process ends all of it, at all workers, and
//! what this worker takes from a bucket ends the answers about that bucket. What another gateway gives back, or the store of a cluster by
//! itself, is unknown here for at most [`LONGEST`]. So is what another worker or gateway takes: the wait in an answer may then be too short, as
//! if that request came later.

use std::cell::{Cell, RefCell};
use std::time::Instant;

use smallvec::SmallVec;

use super::Limiter;
use crate::clock::micros;
use crate::engine::algorithms::by_fingerprint::ByFingerprint;
use crate::engine::algorithms::charge::{Charge, Dated, Mode};
use crate::engine::algorithms::decision::{Decision, Decisions, Outcome};
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::reservation::Reservation;
use crate::store::StoreError;

/// The time for which an answer is remembered, in microseconds.
const LONGEST: Micros = Micros(100_000);

/// The most answers that a worker remembers: some 2 MiB with one charge each. A full table takes no other until it is emptied.
const MOST: usize = 4_096;

/// The answers that a worker remembers.
#[derive(Default)]
pub(super) struct RememberedDenials {
    /// By the sum of the fingerprints of all charges.
    answers: RefCell<ByFingerprint<u128, Remembered>>,
    /// They hold for this value of `Shared::given_back`.
    given_back: Cell<u64>,
    /// The number of takings that are known here.
    takings: Cell<u64>,
    /// The last taking from each bucket of the answers.
    taken: RefCell<ByFingerprint<u128, u64>>,
}

struct Remembered {
    charges: SmallVec<[Charge; 1]>,
    effective_from: Micros,
    /// The number of takings before it. It holds until one of its buckets has a later one.
    takings: u64,
    /// The arrival of the request that asked the store. No wait of the answer ends before `hold` from here.
    asked: Instant,
    now: Micros,
    hold: Micros,
    /// The time that the store took to answer. Waits count from its answer, so that no client that waits is early.
    took: Micros,
    decisions: Decisions,
}

/// A call to the store.
pub(super) struct Call<'c> {
    pub(super) charges: &'c [Charge],
    pub(super) effective_from: Micros,
    /// The arrival of its request.
    pub(super) asked: Instant,
    /// The same by the clock of the limits, which may step back, and goes as a test wants it to.
    pub(super) now: Micros,
    /// [`Shared::given_back`](super::Shared::given_back) at that time.
    pub(super) given_back: u64,
}

impl RememberedDenials {
    /// Returns the store's answer to the same charges, if it denied them a moment ago.
    fn recall(&self, call: &Call<'_>) -> Option<Decisions> {
        let mut answers = self.answers.borrow_mut();
        if answers.is_empty() {
            return None;
        }
        if self.given_back.get() != call.given_back {
            answers.clear();
            self.taken.borrow_mut().clear();
            return None;
        }
        let known = answers.get(&sum(call.charges))?;
        let is_same = known.effective_from == call.effective_from && *known.charges == *call.charges;
        // By both clocks.
        let by_limits = call.now.0.checked_sub(known.now.0).map(Micros);
        let by_machine = call.asked.checked_duration_since(known.asked).map(micros);
        let holds = |elapsed: Option<Micros>| elapsed.is_some_and(|elapsed| elapsed < known.hold);
        if !is_same || !holds(by_limits) || !holds(by_machine) || self.was_taken_from(known) {
            return None;
        }
        let elapsed = by_limits.unwrap_or_default().0.saturating_sub(known.took.0);
        let left = |span: Option<Micros>| span.map(|span| Micros(span.0.saturating_sub(elapsed)));
        let decision = |known: &Decision| Decision {
            retry_after: left(known.retry_after),
            reset_after: left(known.reset_after),
            ..*known
        };
        Some(known.decisions.iter().map(decision).collect())
    }

    /// Remembers what the store has answered, if it is a denial that does not change until somebody gives tokens back.
    fn remember(&self, call: &Call<'_>, decisions: &Decisions, took: Micros) {
        let Call { charges, effective_from, asked, now, given_back } = *call;
        if !decisions.iter().any(Decision::is_denied) || !decisions.details.is_empty() || !charges.iter().all(is_plain)
        {
            return;
        }
        let short = decisions.iter().filter(|decision| decision.is_short());
        let hold = short.filter_map(|decision| decision.retry_after).fold(LONGEST, Micros::min);
        let mut answers = self.answers.borrow_mut();
        let mut taken = self.taken.borrow_mut();
        if self.given_back.replace(given_back) != given_back {
            answers.clear();
            taken.clear();
        }
        let key = sum(charges);
        if answers.len() < MOST || answers.contains_key(&key) {
            for charge in charges {
                taken.entry(charge.bucket.fingerprint).or_insert(0);
            }
            let remembered = Remembered {
                takings: self.takings.get(),
                charges: charges.iter().cloned().collect(),
                effective_from,
                asked,
                now,
                hold,
                took,
                decisions: decisions.iter().copied().collect(),
            };
            answers.insert(key, remembered);
        }
    }

    fn was_taken_from(&self, known: &Remembered) -> bool {
        let taken = self.taken.borrow();
        let last = |charge: &Charge| taken.get(&charge.bucket.fingerprint).copied();
        known.charges.iter().filter_map(last).any(|last| last > known.takings)
    }

    /// Ends the answers about the buckets from which a call has taken something, or may have if it failed.
    fn take(&self, charges: &[Charge], decisions: Option<&Decisions>) {
        let mut taken = self.taken.borrow_mut();
        if taken.is_empty() {
            return;
        }
        for (place, charge) in charges.iter().enumerate() {
            let decision = decisions.and_then(|decisions| decisions.get(place));
            let has_taken = decision.is_none_or(|decision| decision.outcome == Outcome::Allowed);
            if let Some(last) = taken.get_mut(&charge.bucket.fingerprint).filter(|_| has_taken) {
                self.takings.set(self.takings.get() + 1);
                *last = self.takings.get();
            }
        }
    }

    /// Forgets everything. Must be called about once a second: most of it has ended.
    pub(super) fn flush(&self) {
        self.answers.borrow_mut().clear();
        self.taken.borrow_mut().clear();
    }
}

impl Limiter {
    /// Returns what a remote store answered to the same charges a moment ago, if it denied them.
    pub(super) fn recall(&self, call: &Call<'_>) -> Option<Decisions> {
        let decisions = self.remembered.recall(call)?;
        self.shared.metrics.store.remembered_denials.inc();
        Some(decisions)
    }

    /// Takes note of a remote store's answer, which came just now. A call that failed may have been made all the same.
    pub(super) fn note_answer(&self, call: &Call<'_>, answer: &Result<Decisions, StoreError>) {
        if call.charges.iter().any(gives_back) {
            self.shared.give_back();
            return;
        }
        self.remembered.take(call.charges, answer.as_ref().ok());
        if let Ok(decisions) = answer {
            self.remembered.remember(call, decisions, micros(call.asked.elapsed()));
        }
    }
}

/// Returns true if a charge may let a request pass that was denied before.
pub(super) fn gives_back(charge: &Charge) -> bool {
    matches!(charge.mode, Mode::Refund | Mode::Reset) || matches!(charge.reservation(), Some(Reservation::Commit(_)))
}

/// Returns true if a charge that does not fit stays so until its `retry_after`, and changes nothing.
fn is_plain(charge: &Charge) -> bool {
    let is_spend = charge.mode == Mode::Spend && charge.dated == Dated::No && !charge.counts_denied();
    is_spend
        && charge.numbers.algorithm().has_tokens()
        && charge.input.is_none()
        && charge.lease.is_none()
        && !charge.origin.is_beside()
}

fn sum(charges: &[Charge]) -> u128 {
    charges.iter().fold(0, |sum: u128, charge| sum.wrapping_add(charge.bucket.fingerprint))
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;
    use std::time::Duration;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::engine::algorithms::charge::{Bucket, ChargeOrigin};
    use crate::engine::algorithms::numbers::Numbers;
    use crate::store::Batch;
    use crate::store::memory::MemoryStore;

    fn charge(id: u128, cost: u64) -> Charge {
        let numbers = Numbers::new(5, 5, 60_000_000_000).unwrap();
        let charge = Charge::new(Bucket::new("L:k", id), numbers, cost, Mode::Spend);
        Charge { origin: ChargeOrigin::new(0, true), ..charge }
    }

    fn denied(retry_after: Option<u64>) -> Decisions {
        let retry_after = retry_after.map(Micros);
        [Decision { retry_after, reset_after: Some(Micros(1_000_000)), ..Decision::never() }].into_iter().collect()
    }

    /// A call `at` so many microseconds.
    fn call(charges: &[Charge], effective_from: u64, at: u64, given_back: u64) -> Call<'_> {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        let asked = *START + Duration::from_micros(at);
        Call { charges, effective_from: Micros(effective_from), asked, now: Micros(at), given_back }
    }

    /// `retry_after` and `reset_after`.
    type Told = (Option<u64>, Option<u64>);

    /// Remembers an answer at 1 s, which took 100 us, and returns the wait and the reset in later answers.
    fn asking(charges: &[Charge], answer: &Decisions) -> impl Fn(&Call<'_>) -> Option<Told> + use<> {
        let memory = RememberedDenials::default();
        let asked = call(charges, 1, 1_000_000, 7);
        memory.remember(&asked, answer, Micros(100));
        move |call| {
            let known = memory.recall(call)?;
            Some((known[0].retry_after.map(|wait| wait.0), known[0].reset_after.map(|wait| wait.0)))
        }
    }

    #[test]
    fn an_answer_holds_for_its_charges_until_its_wait_ends() {
        let one = [charge(1, 1)];
        let asked = asking(&one, &denied(Some(40_000)));
        assert_eq!(asked(&call(&one, 1, 1_000_000, 7)), Some((Some(40_000), Some(1_000_000))));
        assert_eq!(asked(&call(&one, 1, 1_039_999, 7)), Some((Some(101), Some(960_101))));
        for (charges, from, now) in [
            (&one[..], 1, 1_040_000),
            (&one, 1, 999_999),
            (&one, 2, 1_000_000),
            (&[charge(1, 2)], 1, 1_000_000),
            (&[charge(2, 1)], 1, 1_000_000),
            (&[charge(1, 1), charge(0, 1)], 1, 1_000_000),
        ] {
            assert_eq!(asked(&call(charges, from, now, 7)), None, "{charges:?} {from} {now}");
        }
        // One of the clocks stands, or has stepped back.
        for odd in [
            Call { now: Micros(1_040_000), ..call(&one, 1, 1_000_000, 7) },
            Call { now: Micros(999_999), ..call(&one, 1, 1_000_000, 7) },
            Call { now: Micros(1_000_000), ..call(&one, 1, 1_040_000, 7) },
        ] {
            assert_eq!(asked(&odd), None);
        }
        // After tokens were given back, it does not return.
        assert_eq!([8, 7].map(|given_back| asked(&call(&one, 1, 1_000_000, given_back))), [None, None]);
        for never in [None, Some(u64::MAX)] {
            let asked = asking(&one, &denied(never));
            assert!(asked(&call(&one, 1, 1_099_999, 7)).is_some() && asked(&call(&one, 1, 1_100_000, 7)).is_none());
        }
    }

    /// A request: the ids that it charges, its cost, the time since the last one in microseconds, and whether it is a refund.
    type Asked = (Vec<u128>, u64, u64, bool);

    fn asked() -> impl Strategy<Value = Asked> {
        let ids = proptest::sample::subsequence(vec![1, 2, 3], 1..=2);
        (ids, 1..4_u64, prop_oneof![0..2_000_u64, 0..70_000_u64], proptest::bool::weighted(0.1))
    }

    proptest! {
        /// Requests of three ids with different algorithms, to a store and to another one behind a memory.
        #[test]
        fn who_is_denied_from_memory_would_be_denied_by_the_store(requests in vec(asked(), 1..200)) {
            const MS: u64 = 1_000_000;
            let of = |id| match id {
                1 => Numbers::new(5, 5, 200 * MS).unwrap(),
                2 => Numbers::sliding_log(4, 300 * MS).unwrap(),
                _ => Numbers::sliding_window(6, 250 * MS, false).unwrap(),
            };
            let (memory, stores) = (RememberedDenials::default(), [MemoryStore::new(100), MemoryStore::new(100)]);
            let (mut at, mut given_back) = (1_000_000_000, 0);
            for (ids, cost, later, is_refund) in requests {
                at += later;
                let mode = if is_refund { Mode::Refund } else { Mode::Spend };
                let of = |id: &u128| {
                    let origin = ChargeOrigin::new(u32::try_from(*id).unwrap(), true);
                    Charge { origin, ..Charge::new(Bucket::new("L:k", *id), of(*id), cost, mode) }
                };
                let charges: Vec<Charge> = ids.iter().map(of).collect();
                let batch = Batch { charges: &charges, effective_from: Micros(0), now: Micros(at) };
                let expected = stores[0].decide(&batch).unwrap();
                let call = call(&charges, 0, at, given_back);
                let known = memory.recall(&call);
                let found = known.clone().unwrap_or_else(|| {
                    let decided = stores[1].decide(&batch).unwrap();
                    if !is_refund {
                        memory.take(&charges, Some(&decided));
                        memory.remember(&call, &decided, Micros(0));
                    }
                    decided
                });
                given_back += u64::from(is_refund);
                let is_denied = |decisions: &Decisions| decisions.iter().any(Decision::is_denied);
                prop_assert_eq!(is_denied(&found), is_denied(&expected));
                for (found, expected) in found.iter().zip(expected.iter()) {
                    prop_assert_eq!(found.outcome, expected.outcome);
                    prop_assert!(!found.is_short() || found.retry_after == expected.retry_after);
                }
                if known.is_none() {
                    prop_assert_eq!(&found[..], &expected[..]);
                }
            }
        }
    }

    #[test]
    fn the_shortest_wait_of_several_ends_an_answer() {
        let both = [charge(1, 1), charge(2, 1)];
        let answers = [denied(Some(50_000)), denied(Some(20_000))];
        let asked = asking(&both, &answers.iter().map(|answer| answer[0]).collect());
        assert_eq!(asked(&call(&both, 1, 1_019_999, 7)), Some((Some(30_101), Some(980_101))));
        assert_eq!(asked(&call(&both, 1, 1_020_000, 7)), None);
    }

    #[test]
    fn what_may_change_is_not_remembered() {
        let allowed: Decisions = [Decision { outcome: Outcome::Allowed, ..Decision::never() }].into_iter().collect();
        let counting = Numbers::sliding_window(5, 60_000_000_000, true).unwrap();
        for (charge, decisions) in [
            (charge(1, 1), allowed),
            (Charge { numbers: counting, ..charge(1, 1) }, denied(Some(1_000))),
            (Charge { dated: Dated::Reserved, ..charge(1, 1) }, denied(Some(1_000))),
            (Charge { mode: Mode::Check, ..charge(1, 1) }, denied(Some(1_000))),
        ] {
            let memory = RememberedDenials::default();
            let call = call(std::slice::from_ref(&charge), 0, 0, 0);
            memory.remember(&call, &decisions, Micros(0));
            assert!(memory.answers.borrow().is_empty(), "{charge:?}");
        }
    }

    #[test]
    fn answers_are_bounded() {
        let memory = RememberedDenials::default();
        for id in 0..5_000 {
            let charges = [charge(id, 1)];
            let call = call(&charges, 0, 0, 0);
            memory.remember(&call, &denied(Some(1_000)), Micros(0));
        }
        assert_eq!(memory.answers.borrow().len(), MOST);
        memory.flush();
        assert!(memory.answers.borrow().is_empty());
    }
}
