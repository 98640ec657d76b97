//! The sliding window: what was taken in two windows of the clock, the older one by the share of it that the last period
//! still covers.
//!
//! It keeps two counts whatever the limit, and is as exact as traffic in the previous window was even. The share falls in
//! ticks, whole numbers of microseconds that are as short as lets every product stay below 2^53; what is left of the
//! previous window is rounded up to a token, which refuses nothing that the sum as a fraction would not. A clock that steps
//! back stands still. `lua/sliding_window.lua` is the same arithmetic.

use super::bucket::{Edit, Tried};
use super::charge::{Charge, Decision, Mode, Outcome};
use super::gcra::is_ahead;
use super::numbers::{EXACT, Micros};

/// The ticks that a share must be able to fall in, or as many as the period has microseconds: with ever fewer it would be
/// no share of anything.
const FEWEST_TICKS: u64 = 1_000;

/// The longest period, in microseconds: two of them are what a decision may speak of.
pub const LONGEST_PERIOD: u64 = EXACT / 2 - 1;

/// What was taken, and under which numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingWindow {
    /// The last instant at which it was written. It never moves backwards, and the windows are those around it.
    at: Micros,
    /// Tokens of the window before.
    previous: u64,
    /// Tokens of the window that holds `at`.
    current: u64,
    frame: Frame,
}

/// The windows of a period, and the ticks in which the share of a previous one falls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Frame {
    period: u64,
    tick: u64,
}

/// The tick for a count and a period in microseconds, in microseconds: twice the count times the ticks of a period stays
/// below 2^53. Twice, because that is what a window may hold that counts what it refuses.
pub const fn tick(count: u64, period: u64) -> u64 {
    let most_ticks = (EXACT - 1) / count.saturating_mul(2);
    if most_ticks == 0 { period } else { period.div_ceil(most_ticks) }
}

/// The largest count for a period in microseconds.
pub const fn largest_count(period: u64) -> u64 {
    let fewest = if period < FEWEST_TICKS { period } else { FEWEST_TICKS };
    (EXACT - 1) / 2 / fewest
}

impl Frame {
    /// The ticks of a window. The last of them is shorter if they do not divide the period.
    const fn ticks(self) -> u64 {
        self.period.div_ceil(self.tick)
    }

    /// How far an instant is in its window, in microseconds.
    const fn position(self, at: Micros) -> u64 {
        at.0 % self.period
    }

    /// Ticks until nothing counts that was taken in the window before.
    const fn left(self, at: Micros) -> u64 {
        self.ticks() - self.position(at) / self.tick
    }

    /// What counts at `at` of so many tokens of the window before.
    const fn share(self, tokens: u64, at: Micros) -> u64 {
        (tokens * self.left(at)).div_ceil(self.ticks())
    }

    /// The tokens of a window of which shares can still be counted.
    const fn largest(self) -> u64 {
        (EXACT - 1) / self.ticks()
    }

    /// When in a window, in microseconds, no more than `room` counts of `tokens`, which are more, of the window before.
    const fn faded(self, tokens: u64, room: u64) -> u64 {
        let ticks = self.ticks() - room * self.ticks() / tokens;
        // The end of the window ends the last tick.
        let micros = ticks * self.tick;
        if micros < self.period { micros } else { self.period }
    }
}

impl SlidingWindow {
    /// Dates it now if it is dated too far ahead: what this window has taken counts in the one that is under way.
    pub(crate) fn redate(&mut self, now: Micros) {
        if is_ahead(self.at, now) {
            self.at = now;
        }
    }

    /// Nothing taken.
    const fn empty(at: Micros, frame: Frame) -> Self {
        Self { at, previous: 0, current: 0, frame }
    }

    /// The same at a later instant.
    fn moved_to(self, at: Micros) -> Self {
        let (previous, current) = match at.0 / self.frame.period - self.at.0 / self.frame.period {
            0 => (self.previous, self.current),
            1 => (self.current, 0),
            _ => (0, 0),
        };
        Self { at, previous, current, ..self }
    }

    /// The tokens that count.
    fn used(&self) -> u64 {
        self.frame.share(self.previous, self.at) + self.current
    }

    /// As a charge under this frame finds it, which holds since `effective_from`.
    ///
    /// Under another period what counted when the numbers changed counts from there on as taken in that instant: it
    /// fades no sooner than what is taken then.
    fn found(window: Option<&Self>, frame: Frame, now: Micros, effective_from: Micros) -> Self {
        let Some(window) = window else { return Self::empty(now, frame) };
        let instant = window.at.max(now);
        if window.frame.period == frame.period {
            return Self { frame, ..*window }.moved_to(instant);
        }
        let changed = effective_from.max(window.at).min(instant);
        let current = window.moved_to(changed).used();
        Self { at: changed, previous: 0, current, frame }.moved_to(instant)
    }

    /// What a refund takes from the window before and from this one: from this one first, unless what is given back was taken
    /// in the one before. What was taken earlier counts no longer.
    fn given_back(&self, charge: &Charge, now: Micros) -> (u64, u64) {
        let taken = charge.taken_ago().map_or(self.at, |ago| now.since(ago).min(self.at));
        match self.at.0 / self.frame.period - taken.0 / self.frame.period {
            0 => {
                let from_current = charge.cost.min(self.current);
                ((charge.cost - from_current).min(self.previous), from_current)
            }
            1 => {
                let from_previous = charge.cost.min(self.previous);
                (from_previous, (charge.cost - from_previous).min(self.current))
            }
            _ => (0, 0),
        }
    }

    /// Until `cost` fits into `count`, which is no less.
    fn time_for(&self, cost: u64, count: u64) -> Micros {
        let Self { frame, at, .. } = *self;
        let position = frame.position(at);
        let (before, tokens, room) = match (count - cost).checked_sub(self.current) {
            Some(room) if frame.share(self.previous, at) <= room => return Micros(0),
            Some(room) => (0, self.previous, room),
            None => (frame.period, self.current, count - cost),
        };
        Micros(before + frame.faded(tokens, room) - position)
    }

    /// Until nothing counts any more.
    const fn reset_after(&self) -> Micros {
        let left = self.frame.period - self.frame.position(self.at);
        match (self.previous, self.current) {
            (0, 0) => Micros(0),
            (_, 0) => Micros(left),
            _ => Micros(left + self.frame.period),
        }
    }

    /// The instant at which it was written.
    pub(crate) const fn at(&self) -> Micros {
        self.at
    }

    /// When nothing counts any more.
    pub(crate) const fn ends(&self) -> Micros {
        Micros(self.at.0.saturating_add(self.reset_after().0))
    }
}

/// Decides a charge to windows of this period, in microseconds.
pub(crate) fn decide(
    window: Option<&SlidingWindow>,
    charge: &Charge,
    period: u64,
    now: Micros,
    effective_from: Micros,
) -> Tried {
    let (count, counts_denied) = (charge.numbers.burst(), charge.numbers.refill().counts_denied());
    let frame = Frame { period, tick: tick(count, period) };
    let mut found = SlidingWindow::found(window, frame, now, effective_from);
    // Twice the count is enough to keep out whoever goes on trying, and lets whoever stops in after a period and a half.
    let most = if counts_denied { 2 * count } else { count };
    // What was written since these numbers took effect, and is more, is of a gateway with other rules, newer ones perhaps.
    let is_later = window.is_some_and(|window| window.at > effective_from);
    let held = if is_later { frame.largest() } else { most };
    (found.previous, found.current) = (found.previous.min(held), found.current.min(held));
    let room = count.saturating_sub(found.used());
    let answer = |outcome, after: &SlidingWindow, retry_after| Decision {
        outcome,
        limit: count,
        remaining: count.saturating_sub(after.used()),
        retry_after,
        reset_after: Some(after.reset_after()),
    };
    let tried = |decision, edit, counts_denied| Tried { decision, detail: None, edit, counts_denied };
    let written = |after: SlidingWindow| Edit::SlidingWindow((after.previous + after.current > 0).then_some(after));
    match charge.mode {
        Mode::Spend | Mode::Check | Mode::SpendOnly if charge.cost > room => {
            let refused = if charge.mode.can_deny() { Outcome::Denied } else { Outcome::Unchanged };
            let mut after = found;
            if counts_denied && charge.mode != Mode::Check {
                after.current = found.current.saturating_add(charge.cost).min(most.max(found.current));
            }
            let wait = (charge.cost <= count).then(|| after.time_for(charge.cost, count));
            let edit = if after == found { Edit::Keep } else { written(after) };
            tried(answer(refused, &after, wait), edit, counts_denied)
        }
        Mode::Spend | Mode::Check | Mode::SpendOnly | Mode::SpendUpTo => {
            let cost = charge.cost.min(room);
            if cost == 0 {
                let outcome = if charge.cost == 0 { Outcome::Allowed } else { Outcome::Unchanged };
                return tried(answer(outcome, &found, Some(Micros(0))), Edit::Keep, false);
            }
            let after = SlidingWindow { current: found.current + cost, ..found };
            let is_sure = charge.mode == Mode::SpendUpTo;
            let again = if is_sure { Micros(0) } else { after.time_for(cost, count) };
            let edit = if charge.mode == Mode::Check { Edit::Keep } else { written(after) };
            let counts_denied = counts_denied && matches!(charge.mode, Mode::Spend | Mode::SpendOnly);
            tried(answer(Outcome::Allowed, &after, Some(again)), edit, counts_denied)
        }
        Mode::Refund => {
            let (from_previous, from_current) = found.given_back(charge, now);
            if from_current + from_previous == 0 {
                return tried(answer(Outcome::Unchanged, &found, Some(Micros(0))), Edit::Keep, false);
            }
            let after = SlidingWindow {
                previous: found.previous - from_previous,
                current: found.current - from_current,
                ..found
            };
            tried(answer(Outcome::Allowed, &after, Some(Micros(0))), written(after), false)
        }
        Mode::Reset => {
            let empty = SlidingWindow::empty(found.at, frame);
            tried(answer(Outcome::Allowed, &empty, Some(Micros(0))), written(empty), false)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::charge::Bucket;
    use super::super::numbers::{Numbers, NumbersError};
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// In seconds since the epoch: a minute begins there.
    const BASE: u64 = 1_200_000;

    /// A bucket, and the numbers that it is charged under since an instant.
    struct Charged {
        numbers: Numbers,
        effective_from: Micros,
        window: Option<SlidingWindow>,
    }

    impl Charged {
        fn new(count: u64, seconds: u64, count_denied: bool) -> Self {
            let numbers = Numbers::sliding_window(count, seconds * SECOND, count_denied).unwrap();
            Self { numbers, effective_from: Micros(0), window: None }
        }

        /// Changes the numbers at a millisecond.
        fn change(&mut self, count: u64, seconds: u64, at: u64) {
            self.numbers = Numbers::sliding_window(count, seconds * SECOND, false).unwrap();
            self.effective_from = Micros::from_millis(BASE * 1_000 + at);
        }

        /// Charges at a millisecond; the outcome, what remains, and the two waits in whole milliseconds. One that never
        /// ends is -1.
        fn charge(&mut self, at: u64, mode: Mode, cost: u64) -> (Outcome, u64, i64, i64) {
            let bucket = Bucket { key: "L:k".into(), fingerprint: 1 };
            let charge = Charge::new(bucket, self.numbers, cost, mode);
            let period = self.numbers.period() / 1_000;
            let now = Micros::from_millis(BASE * 1_000 + at);
            let Tried { decision, edit, counts_denied, .. } =
                decide(self.window.as_ref(), &charge, period, now, self.effective_from);
            match edit {
                Edit::SlidingWindow(window) if counts_denied || !decision.is_denied() => self.window = window,
                edit => assert_eq!(edit, Edit::Keep),
            }
            let [retry, reset] = [decision.retry_after, decision.reset_after]
                .map(|span| span.map_or(-1, |span| i64::try_from(span.0 / 1_000).unwrap()));
            (decision.outcome, decision.remaining, retry, reset)
        }
    }

    /// Charges 10 per 10 s at milliseconds, in turn.
    #[track_caller]
    fn check(count_denied: bool, steps: &[(u64, Mode, u64)], expected: &[(Outcome, u64, i64, i64)]) {
        let mut bucket = Charged::new(10, 10, count_denied);
        for ((at, mode, cost), expected) in steps.iter().zip(expected) {
            assert_eq!(bucket.charge(*at, *mode, *cost), *expected, "at {at}");
        }
        assert_eq!(steps.len(), expected.len());
    }

    use Mode::{Check, Refund, Reset, Spend, SpendOnly, SpendUpTo};
    use Outcome::{Allowed, Denied, Unchanged};

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
                (Unchanged, 2, 11_245, 19_995),
                (Allowed, 0, 0, 19_995),
                (Unchanged, 0, 0, 19_994),
                (Allowed, 0, 0, 19_994),
                (Unchanged, 0, -1, 19_994),
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
                (Unchanged, 0, 14_500, 19_000),
                (Allowed, 0, 500, 14_500),
                (Allowed, 10, 0, 0),
            ],
        );
    }

    #[test]
    fn changed_numbers_keep_what_was_used() {
        let mut bucket = Charged::new(10, 10, false);
        bucket.charge(5_000, Spend, 10);
        bucket.change(20, 10, 6_000);
        assert_eq!(bucket.charge(7_000, Check, 0), (Allowed, 10, 0, 13_000));
        bucket.change(5, 10, 6_000);
        assert_eq!(bucket.charge(16_000, Check, 0), (Allowed, 3, 0, 4_000));
        // Half of it counted at 15 s, which counts in the minute that began at 0.
        bucket.change(10, 60, 15_000);
        assert_eq!(bucket.charge(30_000, Check, 0), (Allowed, 5, 0, 90_000));
        assert_eq!(bucket.charge(90_000, Check, 0), (Allowed, 7, 0, 30_000));
        bucket.change(10, 60, 0);
        assert_eq!(bucket.charge(30_000, Check, 0), (Allowed, 0, 0, 90_000));
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
}
