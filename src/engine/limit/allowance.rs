//! The allowance of a limit or an override: its numbers, or none.

use std::sync::Arc;

use crate::engine::algorithms::charge::Elevated;
use crate::engine::algorithms::numbers::Numbers;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allowance {
    /// The limit applies only where an override gives numbers.
    Disabled,
    /// Everything passes without asking the store.
    Unlimited,
    /// Nothing passes, without asking the store.
    Deny,
    /// One window, or several at once (`rates:`), all or nothing. Shared, because overrides repeat the same numbers.
    Windows(Arc<[Numbers]>),
    Elevated(Arc<ElevatedAllowance>),
}

/// Numbers, and others that switch on once their bucket is empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ElevatedAllowance {
    /// One window that refills evenly.
    pub base: Arc<[Numbers]>,
    pub elevated: Arc<Elevated>,
}

impl Allowance {
    pub fn windows(&self) -> Option<&Arc<[Numbers]>> {
        match self {
            Self::Windows(windows) => Some(windows),
            Self::Elevated(with) => Some(&with.base),
            Self::Disabled | Self::Unlimited | Self::Deny => None,
        }
    }

    /// Returns true if it denies some requests, or all.
    pub fn can_deny(&self) -> bool {
        !matches!(self, Self::Unlimited | Self::Disabled)
    }

    /// Returns true if no bucket can ever hold this cost.
    pub fn never_fits(&self, cost: u64) -> bool {
        let elevated = self.elevated().map_or(0, |elevated| elevated.numbers.burst());
        let windows = self.windows().into_iter().flat_map(|windows| windows.iter());
        windows.map(|numbers| numbers.burst().max(elevated)).any(|burst| cost > burst)
    }

    pub fn elevated(&self) -> Option<&Arc<Elevated>> {
        match self {
            Self::Elevated(with) => Some(&with.elevated),
            _ => None,
        }
    }
}
