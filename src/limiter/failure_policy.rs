//! The decision without an answer from the store: each limit's `on_store_error`, or rejection if the store is overloaded.

use std::time::Instant;

use super::slots::HeldSlots;
use super::{Limiter, View};
use crate::engine::algorithms::charge::ChargeOrigin;
use crate::engine::algorithms::decision::Decisions;
use crate::engine::algorithms::micros::Micros;
use crate::engine::answer::verdict::{Unanswered, Verdict};
use crate::engine::rules::limit::StoreErrorPolicy;
use crate::engine::rules::plan::Plan;
use crate::store::StoreError;

/// The failure policy's part of a verdict.
#[derive(Debug, Default)]
pub(super) struct Failure {
    unanswered: Vec<Unanswered>,
    is_overload: bool,
}

impl Failure {
    pub(super) fn apply(self, verdict: Verdict) -> Verdict {
        if self.is_overload { verdict.overloaded(self.unanswered) } else { verdict.unanswered(self.unanswered) }
    }

    fn add(&mut self, origin: &ChargeOrigin, policy: StoreErrorPolicy) {
        let denies = origin.enforced && policy == StoreErrorPolicy::Deny;
        match self.unanswered.iter_mut().find(|known| known.limit == origin.limit) {
            Some(known) => known.denies |= denies,
            None => self.unanswered.push(Unanswered { limit: origin.limit, denies }),
        }
    }

    fn denies(&self) -> bool {
        self.unanswered.iter().any(|limit| limit.denies)
    }
}

impl Limiter {
    /// Decides by each limit's `on_store_error`. Returns the decisions of limits with `local`; only those stay in the plan,
    /// unless another limit denies the request. If the local memory cannot decide, either, they allow it, as limits do by default.
    #[cold]
    pub(super) fn without_store(
        &self,
        view: &View,
        plan: &mut Plan,
        now: Micros,
        error: &StoreError,
        mut slots: Option<&mut HeldSlots>,
    ) -> (Decisions, Failure) {
        self.note_failure(error);
        if let Some(slots) = &mut slots {
            slots.unanswered(error);
        }
        let mut failure = Failure::default();
        if plan.joint.as_ref().is_some_and(|joint| joint.is_denied) {
            // A limit denies the request without the store, and nothing was to be charged.
            return (Decisions::default(), failure);
        }
        // With `on_store_error: allow`, a flood could switch limits off.
        failure.is_overload =
            matches!(error, StoreError::Busy { .. }) && plan.charges.iter().any(|charge| charge.origin.enforced);
        let is_overload = failure.is_overload;
        let policy = |origin: &ChargeOrigin| match view.rules().limit(origin.limit) {
            _ if is_overload => StoreErrorPolicy::Deny,
            Some(limit) => limit.on_store_error,
            None => StoreErrorPolicy::Allow,
        };
        let is_local = |origin: &ChargeOrigin| policy(origin) == StoreErrorPolicy::Local;
        for charge in plan.charges.iter().filter(|charge| !is_local(&charge.origin)) {
            failure.add(&charge.origin, policy(&charge.origin));
        }
        if failure.denies() {
            // A request that is denied anyway must not be charged locally.
            let charges = plan.charges.iter().filter(|charge| is_local(&charge.origin));
            self.count_denied(view, charges, now, true);
            return (Decisions::default(), failure);
        }
        plan.retain(|charge| is_local(&charge.origin));
        let decisions = match self.ask_local(view, plan, now) {
            Ok(decisions) => decisions,
            Err(error) => {
                // Nothing is left that could decide these limits.
                self.note_failure(&error);
                plan.charges.iter().for_each(|charge| failure.add(&charge.origin, StoreErrorPolicy::Allow));
                plan.retain(|_| false);
                return (Decisions::default(), failure);
            }
        };
        if let Some(slots) = slots {
            slots.decided_locally(&plan.charges, &decisions, view.rules().effective_from);
        }
        (decisions, failure)
    }

    /// Counts the failure, and logs errors and overload. A lost connection is logged by the store's own task.
    pub(super) fn note_failure(&self, error: &StoreError) {
        self.shared.metrics.store.errors.inc(error.kind());
        let is_overload = matches!(error, StoreError::Busy { .. });
        if !is_overload {
            self.shared.store_failed(Instant::now());
        }
        if matches!(error, StoreError::Failed(_) | StoreError::Late(_))
            && let Some(suppressed) = self.failure_log.pass()
        {
            tracing::error!(suppressed, "no decision: {error}");
        }
        if is_overload && let Some(suppressed) = self.overload_log.pass() {
            tracing::warn!(suppressed, "rejecting requests: {error}");
        }
    }
}
