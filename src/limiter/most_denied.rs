//! The ids of denials, for the lists of those that are denied most and of those that would be denied.

use std::time::Instant;

use smallvec::SmallVec;

use super::View;
use crate::engine::algorithms::charge::Bucket;
use crate::engine::algorithms::micros::Micros;
use crate::engine::charging::plan::Plan;
use crate::engine::deciding::verdict::LimitDecision;
use crate::engine::limit::key::plain;
use crate::telemetry::denials::{IdFormat, half};
use crate::telemetry::most_denied::{DenialKind, PlaceHint};

impl View {
    /// Counts the ids whose buckets are short in these answers of one limit, each once. `at` is when the request arrived.
    #[cold]
    pub(super) fn count_ids(&self, kind: DenialKind, answers: &[LimitDecision], plan: &Plan, at: (Instant, Micros)) {
        let Some(LimitDecision { limit: place, role, .. }) = answers.first() else { return };
        let (ids, rules) = (self.snapshot.denials.ids(), self.rules());
        let list = self.snapshot.would_deny.of(*place, kind, role.candidate());
        let (Some(hint), Some(limit)) = (self.denied_places.get(*place as usize), rules.limit(*place)) else { return };
        let candidate = role.candidate().and_then(|candidate| rules.candidate(*place, candidate));
        let label = candidate.map_or(limit.name.as_str().into(), |candidate| candidate.label(&limit.name));
        // The place of a named candidate is looked up: only counts that deny nobody pay for it.
        let own = PlaceHint::default();
        let hint = if candidate.is_some_and(|candidate| candidate.name.is_some()) { &own } else { hint };
        let is_global = limit.by.is_empty() && !std::ptr::eq(limit, rules.carried().1);
        if ids == IdFormat::None || is_global && list.is_none() {
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
                if let Some(list) = list {
                    list.add(id, at.1, || key.into());
                }
                if !is_global {
                    self.denied.add(&label, hint, kind, at.0, id, || key.into());
                }
            }
        }
        if let Some(list) = list.filter(|_| counted.is_empty()) {
            list.add_without_id();
        }
    }
}
