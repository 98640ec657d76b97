//! The buckets of a shard that are more than a level.

use std::collections::{HashSet, VecDeque};

use super::shares::{Shares, Tag};
use crate::engine::algorithms::by_fingerprint::ByFingerprint;
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::state::{BucketState, Edit};

/// The entries per bucket, on average over the shard, beyond which the oldest are merged. At this bound a bucket takes some 130
/// bytes, a little more than twice as much as a level.
const ENTRIES_PER_BUCKET: usize = 8;

/// The most fingerprints in the order beyond twice the number of buckets.
const MOST_STALE: usize = 64;

pub(super) struct States {
    buckets: ByFingerprint<u64, (Tag, BucketState)>,
    /// The order of sweeps. A bucket that is removed between sweeps stays in it until the next one.
    order: VecDeque<u64>,
    /// The number of entries of all buckets.
    entries: usize,
    most_entries: usize,
}

impl States {
    /// The caller inserts at most `bound` buckets.
    pub(super) fn new(bound: usize) -> Self {
        Self {
            buckets: ByFingerprint::default(),
            order: VecDeque::new(),
            entries: 0,
            most_entries: bound.saturating_mul(ENTRIES_PER_BUCKET),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.buckets.len()
    }

    pub(super) fn get(&self, fingerprint: u64) -> Option<&BucketState> {
        self.buckets.get(&fingerprint).map(|(_, state)| state)
    }

    /// Dates a bucket now if it is dated too far ahead.
    pub(super) fn redate(&mut self, fingerprint: u64, now: Micros) {
        if let Some((_, state)) = self.buckets.get_mut(&fingerprint) {
            let before = state.entries();
            state.redate(now);
            self.entries -= before - state.entries();
        }
    }

    /// Removes all buckets with this tag.
    pub(super) fn remove_all(&mut self, wanted: Tag, shares: &Shares) {
        let entries = &mut self.entries;
        self.buckets.retain(|_, (tag, state)| {
            let stays = *tag != wanted;
            if !stays {
                shares.free(wanted);
                *entries -= state.entries();
            }
            stays
        });
    }

    pub(super) fn remove(&mut self, fingerprint: u64, shares: &Shares) {
        if let Some((tag, state)) = self.buckets.remove(&fingerprint) {
            shares.free(tag);
            self.entries -= state.entries();
        }
    }

    /// Makes an edit. Returns true if the bucket is new; `tag` is that of its limit.
    pub(super) fn apply(&mut self, fingerprint: u64, edit: &Edit, tag: impl FnOnce() -> Tag, shares: &Shares) -> bool {
        let (held, before) = self.buckets.remove(&fingerprint).unzip();
        self.entries -= before.as_ref().map_or(0, BucketState::entries);
        let Some(mut state) = BucketState::edited(before, edit) else {
            if let Some(tag) = held {
                shares.free(tag);
            }
            return false;
        };
        if self.entries + state.entries() > self.most_entries {
            state.shrink();
        }
        self.entries += state.entries();
        let tag = held.unwrap_or_else(|| {
            let tag = tag();
            shares.take(tag);
            tag
        });
        self.buckets.insert(fingerprint, (tag, state));
        if held.is_none() {
            self.order.push_back(fingerprint);
            if self.order.len() > 2 * self.buckets.len() + MOST_STALE {
                // A bucket that is removed and added again and again is in it as often.
                let mut seen = HashSet::new();
                let buckets = &self.buckets;
                self.order.retain(|other| buckets.contains_key(other) && seen.insert(*other));
            }
        }
        held.is_none()
    }

    /// Removes the buckets among the next `count` that are full again, and returns their number.
    pub(super) fn sweep(&mut self, now: Micros, count: usize, shares: &Shares) -> u64 {
        let mut dropped = 0;
        for _ in 0..count.min(self.order.len()) {
            let Some(fingerprint) = self.order.pop_front() else { break };
            match self.buckets.get(&fingerprint) {
                Some((_, state)) if state.is_over(now, shares.changed) => {
                    self.remove(fingerprint, shares);
                    dropped += 1;
                }
                Some(_) => self.order.push_back(fingerprint),
                None => {}
            }
        }
        dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::algorithms::charge::{Bucket, Charge, Mode};
    use crate::engine::algorithms::numbers::Numbers;
    use crate::engine::algorithms::state::decide;

    /// Spends one of ten a second; whether it passed.
    fn spend(states: &mut States, fingerprint: u64, now: u64) -> bool {
        let numbers = Numbers::sliding_log(10, 1_000_000_000).unwrap();
        let charge = Charge::new(Bucket::new("L:k", 1), numbers, 1, Mode::Spend);
        let attempt = decide(states.get(fingerprint), &charge, None, Micros(now), Micros(0)).unwrap();
        if let Some(edit) = attempt.edit {
            states.apply(fingerprint, &edit, || Tag(0), &Shares::of_none(1));
        }
        !attempt.decision.is_denied()
    }

    #[test]
    fn buckets_that_have_ended_go_and_leave_no_trace() {
        let (mut states, shares) = (States::new(100), Shares::of_none(100));
        for fingerprint in 0..50 {
            assert!(spend(&mut states, fingerprint, 1_000 + fingerprint));
        }
        assert_eq!((states.len(), states.sweep(Micros(1_000_999), 100, &shares)), (50, 0));
        assert_eq!((states.sweep(Micros(1_001_024), 100, &shares), states.len()), (25, 25));
        assert_eq!((states.order.len(), states.entries), (25, 25));
    }

    #[test]
    fn a_bucket_that_comes_and_goes_takes_no_more_memory_each_time() {
        let mut states = States::new(100);
        for turn in 0..1_000 {
            assert!(spend(&mut states, 1, 1_000 + turn));
            states.remove(1, &Shares::of_none(1));
        }
        assert_eq!((states.len(), states.entries), (0, 0));
        assert!(states.order.len() <= 1 + MOST_STALE + 2, "{}", states.order.len());
    }

    #[test]
    fn beyond_the_bound_of_entries_logs_grow_coarse_and_never_lenient() {
        let mut states = States::new(1);
        let passed = (0..20).filter(|at| spend(&mut states, 7, 1_000 + at)).count();
        assert_eq!((passed, states.entries), (10, 8));
        // The first three tokens have become one entry, of the instant of the third.
        assert!(!spend(&mut states, 7, 1_001_001));
        assert!(spend(&mut states, 7, 1_001_002));
    }
}
