//! The decision without an answer from the store: each limit's `on_store_error`, or rejection if the store is overloaded.

use std::time::Instant;

use super::slots::HeldSlots;
use super::{Limiter, View};
use crate::engine::algorithms::micros::Micros;
use crate::engine::deciding::Deciding;
use crate::store::StoreError;
use crate::telemetry::metrics::StoreFailure;

impl Limiter {
    /// Decides by each limit's `on_store_error` where the store has decided nothing, those with `local` in memory. If that cannot decide,
    /// either, they allow the request, as limits do by default.
    #[cold]
    pub(super) fn decide_without_store(
        &self,
        view: &View,
        (deciding, mut slots): (&mut Deciding, Option<&mut HeldSlots>),
        now: Micros,
        error: StoreError,
    ) {
        self.note_failure(&error);
        if let Some(slots) = &mut slots {
            slots.unanswered(&deciding.plan.charges, &error);
        }
        let is_overloaded = matches!(error, StoreError::Busy { .. });
        let decided = match error {
            StoreError::Partial(partial) => Some((partial.decisions, partial.undecided)),
            _ => None,
        };
        if !deciding.unanswered(view.rules(), decided, is_overloaded) {
            return;
        }
        let Some(round) = deciding.round() else { return };
        match self.ask_local(view, round, now) {
            Ok(decisions) => {
                if let Some(slots) = slots {
                    slots.decided_locally(round[0], &decisions, view.rules().effective_from);
                }
                deciding.answered(decisions);
            }
            Err(error) => {
                self.note_failure(&error);
                deciding.undecided();
            }
        }
    }

    /// Counts the failure, and logs errors and overload. A lost connection is logged by the store's own task.
    pub(super) fn note_failure(&self, error: &StoreError) {
        self.shared.metrics.store.errors[failure(error)].inc();
        let is_overload = matches!(error, StoreError::Busy { .. });
        if !is_overload {
            self.shared.store_failed(Instant::now());
        }
        if matches!(error, StoreError::Failed(_) | StoreError::Late(_) | StoreError::Partial(_))
            && let Some(suppressed) = self.failure_log.pass()
        {
            tracing::error!(suppressed, "no decision: {error}");
        }
        if is_overload && let Some(suppressed) = self.overload_log.pass() {
            tracing::warn!(suppressed, "rejecting requests: {error}");
        }
    }
}

/// The error in metrics.
pub(super) const fn failure(error: &StoreError) -> StoreFailure {
    match error {
        StoreError::Down => StoreFailure::Down,
        StoreError::Broken => StoreFailure::Broken,
        StoreError::Busy { .. } => StoreFailure::Busy,
        StoreError::Late(_) => StoreFailure::Late,
        StoreError::Failed(_) => StoreFailure::Error,
        StoreError::Duplicate => StoreFailure::Duplicate,
        StoreError::Partial(partial) => failure(&partial.error),
    }
}
