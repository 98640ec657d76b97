//! A shard of the table: the buckets of some fingerprints, behind one lock.

use std::borrow::Cow;
use std::sync::Arc;

use super::overflow::Overflow;
use super::shares::{Shares, Tag};
use super::states::States;
use super::table::Table;
use crate::engine::algorithms::charge::{Bucket, Charge};
use crate::engine::algorithms::level::{Level, LevelChange};
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::state::{BucketState, Edit};

/// The slots that each insertion sweeps for full buckets. So buckets leave at least as fast as they come, and no insertion pays
/// for a whole sweep.
const SWEEP: usize = 8;

/// The slots that are swept for a new bucket when its shard is at the bound, before it goes to the overflow bucket. A sixteenth of
/// a shard: enough to find room under churn, and short enough (some 10 us) for one request to wait for.
const FULL_SWEEP: usize = 1_024;

pub(super) struct Shard {
    pub(super) table: Table,
    /// The buckets that are more than a level. They count towards the same bound.
    pub(super) states: States,
    /// The same in all shards.
    pub(super) shares: Arc<Shares>,
    pub(super) evicted: u64,
    pub(super) overflowed: u64,
}

/// The place of a charge's bucket.
#[derive(Clone, Copy, Debug)]
pub(super) enum BucketPlace {
    /// In the table, with this level.
    Table(Level),
    States,
    /// The bucket is new and has room. The tag is that of its limit.
    New(Tag),
    /// The bucket is new and has no room.
    Overflow,
    /// The bucket has the slot that the charge frees or renews in the overflow bucket.
    OverflowSlot,
}

impl BucketPlace {
    pub(super) const fn is_overflow(self) -> bool {
        matches!(self, Self::Overflow | Self::OverflowSlot)
    }
}

impl Shard {
    pub(super) fn new(bound: usize, shares: Arc<Shares>) -> Self {
        Self { table: Table::new(bound), states: States::new(bound), shares, evicted: 0, overflowed: 0 }
    }

    /// Must be called while all shards are locked.
    pub(super) fn clear(&mut self, bound: usize) {
        (self.table, self.states) = (Table::new(bound), States::new(bound));
        self.shares.clear();
    }

    /// Removes the buckets of a limit, if it has a tag of its own.
    pub(super) fn remove_limit(&mut self, short: &str) {
        if let Some(tag) = self.shares.tag_of(short) {
            self.table.remove_all(tag, &self.shares);
            self.states.remove_all(tag, &self.shares);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.table.len() + self.states.len()
    }

    /// Finds the level of a charge's bucket in the table. It is dated now at the latest.
    #[inline]
    pub(super) fn find(&mut self, charge: &Charge, now: Micros) -> Option<Level> {
        let level = self.table.find(low_half(&charge.bucket))?;
        if let Some(redated) = level.redated(now) {
            *level = redated;
        }
        Some(*level)
    }

    /// Returns the tag of a charge's limit, if that may have another bucket beside those of `new`.
    fn room(&self, charge: &Charge, new: &[(usize, Tag)]) -> Option<Tag> {
        let tag = self.shares.tag(charge);
        let same = new.iter().filter(|(_, other)| *other == tag).count();
        self.shares.has_room(tag, same as u64, new.len() as u64).then_some(tag)
    }

    /// Finds the place of a charge's bucket, in a shard of at most `bound` buckets. `new` are the shards and tags of other buckets
    /// that the request adds.
    #[inline]
    pub(super) fn place(&mut self, charge: &Charge, now: Micros, bound: usize, new: &[(usize, Tag)]) -> BucketPlace {
        let keeps_level = charge.keeps_level();
        if keeps_level && let Some(level) = self.find(charge, now) {
            return BucketPlace::Table(level);
        }
        self.states.redate(low_half(&charge.bucket), now);
        // A limit finds what it wrote while it had elevated numbers, or before it had them.
        let is_readable = |state: &BucketState| !keeps_level || state.level().is_some();
        if self.states.get(low_half(&charge.bucket)).is_some_and(is_readable) {
            return BucketPlace::States;
        }
        if charge.elevated().is_some()
            && let Some(level) = self.find(charge, now)
        {
            return BucketPlace::Table(level);
        }
        self.room(charge, new).filter(|_| self.len() < bound).map_or(BucketPlace::Overflow, BucketPlace::New)
    }

    /// Makes room at the bound, if buckets are full. Places that were found before may be wrong.
    pub(super) fn make_room(&mut self, now: Micros) {
        self.sweep(now, FULL_SWEEP);
    }

    /// Drops full buckets in return for a new one. Places that were found before may be wrong.
    pub(super) fn tidy(&mut self, now: Micros) {
        self.sweep(now, SWEEP);
    }

    /// Only a full bucket may go. Removing any other would fill it, and an attacker could end a denial by sending enough new ids.
    fn sweep(&mut self, now: Micros, slots: usize) {
        let shares = &self.shares;
        self.evicted += self.table.sweep(now, slots, shares) + self.states.sweep(now, slots, shares);
    }

    /// Counts a charge whose bucket has no room.
    pub(super) fn count_overflow(&mut self, charge: &Charge) {
        self.overflowed += 1;
        self.shares.limited(self.shares.tag(charge));
    }

    /// Returns the state of a charge's bucket; `None` if it is full.
    pub(super) fn state<'s>(
        &'s self,
        place: BucketPlace,
        charge: &Charge,
        overflow: Option<&'s Overflow>,
    ) -> Option<Cow<'s, BucketState>> {
        match place {
            BucketPlace::Table(level) => Some(Cow::Owned(BucketState::Level(level))),
            BucketPlace::States => self.states.get(low_half(&charge.bucket)).map(Cow::Borrowed),
            BucketPlace::New(_) => None,
            BucketPlace::Overflow | BucketPlace::OverflowSlot => overflow?.get(&charge.bucket).map(Cow::Borrowed),
        }
    }

    /// Makes an edit of a bucket at `place`, which is not in overflow. Returns true if it has added the bucket.
    pub(super) fn apply(&mut self, place: BucketPlace, charge: &Charge, edit: &Edit) -> bool {
        let Self { table, states, shares, .. } = self;
        let fingerprint = low_half(&charge.bucket);
        let tag = || if let BucketPlace::New(tag) = place { tag } else { shares.tag(charge) };
        match edit {
            Edit::Level(LevelChange::Keep) => false,
            Edit::Level(LevelChange::Clear) => {
                states.remove(fingerprint, shares);
                table.remove(fingerprint, shares);
                false
            }
            Edit::Level(LevelChange::Write(level)) => {
                // It is there if the limit had elevated numbers at the last write.
                states.remove(fingerprint, shares);
                table.write(fingerprint, *level, tag, shares)
            }
            Edit::Elevated(_) | Edit::Held(_) => {
                // It is there if the limit had none, or no hold.
                table.remove(fingerprint, shares);
                states.apply(fingerprint, edit, tag, shares)
            }
            Edit::Log(_) | Edit::SlidingWindow(_) | Edit::Slots(_) => states.apply(fingerprint, edit, tag, shares),
        }
    }
}

/// Returns the half of the fingerprint under which a shard files a bucket; the other half has chosen the shard.
#[expect(clippy::cast_possible_truncation, reason = "the low half is meant")]
pub(super) const fn low_half(bucket: &Bucket) -> u64 {
    bucket.fingerprint as u64
}
