//! Random charges on one bucket, driven as a store drives it, against models that count in the plainest way.

use proptest::collection::vec;
use proptest::prelude::*;

use super::algorithm::Aligned;
use super::charge::{Bucket, Charge, ChargeOrigin, Dated, Input, Mode, Slot};
use super::decision::{Decision, Outcome};
use super::micros::Micros;
use super::numbers::Numbers;
use super::state::{self, BucketState};
use super::taking::{Edits, decide_all};

const SECOND: u64 = 1_000_000;
const START: u64 = 1_700_000_000 * SECOND;

/// The rules by which one bucket counts. Instants are in microseconds.
trait Model: Clone + std::fmt::Debug {
    /// The instant of a charge at `now`: a clock that steps back a little does not move the bucket.
    fn at(&self, now: u64) -> u64;
    fn used(&self, at: u64) -> u64;
    fn take(&mut self, at: u64, tokens: u64);
    /// Takes what is left, if that is less. Returns false if nothing is left.
    fn take_up_to(&mut self, burst: u64, at: u64, tokens: u64) -> bool {
        let left = burst.saturating_sub(self.used(at));
        if left > 0 {
            self.take(at, tokens.min(left));
        }
        left > 0
    }
    /// Returns how many tokens came back.
    fn give_back(&mut self, at: u64, tokens: u64, taken: Option<u64>) -> u64;
    fn clear(&mut self);
    fn reset_after(&self, at: u64) -> u64;
    /// The clock has stepped back far.
    fn redate(&mut self, now: u64);
    /// Nothing is worth keeping after a write.
    fn is_empty(&self) -> bool;
    fn is_over(&self, now: u64) -> bool;
    /// Counts a denied charge.
    fn count_denied(&mut self, _at: u64, _tokens: u64) -> bool {
        false
    }
    fn entries(&self) -> usize {
        1
    }
    fn shrink(&mut self) {}
}

/// An instant for every token.
#[derive(Clone, Debug)]
struct LogByHand {
    period: u64,
    taken: Vec<u64>,
}

impl LogByHand {
    fn ends(&self) -> impl Iterator<Item = u64> {
        self.taken.iter().map(|taken| taken + self.period)
    }

    fn forget(&mut self, at: u64) {
        self.taken.retain(|taken| taken + self.period > at);
    }
}

impl Model for LogByHand {
    fn at(&self, now: u64) -> u64 {
        self.taken.iter().copied().fold(now, u64::max)
    }

    fn used(&self, at: u64) -> u64 {
        self.ends().filter(|end| *end > at).count() as u64
    }

    fn take(&mut self, at: u64, tokens: u64) {
        self.forget(at);
        self.taken.extend((0..tokens).map(|_| at));
    }

    fn give_back(&mut self, at: u64, tokens: u64, taken: Option<u64>) -> u64 {
        let live = self.taken.iter().filter(|it| **it + self.period > at && taken.is_none_or(|taken| taken == **it));
        let gone: Vec<u64> = live.rev().copied().take(usize::try_from(tokens).unwrap_or(usize::MAX)).collect();
        for gone in &gone {
            let place = self.taken.iter().rposition(|taken| taken == gone).unwrap();
            self.taken.remove(place);
        }
        if !gone.is_empty() {
            self.forget(at);
        }
        gone.len() as u64
    }

    fn clear(&mut self) {
        self.taken.clear();
    }

    fn reset_after(&self, at: u64) -> u64 {
        self.ends().max().unwrap_or(0).saturating_sub(at)
    }

    fn redate(&mut self, now: u64) {
        if self.at(now) > now + SECOND {
            self.taken.iter_mut().for_each(|taken| *taken = now.min(*taken));
        }
    }

    fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }

    fn is_over(&self, now: u64) -> bool {
        self.ends().all(|end| end <= now)
    }

    fn entries(&self) -> usize {
        let mut instants = self.taken.clone();
        instants.dedup();
        instants.len()
    }

    /// The oldest tokens are dated like the next ones.
    fn shrink(&mut self) {
        let oldest = self.taken[0];
        if let Some(next) = self.taken.iter().copied().find(|taken| *taken > oldest) {
            self.taken.iter_mut().for_each(|taken| *taken = next.max(*taken));
        }
    }
}

/// Tokens in parts: a token has as many as the period has microseconds, so nothing is ever rounded.
#[derive(Clone, Debug)]
struct GcraByHand {
    count: u64,
    period: u64,
    missing: u64,
    written: u64,
}

impl GcraByHand {
    fn missing(&self, at: u64) -> u64 {
        self.missing.saturating_sub((at - self.written) * self.count)
    }
}

impl Model for GcraByHand {
    fn at(&self, now: u64) -> u64 {
        now.max(self.written)
    }

    fn used(&self, at: u64) -> u64 {
        self.missing(at).div_ceil(self.period)
    }

    fn take(&mut self, at: u64, tokens: u64) {
        (self.missing, self.written) = (self.missing(at) + tokens * self.period, at);
    }

    /// A part of a token is something that is left.
    fn take_up_to(&mut self, burst: u64, at: u64, tokens: u64) -> bool {
        let missing = self.missing(at);
        let left = burst * self.period - missing;
        if left > 0 {
            (self.missing, self.written) = (missing + left.min(tokens.saturating_mul(self.period)), at);
        }
        left > 0
    }

    /// A token of which a part has come back gives back the rest.
    fn give_back(&mut self, at: u64, tokens: u64, _taken: Option<u64>) -> u64 {
        let missing = self.missing(at);
        if tokens == 0 || missing == 0 {
            return 0;
        }
        self.missing = missing.saturating_sub(tokens.saturating_mul(self.period));
        self.written = if self.missing == 0 { 0 } else { at };
        tokens
    }

    fn clear(&mut self) {
        (self.missing, self.written) = (0, 0);
    }

    fn reset_after(&self, at: u64) -> u64 {
        self.missing(at).div_ceil(self.count)
    }

    fn redate(&mut self, now: u64) {
        self.written = if self.written > now + SECOND { now } else { self.written };
    }

    fn is_empty(&self) -> bool {
        self.missing == 0
    }

    fn is_over(&self, now: u64) -> bool {
        self.written + self.missing.div_ceil(self.count) <= now
    }
}

/// Lets one window after the other pass.
#[derive(Clone, Debug)]
struct FixedWindowByHand {
    count: u64,
    period: u64,
    aligned: Aligned,
    used: u64,
    /// 0 for a full bucket.
    start: u64,
}

impl FixedWindowByHand {
    fn moved(&self, at: u64) -> Self {
        let mut moved = self.clone();
        if self.aligned == Aligned::Clock {
            // The date to which a clock that stepped back has moved it may be in the middle of a window.
            moved.start -= moved.start % self.period;
        }
        while moved.used > 0 && moved.start + self.period <= at {
            moved.start += self.period;
            moved.used = moved.used.saturating_sub(self.count);
        }
        if moved.used == 0 {
            moved.start = if self.aligned == Aligned::First { at } else { at - at % self.period };
        }
        moved
    }
}

impl Model for FixedWindowByHand {
    fn at(&self, now: u64) -> u64 {
        now.max(self.start)
    }

    fn used(&self, at: u64) -> u64 {
        self.moved(at).used
    }

    fn take(&mut self, at: u64, tokens: u64) {
        *self = self.moved(at);
        self.used += tokens;
    }

    fn give_back(&mut self, at: u64, tokens: u64, taken: Option<u64>) -> u64 {
        let moved = self.moved(at);
        let given_back = if taken.is_some_and(|taken| taken < moved.start) { 0 } else { tokens.min(moved.used) };
        if given_back > 0 {
            *self = moved;
            self.used -= given_back;
            self.start = if self.used == 0 { 0 } else { self.start };
        }
        given_back
    }

    fn clear(&mut self) {
        (self.used, self.start) = (0, 0);
    }

    fn reset_after(&self, at: u64) -> u64 {
        let moved = self.moved(at);
        if moved.used == 0 && self.aligned == Aligned::First { 0 } else { moved.start + self.period - at }
    }

    fn redate(&mut self, now: u64) {
        self.start = if self.start > now + SECOND { now } else { self.start };
    }

    fn is_empty(&self) -> bool {
        self.used == 0
    }

    fn is_over(&self, now: u64) -> bool {
        self.start + self.used.div_ceil(self.count) * self.period <= now
    }
}

/// The counts of two windows of the clock.
#[derive(Clone, Debug)]
struct SlidingWindowByHand {
    period: u64,
    /// The most that denied charges fill up to.
    most_denied: Option<u64>,
    written: u64,
    previous: u64,
    current: u64,
}

impl SlidingWindowByHand {
    fn moved(&self, at: u64) -> Self {
        let mut moved = Self { written: at, ..self.clone() };
        let passed = at / self.period - self.written / self.period;
        for _ in 0..passed.min(2) {
            (moved.previous, moved.current) = (moved.current, 0);
        }
        moved
    }
}

impl Model for SlidingWindowByHand {
    fn at(&self, now: u64) -> u64 {
        now.max(self.written)
    }

    /// The previous window counts by the share of it that the last period covers.
    fn used(&self, at: u64) -> u64 {
        let moved = self.moved(at);
        let covered = self.period - at % self.period;
        (moved.previous * covered).div_ceil(self.period) + moved.current
    }

    fn take(&mut self, at: u64, tokens: u64) {
        *self = self.moved(at);
        self.current += tokens;
    }

    fn give_back(&mut self, at: u64, tokens: u64, taken: Option<u64>) -> u64 {
        let mut moved = self.moved(at);
        let window = |at: u64| at / self.period;
        let (is_current, is_previous) = match taken.map(|taken| window(at).saturating_sub(window(taken))) {
            None => (true, true),
            Some(passed) => (passed == 0, passed == 1),
        };
        let from_current = if is_current { tokens.min(moved.current) } else { 0 };
        let from_previous = if is_previous { (tokens - from_current).min(moved.previous) } else { 0 };
        if from_current + from_previous > 0 {
            (moved.current, moved.previous) = (moved.current - from_current, moved.previous - from_previous);
            moved.written = if moved.is_empty() { 0 } else { at };
            *self = moved;
        }
        from_current + from_previous
    }

    fn clear(&mut self) {
        (self.written, self.previous, self.current) = (0, 0, 0);
    }

    fn reset_after(&self, at: u64) -> u64 {
        let moved = self.moved(at);
        let left = self.period - at % self.period;
        if moved.is_empty() { 0 } else { left + if moved.current > 0 { self.period } else { 0 } }
    }

    fn redate(&mut self, now: u64) {
        self.written = if self.written > now + SECOND { now } else { self.written };
    }

    fn is_empty(&self) -> bool {
        self.previous + self.current == 0
    }

    fn is_over(&self, now: u64) -> bool {
        self.written + self.reset_after(self.written) <= now
    }

    fn count_denied(&mut self, at: u64, tokens: u64) -> bool {
        let moved = self.moved(at);
        let Some(most) = self.most_denied.filter(|most| tokens > 0 && moved.current < *most) else { return false };
        self.take(at, tokens.min(most - moved.current));
        true
    }
}

#[derive(Clone, Debug)]
struct Step {
    wait: i64,
    mode: Mode,
    is_shadow: bool,
    cost: u64,
    /// The charge whose instant a refund names, if it does: the last, the one before it, and so on.
    refunds: Option<usize>,
    /// By how much that instant is off.
    off: i64,
    shrinks: bool,
}

fn modes() -> impl Strategy<Value = Mode> {
    use Mode::{Check, Look, Refund, Reset, Spend, SpendOnly, SpendUpTo};

    const OTHERS: [Mode; 7] = [Check, Look, SpendOnly, SpendUpTo, Refund, Refund, Refund];
    prop_oneof![8 => Just(Spend), 8 => prop::sample::select(&OTHERS[..]), 1 => Just(Reset)]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let wait = prop_oneof![
        3 => Just(0_i64),
        3 => 0..1_000_000_i64,
        3 => -1..=1_i64,
        2 => 0..9_000_000_i64,
        2 => -1_000_001..0_i64,
        1 => -9_000_000..0_i64,
        1 => Just(-1_000_000),
    ];
    let cost = prop_oneof![6 => 0..4_u64, 2 => 0..12_u64, 1 => Just(u64::MAX)];
    let refunds = prop::option::of(0..4_usize);
    let off = prop_oneof![6 => Just(0_i64), 1 => -1..=1_i64];
    let step = (wait, (modes(), prop::bool::weighted(0.2)), cost, refunds, off, prop::bool::weighted(0.1));
    let step = step.prop_map(|(wait, (mode, is_shadow), cost, refunds, off, shrinks)| Step {
        wait,
        mode,
        is_shadow,
        cost,
        refunds,
        off,
        shrinks,
    });
    vec(step, 1..60)
}

/// Plays the steps on a bucket and on its model. A wait of -1, 0 or 1 goes to about when the last decision said that its charge
/// would fit.
fn play<M: Model>(numbers: &Numbers, mut model: M, steps: &[Step]) -> Result<(), TestCaseError> {
    let (mut now, mut state, mut last) = (START, None::<BucketState>, Vec::<u64>::new());
    let mut told = 0;
    for step in steps {
        now = match step.wait {
            -1..=1 => (now + told).saturating_add_signed(step.wait),
            wait => now.saturating_add_signed(wait),
        };
        if let Some(state) = &mut state {
            state.redate(Micros(now));
            model.redate(now);
            if step.shrinks {
                state.shrink();
                model.shrink();
            }
            prop_assert_eq!(state.entries(), model.entries());
            prop_assert_eq!(state.is_over(Micros(now), Micros(0)), model.is_over(now), "{:?} at {}", model, now);
        }
        let at = model.at(now);
        let named = step.refunds.and_then(|back| last.iter().rev().nth(back)).copied();
        let taken = named.map(|taken| taken.saturating_add_signed(step.off));
        let dated = match (step.mode, taken) {
            (Mode::Refund, Some(taken)) => Dated::At(Micros(taken)),
            (Mode::Refund, None) => Dated::No,
            _ => Dated::Reserved,
        };
        let origin = ChargeOrigin::new(0, !step.is_shadow);
        let charge = Charge::new(Bucket::new("L:k", 1), numbers.clone(), step.cost, step.mode);
        let charge = Charge { origin, dated, ..charge };
        let mut edits = Edits::new();
        let decisions = decide_all(
            std::slice::from_ref(&charge),
            |_, charge| state::decide(state.as_ref(), charge, None, Micros(now), Micros(0)),
            |_, charge| state::peek(state.as_ref(), charge, Micros(now), Micros(0)),
            &mut edits,
        )
        .unwrap();
        let before = model.clone();
        let (after, is_told) = expected(numbers, &mut model, step, (at, taken), decisions[0])?;
        let instant = is_told.then_some(Micros(at));
        prop_assert_eq!(decisions.taken(0), instant, "{:?} on {:?}", step, before);
        prop_assert_eq!(decisions.details.len(), usize::from(is_told));
        for (_, edit) in &edits {
            state = BucketState::edited(state.take(), edit);
        }
        prop_assert_eq!(state.is_none(), model.is_empty(), "{:?} after {:?} on {:?}", state, step, before);
        if is_told {
            last.push(at);
        }
        told = decisions[0].retry_after.map_or(0, |wait| wait.0) + after - now;
    }
    Ok(())
}

/// Charges the model and compares the decision. Returns the instant from which waits count, and whether the bucket has to tell when
/// it took the tokens.
fn expected(
    numbers: &Numbers,
    model: &mut impl Model,
    step: &Step,
    (at, taken): (u64, Option<u64>),
    decision: Decision,
) -> Result<(u64, bool), TestCaseError> {
    let Step { mode, cost, .. } = step;
    let (burst, cost) = (numbers.burst(), *cost);
    let left = |model: &dyn Fn(u64) -> u64, at| burst.saturating_sub(model(at));
    let room = left(&|at| model.used(at), at);
    let spends = !matches!(mode, Mode::Refund | Mode::Reset | Mode::SpendUpTo);
    let fits = cost <= room;
    let mut shown = model.clone();
    let outcome = match mode {
        Mode::Refund if shown.give_back(at, cost, taken) == 0 => Outcome::Unchanged,
        Mode::Reset => {
            shown.clear();
            Outcome::Allowed
        }
        Mode::SpendUpTo if cost > 0 && !shown.take_up_to(burst, at, cost) => Outcome::Unchanged,
        Mode::Refund => Outcome::Allowed,
        _ if cost == 0 => Outcome::Allowed,
        Mode::Look if fits => Outcome::Allowed,
        Mode::SpendUpTo => Outcome::Allowed,
        _ if fits => {
            shown.take(at, cost);
            Outcome::Allowed
        }
        _ if step.is_shadow || *mode == Mode::SpendOnly => Outcome::Short,
        _ => Outcome::Denied,
    };
    if !fits && matches!(mode, Mode::Spend | Mode::SpendOnly) {
        shown.count_denied(at, cost);
    }
    let Decision { retry_after, .. } = decision;
    let context = format!("{step:?} at {at}: {decision:?} on {model:?}");
    prop_assert_eq!(decision.outcome, outcome, "{}", context);
    prop_assert_eq!((decision.limit, decision.delay), (burst, 0));
    prop_assert_eq!(decision.remaining, left(&|at| shown.used(at), at), "{}", context);
    prop_assert_eq!(decision.reset_after, Some(Micros(shown.reset_after(at))), "{}", context);
    let looks = *mode == Mode::Look && fits;
    match retry_after {
        _ if !spends || looks || cost == 0 => prop_assert_eq!(retry_after, Some(Micros(0)), "{}", context),
        None => prop_assert!(cost > burst, "{}", context),
        Some(Micros(wait)) => {
            let fits_at = |at| cost <= left(&|at| shown.used(at), at);
            prop_assert!(fits_at(at + wait) && (wait == 0 || !fits_at(at + wait - 1)), "{}", context);
        }
    }
    let writes = !matches!(mode, Mode::Check | Mode::Look);
    if writes {
        *model = shown;
    }
    let is_told = fits && cost > 0 && matches!(mode, Mode::Spend | Mode::SpendOnly) && numbers.is_dated();
    Ok((at, is_told))
}

/// Slots as a list of names and ends.
fn play_slots(capacity: u64, steps: &[(u64, Mode, u64, u128)]) -> Result<(), TestCaseError> {
    let numbers = Numbers::concurrency(capacity, 3_000 * SECOND).unwrap();
    let lease = numbers.span();
    let (mut now, mut state, mut held) = (START, None::<BucketState>, Vec::<(u128, u64)>::new());
    for (wait, mode, cost, name) in steps.iter().copied() {
        now += wait;
        let input = (name > 0).then(|| Box::new(Input::Slot(Slot(name))));
        let charge = Charge { input, ..Charge::new(Bucket::new("L:k", 1), numbers.clone(), cost, mode) };
        let attempt = state::decide(state.as_ref(), &charge, None, Micros(now), Micros(0)).unwrap();
        if let Some(edit) = &attempt.edit {
            state = BucketState::edited(state.take(), edit);
            held.retain(|(_, end)| *end > now);
        }
        let live = |held: &[(u128, u64)]| held.iter().filter(|(_, end)| *end > now).count() as u64;
        let is_held = held.iter().any(|(held, end)| *held == name && *end > now);
        let (mut after, mut outcome) = (held.clone(), Outcome::Allowed);
        match mode {
            Mode::Reset => after.clear(),
            Mode::Refund if is_held && cost > 0 => after.retain(|(held, _)| *held != name),
            Mode::Refund => outcome = Outcome::Unchanged,
            _ if cost == 0 => {}
            _ if is_held || live(&held) < capacity => {
                after.retain(|(held, _)| *held != name || name == 0);
                after.push((name, now + lease));
            }
            Mode::Spend | Mode::Check => outcome = Outcome::Denied,
            Mode::SpendOnly => outcome = Outcome::Short,
            _ => outcome = Outcome::Unchanged,
        }
        let context = format!("{mode:?} {cost} of {name} at {now}: {:?} on {held:?}", attempt.decision);
        let Decision { remaining, reset_after, limit, .. } = attempt.decision;
        prop_assert_eq!((attempt.decision.outcome, limit), (outcome, capacity), "{}", context);
        prop_assert_eq!(remaining, capacity - live(&after), "{}", context);
        prop_assert_eq!(reset_after, (live(&after) == 0).then_some(Micros(0)), "{}", context);
        if name > 0 && mode != Mode::Check || mode == Mode::Reset {
            held = after;
        }
        let ends = held.iter().map(|(_, end)| *end).max();
        let entries = state.as_ref().map_or(0, BucketState::entries);
        prop_assert_eq!(entries, held.len(), "{}", context);
        if let Some(state) = &state {
            prop_assert!(!state.is_over(Micros(ends.unwrap() - 1), Micros(0)));
            prop_assert!(state.is_over(Micros(ends.unwrap()), Micros(0)));
            prop_assert!(held.iter().all(|(name, end)| state.holds(Slot(*name), Micros(now)) == (*end > now)));
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn a_sliding_log_counts_every_token_for_a_period(count in 1..9_u64, period in 1..4_000_000_u64, steps in steps()) {
        let numbers = Numbers::sliding_log(count, period * 1_000).unwrap();
        play(&numbers, LogByHand { period, taken: Vec::new() }, &steps)?;
    }

    #[test]
    fn gcra_refills_evenly(burst in 1..9_u64, count in 1..9_u64, period in 1..4_000_000_u64, steps in steps()) {
        let numbers = Numbers::new(burst, count, period * 1_000).unwrap();
        play(&numbers, GcraByHand { count, period, missing: 0, written: 0 }, &steps)?;
    }

    #[test]
    fn fixed_windows_add_their_count_at_their_start(
        burst in 1..9_u64,
        count in 1..9_u64,
        period in 1_000..4_000_000_u64,
        is_aligned in any::<bool>(),
        steps in steps(),
    ) {
        let aligned = if is_aligned { Aligned::Clock } else { Aligned::First };
        let numbers = Numbers::fixed_window(burst, count, period * 1_000, aligned).unwrap();
        play(&numbers, FixedWindowByHand { count, period, aligned, used: 0, start: 0 }, &steps)?;
    }

    #[test]
    fn a_sliding_window_counts_the_share_of_the_last_one(
        count in 1..9_u64,
        period in 1..4_000_000_u64,
        counts_denied in any::<bool>(),
        steps in steps(),
    ) {
        let numbers = Numbers::sliding_window(count, period * 1_000, counts_denied).unwrap();
        let most_denied = counts_denied.then_some(2 * count);
        play(&numbers, SlidingWindowByHand { period, most_denied, written: 0, previous: 0, current: 0 }, &steps)?;
    }

    #[test]
    fn slots_are_a_list_of_names(
        capacity in 1..4_u64,
        steps in vec(
            (
                prop_oneof![0..2_000_000_u64, Just(3_000_000)],
                prop::sample::select(
                    &[Mode::Spend, Mode::Spend, Mode::Check, Mode::SpendOnly, Mode::SpendUpTo, Mode::Refund, Mode::Reset][..]
                ),
                0..3_u64,
                0..5_u128,
            ),
            1..40,
        ),
    ) {
        play_slots(capacity, &steps)?;
    }
}
