//! Candidates: other numbers of a limit, decided beside its own in the same call and never enforced, so that operators see what
//! they would deny.
//!
//! A candidate has buckets of its own, spent as if the candidate were enforced. It judges the ids that have the limit's numbers:
//! an override keeps its numbers when those of the limit change.

use super::limit::{Limit, is_in_share};
use super::overrides::Override;
use super::plan::Plan;
use crate::engine::algorithms::charge::{Bucket, ChargeOrigin, Mode, Role};
use crate::engine::rules::allowance::Allowance;

/// `candidate:`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Windows of the limit's algorithm.
    pub allowance: Allowance,
    /// The share of ids that get these numbers in place of the limit's, in parts per [`super::limit::WHOLE_SHARE`].
    pub enforce_for: u32,
}

/// Follows the id in the key of a candidate's bucket. Ids are percent-encoded and short names have no `#`, so no other bucket has
/// this key.
const KEY_MARK: &str = "#candidate";

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

impl Plan {
    /// Adds the charges of a candidate. `bucket` and `origin` are those of its limit.
    pub(crate) fn add_candidate(
        &mut self,
        candidate: &Candidate,
        mut bucket: Bucket,
        cost: u64,
        mode: Mode,
        origin: ChargeOrigin,
    ) {
        bucket.mark(KEY_MARK);
        let origin = ChargeOrigin { role: Role::Candidate, ..origin };
        if let Some(windows) = candidate.allowance.windows() {
            self.add_windows(windows, bucket, cost, mode, origin);
        }
    }
}
