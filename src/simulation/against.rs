//! Compares two rules files: the requests that only one of them denies.

use std::collections::BTreeMap;

use super::ids::IdTable;
use super::most_denied::{DeniedId, MostDenied, top};
use super::replay::LimitOutcome;
use super::requests::{Asked, Side};
use super::tally::id_text;

/// The difference between two rules files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Requests that only the rules deny.
    pub only_here: u64,
    /// Requests that only the other rules deny.
    pub only_there: u64,
    pub both: u64,
    /// By limit, of those that differ.
    pub limits: Vec<LimitDifference>,
}

/// The requests that a limit denies under only one of the rules files. A limit that is only in one file denies nothing under the
/// other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitDifference {
    pub name: String,
    pub only_here: Difference,
    pub only_there: Difference,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    pub requests: u64,
    pub ids: u64,
    pub most: Vec<DeniedId>,
}

#[derive(Default)]
struct OneSide {
    requests: u64,
    ids: IdTable,
    most: MostDenied,
}

/// Compares the outcomes of each request.
pub(super) struct Comparing {
    only_here: u64,
    only_there: u64,
    both: u64,
    limits: BTreeMap<String, [OneSide; 2]>,
    /// The limit of the other side with the same name, by limit; both ways.
    counterparts: [Vec<Option<u32>>; 2],
    room: usize,
}

/// The outcome of a request on one side.
#[derive(Clone, Copy)]
pub(super) struct SideOutcome<'a> {
    pub(super) side: &'a Side,
    pub(super) asked: &'a Asked,
    pub(super) is_denied: bool,
    pub(super) outcomes: &'a [LimitOutcome],
}

impl Comparing {
    pub(super) fn new(here: &Side, there: &Side, room: usize) -> Self {
        let counterparts = |of: &Side, other: &Side| {
            let place = |name: &str| other.rules.limits().iter().position(|limit| limit.name == name);
            let limits = of.rules.limits().iter();
            limits.map(|limit| place(&limit.name).and_then(|place| u32::try_from(place).ok())).collect()
        };
        let counterparts = [counterparts(here, there), counterparts(there, here)];
        Self { only_here: 0, only_there: 0, both: 0, limits: BTreeMap::new(), counterparts, room }
    }

    pub(super) fn compare(&mut self, here: SideOutcome<'_>, there: SideOutcome<'_>) {
        match (here.is_denied, there.is_denied) {
            (true, false) => self.only_here += 1,
            (false, true) => self.only_there += 1,
            (true, true) => self.both += 1,
            (false, false) => {}
        }
        self.compare_limits(0, here, there);
        self.compare_limits(1, there, here);
    }

    /// Counts the denials of one side that the other does not share.
    fn compare_limits(&mut self, number: usize, own: SideOutcome<'_>, other: SideOutcome<'_>) {
        for outcome in own.outcomes.iter().filter(|outcome| outcome.is_denied) {
            let counterpart = self.counterparts.get(number).and_then(|limits| *limits.get(outcome.limit as usize)?);
            let is_shared = counterpart
                .is_some_and(|limit| other.outcomes.iter().any(|other| other.limit == limit && other.is_denied));
            if is_shared {
                continue;
            }
            let name = own.side.rules.name(outcome.limit);
            if !self.limits.contains_key(name) {
                self.limits.insert(name.to_owned(), <[OneSide; 2]>::default());
            }
            let Some(difference) = self.limits.get_mut(name).and_then(|sides| sides.get_mut(number)) else { continue };
            difference.requests += 1;
            if let Some(id) = outcome.id {
                difference.ids.count(id, 0, true, &mut self.room);
                difference.most.add(id, || id_text(own.side, own.asked, outcome));
            }
        }
    }

    pub(super) fn into_comparison(self, most: usize) -> Comparison {
        let difference =
            |side: OneSide| Difference { requests: side.requests, ids: side.ids.len(), most: top(side.most, most) };
        let limits = self.limits.into_iter().map(|(name, [here, there])| LimitDifference {
            name,
            only_here: difference(here),
            only_there: difference(there),
        });
        Comparison { only_here: self.only_here, only_there: self.only_there, both: self.both, limits: limits.collect() }
    }
}
