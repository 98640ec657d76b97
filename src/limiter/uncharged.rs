//! Limits beside one that denies a request by itself or for want of a store: they are not asked, and are counted all the
//! same.

use smallvec::SmallVec;

use super::settlement::Job;
use super::{Limiter, View};
use crate::engine::algorithms::charge::{Charge, Mode};
use crate::engine::algorithms::numbers::Micros;
use crate::engine::answer::verdict::Verdict;
use crate::telemetry::metrics::DecisionResult;

impl Limiter {
    /// Counts a denied request in those of these buckets that count denied requests. The answer does not depend on it, so
    /// nobody waits for it. `is_local` is whether the buckets are those that stand in for the store.
    pub(super) fn count_denied<'c>(
        &self,
        snapshot: &View,
        charges: impl Iterator<Item = &'c Charge>,
        now: Micros,
        is_local: bool,
    ) {
        let counting = charges.filter(|charge| charge.counts_denied());
        let charges: Vec<Charge> = counting.map(|charge| Charge { mode: Mode::SpendOnly, ..charge.clone() }).collect();
        if !charges.is_empty() {
            let effective_from = snapshot.rules().effective_from();
            self.settler.run(Job { charges, effective_from, now, counters: Vec::new() }, is_local);
        }
    }
}

impl View {
    /// Counts those of the `asked` limits that a verdict has no answer of: each once, however many buckets it has.
    pub(super) fn count_uncharged(&self, verdict: &Verdict, asked: impl Iterator<Item = u32>) {
        if verdict.is_allowed() {
            return;
        }
        let mut counted = SmallVec::<[u32; 8]>::new();
        for limit in asked {
            let is_answered = verdict.answers.iter().any(|answer| answer.limit == limit)
                || verdict.unanswered.iter().any(|unanswered| unanswered.limit == limit);
            if !is_answered && !counted.contains(&limit) {
                counted.push(limit);
                self.count(limit, DecisionResult::Uncharged);
            }
        }
    }
}
