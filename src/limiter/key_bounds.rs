//! Bounds on the number of buckets, and the limits that share a table in memory.

use std::sync::Arc;

use crate::engine::limit::rules::Rules;
use crate::store::memory::{LimitKeys, MemoryStore};
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

/// The limits that may have buckets in a table, with their counters.
pub(super) fn limit_keys(rules: &Rules, metrics: &Metrics) -> Vec<LimitKeys> {
    LimitKeys::of(rules, |name| metrics.keys_limited(name))
}
