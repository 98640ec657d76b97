//! The decisions of candidates.

use super::verdict::{Answer, Standing, Verdict};
use crate::engine::algorithms::charge::{Charge, Mode};
use crate::engine::algorithms::decision::Outcome;
use crate::engine::rules::plan::Plan;

impl Verdict {
    /// Returns the answers of each limit's candidate.
    pub fn candidate_answers(&self) -> impl Iterator<Item = &[Answer]> {
        self.candidates.chunk_by(|one, other| one.limit == other.limit)
    }

    /// Returns each limit whose candidate was decided, once, and whether the candidate would have denied the request.
    pub fn candidate_decisions(&self) -> impl Iterator<Item = (u32, bool)> {
        let decision =
            |answers: &[Answer]| Some((answers.first()?.limit, answers.iter().any(Answer::is_short_candidate)));
        self.candidate_answers().filter_map(decision)
    }

    /// Returns the charges that candidates are due although the request is denied: those of the limit that denies it, if its
    /// candidate would have allowed it and no other limit denies it. The call that decided has changed no bucket, so they take a call
    /// of their own. A candidate has such charges no more often than its own numbers allow.
    pub fn candidate_charges(&self, plan: &Plan) -> Vec<Charge> {
        let fits = |(limit, is_denied): &(u32, bool)| !is_denied && self.is_denied_only_by(*limit);
        let Some((limit, _)) = self.candidate_decisions().find(fits) else { return Vec::new() };
        let due = plan.charges.iter().filter(|charge| {
            let is_own = charge.origin.is_candidate && charge.origin.limit == limit;
            is_own && charge.mode == Mode::SpendOnly && charge.cost > 0 && !charge.counts_denied()
        });
        due.cloned().collect()
    }

    /// Returns true if this limit denies the request and no other does.
    pub fn is_denied_only_by(&self, limit: u32) -> bool {
        let mut denials = self.enforced().filter(|answer| answer.decision.is_denied());
        self.standing == Standing::Denied && denials.all(|answer| answer.limit == limit)
    }
}

impl Answer {
    /// Returns true if the cost did not fit the bucket of a candidate.
    pub fn is_short_candidate(&self) -> bool {
        // In a request that another charge denies, the decision may be no more than the state of the bucket.
        let is_state = self.decision.outcome == Outcome::Unchanged
            && self.numbers.as_ref().is_some_and(|numbers| !numbers.counts_denied());
        self.is_short() || is_state && self.decision.remaining < self.cost
    }
}

/// Takes the answers of candidates out of those of a plan.
pub(super) fn take_candidates(charges: &[Charge], answers: &mut Vec<Answer>) -> Vec<Answer> {
    if !charges.iter().any(|charge| charge.origin.is_candidate) {
        return Vec::new();
    }
    let mut charges = charges.iter();
    answers.extract_if(.., |_| charges.next().is_some_and(|charge| charge.origin.is_candidate)).collect()
}
