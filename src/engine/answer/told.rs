//! The part of a verdict that clients are told: all but the limits with `headers: none`.

use crate::engine::deciding::verdict::{LimitDecision, Verdict, VerdictKind};
use crate::engine::limit::deny_with::Visibility;
use crate::engine::limit::rules::Rules;

/// Returns true if clients are told of the limit.
pub fn is_told(rules: &Rules, limit: u32) -> bool {
    !rules.has_hidden || rules.limit(limit).is_none_or(|limit| limit.visibility == Visibility::Shown)
}

/// The answers of enforced limits that clients are told of.
pub(super) fn told<'v>(rules: &'v Rules, verdict: &'v Verdict) -> impl Iterator<Item = &'v LimitDecision> {
    verdict.enforced().filter(|answer| is_told(rules, answer.limit))
}

/// Returns the answer that binds among those that clients are told of.
pub(super) fn binding<'v>(rules: &'v Rules, verdict: &'v Verdict) -> Option<&'v LimitDecision> {
    if rules.has_hidden {
        told(rules, verdict).max_by(|a, b| a.decision.strictness(&b.decision))
    } else {
        verdict.binding()
    }
}

/// Returns the denial that binds among those that clients are told of.
pub(super) fn denial<'v>(rules: &'v Rules, verdict: &'v Verdict) -> Option<&'v LimitDecision> {
    let is_denied = verdict.kind == VerdictKind::Denied;
    binding(rules, verdict).filter(|answer| is_denied && answer.decision.is_denied())
}
