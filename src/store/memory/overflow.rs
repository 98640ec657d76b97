//! The buckets that the ids of a limit share when the limit or its shard is at the bound.

use std::collections::HashMap;

use super::shares::short_of;
use crate::engine::algorithms::charge::{Bucket, Slot};
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::state::{BucketState, Edit};

/// One bucket for each window of a limit, by `<short>#<window>`. Those of a removed limit stay until they are full.
#[derive(Default)]
pub(super) struct Overflow {
    states: HashMap<String, BucketState>,
}

impl Overflow {
    /// The bucket that takes the place of this one.
    pub(super) fn get(&self, bucket: &Bucket) -> Option<&BucketState> {
        self.states.get(&window_key(bucket))
    }

    /// Returns true if a request in flight holds this slot here.
    pub(super) fn holds(&self, bucket: &Bucket, slot: Slot, now: Micros) -> bool {
        !self.states.is_empty() && self.get(bucket).is_some_and(|state| state.holds(slot, now))
    }

    /// Dates a bucket now if it is dated too far ahead.
    pub(super) fn redate(&mut self, bucket: &Bucket, now: Micros) {
        if let Some(state) = self.states.get_mut(&window_key(bucket)) {
            state.redate(now);
        }
    }

    pub(super) fn remove_limit(&mut self, short: &str) {
        self.states.retain(|key, _| short_of(key) != short);
    }

    /// Drops the buckets that are full. The rules took effect at `changed`.
    pub(super) fn tidy(&mut self, now: Micros, changed: Micros) {
        self.states.retain(|_, state| !state.is_over(now, changed));
    }

    pub(super) fn len(&self) -> usize {
        self.states.len()
    }

    pub(super) fn apply(&mut self, bucket: &Bucket, edit: &Edit) {
        let key = window_key(bucket);
        if let Some(state) = BucketState::edited(self.states.remove(&key), edit) {
            self.states.insert(key, state);
        }
    }
}

/// Returns true if the same bucket takes the place of both.
pub(super) fn is_same(one: &Bucket, other: &Bucket) -> bool {
    window_of(&one.key) == window_of(&other.key)
}

/// The bucket's key without its id.
fn window_key(bucket: &Bucket) -> String {
    let (short, window) = window_of(&bucket.key);
    format!("{short}#{window}")
}

/// The limit's name in a bucket's key, and the mark of its window.
fn window_of(key: &str) -> (&str, &str) {
    (short_of(key), key.split_once('#').map_or("0", |(_, window)| window))
}
