//! Bounds the ids that are new to a remote store, which keeps every key that it receives.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Limiter, View};
use crate::engine::algorithms::algorithm::Algorithm;
use crate::engine::algorithms::charge::{Charge, Mode};
use crate::engine::algorithms::micros::Micros;
use crate::engine::rules::fingerprint::Fingerprinter;
use crate::engine::rules::key::of_newcomers;
use crate::engine::rules::plan::Plan;

/// The new ids of a limit that a worker has seen within a second.
#[derive(Debug, Default)]
pub(super) struct NewKeyCount {
    second: Cell<u64>,
    count: Cell<u64>,
}

impl NewKeyCount {
    /// Counts one more. Returns whether it is within the bound.
    fn admit(&self, now: Micros, most: u64) -> bool {
        let second = now.0 / 1_000_000;
        let count = if self.second.replace(second) == second { self.count.get() } else { 0 };
        self.count.set(count.saturating_add(1));
        count < most
    }
}

/// The bound of a limit, and where it counts.
struct NewKeyBound<'v> {
    seen: &'v NewKeyCount,
    most: u64,
    /// Charges to the shared bucket.
    limited: &'v AtomicU64,
    now: Micros,
    fingerprinter: Fingerprinter,
}

/// The keys that a worker has charged lately. A new key replaces an arbitrary one; a forgotten key counts as new again.
pub(super) struct RecentKeys {
    /// Each line is a cache line. One half of a fingerprint chooses it; the marks in it are of the other half.
    lines: RefCell<Box<[[u32; MARKS]]>>,
}

const MARKS: usize = 16;

/// 2^18 keys in 1 MiB.
const LINES: usize = 1 << 14;

impl Limiter {
    /// Gives charges of excess new ids the bucket that such ids of their limit share.
    pub(super) fn bound_new_keys(&self, view: &View, plan: &mut Plan, now: Micros) {
        let Some(recent) = &self.recent else { return };
        for (place, origin) in plan.origins.iter().enumerate() {
            let is_known = plan.charges.get(place).is_none_or(|charge| recent.contains(charge.bucket.fingerprint));
            if !is_known && let Some(bound) = self.new_key_bound(view, origin.limit, now) {
                recent.bound(&mut plan.charges, place, &bound);
            }
        }
        plan.rebind();
    }

    fn new_key_bound<'v>(&self, view: &'v View, limit: u32, now: Micros) -> Option<NewKeyBound<'v>> {
        Some(NewKeyBound {
            seen: view.new_keys.get(limit as usize)?,
            most: view.rules().limit(limit)?.max_new_keys.unwrap_or(self.shared.bounds.max_new_keys),
            limited: view.snapshot.limited.get(limit as usize)?,
            now,
            fingerprinter: view.rules().fingerprinter(),
        })
    }
}

impl RecentKeys {
    pub(super) fn new() -> Self {
        Self { lines: RefCell::new(vec![[0; MARKS]; LINES].into()) }
    }

    #[cold]
    fn bound(&self, charges: &mut [Charge], place: usize, bound: &NewKeyBound<'_>) {
        let charge = &charges[place];
        let writes = matches!(charge.mode, Mode::Spend | Mode::SpendOnly | Mode::SpendUpTo) && charge.cost > 0;
        // Workers look for a queue under its own name.
        if !writes || matches!(charge.numbers.algorithm(), Algorithm::Queue) {
            return;
        }
        if bound.seen.admit(bound.now, bound.most) {
            return self.insert(charge.bucket.fingerprint);
        }
        bound.limited.fetch_add(1, Ordering::Relaxed);
        let key = std::mem::take(&mut charges[place].bucket.key);
        // No two charges of a request may have the same bucket.
        let bucket = (0..=charges.len())
            .map(|number| of_newcomers(&key, number, &bound.fingerprinter))
            .find(|bucket| charges.iter().all(|other| other.bucket.fingerprint != bucket.fingerprint));
        if let Some(bucket) = bucket {
            charges[place].bucket = bucket;
        }
    }

    #[inline]
    fn contains(&self, fingerprint: u128) -> bool {
        self.lines.borrow()[line(fingerprint)].contains(&mark(fingerprint))
    }

    fn insert(&self, fingerprint: u128) {
        // Any bits of the fingerprint that choose neither the line nor the rest of the mark are as good as random ones.
        self.lines.borrow_mut()[line(fingerprint)][(fingerprint >> 32) as usize % MARKS] = mark(fingerprint);
    }
}

#[expect(clippy::cast_possible_truncation, reason = "any bits will do")]
const fn line(fingerprint: u128) -> usize {
    (fingerprint >> 64) as usize % LINES
}

/// Never 0, which marks an empty place.
#[expect(clippy::cast_possible_truncation, reason = "any bits will do")]
const fn mark(fingerprint: u128) -> u32 {
    fingerprint as u32 | 1
}
