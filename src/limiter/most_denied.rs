//! The ids of denials, for the list of those that are denied most.

use std::time::Instant;

use smallvec::SmallVec;

use super::View;
use crate::engine::algorithms::charge::Bucket;
use crate::engine::charging::plan::Plan;
use crate::engine::deciding::verdict::LimitDecision;
use crate::engine::limit::key::plain;
use crate::telemetry::denials::{IdFormat, half};
use crate::telemetry::most_denied::DenialKind;

impl View {
    /// Counts the ids whose buckets are short in these answers of one limit, each once.
    #[cold]
    pub(super) fn count_ids(&self, kind: DenialKind, answers: &[LimitDecision], plan: &Plan, at: Instant) {
        let Some(limit) = answers.first().map(|answer| answer.limit) else { return };
        let (ids, rules) = (self.snapshot.denials.ids(), self.rules());
        let (Some(hint), Some(limit)) = (self.denied_places.get(limit as usize), rules.limit(limit)) else { return };
        let is_global = limit.by.is_empty() && !std::ptr::eq(limit, rules.carried().1);
        if ids == IdFormat::None || is_global {
            return;
        }
        let mut counted = SmallVec::<[u64; 4]>::new();
        for answer in answers.iter().filter(|answer| answer.is_short()) {
            let charge = plan.charges.iter().find(|charge| Some(charge.bucket.fingerprint) == answer.fingerprint);
            let Some(Bucket { key, fingerprint, .. }) = charge.map(|charge| &charge.bucket) else { continue };
            let (key, fingerprint) = plain(key, *fingerprint, &rules.fingerprinter);
            let id = half(fingerprint);
            if !counted.contains(&id) {
                counted.push(id);
                self.denied.add(&limit.name, hint, kind, at, id, || key.into());
            }
        }
    }
}
