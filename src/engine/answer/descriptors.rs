//! The verdicts on several descriptors that were decided together.

use super::verdict::{Answer, Unanswered, Verdict};
use crate::engine::algorithms::charge::{Charge, Decision, Outcome};
use crate::engine::rules::descriptors::{DescriptorCharge, DescriptorPlan, JointPlan};
use crate::engine::rules::plan::ChargeOrigin;
use crate::engine::rules::rule_set::Rules;

/// The verdicts of one call to the rate limit service.
#[derive(Debug)]
pub struct DescriptorVerdicts {
    /// The verdict on the request. Of several buckets of a limit it has only the strictest answer.
    pub whole: Verdict,
    /// One for each descriptor, in their order.
    pub members: Vec<Verdict>,
}

impl DescriptorVerdicts {
    /// The verdicts on a plan. `decisions` has one for each charge, `None` where the store gave none, for limits that
    /// `unanswered` names.
    pub fn new(rules: &Rules, plan: &JointPlan, decisions: &[Option<Decision>], unanswered: Vec<Unanswered>) -> Self {
        let mut members: Vec<Verdict> =
            plan.members.iter().map(|member| member_verdict(member, &plan.charges, decisions)).collect();
        settle_quotas(rules, plan, &mut members);
        let mut answers: Vec<Answer> = members.iter().flat_map(|verdict| &verdict.answers).copied().collect();
        // The strictest answer of each window stays.
        answers.sort_by(|a, b| {
            (a.limit, a.window).cmp(&(b.limit, b.window)).then_with(|| b.decision.strictness(&a.decision))
        });
        answers.dedup_by_key(|answer| (answer.limit, answer.window));
        Self { whole: Verdict::of(&[], answers).unanswered(unanswered), members }
    }
}

/// Denies by the quotas that are exceeded if all are, and allows if one is not.
fn settle_quotas(rules: &Rules, plan: &JointPlan, members: &mut [Verdict]) {
    let is_exceeded = |answer: &Answer| rules.is_quota(answer.limit) && answer.is_short();
    let mut quotas = plan.members.iter().zip(&*members).filter(|(member, _)| member.is_quota);
    let all_exceeded = quotas.all(|(_, verdict)| verdict.answers.iter().any(is_exceeded));
    for verdict in members {
        let mut is_changed = false;
        for answer in verdict.answers.iter_mut().filter(|answer| is_exceeded(answer)) {
            is_changed = true;
            if all_exceeded {
                answer.decision.outcome = Outcome::Denied;
            } else {
                answer.enforced = false;
            }
        }
        if is_changed {
            *verdict = Verdict::of(&[], std::mem::take(&mut verdict.answers));
        }
    }
}

fn member_verdict(member: &DescriptorPlan, charges: &[Charge], decisions: &[Option<Decision>]) -> Verdict {
    let answer = |asked: &DescriptorCharge| {
        let decision = *decisions.get(asked.charge as usize)?.as_ref()?;
        let ChargeOrigin { limit, window, enforced } = asked.origin;
        // The burst of a decision shows which numbers were in force.
        let elevated = charges.get(asked.charge as usize).and_then(Charge::elevated);
        let elevated = elevated.filter(|_| decision.limit != asked.numbers.burst());
        let numbers = Some(elevated.map_or(asked.numbers, |elevated| elevated.numbers));
        let fingerprint = Some(asked.fingerprint);
        Some(Answer { limit, window, numbers, cost: asked.cost, decision, enforced, fingerprint })
    };
    Verdict::of(&member.denials, member.charges.iter().filter_map(answer).collect())
}
