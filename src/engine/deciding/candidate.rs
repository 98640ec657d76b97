//! The decisions of candidates.

use crate::engine::algorithms::charge::Charge;
use crate::engine::deciding::verdict::{LimitDecision, Verdict, VerdictKind};

/// The decision of one candidate.
#[derive(Clone, Copy, Debug)]
pub struct CandidateDecision<'v> {
    /// The index of the limit.
    pub limit: u32,
    /// The index among the candidates of the limit.
    pub candidate: u8,
    /// True if the candidate would have denied the request.
    pub is_denied: bool,
    /// By window, at least one.
    pub windows: &'v [LimitDecision],
}

impl Verdict {
    /// Returns the decision of each candidate, in the order of the rules.
    pub fn candidate_decisions(&self) -> impl Iterator<Item = CandidateDecision<'_>> {
        let candidates = self.candidates.chunk_by(|one, other| (one.limit, one.role) == (other.limit, other.role));
        candidates.filter_map(|windows| {
            let LimitDecision { limit, role, .. } = windows.first()?;
            let is_denied = windows.iter().any(LimitDecision::is_short);
            Some(CandidateDecision { limit: *limit, candidate: role.candidate()?, is_denied, windows })
        })
    }

    /// Returns true if this limit denies the request and no other does.
    pub fn is_denied_only_by(&self, limit: u32) -> bool {
        let mut denials = self.enforced().filter(|answer| answer.decision.is_denied());
        self.kind == VerdictKind::Denied && denials.all(|answer| answer.limit == limit)
    }
}

/// Takes the answers of candidates out of those of a plan.
pub(crate) fn take_candidates(charges: &[Charge], answers: &mut Vec<LimitDecision>) -> Vec<LimitDecision> {
    if !charges.iter().any(|charge| charge.origin.is_candidate()) {
        return Vec::new();
    }
    answers.extract_if(.., |answer| answer.role.candidate().is_some()).collect()
}
