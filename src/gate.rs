//! From a request to its verdict: charges, store, failure policy, metrics. Every door goes through here.

use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;

use crate::engine::limit::StoreErrorPolicy;
use crate::engine::request::Request;
use crate::engine::rules::{BadCost, Plan, Rules};
use crate::engine::verdict::{Answer, Unanswered, Verdict};
use crate::metrics::{DecisionResult, LimitMetrics, Metrics, observe};
use crate::store::memory::MemoryStore;
use crate::store::{Batch, Store, StoreError};

/// What all workers share: the rules in force, and the memory that stands in for a store that is away.
pub struct Shared {
    snapshot: ArcSwap<Snapshot>,
    metrics: Arc<Metrics>,
    /// Buckets of limits with `on_store_error: local`. Its own table, so that they begin full when the store goes away.
    local: MemoryStore,
}

/// Rules, and the handles of their limits' metrics in the same order.
pub struct Snapshot {
    rules: Rules,
    limits: Vec<LimitMetrics>,
}

impl Snapshot {
    /// The rules.
    pub const fn rules(&self) -> &Rules {
        &self.rules
    }
}

impl Shared {
    /// Puts the first rules in force.
    pub fn new(rules: Rules, metrics: Arc<Metrics>, local: MemoryStore) -> Self {
        let snapshot = ArcSwap::from_pointee(snapshot(rules, &metrics));
        Self { snapshot, metrics, local }
    }

    /// Puts new rules in force. Requests that have begun keep the old ones.
    pub fn replace(&self, rules: Rules) {
        self.snapshot.store(Arc::new(snapshot(rules, &self.metrics)));
        let current = self.snapshot.load();
        let kept: std::collections::HashSet<&str> =
            current.rules.limits().iter().map(|limit| limit.name.as_str()).collect();
        self.metrics.forget_limits(|name| kept.contains(name));
    }

    /// The metrics.
    pub const fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// The rules in force.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }
}

fn snapshot(rules: Rules, metrics: &Metrics) -> Snapshot {
    let limits = rules.limits().iter().map(|limit| metrics.limit(&limit.name)).collect();
    Snapshot { rules, limits }
}

/// A worker's gate: the shared rules and its own connection to the store.
pub struct Gate {
    shared: Arc<Shared>,
    store: Store,
}

/// A verdict, and the rules that it speaks of.
pub struct Judged {
    /// The rules that were in force.
    pub snapshot: Arc<Snapshot>,
    /// The verdict.
    pub verdict: Verdict,
}

impl Gate {
    /// A gate to a store.
    pub const fn new(shared: Arc<Shared>, store: Store) -> Self {
        Self { shared, store }
    }

    /// What the workers share.
    pub const fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The store.
    pub const fn store(&self) -> &Store {
        &self.store
    }

    /// Decides a request. Nothing waits longer than the store's own timeout; a store that fails costs the request at
    /// hand what its limits' `on_store_error` says. The error is the client's: it names its own cost and it is none.
    pub async fn judge(&self, request: &Request<'_>) -> Result<Judged, BadCost> {
        let start = Instant::now();
        let snapshot = self.shared.snapshot();
        let plan = snapshot.rules.charges(request)?;
        for limit in &plan.unlimited {
            snapshot.count(*limit, DecisionResult::Unlimited);
        }
        let verdict = if plan.is_refused() || plan.charges.is_empty() {
            Verdict::refused(&plan)
        } else {
            let batch = Batch { charges: &plan.charges, effective_from: snapshot.rules.effective_from() };
            let asked = Instant::now();
            let decided = self.store.decide(&batch).await;
            observe(&self.shared.metrics.store_seconds, asked.elapsed());
            match decided {
                Ok(decisions) => Verdict::decided(&plan, &decisions),
                Err(error) => self.without_store(&snapshot, plan, &error),
            }
        };
        snapshot.count_verdict(&verdict);
        observe(&self.shared.metrics.decision_seconds, start.elapsed());
        Ok(Judged { snapshot, verdict })
    }

    /// The verdict by each limit's `on_store_error`.
    fn without_store(&self, snapshot: &Snapshot, mut plan: Plan, error: &StoreError) -> Verdict {
        self.shared.metrics.store_error(error.kind());
        let policy =
            |limit: u32| snapshot.rules.limit(limit).map_or(StoreErrorPolicy::Allow, |limit| limit.on_store_error);
        let mut unanswered: Vec<Unanswered> = Vec::new();
        for origin in &plan.origins {
            let policy = policy(origin.limit);
            if policy != StoreErrorPolicy::Local && unanswered.last().is_none_or(|last| last.limit != origin.limit) {
                let refuses = origin.enforced && policy == StoreErrorPolicy::Deny;
                unanswered.push(Unanswered { limit: origin.limit, refuses });
            }
        }
        // A request that is refused anyway must not be charged locally.
        let refused = unanswered.iter().any(|limit| limit.refuses);
        let mut keep = plan.origins.iter().map(|origin| !refused && policy(origin.limit) == StoreErrorPolicy::Local);
        plan.charges.retain(|_| keep.next().unwrap_or(false));
        plan.origins.retain(|origin| !refused && policy(origin.limit) == StoreErrorPolicy::Local);
        let batch = Batch { charges: &plan.charges, effective_from: snapshot.rules.effective_from() };
        let decisions = self.shared.local.decide(&batch).unwrap_or_default();
        Verdict::decided(&plan, &decisions).unanswered(unanswered)
    }
}

impl Snapshot {
    fn count(&self, limit: u32, result: DecisionResult) {
        if let Some(metrics) = self.limits.get(limit as usize) {
            metrics.count(result);
        }
    }

    /// Counts each limit once, however many windows it has.
    fn count_verdict(&self, verdict: &Verdict) {
        for windows in verdict.answers.chunk_by(|a, b| a.limit == b.limit) {
            let Some(first) = windows.first() else { continue };
            let result = if windows.iter().any(Answer::would_deny) {
                DecisionResult::ShadowDenied
            } else if windows.iter().any(|answer| answer.decision.is_denied()) {
                DecisionResult::Denied
            } else if verdict.is_allowed() {
                DecisionResult::Allowed
            } else {
                DecisionResult::Uncharged
            };
            self.count(first.limit, result);
        }
        for limit in &verdict.unanswered {
            let refused = limit.refuses;
            self.count(limit.limit, if refused { DecisionResult::ErrorDenied } else { DecisionResult::ErrorAllowed });
        }
    }
}
