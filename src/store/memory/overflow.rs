//! The buckets that the ids of a limit share when the limit or its shard is at the bound.

use std::collections::HashMap;

use super::shares::short_of;
use crate::engine::algorithms::charge::{Charge, Slot};
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::state::{Edit, State};

/// One bucket for each window of a limit, by `<short>#<window>`. Those of a removed limit stay until they are full.
#[derive(Default)]
pub(super) struct Overflow {
    states: HashMap<String, State>,
}

impl Overflow {
    pub(super) fn get(&self, charge: &Charge) -> Option<&State> {
        self.states.get(&window_key(charge))
    }

    /// Returns true if a request in flight holds this slot here.
    pub(super) fn holds(&self, charge: &Charge, slot: Slot, now: Micros) -> bool {
        !self.states.is_empty() && self.get(charge).is_some_and(|state| state.holds(slot, now))
    }

    /// Dates the bucket of a charge now if it is dated too far ahead.
    pub(super) fn redate(&mut self, charge: &Charge, now: Micros) {
        if let Some(state) = self.states.get_mut(&window_key(charge)) {
            state.redate(now);
        }
    }

    pub(super) fn remove_limit(&mut self, short: &str) {
        self.states.retain(|key, _| short_of(key) != short);
    }

    pub(super) fn len(&self) -> usize {
        self.states.len()
    }

    pub(super) fn apply(&mut self, charge: &Charge, edit: &Edit, now: Micros) {
        self.states.retain(|_, other| !other.is_over(now, Micros(0)));
        let key = window_key(charge);
        if let Some(state) = State::edited(self.states.remove(&key), edit) {
            self.states.insert(key, state);
        }
    }
}

/// Returns true if two charges share a bucket here.
pub(super) fn is_same(one: &Charge, other: &Charge) -> bool {
    window_of(&one.bucket.key) == window_of(&other.bucket.key)
}

/// The bucket's key without its id.
fn window_key(charge: &Charge) -> String {
    let (short, window) = window_of(&charge.bucket.key);
    format!("{short}#{window}")
}

/// The limit's name in a bucket's key, and the mark of its window.
fn window_of(key: &str) -> (&str, &str) {
    (short_of(key), key.split_once('#').map_or("0", |(_, window)| window))
}
