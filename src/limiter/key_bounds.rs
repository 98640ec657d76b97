//! Bounds on the number of buckets, and the limits that share a table in memory.

use std::sync::Arc;

use crate::engine::rules::allowance::Allowance;
use crate::engine::rules::limit::{Limit, LimitMode};
use crate::engine::rules::rule_set::Rules;
use crate::store::memory::{LimitKeys, MemoryStore, Reserve};
use crate::telemetry::metrics::Metrics;

/// The default of [`KeyBounds::max_new_keys`]. A remote store decides some 100,000 requests per second in all. If a worker sees
/// a tenth of that in new ids of one limit, the limit is being flooded.
pub const DEFAULT_MAX_NEW_KEYS: u64 = 10_000;

#[derive(Clone)]
pub struct KeyBounds {
    /// The store, if it is this process's memory.
    pub memory: Option<Arc<MemoryStore>>,
    /// New ids per limit, worker and second in a remote store. Ids beyond that share a bucket.
    pub max_new_keys: u64,
}

impl Default for KeyBounds {
    fn default() -> Self {
        Self { memory: None, max_new_keys: DEFAULT_MAX_NEW_KEYS }
    }
}

/// The limits that may have buckets in a table, as the table needs to know them.
pub(super) fn limit_keys(rules: &Rules, metrics: &Metrics) -> Vec<LimitKeys> {
    let has_buckets = |limit: &&Limit| {
        let charges = |allowance: &Allowance| allowance.windows().is_some();
        limit.mode != LimitMode::Off && (charges(&limit.allowance) || limit.per_call || !limit.overrides.is_empty())
    };
    let keys = |reserve, limit: &Limit| LimitKeys {
        short: limit.short.clone(),
        // An id has a second bucket for the candidate, which must not leave room for fewer ids.
        max_keys: limit.max_keys.map(|most| if limit.candidate.is_some() { most.saturating_mul(2) } else { most }),
        reserve,
        limited: metrics.keys_limited(&limit.name),
    };
    let own = |limit: &Limit| keys(if limit.by.is_empty() { Reserve::OneId } else { Reserve::Share }, limit);
    // Most servers never receive limits with a request, so nothing is reserved for those.
    let carried = keys(Reserve::Nothing, rules.carried().1);
    rules.limits().iter().filter(has_buckets).map(own).chain([carried]).collect()
}
