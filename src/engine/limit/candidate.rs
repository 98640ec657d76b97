//! Candidates: other numbers of a limit, decided beside its own in the same call and never enforced, so that operators see what
//! they would deny.
//!
//! A candidate has buckets of its own, spent as if the candidate were enforced. It judges the ids that have the limit's numbers:
//! an override keeps its numbers when those of the limit change.

use std::borrow::Cow;
use std::sync::Arc;

use crate::engine::limit::allowance::Allowance;
use crate::engine::limit::overrides::Override;
use crate::engine::limit::{Limit, is_in_share};

/// The most candidates of a limit. Each is one more charge of every request and one more bucket of every id, and the words of a charge
/// in Redis have letters for so many.
pub const MOST_CANDIDATES: usize = 4;

/// `candidate:`, or an entry of `candidates:`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// `None` for that of `candidate:`.
    pub name: Option<Arc<str>>,
    /// Windows of the limit's algorithm.
    pub allowance: Allowance,
    /// The share of ids that get these numbers in place of the limit's, in parts per [`crate::engine::limit::WHOLE_SHARE`].
    pub enforce_for: u32,
}

/// The candidates of a limit for an id without an override.
#[derive(Clone, Copy, Debug, Default)]
pub struct CandidateSet<'a> {
    all: &'a [Candidate],
    /// The index of the one whose numbers the id has in place of the limit's.
    in_force: Option<u8>,
}

impl<'a> CandidateSet<'a> {
    pub(crate) const fn is_empty(self) -> bool {
        self.all.is_empty()
    }

    /// Returns each candidate and whether the id has its numbers. The others are decided beside those that it has.
    pub(crate) fn each(self) -> impl Iterator<Item = (u8, &'a Candidate, bool)> {
        (0..).zip(self.all).map(move |(place, candidate)| (place, candidate, Some(place) == self.in_force))
    }
}

impl Candidate {
    /// Its name among those of all limits: that of its limit, and its own, if it has one.
    pub fn label<'a>(&self, limit: &'a str) -> Cow<'a, str> {
        self.name.as_ref().map_or(limit.into(), |name| format!("{limit}:{name}").into())
    }
}

impl Limit {
    /// Returns the allowance of the id with this key, and the candidates that are decided with it. `given` is the id's override.
    pub fn allowance_for<'a>(&'a self, given: Option<&'a Override>, key: &str) -> (&'a Allowance, CandidateSet<'a>) {
        if let Some(given) = given {
            return (&given.allowance, CandidateSet::default());
        }
        let in_force = (0..).zip(&self.candidates).find(|(_, candidate)| is_in_share(key, candidate.enforce_for));
        let allowance = in_force.map_or(&self.allowance, |(_, candidate)| &candidate.allowance);
        (allowance, CandidateSet { all: &self.candidates, in_force: in_force.map(|(place, _)| place) })
    }
}
