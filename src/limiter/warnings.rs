//! Warnings: the ids that have used most of what a limit with `warn_at` allows, or all of it.
//!
//! A decision queues what it sees, and nobody waits for the rest: one task of the process claims each warning in the store, so that of
//! all gateways one tells it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio_util::sync::CancellationToken;

use super::{Limiter, Shared, View};
use crate::engine::algorithms::charge::Charge;
use crate::engine::algorithms::decision::Decisions;
use crate::engine::algorithms::micros::Micros;
use crate::engine::charging::plan::Plan;
use crate::engine::deciding::verdict::{LimitDecision, Verdict};
use crate::engine::limit::Limit;
use crate::engine::limit::key::fingerprint_of;
use crate::engine::limit::warning::is_first;
use crate::engine::text::instant::rfc3339;
use crate::store::memory::MemoryStore;
use crate::store::{Batch, Store};
use crate::telemetry::metrics::WarningResult;

/// The most warnings that wait for the store.
const MOST_QUEUED: usize = 1_024;

/// The most warnings that this process notes where no remote store does.
const MOST_NOTES: usize = 1_000_000;

/// The warnings that a worker remembers to have queued, so that it does not ask the store about each request of an id.
const REMEMBERED: usize = 1_024;

/// The warnings of a process that wait for the store.
pub(super) struct WarningQueue {
    sender: Sender<NewWarning>,
    /// Until a [`Warner`] takes it.
    receiver: Mutex<Option<Receiver<NewWarning>>>,
    /// The claims that no remote store has taken. A table of its own, so that they take no bucket's place.
    notes: MemoryStore,
    /// Changes when an operator resets a bucket: its id may warn again.
    forgotten: AtomicU64,
}

impl Default for WarningQueue {
    fn default() -> Self {
        let (sender, receiver) = mpsc::channel(MOST_QUEUED);
        let notes = MemoryStore::new(MOST_NOTES);
        Self { sender, receiver: Mutex::new(Some(receiver)), notes, forgotten: AtomicU64::default() }
    }
}

impl WarningQueue {
    /// Forgets claims here; `forgetting` resets them.
    pub(super) fn forget(&self, forgetting: &Batch<'_>) {
        let _ = self.notes.decide(forgetting);
        self.forgotten.fetch_add(1, Ordering::Release);
    }
}

/// A warning that other gateways may have reported.
struct NewWarning {
    warning: Warning,
    /// Of all shares that the id has reached; the last is that of the warning.
    claims: Vec<Charge>,
    /// The fingerprint of the id, for the log.
    fingerprint: u128,
    effective_from: Micros,
}

impl NewWarning {
    /// When the id may warn again: its claim ends, or its window.
    fn until(&self) -> Micros {
        let window = self.warning.resets_at.unwrap_or(Micros(u64::MAX));
        let claimed = self.claims.last().map_or(0, |claim| claim.numbers.period() / 1_000);
        if claimed == 0 { window } else { window.min(self.warning.at.after(Micros(claimed))) }
    }
}

/// What an id has used of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    pub limit: String,
    /// `Name:id`, as operators write it.
    bucket: String,
    /// The id alone.
    id: String,
    /// In percent: the highest share that the id has reached.
    share: u8,
    /// The tokens that the window or bucket holds, and those left.
    capacity: u64,
    remaining: u64,
    /// The numbers that hold, for people.
    numbers: String,
    /// False if the limit or the id is in shadow.
    enforced: bool,
    at: Micros,
    /// When the window ends or the bucket is full, unless that is never.
    resets_at: Option<Micros>,
}

/// The queued warnings of a worker, by the last digits of their buckets' fingerprints. A newer one takes the place of an older one.
#[derive(Default)]
pub(super) struct RecentWarnings {
    list: Vec<Recent>,
    /// That of the queue.
    forgotten: u64,
}

#[derive(Clone, Copy, Default)]
struct Recent {
    fingerprint: u128,
    share: u8,
    until: Micros,
}

impl RecentWarnings {
    fn has(&self, fingerprint: u128, share: u8, now: Micros) -> bool {
        let recent = self.list.get(Self::place(fingerprint));
        recent.is_some_and(|it| it.fingerprint == fingerprint && it.share >= share && it.until > now)
    }

    fn add(&mut self, recent: Recent) {
        self.list.resize(REMEMBERED, Recent::default());
        if let Some(place) = self.list.get_mut(Self::place(recent.fingerprint)) {
            *place = recent;
        }
    }

    /// Forgets all if an operator has reset a bucket.
    fn follow(&mut self, queue: &WarningQueue) {
        let forgotten = queue.forgotten.load(Ordering::Acquire);
        if std::mem::replace(&mut self.forgotten, forgotten) != forgotten {
            self.list.clear();
        }
    }

    fn place(fingerprint: u128) -> usize {
        usize::try_from(fingerprint % REMEMBERED as u128).unwrap_or_default()
    }
}

impl Limiter {
    /// Counts the requests of ids that have reached a share of `warn_at`, and queues their warnings.
    #[inline]
    pub(super) fn warn(&self, view: &View, plan: &Plan, verdict: &Verdict, now: Micros) {
        if view.rules().has_warnings {
            self.warn_of(view, plan, verdict, now);
        }
    }

    #[cold]
    fn warn_of(&self, view: &View, plan: &Plan, verdict: &Verdict, now: Micros) {
        let mut counted = None;
        let mut recent = self.warned.borrow_mut();
        recent.follow(&self.shared.warnings);
        for answer in &verdict.answers {
            let Some(limit) = view.rules().limit(answer.limit) else { continue };
            let near = view.rules().near_limit.as_ref().filter(|_| limit.rule.is_some());
            let warn_at = limit.warn_at.as_ref().or(near);
            let reached = warn_at.map(|warn_at| warn_at.reached(&answer.decision)).unwrap_or_default();
            let Some(share) = reached.last() else { continue };
            if answer.decision.is_allowed() && verdict.is_allowed() && counted != Some(answer.limit) {
                counted = Some(answer.limit);
                self.shared.metrics.count_near(&limit.name);
            }
            let Some(fingerprint) = answer.fingerprint.filter(|_| limit.warn_at.is_some()) else { continue };
            if recent.has(fingerprint, *share, now) {
                continue;
            }
            let Some(new) = new_warning(view, plan, (answer, limit), *share, now) else { continue };
            let until = new.until();
            match self.shared.warnings.sender.try_send(new) {
                Ok(()) => recent.add(Recent { fingerprint, share: *share, until }),
                Err(_) => self.shared.metrics.count_warning(&limit.name, WarningResult::Dropped),
            }
        }
    }
}

fn new_warning(
    view: &View,
    plan: &Plan,
    (answer, limit): (&LimitDecision, &Limit),
    share: u8,
    now: Micros,
) -> Option<NewWarning> {
    let claims = answer.warning(limit, plan)?;
    let key = answer.bucket(plan)?.key.split('#').next().unwrap_or_default();
    let warning = Warning {
        limit: limit.name.clone(),
        bucket: limit.name_of_bucket(key),
        id: if limit.by.is_empty() { String::new() } else { limit.id_in(key) },
        share,
        capacity: answer.decision.limit,
        remaining: answer.decision.remaining,
        numbers: answer.numbers.as_ref()?.to_string(),
        enforced: answer.is_enforced(),
        at: now,
        resets_at: answer.decision.reset_after.map(|span| now.after(span)),
    };
    let rules = view.rules();
    let fingerprint = fingerprint_of(key, &rules.fingerprinter);
    Some(NewWarning { warning, claims, fingerprint, effective_from: rules.effective_from })
}

/// Reports the warnings that no other gateway has reported. There is one in a process.
pub struct Warner {
    shared: Arc<Shared>,
    store: Store,
    receiver: Receiver<NewWarning>,
}

impl Warner {
    /// `None` if the process has one.
    pub fn new(shared: &Arc<Shared>, store: Store) -> Option<Self> {
        let receiver = shared.warnings.receiver.lock().take()?;
        Some(Self { shared: shared.clone(), store, receiver })
    }

    /// Waits for a warning that no other gateway reports, counts it and logs it. `None` once `closing` is cancelled and the queue is empty.
    /// Dropping the future loses a warning that is being claimed.
    pub async fn next(&mut self, closing: &CancellationToken) -> Option<Warning> {
        loop {
            let new = self.receive(closing).await?;
            let is_first = self.claim(&new).await;
            let NewWarning { warning, fingerprint, .. } = new;
            match is_first {
                Some(true) => self.shared.metrics.count_warning(&warning.limit, WarningResult::Warned),
                Some(false) => continue,
                None => {
                    self.shared.metrics.count_warning(&warning.limit, WarningResult::Dropped);
                    continue;
                }
            }
            let id = self.shared.denial_log.ids.id(|| Some((warning.id.clone(), fingerprint)), None);
            let Warning { limit, share, capacity, remaining, numbers, enforced, .. } = &warning;
            let id = id.unwrap_or_default();
            tracing::info!(
                limit,
                id,
                capacity,
                remaining,
                numbers,
                enforced,
                "an id has used {share}% of what the limit allows"
            );
            return Some(warning);
        }
    }

    async fn receive(&mut self, closing: &CancellationToken) -> Option<NewWarning> {
        loop {
            tokio::select! {
                new = self.receiver.recv() => return new,
                () = closing.cancelled(), if !self.receiver.is_closed() => self.receiver.close(),
            }
        }
    }

    /// Claims the warning. Returns whether it is the first; `None` if there is no room for another note. A store that fails is replaced
    /// by this process' notes: several gateways may warn then, but none is silent.
    async fn claim(&self, new: &NewWarning) -> Option<bool> {
        let batch = [Batch { charges: &new.claims, effective_from: new.effective_from, now: new.warning.at }];
        if self.store.is_remote()
            && let Ok(claimed) = self.store.decide_in_turn(&batch).await
        {
            return Some(is_first(&claimed));
        }
        let notes = &self.shared.warnings.notes;
        // Beyond the bound, claims share a bucket.
        let shared = notes.usage().overflowed;
        let claimed = notes.decide_in_turn(&batch).map(Decisions::joined).ok()?;
        (notes.usage().overflowed == shared).then(|| is_first(&claimed))
    }
}

impl Warning {
    /// The members that webhooks bring.
    pub fn data(&self) -> Value {
        json!({
            "limit": self.limit,
            "id": self.id,
            "bucket": self.bucket,
            "warn_at_percent": self.share,
            "capacity": self.capacity,
            "remaining": self.remaining,
            "allows": self.numbers,
            "enforced": self.enforced,
            "resets_at": self.resets_at.map(rfc3339),
        })
    }

    /// When the id reached the share, as RFC 3339 text.
    pub fn at(&self) -> String {
        rfc3339(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::algorithms::algorithm::Aligned;
    use crate::engine::algorithms::charge::Bucket;
    use crate::engine::algorithms::numbers::Numbers;
    use crate::engine::limit::warning::claims;

    #[test]
    fn an_id_may_warn_again_when_its_claim_or_its_window_ends() {
        let second = 1_000_000_000;
        let until = |numbers: Numbers, reset_after: Option<u64>| {
            let claims = claims(&[100], &Bucket::new("L:a", 1), &numbers).unwrap();
            let warning = Warning {
                limit: "L".into(),
                bucket: "L:a".into(),
                id: "a".into(),
                share: 100,
                capacity: 1,
                remaining: 0,
                numbers: String::new(),
                enforced: true,
                at: Micros(5),
                resets_at: reset_after.map(|span| Micros(5 + span)),
            };
            NewWarning { warning, claims, fingerprint: 1, effective_from: Micros(0) }.until().0
        };
        // Such a bucket is full only after two windows.
        assert_eq!(until(Numbers::sliding_window(4, second, false).unwrap(), Some(2_000_000)), 1_000_005);
        assert_eq!(until(Numbers::fixed_window(4, 4, second, Aligned::Clock).unwrap(), Some(300_000)), 300_005);
        assert_eq!(until(Numbers::fixed(4).unwrap(), None), u64::MAX);
    }
}
