//! Buckets in this process' memory: a sharded table of fingerprints, bounded.

use std::borrow::Cow;
use std::sync::Arc;

use contents::Contents;
use parking_lot::{Mutex, MutexGuard};
use shared::Shared;
pub use shares::{LimitKeys, Reserve};
use shares::{Shares, Tag};
use smallvec::{SmallVec, smallvec};
use table::Table;

use super::{Batch, StoreError};
use crate::engine::algorithms::batch::{FEW, Settled, Tried, has_duplicate, settle};
use crate::engine::algorithms::bucket::{self, Content, Edit, NeedsServer};
use crate::engine::algorithms::charge::{Charge, Decisions, Mode, Outcome};
use crate::engine::algorithms::details::{Slot, Terms};
use crate::engine::algorithms::gcra::{self, Change, Meter};
use crate::engine::algorithms::numbers::Micros;

mod contents;
mod shared;
mod shares;
mod table;

/// The default bound on the buckets that are held.
pub const DEFAULT_MAX_KEYS: usize = 1_000_000;

/// The buckets a shard is made for: some 600 KiB, which is what growing by one shard's doubling moves at a time, and
/// enough shards that two threads rarely meet in one.
const KEYS_PER_SHARD: usize = 13_000;

/// Slots that the insertion of a new bucket looks at, to drop those that are full again. Each insertion frees what it
/// passes, so buckets leave at least as fast as they come, and no insertion pays for a whole sweep.
const SWEEP: usize = 8;

/// Slots that a new bucket looks at when its shard is at the bound, before it goes to the shared bucket. A sixteenth of
/// a shard: long enough to find room under churn, short enough (some 10 us) for one request to wait for.
const FULL_SWEEP: usize = 1_024;

/// The table.
pub struct MemoryStore {
    shards: Box<[Mutex<Shard>]>,
    max_keys: usize,
    keys_per_shard: usize,
    /// The buckets that new ids share when their limit or their shard is at its bound. Locked after any shard.
    shared: Mutex<Shared>,
}

struct Shard {
    table: Table,
    /// The buckets that are more than a meter. They count towards the same bound.
    contents: Contents,
    /// What each limit may hold; the same in all shards.
    shares: Arc<Shares>,
    evicted: u64,
    overflowed: u64,
}

/// What the table holds and has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Buckets held.
    pub keys: u64,
    /// Buckets dropped because they were full again.
    pub evicted: u64,
    /// Charges made to a shared bucket because the table or the limit was at its bound.
    pub overflowed: u64,
}

impl MemoryStore {
    /// A table of `max_keys` buckets (at least 1), and one more a window of a limit when it is at the bound.
    ///
    /// Ids fall on shards by chance. A shard takes four standard deviations more than its fair share, so that none is
    /// turned away before the whole table is at its bound.
    pub fn new(max_keys: usize) -> Self {
        let shards = max_keys.div_ceil(KEYS_PER_SHARD).max(1);
        let fair = max_keys.div_ceil(shards).max(1);
        let keys_per_shard = if shards == 1 { fair } else { fair + 4 * fair.isqrt() };
        let shares = Arc::new(Shares::of_none(max_keys));
        let shards = (0..shards).map(|_| Mutex::new(Shard::new(keys_per_shard, shares.clone()))).collect();
        Self { shards, max_keys, keys_per_shard, shared: Mutex::default() }
    }

    /// Divides the table among these limits of rules that took effect at `changed`; see [`LimitKeys`]. The buckets of limits that are not among them stay until
    /// they are full. Until it is called, the table is whoever's comes first.
    pub fn set_limits(&self, limits: &[LimitKeys], changed: Micros) {
        let mut shards: Vec<MutexGuard<'_, Shard>> = self.shards.iter().map(Mutex::lock).collect();
        let Some(first) = shards.first() else { return };
        let shares = Arc::new(first.shares.renewed(limits, self.max_keys, changed));
        for shard in &mut shards {
            shard.shares = shares.clone();
        }
    }

    /// Forgets all buckets.
    pub fn clear(&self) {
        let mut shards: Vec<MutexGuard<'_, Shard>> = self.shards.iter().map(Mutex::lock).collect();
        let Some(first) = shards.first() else { return };
        let shares = Arc::new(first.shares.emptied());
        for shard in &mut shards {
            shard.table = Table::new(self.keys_per_shard);
            shard.contents = Contents::new(self.keys_per_shard);
            shard.shares = shares.clone();
        }
        *self.shared.lock() = Shared::default();
    }

    /// Decides the charges of one request, all or nothing.
    pub fn decide(&self, batch: &Batch<'_>) -> Result<Decisions, StoreError> {
        let now = batch.now;
        if let [charge] = batch.charges
            && charge.is_metered()
        {
            let mut shard = self.shards[self.shard(charge)].lock();
            let place = shard.place(charge, now, self.keys_per_shard, &[]);
            let mut shared = (place == Place::Shared).then(|| self.shared.lock());
            if let Some(shared) = &mut shared {
                shared.redate(charge, now);
            }
            let meter = read(shared.as_deref(), place, charge);
            let (decision, change) = gcra::decide(meter.as_ref(), charge, now, batch.effective_from);
            apply(&mut shard, shared.as_deref_mut(), place, charge, change);
            return Ok(std::iter::once(decision).collect());
        }
        if has_duplicate(batch.charges) {
            return Err(StoreError::Duplicate);
        }
        // Every request locks its shards in ascending order and the shared buckets last, so no two can wait for each
        // other.
        let mut numbers: Few<usize> = batch.charges.iter().map(|charge| self.shard(charge)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let mut shards: Few<MutexGuard<'_, Shard>> = numbers.iter().map(|number| self.shards[*number].lock()).collect();
        let has_room = |shard: &MutexGuard<'_, Shard>| shard.len() + batch.charges.len() <= self.keys_per_shard;
        // Where a limit had elevated numbers, its bucket is not in the table yet.
        let is_elsewhere = |charge: &Charge| shards.iter().any(|shard| shard.contents.get(filed(charge)).is_some());
        let is_plain = |charge: &Charge| charge.is_metered() && !is_elsewhere(charge);
        if batch.charges.iter().all(is_plain)
            && shards.iter().all(has_room)
            && let Some(decisions) = self.decide_metered(batch, &numbers, &mut shards)
        {
            return Ok(decisions);
        }
        self.decide_together(batch, &numbers, &mut shards, &mut None)
    }

    /// Decides several requests one after the other, and nothing of anybody else's in between.
    pub fn decide_in_turn(&self, batches: &[Batch<'_>]) -> Result<Vec<Decisions>, StoreError> {
        if batches.iter().any(|batch| has_duplicate(batch.charges)) {
            return Err(StoreError::Duplicate);
        }
        let charges = batches.iter().flat_map(|batch| batch.charges);
        let mut numbers: Few<usize> = charges.map(|charge| self.shard(charge)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let mut shards: Few<MutexGuard<'_, Shard>> = numbers.iter().map(|number| self.shards[*number].lock()).collect();
        let mut shared = None;
        batches.iter().map(|batch| self.decide_together(batch, &numbers, &mut shards, &mut shared)).collect()
    }

    /// Decides charges whose buckets are meters, with room for all of them in their shards: what nearly every request with
    /// several charges has. Measured with four, it takes half the time of the general way, which copies more. `None` if a
    /// limit has no room.
    fn decide_metered(
        &self,
        batch: &Batch<'_>,
        numbers: &[usize],
        shards: &mut [MutexGuard<'_, Shard>],
    ) -> Option<Decisions> {
        let (now, effective_from) = (batch.now, batch.effective_from);
        let guard = |charge: &Charge| numbers.partition_point(|number| *number < self.shard(charge));
        // With a million buckets each is a cache miss, and one decision after the other would wait for each in turn: four
        // charges take 0.6 us in place of 1.0 us when they are read all at once first.
        let touched = batch.charges.iter().map(|charge| shards[guard(charge)].table.touch(filed(charge)));
        std::hint::black_box(touched.fold(0, u64::wrapping_add));
        let mut decisions = Decisions::with_capacity(batch.charges.len());
        let mut changes = Few::with_capacity(batch.charges.len());
        let mut new: Few<Tag> = Few::new();
        let mut denied = false;
        for charge in batch.charges {
            let guard = guard(charge);
            let found = shards[guard].find(charge, now);
            let spot = match found {
                Some((slot, _)) => Ok(slot),
                None => Err(shards[guard].room(charge, &new)?),
            };
            new.extend(spot.err());
            let meter = found.as_ref().map(|(_, meter)| meter);
            let (decision, change) = gcra::decide(meter, charge, now, effective_from);
            denied |= decision.is_denied();
            decisions.push(decision);
            changes.push((guard, spot, change));
        }
        if denied {
            return Some(decisions.corrected(|place, decision| match decision.outcome {
                Outcome::Allowed => {
                    let charge = &batch.charges[place];
                    let found = shards[guard(charge)].table.find(filed(charge));
                    gcra::standing(found.as_ref().map(|(_, meter)| meter), charge, now, effective_from)
                }
                _ => decision,
            }));
        }
        for ((guard, spot, change), charge) in changes.into_iter().zip(batch.charges) {
            shards[guard].write(spot, filed(charge), change);
        }
        Some(decisions)
    }

    /// Decides charges of any kind. The shared buckets are locked if they are needed, and left to those who come after.
    fn decide_together<'s>(
        &'s self,
        batch: &Batch<'_>,
        numbers: &[usize],
        shards: &mut [MutexGuard<'_, Shard>],
        shared: &mut Option<MutexGuard<'s, Shared>>,
    ) -> Result<Decisions, StoreError> {
        let now = batch.now;
        let guard = |charge: &Charge| numbers.partition_point(|number| *number < self.shard(charge));
        let mut places = Few::with_capacity(batch.charges.len());
        let mut new: Few<Tag> = Few::new();
        let mut new_of_shard: Few<usize> = smallvec![0; shards.len()];
        for charge in batch.charges {
            let guard = guard(charge);
            let bound = self.keys_per_shard.saturating_sub(new_of_shard[guard]);
            let mut place = shards[guard].place(charge, now, bound, &new);
            if let Some(slot) = held_slot(charge)
                && !shards[guard].contents.get(filed(charge)).is_some_and(|content| content.holds(slot, now))
                && shared.get_or_insert_with(|| self.shared.lock()).holds(charge, slot, now)
            {
                place = Place::Shared;
            }
            if let Place::New(tag) = place {
                new_of_shard[guard] += 1;
                new.push(tag);
            }
            places.push(place);
        }
        if shared.is_none() && places.contains(&Place::Shared) {
            *shared = Some(self.shared.lock());
        }
        for (charge, _) in batch.charges.iter().zip(&places).filter(|(_, place)| **place == Place::Shared) {
            if let Some(shared) = shared {
                shared.redate(charge, now);
            }
        }
        let effective_from = batch.effective_from;
        let content = |place: usize, charge: &Charge| match places[place] {
            Place::Shared => shared.as_deref()?.content(charge),
            Place::Held(_, meter) => Some(Cow::Owned(Content::of_meter(meter))),
            _ => shards[guard(charge)].contents.get(filed(charge)).map(Cow::Borrowed),
        };
        let settled = settle(
            batch.charges,
            |place, charge| {
                if charge.is_metered() {
                    let meter = read(shared.as_deref(), places[place], charge);
                    let (decision, change) = gcra::decide(meter.as_ref(), charge, now, effective_from);
                    let change = (change != Change::Keep).then_some(Write::Meter(change));
                    return Ok(Tried { decision, detail: None, change, counts_denied: false });
                }
                let tried = bucket::decide(content(place, charge).as_deref(), charge, now, effective_from)?;
                let bucket::Tried { decision, detail, edit, counts_denied } = tried;
                let change = (edit != Edit::Keep).then_some(Write::Content(edit));
                Ok(Tried { decision, detail, change, counts_denied })
            },
            |place, charge| {
                if charge.is_metered() {
                    let meter = read(shared.as_deref(), places[place], charge);
                    return Ok(gcra::standing(meter.as_ref(), charge, now, effective_from));
                }
                bucket::standing(content(place, charge).as_deref(), charge, now, effective_from)
            },
        );
        let Settled { decisions, changes } =
            settled.map_err(|error: NeedsServer| StoreError::Refused(error.to_string()))?;
        for (place, change) in changes {
            let charge = &batch.charges[place];
            let shard = &mut shards[guard(charge)];
            match change {
                Write::Meter(change) => apply(shard, shared.as_deref_mut(), places[place], charge, change),
                Write::Content(edit) => edit_content(shard, shared.as_deref_mut(), places[place], charge, &edit, now),
            }
        }
        Ok(decisions)
    }

    /// What the table holds; locks one shard after the other.
    pub fn usage(&self) -> Usage {
        let shared = self.shared.lock();
        let mut usage = Usage { keys: shared.len() as u64, ..Usage::default() };
        drop(shared);
        for shard in &self.shards {
            let shard = shard.lock();
            usage.keys += shard.len() as u64;
            usage.evicted += shard.evicted;
            usage.overflowed += shard.overflowed;
        }
        usage
    }

    /// The shard of a charge: the high half of the fingerprint, scaled.
    #[expect(clippy::cast_possible_truncation, reason = "a fraction of the number of shards is less than it")]
    fn shard(&self, charge: &Charge) -> usize {
        let high = charge.bucket.fingerprint >> 64;
        ((high * self.shards.len() as u128) >> 64) as usize
    }
}

/// The half of a charge's fingerprint that its shard knows it by; the other half chose the shard.
#[expect(clippy::cast_possible_truncation, reason = "the low half is meant")]
const fn filed(charge: &Charge) -> u64 {
    charge.bucket.fingerprint as u64
}

/// The slot that a charge gives back or renews. It may have been taken from the bucket that new ids share, although there
/// is room for one of its own by now.
fn held_slot(charge: &Charge) -> Option<Slot> {
    match charge.terms.as_deref() {
        Some(Terms::Slot(slot)) if matches!(charge.mode, Mode::Refund | Mode::SpendOnly) => Some(*slot),
        _ => None,
    }
}

/// A list of one entry a charge.
type Few<T> = SmallVec<[T; FEW]>;

/// What is to be written of a charge.
enum Write {
    Meter(Change),
    Content(Edit),
}

/// Where a charge's bucket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Under its own fingerprint, in this slot, with this meter.
    Held(usize, Meter),
    /// Under its own fingerprint, among those that are more than a meter.
    Content,
    /// There as well, with this meter: the limit had elevated numbers when the bucket was written.
    Elevated(Meter),
    /// To be put there, with the tag of its limit; there is room.
    New(Tag),
    /// In the limit's shared bucket: the bucket is new and there is no room.
    Shared,
}

impl Shard {
    fn new(bound: usize, shares: Arc<Shares>) -> Self {
        Self { table: Table::new(bound), contents: Contents::new(bound), shares, evicted: 0, overflowed: 0 }
    }

    /// Buckets held.
    fn len(&self) -> usize {
        self.table.len() + self.contents.len()
    }

    /// Does what a charge has decided with a bucket that was found in a slot, or that is new and of the limit with this
    /// tag. There is room for it.
    #[inline]
    fn write(&mut self, spot: Result<usize, Tag>, fingerprint: u64, change: Change) {
        match (spot, change) {
            (_, Change::Keep) => {}
            (Ok(slot), Change::Write(meter)) => self.table.update(slot, fingerprint, meter),
            (Err(tag), Change::Write(meter)) => {
                if self.table.insert(fingerprint, tag, meter) {
                    self.shares.take(tag);
                    self.evicted += self.table.sweep(meter.since, SWEEP, &self.shares);
                }
            }
            (_, Change::Clear) => self.table.remove(fingerprint, &self.shares),
        }
    }

    /// The meter of a charge's bucket and its slot, if it is in the table. It is dated now at the latest.
    #[inline]
    fn find(&mut self, charge: &Charge, now: Micros) -> Option<(usize, Meter)> {
        let (slot, meter) = self.table.find(filed(charge))?;
        let Some(redated) = meter.redated(now) else { return Some((slot, meter)) };
        self.table.update(slot, filed(charge), redated);
        Some((slot, redated))
    }

    /// The tag of a charge's limit, if that may have another bucket beside those of `new`.
    fn room(&self, charge: &Charge, new: &[Tag]) -> Option<Tag> {
        let tag = self.shares.tag(charge);
        let same = new.iter().filter(|other| **other == tag).count();
        self.shares.has_room(tag, same as u64, new.len() as u64).then_some(tag)
    }

    /// Where a charge's bucket is, in a shard of at most `bound` buckets. `new` are the tags of those that the request at
    /// hand brings besides.
    #[inline]
    fn place(&mut self, charge: &Charge, now: Micros, bound: usize, new: &[Tag]) -> Place {
        let is_metered = charge.is_metered();
        if is_metered && let Some((slot, meter)) = self.find(charge, now) {
            return Place::Held(slot, meter);
        }
        self.contents.redate(filed(charge), now);
        if let Some(place) = self.place_of_content(charge, now, is_metered) {
            return place;
        }
        let room = |shard: &Self| shard.room(charge, new).filter(|_| shard.len() < bound);
        if let Some(tag) = room(self) {
            return Place::New(tag);
        }
        // Only a full bucket may go: forgetting one that is not would give its owner a full one for nothing, and an
        // attacker would only have to send enough new ids to be rid of a denial.
        let shares = &self.shares;
        self.evicted += self.table.sweep(now, FULL_SWEEP, shares) + self.contents.sweep(now, FULL_SWEEP, shares);
        if let Some(tag) = room(self) {
            return Place::New(tag);
        }
        self.overflowed += 1;
        self.shares.limited(self.shares.tag(charge));
        Place::Shared
    }

    /// Where a bucket is that is not in the table, or that a limit may not look for there.
    fn place_of_content(&mut self, charge: &Charge, now: Micros, is_metered: bool) -> Option<Place> {
        let content = self.contents.get(filed(charge));
        if is_metered {
            return content?.meter().copied().map(Place::Elevated);
        }
        if content.is_some() {
            return Some(Place::Content);
        }
        // A limit with elevated numbers finds what it wrote without them.
        charge.elevated()?;
        self.find(charge, now).map(|(slot, meter)| Place::Held(slot, meter))
    }
}

#[inline]
fn read(shared: Option<&Shared>, place: Place, charge: &Charge) -> Option<Meter> {
    match place {
        Place::Held(_, meter) | Place::Elevated(meter) => Some(meter),
        Place::New(_) | Place::Content => None,
        Place::Shared => shared?.meter(charge),
    }
}

#[inline]
fn apply(shard: &mut Shard, shared: Option<&mut Shared>, place: Place, charge: &Charge, change: Change) {
    let fingerprint = filed(charge);
    match (place, change, shared) {
        (_, Change::Keep, _) | (Place::Shared, _, None) | (Place::Content, ..) => {}
        (Place::Held(slot, _), change, _) => shard.write(Ok(slot), fingerprint, change),
        (Place::New(tag), change, _) => shard.write(Err(tag), fingerprint, change),
        (Place::Elevated(_), change, _) => {
            shard.contents.remove(fingerprint, &shard.shares);
            shard.write(Err(shard.shares.tag(charge)), fingerprint, change);
        }
        (Place::Shared, change, Some(shared)) => shared.apply(charge, change),
    }
}

fn edit_content(
    shard: &mut Shard,
    shared: Option<&mut Shared>,
    place: Place,
    charge: &Charge,
    edit: &Edit,
    now: Micros,
) {
    match (place, shared) {
        (Place::Shared, None) => {}
        (Place::Shared, Some(shared)) => shared.edit(charge, edit, now),
        (Place::Held(..) | Place::New(_) | Place::Content | Place::Elevated(_), _) => {
            let Shard { table, contents, shares, .. } = shard;
            if let Place::Held(..) = place {
                table.remove(filed(charge), shares);
            }
            if contents.apply(filed(charge), edit, || shares.tag(charge), shares) {
                shard.evicted += contents.sweep(now, SWEEP, shares);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::engine::algorithms::charge::{Decision, Mode};
    use crate::engine::algorithms::numbers::Numbers;
    use crate::engine::rules::fingerprint::Fingerprinter;
    use crate::engine::rules::key::opaque;

    const SECOND: u64 = 1_000_000;

    /// A store, and the time at which it is asked, in microseconds.
    struct Timed {
        store: MemoryStore,
        now: Arc<AtomicU64>,
    }

    impl std::ops::Deref for Timed {
        type Target = MemoryStore;

        fn deref(&self) -> &MemoryStore {
            &self.store
        }
    }

    /// A store, and the clock that a test sets for it.
    fn store(max_keys: usize) -> (Timed, Arc<AtomicU64>) {
        let now = Arc::new(AtomicU64::new(1_000 * SECOND));
        (Timed { store: MemoryStore::new(max_keys), now: Arc::clone(&now) }, now)
    }

    fn charge(limit: &str, id: u32, numbers: Numbers, cost: u64, mode: Mode) -> Charge {
        let bucket = opaque(limit, &id.to_string(), &Fingerprinter::new((1, 2)));
        Charge::new(bucket, numbers, cost, mode)
    }

    fn decide(store: &Timed, charges: &[Charge]) -> Decisions {
        let now = Micros(store.now.load(Ordering::Relaxed));
        store.decide(&Batch { charges, effective_from: Micros(0), now }).unwrap()
    }

    /// Spends one token of one bucket; whether it was there.
    fn spend(store: &Timed, limit: &str, id: u32, numbers: Numbers) -> bool {
        !decide(store, &[charge(limit, id, numbers, 1, Mode::Spend)])[0].is_denied()
    }

    /// Refills whole in a second.
    fn brief() -> Numbers {
        Numbers::new(1, 1, 1_000 * SECOND).unwrap()
    }

    /// Never refills.
    fn fixed(burst: u64) -> Numbers {
        Numbers::fixed(burst).unwrap()
    }

    #[test]
    fn what_is_cleared_begins_full_and_has_all_its_room() {
        let (store, _) = store(2);
        let log = Numbers::sliding_log(1, 1_000_000 * SECOND).unwrap();
        for _ in 0..2 {
            for (id, numbers) in [(1, fixed(1)), (2, log), (3, fixed(1))] {
                assert!(spend(&store, "L", id, numbers) && !spend(&store, "L", id, numbers), "{id}");
            }
            assert_eq!(store.usage().keys, 3, "one of them is shared");
            store.clear();
            assert_eq!(store.usage().keys, 0);
        }
    }

    /// Charges ten times as many ids as fit, none of whose buckets ever refills.
    #[track_caller]
    fn check_bound(max_keys: usize, at_most: u64) {
        let (store, _) = store(max_keys);
        let ids = u32::try_from(max_keys).unwrap() * 10;
        for id in 0..ids {
            spend(&store, "L", id, fixed(2));
            // The one beyond is the shared bucket.
            assert!(store.shards.len() > 1 || store.usage().keys <= at_most + 1);
        }
        let usage = store.usage();
        assert!(usage.keys <= at_most + 1 && usage.keys > max_keys as u64, "{usage:?}");
        assert_eq!((usage.evicted, usage.overflowed), (0, u64::from(ids) - (usage.keys - 1)));
        for shard in &store.shards {
            assert!(shard.lock().table.slots() <= table::slots_for(store.keys_per_shard));
        }
    }

    #[test]
    fn ten_times_the_ids_never_exceed_the_bound() {
        check_bound(1, 1);
        check_bound(10, 10);
        check_bound(1_000, 1_000);
        check_bound(13_001, 13_642);
    }

    /// A million ids in a minute, in a table that has room for those of the last second.
    #[test]
    fn a_flood_of_ids_frees_no_exhausted_bucket_and_leaves_the_memory_as_it_was() {
        let (store, now) = store(20_000);
        let hour = Numbers::new(3, 1, 3_600_000 * SECOND).unwrap();
        for _ in 0..3 {
            assert!(spend(&store, "Slow", 0, hour));
        }
        for id in 0..1_000_000 {
            now.fetch_add(60, Ordering::Relaxed);
            assert!(spend(&store, "Fast", id, brief()));
            if id % 50_000 == 0 {
                assert!(!spend(&store, "Slow", 0, hour), "after {id} ids");
            }
        }
        assert!(!spend(&store, "Slow", 0, hour));
        let usage = store.usage();
        assert!(usage.keys <= 20_000 && usage.evicted >= 980_000, "{usage:?}");
        assert_eq!(usage.overflowed, 0);
        // Removed entries leave marks in the table; doubling it to be rid of them would break the bound on memory.
        for shard in &store.shards {
            assert_eq!(shard.lock().table.slots(), table::slots_for(store.keys_per_shard));
        }
    }

    #[test]
    fn an_exhausted_bucket_outlives_a_full_table() {
        let (store, _) = store(100);
        assert!(spend(&store, "L", 0, fixed(1)));
        for id in 1..10_000 {
            spend(&store, "L", id, fixed(1));
        }
        assert!(!spend(&store, "L", 0, fixed(1)));
    }

    #[test]
    fn full_buckets_make_room() {
        let (store, now) = store(100);
        for id in 0..100 {
            assert!(spend(&store, "L", id, brief()));
        }
        assert_eq!(store.usage(), Usage { keys: 100, evicted: 0, overflowed: 0 });
        now.fetch_add(SECOND, Ordering::Relaxed);
        for id in 100..200 {
            assert!(spend(&store, "L", id, brief()));
        }
        assert_eq!(store.usage(), Usage { keys: 100, evicted: 100, overflowed: 0 });
    }

    #[test]
    fn beyond_the_bound_new_ids_share_one_bucket_a_limit() {
        let (store, now) = store(10);
        let slow = Numbers::new(2, 1, 10_000 * SECOND).unwrap();
        for id in 0..10 {
            assert!(spend(&store, "L", id, slow));
        }
        let outcomes = [10, 11, 12, 13].map(|id| spend(&store, "L", id, slow));
        assert_eq!(outcomes, [true, true, false, false]);
        assert!(spend(&store, "Other", 10, slow));
        assert!(spend(&store, "L", 0, slow), "an id that has a bucket keeps it");
        assert_eq!(store.usage(), Usage { keys: 12, evicted: 0, overflowed: 5 });
        now.fetch_add(20 * SECOND, Ordering::Relaxed);
        assert!(spend(&store, "L", 12, slow), "once others are full there is room");
        assert_eq!(store.usage().overflowed, 5);
    }

    fn limit(short: &str, max_keys: Option<u64>) -> LimitKeys {
        LimitKeys { short: short.into(), max_keys, reserve: Reserve::Share, limited: Arc::default() }
    }

    /// Charges so many new ids of a limit; how many found a bucket of their own.
    fn newcomers(store: &Timed, limit: &str, ids: std::ops::Range<u32>, numbers: Numbers) -> u64 {
        let before = store.usage().overflowed;
        let count = ids.len() as u64;
        ids.for_each(|id| {
            spend(store, limit, id, numbers);
        });
        count - (store.usage().overflowed - before)
    }

    #[test]
    fn a_flood_of_one_limit_leaves_the_others_their_shares() {
        let (store, now) = store(100);
        let limits = [limit("Free", None), limit("Users", None), limit("Small", Some(3))];
        store.set_limits(&limits, Micros(0));
        let day = Numbers::new(1, 1, 86_400_000 * SECOND).unwrap();
        // Half of the table in three shares, of which one is smaller, and what is left.
        assert_eq!(newcomers(&store, "Free", 0..150, day), 100 - 16 - 3);
        assert_eq!(newcomers(&store, "Users", 0..30, day), 16);
        assert_eq!(newcomers(&store, "Small", 0..30, day), 3);
        assert!(!spend(&store, "Free", 0, day), "what is exhausted stays");
        assert!(!spend(&store, "Users", 15, day));
        let counted = limits.each_ref().map(|limit| limit.limited.load(Ordering::Relaxed));
        assert_eq!(counted, [150 - 81, 30 - 16, 30 - 3]);
        now.fetch_add(86_400 * SECOND, Ordering::Relaxed);
        assert_eq!(newcomers(&store, "Users", 100..250, day), 100 - 16 - 3, "full buckets of others make room");
    }

    #[test]
    fn limits_come_and_go_and_keep_what_they_hold() {
        let (store, now) = store(100);
        store.set_limits(&[limit("A", None)], Micros(0));
        let hour = Numbers::new(1, 1, 3_600_000 * SECOND).unwrap();
        assert_eq!(newcomers(&store, "A", 0..70, hour), 70);
        store.set_limits(&[limit("B", Some(40)), limit("C", None)], Micros(0));
        assert_eq!(
            newcomers(&store, "B", 0..70, hour),
            25,
            "its share; A, which is gone, holds more than the open half"
        );
        assert!(!spend(&store, "A", 69, hour));
        store.set_limits(&[limit("A", None), limit("B", Some(10))], Micros(0));
        assert_eq!(newcomers(&store, "B", 70..80, hour), 0, "it holds more than it may");
        assert_eq!(newcomers(&store, "A", 70..80, hour), 5);
        now.fetch_add(3_600 * SECOND, Ordering::Relaxed);
        assert_eq!(newcomers(&store, "B", 100..120, hour), 10);
        assert_eq!(newcomers(&store, "A", 100..220, hour), 90);
    }

    /// Its request may find a bucket of its own by the time that it ends.
    #[test]
    fn a_slot_of_a_shared_bucket_is_renewed_and_given_back_there() {
        let (store, _) = store(1);
        let slots = Numbers::slots(1, 60 * 1_000_000_000).unwrap();
        let slot = |id: u32, mode| Charge {
            terms: Some(Box::new(Terms::Slot(Slot(id.into())))),
            ..charge("L", id, slots, 1, mode)
        };
        for (id, mode) in [
            (1, Mode::Spend),
            (2, Mode::Spend),
            (1, Mode::Refund),
            // Renewed, it stays where it is, and leaves the room to another.
            (2, Mode::SpendOnly),
            (3, Mode::Spend),
            (2, Mode::Refund),
            (4, Mode::Spend),
        ] {
            assert_eq!(decide(&store, &[slot(id, mode)])[0].outcome, Outcome::Allowed, "{id} {mode:?}");
        }
    }

    #[test]
    fn charges_are_taken_all_or_none() {
        let (store, _) = store(100_000);
        let charges: Vec<Charge> = (1..=4).map(|id| charge("L", id, fixed(u64::from(id)), 1, Mode::Spend)).collect();
        let remaining =
            |decisions: &[Decision]| -> Vec<u64> { decisions.iter().map(|given| given.remaining).collect() };
        assert_eq!(remaining(&decide(&store, &charges)), [0, 1, 2, 3]);
        let decisions = decide(&store, &charges);
        assert_eq!(remaining(&decisions), [0, 1, 2, 3]);
        let outcomes: Vec<Outcome> = decisions.iter().map(|decision| decision.outcome).collect();
        assert_eq!(outcomes, [Outcome::Denied, Outcome::Unchanged, Outcome::Unchanged, Outcome::Unchanged]);
        assert_eq!(remaining(&decide(&store, &charges[1..])), [0, 1, 2]);
    }

    #[test]
    fn one_bucket_twice_in_a_request_is_refused_and_takes_nothing() {
        let (store, _) = store(100);
        let twice = [(1, 1), (2, 1), (1, 5)].map(|(id, cost)| charge("L", id, fixed(9), cost, Mode::Spend));
        let batch = Batch { charges: &twice, effective_from: Micros(0), now: Micros(0) };
        assert_eq!(store.decide(&batch), Err(StoreError::Duplicate));
        assert_eq!(store.usage().keys, 0);
    }

    #[test]
    fn a_bucket_that_is_given_all_back_is_forgotten() {
        let (store, _) = store(100);
        let spent = charge("L", 1, fixed(5), 3, Mode::Spend);
        for (mode, cost) in [(Mode::Refund, 3), (Mode::Refund, 99), (Mode::Reset, 0)] {
            decide(&store, std::slice::from_ref(&spent));
            assert_eq!(store.usage().keys, 1);
            let given = decide(&store, &[charge("L", 1, fixed(5), cost, mode)])[0];
            assert_eq!((given.outcome, given.remaining), (Outcome::Allowed, 5));
            assert_eq!(store.usage().keys, 0);
        }
        decide(&store, &[charge("L", 1, fixed(5), 1, Mode::Check), charge("L", 2, fixed(5), 0, Mode::Spend)]);
        assert_eq!(store.usage().keys, 0, "what takes nothing writes nothing");
    }

    /// Every thread also charges a bucket of its own in the same request, so that several shards are locked at once.
    #[test]
    fn of_eight_threads_on_one_bucket_exactly_the_burst_pass() {
        let (store, _) = store(100_000);
        let passed: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (1..=8)
                .map(|own| {
                    let store = &store;
                    let charges = [
                        charge("L", 0, fixed(1_000), 1, Mode::Spend),
                        charge("Own", own, fixed(1_000), 1, Mode::Spend),
                    ];
                    scope.spawn(move || {
                        let one_by_one = (0..300).filter(|_| spend(store, "L", 0, fixed(1_000))).count();
                        let together = (0..300).filter(|_| !decide(store, &charges).iter().any(Decision::is_denied));
                        one_by_one + together.count()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(passed, 1_000);
    }

    /// What an operator does: nobody may see the bucket full in between.
    #[test]
    fn requests_in_turn_find_what_those_before_them_left_and_nothing_else() {
        for room in [10_000, 1] {
            let (store, _) = store(room);
            spend(&store, "Other", 1, fixed(5));
            let each = |mode, cost| {
                let log = Numbers::sliding_log(10, 1_000 * SECOND).unwrap();
                [charge("L", 7, fixed(10), cost, mode), charge("M", 7, log, cost, mode)]
            };
            let now = Micros(store.now.load(Ordering::Relaxed));
            let in_turn = |steps: &[(Mode, u64)]| {
                let steps: Vec<_> = steps.iter().map(|(mode, cost)| each(*mode, *cost)).collect();
                let batches: Vec<_> =
                    steps.iter().map(|charges| Batch { charges, effective_from: Micros(0), now }).collect();
                let remaining = |decisions: Decisions| [decisions[0].remaining, decisions[1].remaining];
                store.decide_in_turn(&batches).unwrap().into_iter().map(remaining).collect::<Vec<_>>()
            };
            assert_eq!(in_turn(&[(Mode::Spend, 8), (Mode::Refund, 3), (Mode::Check, 0)]), [[2, 2], [5, 5], [5, 5]]);
            assert_eq!(
                in_turn(&[(Mode::Reset, 0), (Mode::SpendUpTo, 6), (Mode::Check, 0)]),
                [[10, 10], [4, 4], [4, 4]]
            );
            assert_eq!(in_turn(&[(Mode::Check, 0)]), [[4, 4]], "with room for {room}");
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for _ in 0..500 {
                        in_turn(&[(Mode::Reset, 0), (Mode::SpendUpTo, 10)]);
                    }
                });
                for _ in 0..500 {
                    let seen = decide(&store, &each(Mode::Check, 0));
                    assert!(seen[0].remaining <= 4 && seen[1].remaining <= 4, "{seen:?}");
                }
            });
        }
    }
}
