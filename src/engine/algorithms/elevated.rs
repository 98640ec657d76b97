//! Other numbers that switch on by themselves when a bucket is empty, for a while and so many times a month.
//!
//! They switch on for a charge that the limit's own numbers refuse and that the elevated ones would serve once what is used
//! is deducted. While they are on they are all that holds. At the end, what is left is cut to the limit's own burst. The
//! months are those of UTC by the clock that decides. `lua/elevated.lua` is the same arithmetic.
//!
//! A check answers as a spend would and switches nothing on. A spend-only charge switches on as a spend does: limits in
//! shadow are charged so, and must report what they would do. What is taken only as far as it is there (spend up to)
//! uses no activation up while a token is left. A report that finds none switches on, because the check before it has let
//! the request pass.

use jiff::Timestamp;
use jiff::civil::Time;
use jiff::tz::Offset;

use super::bucket::Edit;
use super::charge::{Charge, Decision, Mode, Outcome};
use super::details::{Elevated, Elevation};
use super::gcra::{Change, Even, Meter, decide_by, drained};
use super::numbers::{EXACT, Micros};

/// What is kept of a bucket whose limit has `elevated`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElevatedMeter {
    /// What is used, by the numbers that held when it was written. The level may be 0.
    meter: Meter,
    /// The elevated numbers hold until then; 0 if they have not been on since the limit's own were written.
    until: Micros,
    /// How often they were switched on in the month of `meter.since`.
    activations: u64,
    /// When that month ends.
    month_end: Micros,
    /// When all of this says no more than a full bucket does; `None` if never.
    ends: Option<Micros>,
}

impl ElevatedMeter {
    /// A bucket whose limit had no elevated numbers when it was written.
    pub(crate) fn of(meter: Meter) -> Self {
        let ends = meter.full_at();
        Self { meter, until: Micros(0), activations: 0, month_end: Micros(0), ends }
    }

    /// Dates it now if it is dated too far ahead. The month and what it has counted stay.
    pub(crate) fn redate(&mut self, now: Micros) {
        if let Some(meter) = self.meter.redated(now) {
            let until = self.until.since(self.meter.since.since(now));
            (self.meter, self.until) = (meter, until);
        }
    }

    /// What is used, for a limit that has no elevated numbers any more.
    pub(crate) const fn meter(&self) -> &Meter {
        &self.meter
    }

    /// When it says no more than a full bucket does; `None` if never.
    pub(crate) const fn ends(&self) -> Option<Micros> {
        self.ends
    }
}

/// What comes of a charge.
pub(crate) struct Decided {
    pub(crate) decision: Decision,
    pub(crate) elevation: Elevation,
    /// What is to be done with the bucket.
    pub(crate) edit: Edit,
}

/// Decides a charge. `kept` is what is stored, or `None` for a full bucket; `effective_from` is when the numbers took
/// effect, as for [`super::gcra::decide`].
pub(crate) fn decide(
    kept: Option<&ElevatedMeter>,
    charge: &Charge,
    elevated: &Elevated,
    now: Micros,
    effective_from: Micros,
) -> Decided {
    let mut found = Found::find(kept, charge, elevated, now, effective_from);
    let (mut decision, mut change) = found.decide();
    let mut triggered = false;
    let spends = matches!(charge.mode, Mode::Spend | Mode::Check | Mode::SpendOnly);
    let finds_nothing = charge.mode == Mode::SpendUpTo
        && charge.cost > 0
        && !found.is_active()
        && charge.numbers.capacity().saturating_sub(found.level) < charge.numbers.token();
    if finds_nothing && found.until_activation(found.level) == Some(Micros(0)) {
        triggered = true;
        found.activate();
        (decision, change) = found.decide();
    } else if spends && !found.is_active() {
        let is_refused = decision.outcome != Outcome::Allowed;
        // With what an allowed charge takes, for one that is alike.
        let taken = if is_refused { 0 } else { charge.cost.saturating_mul(charge.numbers.token()) };
        let wait = found.until_activation(found.level.saturating_add(taken));
        if is_refused && wait == Some(Micros(0)) {
            triggered = true;
            found.activate();
            (decision, change) = found.decide();
        } else {
            decision.retry_after = match (decision.retry_after, wait) {
                (Some(plain), Some(wait)) => Some(plain.min(wait)),
                (plain, wait) => plain.or(wait),
            };
        }
    }
    let activations_left = triggered.then(|| found.activations_left());
    let elevation = Elevation { triggered, active: found.is_active(), activations_left };
    Decided { decision, elevation, edit: found.edit(change) }
}

/// A bucket as a charge finds it.
struct Found<'a> {
    charge: &'a Charge,
    elevated: &'a Elevated,
    /// Now. If the clock stepped back behind what the bucket has seen, that: it stands still until it has caught up.
    instant: Micros,
    /// What is used, in levels of the numbers that hold.
    level: u64,
    /// Until when the elevated numbers hold; 0 if they do not.
    until: Micros,
    /// How often they were switched on this month.
    activations: u64,
    /// When this month ends; 0 if they were not.
    month_end: Micros,
}

impl<'a> Found<'a> {
    fn find(
        kept: Option<&ElevatedMeter>,
        charge: &'a Charge,
        elevated: &'a Elevated,
        now: Micros,
        effective_from: Micros,
    ) -> Self {
        let nothing = |instant| Self {
            charge,
            elevated,
            instant,
            level: 0,
            until: Micros(0),
            activations: 0,
            month_end: Micros(0),
        };
        let Some(kept) = kept else { return nothing(now) };
        let mut found = nothing(kept.meter.since.max(now));
        if found.instant < kept.month_end {
            (found.activations, found.month_end) = (kept.activations, kept.month_end);
        }
        if found.instant < kept.until {
            found.until = kept.until;
            found.level = kept.meter.level_at(&elevated.numbers, now, effective_from);
        } else if kept.until == Micros(0) {
            found.level = kept.meter.level_at(&charge.numbers, now, effective_from);
        } else {
            let level = found.cut(kept.meter.level_at(&elevated.numbers, kept.until, effective_from));
            found.level = drained(level, charge.numbers.drain(), found.instant.since(kept.until));
        }
        found
    }

    fn is_active(&self) -> bool {
        self.until > Micros(0)
    }

    fn decide(&self) -> (Decision, Change) {
        let numbers = if self.is_active() { &self.elevated.numbers } else { &self.charge.numbers };
        decide_by(&Even { numbers, level: self.level, since: self.instant }, numbers, self.charge)
    }

    /// What is used in levels of the limit's own numbers, when the elevated ones end with `level` used of theirs: what is
    /// left stays, as far as it fits.
    fn cut(&self, level: u64) -> u64 {
        let (base, elevated) = (&self.charge.numbers, &self.elevated.numbers);
        let left = u128::from(elevated.capacity().saturating_sub(level));
        let left = left * u128::from(base.token()) / u128::from(elevated.token());
        base.capacity().saturating_sub(u64::try_from(left).unwrap_or(u64::MAX))
    }

    fn activations_left(&self) -> u64 {
        self.elevated.activations_per_month.saturating_sub(self.activations)
    }

    /// Until the elevated numbers can be switched on for the charge, with this level used; `None` if never.
    ///
    /// Deducted from their burst, the tokens used leave room for the cost if they are `burst - cost` at most, and so they
    /// have to drain to that by the limit's own numbers first.
    fn until_activation(&self, level: u64) -> Option<Micros> {
        let numbers = &self.charge.numbers;
        // What is taken as far as it is there needs room for something.
        let cost = if self.charge.mode == Mode::SpendUpTo { self.charge.cost.min(1) } else { self.charge.cost };
        let room = self.elevated.numbers.burst().checked_sub(cost)?;
        let drained = numbers.time_for(level.saturating_sub(room.saturating_mul(numbers.token())))?;
        let renewed = self.month_end.since(self.instant);
        Some(if self.activations_left() > 0 { drained } else { drained.max(renewed) })
    }

    /// Switches the elevated numbers on. What is used stays used.
    fn activate(&mut self) {
        let (base, elevated) = (&self.charge.numbers, &self.elevated.numbers);
        let level = (u128::from(self.level) * u128::from(elevated.token())).div_ceil(u128::from(base.token()));
        self.level = u64::try_from(level).unwrap_or(u64::MAX).min(elevated.capacity());
        if self.month_end <= self.instant {
            self.month_end = next_month(self.instant);
        }
        self.activations += 1;
        self.until = Micros(self.instant.0.saturating_add(self.elevated.span).min(EXACT - 1));
    }

    /// What is to be kept.
    fn edit(&self, change: Change) -> Edit {
        let numbers = if self.is_active() { &self.elevated.numbers } else { &self.charge.numbers };
        let (token, refill) = numbers.written();
        let level = match change {
            Change::Keep => return Edit::Keep,
            Change::Write(meter) => meter.level,
            Change::Clear if !self.is_active() && self.activations == 0 => return Edit::Elevated(None),
            // The bucket is full, but that is not all there is to it.
            Change::Clear => 0,
        };
        let meter = Meter { since: self.instant, level, token, refill };
        let Self { until, activations, month_end, .. } = *self;
        let full = self.full_at(&meter);
        let ends = full.map(|full| if activations > 0 { full.max(month_end) } else { full });
        Edit::Elevated(Some(ElevatedMeter { meter, until, activations, month_end, ends }))
    }

    /// When the bucket is full and the elevated numbers do not hold.
    fn full_at(&self, meter: &Meter) -> Option<Micros> {
        if !self.is_active() {
            return meter.full_at();
        }
        let left = drained(meter.level, self.elevated.numbers.drain(), self.until.since(self.instant));
        let full = self.charge.numbers.time_for(self.cut(left))?;
        Some(Micros(self.until.0.saturating_add(full.0)))
    }
}

/// When the month that holds an instant ends in UTC, or the last instant that counts exactly if that is earlier.
fn next_month(at: Micros) -> Micros {
    let end = || {
        let at = Timestamp::from_microsecond(i64::try_from(at.0).ok()?).ok()?;
        let first = Offset::UTC.to_datetime(at).date().last_of_month().tomorrow().ok()?;
        let end = Offset::UTC.to_timestamp(first.to_datetime(Time::midnight())).ok()?;
        u64::try_from(end.as_microsecond()).ok()
    };
    Micros(end().map_or(EXACT - 1, |end| end.min(EXACT - 1)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::calendar::{Calendar, Unit};
    use super::super::charge::Bucket;
    use super::super::numbers::Numbers;
    use super::*;

    const MINUTE: u64 = 60_000_000;
    /// 2024-03-31T23:00:00Z, an hour before a month ends.
    const START: u64 = 1_711_926_000_000_000;

    fn per_minute(burst: u64, count: u64) -> Numbers {
        Numbers::new(burst, count, MINUTE * 1_000).unwrap()
    }

    /// 2 a minute, or 10 with a burst of 20 for 5 minutes, twice a month.
    fn elevated() -> (Numbers, Elevated) {
        let numbers = per_minute(20, 10);
        (per_minute(4, 2), Elevated { numbers, span: 5 * MINUTE, activations_per_month: 2 })
    }

    fn decide_at(
        kept: Option<&ElevatedMeter>,
        (numbers, elevated): &(Numbers, Elevated),
        mode: Mode,
        cost: u64,
        now: u64,
    ) -> Decided {
        let charge = Charge::new(Bucket { key: "L:k".into(), fingerprint: 1 }, *numbers, cost, mode);
        decide(kept, &charge, elevated, Micros(now), Micros(0))
    }

    fn after(kept: Option<ElevatedMeter>, edit: &Edit) -> Option<ElevatedMeter> {
        if let Edit::Elevated(kept) = edit { *kept } else { kept }
    }

    use Mode::{Check, Refund, Reset, Spend, SpendOnly, SpendUpTo};
    use Outcome::{Allowed, Denied, Unchanged};

    /// Charges at seconds, in turn, and compares outcome, limit, what remains, and of the elevated numbers whether they
    /// were switched on, whether they are on, and the activations left, -1 unless they were.
    #[track_caller]
    fn check(steps: &[(u64, Mode, u64)], expected: &[(Outcome, u64, u64, bool, bool, i64)]) {
        let mut kept: Option<ElevatedMeter> = None;
        for ((at, mode, cost), expected) in steps.iter().zip(expected) {
            let decided = decide_at(kept.as_ref(), &elevated(), *mode, *cost, START + at * 1_000_000);
            let Decision { outcome, limit, remaining, .. } = decided.decision;
            let Elevation { triggered, active, activations_left } = decided.elevation;
            let left = activations_left.map_or(-1, |left| i64::try_from(left).unwrap());
            assert_eq!((outcome, limit, remaining, triggered, active, left), *expected, "at {at}");
            kept = after(kept, &decided.edit);
        }
    }

    #[test]
    fn they_switch_on_when_short_and_end_with_what_fits_into_the_burst() {
        check(
            &[
                (0, Spend, 4),
                (0, Spend, 17),
                (0, Spend, 6),
                (0, Spend, 10),
                (0, Spend, 1),
                (299, Check, 20),
                (300, Spend, 1),
            ],
            &[
                (Allowed, 4, 0, false, false, -1),
                (Denied, 4, 0, false, false, -1),
                (Allowed, 20, 10, true, true, 1),
                (Allowed, 20, 0, false, true, -1),
                (Denied, 20, 0, false, true, -1),
                (Allowed, 20, 0, false, true, -1),
                (Allowed, 4, 3, false, false, -1),
            ],
        );
        // Nothing is left a second before the end, and a sixth of a token at the end, from which the limit's own go on.
        check(
            &[(0, Spend, 5), (299, Spend, 20), (300, Check, 0), (324, Check, 0), (325, Check, 0)],
            &[
                (Allowed, 20, 15, true, true, 1),
                (Allowed, 20, 0, false, true, -1),
                (Allowed, 4, 0, false, false, -1),
                (Allowed, 4, 0, false, false, -1),
                (Allowed, 4, 1, false, false, -1),
            ],
        );
    }

    #[test]
    fn a_month_of_utc_has_its_activations() {
        check(
            &[(0, Spend, 5), (300, Spend, 5), (600, Spend, 5), (3_599, Spend, 5), (3_600, Spend, 5)],
            &[
                (Allowed, 20, 15, true, true, 1),
                (Allowed, 20, 15, true, true, 0),
                (Denied, 4, 4, false, false, -1),
                (Denied, 4, 4, false, false, -1),
                (Allowed, 20, 15, true, true, 1),
            ],
        );
    }

    #[test]
    fn only_what_would_be_refused_and_can_be_served_switches_them_on() {
        check(
            &[
                (0, Check, 5),
                (0, SpendUpTo, 5),
                (0, Spend, 0),
                (0, SpendOnly, 21),
                (0, SpendOnly, 16),
                (0, SpendOnly, 1),
            ],
            &[
                (Allowed, 20, 15, true, true, 1),
                (Allowed, 4, 0, false, false, -1),
                (Allowed, 4, 0, false, false, -1),
                (Unchanged, 4, 0, false, false, -1),
                (Allowed, 20, 0, true, true, 1),
                (Unchanged, 20, 0, false, true, -1),
            ],
        );
    }

    #[test]
    fn what_is_given_back_and_reset_leaves_them_on_and_counted() {
        check(
            &[
                (0, Refund, 1),
                (0, Spend, 5),
                (0, Refund, 3),
                (0, Reset, 0),
                (0, Spend, 20),
                (300, Reset, 0),
                (300, Spend, 5),
            ],
            &[
                (Unchanged, 4, 4, false, false, -1),
                (Allowed, 20, 15, true, true, 1),
                (Allowed, 20, 18, false, true, -1),
                (Allowed, 20, 20, false, true, -1),
                (Allowed, 20, 0, false, true, -1),
                (Allowed, 4, 4, false, false, -1),
                (Allowed, 20, 15, true, true, 0),
            ],
        );
    }

    #[test]
    fn a_clock_that_steps_back_prolongs_nothing() {
        check(
            &[(0, Spend, 5), (299, Spend, 1), (100, Check, 0), (300, Check, 0), (299, Spend, 4), (300, Check, 0)],
            &[
                (Allowed, 20, 15, true, true, 1),
                (Allowed, 20, 19, false, true, -1),
                (Allowed, 20, 19, false, true, -1),
                (Allowed, 4, 4, false, false, -1),
                (Allowed, 20, 15, false, true, -1),
                (Allowed, 4, 4, false, false, -1),
            ],
        );
    }

    #[test]
    fn it_is_kept_until_the_bucket_is_full_and_the_month_is_over() {
        let kept = |charges: &[(u64, Mode, u64)]| {
            let mut kept: Option<ElevatedMeter> = None;
            for (at, mode, cost) in charges {
                let decided = decide_at(kept.as_ref(), &elevated(), *mode, *cost, START + at * 1_000_000);
                kept = after(kept, &decided.edit);
            }
            kept.map(|kept| (kept.ends.unwrap().0 - START) / 1_000_000)
        };
        assert_eq!(kept(&[(0, Spend, 3)]), Some(90));
        assert_eq!(kept(&[(0, Spend, 3), (0, Reset, 0)]), None);
        assert_eq!(kept(&[(0, Spend, 5)]), Some(3_600));
        assert_eq!(kept(&[(0, Spend, 5), (0, Reset, 0)]), Some(3_600));
        assert_eq!(kept(&[(0, Spend, 5), (400, Spend, 4)]), Some(3_600));
        // Until they are off, and then until nothing is missing from the burst: of 20, 1/6 is left when they end.
        assert_eq!(kept(&[(3_599, Spend, 5)]), Some(3_899));
        assert_eq!(kept(&[(3_599, Spend, 5), (3_898, Spend, 20)]), Some(3_899 + 115));
    }

    /// The instants at which limitd lets its count of a month expire.
    #[test]
    fn months_end_with_those_of_utc() {
        for (at, end) in [
            ("2024-03-15T12:00:00Z", 1_711_929_600_000),
            ("2024-03-31T23:00:00Z", 1_711_929_600_000),
            ("2024-03-31T23:59:59Z", 1_711_929_600_000),
            ("2024-04-01T00:00:00Z", 1_714_521_600_000),
            ("2024-12-31T23:59:59Z", 1_735_689_600_000),
            ("2024-02-29T00:00:00Z", 1_709_251_200_000),
        ] {
            let at: jiff::Timestamp = at.parse().unwrap();
            let at = Micros(u64::try_from(at.as_microsecond()).unwrap());
            assert_eq!(next_month(at), Micros::from_millis(end));
        }
        let utc = Calendar::find(Unit::Month(1), "UTC").unwrap();
        for month in 0..3_420 {
            let (start, end) = (utc.start(month), utc.start(month + 1));
            assert_eq!([next_month(start), next_month(Micros(end.0 - 1))], [end, end]);
        }
        assert_eq!(next_month(Micros(u64::MAX)), Micros(EXACT - 1));
    }

    /// What a reader of the README would do by hand: tokens left, in parts of which a token has as many as a minute has
    /// microseconds, so that nothing is ever rounded.
    #[derive(Clone, Copy)]
    struct ByHand {
        left: u64,
        at: u64,
        until: Option<u64>,
        activations: u64,
    }

    impl ByHand {
        fn spend(&mut self, (base, elevated): &(Numbers, Elevated), cost: u64, now: u64) -> bool {
            let full = |numbers: &Numbers| numbers.burst() * MINUTE;
            let refill = |left: u64, numbers: &Numbers, span: u64| (left + numbers.count() * span).min(full(numbers));
            if let Some(until) = self.until.filter(|until| *until <= now) {
                self.left = refill(self.left, &elevated.numbers, until - self.at).min(full(base));
                (self.at, self.until) = (until, None);
            }
            let active = if self.until.is_some() { &elevated.numbers } else { base };
            self.left = refill(self.left, active, now - self.at);
            self.at = now;
            let used = full(active) - self.left;
            let cost = cost * MINUTE;
            if self.left >= cost {
                self.left -= cost;
                return true;
            }
            let is_served = self.until.is_none() && used + cost <= full(&elevated.numbers);
            if is_served && self.activations < elevated.activations_per_month {
                self.activations += 1;
                self.until = Some(now + elevated.span);
                self.left = full(&elevated.numbers) - used - cost;
                return true;
            }
            false
        }
    }

    proptest! {
        #[test]
        fn it_admits_what_is_counted_by_hand_and_a_wait_is_as_long_as_it_has_to_be(
            (burst, count) in (1..20u64, 1..30u64),
            (more, faster, span, activations) in (0..40u64, 0..90u64, 1..10 * MINUTE, 1..4u64),
            steps in prop::collection::vec((0..3 * MINUTE, 0..40u64, any::<bool>()), 1..60),
        ) {
            let other = per_minute(burst + more, count + faster);
            let numbers =
                (per_minute(burst, count), Elevated { numbers: other, span, activations_per_month: activations });
            let mut by_hand = ByHand { left: burst * MINUTE, at: START, until: None, activations: 0 };
            // Begins with the month, which all steps fit into.
            let mut now = START + 60 * MINUTE;
            let (mut kept, mut admitted) = (None, 0);
            for (span, cost, at_once) in steps {
                now += if at_once { 0 } else { span };
                let decided = decide_at(kept.as_ref(), &numbers, Spend, cost, now);
                let passed = decided.decision.outcome == Allowed;
                prop_assert_eq!(passed, by_hand.spend(&numbers, cost, now), "cost {} at {}", cost, now);
                prop_assert_eq!(decided.elevation.active, by_hand.until.is_some());
                prop_assert_eq!(decided.decision.remaining, by_hand.left / MINUTE);
                admitted += if passed { cost } else { 0 };
                let month_ends = now + 31 * 24 * 60 * MINUTE;
                match decided.decision.retry_after {
                    Some(Micros(wait)) if !passed && !decided.elevation.active && now + wait < month_ends => {
                        let asked = |at| decide_at(kept.as_ref(), &numbers, Check, cost, at).decision.outcome;
                        prop_assert_eq!((asked(now + wait), asked(now + wait - 1)), (Allowed, Denied), "{}", wait);
                    }
                    _ => {}
                }
                kept = after(kept, &decided.edit);
            }
            let allowed = |numbers: &Numbers, span: u64| numbers.burst() * MINUTE + numbers.count() * span;
            let most = allowed(&numbers.0, now - START) + by_hand.activations * allowed(&other, span);
            prop_assert!(admitted * MINUTE <= most, "{} of {}", admitted * MINUTE, most);
        }
    }
}
