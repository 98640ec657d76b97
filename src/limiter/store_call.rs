//! The one call to the store, bounded by the store's timeout and the caller's deadline.

use std::time::Instant;

use tokio::time::timeout;

use super::decision_request::DecisionRequest;
use super::remembered_denials::{Call, gives_back};
use super::{Limiter, View};
use crate::engine::algorithms::charge::Charge;
use crate::engine::algorithms::decision::Decisions;
use crate::engine::algorithms::micros::Micros;
use crate::store::memory::MemoryStore;
use crate::store::{Batch, StoreError};

impl Limiter {
    /// Asks for the decisions of a round: those of its charges, then those of its reports.
    pub(super) async fn ask_store(
        &self,
        view: &View,
        round: [&[Charge]; 2],
        asked: &DecisionRequest<'_>,
    ) -> Result<Decisions, StoreError> {
        let batches = batches(view, round, asked.now());
        if let Some(memory) = self.store.as_memory() {
            return self.ask_memory(memory, &batches);
        }
        let [charges, reported] = &batches;
        if !reported.charges.is_empty() {
            // In a box, as few requests report.
            let decided = Box::pin(self.wait(self.store.decide_in_turn(&batches), asked.deadline)).await;
            if batches.iter().any(|batch| batch.charges.iter().any(gives_back)) {
                self.shared.give_back();
            }
            return decided;
        }
        let Batch { charges: plan, effective_from, now } = *charges;
        let given_back = self.shared.given_back();
        let call = Call { charges: plan, effective_from, asked: asked.start, now, given_back };
        if let Some(known) = self.recall(&call) {
            return Ok(known);
        }
        let decided = self.wait(self.store.decide(charges), asked.deadline).await;
        self.note_answer(&call, &decided);
        decided
    }

    fn ask_memory(&self, store: &MemoryStore, batches: &[Batch<'_>; 2]) -> Result<Decisions, StoreError> {
        let [charges, reported] = batches;
        if reported.charges.is_empty() {
            // A decision in memory takes less time than reading the clock twice; the decision's own time covers it.
            return store.decide(charges);
        }
        let asked = Instant::now();
        let decided = store.decide_in_turn(batches).map(Decisions::joined);
        self.shared.metrics.store.seconds.observe(asked.elapsed());
        decided
    }

    /// Asks the memory that replaces the store.
    pub(super) fn ask_local(&self, view: &View, round: [&[Charge]; 2], now: Micros) -> Result<Decisions, StoreError> {
        self.shared.local.decide_in_turn(&batches(view, round, now)).map(Decisions::joined)
    }

    /// Waits for the store, and times it.
    pub(super) async fn wait<T>(
        &self,
        answer: impl Future<Output = Result<T, StoreError>>,
        deadline: Option<Instant>,
    ) -> Result<T, StoreError> {
        let asked = Instant::now();
        let patience = deadline.map(|deadline| deadline.saturating_duration_since(asked));
        // Most callers wait longer than the store's timeout, and need no timer of their own.
        let decided = match patience.filter(|patience| *patience < self.store.timeout()) {
            Some(patience) => timeout(patience, answer).await.unwrap_or_else(|_| Err(self.store.late(patience))),
            None => answer.await,
        };
        self.shared.metrics.store.seconds.observe(asked.elapsed());
        if decided.is_ok() {
            self.answered.set(true);
        }
        decided
    }
}

fn batches<'p>(view: &View, round: [&'p [Charge]; 2], now: Micros) -> [Batch<'p>; 2] {
    let effective_from = view.rules().effective_from;
    round.map(|charges| Batch { charges, effective_from, now })
}
