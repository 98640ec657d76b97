//! The direction of a change.

use std::ops::{BitOr, BitOrAssign};

/// The effect of a change on requests. A change is stricter if the new rules may deny some of the requests that all passed under the
/// old ones, and looser if it is so the other way round. One that does both is stricter for some requests and looser for others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Effect {
    pub(super) stricter: bool,
    pub(super) looser: bool,
}

impl Effect {
    pub(super) const NONE: Self = Self { stricter: false, looser: false };
    pub(super) const STRICTER: Self = Self { stricter: true, looser: false };
    pub(super) const LOOSER: Self = Self { stricter: false, looser: true };
    pub(super) const BOTH: Self = Self { stricter: true, looser: true };

    /// The effect of a value that denies more the higher it is.
    pub(super) fn of_rank<T: PartialOrd>(old: &T, new: &T) -> Self {
        Self { stricter: new > old, looser: new < old }
    }

    pub(super) const fn reversed(self) -> Self {
        Self { stricter: self.looser, looser: self.stricter }
    }

    pub(super) const fn word(self) -> &'static str {
        match (self.stricter, self.looser) {
            (true, true) => "stricter and looser",
            (true, false) => "stricter",
            (false, true) => "looser",
            (false, false) => "no effect on denials",
        }
    }
}

impl BitOr for Effect {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self { stricter: self.stricter || other.stricter, looser: self.looser || other.looser }
    }
}

impl BitOrAssign for Effect {
    fn bitor_assign(&mut self, other: Self) {
        *self = *self | other;
    }
}
