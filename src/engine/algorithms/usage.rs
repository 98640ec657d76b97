//! The decision about a charge, which all algorithms with tokens share.

use super::charge::{Charge, Mode};
use super::decision::{Decision, Outcome};
use super::micros::{EXACT, Micros};
use super::numbers::Numbers;
use super::reservation::Reservation;

/// The usage of a bucket at the instant of a charge, in levels. A token is [`Numbers::token`] levels, which is 1 for all
/// algorithms but GCRA.
pub(super) trait Usage: Copy {
    /// At most the capacity, unless a gateway with a higher burst has written the bucket or charges are booked ahead.
    fn used(&self) -> u64;

    /// Returns the levels that others hold, which the charge cannot have.
    fn held(&self) -> u64 {
        0
    }

    #[must_use]
    fn take(self, levels: u64) -> Self;

    /// Returns the bucket with these levels booked for when no more than `most` are used.
    #[must_use]
    fn book(self, levels: u64, _most: u64) -> Self {
        self.take(levels)
    }

    /// Returns the bucket after a refund of up to `levels`; of what was taken at `taken`, if given. `None` if nothing is given back.
    fn give_back(self, levels: u64, taken: Option<Micros>) -> Option<Self>;

    /// Returns the bucket after a denied charge if it counts denied requests.
    fn count_denied(self, _charge: &Charge) -> Option<Self> {
        None
    }

    /// Returns the time until at most `most` levels are used; `None` if that never happens.
    fn until(&self, most: u64) -> Option<Micros>;

    /// Returns the decision's `reset_after`.
    fn reset_after(&self) -> Option<Micros>;
}

/// Decides a charge by these numbers, which are not the charge's own while elevated numbers hold. Returns the bucket to write,
/// if it changes.
#[inline]
pub(super) fn decide<U: Usage>(usage: U, numbers: &Numbers, charge: &Charge) -> (Decision, Option<U>) {
    let (capacity, used) = (numbers.capacity().saturating_sub(usage.held()), usage.used());
    let room = capacity.saturating_sub(used);
    let at_once = Some(Micros(0));
    let decide = |outcome, after: &U, retry_after| {
        let remaining = capacity.saturating_sub(after.used()) / numbers.token();
        Decision { outcome, delay: 0, limit: numbers.burst(), remaining, retry_after, reset_after: after.reset_after() }
    };
    match charge.mode {
        Mode::Spend | Mode::Check | Mode::Look | Mode::SpendOnly | Mode::SpendUpTo if charge.cost == 0 => {
            (decide(Outcome::Allowed, &usage, at_once), None)
        }
        Mode::Spend | Mode::Check | Mode::Look | Mode::SpendOnly => {
            let wanted = charge.cost.saturating_mul(numbers.token());
            if wanted <= room && charge.mode == Mode::Look {
                return (decide(Outcome::Allowed, &usage, at_once), None);
            }
            if wanted <= room {
                let after = usage.take(wanted);
                let again = after.until(capacity - wanted);
                return (decide(Outcome::Allowed, &after, again), (charge.mode != Mode::Check).then_some(after));
            }
            if let Some((after, delay)) = book(&usage, charge, capacity, wanted) {
                if charge.mode == Mode::Look {
                    return (Decision { delay, ..decide(Outcome::Allowed, &usage, at_once) }, None);
                }
                let decision = decide(Outcome::Allowed, &after, after.until(capacity - wanted));
                return (Decision { delay, ..decision }, (charge.mode != Mode::Check).then_some(after));
            }
            let counted = usage.count_denied(charge);
            let after = counted.unwrap_or(usage);
            let wait = capacity.checked_sub(wanted).and_then(|most| after.until(most));
            (decide(charge.short_outcome(), &after, wait), counted)
        }
        Mode::SpendUpTo if room == 0 => (decide(Outcome::Unchanged, &usage, at_once), None),
        Mode::SpendUpTo => {
            let after = usage.take(charge.cost.saturating_mul(numbers.token()).min(room));
            (decide(Outcome::Allowed, &after, at_once), Some(after))
        }
        Mode::Refund => {
            let given_back = charge.cost.saturating_mul(numbers.token());
            match usage.give_back(given_back, charge.taken()) {
                Some(after) => (decide(Outcome::Allowed, &after, at_once), Some(after)),
                None => (decide(Outcome::Unchanged, &usage, at_once), None),
            }
        }
        Mode::Reset => {
            let after = usage.give_back(u64::MAX, None).unwrap_or(usage);
            (decide(Outcome::Allowed, &after, at_once), Some(after))
        }
    }
}

/// Returns the bucket to write for a charge that may make or end a hold: that takes nothing, and this writes in any case.
#[inline]
pub(super) fn beside_holds<U>(before: U, after: Option<U>, charge: &Charge) -> Option<U> {
    match charge.reservation() {
        None => after,
        Some(Reservation::Reserve(..)) => after.map(|_| before),
        Some(Reservation::Commit(_)) => after.or(Some(before)),
    }
}

/// Books a charge that does not fit now for the time when it does, if its caller waits that long. Returns the bucket, and the wait
/// in microseconds.
fn book<U: Usage>(usage: &U, charge: &Charge, capacity: u64, wanted: u64) -> Option<(U, u32)> {
    let patience = charge.delay()?.patience;
    let most = capacity.checked_sub(wanted)?;
    let wait = usage.until(most).filter(|wait| *wait <= patience)?;
    let after = usage.book(wanted, most);
    if after.used() < EXACT { Some((after, u32::try_from(wait.0).ok()?)) } else { None }
}
