//! What a bucket has used and since when, in integers, and what a charge makes of it: by GCRA, or in fixed windows.
//!
//! Storing the tokens used instead of a theoretical arrival time alone is what lets changed numbers carry over: Boulder
//! keeps only the time, so a raised limit has no effect until the old time has passed (letsencrypt/boulder#8785).
//! `lua/gcra.lua` and `lua/fixed_window.lua` are the same arithmetic; a property test holds them together.

use super::charge::{Charge, Decision, Mode, Outcome};
use super::fixed_window::FixedWindow;
use super::numbers::{EXACT, Micros, Numbers};
use super::refill::Refill;

/// What a bucket has used, and when that was true. A full bucket has no meter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meter {
    /// The last instant at which the bucket was written; in windows, when the window began in which it was. It never
    /// moves backwards.
    pub since: Micros,
    /// Levels used at `since`: more than the capacity if a gateway with a higher burst wrote them.
    pub level: u64,
    /// The weight of a token when it was written; in windows, where that is 1, the tokens that each of them added.
    pub token: u64,
    /// How it refilled when it was written.
    pub refill: Refill,
}

/// How far ahead of the clock a bucket may be dated, in microseconds: until then it stands still, and beyond that it is
/// dated now. Threads read the clock a moment apart, and servers' clocks differ by some milliseconds.
pub const MOST_AHEAD: u64 = 1_000_000;

/// Whether the clock has stepped back since this instant, or another clock set it.
#[inline]
pub(crate) const fn is_ahead(at: Micros, now: Micros) -> bool {
    at.0 > now.0.saturating_add(MOST_AHEAD)
}

/// What is left of a meter's level when its numbers change, for others to go on with.
pub(crate) struct Carried {
    /// When the window began that was under way; the instant of the change if the bucket had no windows.
    pub(crate) anchor: Micros,
    /// What is used, in levels.
    used: u64,
    /// The levels of a token.
    weight: u64,
}

impl Meter {
    /// The same dated now, if it is dated too far ahead: it refills from here on, so that nobody waits for a clock that
    /// stepped back.
    #[inline]
    #[must_use]
    pub fn redated(self, now: Micros) -> Option<Self> {
        is_ahead(self.since, now).then_some(Self { since: now, ..self })
    }

    /// Whether it need not be kept at `now`: it is full by the numbers that it was written under. If the rules changed
    /// before it was, at `changed`, it may not be by the new ones, and is kept for as long again, at most
    /// [`LONGEST_RETENTION`].
    pub fn is_over(&self, now: Micros, changed: Micros) -> bool {
        is_over(Some(self.since), self.full_at(), now, changed)
    }

    /// When the bucket is full again and the meter says nothing more; `None` if never.
    pub fn full_at(&self) -> Option<Micros> {
        if let Some(windows) = self.refill.windows() {
            return Some(windows.ahead(self.since, self.level.div_ceil(self.token)));
        }
        match self.refill.drain() {
            0 => None,
            drain => Some(Micros(self.since.0.saturating_add(self.level.div_ceil(drain)))),
        }
    }

    /// Whether the bucket is full at `now`.
    pub fn is_full(&self, now: Micros) -> bool {
        self.full_at().is_some_and(|full| full <= now)
    }

    /// What is used at `now`, in levels of `numbers`, which hold since `effective_from`.
    ///
    /// Under unchanged numbers the level drains from `since`. Under changed ones it drains at the old rate until the
    /// new numbers took effect, is then weighed anew (the tokens used stay the same, rounded up to a level), and
    /// drains at the new rate from there.
    pub(crate) fn level_at(&self, numbers: &Numbers, now: Micros, effective_from: Micros) -> u64 {
        if (self.token, self.refill) == (numbers.token(), numbers.refill()) {
            let level = drained(self.level, numbers.drain(), now.since(self.since));
            return self.bounded(level, numbers, effective_from);
        }
        let changed = self.changed(now, effective_from);
        let level = self.bounded(self.carried(changed).weighed(numbers), numbers, effective_from);
        drained(level, numbers.drain(), now.since(changed))
    }

    /// Cuts a level of this meter to the capacity of numbers that took effect after it was written. A higher level that was
    /// written later comes from a gateway with other rules, perhaps newer ones, and stays.
    fn bounded(&self, level: u64, numbers: &Numbers, effective_from: Micros) -> u64 {
        if level > numbers.capacity() && self.since <= effective_from { numbers.capacity() } else { level }
    }

    /// When the numbers changed that the meter was written under.
    pub(crate) fn changed(&self, now: Micros, effective_from: Micros) -> Micros {
        effective_from.max(self.since).min(now.max(self.since))
    }

    /// What is left at `changed` by the numbers that the meter was written under.
    pub(crate) fn carried(&self, changed: Micros) -> Carried {
        let Some(windows) = self.refill.windows() else {
            let used = drained(self.level, self.refill.drain(), changed.since(self.since));
            return Carried { used, weight: self.token, anchor: changed };
        };
        // In Redis the bucket has only the name of its calendar, and how long the window is that it was written in.
        let windows = windows.as_plain(self.since);
        let [first, last] = [self.since, changed].map(|at| windows.number(self.since, at));
        let used = self.level.saturating_sub((last - first).saturating_mul(self.token));
        Carried { used, weight: 1, anchor: windows.start(self.since, last) }
    }
}

impl Carried {
    /// The same tokens in levels of other numbers, rounded up; as many as can be counted at most.
    pub(crate) fn weighed(&self, numbers: &Numbers) -> u64 {
        let weighed = (u128::from(self.used) * u128::from(numbers.token())).div_ceil(u128::from(self.weight));
        u64::try_from(weighed).unwrap_or(u64::MAX).min(EXACT - 1)
    }
}

/// A level after some time.
#[inline]
pub(crate) fn drained(level: u64, drain: u64, span: Micros) -> u64 {
    let out = u128::from(span.0) * u128::from(drain);
    u64::try_from(out).map_or(0, |out| level.saturating_sub(out))
}

/// As [`Meter::is_over`], of a bucket that was written at `since` and is full at `full`, or never.
pub(crate) fn is_over(since: Option<Micros>, full: Option<Micros>, now: Micros, changed: Micros) -> bool {
    let (since, Some(full)) = (since.unwrap_or_default(), full.filter(|full| *full <= now)) else { return false };
    let is_in_doubt = since < changed && changed < full;
    !is_in_doubt || now.since(full) >= full.since(since).min(LONGEST_RETENTION)
}

/// How long a bucket is kept that the numbers it was written under have filled, in case the rules have changed meanwhile
/// to slower ones. `lua/decide.lua` has the same time.
pub const LONGEST_RETENTION: Micros = Micros(60_000_000);

/// What the store has to do with a bucket after a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing: a denial, a check, a cost of 0.
    Keep,
    /// Write this meter.
    Write(Meter),
    /// Forget the bucket: it is full.
    Clear,
}

/// Decides one charge against one bucket at `now`.
///
/// `meter` is what is stored, or `None` for a full bucket. `effective_from` is when the rules took effect, and with them
/// the numbers unless the charge says otherwise; it matters only when the bucket was written under others. Costs above
/// `Numbers::burst` are denied for ever, with `retry_after: None`.
#[inline]
pub fn decide(meter: Option<&Meter>, charge: &Charge, now: Micros, effective_from: Micros) -> (Decision, Change) {
    let effective_from = effective_from.max(charge.changed);
    match charge.numbers.refill().windows() {
        None => decide_by(&Even::find(meter, &charge.numbers, now, effective_from), &charge.numbers, charge),
        Some(windows) => {
            let found = FixedWindow::find(meter, &charge.numbers, windows, now, effective_from);
            decide_by(&found, &charge.numbers, charge)
        }
    }
}

/// Where a bucket stands without the charge: what members of a denied request report, as nothing was taken from them.
pub fn standing(meter: Option<&Meter>, charge: &Charge, now: Micros, effective_from: Micros) -> Decision {
    let (numbers, effective_from) = (&charge.numbers, effective_from.max(charge.changed));
    let unchanged = |level, reset_after| answer(numbers, Outcome::Unchanged, level, Some(Micros(0)), reset_after);
    match numbers.refill().windows() {
        None => {
            let found = Even::find(meter, numbers, now, effective_from);
            unchanged(found.level, found.reset_after(found.level))
        }
        Some(windows) => {
            let found = FixedWindow::find(meter, numbers, windows, now, effective_from);
            unchanged(found.level(), found.reset_after(found.level()))
        }
    }
}

/// A bucket as a charge finds it.
pub(crate) trait Found {
    /// What is used, in levels.
    fn level(&self) -> u64;

    /// Levels used beyond the capacity. A refund gives them back first; they keep nobody waiting.
    fn excess(&self) -> u64 {
        0
    }

    /// What to write with a level.
    fn since(&self) -> Micros;

    /// Until as many levels have come back; `None` if they never do.
    fn time_for(&self, levels: u64) -> Option<Micros>;

    /// The decision's `reset_after`, with this level used.
    fn reset_after(&self, level: u64) -> Option<Micros>;
}

/// A bucket that refills evenly.
pub(crate) struct Even<'a> {
    pub(crate) numbers: &'a Numbers,
    pub(crate) level: u64,
    pub(crate) since: Micros,
}

impl<'a> Even<'a> {
    #[inline]
    fn find(meter: Option<&Meter>, numbers: &'a Numbers, now: Micros, effective_from: Micros) -> Self {
        let level = meter.map_or(0, |meter| meter.level_at(numbers, now, effective_from));
        // Written back as it was read, a clock that stepped back would earn the interval twice.
        Self { numbers, level, since: meter.map_or(now, |meter| meter.since.max(now)) }
    }
}

impl Found for Even<'_> {
    fn level(&self) -> u64 {
        self.level
    }

    fn since(&self) -> Micros {
        self.since
    }

    fn time_for(&self, levels: u64) -> Option<Micros> {
        self.numbers.time_for(levels)
    }

    fn reset_after(&self, level: u64) -> Option<Micros> {
        self.numbers.time_for(level)
    }
}

/// What a charge makes of a bucket by these numbers, which need not be those of the charge.
#[inline]
pub(crate) fn decide_by(found: &impl Found, numbers: &Numbers, charge: &Charge) -> (Decision, Change) {
    let level = found.level();
    let answer = |outcome, level, retry_after| answer(numbers, outcome, level, retry_after, found.reset_after(level));
    let write = |level: u64| {
        let (token, refill) = numbers.written();
        match level {
            0 => Change::Clear,
            level => Change::Write(Meter { since: found.since(), level, token, refill }),
        }
    };
    let capacity = numbers.capacity();
    let room = capacity.saturating_sub(level);
    match charge.mode {
        Mode::Spend | Mode::Check | Mode::SpendOnly => {
            if charge.cost > numbers.burst() {
                return (answer(refused(charge.mode), level, None), Change::Keep);
            }
            let wanted = charge.cost * numbers.token();
            if charge.cost == 0 || wanted <= room {
                let after = level + wanted;
                // An identical charge would fit once what is missing has come back.
                let again = found.time_for((after + wanted).saturating_sub(capacity));
                let retry_after = if charge.cost == 0 { Some(Micros(0)) } else { again };
                let keep = charge.cost == 0 || charge.mode == Mode::Check;
                let change = if keep { Change::Keep } else { write(after) };
                return (answer(Outcome::Allowed, after, retry_after), change);
            }
            let wait = found.time_for(level + wanted - capacity);
            (answer(refused(charge.mode), level, wait), Change::Keep)
        }
        Mode::SpendUpTo => {
            let taken = charge.cost.saturating_mul(numbers.token()).min(room);
            if taken == 0 {
                let outcome = if charge.cost == 0 { Outcome::Allowed } else { Outcome::Unchanged };
                return (answer(outcome, level, Some(Micros(0))), Change::Keep);
            }
            (answer(Outcome::Allowed, level + taken, Some(Micros(0))), write(level + taken))
        }
        Mode::Refund => {
            let used = level + found.excess();
            let given = charge.cost.saturating_mul(numbers.token()).min(used);
            if given == 0 {
                return (answer(Outcome::Unchanged, level, Some(Micros(0))), Change::Keep);
            }
            let left = used - given;
            let shown = if found.excess() > 0 { left.min(capacity) } else { left };
            (answer(Outcome::Allowed, shown, Some(Micros(0))), write(left))
        }
        Mode::Reset => (answer(Outcome::Allowed, 0, Some(Micros(0))), Change::Clear),
    }
}

fn refused(mode: Mode) -> Outcome {
    if mode.can_deny() { Outcome::Denied } else { Outcome::Unchanged }
}

fn answer(
    numbers: &Numbers,
    outcome: Outcome,
    level: u64,
    retry_after: Option<Micros>,
    reset_after: Option<Micros>,
) -> Decision {
    let remaining = numbers.capacity().saturating_sub(level) / numbers.token();
    Decision { outcome, limit: numbers.burst(), remaining, retry_after, reset_after }
}

#[cfg(test)]
mod tests {
    use super::super::charge::Bucket;
    use super::*;

    fn numbers(text: &str) -> Numbers {
        let (rate, seconds) = text.split_once('/').unwrap();
        let (burst, count) = rate.split_once('@').unwrap_or((rate, rate));
        let period = seconds.trim_end_matches('s').parse::<u64>().unwrap() * 1_000_000_000;
        Numbers::new(burst.parse().unwrap(), count.parse().unwrap(), period).unwrap()
    }

    fn charge(numbers: Numbers, cost: u64, mode: Mode) -> Charge {
        Charge::new(Bucket { key: "L:k".into(), fingerprint: 1 }, numbers, cost, mode)
    }

    fn apply(meter: &mut Option<Meter>, charge: &Charge, now: u64) -> Decision {
        let (decision, change) = decide(meter.as_ref(), charge, Micros::from_millis(now), Micros(0));
        match change {
            Change::Keep => {}
            Change::Write(written) => *meter = Some(written),
            Change::Clear => *meter = None,
        }
        decision
    }

    /// Spends 1 at each arrival and compares the outcomes: A for allowed, D for denied.
    #[track_caller]
    fn check(limit: &str, arrivals_ms: &[u64], expected: &str) {
        let spend = charge(numbers(limit), 1, Mode::Spend);
        let mut meter = None;
        let outcomes: String = arrivals_ms
            .iter()
            .map(|&at| if apply(&mut meter, &spend, 1_000_000 + at).is_denied() { 'D' } else { 'A' })
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
                let mut meter = None;
                apply(&mut meter, &spend, 1_000_000);
                let flood = (0..10 * burst).filter(|_| !apply(&mut meter, &spend, 1_000_000 + pause).is_denied());
                assert!(flood.count() as u64 <= burst, "burst {burst} after {pause} ms");
            }
        }
    }

    #[test]
    fn a_cost_above_the_burst_is_never_and_takes_nothing() {
        let limit = numbers("10@5/1s");
        let mut meter = None;
        let decision = apply(&mut meter, &charge(limit, 12, Mode::Spend), 0);
        assert_eq!((decision.outcome, decision.remaining, decision.retry_after), (Outcome::Denied, 10, None));
        assert_eq!(apply(&mut meter, &charge(limit, u64::MAX, Mode::SpendOnly), 0).outcome, Outcome::Unchanged);
        assert_eq!(meter, None);
    }

    /// Numbers that changed at `changed` ms; 10 tokens were used at 0 and the bucket is read at `read` ms.
    #[track_caller]
    fn carried(old: &str, new: &str, changed: u64, read: u64) -> u64 {
        let mut meter = None;
        apply(&mut meter, &charge(numbers(old), 10, Mode::Spend), 0);
        let check = charge(numbers(new), 0, Mode::Check);
        decide(meter.as_ref(), &check, Micros::from_millis(read), Micros::from_millis(changed)).0.remaining
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
        let mut meter = None;
        apply(&mut meter, &charge(numbers("1000/3600s"), 900, Mode::Spend), 2_000);
        let ask = |limit: &str, cost, mode, changed| {
            decide(meter.as_ref(), &charge(numbers(limit), cost, mode), Micros::from_millis(2_000), Micros(changed))
        };
        for older in ["10/3600s", "10@1000/3600s"] {
            let (denied, kept) = ask(older, 1, Mode::Spend, 0);
            assert_eq!((denied.outcome, denied.remaining, kept), (Outcome::Denied, 0, Change::Keep), "{older}");
            let (given, Change::Write(written)) = ask(older, 1, Mode::Refund, 0) else { panic!("{older}") };
            let left = decide(Some(&written), &charge(numbers("1000/3600s"), 0, Mode::Check), written.since, Micros(0));
            assert_eq!((given.remaining, left.0.remaining), (0, 101), "{older}");
        }
        // Rules that took effect after the bucket was written have lowered the burst.
        assert_eq!(ask("10/3600s", 1, Mode::Spend, 2_000_000).0.retry_after, Some(Micros(360_000_000)));
    }

    #[test]
    fn a_bucket_that_was_in_use_when_the_rules_changed_is_kept_for_as_long_again() {
        let written = |limit: &str| {
            let mut meter = None;
            apply(&mut meter, &charge(numbers(limit), 10, Mode::Spend), 100_000);
            meter.unwrap()
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
        let mut meter = None;
        for step in 0..7_000u64 {
            let (decision, change) = decide(meter.as_ref(), &spend, Micros((step * 1_000_000).div_ceil(7)), Micros(0));
            assert_eq!(decision.outcome, Outcome::Allowed, "step {step}");
            if let Change::Write(written) = change {
                meter = Some(written);
            }
        }
        let used = meter.unwrap().level - spend.numbers.token();
        assert!(used < spend.numbers.drain(), "{used} levels of drift, {} are a microsecond", spend.numbers.drain());
    }
}
