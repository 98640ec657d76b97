//! A verdict in one line: its result, and one limit.

use crate::engine::deciding::verdict::{LimitDecision, Verdict, VerdictKind};
use crate::telemetry::metrics::DecisionResult;

/// The result of a verdict.
#[derive(Debug)]
pub(super) struct Summary<'a> {
    pub(super) result: DecisionResult,
    /// The limit that binds, would have denied the request in shadow mode, or had no reply from the store.
    pub(super) limit: Option<u32>,
    /// That limit's answer.
    pub(super) answer: Option<&'a LimitDecision>,
}

impl<'a> Summary<'a> {
    pub(super) fn of(verdict: &'a Verdict) -> Self {
        let binding = verdict.binding();
        let shadow = verdict.answers.iter().find(|answer| answer.would_deny());
        let unanswered = verdict.unanswered.iter().max_by_key(|limit| limit.denies).map(|limit| limit.limit);
        let (result, limit) = match (verdict.kind, shadow, unanswered) {
            (VerdictKind::Denied, ..) => (DecisionResult::Denied, binding.map(|answer| answer.limit)),
            (VerdictKind::Overloaded, ..) => (DecisionResult::Rejected, unanswered),
            (VerdictKind::Unavailable, ..) => (DecisionResult::ErrorDenied, unanswered),
            (VerdictKind::Allowed, Some(shadow), _) => (DecisionResult::ShadowDenied, Some(shadow.limit)),
            (VerdictKind::Allowed, None, Some(_)) => (DecisionResult::ErrorAllowed, unanswered),
            (VerdictKind::Allowed, None, None) => match binding.or(verdict.answers.first()) {
                Some(answer) => (DecisionResult::Allowed, Some(answer.limit)),
                None => (DecisionResult::Unlimited, None),
            },
        };
        let of_limit = |answer: &&LimitDecision| Some(answer.limit) == limit;
        let answer = binding.filter(of_limit).or_else(|| verdict.answers.iter().find(of_limit));
        Self { result, limit, answer }
    }
}
