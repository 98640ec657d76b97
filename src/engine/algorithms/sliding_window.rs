//! The sliding window: the tokens taken in two windows of the clock. The previous window counts by the share of it that the
//! last period still covers.
//!
//! It keeps two counts whatever the limit, and is exact if the traffic of the previous window was even. The share falls in
//! ticks, whole numbers of microseconds that are long enough for every product to stay below 2^53. The rest of the previous
//! window is rounded up to a token, which denies nothing that the exact fraction would not. `lua/sliding_window.lua` does the
//! same arithmetic.

use super::algorithm::Algorithm;
use super::charge::Charge;
use super::decision::Attempt;
use super::level;
use super::micros::{EXACT, Micros};
use super::numbers::{Numbers, NumbersError, whole_micros};
use super::usage::{self, Usage};
use super::windows::Refill;

/// The share falls in at least this many ticks, or in one per microsecond of a shorter period.
const FEWEST_TICKS: u64 = 1_000;

/// The longest period in microseconds. A decision may add two of them.
pub const LONGEST_PERIOD: u64 = EXACT / 2 - 1;

impl Numbers {
    /// Numbers that let about `count` tokens pass in any `period` nanoseconds.
    pub fn sliding_window(count: u64, period: u64, count_denied: bool) -> Result<Self, NumbersError> {
        if count == 0 {
            return Err(NumbersError::Count);
        }
        match whole_micros(period)? {
            micros if micros > LONGEST_PERIOD => Err(NumbersError::TooLongToSlide),
            micros if count > largest_count(micros) => Err(NumbersError::TooManyToSlide),
            micros => {
                Ok(Self::with(count, count, period, Algorithm::SlidingWindow { count_denied }, Refill::span(micros)))
            }
        }
    }
}

/// The tokens taken, and the period of the last write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingWindow {
    /// The last write, which is in the current window. It never moves backwards.
    pub(super) at: Micros,
    previous: u64,
    current: u64,
    frame: Frame,
}

/// The windows of a period, and the ticks in which the share of a previous window falls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Frame {
    period: u64,
    tick: u64,
}

/// Returns the tick for a count and a period, in microseconds: twice the count times the ticks of a period stays below
/// 2^53. Twice, because a window that counts denied requests may hold that much.
pub const fn tick(count: u64, period: u64) -> u64 {
    let most_ticks = (EXACT - 1) / count.saturating_mul(2);
    if most_ticks == 0 { period } else { period.div_ceil(most_ticks) }
}

/// Returns the largest count for a period in microseconds.
pub const fn largest_count(period: u64) -> u64 {
    let fewest = if period < FEWEST_TICKS { period } else { FEWEST_TICKS };
    (EXACT - 1) / 2 / fewest
}

impl Frame {
    /// Returns the ticks of a window. The last one is shorter if the tick does not divide the period.
    const fn ticks(self) -> u64 {
        self.period.div_ceil(self.tick)
    }

    /// Returns the number of the window that holds `at`.
    const fn number(self, at: Micros) -> u64 {
        at.0 / self.period
    }

    /// Returns the microseconds from the start of the window to `at`.
    const fn position(self, at: Micros) -> u64 {
        at.0 % self.period
    }

    /// Returns how many of `tokens` in the previous window count at `at`.
    const fn share(self, tokens: u64, at: Micros) -> u64 {
        let left = self.ticks() - self.position(at) / self.tick;
        (tokens * left).div_ceil(self.ticks())
    }

    /// Returns the most tokens of a window whose shares can be computed exactly.
    const fn largest(self) -> u64 {
        (EXACT - 1) / self.ticks()
    }

    /// Returns the microseconds from the start of a window until at most `room` of the previous window's `tokens` count.
    /// `room` must be less than `tokens`.
    const fn faded(self, tokens: u64, room: u64) -> u64 {
        let ticks = self.ticks() - room * self.ticks() / tokens;
        // The last tick ends with the window.
        let micros = ticks * self.tick;
        if micros < self.period { micros } else { self.period }
    }
}

impl SlidingWindow {
    /// Sets the date to `now` if it is too far ahead. The tokens then count in the current window.
    pub(super) fn redate(&mut self, now: Micros) {
        if self.at.is_ahead_of(now) {
            self.at = now;
        }
    }

    /// Returns the windows around a later instant.
    fn moved_to(self, at: Micros) -> Self {
        let (previous, current) = match self.frame.number(at) - self.frame.number(self.at) {
            0 => (self.previous, self.current),
            1 => (self.current, 0),
            _ => (0, 0),
        };
        Self { at, previous, current, ..self }
    }

    /// Returns the windows for a charge under `frame`, which holds since `effective_from`.
    ///
    /// At a change of the period, the tokens that count are dated at that instant, so that they fade no sooner.
    fn find(window: Option<&Self>, frame: Frame, now: Micros, effective_from: Micros) -> Self {
        let Some(window) = window else { return Self { at: now, previous: 0, current: 0, frame } };
        let instant = window.at.max(now);
        if window.frame.period == frame.period {
            return Self { frame, ..*window }.moved_to(instant);
        }
        let changed = level::changed(window.at, now, effective_from);
        let current = window.moved_to(changed).used();
        Self { at: changed, previous: 0, current, frame }.moved_to(instant)
    }

    const fn span_left(&self) -> Micros {
        let left = self.frame.period - self.frame.position(self.at);
        match (self.previous, self.current) {
            (0, 0) => Micros(0),
            (_, 0) => Micros(left),
            _ => Micros(left + self.frame.period),
        }
    }

    /// Returns the instant from which no token counts.
    pub(super) const fn ends(&self) -> Micros {
        self.at.after(self.span_left())
    }
}

/// Returns the most tokens in a window. Twice the count keeps a client out that goes on trying, and lets one that stops back
/// in after a period and a half.
fn most(numbers: &Numbers) -> u64 {
    if numbers.counts_denied() { 2 * numbers.burst() } else { numbers.burst() }
}

impl Usage for SlidingWindow {
    fn used(&self) -> u64 {
        self.frame.share(self.previous, self.at) + self.current
    }

    fn take(self, levels: u64) -> Self {
        Self { current: self.current + levels, ..self }
    }

    /// Takes from the window in which the tokens were taken. If that is not known, takes from the current one first.
    fn give_back(self, levels: u64, taken: Option<Micros>) -> Option<Self> {
        let passed = taken.map(|taken| self.frame.number(self.at) - self.frame.number(taken.min(self.at)));
        let (from_previous, from_current) = match passed {
            None => {
                let from_current = levels.min(self.current);
                ((levels - from_current).min(self.previous), from_current)
            }
            Some(0) => (0, levels.min(self.current)),
            Some(1) => (levels.min(self.previous), 0),
            Some(_) => (0, 0),
        };
        let (previous, current) = (self.previous - from_previous, self.current - from_current);
        (from_previous + from_current > 0).then_some(Self { previous, current, ..self })
    }

    fn count_denied(self, charge: &Charge) -> Option<Self> {
        let current = self.current.saturating_add(charge.cost).min(most(&charge.numbers).max(self.current));
        (charge.counts_denied() && current != self.current).then_some(Self { current, ..self })
    }

    fn until(&self, most: u64) -> Option<Micros> {
        let Self { frame, at, .. } = *self;
        let (before, tokens, room) = match most.checked_sub(self.current) {
            Some(room) if frame.share(self.previous, at) <= room => return Some(Micros(0)),
            Some(room) => (0, self.previous, room),
            None => (frame.period, self.current, most),
        };
        Some(Micros(before + frame.faded(tokens, room) - frame.position(at)))
    }

    fn reset_after(&self) -> Option<Micros> {
        Some(self.span_left())
    }
}

/// Decides a charge. The edit is `Some(None)` if the bucket is full afterwards.
pub(super) fn decide(
    window: Option<&SlidingWindow>,
    charge: &Charge,
    now: Micros,
    effective_from: Micros,
) -> Attempt<Option<SlidingWindow>> {
    let (count, period) = (charge.numbers.burst(), charge.numbers.span());
    let frame = Frame { period, tick: tick(count, period) };
    let is_other =
        |window: &&SlidingWindow| window.frame.period != period && !level::follow_a_change(effective_from, window.at);
    let forgotten = window.filter(is_other).map(SlidingWindow::ends);
    let window = window.filter(|_| forgotten.is_none_or(|at| now < at));
    let mut found = SlidingWindow::find(window, frame, now, effective_from);
    // A window that holds more and was written since these numbers took effect comes from a gateway with other rules, perhaps
    // newer ones.
    let is_later = window.is_some_and(|window| window.at > effective_from);
    let held = if is_later { frame.largest() } else { most(&charge.numbers) };
    (found.previous, found.current) = (found.previous.min(held), found.current.min(held));
    let (mut decision, after) = usage::decide(found, &charge.numbers, charge);
    if let (Some(_), Some(at), None) = (window, forgotten, &after) {
        decision.full_after(at.since(found.at), 0, charge);
    }
    let edit = after.map(|after| (after.previous + after.current > 0).then_some(after));
    Attempt { counts_denied: charge.counts_denied(), ..Attempt::new(decision, edit).told(charge, found.at) }
}

#[cfg(test)]
mod tests {
    use super::super::charge::{Bucket, Mode};
    use super::super::decision::Outcome;
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// In seconds since the epoch: a minute begins there.
    const BASE: u64 = 1_200_000;

    /// A bucket, and the numbers that it is charged under since an instant.
    struct ChargedBucket {
        numbers: Numbers,
        effective_from: Micros,
        window: Option<SlidingWindow>,
    }

    impl ChargedBucket {
        fn new(count: u64, seconds: u64, count_denied: bool) -> Self {
            let numbers = Numbers::sliding_window(count, seconds * SECOND, count_denied).unwrap();
            Self { numbers, effective_from: Micros(0), window: None }
        }

        /// Changes the numbers at a millisecond.
        fn change(&mut self, count: u64, seconds: u64, at: u64) {
            self.numbers = Numbers::sliding_window(count, seconds * SECOND, false).unwrap();
            self.effective_from = Micros::from_millis(BASE * 1_000 + at);
        }

        /// Charges at a millisecond. Returns the outcome, the rest, and both waits in milliseconds, -1 for one that never
        /// ends.
        fn charge(&mut self, at: u64, mode: Mode, cost: u64) -> (Outcome, u64, i64, i64) {
            let bucket = Bucket::new("L:k", 1);
            let charge = Charge::new(bucket, self.numbers.clone(), cost, mode);
            let now = Micros::from_millis(BASE * 1_000 + at);
            let Attempt { decision, edit, counts_denied, .. } =
                decide(self.window.as_ref(), &charge, now, self.effective_from);
            match edit {
                Some(window) if counts_denied || !decision.is_denied() => self.window = window,
                edit => assert_eq!(edit, None),
            }
            let [retry, reset] = [decision.retry_after, decision.reset_after]
                .map(|span| span.map_or(-1, |span| i64::try_from(span.0 / 1_000).unwrap()));
            (decision.outcome, decision.remaining, retry, reset)
        }
    }

    /// Charges 10 per 10 s at milliseconds, in turn.
    #[track_caller]
    fn check(count_denied: bool, steps: &[(u64, Mode, u64)], expected: &[(Outcome, u64, i64, i64)]) {
        let mut bucket = ChargedBucket::new(10, 10, count_denied);
        for ((at, mode, cost), expected) in steps.iter().zip(expected) {
            assert_eq!(bucket.charge(*at, *mode, *cost), *expected, "at {at}");
        }
        assert_eq!(steps.len(), expected.len());
    }

    use Mode::{Check, Refund, Reset, Spend, SpendOnly, SpendUpTo};
    use Outcome::{Allowed, Denied, Short, Unchanged};

    #[test]
    fn the_window_before_counts_by_the_share_that_the_last_period_covers() {
        check(
            false,
            &[
                (5_000, Spend, 10),
                (9_999, Spend, 1),
                (10_000, Spend, 1),
                (10_999, Spend, 1),
                (11_000, Spend, 1),
                (15_500, Check, 4),
                (15_500, Spend, 5),
                (29_999, Spend, 10),
                (30_000, Check, 10),
            ],
            &[
                (Allowed, 0, 15_000, 15_000),
                (Denied, 0, 1_001, 10_001),
                (Denied, 0, 1_000, 10_000),
                (Denied, 0, 1, 9_001),
                (Allowed, 0, 1_000, 19_000),
                (Allowed, 0, 3_500, 14_500),
                (Denied, 4, 500, 14_500),
                (Denied, 9, 1, 1),
                (Allowed, 0, 20_000, 20_000),
            ],
        );
    }

    #[test]
    fn what_cannot_fit_takes_nothing() {
        check(
            false,
            &[
                (0, Spend, 11),
                (0, SpendOnly, 8),
                (5, SpendOnly, 3),
                (5, SpendUpTo, 9),
                (6, SpendUpTo, 1),
                (6, Spend, 0),
                (6, SpendOnly, u64::MAX),
            ],
            &[
                (Denied, 10, -1, 0),
                (Allowed, 2, 17_500, 20_000),
                (Short, 2, 11_245, 19_995),
                (Allowed, 0, 0, 19_995),
                (Unchanged, 0, 0, 19_994),
                (Allowed, 0, 0, 19_994),
                (Short, 0, -1, 19_994),
            ],
        );
    }

    #[test]
    fn this_window_is_given_back_first() {
        check(
            false,
            &[
                (0, Spend, 6),
                (15_000, Spend, 3),
                (15_000, Refund, 4),
                (15_000, Refund, u64::MAX),
                (15_000, Refund, 1),
                (15_000, Spend, 10),
                (15_000, Reset, 0),
            ],
            &[
                (Allowed, 4, 13_333, 20_000),
                (Allowed, 4, 0, 15_000),
                (Allowed, 7, 0, 5_000),
                (Allowed, 10, 0, 0),
                (Unchanged, 10, 0, 0),
                (Allowed, 0, 15_000, 15_000),
                (Allowed, 10, 0, 0),
            ],
        );
    }

    #[test]
    fn a_clock_that_steps_back_gives_nothing() {
        check(
            false,
            &[(15_000, Spend, 10), (5_000, Spend, 1), (15_000, Spend, 1), (21_000, Spend, 1)],
            &[
                (Allowed, 0, 15_000, 15_000),
                (Denied, 0, 6_000, 15_000),
                (Denied, 0, 6_000, 15_000),
                (Allowed, 0, 1_000, 19_000),
            ],
        );
    }

    #[test]
    fn what_is_refused_counts_up_to_twice_the_count_if_it_shall() {
        check(
            true,
            &[
                (0, Spend, 10),
                (1_000, Spend, 5),
                (1_000, Spend, u64::MAX),
                (1_000, Check, 1),
                (1_000, SpendOnly, 1),
                (15_500, Spend, 1),
                (15_500, Refund, 40),
            ],
            &[
                (Allowed, 0, 20_000, 20_000),
                (Denied, 0, 15_666, 19_000),
                (Denied, 0, -1, 19_000),
                (Denied, 0, 14_500, 19_000),
                (Short, 0, 14_500, 19_000),
                (Allowed, 0, 500, 14_500),
                (Allowed, 10, 0, 0),
            ],
        );
    }

    #[test]
    fn changed_numbers_keep_what_was_used() {
        let mut bucket = ChargedBucket::new(10, 10, false);
        bucket.charge(5_000, Spend, 10);
        bucket.change(20, 10, 6_000);
        assert_eq!(bucket.charge(7_000, Check, 0), (Allowed, 10, 0, 13_000));
        bucket.change(5, 10, 6_000);
        assert_eq!(bucket.charge(16_000, Check, 0), (Allowed, 3, 0, 4_000));
        // Half of it counted at 15 s, which counts in the minute that began at 0.
        bucket.change(10, 60, 15_000);
        assert_eq!(bucket.charge(30_000, Check, 0), (Allowed, 5, 0, 90_000));
        assert_eq!(bucket.charge(90_000, Check, 0), (Allowed, 7, 0, 30_000));
        // Numbers that have held for longer than the bucket: it is full when it is so by those of the last write.
        bucket.change(10, 60, 0);
        assert_eq!(bucket.charge(19_999, Check, 1), (Denied, 0, 1, 1));
        assert_eq!(bucket.charge(20_000, Check, 0), (Allowed, 10, 0, 0));
    }

    #[test]
    fn the_tick_is_as_short_as_products_allow() {
        let minute = 60_000_000;
        for (count, period, expected) in [(1, minute, 1), (75_059_993, minute, 1), (75_059_994, minute, 2), (5, 1, 1)] {
            assert_eq!(tick(count, period), expected, "{count} in {period}");
            let ticks = period.div_ceil(expected);
            assert!(2 * count * ticks < EXACT);
        }
        assert_eq!(largest_count(minute), 4_503_599_627_370);
        let numbers = |count, period| Numbers::sliding_window(count, period, true);
        let most = largest_count(minute);
        assert_eq!(numbers(most, minute * 1_000).map(|numbers| numbers.count()), Ok(most));
        assert_eq!(numbers(most + 1, minute * 1_000), Err(NumbersError::TooManyToSlide));
        assert_eq!(numbers(u64::MAX, 1_000), Err(NumbersError::TooManyToSlide));
        assert!(numbers(1, LONGEST_PERIOD * 1_000).is_ok());
        assert_eq!(numbers(1, (LONGEST_PERIOD + 1) * 1_000), Err(NumbersError::TooLongToSlide));
        assert_eq!(numbers(0, SECOND), Err(NumbersError::Count));
        assert_eq!(numbers(1, 0), Err(NumbersError::Period));
        assert_eq!(numbers(1, 1_500), Err(NumbersError::Tick));
    }

    #[test]
    fn a_share_falls_in_ticks_of_which_the_last_ends_with_the_window() {
        let frame = Frame { period: 10, tick: 3 };
        let shares: Vec<u64> = (0..10).map(|position| frame.share(8, Micros(70 + position))).collect();
        assert_eq!(shares, [8, 8, 8, 6, 6, 6, 4, 4, 4, 2]);
        // Of 8 tokens no more than 7, 6 and so on to none count.
        let faded: Vec<u64> = (0..8).rev().map(|room| frame.faded(8, room)).collect();
        assert_eq!(faded, [3, 3, 6, 6, 9, 9, 10, 10]);
        // At bounds that are powers of two, half a token decides.
        assert_eq!(tick(1 << 26, 1 << 26), 2);
        assert_eq!([10, 512].map(largest_count), [((1 << 52) - 1) / 10, (1 << 43) - 1]);
        assert_eq!(Frame { period: 4_096, tick: 1 }.largest(), (1 << 41) - 1);
    }

    #[test]
    fn only_what_was_written_after_the_numbers_took_effect_may_exceed_them() {
        for (changed, left) in [(4_999, 1), (5_000, 3), (5_001, 3)] {
            let mut bucket = ChargedBucket::new(10, 10, false);
            bucket.charge(5_000, Spend, 10);
            bucket.change(5, 10, changed);
            assert_eq!(bucket.charge(16_000, Check, 0).1, left, "changed at {changed}");
        }
    }
}
