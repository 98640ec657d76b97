//! The smallest numbers that deny no more than a share of the log, found by deciding the log again with other numbers.

use super::curve::Peaks;
use super::record::{Axis, Bound, Outcome, Record};
use super::report::LimitReport;

/// The shares that may be denied, in millionths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Goal {
    pub requests: Option<u64>,
    pub ids: Option<u64>,
}

/// The smallest numbers that keep a goal. The period stays, and the other limits decide as they do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suggestion {
    /// With the present count. `None` if the algorithm has no burst of its own, or none keeps the goal.
    pub burst: Option<Found>,
    /// With a count that equals the burst.
    pub both: Option<Found>,
    /// The most that ids take in one period of the limit.
    pub peaks: Peaks,
}

/// A number, and what is denied with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    pub number: u64,
    pub denied: u64,
    pub ids_denied: u64,
}

impl Goal {
    pub(super) const fn is_given(&self) -> bool {
        self.requests.is_some() || self.ids.is_some()
    }

    /// Returns true if a limit denies no more.
    pub fn is_kept(&self, limit: &LimitReport) -> bool {
        let is_kept =
            |goal: Option<u64>, denied: u64, all: u64| goal.is_none_or(|share| denied <= share_of(all, share));
        is_kept(self.requests, limit.denied, limit.requests) && is_kept(self.ids, limit.ids_denied, limit.ids)
    }

    /// Searches the smallest numbers with which a limit keeps the goal.
    pub(super) fn suggest(&self, record: &Record, ids: u64) -> Suggestion {
        let requests = self.requests.map_or(u64::MAX, |share| share_of(record.requests(), share));
        let bound = Bound { requests, ids: self.ids.map_or(u64::MAX, |share| share_of(ids, share)) };
        let search = |axis| record.axes().contains(&axis).then(|| search(record, axis, bound)).flatten();
        Suggestion { burst: search(Axis::Burst), both: search(Axis::Both), peaks: Peaks::of(&record.peaks()) }
    }
}

/// Finds the smallest number with which the goal is kept, if a larger one never denies more.
fn search(record: &Record, axis: Axis, bound: Bound) -> Option<Found> {
    let decide = |number: u64| {
        let Outcome { denied, ids_denied, .. } = record.decide(&record.with(axis, number)?, bound)?;
        Some(Found { number, denied, ids_denied })
    };
    let (mut too_small, mut found) = (0, None);
    let mut number = 1;
    while found.is_none() {
        found = decide(number);
        if found.is_none() {
            record.with(axis, number)?;
            too_small = number;
            number = number.checked_mul(2)?;
        }
    }
    let mut found = found?;
    while found.number - too_small > 1 {
        let middle = too_small + (found.number - too_small) / 2;
        match decide(middle) {
            Some(fewer) => found = fewer,
            None => too_small = middle,
        }
    }
    Some(found)
}

fn share_of(all: u64, millionths: u64) -> u64 {
    u64::try_from(u128::from(all) * u128::from(millionths) / 1_000_000).unwrap_or(u64::MAX)
}
