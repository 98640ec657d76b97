//! The state that workers share: the rules in force, the blocks, the metrics, and the memory that replaces a failed store.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use arc_swap::{ArcSwap, ArcSwapOption};
use parking_lot::Mutex;

use super::bans::UnpostedBans;
use super::delays::DelayBounds;
use super::key_bounds::{KeyBounds, limit_keys};
use super::live::Live;
use super::quota::QuotaGroups;
use super::recording::Recording;
use super::warnings::WarningQueue;
use super::would_deny::WouldDenyLists;
use crate::engine::algorithms::micros::Micros;
use crate::engine::charging::descriptors::ChargedAfterwards;
use crate::engine::limit::Limit;
use crate::engine::limit::blocks::Blocks;
use crate::engine::limit::rules::Rules;
use crate::engine::request::claims::TokenIssuer;
use crate::engine::text::instant::day_until;
use crate::jwt::KeyRing;
use crate::store::memory::MemoryStore;
use crate::telemetry::denials::{DenialLog, DenialSampler, IdFormat};
use crate::telemetry::metrics::{
    CandidateMetrics, CandidateResult, DecisionResult, LimitMetrics, Metrics, SettlementMetrics,
};
use crate::telemetry::most_denied::MostDenied;

pub struct Shared {
    pub(super) snapshot: Arc<ArcSwap<Snapshot>>,
    pub(super) blocks: Arc<ArcSwap<Blocks>>,
    pub(super) bans: UnpostedBans,
    pub(super) warnings: WarningQueue,
    /// Locked while live overrides or the rules change.
    pub(super) live: Mutex<Live>,
    pub(super) recording: Arc<ArcSwapOption<Recording>>,
    pub(super) metrics: Arc<Metrics>,
    pub(crate) denial_log: Arc<DenialLog>,
    pub(super) most_denied: MostDenied,
    /// Buckets of limits with `on_store_error: local`. A table of its own, so that they are full when the store fails.
    pub(crate) local: MemoryStore,
    /// The number of times that this process gave tokens back to buckets of a remote store.
    given_back: AtomicU64,
    /// When the store failed last, until `local` is emptied.
    pub(super) store_failed: Mutex<Option<Instant>>,
    pub(super) bounds: KeyBounds,
    /// The keys of issuers that are fetched by URL.
    pub(crate) keys: Arc<KeyRing>,
    pub(super) delays: DelayBounds,
    quota_groups: Arc<QuotaGroups>,
}

/// The decisions of one limit so far.
pub struct LimitCounts {
    /// By [`DecisionResult`].
    pub decisions: [u64; DecisionResult::ALL.len()],
    /// By [`CandidateResult`], for each candidate in their order.
    pub candidates: Vec<[u64; CandidateResult::ALL.len()]>,
}

/// Rules, and the counters of each limit in their order.
pub(super) struct Snapshot {
    pub(super) rules: Rules,
    pub(super) afterwards: ChargedAfterwards,
    pub(super) limits: Vec<LimitMetrics>,
    /// By limit, and in the order of its candidates.
    pub(super) candidates: Vec<Vec<CandidateMetrics>>,
    /// Charges to the bucket that a limit's excess ids share.
    pub(super) limited: Vec<Arc<AtomicU64>>,
    /// For limits that settle by responses.
    pub(super) settlements: Vec<Option<SettlementMetrics>>,
    pub(super) denials: DenialSampler,
    pub(super) would_deny: WouldDenyLists,
    /// Whether a worker has had the scripts of the rules compiled.
    pub(super) scripts_checked: AtomicBool,
    /// Limits whose scripts return values that are not valid headers.
    pub(super) warned_of_values: Mutex<HashSet<u32>>,
}

impl Shared {
    /// Denied requests are not logged.
    pub fn new(rules: Rules, metrics: Arc<Metrics>, local: MemoryStore) -> Self {
        Self::logging(rules, metrics, local, DenialLog::new(None, IdFormat::default()))
    }

    pub fn logging(rules: Rules, metrics: Arc<Metrics>, local: MemoryStore, log: DenialLog) -> Self {
        let denial_log = Arc::new(log);
        local.set_limits(&limit_keys(&rules, &metrics), rules.effective_from);
        let snapshot = Arc::new(ArcSwap::from_pointee(Snapshot::new(rules, &metrics, &denial_log)));
        let (blocks, store_failed, bounds) = (Arc::default(), Mutex::default(), KeyBounds::default());
        Self {
            snapshot,
            blocks,
            bans: UnpostedBans::default(),
            warnings: WarningQueue::default(),
            live: Mutex::default(),
            recording: Arc::default(),
            metrics,
            denial_log,
            most_denied: MostDenied::default(),
            local,
            given_back: AtomicU64::default(),
            store_failed,
            bounds,
            keys: Arc::default(),
            delays: DelayBounds::default(),
            quota_groups: Arc::default(),
        }
    }

    /// Changes whenever this process gives tokens back to buckets of a remote store: what was denied may pass.
    pub(super) fn given_back(&self) -> u64 {
        self.given_back.load(Ordering::Acquire)
    }

    pub(super) fn give_back(&self) {
        self.given_back.fetch_add(1, Ordering::Release);
    }

    pub const fn quota_groups(&self) -> &Arc<QuotaGroups> {
        &self.quota_groups
    }

    #[must_use]
    pub fn delaying(self, delays: DelayBounds) -> Self {
        Self { delays, ..self }
    }

    #[must_use]
    pub fn bounded(self, bounds: KeyBounds) -> Self {
        let shared = Self { bounds, ..self };
        shared.divide_keys(&shared.snapshot.load().rules);
        shared
    }

    /// Divides the tables in memory among the limits.
    fn divide_keys(&self, rules: &Rules) {
        let keys = limit_keys(rules, &self.metrics);
        for table in self.bounds.memory.as_deref().into_iter().chain([&self.local]) {
            table.set_limits(&keys, rules.effective_from);
        }
    }

    /// Puts these rules in force. The caller holds the lock of [`Self::live`].
    pub(super) fn put(&self, rules: Rules) {
        let mut snapshot = Snapshot::new(rules, &self.metrics, &self.denial_log);
        self.divide_keys(&snapshot.rules);
        let last = self.snapshot.load();
        snapshot.would_deny = last.would_deny.next(&last.rules, &snapshot.rules);
        snapshot.denials.take_over(snapshot.rules.names(), &last.denials, last.rules.names());
        self.snapshot.store(Arc::new(snapshot));
        let current = self.snapshot.load();
        let kept: HashSet<&str> = current.rules.names().collect();
        let labels = |limit: &Limit| -> Vec<String> {
            limit.candidates.iter().map(|candidate| candidate.label(&limit.name).into_owned()).collect()
        };
        let kept_candidates: HashSet<String> = current.rules.limits().iter().flat_map(labels).collect();
        self.metrics.forget_limits(|name| kept.contains(name), |label| kept_candidates.contains(label));
    }

    /// Returns whether any limit is for a domain of descriptors.
    pub fn has_domains(&self) -> bool {
        self.snapshot.load().rules.limits().iter().any(|limit| !limit.conditions.domains.is_empty())
    }

    /// Calls `each` with every limit of the rules in force, in their order, and with its decisions so far. The last one stands for
    /// limits that requests carry.
    pub fn each_limit(&self, mut each: impl FnMut(&Limit, LimitCounts)) {
        self.metrics.add_up();
        let snapshot = self.snapshot.load();
        for (place, metrics) in (0..).zip(&snapshot.limits) {
            if let Some(limit) = snapshot.rules.limit(place) {
                let candidates = snapshot.candidates.get(place as usize).into_iter().flatten();
                let candidates = candidates.map(CandidateMetrics::decisions).collect();
                each(limit, LimitCounts { decisions: metrics.decisions(), candidates });
            }
        }
    }

    /// The sum of the decisions of the rules in force, for comparison with an earlier one.
    pub(super) fn decisions(&self) -> u64 {
        self.metrics.add_up();
        self.snapshot.load().limits.iter().flat_map(LimitMetrics::decisions).fold(0, u64::wrapping_add)
    }

    /// The issuers of tokens in the rules in force.
    pub fn issuers(&self) -> Arc<[TokenIssuer]> {
        self.snapshot.load().rules.issuers().clone()
    }

    pub const fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }
}

impl Shared {
    /// Returns the limits whose review date has passed after one instant and not after another, with that day.
    pub fn reviews_due(&self, after: Micros, until: Micros) -> Vec<(String, String)> {
        let snapshot = self.snapshot.load();
        let due = |limit: &&Limit| limit.review_by.is_some_and(|end| after < end && end <= until);
        let shown = |limit: &Limit| (limit.name.clone(), limit.review_by.map(day_until).unwrap_or_default());
        snapshot.rules.limits().iter().filter(due).map(shown).collect()
    }
}

impl Snapshot {
    fn new(rules: Rules, metrics: &Metrics, denial_log: &Arc<DenialLog>) -> Self {
        let reviewed = |limit: &'_ Limit| limit.review_by.map(|end| end.0 / 1_000_000);
        metrics.set_reviews(rules.limits().iter().filter_map(|limit| Some((limit.name.as_str(), reviewed(limit)?))));
        let limits = rules.limits().iter();
        metrics.set_owners(limits.filter_map(|limit| Some((limit.name.as_str(), limit.owner.as_deref()?))));
        let settles = |limit: &Limit| limit.response_cost.as_ref().map(|_| metrics.settlements(&limit.name));
        let candidates = |limit: &Limit| {
            limit.candidates.iter().map(|candidate| metrics.candidate(&candidate.label(&limit.name))).collect()
        };
        Self {
            limits: rules.names().map(|name| metrics.limit(name)).collect(),
            candidates: rules.limits().iter().map(candidates).collect(),
            limited: rules.names().map(|name| metrics.keys_limited(name)).collect(),
            settlements: rules.limits().iter().map(settles).collect(),
            denials: DenialSampler::new(denial_log, rules.names().count()),
            would_deny: WouldDenyLists::new(&rules),
            scripts_checked: AtomicBool::new(false),
            warned_of_values: Mutex::default(),
            afterwards: ChargedAfterwards::new(&rules),
            rules,
        }
    }
}
