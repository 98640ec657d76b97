//! The rules in force, as one worker sees them, and what it counts of their decisions.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use smallvec::SmallVec;

use super::denials::Denial;
use super::new_keys::NewKeyCount;
use super::shared::Snapshot;
use crate::engine::algorithms::micros::Micros;
use crate::engine::charging::plan::Plan;
use crate::engine::deciding::candidate::CandidateDecision;
use crate::engine::deciding::verdict::{LimitDecision, Verdict, VerdictKind};
use crate::engine::limit::rules::Rules;
use crate::telemetry::metrics::{
    CandidateResult, CandidateTallies, DecisionResult, LimitTallies, Metrics, SettlementMetrics,
};
use crate::telemetry::most_denied::{DenialKind, PlaceHint, WorkerDenials};

/// A worker's share of the rules in force. An `Arc` or an atomic counter that all workers write would move its cache line
/// between cores with every request. All lists are in the order of the rules.
pub struct View {
    pub(super) snapshot: Arc<Snapshot>,
    metrics: Arc<Metrics>,
    limits: Vec<LimitTallies>,
    candidates: Vec<Vec<CandidateTallies>>,
    pub(super) new_keys: Vec<NewKeyCount>,
    /// Denials without a line in the log.
    pub(super) suppressed: Vec<Cell<u64>>,
    pub(super) denied: Arc<WorkerDenials>,
    pub(super) denied_places: Vec<PlaceHint>,
}

impl View {
    pub(super) fn new(snapshot: &Arc<Snapshot>, metrics: &Arc<Metrics>, denied: &Arc<WorkerDenials>) -> Rc<Self> {
        let limits = snapshot.limits.iter().map(|_| LimitTallies::default()).collect();
        let candidates = snapshot.candidates.iter();
        let candidates = candidates.map(|all| all.iter().map(|_| CandidateTallies::default()).collect()).collect();
        let new_keys = snapshot.limits.iter().map(|_| NewKeyCount::default()).collect();
        let suppressed = snapshot.limits.iter().map(|_| Cell::default()).collect();
        let denied_places = snapshot.limits.iter().map(|_| PlaceHint::default()).collect();
        let (snapshot, metrics, denied) = (snapshot.clone(), metrics.clone(), denied.clone());
        Rc::new(Self { snapshot, metrics, limits, candidates, new_keys, suppressed, denied, denied_places })
    }

    pub fn rules(&self) -> &Rules {
        &self.snapshot.rules
    }

    pub(super) fn settlements(&self, limit: u32) -> Option<&SettlementMetrics> {
        self.snapshot.settlements.get(limit as usize)?.as_ref()
    }

    pub(super) fn count(&self, limit: u32, result: DecisionResult) {
        let place = limit as usize;
        if let (Some(tallies), Some(limit)) = (self.limits.get(place), self.snapshot.limits.get(place)) {
            tallies.count(&self.metrics, limit, result);
        }
    }

    fn count_candidate(&self, decision: &CandidateDecision<'_>, result: CandidateResult) {
        let (limit, candidate) = (decision.limit as usize, usize::from(decision.candidate));
        let tallies = self.candidates.get(limit).and_then(|tallies| tallies.get(candidate));
        let metrics = self.snapshot.candidates.get(limit).and_then(|metrics| metrics.get(candidate));
        if let (Some(tallies), Some(metrics)) = (tallies, metrics) {
            tallies.count(&self.metrics, metrics, result);
        }
    }

    /// Counts each limit of the plan once, however many windows or buckets it has. Returns the denials to be logged. `at` is when the
    /// request arrived.
    pub(super) fn count_verdict(&self, verdict: &Verdict, plan: &Plan, at: (Instant, Micros)) -> Vec<Denial> {
        let mut denials = Vec::new();
        let mut count = |limit, result| {
            self.count(limit, result);
            if matches!(result, DecisionResult::Denied | DecisionResult::ShadowDenied | DecisionResult::ErrorDenied) {
                denials.extend(self.sample_denial(limit, result, at.0));
            }
        };
        for windows in verdict.answers.chunk_by(|a, b| a.limit == b.limit) {
            let Some(first) = windows.first() else { continue };
            let result = if windows.iter().any(LimitDecision::would_deny) {
                self.count_ids(DenialKind::Shadow, windows, plan, at);
                DecisionResult::ShadowDenied
            } else if windows.iter().any(|answer| answer.decision.is_denied()) {
                self.count_ids(DenialKind::Denied, windows, plan, at);
                DecisionResult::Denied
            } else if verdict.is_allowed() {
                let waits = windows.iter().any(|answer| answer.is_enforced() && answer.decision.delay > 0);
                if waits { DecisionResult::Delayed } else { DecisionResult::Allowed }
            } else {
                DecisionResult::Uncharged
            };
            count(first.limit, result);
        }
        for unanswered in &verdict.unanswered {
            let result = match unanswered.denies {
                _ if verdict.kind == VerdictKind::Overloaded => DecisionResult::Rejected,
                true => DecisionResult::ErrorDenied,
                false if verdict.is_allowed() => DecisionResult::ErrorAllowed,
                false => DecisionResult::Uncharged,
            };
            count(unanswered.limit, result);
        }
        for decision in verdict.candidate_decisions() {
            if decision.is_denied {
                self.count_ids(DenialKind::Candidate, decision.windows, plan, at);
                self.count_candidate(&decision, CandidateResult::Denied);
            } else if verdict.is_allowed() || verdict.is_denied_only_by(decision.limit) {
                self.count_candidate(&decision, CandidateResult::Allowed);
            }
        }
        if !verdict.is_allowed() {
            self.count_uncharged(verdict, plan);
        }
        self.name_ids(&mut denials, verdict, &plan.charges);
        denials
    }

    /// Counts the limits of a plan that the verdict says nothing about.
    fn count_uncharged(&self, verdict: &Verdict, plan: &Plan) {
        let mut counted = SmallVec::<[u32; 8]>::new();
        for limit in plan.charges.iter().map(|charge| charge.origin.limit) {
            let is_answered = verdict.answers.iter().any(|answer| answer.limit == limit)
                || verdict.unanswered.iter().any(|unanswered| unanswered.limit == limit);
            if !is_answered && !counted.contains(&limit) {
                counted.push(limit);
                self.count(limit, DecisionResult::Uncharged);
            }
        }
    }
}
