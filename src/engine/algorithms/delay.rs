//! Delays: charges that do not fit yet are booked ahead of time, and their requests wait until then.
//!
//! A booked charge counts from the moment of the decision, so a bucket may have used more than its burst. GCRA then stands as far
//! below empty as refills within the delay. In fixed windows, what is beyond the burst belongs to the windows that follow.

use super::micros::{EXACT, Micros};
use super::numbers::Numbers;
use super::windows::Windows;

/// The shortest and the longest `delay:`, in microseconds. Timers tick in milliseconds. A client that waits longer has most likely
/// given up.
pub const SHORTEST_DELAY: u64 = 1_000;
pub const LONGEST_DELAY: u64 = 600_000_000;

/// `delay:` of a limit, and how much of it the caller of a charge can wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay {
    /// The limit's delay. It bounds what may be booked ahead.
    pub most: Micros,
    /// The longest wait of this charge: 0 if its caller cannot wait.
    pub patience: Micros,
}

impl Delay {
    pub const fn new(most: Micros) -> Self {
        Self { most, patience: most }
    }

    /// Returns the most levels that a bucket which refills evenly has booked ahead.
    pub(super) fn levels(&self, numbers: &Numbers) -> u64 {
        self.most.0.saturating_mul(numbers.drain()).min(EXACT - 1)
    }

    /// Returns the number of windows after the current one that may have bookings. No window of a calendar is shorter than a delay.
    pub fn windows(&self, windows: Windows<'_>) -> u64 {
        match windows {
            Windows::First(period) | Windows::Clock(period) => self.most.0.div_ceil(period.max(1)),
            Windows::Calendar(_) => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use super::super::algorithm::Aligned;
    use super::super::calendar::{Calendar, Unit};
    use super::super::charge::{Bucket, Charge, Input, Mode};
    use super::super::decision::Outcome;
    use super::super::state::{self, BucketState};

    const SECOND: u64 = 1_000_000_000;
    const NOW: Micros = Micros(1_000_000_000);

    fn charge(numbers: &Numbers, cost: u64, mode: Mode, delay: Delay) -> Charge {
        let input = Some(Box::new(Input::Delay(delay)));
        Charge { input, ..Charge::new(Bucket::new("L:k", 1), numbers.clone(), cost, mode) }
    }

    /// Charges of 1 at one instant: the delay and the wait for another one in milliseconds, or that of the denied one at the end.
    #[track_caller]
    fn check(numbers: &Numbers, most: u64, effective_from: Micros, delays: &[(u64, u64)], denied: u64) {
        let delay = Delay::new(Micros(most));
        let mut kept: Option<BucketState> = None;
        for (after, again) in delays {
            let ask = |mode| state::decide(kept.as_ref(), &charge(numbers, 1, mode, delay), None, NOW, effective_from);
            let [spend, check, look] = [Mode::Spend, Mode::Check, Mode::Look].map(|mode| ask(mode).unwrap());
            assert_eq!((check.decision, check.edit), (spend.decision, None));
            assert_eq!((look.decision.delay, look.edit), (spend.decision.delay, None));
            let waits = [spend.decision.delay(), spend.decision.retry_after.unwrap()].map(|wait| wait.0 / 1_000);
            assert_eq!((spend.decision.outcome, waits), (Outcome::Allowed, [*after, *again]));
            kept = BucketState::edited(kept, &spend.edit.unwrap());
        }
        for patience in [most, 0] {
            let impatient = Delay { most: Micros(most), patience: Micros(patience) };
            let spend = charge(numbers, 1, Mode::Spend, impatient);
            let last = state::decide(kept.as_ref(), &spend, None, NOW, effective_from).unwrap();
            let wait = last.decision.retry_after.unwrap().0 / 1_000;
            assert_eq!(
                (last.decision.outcome, wait, last.edit),
                (Outcome::Denied, denied, None),
                "patience {patience}"
            );
        }
    }

    #[test]
    fn what_does_not_fit_is_booked_as_far_ahead_as_the_delay() {
        let gcra = Numbers::new(2, 1, SECOND).unwrap();
        for effective_from in [Micros(0), NOW] {
            let delays = [(0, 0), (0, 1_000), (1_000, 2_000), (2_000, 3_000)];
            check(&gcra, 2_000_000, effective_from, &delays, 3_000);
        }
        // Windows begin at the first charge, with two tokens each.
        let windows = Numbers::fixed_window(2, 2, SECOND, Aligned::First).unwrap();
        let delays = [(0, 0), (0, 1_000), (1_000, 1_000), (1_000, 2_000)];
        check(&windows, 1_500_000, Micros(0), &delays, 2_000);
        // A charge that fits into no window books nothing.
        let large = charge(&windows, 3, Mode::Spend, Delay::new(Micros(1_500_000)));
        let denied = state::decide(None, &large, None, NOW, Micros(0)).unwrap();
        assert_eq!((denied.decision.outcome, denied.edit), (Outcome::Denied, None));
    }

    #[test]
    fn bookings_stay_below_what_redis_can_count() {
        let numbers = Numbers::fixed_window(EXACT - 1, EXACT - 1, SECOND, Aligned::First).unwrap();
        let spend = |cost| charge(&numbers, cost, Mode::Spend, Delay::new(Micros(1_000_000)));
        for (used, booked, expected) in
            [(EXACT - 1, 1, Outcome::Denied), (EXACT - 1, 2, Outcome::Denied), (EXACT - 2, 1, Outcome::Allowed)]
        {
            let first = state::decide(None, &spend(used), None, NOW, Micros(0)).unwrap();
            let kept = BucketState::edited(None, &first.edit.unwrap());
            let second = state::decide(kept.as_ref(), &spend(booked), None, NOW, Micros(0)).unwrap();
            assert_eq!(second.decision.outcome, expected, "{booked} after {used}");
        }
        let fast = Numbers::new(10, 999_999_937, SECOND).unwrap();
        assert_eq!(Delay::new(Micros(LONGEST_DELAY)).levels(&fast), EXACT - 1);
        let month = Calendar::find(Unit::Month(1), "UTC").unwrap();
        let windows = [Windows::First(0), Windows::Clock(1_000_000), Windows::Calendar(&month)];
        assert_eq!(windows.map(|windows| Delay::new(Micros(1_500_000)).windows(windows)), [1_500_000, 2, 1]);
    }
}
