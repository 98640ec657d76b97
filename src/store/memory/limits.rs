//! The limits that may have buckets in a table.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::shares::{LimitKeys, Reserve};
use crate::engine::limit::allowance::Allowance;
use crate::engine::limit::rules::Rules;
use crate::engine::limit::{Limit, LimitMode};

impl LimitKeys {
    /// The limits of `rules` that may have buckets. `limited` returns a limit's counter by its name.
    pub fn of(rules: &Rules, limited: impl Fn(&str) -> Arc<AtomicU64>) -> Vec<Self> {
        let has_buckets = |limit: &&Limit| {
            let charges = |allowance: &Allowance| allowance.windows().is_some();
            limit.mode != LimitMode::Off && (charges(&limit.allowance) || limit.per_call || !limit.overrides.is_empty())
        };
        let keys = |reserve, limit: &Limit| Self {
            short: limit.short.clone(),
            // An id has a further bucket for each candidate, which must not leave room for fewer ids.
            max_keys: limit.max_keys.map(|most| most.saturating_mul(1 + limit.candidates.len() as u64)),
            reserve,
            limited: limited(&limit.name),
        };
        let own = |limit: &Limit| keys(if limit.by.is_empty() { Reserve::OneId } else { Reserve::Share }, limit);
        // Most servers never receive limits with a request, so nothing is reserved for those.
        let carried = keys(Reserve::Nothing, rules.carried().1);
        rules.limits().iter().filter(has_buckets).map(own).chain([carried]).collect()
    }
}
