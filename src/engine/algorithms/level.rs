//! The level of a bucket: the tokens used and since when. GCRA and fixed windows keep it.
//!
//! A theoretical arrival time alone would not let changed numbers carry over: Boulder keeps only that, so a raised limit has
//! no effect until the old time has passed (letsencrypt/boulder#8785).

use super::charge::NUMBERS_OF_THE_CALL;
use super::micros::{EXACT, Micros};
use super::numbers::Numbers;
use super::windows::Refill;

/// A bucket that is not full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// The last write, or the start of its window. It never moves backwards.
    pub since: Micros,
    /// Levels used at `since`: more than the capacity if a gateway with a higher burst wrote them.
    pub used: u64,
    /// [`Numbers::weight`] at the last write.
    pub weight: u64,
    pub refill: Refill,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LevelChange {
    /// After a denial, a check, or a cost of 0.
    Keep,
    Write(Level),
    /// The bucket is full.
    Clear,
}

impl From<Option<Level>> for LevelChange {
    fn from(after: Option<Level>) -> Self {
        match after {
            None => Self::Keep,
            Some(level) if level.used == 0 => Self::Clear,
            Some(level) => Self::Write(level),
        }
    }
}

impl Level {
    /// A full bucket that must be kept.
    pub(super) const fn full(numbers: &Numbers, now: Micros) -> Self {
        Self { since: now, used: 0, weight: numbers.weight(), refill: numbers.refill }
    }

    /// Returns the level with the date `now` if its own is too far ahead, so that nobody waits for a clock that stepped back.
    #[inline]
    #[must_use]
    pub fn redated(self, now: Micros) -> Option<Self> {
        self.since.is_ahead_of(now).then_some(Self { since: now, ..self })
    }

    /// Returns true if the bucket can be dropped at `now`; see [`is_over`].
    pub fn is_over(&self, now: Micros, changed: Micros) -> bool {
        is_over(self.since, self.full_at(), now, changed)
    }

    /// Returns an instant at which the bucket is full; `None` if it never is. With a calendar it may be full some days
    /// earlier, because only the window of the last write is known.
    pub fn full_at(&self) -> Option<Micros> {
        self.refill.full_at(self.since, self.used, self.weight)
    }

    /// Returns true if the numbers of the last write count in the same way.
    #[inline]
    pub(super) fn is_under(&self, numbers: &Numbers) -> bool {
        self.weight == numbers.weight() && self.refill.is_like(numbers.refill)
    }

    /// Returns the instant from which a bucket that was written under other numbers counts as full: when it is full by those. Redis
    /// drops its key then. `None` if it never is, and if the rules have changed to these numbers since.
    pub(super) fn forgotten_at(&self, numbers: &Numbers, effective_from: Micros) -> Option<Micros> {
        if self.used == 0 || self.is_under(numbers) || follow_a_change(effective_from, self.since) {
            return None;
        }
        let full = match self.refill.windows() {
            Some(windows) => Some(windows.after(self.since, self.used.div_ceil(self.weight))),
            None => self.full_at(),
        };
        // Redis cannot count longer spans.
        full.filter(|full| full.since(self.since).0 < EXACT)
    }

    /// Returns the instant at which the numbers of the last write ceased to hold.
    pub(super) fn changed(&self, now: Micros, effective_from: Micros) -> Micros {
        changed(self.since, now, effective_from)
    }

    /// Computes the level at `changed` by the numbers of the last write.
    pub(super) fn carry_over(&self, changed: Micros) -> CarriedOver {
        let Some(windows) = self.refill.windows() else {
            let used = drained(self.used, self.refill.drain(), changed.since(self.since));
            return CarriedOver { used, weight: self.weight, window_start: changed };
        };
        // As in Redis, the bucket knows only the length of one calendar window.
        let [first, last] = [self.since, changed].map(|at| windows.number(self.since, at));
        let used = self.used.saturating_sub((last - first).saturating_mul(self.weight));
        CarriedOver { used, weight: 1, window_start: windows.start(self.since, last) }
    }
}

/// Returns the instant at which other numbers than those of the last write, at `since`, began to hold: when the rules changed to
/// them, and at `since` if they did before or if a call brings them. Calls have no order, and one that is repeated finds the same.
pub(super) fn changed(since: Micros, now: Micros, effective_from: Micros) -> Micros {
    if effective_from >= NUMBERS_OF_THE_CALL { since } else { effective_from.max(since).min(now.max(since)) }
}

/// Returns true if the rules have changed to these numbers since the last write, at `since`.
pub(super) fn follow_a_change(effective_from: Micros, since: Micros) -> bool {
    since <= effective_from && effective_from < NUMBERS_OF_THE_CALL
}

/// A level at the instant when its numbers change.
pub(super) struct CarriedOver {
    /// The instant of the change, if the bucket had no windows.
    pub(super) window_start: Micros,
    used: u64,
    /// The levels of a token.
    weight: u64,
}

impl CarriedOver {
    /// Returns the same tokens in levels of other numbers, rounded up.
    pub(super) fn in_levels_of(&self, numbers: &Numbers) -> u64 {
        let levels = (u128::from(self.used) * u128::from(numbers.token())).div_ceil(u128::from(self.weight));
        u64::try_from(levels).unwrap_or(u64::MAX).min(EXACT - 1)
    }
}

/// Returns a level after some time.
#[inline]
pub(super) fn drained(level: u64, drain: u64, span: Micros) -> u64 {
    let out = u128::from(span.0) * u128::from(drain);
    u64::try_from(out).map_or(0, |out| level.saturating_sub(out))
}

/// Returns true if a bucket that was last written at `since` and is full at `full` can be dropped at `now`. If the rules
/// changed in between, at `changed`, it may not be full by the new ones. It is then kept for as long again, at most
/// [`LONGEST_RETENTION`].
pub(super) fn is_over(since: Micros, full: Option<Micros>, now: Micros, changed: Micros) -> bool {
    let Some(full) = full.filter(|full| *full <= now) else { return false };
    let is_in_doubt = since < changed && changed < full;
    !is_in_doubt || now.since(full) >= full.since(since).min(LONGEST_RETENTION)
}

/// The same as `RETENTION` in `lua/prelude.lua`.
const LONGEST_RETENTION: Micros = Micros(60_000_000);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn carried_levels_stay_below_what_redis_can_count() {
        let numbers = Numbers::new(1, 1, 1_000_000_000).unwrap();
        let carried = |used, weight| CarriedOver { window_start: Micros(0), used, weight }.in_levels_of(&numbers);
        assert_eq!((carried(3, 2), carried(EXACT - 1, 1)), (1_500_000, EXACT - 1));
    }

    #[test]
    fn a_full_bucket_is_in_doubt_if_numbers_changed_after_its_write_and_before_it_was_full() {
        let over_from =
            |changed| (110..200).find(|now| is_over(Micros(100), Some(Micros(110)), Micros(*now), Micros(changed)));
        assert_eq!([99, 100, 101, 109, 110].map(over_from), [110, 110, 120, 120, 110].map(Some));
        assert!(!is_over(Micros(100), None, Micros(u64::MAX), Micros(0)));
    }
}
