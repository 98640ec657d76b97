//! GCRA: a token bucket that refills at a constant rate.
//!
//! `lua/levels.lua` does the same arithmetic; a property test compares the two.

use super::algorithm::Algorithm;
use super::charge::Charge;
use super::decision::Decision;
use super::level::{Level, LevelChange, drained};
use super::micros::{EXACT, Micros};
use super::numbers::{Numbers, NumbersError};
use super::usage::{self, Usage};
use super::windows::Refill;

impl Numbers {
    /// Numbers that refill `count` tokens every `period` nanoseconds up to `burst`.
    pub fn new(burst: u64, count: u64, period: u64) -> Result<Self, NumbersError> {
        match (burst, count, period) {
            (0, ..) => return Err(NumbersError::Burst),
            (_, 0, _) => return Err(NumbersError::Count),
            (_, _, 0) => return Err(NumbersError::Period),
            _ if count > period => return Err(NumbersError::TooFast),
            _ => {}
        }
        let levels_per_microsecond = u128::from(count) * 1_000;
        let divisor = greatest_common_divisor(u128::from(period), levels_per_microsecond);
        let exact =
            |value: u128| u64::try_from(value).ok().filter(|&value| value < EXACT).ok_or(NumbersError::TooLarge);
        let token = exact(u128::from(period) / divisor)?;
        let drain = exact(levels_per_microsecond / divisor)?;
        exact(u128::from(burst) * u128::from(token))?;
        Ok(Self { token, ..Self::with(burst, count, period, Algorithm::Gcra, Refill::evenly(drain)) })
    }

    /// Numbers of a bucket that never refills: only a refund or a reset gives tokens back.
    pub fn fixed(burst: u64) -> Result<Self, NumbersError> {
        match burst {
            0 => Err(NumbersError::Burst),
            EXACT.. => Err(NumbersError::TooLarge),
            _ => Ok(Self::with(burst, 0, 0, Algorithm::Gcra, Refill::evenly(0))),
        }
    }
}

pub const fn greatest_common_divisor(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// A bucket at the instant of a charge.
#[derive(Clone, Copy)]
pub(super) struct Gcra<'a> {
    pub(super) numbers: &'a Numbers,
    pub(super) used: u64,
    /// Now, or the last write if the clock has stepped back behind it. The bucket would otherwise refill twice in between.
    pub(super) since: Micros,
    /// Levels that others hold.
    pub(super) held: u64,
}

impl Gcra<'_> {
    pub(super) fn level(&self) -> Level {
        Level { since: self.since, used: self.used, weight: self.numbers.token(), refill: self.numbers.refill }
    }
}

impl Usage for Gcra<'_> {
    fn held(&self) -> u64 {
        self.held
    }

    fn used(&self) -> u64 {
        self.used
    }

    fn take(self, levels: u64) -> Self {
        Self { used: self.used + levels, ..self }
    }

    fn give_back(self, levels: u64, _taken: Option<Micros>) -> Option<Self> {
        let given_back = levels.min(self.used);
        (given_back > 0).then(|| Self { used: self.used - given_back, ..self })
    }

    fn until(&self, most: u64) -> Option<Micros> {
        self.numbers.time_for(self.used.saturating_sub(most))
    }

    fn reset_after(&self) -> Option<Micros> {
        self.until(0)
    }
}

/// Returns the levels of `numbers` that are used at `now`, of which `booked` may be beyond the capacity. `numbers` hold since
/// `effective_from`.
///
/// A level that was written before these numbers took effect drains at its own rate until then, keeps its tokens (rounded up
/// to a level), is cut to the new capacity, and drains at the new rate from there: nobody waits longer than one full refill.
pub(super) fn used_at(level: &Level, numbers: &Numbers, booked: u64, now: Micros, effective_from: Micros) -> u64 {
    let changed = level.changed(now, effective_from);
    let used = if level.is_under(numbers) {
        drained(level.used, numbers.drain(), changed.since(level.since))
    } else {
        level.carry_over(changed).in_levels_of(numbers)
    };
    // A higher level that was written later comes from a gateway with other rules, perhaps newer ones, and stays.
    let used = if level.since <= effective_from { used.min(numbers.capacity() + booked) } else { used };
    drained(used, numbers.drain(), now.since(changed))
}

#[inline]
pub(super) fn decide(
    level: Option<&Level>,
    held: u64,
    charge: &Charge,
    now: Micros,
    effective_from: Micros,
) -> (Decision, LevelChange) {
    let numbers = &charge.numbers;
    let booked = charge.delay().map_or(0, |delay| delay.levels(numbers));
    let used = level.map_or(0, |level| used_at(level, numbers, booked, now, effective_from));
    let held = held.saturating_mul(numbers.token());
    let bucket = Gcra { numbers, used, since: level.map_or(now, |level| level.since.max(now)), held };
    let (decision, after) = usage::decide(bucket, numbers, charge);
    (decision, usage::beside_holds(bucket, after, charge).map(|after| after.level()).into())
}

#[cfg(test)]
mod tests {
    use super::super::charge::{Bucket, Mode};
    use super::super::decision::Outcome;
    use super::super::state::decide_level as decide;
    use super::*;

    fn numbers(text: &str) -> Numbers {
        let (rate, seconds) = text.split_once('/').unwrap();
        let (burst, count) = rate.split_once('@').unwrap_or((rate, rate));
        let period = seconds.trim_end_matches('s').parse::<u64>().unwrap() * 1_000_000_000;
        Numbers::new(burst.parse().unwrap(), count.parse().unwrap(), period).unwrap()
    }

    fn charge(numbers: Numbers, cost: u64, mode: Mode) -> Charge {
        Charge::new(Bucket::new("L:k", 1), numbers, cost, mode)
    }

    fn apply(level: &mut Option<Level>, charge: &Charge, now: u64) -> Decision {
        let (decision, change) = decide(level.as_ref(), charge, Micros::from_millis(now), Micros(0));
        match change {
            LevelChange::Keep => {}
            LevelChange::Write(written) => *level = Some(written),
            LevelChange::Clear => *level = None,
        }
        decision
    }

    /// Spends 1 at each arrival and compares the outcomes: A for allowed, D for denied.
    #[track_caller]
    fn check(limit: &str, arrivals_ms: &[u64], expected: &str) {
        let spend = charge(numbers(limit), 1, Mode::Spend);
        let mut level = None;
        let outcomes: String = arrivals_ms
            .iter()
            .map(|&at| if apply(&mut level, &spend, 1_000_000 + at).is_denied() { 'D' } else { 'A' })
            .collect();
        assert_eq!(outcomes, expected);
    }

    #[test]
    fn burst_then_one_per_interval() {
        check("3/1s", &[0, 0, 0, 0, 334], "AAADA");
    }

    #[test]
    fn idle_time_does_not_save_up() {
        check("2/1s", &[9_000, 9_000, 9_000], "AAD");
        check("2/1s", &[0, 9_000, 9_000, 9_000], "AAAD");
    }

    #[test]
    fn denied_costs_nothing() {
        check("1/1s", &[0, 10, 20, 1_000], "ADDA");
    }

    #[test]
    fn a_clock_that_steps_back_gives_nothing_and_loses_nothing() {
        check("10@5/1s", &[5_000; 10], "AAAAAAAAAA");
        check("1/1s", &[5_000, 4_000, 5_999, 6_000], "ADDA");
    }

    /// throttlecrab 0.4.40 admits 17 of 10, 37 of 20 and 197 of 100 here: its stored time may lag behind now.
    #[test]
    fn any_pause_then_a_flood_admits_at_most_the_burst() {
        for burst in [10, 20, 100] {
            let spend = charge(Numbers::new(burst, burst, 60_000_000_000).unwrap(), 1, Mode::Spend);
            for pause in [0, 60_000 / burst, 30_000, 60_000, 120_000, 3_600_000] {
                let mut level = None;
                apply(&mut level, &spend, 1_000_000);
                let flood = (0..10 * burst).filter(|_| !apply(&mut level, &spend, 1_000_000 + pause).is_denied());
                assert!(flood.count() as u64 <= burst, "burst {burst} after {pause} ms");
            }
        }
    }

    #[test]
    fn a_cost_above_the_burst_is_never_and_takes_nothing() {
        let limit = numbers("10@5/1s");
        let mut level = None;
        let decision = apply(&mut level, &charge(limit.clone(), 12, Mode::Spend), 0);
        assert_eq!((decision.outcome, decision.remaining, decision.retry_after), (Outcome::Denied, 10, None));
        assert_eq!(apply(&mut level, &charge(limit.clone(), u64::MAX, Mode::SpendOnly), 0).outcome, Outcome::Short);
        assert_eq!(level, None);
    }

    /// Numbers that changed at `changed` ms; 10 tokens were used at 0 and the bucket is read at `read` ms.
    #[track_caller]
    fn carried(old: &str, new: &str, changed: u64, read: u64) -> u64 {
        let mut level = None;
        apply(&mut level, &charge(numbers(old), 10, Mode::Spend), 0);
        let check = charge(numbers(new), 0, Mode::Check);
        decide(level.as_ref(), &check, Micros::from_millis(read), Micros::from_millis(changed)).0.remaining
    }

    #[test]
    fn changed_numbers_keep_what_was_used() {
        assert_eq!(carried("10/10s", "100@10/1s", 5_000, 5_000), 95);
        assert_eq!(carried("10/10s", "10@1/10s", 0, 5_000), 0);
        assert_eq!(carried("10/10s", "10@1/10s", 5_000, 5_000), 5);
        assert_eq!(carried("1000/1s", "10/1s", 0, 0), 0);
        assert_eq!(carried("10/10s", "20/20s", 1_000, 2_000), 12);
    }

    #[test]
    fn a_burst_that_was_raised_elsewhere_keeps_what_is_used_there() {
        let mut level = None;
        apply(&mut level, &charge(numbers("1000/3600s"), 900, Mode::Spend), 2_000);
        let ask = |limit: &str, cost, mode, changed| {
            decide(level.as_ref(), &charge(numbers(limit), cost, mode), Micros::from_millis(2_000), Micros(changed))
        };
        for older in ["10/3600s", "10@1000/3600s"] {
            let (denied, kept) = ask(older, 1, Mode::Spend, 0);
            assert_eq!((denied.outcome, denied.remaining, kept), (Outcome::Denied, 0, LevelChange::Keep), "{older}");
            let (given, LevelChange::Write(written)) = ask(older, 1, Mode::Refund, 0) else { panic!("{older}") };
            let left = decide(Some(&written), &charge(numbers("1000/3600s"), 0, Mode::Check), written.since, Micros(0));
            assert_eq!((given.remaining, left.0.remaining), (0, 101), "{older}");
        }
        // Rules that took effect after the bucket was written have lowered the burst.
        assert_eq!(ask("10/3600s", 1, Mode::Spend, 2_000_000).0.retry_after, Some(Micros(360_000_000)));
    }

    /// Who waits as told passes, and who waits a microsecond less does not.
    #[test]
    fn a_lowered_burst_cuts_what_is_used_when_it_takes_effect() {
        let mut level = None;
        apply(&mut level, &charge(numbers("600@1/1s"), 600, Mode::Spend), 0);
        let ask = |now: u64, changed: u64| {
            let lowered = charge(numbers("20@1/1s"), 1, Mode::Spend);
            let (decision, _) = decide(level.as_ref(), &lowered, Micros(now), Micros(changed));
            (decision.outcome, decision.retry_after.unwrap().0, decision.reset_after.unwrap().0)
        };
        let changed = 1_500_000;
        assert_eq!(ask(1_500_000, changed), (Outcome::Denied, 1_000_000, 20_000_000));
        assert_eq!(ask(2_499_999, changed), (Outcome::Denied, 1, 19_000_001));
        assert_eq!(ask(2_500_000, changed), (Outcome::Allowed, 1_000_000, 20_000_000));
        assert_eq!(ask(21_500_000, changed), (Outcome::Allowed, 0, 1_000_000));
        // A change that another clock dates ahead holds from now.
        assert_eq!(ask(1_000_000, changed), (Outcome::Denied, 1_000_000, 20_000_000));
        // What the lower burst leaves room for is not cut.
        assert_eq!(ask(590_000_000, changed).0, Outcome::Allowed);
    }

    #[test]
    fn a_bucket_that_was_in_use_when_the_rules_changed_is_kept_for_as_long_again() {
        let written = |limit: &str| {
            let mut level = None;
            apply(&mut level, &charge(numbers(limit), 10, Mode::Spend), 100_000);
            level.unwrap()
        };
        for (limit, changed, kept_until) in
            [("10/10s", 0, 110), ("10/10s", 105, 120), ("10/10s", 110, 110), ("10/600s", 101, 760)]
        {
            let [before, then] = [kept_until - 1, kept_until]
                .map(|at| written(limit).is_over(Micros(at * 1_000_000), Micros(changed * 1_000_000)));
            assert_eq!((before, then), (false, true), "{limit}, changed at {changed} s");
        }
    }

    #[test]
    fn seven_thousand_odd_intervals_do_not_drift() {
        // 7 per second: a token comes back after 142 857 1/7 microseconds, which no decimal holds. The second token of
        // the burst lets a request come a fraction of a microsecond early without being refused for it.
        let spend = charge(numbers("2@7/1s"), 1, Mode::Spend);
        let mut level = None;
        for step in 0..7_000u64 {
            let (decision, change) = decide(level.as_ref(), &spend, Micros((step * 1_000_000).div_ceil(7)), Micros(0));
            assert_eq!(decision.outcome, Outcome::Allowed, "step {step}");
            if let LevelChange::Write(written) = change {
                level = Some(written);
            }
        }
        let used = level.unwrap().used - spend.numbers.token();
        assert!(used < spend.numbers.drain(), "{used} levels of drift, {} are a microsecond", spend.numbers.drain());
    }
}
