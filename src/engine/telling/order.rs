//! The order of limits: which of two sets of numbers is stricter. `weir diff` and the lints of `weir check` both ask here.
//!
//! One is within the other if the other lets every series of requests pass that it lets pass as a whole, each alone and from a full
//! bucket. Two limits that decide the same requests take the same ones, so the one that the other is within never denies first.
//!
//! For `gcra`, `fixed_window` without a calendar and `sliding_log`, one window each, the answer is exact: a test looks for a series
//! wherever it is "not within". In doubt it is "not within" for sliding windows, calendars, `elevated`, several windows, and tokens that
//! come back more often than every microsecond.

use std::ops::{BitOr, BitOrAssign};

use crate::engine::algorithms::algorithm::{Algorithm, Aligned};
use crate::engine::algorithms::charge::Elevated;
use crate::engine::algorithms::gcra::greatest_common_divisor;
use crate::engine::algorithms::numbers::Numbers;
use crate::engine::algorithms::sliding_window::tick;
use crate::engine::algorithms::windows::Windows;
use crate::engine::limit::allowance::Allowance;

/// The effect of a change on requests. A change is stricter if the new rules may deny some of the requests that all passed under the
/// old ones, and looser if it is so the other way round. One that does both is stricter for some requests and looser for others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effect {
    pub stricter: bool,
    pub looser: bool,
}

/// The requests that two limits count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// Both count the same ones.
    Same,
    /// The stricter one may count more.
    More,
}

/// Below this count, the ticks of a sliding window round by less than a token.
const FINE_COUNT: u64 = 1 << 26;

/// Windows of different lengths are compared one by one up to this many, and by their rates beyond.
const MOST_WINDOWS: u128 = 1_000;

impl Effect {
    pub const NONE: Self = Self { stricter: false, looser: false };
    pub const STRICTER: Self = Self { stricter: true, looser: false };
    pub const LOOSER: Self = Self { stricter: false, looser: true };
    pub const BOTH: Self = Self { stricter: true, looser: true };

    /// The effect of a value that denies more the higher it is.
    pub fn of_rank<T: PartialOrd>(old: &T, new: &T) -> Self {
        Self { stricter: new > old, looser: new < old }
    }

    #[must_use]
    pub const fn reversed(self) -> Self {
        Self { stricter: self.looser, looser: self.stricter }
    }

    pub const fn word(self) -> &'static str {
        match (self.stricter, self.looser) {
            (true, true) => "stricter and looser",
            (true, false) => "stricter",
            (false, true) => "looser",
            (false, false) => "no effect on denials",
        }
    }
}

impl BitOr for Effect {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self { stricter: self.stricter || other.stricter, looser: self.looser || other.looser }
    }
}

impl BitOrAssign for Effect {
    fn bitor_assign(&mut self, other: Self) {
        *self = *self | other;
    }
}

/// Compares what two allowances let pass.
pub fn compare(old: &Allowance, new: &Allowance) -> Effect {
    if old == new {
        return Effect::NONE;
    }
    Effect { stricter: !is_within(old, new, Counted::Same), looser: !is_within(new, old, Counted::Same) }
}

/// Returns true if `loose` lets pass whatever `strict` lets pass.
pub fn is_within(strict: &Allowance, loose: &Allowance, counted: Counted) -> bool {
    let (Some(before), Some(after)) = (strict.windows(), loose.windows()) else {
        return matches!((strict, loose), (_, Allowance::Unlimited | Allowance::Disabled) | (Allowance::Deny, _));
    };
    if counted == Counted::Same
        && let (Some(before), Some(after)) = (strict.elevated(), loose.elevated())
        && strict.windows() == loose.windows()
        && after.activations_per_month >= before.activations_per_month
        && **after == (Elevated { activations_per_month: after.activations_per_month, ..(**before).clone() })
    {
        return true;
    }
    // With other numbers, or for other requests, the two would switch on at different times. Elevated numbers that end leave the
    // bucket of the limit's own fuller than they found it, so no other numbers bound them. They never switch on where the limit's
    // own deny nothing.
    let bounds = |loose: &Numbers| before.iter().any(|strict| numbers_are_within(strict, loose, counted));
    strict.elevated().is_none() && after.iter().all(bounds)
}

/// Returns true if `loose` lets pass whatever `strict` lets pass; see the module.
pub fn numbers_are_within(strict: &Numbers, loose: &Numbers, counted: Counted) -> bool {
    match (strict.algorithm(), loose.algorithm()) {
        (Algorithm::Concurrency, Algorithm::Concurrency) => {
            strict.burst() <= loose.burst() && strict.span() >= loose.span()
        }
        (Algorithm::Queue, Algorithm::Queue) => {
            // A span of 0 never ends.
            let age = |numbers: &Numbers| if numbers.span() == 0 { u64::MAX } else { numbers.span() };
            strict.burst() <= loose.burst() && age(strict) >= age(loose)
        }
        (before, after) if before.has_tokens() && after.has_tokens() => {
            have_like_windows(strict, loose, counted) || !loose.counts_denied() && is_bounded(strict, loose)
        }
        _ => strict == loose,
    }
}

/// Returns true if both have the same windows, and the looser one has more tokens in each.
fn have_like_windows(strict: &Numbers, loose: &Numbers, counted: Counted) -> bool {
    let (fewer, more) = (per_window(strict), per_window(loose));
    match (strict.algorithm(), loose.algorithm()) {
        (Algorithm::FixedWindow(aligned), Algorithm::FixedWindow(_)) if strict.windows() == loose.windows() => {
            // Windows that begin with a charge on a full bucket begin together only if both buckets are full at the same times.
            let begin_together = counted == Counted::Same && (fewer == more || fewer == u128::from(strict.burst()));
            strict.burst() <= loose.burst() && fewer <= more && (aligned == Aligned::Clock || begin_together)
        }
        (Algorithm::SlidingWindow { count_denied: before }, Algorithm::SlidingWindow { count_denied: after })
            if strict.span() == loose.span() =>
        {
            let is_fine = loose.count() < FINE_COUNT || strict.count() == loose.count();
            fewer <= more && is_fine && (!after || before && counted == Counted::Same)
        }
        _ => false,
    }
}

/// Returns true if what `strict` ever lets pass fits `loose` wherever the windows of either begin.
fn is_bounded(strict: &Numbers, loose: &Numbers) -> bool {
    let burst = u128::from(loose.burst());
    let (tokens, time) = rate(strict);
    let is_slower = |(more, shorter): (u128, u128)| tokens * shorter <= more * time;
    // In tokens times `time`, by the straight line above everything that passes.
    let line = |micros: u128| at_once(strict) * time + tokens * micros;
    match loose.algorithm() {
        Algorithm::Gcra => {
            let (drain, token) = rate(loose);
            let at_boundary = at_once(strict) * token <= burst * token + drain;
            is_slower((drain, token)) && u128::from(strict.burst()) <= burst && at_boundary
        }
        Algorithm::FixedWindow(aligned) => {
            let (length, added) = (lengths(loose).1, per_window(loose));
            let most = |windows: u128| match aligned {
                Aligned::Clock if !loose.is_calendar() => most_in_windows(strict, windows, length),
                _ => most_within(strict, windows * length),
            };
            let period = lengths(strict).0;
            let repeated = period / greatest_common_divisor(period, length);
            let fits = if repeated <= MOST_WINDOWS {
                (1..=repeated).all(|windows| most(windows) <= burst + added * (windows - 1))
            } else {
                line(length - 1) <= burst * time
            };
            is_slower((added, length)) && fits
        }
        Algorithm::SlidingLog => most_within(strict, loose.span().into()) <= burst,
        Algorithm::SlidingWindow { .. } => {
            let tick = tick(loose.count(), loose.span());
            most_in_windows(strict, 2, loose.span().into()) <= burst
                || line(u128::from(loose.span()) + u128::from(tick)) <= burst * time
        }
        Algorithm::Concurrency | Algorithm::Queue | Algorithm::Script => false,
    }
}

/// The most tokens that pass in so many microseconds, one after the other, wherever they begin.
fn most_within(numbers: &Numbers, micros: u128) -> u128 {
    let (burst, added, period) = (u128::from(numbers.burst()), per_window(numbers), lengths(numbers).0);
    let later = micros - 1;
    match numbers.algorithm() {
        // The token that begins a window is taken in it.
        Algorithm::FixedWindow(Aligned::First) => {
            (burst + added * (later / period)).max(burst - 1 + added * later.div_ceil(period))
        }
        Algorithm::FixedWindow(Aligned::Clock) => burst + added * later.div_ceil(period),
        Algorithm::SlidingLog => burst * micros.div_ceil(period),
        _ => {
            let (tokens, time) = rate(numbers);
            (burst * time + tokens * later) / time
        }
    }
}

/// The most tokens that pass in so many windows of the clock, one after the other.
fn most_in_windows(numbers: &Numbers, windows: u128, length: u128) -> u128 {
    let (burst, added, period) = (u128::from(numbers.burst()), per_window(numbers), lengths(numbers).0);
    let step = greatest_common_divisor(period, length);
    let of_clock = || burst + added * (windows * length - step).div_ceil(period);
    match numbers.algorithm() {
        Algorithm::FixedWindow(Aligned::Clock) if !numbers.is_calendar() => of_clock(),
        // No window lets more than its count pass.
        Algorithm::SlidingWindow { .. } => of_clock().min(most_within(numbers, windows * length)),
        _ => most_within(numbers, windows * length),
    }
}

/// The tokens that come back in the long run, and the microseconds that they take.
fn rate(numbers: &Numbers) -> (u128, u128) {
    match numbers.algorithm() {
        // A bucket of one token waits for a whole microsecond until it is full.
        Algorithm::Gcra if numbers.burst() == 1 && numbers.drain() > 0 => {
            (1, numbers.token().div_ceil(numbers.drain()).into())
        }
        Algorithm::Gcra => (numbers.drain().into(), numbers.token().into()),
        _ => (per_window(numbers), lengths(numbers).0),
    }
}

/// The most tokens that pass in a moment: the end of one window and the start of the next.
fn at_once(numbers: &Numbers) -> u128 {
    let burst = u128::from(numbers.burst());
    match numbers.algorithm() {
        Algorithm::FixedWindow(Aligned::First) => burst - 1 + per_window(numbers),
        Algorithm::FixedWindow(Aligned::Clock) => burst + per_window(numbers),
        _ => burst,
    }
}

/// The tokens that a window adds to an empty bucket.
fn per_window(numbers: &Numbers) -> u128 {
    numbers.count().min(numbers.burst()).into()
}

/// The shortest and the longest window, in microseconds; 1 for buckets that refill evenly.
fn lengths(numbers: &Numbers) -> (u128, u128) {
    let (shortest, longest) = match numbers.windows() {
        Some(Windows::First(period) | Windows::Clock(period)) => (period, period),
        Some(Windows::Calendar(calendar)) => calendar.lengths(),
        None if numbers.algorithm() == Algorithm::Gcra => (1, 1),
        None => (numbers.span(), numbers.span()),
    };
    (shortest.into(), longest.into())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::engine::algorithms::calendar::{Calendar, Unit};
    use crate::engine::algorithms::charge::{Bucket, Charge, Input, Mode};
    use crate::engine::algorithms::decision::Outcome;
    use crate::engine::algorithms::micros::Micros;
    use crate::engine::algorithms::state::{self, BucketState};
    use crate::engine::limit::allowance::ElevatedAllowance;

    const START: Micros = Micros(1_767_225_600_000_000);

    /// The state of a bucket after a charge that fits, or the outcome of one that does not.
    fn taken(state: Option<&BucketState>, charge: &Charge, now: Micros) -> Result<Option<BucketState>, Outcome> {
        let attempt = state::decide(state, charge, None, now, Micros(0)).unwrap();
        if !attempt.decision.is_allowed() {
            return Err(attempt.decision.outcome);
        }
        Ok(attempt.edit.map_or_else(|| state.cloned(), |edit| BucketState::edited(state.cloned(), &edit)))
    }

    fn charge(numbers: &Numbers, cost: u64) -> Charge {
        Charge::new(Bucket::new("a", 1), numbers.clone(), cost, Mode::Spend)
    }

    type Pair = [Option<BucketState>; 2];

    /// Looks at every series of requests in so many microseconds for one that `strict` lets pass and `loose` does not.
    fn finds_witness(strict: &Numbers, loose: &Numbers, micros: u64) -> bool {
        let [strict, loose] = [strict, loose].map(|numbers| charge(numbers, 1));
        let mut reached: Vec<Pair> = vec![[None, None]];
        for later in 0..micros {
            let now = START.after(Micros(later));
            let mut after: HashMap<String, Pair> = HashMap::new();
            for [mut one, mut other] in reached {
                loop {
                    let is_new = after.insert(format!("{one:?}{other:?}"), [one.clone(), other.clone()]).is_none();
                    let Ok(next) = taken(one.as_ref(), &strict, now) else { break };
                    let Ok(too) = taken(other.as_ref(), &loose, now) else { return true };
                    if !is_new {
                        break;
                    }
                    (one, other) = (next, too);
                }
            }
            reached = after.into_values().collect();
        }
        false
    }

    /// Numbers whose windows are a few microseconds long, so that every series can be tried.
    fn tiny() -> impl Strategy<Value = Numbers> {
        let rates = prop::sample::select(vec![(1, 1), (1, 2), (1, 3), (2, 2), (2, 3), (3, 2)]);
        (0..6u8, 1..5u64, rates).prop_map(|(algorithm, burst, (count, micros))| of(algorithm, burst, count, micros))
    }

    fn of(algorithm: u8, burst: u64, count: u64, micros: u64) -> Numbers {
        let period = micros * 1_000;
        let numbers = match algorithm {
            0 => Numbers::new(burst, count, period),
            1 => Numbers::fixed_window(burst, count, period, Aligned::First),
            2 => Numbers::fixed_window(burst, count, period, Aligned::Clock),
            3 => Numbers::sliding_log(count, period),
            4 => Numbers::sliding_window(count, period, false),
            _ => Numbers::fixed(burst),
        };
        numbers.unwrap()
    }

    fn is_exact(numbers: &Numbers) -> bool {
        let is_sliding = matches!(numbers.algorithm(), Algorithm::SlidingWindow { .. });
        !is_sliding && !numbers.is_finer_than_the_clock()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        /// The order is what a search through all series finds.
        #[test]
        fn one_is_within_the_other_if_no_series_tells_them_apart(strict in tiny(), loose in tiny()) {
            let is_within = numbers_are_within(&strict, &loose, Counted::Same);
            let found = finds_witness(&strict, &loose, 30);
            prop_assert!(!(is_within && found), "{strict} within {loose}");
            let is_exact = is_exact(&strict) && is_exact(&loose);
            prop_assert!(!is_exact || is_within || found, "{strict} not within {loose}");
        }
    }

    /// Numbers with edges that meet, of a few milliseconds.
    fn numbers() -> impl Strategy<Value = Numbers> {
        let period = prop::sample::select(vec![1_000u64, 2_000, 3_000, 4_000, 6_000, 10_000]);
        (0..6u8, 1..6u64, 1..6u64, period)
            .prop_map(|(algorithm, burst, count, micros)| of(algorithm, burst, count, micros))
    }

    fn allowance() -> impl Strategy<Value = Allowance> {
        let windows = |numbers: Vec<Numbers>| Allowance::Windows(numbers.into());
        let elevated = (1..3u64, 1..3u64, 0..3u64, 0..3u64, 3..6u64, 1..3u64).prop_map(
            |(burst, count, more, faster, span, activations_per_month)| {
                let numbers = of(0, burst + more, count + faster, 2_000);
                let elevated = Elevated { numbers, span: span * 1_000, activations_per_month, quota: None };
                let base = Arc::from([of(0, burst, count, 2_000)]);
                Allowance::Elevated(Arc::new(ElevatedAllowance { base, elevated: Arc::new(elevated) }))
            },
        );
        prop_oneof![prop::collection::vec(numbers(), 1..3).prop_map(windows), elevated]
    }

    /// The buckets of an allowance.
    struct Buckets<'a>(&'a Allowance, Vec<Option<BucketState>>);

    impl<'a> Buckets<'a> {
        fn new(allowance: &'a Allowance) -> Self {
            Self(allowance, vec![None; 2])
        }

        /// The buckets after a request that fits.
        fn taken(&self, cost: u64, now: Micros) -> Result<Vec<Option<BucketState>>, Outcome> {
            let input = self.0.elevated().map(|elevated| Box::new(Input::Elevated(Arc::clone(elevated))));
            let windows = self.0.windows().unwrap().iter().zip(&self.1);
            let after = windows.map(|(numbers, state)| {
                taken(state.as_ref(), &Charge { input: input.clone(), ..charge(numbers, cost) }, now)
            });
            after.collect()
        }
    }

    fn steps() -> impl Strategy<Value = Vec<(u64, u64, bool)>> {
        let gaps = prop::sample::select(vec![0u64, 0, 1, 250, 500, 999, 1_000, 1_500, 3_000]);
        prop::collection::vec((gaps, 1..3u64, any::<bool>()), 40..80)
    }

    proptest! {
        #![proptest_config(ProptestConfig { max_global_rejects: 200_000, ..ProptestConfig::with_cases(600) })]

        #[test]
        fn what_passes_an_allowance_passes_the_one_that_it_is_within(
            strict in allowance(), loose in allowance(), steps in steps(),
        ) {
            prop_assume!(is_within(&strict, &loose, Counted::Same));
            let (mut before, mut after) = (Buckets::new(&strict), Buckets::new(&loose));
            let mut now = START;
            for (gap, cost, _) in steps {
                now = now.after(Micros(gap));
                let Ok(states) = before.taken(cost, now) else { continue };
                before.1 = states;
                let states = after.taken(cost, now);
                prop_assert!(states.is_ok(), "{strict:?} within {loose:?} at {now:?}");
                after.1 = states.unwrap_or_default();
            }
        }

        /// Both limits cover one half of the requests, which pass only if they fit both. Only the stricter limit covers the others.
        #[test]
        fn a_limit_that_another_is_within_never_denies_first(
            strict in allowance(), loose in allowance(), steps in steps(),
        ) {
            prop_assume!(is_within(&strict, &loose, Counted::More));
            let (mut one, mut other) = (Buckets::new(&strict), Buckets::new(&loose));
            let mut now = START;
            for (gap, cost, are_both_asked) in steps {
                now = now.after(Micros(gap));
                let Ok(states) = one.taken(cost, now) else { continue };
                one.1 = states;
                if are_both_asked {
                    let states = other.taken(cost, now);
                    prop_assert!(states.is_ok(), "{strict:?} within {loose:?} at {now:?}");
                    other.1 = states.unwrap_or_default();
                }
            }
        }
    }

    #[test]
    fn months_slots_and_queues_have_an_order() {
        const HOUR: u64 = 3_600_000_000_000;
        let calendar = |unit, zone| Calendar::find(unit, zone).unwrap();
        let month = |count, zone| Numbers::calendar_window(count, count, calendar(Unit::Month(1), zone)).unwrap();
        let year = Numbers::calendar_window(1_200, 1_200, calendar(Unit::Year, "UTC")).unwrap();
        let sliding = |count, denied| Numbers::sliding_window(count, HOUR, denied).unwrap();
        let slots = |burst, lease| Numbers::concurrency(burst, lease).unwrap();
        let queue = |burst, age| Numbers::queue(burst, age).unwrap();
        for (strict, loose, same, more) in [
            (month(9, "UTC"), month(10, "UTC"), true, true),
            (month(9, "UTC"), month(10, "Asia/Tokyo"), false, false),
            (month(9, "UTC"), year.clone(), true, true),
            (Numbers::fixed(10).unwrap(), month(10, "UTC"), true, true),
            (Numbers::new(1, 1, 24 * HOUR).unwrap(), month(40, "UTC"), true, true),
            (Numbers::new(1, 2, 24 * HOUR).unwrap(), month(40, "UTC"), false, false),
            (month(10, "UTC"), Numbers::new(20, 1, HOUR).unwrap(), true, true),
            (sliding(9, false), sliding(10, false), true, true),
            (sliding(9, true), sliding(10, false), true, true),
            (sliding(9, true), sliding(10, true), true, false),
            (sliding(9, false), sliding(10, true), false, false),
            (slots(5, HOUR), slots(5, HOUR), true, true),
            (slots(5, HOUR), slots(6, HOUR / 2), true, true),
            (slots(5, HOUR / 2), slots(5, HOUR), false, false),
            (queue(5, None), queue(5, Some(HOUR)), true, true),
            (queue(5, Some(HOUR)), queue(6, None), false, false),
            (slots(5, HOUR), queue(5, None), false, false),
            (Numbers::script(1), Numbers::script(1), true, true),
            (Numbers::script(1), Numbers::script(2), false, false),
        ] {
            let found = [Counted::Same, Counted::More].map(|counted| numbers_are_within(&strict, &loose, counted));
            assert_eq!(found, [same, more], "{strict} within {loose}");
        }
        // Windows that have no common length are compared by their rates.
        let odd = |count, micros: u64| Numbers::fixed_window(count, count, micros * 1_000, Aligned::Clock).unwrap();
        assert!(numbers_are_within(&odd(10, 1_000_003), &odd(40, 1_999_993), Counted::Same));
        assert!(!numbers_are_within(&odd(10, 1_000_003), &odd(19, 1_999_993), Counted::Same));
    }
}
