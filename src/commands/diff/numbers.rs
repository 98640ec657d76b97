//! Compares the numbers of limits: one set is looser if it admits everything that the other admits.

use super::effect::Effect;
use crate::engine::algorithms::algorithm::{Algorithm, Aligned};
use crate::engine::algorithms::charge::Elevated;
use crate::engine::algorithms::numbers::Numbers;
use crate::engine::algorithms::windows::Windows;
use crate::engine::limit::allowance::Allowance;

/// The shortest month and year, in nanoseconds.
const SHORTEST_MONTH: u128 = 28 * 86_400_000_000_000;

/// Below this count, the ticks of a sliding window round by less than a token.
const FINE_COUNT: u64 = 1 << 26;

/// Compares what two allowances let pass.
pub(super) fn compare(old: &Allowance, new: &Allowance) -> Effect {
    if old == new {
        return Effect::NONE;
    }
    Effect { stricter: !allowance_keeps(old, new), looser: !allowance_keeps(new, old) }
}

fn allowance_keeps(old: &Allowance, new: &Allowance) -> bool {
    match (old.windows(), new.windows()) {
        (Some(before), Some(after)) => {
            let base = after.iter().all(|new| before.iter().any(|old| keeps(old, new)));
            base && match (old.elevated(), new.elevated()) {
                (None, None) => true,
                // They switch on only for what the base denies. While on, they alone count.
                (None, Some(elevated)) => before.iter().any(|old| keeps(old, &elevated.numbers)),
                (Some(_), None) => false,
                (Some(old), Some(new)) => elevated_keeps(old, new),
            }
        }
        _ => matches!((old, new), (_, Allowance::Unlimited | Allowance::Disabled) | (Allowance::Deny, _)),
    }
}

fn elevated_keeps(old: &Elevated, new: &Elevated) -> bool {
    keeps(&old.numbers, &new.numbers) && new.span >= old.span && new.activations_per_month >= old.activations_per_month
}

/// Returns true if requests that all pass under `old` all pass under `new`; false where that depends on more than these numbers.
pub(super) fn keeps(old: &Numbers, new: &Numbers) -> bool {
    if old == new {
        return true;
    }
    let at_least = || new.burst() >= old.burst() && new.count() >= old.count();
    match (old.algorithm(), new.algorithm()) {
        (Algorithm::Gcra, Algorithm::Gcra) => new.burst() >= old.burst() && refills_as_fast(rate(old), rate(new)),
        (Algorithm::FixedWindow(aligned), Algorithm::FixedWindow(_)) if old.windows() == new.windows() => {
            // Windows that start with a charge on a full bucket start together only if both buckets fill up together.
            let fill_together = old.count() == new.count() || [old, new].iter().all(|of| of.burst() == of.count());
            at_least() && (aligned == Aligned::Clock || fill_together) || bounded(old, new)
        }
        (Algorithm::SlidingWindow { count_denied: before }, Algorithm::SlidingWindow { count_denied: after })
            if old.period() == new.period() =>
        {
            new.count() >= old.count() && (before || !after) && (new.count() < FINE_COUNT || new.count() == old.count())
        }
        (Algorithm::Concurrency, Algorithm::Concurrency) => new.burst() >= old.burst() && new.span() <= old.span(),
        (Algorithm::Queue, Algorithm::Queue) => {
            // A span of 0 never ends.
            let age = |numbers: &Numbers| if numbers.span() == 0 { u64::MAX } else { numbers.span() };
            new.burst() >= old.burst() && age(new) <= age(old)
        }
        (before, after) => before.has_tokens() && after.has_tokens() && !new.counts_denied() && bounded(old, new),
    }
}

/// Returns true if `new` always admits at least as much as `old` ever admits.
fn bounded(old: &Numbers, new: &Numbers) -> bool {
    let room = u128::from(new.burst().min(new.count()));
    match new.algorithm() {
        Algorithm::Gcra => {
            let (at_once, count, period) = line_above(old);
            u128::from(new.burst()) >= at_once && refills_as_fast((count, period), rate(new))
        }
        Algorithm::FixedWindow(_) => match (old.windows(), new.windows()) {
            (_, None | Some(Windows::Calendar(_))) => false,
            // Windows that divide each other begin together.
            (Some(Windows::Clock(before)), Some(Windows::Clock(after))) if before.is_multiple_of(after) => {
                room >= u128::from(old.burst())
            }
            (Some(Windows::Clock(before)), Some(Windows::Clock(after))) if after.is_multiple_of(before) => {
                room >= u128::from(old.burst()) + u128::from(after / before - 1) * u128::from(old.count())
            }
            _ => room >= most_within(old, new.period().into()),
        },
        Algorithm::SlidingLog => room >= most_within(old, new.period().into()),
        Algorithm::SlidingWindow { .. } => room >= most_within(old, u128::from(new.period()) * 2),
        Algorithm::Concurrency | Algorithm::Queue | Algorithm::Script => false,
    }
}

/// The period in nanoseconds, or the shortest one of a calendar.
fn period(numbers: &Numbers) -> u128 {
    if numbers.is_calendar() { SHORTEST_MONTH } else { numbers.period().into() }
}

/// Count and period; a bucket that never refills has 0 in any time.
fn rate(numbers: &Numbers) -> (u128, u128) {
    (numbers.count().into(), period(numbers).max(1))
}

const fn refills_as_fast((old_count, old_period): (u128, u128), (new_count, new_period): (u128, u128)) -> bool {
    new_count.saturating_mul(old_period) >= old_count.saturating_mul(new_period)
}

/// The lowest line of tokens over time that the numbers never exceed: the tokens at once, and the count and period of its slope.
fn line_above(numbers: &Numbers) -> (u128, u128, u128) {
    let (burst, count, period) = (u128::from(numbers.burst()), u128::from(numbers.count()), period(numbers).max(1));
    let at_once = match numbers.algorithm() {
        // The end of one window and the start of the next.
        Algorithm::FixedWindow(_) | Algorithm::SlidingWindow { .. } => burst + count,
        _ => burst,
    };
    (at_once, count, period)
}

/// The most tokens that pass in a time of this length, its end excluded, in nanoseconds.
fn most_within(numbers: &Numbers, time: u128) -> u128 {
    let (burst, count, period) = (u128::from(numbers.burst()), u128::from(numbers.count()), period(numbers).max(1));
    let periods = time.div_ceil(period);
    match numbers.algorithm() {
        Algorithm::Gcra => burst + count.saturating_mul(time).div_ceil(period),
        Algorithm::SlidingLog => count.saturating_mul(periods),
        _ => burst + count.saturating_mul(periods),
    }
}
