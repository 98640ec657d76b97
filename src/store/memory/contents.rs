//! The buckets of a shard that are more than a meter.

use std::collections::{HashMap, VecDeque};

use super::shares::{Shares, Tag};
use crate::engine::algorithms::bucket::{Content, Edit};
use crate::engine::algorithms::numbers::Micros;

/// The entries a bucket may have on average before its oldest are merged: with all buckets of a store at this bound they
/// take some 130 bytes each, a little more than twice what a meter takes.
const ENTRIES_PER_BUCKET: usize = 8;

/// The places of buckets that have gone which the order may have, beside as many as there are buckets.
const MOST_STALE: usize = 64;

/// The buckets, by their fingerprint.
pub(super) struct Contents {
    buckets: HashMap<u64, (Tag, Content)>,
    /// The order in which sweeps look at them. A bucket that went by another way leaves its place until a sweep passes.
    order: VecDeque<u64>,
    /// The entries of all of them.
    entries: usize,
    most_entries: usize,
}

impl Contents {
    /// Room for `bound` buckets; to insert more is a mistake of the caller.
    pub(super) fn new(bound: usize) -> Self {
        Self {
            buckets: HashMap::new(),
            order: VecDeque::new(),
            entries: 0,
            most_entries: bound.saturating_mul(ENTRIES_PER_BUCKET),
        }
    }

    /// Buckets held.
    pub(super) fn len(&self) -> usize {
        self.buckets.len()
    }

    /// What is kept of a bucket, if it is held.
    pub(super) fn get(&self, fingerprint: u64) -> Option<&Content> {
        self.buckets.get(&fingerprint).map(|(_, content)| content)
    }

    /// Dates a bucket now if it is held and dated too far ahead.
    pub(super) fn redate(&mut self, fingerprint: u64, now: Micros) {
        if let Some((_, content)) = self.buckets.get_mut(&fingerprint) {
            let before = content.entries();
            content.redate(now);
            self.entries -= before - content.entries();
        }
    }

    /// Forgets a bucket, if it is held.
    pub(super) fn remove(&mut self, fingerprint: u64, shares: &Shares) {
        if let Some((tag, content)) = self.buckets.remove(&fingerprint) {
            shares.free(tag);
            self.entries -= content.entries();
        }
    }

    /// Does what a charge of the limit with this tag has decided; whether that has made a new bucket.
    pub(super) fn apply(&mut self, fingerprint: u64, edit: &Edit, tag: impl FnOnce() -> Tag, shares: &Shares) -> bool {
        let (held, before) = self.buckets.remove(&fingerprint).unzip();
        self.entries -= before.as_ref().map_or(0, Content::entries);
        let Some(mut content) = Content::apply(before, edit) else {
            if let Some(tag) = held {
                shares.free(tag);
            }
            return false;
        };
        if self.entries + content.entries() > self.most_entries {
            content.shrink();
        }
        self.entries += content.entries();
        let tag = held.unwrap_or_else(|| {
            let tag = tag();
            shares.take(tag);
            tag
        });
        self.buckets.insert(fingerprint, (tag, content));
        if held.is_none() {
            self.order.push_back(fingerprint);
            if self.order.len() > 2 * self.buckets.len() + MOST_STALE {
                // A bucket that is made full and used again, over and over, is in it as often.
                self.order = self.buckets.keys().copied().collect();
            }
        }
        held.is_none()
    }

    /// Forgets those of the next `looked_at` buckets that say no more than a full one; how many they were.
    pub(super) fn sweep(&mut self, now: Micros, looked_at: usize, shares: &Shares) -> u64 {
        let mut dropped = 0;
        for _ in 0..looked_at.min(self.order.len()) {
            let Some(fingerprint) = self.order.pop_front() else { break };
            match self.buckets.get(&fingerprint) {
                Some((_, content)) if content.is_over(now, shares.changed) => {
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
    use crate::engine::algorithms::bucket::decide;
    use crate::engine::algorithms::charge::{Bucket, Charge, Mode};
    use crate::engine::algorithms::numbers::Numbers;

    /// Spends one of ten a second; whether it passed.
    fn spend(contents: &mut Contents, fingerprint: u64, now: u64) -> bool {
        let numbers = Numbers::sliding_log(10, 1_000_000_000).unwrap();
        let charge = Charge::new(Bucket { key: "L:k".into(), fingerprint: 1 }, numbers, 1, Mode::Spend);
        let tried = decide(contents.get(fingerprint), &charge, Micros(now), Micros(0)).unwrap();
        contents.apply(fingerprint, &tried.edit, || Tag(0), &Shares::of_none(1));
        !tried.decision.is_denied()
    }

    #[test]
    fn buckets_that_have_ended_go_and_leave_no_trace() {
        let (mut contents, shares) = (Contents::new(100), Shares::of_none(100));
        for fingerprint in 0..50 {
            assert!(spend(&mut contents, fingerprint, 1_000 + fingerprint));
        }
        assert_eq!((contents.len(), contents.sweep(Micros(1_000_999), 100, &shares)), (50, 0));
        assert_eq!((contents.sweep(Micros(1_001_024), 100, &shares), contents.len()), (25, 25));
        assert_eq!((contents.order.len(), contents.entries), (25, 25));
    }

    #[test]
    fn a_bucket_that_comes_and_goes_takes_no_more_memory_each_time() {
        let mut contents = Contents::new(100);
        for turn in 0..1_000 {
            assert!(spend(&mut contents, 1, 1_000 + turn));
            contents.remove(1, &Shares::of_none(1));
        }
        assert_eq!((contents.len(), contents.entries), (0, 0));
        assert!(contents.order.len() <= 1 + MOST_STALE + 2, "{}", contents.order.len());
    }

    #[test]
    fn beyond_the_bound_of_entries_logs_grow_coarse_and_never_lenient() {
        let mut contents = Contents::new(1);
        let passed = (0..20).filter(|at| spend(&mut contents, 7, 1_000 + at)).count();
        assert_eq!((passed, contents.entries), (10, 8));
        // The first three tokens have become one entry, of the instant of the third.
        assert!(!spend(&mut contents, 7, 1_001_001));
        assert!(spend(&mut contents, 7, 1_001_002));
    }
}
