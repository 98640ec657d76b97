//! Candidates: other numbers of a limit, decided beside its own in the same call and never enforced, so that operators see what
//! they would deny.
//!
//! A candidate has buckets of its own, spent as if the candidate were enforced. It judges the ids that have the limit's numbers:
//! an override keeps its numbers when those of the limit change.

use crate::engine::limit::allowance::Allowance;
use crate::engine::limit::overrides::Override;
use crate::engine::limit::{Limit, is_in_share};

/// `candidate:`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Windows of the limit's algorithm.
    pub allowance: Allowance,
    /// The share of ids that get these numbers in place of the limit's, in parts per [`crate::engine::limit::WHOLE_SHARE`].
    pub enforce_for: u32,
}

impl Limit {
    /// Returns the allowance of the id with this key, and the candidate that is decided with it. `given` is the id's override.
    pub fn allowance_for<'a>(
        &'a self,
        given: Option<&'a Override>,
        key: &str,
    ) -> (&'a Allowance, Option<&'a Candidate>) {
        match (given, self.candidate.as_deref()) {
            (Some(given), _) => (&given.allowance, None),
            (None, None) => (&self.allowance, None),
            (None, Some(candidate)) if is_in_share(key, candidate.enforce_for) => (&candidate.allowance, None),
            (None, Some(candidate)) => (&self.allowance, Some(candidate)),
        }
    }
}
