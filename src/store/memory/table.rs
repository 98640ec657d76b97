//! A hash table of buckets with a maximum size: open addressing, linear probing, entries in the order of their home slots
//! (Robin Hood hashing).
//!
//! Cache misses dominate the cost of a lookup: a million buckets are far larger than any core's cache. Fingerprint and level lie
//! side by side, so a lookup misses once. A table with separate control bytes misses twice, one after the other. A removal moves
//! the followers back and leaves no mark, so churn neither slows the table down nor makes it grow.

use super::shares::{Shares, TAG_BITS, Tag};
use crate::engine::algorithms::level::Level;
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::windows::Refill;

/// The slots of the smallest table.
const SMALLEST: usize = 16;

/// A bucket. 40 bytes, at most 7 of 10 slots taken: 57 bytes a bucket when a table is at its bound.
#[derive(Clone, Copy, Debug)]
struct TableEntry {
    /// The upper bits are the bucket's fingerprint, the lower ones its limit's tag; 0 in a vacant slot. Two of a million buckets
    /// are mistaken for each other in one of 700,000 such tables. A longer fingerprint would make every lookup read a fifth more
    /// memory.
    fingerprint: u64,
    level: Level,
}

/// The mask of the tag.
const TAG: u64 = (1 << TAG_BITS) - 1;

const VACANT: TableEntry =
    TableEntry { fingerprint: 0, level: Level { since: Micros(0), used: 0, weight: 0, refill: Refill::evenly(0) } };

/// The table. It starts without memory and doubles until `bound` buckets fit.
pub(super) struct Table {
    slots: Vec<TableEntry>,
    held: usize,
    bound: usize,
    /// The slot at which the next sweep goes on.
    cursor: usize,
}

impl Table {
    /// A table for at most `bound` buckets. The caller must not insert more.
    pub(super) const fn new(bound: usize) -> Self {
        Self { slots: Vec::new(), held: 0, bound, cursor: 0 }
    }

    pub(super) const fn len(&self) -> usize {
        self.held
    }

    /// Returns the level of a bucket if the table has it.
    #[inline]
    pub(super) fn find(&mut self, fingerprint: u64) -> Option<&mut Level> {
        self.locate(key(fingerprint)).ok().map(|slot| &mut self.slots[slot].level)
    }

    /// Reads the home slot of a bucket, to load it into the cache. A caller that is about to look for several buckets touches all
    /// of them first, so that their cache misses overlap.
    #[inline]
    pub(super) fn touch(&self, fingerprint: u64) -> u64 {
        let fingerprint = key(fingerprint);
        if self.slots.is_empty() { 0 } else { self.slots[self.home(fingerprint)].fingerprint }
    }

    /// Sets the level of a bucket. Returns true if it is new; `tag` is that of its limit.
    #[inline]
    pub(super) fn write(&mut self, fingerprint: u64, level: Level, tag: impl FnOnce() -> Tag, shares: &Shares) -> bool {
        let fingerprint = key(fingerprint);
        match self.locate(fingerprint) {
            Ok(slot) => {
                self.slots[slot].level = level;
                false
            }
            Err(slot) => {
                let tag = tag();
                shares.take(tag);
                self.add(slot, TableEntry { fingerprint: fingerprint | u64::from(tag.0), level });
                true
            }
        }
    }

    /// Adds an entry at `slot`.
    fn add(&mut self, mut slot: usize, mut moved: TableEntry) {
        if self.held >= capacity(self.slots.len()) {
            self.grow();
            slot = self.locate(moved.fingerprint).unwrap_or_else(|slot| slot);
        }
        debug_assert!(self.held < self.bound, "the caller has checked the bound");
        // The entries from here on move by one, which keeps the order of home slots.
        while moved.fingerprint != VACANT.fingerprint {
            std::mem::swap(&mut self.slots[slot], &mut moved);
            slot = self.next(slot);
        }
        self.held += 1;
    }

    /// Removes a bucket if the table has it.
    pub(super) fn remove(&mut self, fingerprint: u64, shares: &Shares) {
        if let Ok(slot) = self.locate(key(fingerprint)) {
            shares.free(tag(&self.slots[slot]));
            self.vacate(slot);
        }
    }

    /// Removes the buckets that are full at `now` among the next ones, and returns their number. Looks at `slots` slots, unless it has
    /// seen the whole table before.
    pub(super) fn sweep(&mut self, now: Micros, slots: usize, shares: &Shares) -> u64 {
        let mut dropped = 0;
        // Each slot once, and once more for each bucket that leaves.
        for _ in 0..slots.min(self.slots.len() + self.held) {
            let entry = &self.slots[self.cursor];
            if entry.fingerprint != VACANT.fingerprint && entry.level.is_over(now, shares.changed) {
                shares.free(tag(entry));
                // A follower may move into the slot, so it is looked at again.
                self.vacate(self.cursor);
                dropped += 1;
            } else {
                self.cursor = self.next(self.cursor);
            }
        }
        dropped
    }

    /// Removes all buckets with this tag.
    pub(super) fn remove_all(&mut self, wanted: Tag, shares: &Shares) {
        let mut slot = 0;
        while let Some(entry) = self.slots.get(slot) {
            if entry.fingerprint == VACANT.fingerprint || tag(entry) != wanted {
                slot += 1;
                continue;
            }
            shares.free(wanted);
            // A follower may have moved into the slot, so it is looked at again.
            self.vacate(slot);
        }
    }

    /// Returns the slot of a fingerprint, or else the slot to insert it at.
    #[inline]
    fn locate(&self, fingerprint: u64) -> Result<usize, usize> {
        if self.slots.is_empty() {
            return Err(0);
        }
        let mut slot = self.home(fingerprint);
        for distance in 0..self.slots.len() {
            let entry = &self.slots[slot];
            if is_of(entry, fingerprint) {
                return Ok(slot);
            }
            // An entry that is nearer to its home than ours would be here has a later home, so ours does not follow.
            if entry.fingerprint == VACANT.fingerprint || self.distance(slot, entry) < distance {
                return Err(slot);
            }
            slot = self.next(slot);
        }
        Err(slot)
    }

    /// Empties a slot and moves back those behind it that are not at home.
    fn vacate(&mut self, mut slot: usize) {
        loop {
            let behind = self.next(slot);
            let follower = self.slots[behind];
            if follower.fingerprint == VACANT.fingerprint || self.home(follower.fingerprint) == behind {
                break;
            }
            self.slots[slot] = follower;
            slot = behind;
        }
        self.slots[slot] = VACANT;
        self.held -= 1;
    }

    fn grow(&mut self) {
        let slots = (self.slots.len() * 2).max(SMALLEST).min(slots_for(self.bound));
        let old = std::mem::replace(&mut self.slots, vec![VACANT; slots]);
        self.held = 0;
        for entry in old {
            if entry.fingerprint != VACANT.fingerprint {
                let slot = self.locate(entry.fingerprint).unwrap_or_else(|slot| slot);
                self.add(slot, entry);
            }
        }
    }

    /// Returns the home slot of an entry: its fingerprint without the tag, scaled.
    #[expect(clippy::cast_possible_truncation, reason = "the product is below the length")]
    fn home(&self, fingerprint: u64) -> usize {
        ((u128::from(fingerprint & !TAG) * self.slots.len() as u128) >> 64) as usize
    }

    /// Returns the distance between the entry in `slot` and its home.
    fn distance(&self, slot: usize, entry: &TableEntry) -> usize {
        let home = self.home(entry.fingerprint);
        if slot >= home { slot - home } else { slot + self.slots.len() - home }
    }

    fn next(&self, slot: usize) -> usize {
        if slot + 1 < self.slots.len() { slot + 1 } else { 0 }
    }

    #[cfg(test)]
    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }
}

/// Returns the fingerprint without the bits of the tag, and never that of a vacant slot.
const fn key(fingerprint: u64) -> u64 {
    let fingerprint = fingerprint & !TAG;
    if fingerprint == VACANT.fingerprint { TAG + 1 } else { fingerprint }
}

/// Returns whether an entry has this fingerprint, with any tag.
#[inline]
const fn is_of(entry: &TableEntry, fingerprint: u64) -> bool {
    (entry.fingerprint ^ fingerprint) & !TAG == 0
}

const fn tag(entry: &TableEntry) -> Tag {
    Tag((entry.fingerprint & TAG) as u16)
}

/// Returns the most entries for this many slots: 7 of 10, where a lookup reads two slots on average.
const fn capacity(slots: usize) -> usize {
    slots / 10 * 7
}

/// Returns the fewest slots that take `entries`.
pub(super) const fn slots_for(entries: usize) -> usize {
    let slots = entries.div_ceil(7) * 10;
    if slots < SMALLEST { SMALLEST } else { slots }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// Full at the microsecond `full_at`.
    fn level(full_at: u64) -> Level {
        Level { since: Micros(0), used: full_at, weight: 1, refill: Refill::evenly(1) }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64, u64),
        Remove(u64),
        Sweep(u64, usize),
    }

    /// Few fingerprints, many of them with the same home or at the end of the table, where it wraps around.
    fn fingerprint() -> impl Strategy<Value = u64> {
        (0..4u64, 0..40u64).prop_map(|(part, number)| match part {
            0 => number << TAG_BITS,
            1 => u64::MAX - (number << TAG_BITS),
            _ => number << 58 | part << 30,
        })
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (fingerprint(), 1..100u64).prop_map(|(key, full_at)| Step::Insert(key, full_at)),
            2 => fingerprint().prop_map(Step::Remove),
            1 => (1..100u64, 1..20usize).prop_map(|(now, slots)| Step::Sweep(now, slots)),
        ]
    }

    proptest! {
        /// The table does what a map does, and its entries stay in order.
        #[test]
        fn is_a_map(bound in 1..60usize, steps in prop::collection::vec(step(), 1..300)) {
            let (mut table, shares) = (Table::new(bound), Shares::of_none(bound));
            let mut map: HashMap<u64, u64> = HashMap::new();
            for step in steps {
                match step {
                    Step::Insert(fingerprint, full_at) => {
                        if map.len() < bound || map.contains_key(&key(fingerprint)) {
                            let new = table.write(fingerprint, level(full_at), || Tag(0), &shares);
                            prop_assert_eq!(new, map.insert(key(fingerprint), full_at).is_none());
                        }
                    }
                    Step::Remove(fingerprint) => {
                        table.remove(fingerprint, &shares);
                        map.remove(&key(fingerprint));
                    }
                    Step::Sweep(now, slots) => {
                        let dropped = table.sweep(Micros(now), slots, &shares);
                        let before = map.len();
                        map.retain(|fingerprint, full_at| *full_at > now || table.find(*fingerprint).is_some());
                        prop_assert_eq!(u64::try_from(before - map.len()).unwrap(), dropped);
                    }
                }
                prop_assert_eq!(table.len(), map.len());
                prop_assert!(table.slots() <= slots_for(bound));
                for (fingerprint, full_at) in &map {
                    prop_assert_eq!(table.find(*fingerprint).copied(), Some(level(*full_at)));
                }
            }
            for _ in 0..bound {
                table.sweep(Micros(100), table.slots(), &shares);
            }
            prop_assert_eq!(table.len(), 0);
        }
    }
}
