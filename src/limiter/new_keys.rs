//! Bounds the ids that are new to a remote store, which keeps every key that it receives.

use std::cell::{Cell, RefCell};
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use super::{Limiter, View};
use crate::engine::algorithms::charge::{Bucket, Charge, Mode};
use crate::engine::algorithms::micros::Micros;
use crate::engine::charging::plan::Plan;
use crate::engine::limit::key::of_newcomers;
use crate::engine::limit::rules::Rules;

/// The number of new ids of a limit that a worker has seen within a second.
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
        let mut sharing = SmallVec::<[u32; 2]>::new();
        for index in 0..plan.charges.len() {
            let origin = plan.charges[index].origin;
            let limit = origin.limit;
            if origin.is_strike() {
                // No id is banned for the requests of others.
                if sharing.contains(&limit) {
                    plan.charges[index].take_nothing();
                }
            } else if origin.is_candidate() {
                // It follows its limit's own charge: counted alone, it would halve the ids that the limit may have.
                if sharing.contains(&limit) {
                    share(view.rules(), &mut plan.charges, index);
                }
            } else if !recent.contains(plan.charges[index].bucket.fingerprint) {
                let is_shared = self.bound_new_key(recent, view, limit, &mut plan.charges, index, now);
                sharing.extend(is_shared.then_some(limit));
            }
        }
        plan.rebind();
    }

    /// Returns whether the charge got the shared bucket.
    #[cold]
    fn bound_new_key(
        &self,
        recent: &RecentKeys,
        view: &View,
        limit: u32,
        charges: &mut [Charge],
        index: usize,
        now: Micros,
    ) -> bool {
        let charge = &charges[index];
        let writes = matches!(charge.mode, Mode::Spend | Mode::SpendOnly | Mode::SpendUpTo) && charge.cost > 0;
        if !writes || charge.numbers.algorithm().has_workers() {
            return false;
        }
        let (rules, place) = (view.rules(), limit as usize);
        let (Some(limit), Some(seen)) = (rules.limit(limit), view.new_keys.get(place)) else { return false };
        if seen.admit(now, limit.max_new_keys.unwrap_or(self.shared.bounds.max_new_keys)) {
            recent.insert(charge.bucket.fingerprint);
            return false;
        }
        if let Some(limited) = view.snapshot.limited.get(place) {
            limited.fetch_add(1, Ordering::Relaxed);
        }
        share(rules, charges, index);
        true
    }
}

/// Gives a charge the bucket that new ids of its limit share.
fn share(rules: &Rules, charges: &mut [Charge], index: usize) {
    let Bucket { key, tag, .. } = &mut charges[index].bucket;
    let (key, tag) = (std::mem::take(key), *tag);
    // No two charges of a request may have the same bucket.
    let bucket = (0..=charges.len())
        .map(|number| of_newcomers(&key, tag, number, &rules.fingerprinter))
        .find(|bucket| charges.iter().all(|other| other.bucket.fingerprint != bucket.fingerprint));
    if let Some(bucket) = bucket {
        charges[index].bucket = bucket;
    }
}

impl RecentKeys {
    pub(super) fn new() -> Self {
        Self { lines: RefCell::new(vec![[0; MARKS]; LINES].into()) }
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

/// Never 0, which is an empty mark.
#[expect(clippy::cast_possible_truncation, reason = "any bits will do")]
const fn mark(fingerprint: u128) -> u32 {
    fingerprint as u32 | 1
}
