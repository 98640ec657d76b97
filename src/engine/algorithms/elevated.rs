//! Elevated numbers: they replace the limit's own for a while once the bucket is empty, a few times a month.
//!
//! They switch on for a charge that the limit's own numbers deny and the elevated ones allow after deducting the tokens used.
//! While they are on, only they count. When they end, the tokens left are cut to the limit's own burst. Months are in UTC by
//! the deciding clock. `lua/elevated.lua` does the same arithmetic.
//!
//! A check answers as a spend would and switches nothing on. A spend-only charge does switch them on, because limits in shadow
//! are charged so and must report what they would do. A spend up to what is left switches them on only if nothing is left: the
//! check before such a report has let the request pass.

use super::activations::Activations;
use super::charge::{Charge, Elevated, Mode};
use super::decision::{Attempt, Decision, Detail, Elevation, Outcome};
use super::gcra::{self, Gcra};
use super::level::{Level, drained};
use super::micros::{EXACT, Micros};
use super::numbers::Numbers;
use super::usage;

/// Two spans below 2^53 microseconds may be longer together than Redis can count.
const LONGEST_WAIT: Micros = Micros(EXACT - 1);

/// The bucket of a limit with `elevated`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElevatedLevel {
    /// By the numbers that held at the last write. It may be 0.
    pub(super) level: Level,
    /// The end of the elevated numbers; 0 if they have not been on since the limit's own were written.
    until: Micros,
    /// In the month of the last write, without those that a quota counts.
    activations: Activations,
    /// The instant from which the bucket is the same as a full one; `None` if never.
    pub(super) ends: Option<Micros>,
}

impl ElevatedLevel {
    /// The bucket of a limit that had no elevated numbers at the last write.
    pub(super) fn of(level: Level) -> Self {
        Self { level, until: Micros(0), activations: Activations::default(), ends: level.full_at() }
    }

    /// See [`Level::forgotten_at`]. A bucket with activations is kept for these until the month is over.
    fn forgotten_at(&self, charge: &Charge, now: Micros, effective_from: Micros) -> Option<Micros> {
        let counted = self.activations.at(self.level.since.max(now));
        let at = self.level.forgotten_at(&charge.numbers, effective_from).filter(|_| self.until == Micros(0))?;
        Some(if counted.count > 0 { at.max(counted.month_end) } else { at })
    }

    /// Sets the date to `now` if it is too far ahead. The month and its activations stay.
    pub(super) fn redate(&mut self, now: Micros) {
        if let Some(level) = self.level.redated(now) {
            self.until = self.until.since(self.level.since.since(now));
            self.level = level;
        }
    }
}

/// Decides a charge. The edit is `Some(None)` if the bucket can be dropped. `shared` are the activations of the charge's quota, if
/// it has one; they count instead of the bucket's own.
pub(super) fn decide(
    kept: Option<&ElevatedLevel>,
    charge: &Charge,
    elevated: &Elevated,
    shared: Option<Activations>,
    now: Micros,
    effective_from: Micros,
) -> Attempt<Option<ElevatedLevel>> {
    let forgotten = kept.and_then(|kept| kept.forgotten_at(charge, now, effective_from));
    let kept = kept.filter(|_| forgotten.is_none_or(|at| now < at));
    let mut bucket = ElevatedBucket::find(kept, charge, elevated, shared, now, effective_from);
    let was_active = bucket.is_active();
    let (mut decision, mut after) = bucket.decide();
    let spends = charge.mode.can_deny() || charge.mode == Mode::SpendOnly;
    let is_short = decision.outcome != Outcome::Allowed;
    let is_empty = charge.numbers.capacity().saturating_sub(bucket.used) < charge.numbers.token();
    let needs_more = if spends { is_short } else { charge.mode == Mode::SpendUpTo && charge.cost > 0 && is_empty };
    if !was_active && needs_more && bucket.until_activation(bucket.used) == Some(Micros(0)) {
        bucket.activate();
        (decision, after) = bucket.decide();
    }
    let is_taken = decision.is_allowed() && charge.mode != Mode::Look;
    if spends && charge.cost > 0 && (is_taken || decision.outcome != Outcome::Allowed) {
        // The next charge is assumed to be the same.
        let taken = if is_taken { charge.cost.saturating_mul(bucket.numbers().token()) } else { 0 };
        decision.retry_after = bucket.until_fits(bucket.used.saturating_add(taken));
    }
    let (active, triggered) = (bucket.is_active(), bucket.is_active() && !was_active);
    if let (Some(at), None, false, true) = (forgotten, &after, triggered, kept.is_some()) {
        let wait = at.since(bucket.instant);
        decision.full_after(wait, 0, charge);
        if spends && charge.cost > 0 && is_short {
            let instant = bucket.instant.after(wait);
            let shared = bucket.shared.map(|shared| shared.at(instant));
            let full =
                ElevatedBucket { instant, used: 0, activations: bucket.activations.at(instant), shared, ..bucket };
            let wait = full.until_activation(0).map(|renewed| wait.after(renewed));
            decision.retry_after = [decision.retry_after, wait].into_iter().flatten().min();
        }
    }
    let activations_left = triggered.then(|| bucket.activations_left());
    let detail = Some(Detail::Elevated(Elevation { triggered, active, activations_left }));
    let from_quota = (triggered && shared.is_some()).then_some(bucket.instant);
    Attempt { detail, from_quota, ..Attempt::new(decision, after.map(|after| bucket.written(after.level()))) }
}

/// A bucket at the instant of a charge.
struct ElevatedBucket<'a> {
    charge: &'a Charge,
    elevated: &'a Elevated,
    /// Now, or the last write if the clock has stepped back behind it. The bucket does not change in between.
    instant: Micros,
    /// In levels of the numbers that hold.
    used: u64,
    /// The end of the elevated numbers; 0 if they are off.
    until: Micros,
    /// Its own in this month.
    activations: Activations,
    /// Those of its quota in this month, which count instead.
    shared: Option<Activations>,
}

impl<'a> ElevatedBucket<'a> {
    fn find(
        kept: Option<&ElevatedLevel>,
        charge: &'a Charge,
        elevated: &'a Elevated,
        shared: Option<Activations>,
        now: Micros,
        effective_from: Micros,
    ) -> Self {
        let instant = kept.map_or(now, |kept| kept.level.since.max(now));
        let activations = kept.map_or_else(Activations::default, |kept| kept.activations.at(instant));
        let shared = shared.map(|shared| shared.at(instant));
        let mut bucket = Self { charge, elevated, instant, used: 0, until: Micros(0), activations, shared };
        let Some(kept) = kept else { return bucket };
        if instant < kept.until {
            bucket.until = kept.until;
            bucket.used = gcra::used_at(&kept.level, &elevated.numbers, 0, now, effective_from);
        } else if kept.until == Micros(0) {
            bucket.used = gcra::used_at(&kept.level, &charge.numbers, 0, now, effective_from);
        } else {
            let used = bucket.cut(gcra::used_at(&kept.level, &elevated.numbers, 0, kept.until, effective_from));
            bucket.used = drained(used, charge.numbers.drain(), instant.since(kept.until));
        }
        bucket
    }

    fn is_active(&self) -> bool {
        self.until > Micros(0)
    }

    fn decide(&self) -> (Decision, Option<Gcra<'a>>) {
        let numbers = self.numbers();
        usage::decide(Gcra { numbers, used: self.used, since: self.instant, held: 0 }, numbers, self.charge)
    }

    /// Returns the numbers that hold.
    fn numbers(&self) -> &'a Numbers {
        if self.is_active() { &self.elevated.numbers } else { &self.charge.numbers }
    }

    /// Returns the bucket at the end of the elevated numbers that hold, if nothing else happens until then.
    fn at_end(&self, used: u64) -> Self {
        let left = self.until.since(self.instant);
        let used = self.cut(drained(used, self.elevated.numbers.drain(), left));
        let [activations, shared] =
            [Some(self.activations), self.shared].map(|count| count.map(|it| it.at(self.until)));
        let activations = activations.unwrap_or_default();
        Self { instant: self.until, used, until: Micros(0), activations, shared, ..*self }
    }

    /// Returns the time until the charge fits if this much is used by the numbers that hold; `None` if never.
    fn until_fits(&self, used: u64) -> Option<Micros> {
        let numbers = self.numbers();
        let room = numbers.burst().checked_sub(self.charge.cost).map(|room| room.saturating_mul(numbers.token()));
        let plain = room.and_then(|most| numbers.time_for(used.saturating_sub(most)));
        if !self.is_active() {
            return [plain, self.until_activation(used)].into_iter().flatten().min();
        }
        let left = self.until.since(self.instant);
        plain.filter(|wait| *wait < left).or_else(|| {
            let ended = self.at_end(used);
            Some(left.after(ended.until_fits(ended.used)?).min(LONGEST_WAIT))
        })
    }

    /// Returns the levels used of the limit's own numbers when the elevated ones end with `used` of theirs: the tokens left
    /// stay as far as they fit.
    fn cut(&self, used: u64) -> u64 {
        let (base, elevated) = (&self.charge.numbers, &self.elevated.numbers);
        let left = u128::from(elevated.capacity().saturating_sub(used));
        let left = left * u128::from(base.token()) / u128::from(elevated.token());
        base.capacity().saturating_sub(u64::try_from(left).unwrap_or(u64::MAX))
    }

    fn activations_left(&self) -> u64 {
        self.elevated.activations_per_month.saturating_sub(self.counted().count)
    }

    /// Returns the activations that count.
    fn counted(&self) -> Activations {
        self.shared.unwrap_or(self.activations)
    }

    /// Returns the time until the elevated numbers can switch on for the charge, with this much used; `None` if never.
    ///
    /// Deducted from the elevated burst, the tokens used leave room for the cost if they are at most `burst - cost`. They first
    /// have to drain to that by the limit's own numbers.
    fn until_activation(&self, used: u64) -> Option<Micros> {
        let numbers = &self.charge.numbers;
        // A spend up to what is left needs room for one token.
        let cost = if self.charge.mode == Mode::SpendUpTo { self.charge.cost.min(1) } else { self.charge.cost };
        let room = self.elevated.numbers.burst().checked_sub(cost)?;
        let drained = numbers.time_for(used.saturating_sub(room.saturating_mul(numbers.token())))?;
        let renewed = self.counted().month_end.since(self.instant);
        Some(if self.activations_left() > 0 { drained } else { drained.max(renewed) })
    }

    /// Switches the elevated numbers on. The tokens used stay used.
    fn activate(&mut self) {
        let (base, elevated) = (&self.charge.numbers, &self.elevated.numbers);
        let used = (u128::from(self.used) * u128::from(elevated.token())).div_ceil(u128::from(base.token()));
        self.used = u64::try_from(used).unwrap_or(u64::MAX).min(elevated.capacity());
        *self.shared.as_mut().unwrap_or(&mut self.activations) = self.counted().with_one(self.instant);
        self.until = self.instant.after(Micros(self.elevated.span)).min(Micros(EXACT - 1));
    }

    /// Returns the bucket with a new level; `None` if it can be dropped. A full bucket is kept for its activations.
    fn written(&self, level: Level) -> Option<ElevatedLevel> {
        let Self { until, activations, .. } = *self;
        let ends = self.full_at(&level).map(|full| full.max(activations.month_end));
        let is_kept = level.used > 0 || self.is_active() || activations.count > 0;
        is_kept.then_some(ElevatedLevel { level, until, activations, ends })
    }

    /// Returns the instant at which the bucket is full and the elevated numbers are off.
    fn full_at(&self, level: &Level) -> Option<Micros> {
        if !self.is_active() {
            return level.full_at();
        }
        Some(self.until.after(self.charge.numbers.time_for(self.at_end(level.used).used)?))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::charge::Bucket;
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
        (per_minute(4, 2), Elevated { numbers, span: 5 * MINUTE, activations_per_month: 2, quota: None })
    }

    fn decide_at(
        kept: Option<&ElevatedLevel>,
        (numbers, elevated): &(Numbers, Elevated),
        mode: Mode,
        cost: u64,
        now: u64,
    ) -> (Elevation, Attempt<Option<ElevatedLevel>>) {
        let charge = Charge::new(Bucket::new("L:k", 1), numbers.clone(), cost, mode);
        let attempt = decide(kept, &charge, elevated, None, Micros(now), Micros(0));
        (attempt.detail.as_ref().and_then(Detail::elevation).unwrap(), attempt)
    }

    use Mode::{Check, Refund, Reset, Spend, SpendOnly, SpendUpTo};
    use Outcome::{Allowed, Denied, Short, Unchanged};

    /// Charges at seconds, in turn, and compares outcome, limit, what remains, and of the elevated numbers whether they
    /// were switched on, whether they are on, and the activations left, -1 unless they were.
    #[track_caller]
    fn check(steps: &[(u64, Mode, u64)], expected: &[(Outcome, u64, u64, bool, bool, i64)]) {
        let mut kept: Option<ElevatedLevel> = None;
        for ((at, mode, cost), expected) in steps.iter().zip(expected) {
            let (elevation, Attempt { decision, edit, .. }) =
                decide_at(kept.as_ref(), &elevated(), *mode, *cost, START + at * 1_000_000);
            let Decision { outcome, limit, remaining, .. } = decision;
            let Elevation { triggered, active, activations_left } = elevation;
            let left = activations_left.map_or(-1, |left| i64::try_from(left).unwrap());
            assert_eq!((outcome, limit, remaining, triggered, active, left), *expected, "at {at}");
            kept = edit.unwrap_or(kept);
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
                (Short, 4, 0, false, false, -1),
                (Allowed, 20, 0, true, true, 1),
                (Short, 20, 0, false, true, -1),
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
            let mut kept: Option<ElevatedLevel> = None;
            for (at, mode, cost) in charges {
                let (_, Attempt { edit, .. }) =
                    decide_at(kept.as_ref(), &elevated(), *mode, *cost, START + at * 1_000_000);
                kept = edit.unwrap_or(kept);
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
                (per_minute(burst, count), Elevated { numbers: other.clone(), span, activations_per_month: activations, quota: None });
            let mut by_hand = ByHand { left: burst * MINUTE, at: START, until: None, activations: 0 };
            // Begins with the month, which all steps fit into.
            let mut now = START + 60 * MINUTE;
            let (mut kept, mut admitted) = (None, 0);
            for (span, cost, at_once) in steps {
                now += if at_once { 0 } else { span };
                let (elevation, Attempt { decision, edit, .. }) = decide_at(kept.as_ref(), &numbers, Spend, cost, now);
                let passed = decision.outcome == Allowed;
                prop_assert_eq!(passed, by_hand.spend(&numbers, cost, now), "cost {} at {}", cost, now);
                prop_assert_eq!(elevation.active, by_hand.until.is_some());
                prop_assert_eq!(decision.remaining, by_hand.left / MINUTE);
                admitted += if passed { cost } else { 0 };
                let month_ends = now + 31 * 24 * 60 * MINUTE;
                match decision.retry_after {
                    Some(Micros(wait)) if !passed && !elevation.active && now + wait < month_ends => {
                        let asked = |at| decide_at(kept.as_ref(), &numbers, Check, cost, at).1.decision.outcome;
                        prop_assert_eq!((asked(now + wait), asked(now + wait - 1)), (Allowed, Denied), "{}", wait);
                    }
                    _ => {}
                }
                kept = edit.unwrap_or(kept);
            }
            let allowed = |numbers: &Numbers, span: u64| numbers.burst() * MINUTE + numbers.count() * span;
            let most = allowed(&numbers.0, now - START) + by_hand.activations * allowed(&other, span);
            prop_assert!(admitted * MINUTE <= most, "{} of {}", admitted * MINUTE, most);
        }

        /// All that ask how a spend would end say the same, and a wait is as long as it has to be, whether the numbers are on or off.
        #[test]
        fn waits_are_exact_and_a_check_answers_like_a_spend(
            (burst, count) in (1..6u64, 1..9u64),
            (more, faster, span, activations) in (0..9u64, 0..30u64, 1..4 * MINUTE, 1..4u64),
            steps in prop::collection::vec((0..2 * MINUTE, 0..16u64, 0..5u8), 1..40),
        ) {
            let other = per_minute(burst + more, count + faster);
            let numbers =
                (per_minute(burst, count), Elevated { numbers: other, span, activations_per_month: activations, quota: None });
            let (mut now, mut kept) = (START + 60 * MINUTE, None);
            for (wait, cost, kind) in steps {
                now += if kind == 0 { 0 } else { wait };
                let ask = |kept: &Option<ElevatedLevel>, mode, cost, at| decide_at(kept.as_ref(), &numbers, mode, cost, at);
                let (elevation, spend) = ask(&kept, Spend, cost, now);
                let decision = spend.decision;
                let (as_checked, check) = ask(&kept, Check, cost, now);
                prop_assert_eq!((as_checked, check.decision, check.edit), (elevation, decision, None));
                let unless_denied = |outcome| if outcome == Denied { Short } else { outcome };
                let (_, only) = ask(&kept, SpendOnly, cost, now);
                prop_assert_eq!(only.decision, Decision { outcome: unless_denied(decision.outcome), ..decision });
                let (as_seen, look) = ask(&kept, Mode::Look, cost, now);
                prop_assert_eq!((as_seen, look.edit), (elevation, None));
                if decision.outcome == Denied || cost == 0 {
                    prop_assert_eq!(look.decision, decision);
                } else if !elevation.triggered {
                    // It may be that nothing fits later.
                    let state = ask(&kept, Check, 0, now).1.decision;
                    prop_assert_eq!(look.decision, Decision { retry_after: look.decision.retry_after, ..state });
                }
                kept = match kind {
                    1 => ask(&kept, Refund, cost, now).1.edit.unwrap_or(kept),
                    2 => ask(&kept, SpendUpTo, cost, now).1.edit.unwrap_or(kept),
                    _ => spend.edit.unwrap_or(kept),
                };
                if kind == 1 || kind == 2 {
                    continue;
                }
                let month_ends = START + 60 * MINUTE + 30 * 24 * 60 * MINUTE;
                let Some(Micros(wait)) = decision.retry_after else {
                    prop_assert!(cost > numbers.1.numbers.burst());
                    continue;
                };
                if cost > 0 && now + wait < month_ends {
                    let fits = |at| ask(&kept, Check, cost, at).1.decision.outcome;
                    prop_assert_eq!(fits(now + wait), Allowed, "{} {:?}", cost, kept);
                    prop_assert!(wait == 0 || fits(now + wait - 1) == Denied, "{} {:?}", cost, kept);
                }
                // While the elevated numbers hold, it is full by them: what is left when they end is cut to the burst of the limit.
                if elevation.active {
                    continue;
                }
                let full = decision.reset_after.unwrap().0;
                let is_full = |at| {
                    let state = ask(&kept, Check, 0, at).1.decision;
                    state.remaining == state.limit
                };
                prop_assert!(is_full(now + full) && (full == 0 || !is_full(now + full - 1)), "{:?} {:?}", decision, kept);
            }
        }
    }

    #[test]
    fn what_is_left_is_spent_before_they_switch_on() {
        // Half a token is back after 15 s, a whole one after 30 s.
        for (at, mode, cost, expected) in [
            (0, SpendUpTo, 5, (Allowed, 20, 11, true, true, 1)),
            (0, SpendUpTo, 0, (Allowed, 4, 0, false, false, -1)),
            (15, SpendUpTo, 5, (Allowed, 20, 11, true, true, 1)),
            (30, SpendUpTo, 5, (Allowed, 4, 0, false, false, -1)),
            (0, Refund, 1, (Allowed, 4, 1, false, false, -1)),
            (0, Reset, 1, (Allowed, 4, 4, false, false, -1)),
        ] {
            check(&[(0, Spend, 4), (at, mode, cost)], &[(Allowed, 4, 0, false, false, -1), expected]);
        }
    }

    #[test]
    fn what_would_fit_just_when_they_end_does_not_fit_any_more() {
        let (numbers, elevated) = elevated();
        let once = (numbers, Elevated { activations_per_month: 1, ..elevated });
        let mut kept = None;
        for (at, cost) in [(0, 5), (180, 20)] {
            let (_, attempt) = decide_at(kept.as_ref(), &once, Spend, cost, START + at * 1_000_000);
            assert_eq!(attempt.decision.outcome, Allowed);
            kept = attempt.edit.unwrap();
        }
        // All 20 are back after two minutes, with the end. The next activation is one of the next month's.
        for (cost, seconds) in [(19, 114), (20, 3_420)] {
            let (_, attempt) = decide_at(kept.as_ref(), &once, Check, cost, START + 180 * 1_000_000);
            assert_eq!(attempt.decision.retry_after, Some(Micros(seconds * 1_000_000)), "{cost}");
        }
    }

    #[test]
    fn nobody_waits_to_spend_what_is_left_or_nothing() {
        for (spent, mode, cost, active) in [
            (3, SpendUpTo, 3, false),
            (4, SpendUpTo, 3, true),
            (5, SpendUpTo, 20, true),
            (4, Spend, 0, false),
            (4, Refund, 3, false),
            (4, Reset, 0, false),
        ] {
            let kept = decide_at(None, &elevated(), Spend, spent, START).1.edit.unwrap();
            let (elevation, attempt) = decide_at(kept.as_ref(), &elevated(), mode, cost, START);
            let Decision { outcome, retry_after, .. } = attempt.decision;
            let expected = (Allowed, Some(Micros(0)), active);
            assert_eq!((outcome, retry_after, elevation.active), expected, "{mode:?} {cost} after {spent}");
        }
        // More is used than the burst, and the numbers cannot switch on.
        let kept = decide_at(None, &elevated(), Spend, 4, START).1.edit.unwrap();
        let charge = Charge::new(Bucket::new("L:k", 1), per_minute(2, 2), 0, Spend);
        let exhausted = Some(Activations::exhausted(Micros(START)));
        let attempt = decide(kept.as_ref(), &charge, &elevated().1, exhausted, Micros(START), Micros(0));
        assert_eq!((attempt.decision.remaining, attempt.decision.retry_after), (0, Some(Micros(0))));
    }

    #[test]
    fn they_end_while_redis_can_count() {
        let (_, attempt) = decide_at(None, &elevated(), Spend, 5, EXACT - 5);
        assert_eq!(attempt.edit.unwrap().unwrap().until, Micros(EXACT - 1));
    }

    #[test]
    fn a_quota_counts_instead_of_the_bucket() {
        let (numbers, elevated) = elevated();
        let now = Micros(START);
        let ask = |cost, shared| {
            let charge = Charge::new(Bucket::new("L:k", 1), numbers.clone(), cost, Spend);
            let attempt = decide(None, &charge, &elevated, shared, now, Micros(0));
            let own = attempt.edit.map(|kept| kept.unwrap().activations.count);
            (attempt.decision.outcome, attempt.from_quota, own)
        };
        assert_eq!(ask(5, None), (Allowed, None, Some(1)));
        assert_eq!(ask(5, Some(Activations::default())), (Allowed, Some(now), Some(0)));
        assert_eq!(ask(4, Some(Activations::default())), (Allowed, None, Some(0)));
        assert_eq!(ask(5, Some(Activations::exhausted(now))), (Denied, None, None));
    }

    #[test]
    fn after_the_clock_stepped_back_they_last_as_long_as_was_left() {
        let mut kept = decide_at(None, &elevated(), Spend, 5, START).1.edit.unwrap().unwrap();
        let before = kept;
        kept.redate(Micros(START - 1_000_000));
        assert_eq!(kept, before);
        let now = START - 60 * MINUTE;
        kept.redate(Micros(now));
        assert_eq!((kept.level.since, kept.until), (Micros(now), Micros(now + 5 * MINUTE)));
        assert_eq!(kept.activations, before.activations);
    }
}
