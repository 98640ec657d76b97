//! How many ids a limit may bring to a store: what the table in memory is told of each limit, and a watch over the ids
//! that are new to Redis, which keeps every key that it is sent.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::engine::algorithms::charge::{Charge, Mode};
use crate::engine::algorithms::numbers::{Allowance, Micros};
use crate::engine::algorithms::refill::Kind;
use crate::engine::rules::fingerprint::Fingerprinter;
use crate::engine::rules::key::of_newcomers;
use crate::engine::rules::limit::{Limit, LimitMode};
use crate::engine::rules::rule_set::Rules;
use crate::store::memory::{LimitKeys, MemoryStore, Reserve};
use crate::telemetry::metrics::Metrics;

/// The default of [`KeyBounds::max_new_keys`]. Redis decides some 100,000 requests a second in all: a limit of which a
/// tenth of that is ids that a worker has not seen lately is being flooded.
pub const DEFAULT_MAX_NEW_KEYS: u64 = 10_000;

/// The bounds on buckets.
#[derive(Clone)]
pub struct KeyBounds {
    /// The store, if that is this process' memory.
    pub memory: Option<Arc<MemoryStore>>,
    /// New ids that a limit may bring to Redis in a second, for each worker; beyond that they share a bucket.
    pub max_new_keys: u64,
}

impl Default for KeyBounds {
    fn default() -> Self {
        Self { memory: None, max_new_keys: DEFAULT_MAX_NEW_KEYS }
    }
}

/// What a table in memory has to know of these limits: those that may have buckets there.
pub(super) fn limit_keys(rules: &Rules, metrics: &Metrics) -> Vec<LimitKeys> {
    let has_buckets = |limit: &&Limit| {
        let charges = |allowance: &Allowance| allowance.windows().is_some();
        limit.mode != LimitMode::Off && (charges(&limit.allowance) || limit.per_call || !limit.overrides.is_empty())
    };
    let keys = |reserve, limit: &Limit| LimitKeys {
        short: limit.short.clone(),
        max_keys: limit.max_keys,
        reserve,
        limited: metrics.keys_limited(&limit.name),
    };
    let own = |limit: &Limit| keys(if limit.by.is_empty() { Reserve::OneId } else { Reserve::Share }, limit);
    // Most servers are never sent limits, so nothing is kept for those.
    let carried = keys(Reserve::Nothing, rules.carried().1);
    rules.limits().iter().filter(has_buckets).map(own).chain([carried]).collect()
}

/// The new keys of a limit that a worker has seen within a second.
#[derive(Debug, Default)]
pub(super) struct NewKeys {
    second: Cell<u64>,
    count: Cell<u64>,
}

impl NewKeys {
    /// Counts another one; whether it is within the bound.
    fn admit(&self, now: Micros, most: u64) -> bool {
        let second = now.0 / 1_000_000;
        let count = if self.second.replace(second) == second { self.count.get() } else { 0 };
        self.count.set(count.saturating_add(1));
        count < most
    }
}

/// A limit's bound, and where it is counted.
pub(super) struct Newcomers<'v> {
    pub(super) limit: &'v Limit,
    pub(super) new_keys: &'v NewKeys,
    pub(super) limited: &'v AtomicU64,
}

/// The keys that a worker has charged lately: as many as fit, of which a new one replaces any. A key that is forgotten
/// counts as new once more.
pub(super) struct Recent {
    /// Each line is a cache line, chosen by one half of a fingerprint; the marks in it are of the other half.
    lines: RefCell<Box<[[u32; MARKS]]>>,
}

const MARKS: usize = 16;

/// 2^18 keys in 1 MiB.
const LINES: usize = 1 << 14;

impl Recent {
    pub(super) fn new() -> Self {
        Self { lines: RefCell::new(vec![[0; MARKS]; LINES].into()) }
    }

    /// Gives the charge at `place` the bucket that new ids of its limit share, if it brings another new one than the
    /// limit may within this second.
    #[inline]
    pub(super) fn bound<'v>(
        &self,
        charges: &mut [Charge],
        place: usize,
        newcomers: impl FnOnce() -> Option<Newcomers<'v>>,
        (now, most, fingerprinter): (Micros, u64, Fingerprinter),
    ) {
        let Some(charge) = charges.get(place) else { return };
        if self.knows(charge.bucket.fingerprint) {
            return;
        }
        if let Some(newcomers) = newcomers() {
            self.welcome(charges, place, &newcomers, (now, most, fingerprinter));
        }
    }

    #[cold]
    fn welcome(
        &self,
        charges: &mut [Charge],
        place: usize,
        newcomers: &Newcomers<'_>,
        (now, most, fingerprinter): (Micros, u64, Fingerprinter),
    ) {
        let charge = &charges[place];
        let writes = matches!(charge.mode, Mode::Spend | Mode::SpendOnly | Mode::SpendUpTo) && charge.cost > 0;
        // Workers look for a queue under its own name.
        if !writes || matches!(charge.numbers.refill().kind(), Kind::Queue(_)) {
            return;
        }
        if newcomers.new_keys.admit(now, newcomers.limit.max_new_keys.unwrap_or(most)) {
            return self.learn(charge.bucket.fingerprint);
        }
        newcomers.limited.fetch_add(1, Ordering::Relaxed);
        let key = std::mem::take(&mut charges[place].bucket.key);
        // No two charges of a request may have the same bucket.
        let bucket = (0..=charges.len())
            .map(|number| of_newcomers(&key, number, &fingerprinter))
            .find(|bucket| charges.iter().all(|other| other.bucket.fingerprint != bucket.fingerprint));
        if let Some(bucket) = bucket {
            charges[place].bucket = bucket;
        }
    }

    #[inline]
    fn knows(&self, fingerprint: u128) -> bool {
        self.lines.borrow()[line(fingerprint)].contains(&mark(fingerprint))
    }

    fn learn(&self, fingerprint: u128) {
        let mark = mark(fingerprint);
        // Any bits of the fingerprint that neither the line nor the rest of the mark has chosen are as good as chance.
        self.lines.borrow_mut()[line(fingerprint)][(fingerprint >> 32) as usize % MARKS] = mark;
    }
}

#[expect(clippy::cast_possible_truncation, reason = "any bits will do")]
const fn line(fingerprint: u128) -> usize {
    (fingerprint >> 64) as usize % LINES
}

/// 0 is no mark of a key: it stands where none is.
#[expect(clippy::cast_possible_truncation, reason = "any bits will do")]
const fn mark(fingerprint: u128) -> u32 {
    fingerprint as u32 | 1
}
