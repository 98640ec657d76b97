//! What some algorithms need to know of a charge beside its numbers, and what they say beside a decision.

use std::sync::Arc;

use super::numbers::Numbers;
use super::queue::{EntryId, Work};
use super::script::{Run, Said};

/// What an algorithm needs to know of a charge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Terms {
    /// Other numbers that switch on when the bucket is empty.
    Elevated(Arc<Elevated>),
    /// Whose slot it is, of requests in flight.
    Slot(Slot),
    /// The entry that is added to a queue.
    Queue(Work),
    /// The script that decides.
    Script(Run),
}

/// The name of a slot that a request in flight holds. A request that spends under the same name renews its slot, and one
/// that refunds gives it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u128);

/// `elevated:` of a limit or an override.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Elevated {
    /// The numbers while it is active.
    pub numbers: Numbers,
    /// How long an activation lasts, in microseconds.
    pub span: u64,
    /// How often it may activate in a month of UTC.
    pub activations_per_month: u64,
}

/// What an algorithm says beside a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Of a limit with `elevated`.
    Elevated(Elevation),
    /// The entry that was added to a queue.
    Entry(EntryId),
    /// What a script said beside its verdict.
    Script(Said),
}

/// How a limit with `elevated` stands after a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elevation {
    /// Whether this charge has switched the elevated numbers on.
    pub triggered: bool,
    /// Whether they hold.
    pub active: bool,
    /// How often they may still be switched on this month; `None` unless this charge did.
    pub activations_left: Option<u64>,
}
