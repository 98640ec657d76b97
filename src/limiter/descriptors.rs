//! From the descriptors of a rate limit service to their verdicts.

use std::rc::Rc;
use std::time::Instant;

use super::denials::Refusal;
use super::{Limiter, View};
use crate::engine::algorithms::charge::{Charge, Decision};
use crate::engine::algorithms::numbers::Micros;
use crate::engine::answer::descriptors::DescriptorVerdicts;
use crate::engine::answer::verdict::{Standing, Unanswered};
use crate::engine::rules::descriptors::{DescriptorMode, DescriptorRequest, JointPlan};
use crate::engine::rules::limit::StoreErrorPolicy;
use crate::engine::rules::plan::InvalidInput;
use crate::store::{Batch, StoreError};
use crate::telemetry::metrics::{DecisionListener, DecisionResult};

/// What becomes of each descriptor, and the rules that it speaks of.
pub struct JudgedDescriptors {
    /// The rules that were in force.
    pub snapshot: Rc<View>,
    /// What was asked of the store.
    pub plans: JointPlan,
    /// What came of it.
    pub verdicts: DescriptorVerdicts,
    /// Whether a limit names the domain.
    pub knows_domain: bool,
    /// What is to be logged of a refusal.
    pub(super) refusals: Vec<Refusal>,
}

impl Limiter {
    /// Decides all descriptors of a question in one call of the store: if one is refused, nothing is charged for any.
    ///
    /// Waits, times and fails as [`Self::judge_until`] does.
    pub async fn judge_descriptors(
        &self,
        question: &DescriptorRequest<'_>,
        start: Instant,
        deadline: Option<Instant>,
    ) -> Result<JudgedDescriptors, InvalidInput> {
        let snapshot = self.view();
        let mut plans = snapshot.rules().plan(question, self.blocks().as_deref())?;
        if let Some(recent) = &self.recent {
            for asked in plans.members.iter().flat_map(|member| &member.charges) {
                let place = (asked.charge as usize, asked.origin.limit);
                self.bound_new(recent, &snapshot, &mut plans.charges, place, question.now);
            }
            plans.rebind();
        }
        for limit in plans.members.iter().flat_map(|member| &member.unlimited) {
            if question.purpose != DescriptorMode::Report {
                snapshot.count(*limit, DecisionResult::Unlimited);
            }
        }
        let effective_from = snapshot.rules().effective_from();
        let mut is_overloaded = false;
        let (decisions, unanswered) = if plans.charges.is_empty() {
            (Vec::new(), Vec::new())
        } else {
            match self.ask_plans(&plans, effective_from, question.now, deadline).await {
                Ok(decisions) => (decisions, Vec::new()),
                // A limit refuses in any case, and nothing was to be charged.
                Err(error) if plans.is_denied => {
                    self.failed(&error);
                    (Vec::new(), Vec::new())
                }
                Err(error) => {
                    is_overloaded = matches!(error, StoreError::Busy { .. }) && is_enforced(&plans);
                    self.descriptors_without_store(&snapshot, &plans, question.now, &error)
                }
            }
        };
        let mut verdicts = DescriptorVerdicts::new(snapshot.rules(), &plans, &decisions, unanswered);
        if is_overloaded {
            verdicts.whole.standing = Standing::Overloaded;
        }
        let mut refusals = Vec::new();
        // What tells of a request that is over is no decision about it.
        if question.purpose != DescriptorMode::Report {
            snapshot.count_verdict(&verdicts.whole, start, &mut refusals);
            snapshot.count_uncharged(&verdicts.whole, plans.asked_limits());
            snapshot.name(&mut refusals, &verdicts.whole, &plans.charges);
        }
        self.took(DecisionListener::RateLimit, start);
        let knows_domain = snapshot.rules().knows_domain(question.domain);
        Ok(JudgedDescriptors { snapshot, plans, verdicts, knows_domain, refusals })
    }

    /// Asks the store for the decisions, and has it take what is reported in the same call.
    async fn ask_plans(
        &self,
        plans: &JointPlan,
        effective_from: Micros,
        now: Micros,
        deadline: Option<Instant>,
    ) -> Result<Vec<Option<Decision>>, StoreError> {
        let batch = Batch { charges: &plans.charges, effective_from, now };
        if plans.reported.is_empty() {
            let decided = self.ask(&batch, deadline).await?;
            return Ok(plans.decisions(decided.into_iter().map(Some).collect(), &[]));
        }
        let reported = Batch { charges: &plans.reported, ..batch };
        let mut decided = self.ask_in_turn(&[batch, reported], deadline).await?.into_iter();
        let mut next = || decided.next().unwrap_or_default().into_iter().map(Some).collect::<Vec<_>>();
        let (decided, taken) = (next(), next());
        Ok(plans.decisions(decided, &taken))
    }

    /// The decisions of limits that say `on_store_error: local`, and what the others say.
    fn descriptors_without_store(
        &self,
        snapshot: &View,
        plans: &JointPlan,
        now: Micros,
        error: &StoreError,
    ) -> (Vec<Option<Decision>>, Vec<Unanswered>) {
        self.failed(error);
        let is_overloaded = matches!(error, StoreError::Busy { .. }) && is_enforced(plans);
        let policy =
            |limit: u32| snapshot.rules().limit(limit).map_or(StoreErrorPolicy::Allow, |limit| limit.on_store_error);
        let mut unanswered: Vec<Unanswered> = Vec::new();
        let mut is_local = vec![false; plans.charges.len()];
        for asked in plans.members.iter().flat_map(|member| &member.charges) {
            let limit = asked.origin.limit;
            let policy = if is_overloaded { StoreErrorPolicy::Deny } else { policy(limit) };
            if let Some(local) = is_local.get_mut(asked.charge as usize) {
                *local = policy == StoreErrorPolicy::Local;
            }
            if policy != StoreErrorPolicy::Local && unanswered.iter().all(|known| known.limit != limit) {
                let refuses = asked.origin.enforced && policy == StoreErrorPolicy::Deny;
                unanswered.push(Unanswered { limit, refuses });
            }
        }
        let pairs = || plans.charges.iter().zip(&is_local);
        let local = || pairs().filter(|(_, local)| **local).map(|(charge, _)| charge);
        if unanswered.iter().any(|limit| limit.refuses) {
            // A request that is denied anyway must not be charged locally.
            self.count_denied(snapshot, local(), now, true);
            return (Vec::new(), unanswered);
        }
        let charges: Vec<Charge> = local().cloned().collect();
        // A report is of a bucket among the charges.
        let is_local = |report: &Charge| charges.iter().any(|charge| charge.bucket == report.bucket);
        let reported: Vec<Charge> = plans.reported.iter().filter(|report| is_local(report)).cloned().collect();
        let effective_from = snapshot.rules().effective_from();
        let batches = [&charges, &reported].map(|charges| Batch { charges, effective_from, now });
        let mut decided = self.shared.local.decide_in_turn(&batches).unwrap_or_default().into_iter();
        let mut next = |charges: &[Charge]| {
            let mut decided = decided.next().unwrap_or_default().into_iter();
            charges.iter().map(|charge| if is_local(charge) { decided.next() } else { None }).collect::<Vec<_>>()
        };
        let (decided, taken) = (next(&plans.charges), next(&plans.reported));
        (plans.decisions(decided, &taken), unanswered)
    }
}

/// True if a limit that was to be charged is enforced.
fn is_enforced(plans: &JointPlan) -> bool {
    plans.members.iter().flat_map(|member| &member.charges).any(|asked| asked.origin.enforced)
}
