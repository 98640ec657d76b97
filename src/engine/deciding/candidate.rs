//! The decisions of candidates.

use crate::engine::algorithms::charge::Charge;
use crate::engine::deciding::verdict::{LimitDecision, Verdict, VerdictKind};

impl Verdict {
    /// Returns the answers of each limit's candidate.
    pub fn candidate_answers(&self) -> impl Iterator<Item = &[LimitDecision]> {
        self.candidates.chunk_by(|one, other| one.limit == other.limit)
    }

    /// Returns each limit whose candidate was decided, once, and whether the candidate would have denied the request.
    pub fn candidate_decisions(&self) -> impl Iterator<Item = (u32, bool)> {
        let decision =
            |answers: &[LimitDecision]| Some((answers.first()?.limit, answers.iter().any(LimitDecision::is_short)));
        self.candidate_answers().filter_map(decision)
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
    let mut charges = charges.iter();
    answers.extract_if(.., |_| charges.next().is_some_and(|charge| charge.origin.is_candidate())).collect()
}
