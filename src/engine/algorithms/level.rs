//! The level of a bucket: the tokens used and since when, as GCRA and fixed windows keep it.
//!
//! A theoretical arrival time alone would not let changed numbers carry over: Boulder keeps only that, so a raised limit has
//! no effect until the old time has passed (letsencrypt/boulder#8785).

use super::charge::{Charge, Mode};
use super::decision::{Decision, Outcome};
use super::micros::{EXACT, Micros};
use super::numbers::Numbers;
use super::windows::Refill;

/// A bucket that is not full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// The last write, or the start of the window of the last write. It never moves backwards.
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

impl Level {
    /// Returns the level dated now if it is dated too far ahead, so that nobody waits for a clock that stepped back.
    #[inline]
    #[must_use]
    pub fn redated(self, now: Micros) -> Option<Self> {
        self.since.is_ahead_of(now).then_some(Self { since: now, ..self })
    }

    /// Returns true if the bucket need not be kept at `now`; see [`is_over`].
    pub fn is_over(&self, now: Micros, changed: Micros) -> bool {
        is_over(Some(self.since), self.full_at(), now, changed)
    }

    /// Returns an instant at which the bucket is full; `None` if it never is. In windows of a calendar it may be full some
    /// days earlier, as only the window of the last write is known.
    pub fn full_at(&self) -> Option<Micros> {
        match (self.refill.windows(), self.refill.drain()) {
            (Some(windows), _) => Some(windows.after(self.since, self.used.div_ceil(self.weight))),
            (None, 0) => None,
            (None, drain) => Some(self.since.after(Micros(self.used.div_ceil(drain)))),
        }
    }

    /// Returns true if it was written under these numbers, so far as they matter.
    #[inline]
    pub(super) fn is_under(&self, numbers: &Numbers) -> bool {
        self.weight == numbers.weight() && self.refill.is_like(numbers.refill())
    }

    /// Returns the instant at which the numbers of the last write ceased to hold.
    pub(super) fn changed(&self, now: Micros, effective_from: Micros) -> Micros {
        effective_from.max(self.since).min(now.max(self.since))
    }

    /// Computes what is left at `changed` by the numbers of the last write.
    pub(super) fn carry_over(&self, changed: Micros) -> CarriedOver {
        let Some(windows) = self.refill.windows() else {
            let used = drained(self.used, self.refill.drain(), changed.since(self.since));
            return CarriedOver { used, weight: self.weight, window_start: changed };
        };
        // In Redis too the bucket has only the length of its calendar's window.
        let windows = windows.extrapolated();
        let [first, last] = [self.since, changed].map(|at| windows.number(self.since, at));
        let used = self.used.saturating_sub((last - first).saturating_mul(self.weight));
        CarriedOver { used, weight: 1, window_start: windows.start(self.since, last) }
    }
}

/// The rest of a level when its numbers change.
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

/// Returns true if a bucket need not be kept at `now` that was last written at `since` and is full at `full`. If the rules
/// changed in between, at `changed`, it may not be full by the new ones. It is then kept for as long again, at most
/// [`LONGEST_RETENTION`].
pub(super) fn is_over(since: Option<Micros>, full: Option<Micros>, now: Micros, changed: Micros) -> bool {
    let (since, Some(full)) = (since.unwrap_or_default(), full.filter(|full| *full <= now)) else { return false };
    let is_in_doubt = since < changed && changed < full;
    !is_in_doubt || now.since(full) >= full.since(since).min(LONGEST_RETENTION)
}

/// `lua/decide.lua` has the same time.
pub const LONGEST_RETENTION: Micros = Micros(60_000_000);

/// A bucket at the instant of a charge.
pub(super) trait Standing {
    /// Levels used, at most the capacity unless a gateway with a higher burst wrote them.
    fn used(&self) -> u64;

    /// Levels used beyond the capacity that keep nobody waiting. A refund gives them back first.
    fn excess(&self) -> u64 {
        0
    }

    /// The level to write.
    fn with(&self, used: u64) -> Level;

    /// Returns how long `levels` take to come back; `None` if they never do.
    fn time_for(&self, levels: u64) -> Option<Micros>;

    /// Returns the decision's `reset_after` for a bucket with `used` levels.
    fn reset_after(&self, used: u64) -> Option<Micros>;
}

/// Decides a charge by these numbers, which are not the charge's own while elevated numbers hold.
#[inline]
pub(super) fn decide(standing: &impl Standing, numbers: &Numbers, charge: &Charge) -> (Decision, LevelChange) {
    let used = standing.used();
    let decide = |outcome, used: u64, retry_after| {
        let remaining = numbers.capacity().saturating_sub(used) / numbers.token();
        Decision { outcome, limit: numbers.burst(), remaining, retry_after, reset_after: standing.reset_after(used) }
    };
    let write = |used: u64| if used == 0 { LevelChange::Clear } else { LevelChange::Write(standing.with(used)) };
    let capacity = numbers.capacity();
    let room = capacity.saturating_sub(used);
    match charge.mode {
        Mode::Spend | Mode::Check | Mode::SpendOnly => {
            if charge.cost > numbers.burst() {
                return (decide(charge.mode.short_outcome(), used, None), LevelChange::Keep);
            }
            let wanted = charge.cost * numbers.token();
            if charge.cost == 0 || wanted <= room {
                let after = used + wanted;
                // An identical charge would fit once what is missing has come back.
                let again = standing.time_for((after + wanted).saturating_sub(capacity));
                let retry_after = if charge.cost == 0 { Some(Micros(0)) } else { again };
                let keep = charge.cost == 0 || charge.mode == Mode::Check;
                let change = if keep { LevelChange::Keep } else { write(after) };
                return (decide(Outcome::Allowed, after, retry_after), change);
            }
            let wait = standing.time_for(used + wanted - capacity);
            (decide(charge.mode.short_outcome(), used, wait), LevelChange::Keep)
        }
        Mode::SpendUpTo => {
            let taken = charge.cost.saturating_mul(numbers.token()).min(room);
            if taken == 0 {
                let outcome = if charge.cost == 0 { Outcome::Allowed } else { Outcome::Unchanged };
                return (decide(outcome, used, Some(Micros(0))), LevelChange::Keep);
            }
            (decide(Outcome::Allowed, used + taken, Some(Micros(0))), write(used + taken))
        }
        Mode::Refund => {
            let all_used = used + standing.excess();
            let given_back = charge.cost.saturating_mul(numbers.token()).min(all_used);
            if given_back == 0 {
                return (decide(Outcome::Unchanged, used, Some(Micros(0))), LevelChange::Keep);
            }
            let left = all_used - given_back;
            let shown = if standing.excess() > 0 { left.min(capacity) } else { left };
            (decide(Outcome::Allowed, shown, Some(Micros(0))), write(left))
        }
        Mode::Reset => (decide(Outcome::Allowed, 0, Some(Micros(0))), LevelChange::Clear),
    }
}
