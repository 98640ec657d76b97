//! The state of a bucket, whatever its algorithm, and the dispatch to the algorithms.
//!
//! A [`Level`] has one size and is copied, so the memory store keeps levels in a table of their own.

use super::activations::Activations;
use super::algorithm::Algorithm;
use super::charge::{Bucket, Charge, Dated, Mode, Slot};
use super::concurrency::{self, Slots, SlotsEdit};
use super::decision::{Attempt, Decision, Outcome};
use super::elevated::{self, ElevatedLevel};
use super::level::{Level, LevelChange, is_over};
use super::micros::Micros;
use super::reservation::{self, HeldEdit, HeldLevel};
use super::sliding_log::{self, Log, LogEdit};
use super::sliding_window::{self, SlidingWindow};
use super::{fixed_window, gcra};

/// The state of a bucket that is not full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BucketState {
    /// For `gcra` and `fixed_window`.
    Level(Level),
    /// For the same, while tokens are reserved.
    Held(HeldLevel),
    Elevated(ElevatedLevel),
    Log(Log),
    SlidingWindow(SlidingWindow),
    Slots(Slots),
}

/// The change that a charge makes. `None` and [`LevelChange::Clear`] drop the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edit {
    Level(LevelChange),
    Held(HeldEdit),
    Elevated(Option<ElevatedLevel>),
    Log(LogEdit),
    SlidingWindow(Option<SlidingWindow>),
    Slots(SlotsEdit),
}

/// The memory store cannot decide a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("queues and scripts need Redis")]
pub struct NeedsRedis;

/// Decides a charge against a level; `None` for a full bucket. The limit has no elevated numbers, and its algorithm
/// [keeps a level](Algorithm::keeps_level).
///
/// `effective_from` is when the rules took effect, and the numbers with them unless the charge says otherwise. It matters
/// only if other numbers held at the last write. A bucket that is full by those is full. A cost above the burst is always
/// denied, with `retry_after: None`.
#[inline]
pub fn decide_level(
    level: Option<&Level>,
    charge: &Charge,
    now: Micros,
    effective_from: Micros,
) -> (Decision, LevelChange) {
    decide_level_beside(level, 0, charge, now, effective_from)
}

/// The same, while tokens are `held` that the charge cannot have.
#[inline]
pub(super) fn decide_level_beside(
    level: Option<&Level>,
    held: u64,
    charge: &Charge,
    now: Micros,
    effective_from: Micros,
) -> (Decision, LevelChange) {
    let effective_from = effective_from.max(charge.changed);
    let forgotten = level.and_then(|level| level.forgotten_at(&charge.numbers, effective_from));
    let level = level.filter(|_| forgotten.is_none_or(|at| now < at));
    let (mut decision, change) = match charge.numbers.windows() {
        None => gcra::decide(level, held, charge, now, effective_from),
        Some(windows) => fixed_window::decide((level, held), charge, windows, now, effective_from),
    };
    if let (Some(level), Some(at), LevelChange::Keep) = (level, forgotten, change) {
        decision.full_after(at.since(level.since.max(now)), held, charge);
    }
    (decision, change)
}

/// Decides a charge against a bucket; see [`decide_level`]. State of another algorithm counts as a full bucket. `quota` are the
/// activations of the charge's quota, if it has one.
pub fn decide(
    state: Option<&BucketState>,
    charge: &Charge,
    quota: Option<Activations>,
    now: Micros,
    effective_from: Micros,
) -> Result<Attempt<Edit>, NeedsRedis> {
    let changed = effective_from.max(charge.changed);
    Ok(match (charge.numbers.algorithm(), charge.elevated()) {
        (Algorithm::Gcra | Algorithm::FixedWindow(_), None) => {
            if charge.reservation().is_some() || matches!(state, Some(BucketState::Held(_))) {
                return reservation::decide(state, charge, now, effective_from);
            }
            let level = state.and_then(BucketState::level);
            let (decision, change) = decide_level(level.as_ref(), charge, now, effective_from);
            let taken = level.map_or(now, |level| level.since.max(now));
            Attempt::new(decision, (change != LevelChange::Keep).then_some(Edit::Level(change))).told(charge, taken)
        }
        (Algorithm::Gcra | Algorithm::FixedWindow(_), Some(elevated)) => {
            let kept = match state {
                Some(BucketState::Elevated(kept)) => Some(*kept),
                state => state.and_then(BucketState::level).map(ElevatedLevel::of),
            };
            elevated::decide(kept.as_ref(), charge, elevated, quota, now, changed).map(Edit::Elevated)
        }
        (Algorithm::SlidingLog, _) => {
            let log = if let Some(BucketState::Log(log)) = state { Some(log) } else { None };
            sliding_log::decide(log, charge, now).map(Edit::Log)
        }
        (Algorithm::SlidingWindow { .. }, _) => {
            let window = if let Some(BucketState::SlidingWindow(window)) = state { Some(window) } else { None };
            sliding_window::decide(window, charge, now, changed).map(Edit::SlidingWindow)
        }
        (Algorithm::Concurrency, _) => {
            let slots = if let Some(BucketState::Slots(slots)) = state { Some(slots) } else { None };
            concurrency::decide(slots, charge, now).map(Edit::Slots)
        }
        (Algorithm::Queue | Algorithm::Script, _) => return Err(NeedsRedis),
    })
}

/// Returns the decision for a charge of a denied request: the state of its bucket, as nothing was taken.
pub fn peek(
    state: Option<&BucketState>,
    charge: &Charge,
    now: Micros,
    effective_from: Micros,
) -> Result<Decision, NeedsRedis> {
    // A cost of 0 switches nothing on.
    let decision = decide(state, &check_of_zero(charge), None, now, effective_from)?.decision;
    Ok(Decision { outcome: Outcome::Unchanged, ..decision })
}

/// Returns a check of cost 0. It has no key, because no algorithm reads it, and no part in a reservation.
fn check_of_zero(charge: &Charge) -> Charge {
    let bucket = Bucket::new(String::new(), charge.bucket.fingerprint);
    let Charge { origin, numbers, changed, input, .. } = charge;
    Charge {
        bucket,
        origin: *origin,
        numbers: numbers.clone(),
        cost: 0,
        mode: Mode::Check,
        changed: *changed,
        lease: None,
        dated: Dated::No,
        input: input.clone().filter(|_| charge.reservation().is_none()),
    }
}

impl BucketState {
    /// Returns the level of a limit without elevated numbers, which may have had some at the last write.
    pub const fn level(&self) -> Option<Level> {
        match self {
            Self::Level(level) | Self::Elevated(ElevatedLevel { level, .. }) => Some(*level),
            Self::Held(held) => Some(held.level),
            Self::Log(_) | Self::SlidingWindow(_) | Self::Slots(_) => None,
        }
    }

    /// Sets the date to `now` if it is too far ahead, as after the clock stepped back. Leases end by themselves.
    pub fn redate(&mut self, now: Micros) {
        match self {
            Self::Level(level) => *level = level.redated(now).unwrap_or(*level),
            Self::Held(held) => held.redate(now),
            Self::Elevated(kept) => kept.redate(now),
            Self::Log(log) => log.redate(now),
            Self::SlidingWindow(window) => window.redate(now),
            Self::Slots(_) => {}
        }
    }

    /// Returns the state after an edit; `None` if the bucket is full.
    pub fn edited(state: Option<Self>, edit: &Edit) -> Option<Self> {
        match edit {
            Edit::Level(LevelChange::Keep) => state,
            Edit::Level(LevelChange::Write(level)) => Some(Self::Level(*level)),
            Edit::Level(LevelChange::Clear) => None,
            Edit::Held(edit) => HeldLevel::edited(state, edit),
            Edit::Elevated(kept) => kept.map(Self::Elevated),
            Edit::Log(edit) => {
                let mut log = if let Some(Self::Log(log)) = state { log } else { Log::default() };
                log.apply(edit);
                (log.len() > 0).then_some(Self::Log(log))
            }
            Edit::SlidingWindow(window) => window.map(Self::SlidingWindow),
            Edit::Slots(edit) => {
                let mut slots = if let Some(Self::Slots(slots)) = state { slots } else { Slots::default() };
                slots.apply(edit);
                (slots.len() > 0).then_some(Self::Slots(slots))
            }
        }
    }

    /// Returns true if a request in flight holds this slot.
    pub fn holds(&self, slot: Slot, now: Micros) -> bool {
        matches!(self, Self::Slots(slots) if slots.holds(slot, now))
    }

    /// Returns true if the state can be dropped at `now`: the bucket is full by the numbers of the last write, and has been
    /// for a while if the rules have changed since, at `changed`.
    pub fn is_over(&self, now: Micros, changed: Micros) -> bool {
        let (since, full) = match self {
            Self::Level(level) => (level.since, level.full_at()),
            Self::Elevated(kept) => (kept.level.since, kept.ends),
            Self::Log(log) => (log.youngest().unwrap_or_default(), Some(log.ends())),
            Self::SlidingWindow(window) => (window.at, Some(window.ends())),
            Self::Held(held) => return held.is_over(now, changed),
            Self::Slots(slots) => return slots.ends() <= now,
        };
        is_over(since, full, now, changed)
    }

    /// Returns the entries that take memory, at least 1.
    pub fn entries(&self) -> usize {
        match self {
            Self::Log(log) => log.len(),
            Self::Slots(slots) => slots.len(),
            Self::Held(held) => 1 + held.len(),
            Self::Level(_) | Self::SlidingWindow(_) | Self::Elevated(_) => 1,
        }
    }

    /// Drops an entry if that allows nothing more. A slot or a hold is never dropped: it is a request in flight, and listeners
    /// and buckets bound those.
    pub fn shrink(&mut self) {
        if let Self::Log(log) = self {
            log.merge_oldest();
        }
    }
}
