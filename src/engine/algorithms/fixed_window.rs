//! Fixed windows: each window adds `count` tokens at its start, up to the burst, and none in between.
//!
//! Twice the count can pass around the boundary of two windows, which GCRA avoids. `lua/fixed_window.lua` does the same
//! arithmetic.

use std::sync::Arc;

use super::algorithm::{Algorithm, Aligned};
use super::calendar::{Calendar, MOST_WINDOWS_AHEAD};
use super::charge::Charge;
use super::decision::Decision;
use super::level::{Level, LevelChange};
use super::micros::{EXACT, Micros};
use super::numbers::{Numbers, NumbersError, whole_micros};
use super::usage::{self, Usage};
use super::windows::{Refill, Windows};

impl Numbers {
    /// Numbers that add `count` tokens with each window of `period` nanoseconds, up to `burst`.
    pub fn fixed_window(burst: u64, count: u64, period: u64, aligned: Aligned) -> Result<Self, NumbersError> {
        let micros = whole_micros(period)?;
        let refill = Refill::by(match aligned {
            Aligned::First => Windows::First(micros),
            Aligned::Clock => Windows::Clock(micros),
        });
        let numbers = windowed(burst, count, period, aligned, refill)?;
        let full = u128::from(numbers.windows_to_fill()) * u128::from(micros);
        if full < u128::from(EXACT) { Ok(numbers) } else { Err(NumbersError::TooLong) }
    }

    /// Numbers that add `count` tokens with each month or year of a calendar, up to `burst`.
    pub fn calendar_window(burst: u64, count: u64, calendar: impl Into<Arc<Calendar>>) -> Result<Self, NumbersError> {
        let calendar = calendar.into();
        let refill = Refill::by(Windows::Calendar(&calendar));
        let numbers = Self { calendar: Some(calendar), ..windowed(burst, count, 0, Aligned::Clock, refill)? };
        if numbers.windows_to_fill() <= MOST_WINDOWS_AHEAD { Ok(numbers) } else { Err(NumbersError::TooManyWindows) }
    }
}

fn windowed(burst: u64, count: u64, period: u64, aligned: Aligned, refill: Refill) -> Result<Numbers, NumbersError> {
    match (burst, count) {
        (0, _) => Err(NumbersError::Burst),
        (_, 0) => Err(NumbersError::Count),
        (EXACT.., _) | (_, EXACT..) => Err(NumbersError::TooLarge),
        _ => Ok(Numbers::with(burst, count, period, Algorithm::FixedWindow(aligned), refill)),
    }
}

/// A bucket at the instant of a charge.
#[derive(Clone, Copy)]
struct FixedWindow<'a> {
    numbers: &'a Numbers,
    windows: Windows<'a>,
    /// Tokens used: at most `most`.
    used: u64,
    /// The burst, and the tokens of the windows that may have bookings. What is used beyond the burst is booked in those.
    most: u64,
    /// Tokens used beyond that, which delay nobody: the burst was lowered within the window, or another gateway has a
    /// higher one. A refund gives them back first.
    excess: u64,
    /// The start of the window. For a full bucket whose windows begin with a charge, now.
    start: Micros,
    /// Now, or the last write if the clock has stepped back behind it. The bucket does not change in between.
    instant: Micros,
    /// Tokens that others hold.
    held: u64,
}

impl<'a> FixedWindow<'a> {
    fn find(
        level: Option<&Level>,
        (numbers, most): (&'a Numbers, u64),
        windows: Windows<'a>,
        now: Micros,
        effective_from: Micros,
    ) -> Self {
        let instant = level.map_or(now, |level| level.since.max(now));
        let refilled = |anchor, used: u64, from| {
            let [first, last] = [from, instant].map(|at| windows.number(anchor, at));
            let bounded = used.min(most);
            // The excess ends with the window.
            let excess = if first == last { used - bounded } else { 0 };
            let used = bounded.saturating_sub((last - first).saturating_mul(numbers.count()));
            (used, excess, windows.start(anchor, last))
        };
        let (used, excess, start) = match level {
            None => refilled(instant, 0, instant),
            Some(level) if level.is_under(numbers) => refilled(level.since, level.used, level.since),
            Some(level) => {
                let changed = level.changed(now, effective_from);
                let carried = level.carry_over(changed);
                refilled(carried.window_start, carried.in_levels_of(numbers), changed)
            }
        };
        let start = if used == 0 && matches!(windows, Windows::First(_)) { instant } else { start };
        Self { numbers, windows, used, most, excess, start, instant, held: 0 }
    }

    /// Returns the time until the start of the window that is `count` windows after this one.
    fn until_window(&self, count: u64) -> Micros {
        self.windows.after(self.start, count).since(self.instant)
    }

    fn level(&self) -> Level {
        let refill = self.numbers.refill;
        let refill = match self.windows {
            Windows::Calendar(calendar) => refill.in_window(calendar.length(calendar.number(self.start))),
            Windows::First(_) | Windows::Clock(_) => refill,
        };
        Level { since: self.start, used: self.used + self.excess, weight: self.numbers.count(), refill }
    }
}

impl Usage for FixedWindow<'_> {
    fn held(&self) -> u64 {
        self.held
    }

    fn used(&self) -> u64 {
        self.used
    }

    fn take(self, levels: u64) -> Self {
        Self { used: self.used + levels, ..self }
    }

    fn book(self, levels: u64, most: u64) -> Self {
        let (missing, count) = (self.used.saturating_sub(most), self.numbers.count());
        // The tokens that are left of earlier windows do not count in the one that is booked.
        let passed = missing.div_ceil(count).saturating_mul(count);
        Self { used: self.used.max(passed).saturating_add(levels), ..self }
    }

    fn give_back(self, levels: u64, taken: Option<Micros>) -> Option<Self> {
        // The tokens of an earlier window are over.
        if taken.is_some_and(|taken| taken < self.start) {
            return None;
        }
        let all = self.used + self.excess;
        let left = all.saturating_sub(levels);
        let used = left.min(self.most);
        (left < all).then(|| Self { used, excess: left - used, ..self })
    }

    fn until(&self, most: u64) -> Option<Micros> {
        let missing = self.used.saturating_sub(most);
        Some(if missing == 0 { Micros(0) } else { self.until_window(missing.div_ceil(self.numbers.count())) })
    }

    /// Returns the time until the window ends. A full bucket whose windows begin with a charge has no window.
    fn reset_after(&self) -> Option<Micros> {
        let has_no_window = self.used == 0 && matches!(self.windows, Windows::First(_));
        Some(if has_no_window { Micros(0) } else { self.until_window(1) })
    }
}

/// Decides a charge beside tokens that are held; `windows` are those of its numbers.
#[inline]
pub(super) fn decide(
    (level, held): (Option<&Level>, u64),
    charge: &Charge,
    windows: Windows<'_>,
    now: Micros,
    effective_from: Micros,
) -> (Decision, LevelChange) {
    let numbers = &charge.numbers;
    let ahead = charge.delay().map_or(0, |delay| delay.windows(windows));
    let most = numbers.burst().saturating_add(ahead.saturating_mul(numbers.count()));
    let bucket = FixedWindow { held, ..FixedWindow::find(level, (numbers, most), windows, now, effective_from) };
    let (decision, after) = usage::decide(bucket, numbers, charge);
    (decision, usage::beside_holds(bucket, after, charge).map(|after| after.level()).into())
}

#[cfg(test)]
mod tests {
    use super::super::calendar::Unit;
    use super::super::charge::{Bucket, Mode};
    use super::super::decision::Outcome;
    use super::super::state::decide_level as decide;
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn windows(burst: u64, count: u64, seconds: u64, aligned: Aligned) -> Numbers {
        Numbers::fixed_window(burst, count, seconds * SECOND, aligned).unwrap()
    }

    fn monthly(burst: u64, count: u64, zone: &str) -> Numbers {
        Numbers::calendar_window(burst, count, Calendar::find(Unit::Month(1), zone).unwrap()).unwrap()
    }

    fn micros(text: &str) -> Micros {
        Micros(u64::try_from(text.parse::<jiff::Timestamp>().unwrap().as_microsecond()).unwrap())
    }

    /// A bucket, and the numbers that it is charged under since an instant.
    struct ChargedBucket {
        numbers: Numbers,
        effective_from: Micros,
        level: Option<Level>,
    }

    impl ChargedBucket {
        fn new(numbers: Numbers) -> Self {
            Self { numbers, effective_from: Micros(0), level: None }
        }

        fn change(&mut self, numbers: Numbers, at: Micros) {
            (self.numbers, self.effective_from) = (numbers, at);
        }

        /// Charges, and compares the outcome, what remains, and `retry_after` and `reset_after` in seconds.
        #[track_caller]
        fn check(&mut self, at: Micros, cost: u64, mode: Mode, expected: (Outcome, u64, u64, u64)) {
            let charge = Charge::new(Bucket::new("L:k", 1), self.numbers.clone(), cost, mode);
            let (decision, change) = decide(self.level.as_ref(), &charge, at, self.effective_from);
            let [retry, reset] =
                [decision.retry_after, decision.reset_after].map(|span| span.map_or(u64::MAX, Micros::ceil_seconds));
            assert_eq!((decision.outcome, decision.remaining, retry, reset), expected, "at {at:?}");
            match change {
                LevelChange::Keep => {}
                LevelChange::Write(level) => self.level = Some(level),
                LevelChange::Clear => self.level = None,
            }
        }

        #[track_caller]
        fn spend(&mut self, second: u64, cost: u64, expected: (Outcome, u64, u64, u64)) {
            self.check(Micros(second * 1_000_000), cost, Mode::Spend, expected);
        }
    }

    use Outcome::{Allowed, Denied, Short, Unchanged};

    #[test]
    fn windows_of_the_clock_begin_at_multiples_of_their_period() {
        // envoyproxy/ratelimit at the times of its own tests: an hour begins at 997 200, a day at 950 400.
        for (seconds, at, reset) in [(60, 1_234, 26), (3_600, 1_000_000, 800), (86_400, 1_000_000, 36_800)] {
            let mut bucket = ChargedBucket::new(windows(10, 10, seconds, Aligned::Clock));
            bucket.spend(at, 1, (Allowed, 9, 0, reset));
            assert_eq!(bucket.level.unwrap().since.0, (at + reset - seconds) * 1_000_000);
            bucket.spend(at, 9, (Allowed, 0, reset, reset));
            bucket.spend(at + reset - 1, 1, (Denied, 0, 1, 1));
            bucket.spend(at + reset, 1, (Allowed, 9, 0, seconds));
        }
        // A window is there before its first charge.
        let mut bucket = ChargedBucket::new(windows(10, 10, 60, Aligned::Clock));
        bucket.spend(70, 0, (Allowed, 10, 0, 50));
        assert_eq!(bucket.level, None);
    }

    #[test]
    fn windows_of_a_bucket_begin_with_its_first_charge() {
        let mut bucket = ChargedBucket::new(windows(3, 3, 60, Aligned::First));
        bucket.spend(70, 0, (Allowed, 3, 0, 0));
        bucket.spend(70, 2, (Allowed, 1, 60, 60));
        bucket.spend(129, 2, (Denied, 1, 1, 1));
        bucket.spend(131, 2, (Allowed, 1, 60, 60));
        bucket.check(Micros(140_000_000), 1, Mode::Refund, (Allowed, 2, 0, 51));
        bucket.check(Micros(140_000_000), 9, Mode::Refund, (Allowed, 3, 0, 0));
        assert_eq!(bucket.level, None, "a full bucket has no state");
        bucket.check(Micros(140_000_000), 1, Mode::Refund, (Unchanged, 3, 0, 0));
        bucket.spend(150, 3, (Allowed, 0, 60, 60));
        bucket.check(Micros(150_000_000), 1, Mode::SpendOnly, (Short, 0, 60, 60));
        bucket.check(Micros(150_000_000), 4, Mode::Spend, (Denied, 0, u64::MAX, 60));
        bucket.check(Micros(150_000_000), 0, Mode::Reset, (Allowed, 3, 0, 0));
        assert_eq!(bucket.level, None);
    }

    #[test]
    fn grants_that_were_not_used_add_up_to_the_burst() {
        let mut bucket = ChargedBucket::new(windows(10, 3, 10, Aligned::First));
        bucket.spend(0, 10, (Allowed, 0, 40, 10));
        bucket.spend(9, 1, (Denied, 0, 1, 1));
        bucket.spend(9, 4, (Denied, 0, 11, 1));
        bucket.spend(25, 6, (Allowed, 0, 15, 5));
        bucket.spend(39, 4, (Denied, 3, 1, 1));
        bucket.spend(60, 10, (Allowed, 0, 40, 10));
        let mut bucket = ChargedBucket::new(monthly(250, 100, "UTC"));
        let january = micros("2024-01-31T00:00:00Z");
        bucket.check(january, 250, Mode::Spend, (Allowed, 0, (1 + 29 + 31) * 86_400, 86_400));
        bucket.check(micros("2024-03-01T00:00:00Z"), 200, Mode::Spend, (Allowed, 0, 61 * 86_400, 31 * 86_400));
    }

    /// Kong's header and envoyproxy/ratelimit's window would say thirty days from there.
    #[test]
    fn a_month_asked_on_31_january_ends_with_the_day() {
        for (zone, at) in [("UTC", "2024-01-31T23:59:00Z"), ("Asia/Tokyo", "2024-01-31T14:59:00Z")] {
            let mut bucket = ChargedBucket::new(monthly(10, 10, zone));
            bucket.check(micros(at), 10, Mode::Spend, (Allowed, 0, 60, 60));
            bucket.check(Micros(micros(at).0 + 59_999_999), 1, Mode::Spend, (Denied, 0, 1, 1));
            bucket.check(Micros(micros(at).0 + 60_000_000), 10, Mode::Spend, (Allowed, 0, 29 * 86_400, 29 * 86_400));
        }
    }

    #[test]
    fn a_clock_that_steps_back_gives_nothing_and_loses_nothing() {
        for aligned in [Aligned::First, Aligned::Clock] {
            let mut bucket = ChargedBucket::new(windows(2, 2, 60, aligned));
            bucket.spend(120, 2, (Allowed, 0, 60, 60));
            bucket.spend(30, 1, (Denied, 0, 60, 60));
            bucket.spend(179, 1, (Denied, 0, 1, 1));
            bucket.spend(180, 2, (Allowed, 0, 60, 60));
        }
    }

    /// A minute of which 6 were used at 70 s is changed at 80 s, and asked at `at`.
    #[track_caller]
    fn changed(old: &Numbers, new: Numbers, at: u64, expected: (Outcome, u64, u64, u64)) {
        let mut bucket = ChargedBucket::new(old.clone());
        bucket.check(Micros(70_000_000), 6, Mode::Spend, (Allowed, 4, 50, bucket_reset(old)));
        bucket.change(new, Micros(80_000_000));
        bucket.spend(at, 0, expected);
    }

    fn bucket_reset(numbers: &Numbers) -> u64 {
        if numbers.windows().is_some_and(|windows| matches!(windows, Windows::First(_))) { 60 } else { 50 }
    }

    #[test]
    fn changed_numbers_keep_what_was_used() {
        let clock = |count, seconds| windows(count, count, seconds, Aligned::Clock);
        let old = clock(10, 60);
        changed(&old, clock(20, 60), 90, (Allowed, 14, 0, 30));
        changed(&old, clock(4, 60), 90, (Allowed, 0, 0, 30));
        changed(&old, clock(20, 60), 120, (Allowed, 20, 0, 60));
        changed(&old, clock(10, 3_600), 119, (Allowed, 4, 0, 3_481));
        changed(&old, clock(10, 3_600), 3_599, (Allowed, 4, 0, 1));
        changed(&old, clock(10, 3_600), 3_600, (Allowed, 10, 0, 3_600));
        // From the clock to a window of the bucket's own: the one that is under way goes on.
        changed(&old, windows(10, 10, 100, Aligned::First), 100, (Allowed, 4, 0, 60));
        // To GCRA: 6 used at 80 s, and one a second comes back.
        changed(&old, Numbers::new(10, 10, 10 * SECOND).unwrap(), 82, (Allowed, 6, 0, 4));
        changed(&old, monthly(10, 10, "UTC"), 82, (Allowed, 4, 0, 31 * 86_400 - 82));
    }

    #[test]
    fn other_algorithms_hand_over_what_they_have_used() {
        // 6 were used at 70 s of a bucket from which one a second drains; 4 are left at 72 s, in whole tokens.
        let mut bucket = ChargedBucket::new(Numbers::new(10, 10, 10 * SECOND).unwrap());
        bucket.check(Micros(70_500_000), 6, Mode::Spend, (Allowed, 4, 2, 6));
        bucket.change(windows(10, 10, 60, Aligned::First), Micros(72_000_000));
        bucket.spend(80, 0, (Allowed, 5, 0, 52));
        bucket.spend(132, 0, (Allowed, 10, 0, 0));
        // A month of which 6 were used, counted by the minute from the change on.
        let mut bucket = ChargedBucket::new(monthly(10, 10, "UTC"));
        bucket.check(micros("2024-02-10T00:00:00Z"), 6, Mode::Spend, (Allowed, 4, 20 * 86_400, 20 * 86_400));
        let change = micros("2024-02-20T00:00:30Z");
        bucket.change(windows(10, 10, 60, Aligned::Clock), change);
        bucket.check(change, 0, Mode::Check, (Allowed, 4, 0, 30));
        bucket.check(Micros(change.0 + 30_000_000), 0, Mode::Check, (Allowed, 10, 0, 60));
        bucket.change(windows(10, 10, 60, Aligned::Clock), micros("2024-03-01T00:00:00Z"));
        bucket.check(micros("2024-03-01T00:00:00Z"), 0, Mode::Check, (Allowed, 10, 0, 60));
    }

    #[test]
    fn what_takes_longer_than_can_be_counted_is_refused() {
        let windows = |burst, micros| Numbers::fixed_window(burst, 1, micros * 1_000, Aligned::First);
        assert_eq!(windows(2, EXACT / 2), Err(NumbersError::TooLong));
        assert!(windows(2, EXACT / 2 - 1).is_ok());
    }

    #[test]
    fn what_was_used_beyond_a_lowered_burst_is_given_back_first_and_ends_with_its_window() {
        let lowered = || {
            let mut bucket = ChargedBucket::new(windows(10, 10, 60, Aligned::First));
            bucket.spend(70, 8, (Allowed, 2, 60, 60));
            bucket.change(windows(4, 10, 60, Aligned::First), Micros(80_000_000));
            bucket
        };
        let mut bucket = lowered();
        let at = Micros(100_000_000);
        bucket.check(at, 3, Mode::Refund, (Allowed, 0, 0, 30));
        bucket.check(at, 0, Mode::Check, (Allowed, 0, 0, 30));
        bucket.check(at, 3, Mode::Refund, (Allowed, 2, 0, 30));
        bucket.check(at, 9, Mode::Refund, (Allowed, 4, 0, 0));
        let mut bucket = lowered();
        bucket.spend(130, 3, (Allowed, 1, 60, 60));
        bucket.check(Micros(140_000_000), 1, Mode::Refund, (Allowed, 2, 0, 50));
    }

    #[test]
    fn equal_numbers_that_took_effect_later_change_nothing() {
        let mut bucket = ChargedBucket::new(monthly(250, 100, "UTC"));
        bucket.check(micros("2024-01-31T00:00:00Z"), 250, Mode::Spend, (Allowed, 0, 61 * 86_400, 86_400));
        let march = micros("2024-03-01T00:00:00Z");
        // Counted in windows as long as January, the second one would not have begun.
        bucket.change(monthly(250, 100, "UTC"), march);
        bucket.check(march, 0, Mode::Check, (Allowed, 200, 0, 31 * 86_400));
        bucket.change(monthly(250, 100, "Asia/Tokyo"), march);
        bucket.check(march, 0, Mode::Check, (Allowed, 100, 0, 30 * 86_400 + 15 * 3_600));
    }
}
