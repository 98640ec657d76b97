//! Buckets that are more than a meter: what is kept of them, and what a charge makes of it.
//!
//! A meter has one size and is copied; what is here grows with what it counts, so the memory store keeps it apart.

use super::charge::{Charge, Decision, Mode, Outcome};
use super::concurrency::{self, Slots, SlotsEdit};
use super::details::{Detail, Slot, Terms};
use super::elevated::{self, ElevatedMeter};
use super::gcra::{Meter, is_over};
use super::numbers::Micros;
use super::refill::Kind;
use super::sliding_log::{self, Log, LogEdit};
use super::sliding_window::{self, SlidingWindow};

/// What is kept of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// The instants of what was taken.
    Log(Log),
    /// What was taken in two windows.
    SlidingWindow(SlidingWindow),
    /// Who is in flight.
    Slots(Slots),
    /// What is used, and what is known of the elevated numbers.
    Elevated(ElevatedMeter),
}

/// What a charge makes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edit {
    /// Nothing: a denial, a check, a cost of 0.
    Keep,
    /// Of a log.
    Log(LogEdit),
    /// Of two windows: what is in them then, or nothing.
    SlidingWindow(Option<SlidingWindow>),
    /// Of slots.
    Slots(SlotsEdit),
    /// Of one with elevated numbers: this is to be kept, or nothing.
    Elevated(Option<ElevatedMeter>),
}

/// A charge, decided against a bucket.
#[derive(Clone, Debug)]
pub struct Tried {
    /// How it came out.
    pub decision: Decision,
    /// What the algorithm says beside that.
    pub detail: Option<Detail>,
    /// What is to be done with the bucket if no charge of the request is denied.
    pub edit: Edit,
    /// Whether that is done even then: the algorithm counts what it refuses.
    pub counts_denied: bool,
}

/// Why a store in memory cannot decide a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("queues and scripts need Redis")]
pub struct NeedsServer;

/// Decides one charge against one bucket at `now`. `content` is what is stored, or `None` for a full bucket; what
/// another algorithm has left there counts as none.
///
/// `effective_from` is when the numbers took effect, as for [`super::gcra::decide`].
pub fn decide(
    content: Option<&Content>,
    charge: &Charge,
    now: Micros,
    effective_from: Micros,
) -> Result<Tried, NeedsServer> {
    let effective_from = effective_from.max(charge.changed);
    match charge.numbers.refill().kind() {
        Kind::Log(period) => {
            let log = content.and_then(|content| if let Content::Log(log) = content { Some(log) } else { None });
            let (decision, edit) = sliding_log::decide(log, charge, period, now);
            Ok(Tried { decision, detail: None, edit: edit.map_or(Edit::Keep, Edit::Log), counts_denied: false })
        }
        Kind::SlidingWindow(period) => {
            let window =
                content.and_then(|content| if let Content::SlidingWindow(it) = content { Some(it) } else { None });
            Ok(sliding_window::decide(window, charge, period, now, effective_from))
        }
        Kind::Slots(lease) => {
            let slots =
                content.and_then(|content| if let Content::Slots(slots) = content { Some(slots) } else { None });
            let (decision, edit) = concurrency::decide(slots, charge, lease, now);
            // What is written of a refusal is not what it would take.
            let counts_denied = edit.is_some() && decision.outcome != Outcome::Allowed;
            Ok(Tried { decision, detail: None, edit: edit.map_or(Edit::Keep, Edit::Slots), counts_denied })
        }
        Kind::Queue(_) | Kind::Script => Err(NeedsServer),
        Kind::Level => {
            let Some(Terms::Elevated(terms)) = charge.terms.as_deref() else { return Err(NeedsServer) };
            let kept = content.and_then(|kept| if let Content::Elevated(kept) = kept { Some(kept) } else { None });
            let decided = elevated::decide(kept, charge, terms, now, effective_from);
            Ok(Tried {
                decision: decided.decision,
                detail: Some(Detail::Elevated(decided.elevation)),
                edit: decided.edit,
                counts_denied: false,
            })
        }
    }
}

/// Where a bucket stands without the charge: what members of a denied request report, as nothing was taken from them.
pub fn standing(
    content: Option<&Content>,
    charge: &Charge,
    now: Micros,
    effective_from: Micros,
) -> Result<Decision, NeedsServer> {
    let nothing = Charge { cost: 0, mode: Mode::Check, ..charge.clone() };
    let tried = decide(content, &nothing, now, effective_from)?;
    Ok(Decision { outcome: Outcome::Unchanged, ..tried.decision })
}

impl Content {
    /// A bucket that was a meter while its limit had no elevated numbers.
    pub fn of_meter(meter: Meter) -> Self {
        Self::Elevated(ElevatedMeter::of(meter))
    }

    /// What is used of a bucket that is a meter again, as its limit has no elevated numbers any more.
    pub const fn meter(&self) -> Option<&Meter> {
        match self {
            Self::Elevated(kept) => Some(kept.meter()),
            Self::Log(_) | Self::SlidingWindow(_) | Self::Slots(_) => None,
        }
    }

    /// Dates it now if it is dated too far ahead, which it is if the clock stepped back. Leases end by themselves.
    pub fn redate(&mut self, now: Micros) {
        match self {
            Self::Log(log) => log.redate(now),
            Self::SlidingWindow(window) => window.redate(now),
            Self::Elevated(kept) => kept.redate(now),
            Self::Slots(_) => {}
        }
    }

    /// Does what a charge has decided; what is left is `None` where that is a full bucket.
    pub fn apply(content: Option<Self>, edit: &Edit) -> Option<Self> {
        match edit {
            Edit::Keep => content,
            Edit::Log(edit) => {
                let mut log = match content {
                    Some(Self::Log(log)) => log,
                    _ => Log::default(),
                };
                log.apply(edit);
                (log.len() > 0).then_some(Self::Log(log))
            }
            Edit::SlidingWindow(window) => window.map(Self::SlidingWindow),
            Edit::Slots(edit) => {
                let mut slots = match content {
                    Some(Self::Slots(slots)) => slots,
                    _ => Slots::default(),
                };
                slots.apply(edit);
                (slots.len() > 0).then_some(Self::Slots(slots))
            }
            Edit::Elevated(kept) => kept.map(Self::Elevated),
        }
    }

    /// Whether a request in flight holds this slot in it.
    pub fn holds(&self, slot: Slot, now: Micros) -> bool {
        matches!(self, Self::Slots(slots) if slots.holds(slot, now))
    }

    /// Whether it need not be kept at `now`; see [`Meter::is_over`].
    pub fn is_over(&self, now: Micros, changed: Micros) -> bool {
        match self {
            Self::Log(log) => is_over(log.youngest(), Some(log.ends()), now, changed),
            Self::SlidingWindow(window) => is_over(Some(window.at()), Some(window.ends()), now, changed),
            Self::Slots(slots) => slots.ends() <= now,
            Self::Elevated(kept) => is_over(Some(kept.meter().since), kept.ends(), now, changed),
        }
    }

    /// The entries that take memory, at least 1.
    pub fn entries(&self) -> usize {
        match self {
            Self::Log(log) => log.len(),
            Self::SlidingWindow(_) | Self::Elevated(_) => 1,
            Self::Slots(slots) => slots.len(),
        }
    }

    /// Takes less memory, if it can: by one entry, so that nothing passes that would not have passed before.
    pub fn shrink(&mut self) {
        match self {
            Self::Log(log) => log.merge_oldest(),
            // Slots are one for each request in flight, and those are bounded by the listener.
            Self::SlidingWindow(_) | Self::Slots(_) | Self::Elevated(_) => {}
        }
    }
}
