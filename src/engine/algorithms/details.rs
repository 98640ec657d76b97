//! What some algorithms need to know of a charge beside its numbers, and what they say beside a decision.

use std::fmt;
use std::sync::Arc;

use super::numbers::{Micros, Numbers, Span};
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
    /// How long ago was taken what a refund gives back, of a sliding log or window.
    TakenAgo(Micros),
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

/// Numbers of a limit or an override, and other ones that switch on by themselves.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WithElevated {
    /// The numbers while nothing is switched on: one window that refills evenly.
    pub base: Arc<[Numbers]>,
    /// The others.
    pub elevated: Arc<Elevated>,
}

impl fmt::Display for Elevated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { numbers, span, activations_per_month } = self;
        write!(f, "{numbers}, for {}, {activations_per_month} times a month", Span(span.saturating_mul(1_000)))
    }
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

impl Detail {
    /// How a limit with `elevated` stands, if it is that.
    pub const fn elevation(&self) -> Option<Elevation> {
        match self {
            Self::Elevated(elevation) => Some(*elevation),
            Self::Entry(_) | Self::Script(_) => None,
        }
    }

    /// Leaves what of it still holds when nothing comes of the charge, as another one of its request is denied; whether
    /// anything does.
    pub(crate) fn undo(&mut self) -> bool {
        match self {
            Self::Elevated(elevation) => {
                *elevation = elevation.undone();
                true
            }
            Self::Entry(_) | Self::Script(_) => false,
        }
    }
}

impl Elevation {
    /// With what the charge would have switched on off.
    const fn undone(self) -> Self {
        Self { triggered: false, active: self.active && !self.triggered, activations_left: None }
    }
}
