//! Warnings: the ids that have used most of what a limit with `warn_at` allows, or all of it.
//!
//! A decision queues what it sees, and nobody waits for the rest: one task of the process claims each warning in the store, so that of
//! all gateways one tells it.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc::{self, Receiver, Sender};

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
use crate::store::{Batch, Store};
use crate::telemetry::metrics::WarningResult;

/// The most warnings that wait for the store.
const MOST_QUEUED: usize = 1_024;

/// The warnings that a worker remembers to have queued, so that it does not ask the store about each request of an id.
const REMEMBERED: usize = 1_024;

/// The warnings of a process that wait for the store.
pub(super) struct WarningQueue {
    sender: Sender<NewWarning>,
    /// Until a [`Warner`] takes it.
    receiver: Mutex<Option<Receiver<NewWarning>>>,
}

impl Default for WarningQueue {
    fn default() -> Self {
        let (sender, receiver) = mpsc::channel(MOST_QUEUED);
        Self { sender, receiver: Mutex::new(Some(receiver)) }
    }
}

/// A warning that other gateways may have told.
struct NewWarning {
    warning: Warning,
    /// Of all shares that the id has reached; the last is that of the warning.
    claims: Vec<Charge>,
    /// The fingerprint of the id, for the log.
    fingerprint: u128,
    effective_from: Micros,
}

/// What an id has used of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    pub limit: String,
    /// `Name:id`, as operators write it.
    pub bucket: String,
    /// The id alone.
    id: String,
    /// In percent: the highest share that the id has reached.
    pub share: u8,
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
pub(super) struct RecentWarnings(Vec<Recent>);

#[derive(Clone, Copy, Default)]
struct Recent {
    fingerprint: u128,
    share: u8,
    until: Micros,
}

impl RecentWarnings {
    fn has(&self, fingerprint: u128, share: u8, now: Micros) -> bool {
        let recent = self.0.get(Self::place(fingerprint));
        recent.is_some_and(|it| it.fingerprint == fingerprint && it.share >= share && it.until > now)
    }

    fn add(&mut self, recent: Recent) {
        self.0.resize(REMEMBERED, Recent::default());
        if let Some(place) = self.0.get_mut(Self::place(recent.fingerprint)) {
            *place = recent;
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
        for answer in &verdict.answers {
            let Some(limit) = view.rules().limit(answer.limit) else { continue };
            let reached = limit.warn_at.as_ref().map(|warn_at| warn_at.reached(&answer.decision)).unwrap_or_default();
            let Some(share) = reached.last() else { continue };
            if answer.decision.is_allowed() && verdict.is_allowed() && counted != Some(answer.limit) {
                counted = Some(answer.limit);
                self.shared.metrics.count_near(&limit.name);
            }
            let Some(fingerprint) = answer.fingerprint else { continue };
            let mut recent = self.warned.borrow_mut();
            if recent.has(fingerprint, *share, now) {
                continue;
            }
            let Some(new) = new_warning(view, plan, (answer, limit), *share, now) else { continue };
            let until = new.warning.resets_at.unwrap_or(Micros(u64::MAX));
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

/// Tells the warnings that no other gateway has told. There is one in a process.
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

    /// Waits for a warning that is told here, counts it and logs it. `None` after [`Self::close`], once none is left.
    pub async fn next(&mut self) -> Option<Warning> {
        loop {
            let new = self.receiver.recv().await?;
            if !self.is_first(&new).await {
                continue;
            }
            let NewWarning { warning, fingerprint, .. } = new;
            self.shared.metrics.count_warning(&warning.limit, WarningResult::Warned);
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

    /// No more warnings come.
    pub fn close(&mut self) {
        self.receiver.close();
    }

    pub fn is_closed(&self) -> bool {
        self.receiver.is_closed()
    }

    /// Claims the warning. A store that fails is replaced by this process' memory: several gateways may warn then, but none is silent.
    async fn is_first(&self, new: &NewWarning) -> bool {
        let batch = [Batch { charges: &new.claims, effective_from: new.effective_from, now: new.warning.at }];
        let decided = self.store.decide_in_turn(&batch).await;
        let decided = decided.or_else(|_| self.shared.local.decide_in_turn(&batch).map(Decisions::joined));
        decided.is_ok_and(|decided| is_first(&decided))
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
