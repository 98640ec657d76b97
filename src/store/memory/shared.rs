//! The buckets of those who find no room for one of their own.

use std::borrow::Cow;
use std::collections::HashMap;

use super::shares::short_of;
use crate::engine::algorithms::bucket::{Content, Edit};
use crate::engine::algorithms::charge::Charge;
use crate::engine::algorithms::details::Slot;
use crate::engine::algorithms::gcra::{Change, Meter};
use crate::engine::algorithms::numbers::Micros;

/// One bucket for each window of a limit, by `<short>#<window>`. A limit that a reload removed leaves its own here until
/// it is full.
#[derive(Default)]
pub(super) struct Shared {
    meters: HashMap<String, Meter>,
    contents: HashMap<String, Content>,
}

impl Shared {
    /// The meter of a limit that may have had elevated numbers before a reload.
    pub(super) fn meter(&self, charge: &Charge) -> Option<Meter> {
        let key = shared_key(charge);
        self.meters.get(&key).or_else(|| self.contents.get(&key)?.meter()).copied()
    }

    /// What is kept for a limit that may have had no elevated numbers before a reload.
    pub(super) fn content(&self, charge: &Charge) -> Option<Cow<'_, Content>> {
        let key = shared_key(charge);
        let meter = || self.meters.get(&key).filter(|_| charge.elevated().is_some());
        let content = self.contents.get(&key).map(Cow::Borrowed);
        content.or_else(|| Some(Cow::Owned(Content::of_meter(*meter()?))))
    }

    /// Whether a slot of a charge's limit is held here.
    pub(super) fn holds(&self, charge: &Charge, slot: Slot, now: Micros) -> bool {
        let content = || self.contents.get(&shared_key(charge));
        !self.contents.is_empty() && content().is_some_and(|content| content.holds(slot, now))
    }

    /// Dates the bucket of a charge now if it is dated too far ahead.
    pub(super) fn redate(&mut self, charge: &Charge, now: Micros) {
        let key = shared_key(charge);
        if let Some(meter) = self.meters.get_mut(&key) {
            *meter = meter.redated(now).unwrap_or(*meter);
        }
        if let Some(content) = self.contents.get_mut(&key) {
            content.redate(now);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.meters.len() + self.contents.len()
    }

    /// Does what a charge has decided about a meter.
    pub(super) fn apply(&mut self, charge: &Charge, change: Change) {
        let key = shared_key(charge);
        match change {
            Change::Keep => {}
            Change::Write(meter) => {
                self.meters.retain(|_, other| !other.is_full(meter.since));
                self.contents.remove(&key);
                self.meters.insert(key, meter);
            }
            Change::Clear => {
                self.contents.remove(&key);
                self.meters.remove(&key);
            }
        }
    }

    /// Does what a charge has decided about a bucket that is more than a meter.
    pub(super) fn edit(&mut self, charge: &Charge, edit: &Edit, now: Micros) {
        self.contents.retain(|_, other| !other.is_over(now, Micros(0)));
        let key = shared_key(charge);
        if charge.elevated().is_some() {
            self.meters.remove(&key);
        }
        if let Some(content) = Content::apply(self.contents.remove(&key), edit) {
            self.contents.insert(key, content);
        }
    }
}

/// The key without its id.
fn shared_key(charge: &Charge) -> String {
    let key = &charge.bucket.key;
    let short = short_of(key);
    let window = key.rsplit_once('#').map_or("0", |(_, window)| window);
    format!("{short}#{window}")
}
