//! The verdicts on several descriptors that were decided together.

use smallvec::SmallVec;

use crate::engine::algorithms::charge::{Charge, ChargeOrigin, Role};
use crate::engine::algorithms::decision::{Decision, Decisions, Detail, Outcome};
use crate::engine::charging::joint_plan::{DescriptorCharge, DescriptorPlan, JointPlan};
use crate::engine::charging::plan::Plan;
use crate::engine::deciding::verdict::{LimitDecision, Verdict};
use crate::engine::limit::rules::Rules;

/// The verdicts of one call to the rate limit service.
#[derive(Debug)]
pub struct DescriptorVerdicts {
    /// The verdict on the request. It has one answer for each window of a limit, the strictest.
    pub whole: Verdict,
    /// One for each descriptor, in their order.
    pub members: Vec<DescriptorVerdict>,
}

/// The verdict on one descriptor.
#[derive(Debug)]
pub struct DescriptorVerdict {
    pub verdict: Verdict,
    /// Limits that allow it without the store.
    pub unlimited: SmallVec<[u32; 1]>,
}

impl DescriptorVerdicts {
    /// `decisions` are those of the plan's charges; empty if the store was not asked.
    pub fn new(rules: &Rules, plan: &Plan, joint: &JointPlan, decisions: &Decisions) -> Self {
        let verdict = |member: &DescriptorPlan| {
            let verdict = member_verdict(member, &plan.charges, decisions);
            DescriptorVerdict { verdict, unlimited: member.unlimited.clone() }
        };
        let mut members: Vec<DescriptorVerdict> = joint.members.iter().map(verdict).collect();
        settle_quotas(rules, joint, &mut members);
        let mut answers: Vec<LimitDecision> =
            members.iter().flat_map(|member| &member.verdict.answers).cloned().collect();
        strictest_of_each_window(&mut answers);
        let mut candidates: Vec<LimitDecision> =
            members.iter().flat_map(|member| &member.verdict.candidates).cloned().collect();
        strictest_of_each_window(&mut candidates);
        let details = Verdict::details_of(plan, decisions).filter(|(_, detail)| matches!(detail, Detail::Counted(_)));
        let whole = Verdict { details: details.collect(), ..Verdict::of(&[], answers) };
        Self { whole: whole.with_candidates(candidates), members }
    }
}

fn strictest_of_each_window(answers: &mut Vec<LimitDecision>) {
    // One id of a limit may be in shadow and another enforced.
    let window = |answer: &LimitDecision| (answer.limit, answer.role.candidate(), answer.window);
    answers.sort_by(|a, b| window(a).cmp(&window(b)).then_with(|| b.decision.strictness(&a.decision)));
    answers.dedup_by_key(|answer| window(answer));
}

/// Denies the request if all quotas are exceeded; otherwise the exceeded ones do not count.
fn settle_quotas(rules: &Rules, joint: &JointPlan, members: &mut [DescriptorVerdict]) {
    let is_exceeded = |answer: &LimitDecision| rules.is_quota(answer.limit) && answer.is_short();
    let mut quotas = joint.members.iter().zip(&*members).filter(|(member, _)| member.is_quota);
    let all_exceeded = quotas.all(|(_, given)| given.verdict.answers.iter().any(is_exceeded));
    for DescriptorVerdict { verdict, .. } in members {
        let mut is_changed = false;
        for answer in verdict.answers.iter_mut().filter(|answer| is_exceeded(answer)) {
            is_changed = true;
            if all_exceeded {
                answer.decision.outcome = Outcome::Denied;
            } else {
                answer.role = Role::Shadow;
            }
        }
        if is_changed {
            let candidates = std::mem::take(&mut verdict.candidates);
            *verdict = Verdict::of(&[], std::mem::take(&mut verdict.answers)).with_candidates(candidates);
        }
    }
}

fn member_verdict(member: &DescriptorPlan, charges: &[Charge], decisions: &[Decision]) -> Verdict {
    let answer = |charge: &DescriptorCharge| {
        let decision = *decisions.get(charge.charge as usize)?;
        let ChargeOrigin { limit, window, role, .. } = charge.origin;
        // The burst in the decision shows which numbers were in force.
        let elevated = charges.get(charge.charge as usize).and_then(Charge::elevated);
        let elevated = elevated.filter(|_| decision.limit != charge.numbers.burst());
        let numbers = Some(elevated.map_or(&charge.numbers, |elevated| &elevated.numbers).clone());
        let fingerprint = Some(charge.fingerprint);
        Some(LimitDecision { limit, window, numbers, cost: charge.cost, decision, role, fingerprint })
    };
    let answers = |is_candidate: bool| {
        let charges = member.charges.iter().filter(move |charge| charge.origin.is_candidate() == is_candidate);
        charges.filter_map(answer).collect()
    };
    Verdict::of(&member.denials, answers(false)).with_candidates(answers(true))
}
