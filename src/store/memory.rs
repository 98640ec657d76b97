//! Buckets in this process' memory: a sharded table of fingerprints, bounded.

use std::collections::HashMap;

use hashbrown::{HashTable, hash_table};
use parking_lot::{Mutex, MutexGuard};

use super::{Batch, Clock, StoreError};
use crate::engine::charge::{Charge, Decision};
use crate::engine::meter::{self, Change, Meter};
use crate::engine::numbers::Micros;
use crate::engine::settle::{has_duplicate, settle};

/// The default bound on the buckets that are held.
pub const DEFAULT_MAX_KEYS: usize = 1_000_000;

/// The buckets a shard is made for. A table of 16 384 slots doubles at 14 336 entries (7/8), so a shard that is at its
/// bound should be nearly, and never quite, that full.
const KEYS_PER_SHARD: usize = 13_000;

/// The buckets a shard takes at most: four standard deviations above its fair share, so that uneven shares turn no id
/// away before the whole table is at its bound.
const SHARD_BOUND: usize = 13_500;

/// Slots that the insertion of a new bucket looks at, to drop those that are full again. Each insertion frees what it
/// passes, so buckets leave at least as fast as they come, and no insertion pays for a whole sweep.
const SWEEP: usize = 8;

/// Slots that a new bucket looks at when its shard is at the bound, before it goes to the shared bucket. A sixteenth of
/// a shard: long enough to find room under churn, short enough (some 10 us) for one request to wait for.
const FULL_SWEEP: usize = 1_024;

/// The table.
pub struct MemoryStore {
    shards: Box<[Mutex<Shard>]>,
    keys_per_shard: usize,
    /// The buckets that new ids share when their shard is at its bound, by `<short>#<window>`: one a window of a limit.
    /// Locked after any shard.
    shared: Mutex<HashMap<String, Meter>>,
    clock: Clock,
}

/// 48 bytes and one of hashbrown's: 1 000 000 buckets take 58 MiB.
#[derive(Clone, Copy)]
struct Entry {
    fingerprint: u128,
    meter: Meter,
}

#[derive(Default)]
struct Shard {
    table: HashTable<Entry>,
    /// The slot at which the next sweep goes on.
    cursor: usize,
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
    /// Charges made to a shared bucket because the table was at its bound.
    pub overflowed: u64,
}

impl MemoryStore {
    /// A table of at most `max_keys` buckets (at least 1), and one more a window of a limit when it is at the bound.
    pub fn new(max_keys: usize, clock: Clock) -> Self {
        let shards = max_keys.div_ceil(KEYS_PER_SHARD).max(1);
        let keys_per_shard = if shards == 1 { max_keys.max(1) } else { SHARD_BOUND };
        let shards = (0..shards).map(|_| Mutex::default()).collect();
        Self { shards, keys_per_shard, shared: Mutex::default(), clock }
    }

    /// Decides the charges of one request, all or nothing.
    pub fn decide(&self, batch: &Batch<'_>) -> Result<Vec<Decision>, StoreError> {
        let now = self.clock.now();
        if let [charge] = batch.charges {
            let mut shard = self.shards[self.shard(charge)].lock();
            let place = shard.place(charge, now, self.keys_per_shard);
            let mut shared = (place == Place::Shared).then(|| self.shared.lock());
            let meter = read(&shard, shared.as_deref(), place, charge);
            let (decision, change) = meter::decide(meter.as_ref(), charge, now, batch.effective_from);
            apply(&mut shard, shared.as_deref_mut(), place, charge, change, self.keys_per_shard);
            return Ok(vec![decision]);
        }
        self.decide_together(batch, now)
    }

    fn decide_together(&self, batch: &Batch<'_>, now: Micros) -> Result<Vec<Decision>, StoreError> {
        if has_duplicate(batch.charges) {
            return Err(StoreError::Duplicate);
        }
        // Every request locks its shards in ascending order and the shared buckets last, so no two can wait for each
        // other.
        let mut numbers: Vec<usize> = batch.charges.iter().map(|charge| self.shard(charge)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let mut shards: Vec<MutexGuard<'_, Shard>> = numbers.iter().map(|number| self.shards[*number].lock()).collect();
        let guard = |charge: &Charge| numbers.partition_point(|number| *number < self.shard(charge));
        let places: Vec<Place> =
            batch.charges.iter().map(|charge| shards[guard(charge)].place(charge, now, self.keys_per_shard)).collect();
        let mut shared = places.contains(&Place::Shared).then(|| self.shared.lock());
        let mut changes = Vec::with_capacity(batch.charges.len());
        let decisions = settle(
            batch.charges,
            now,
            batch.effective_from,
            |place, charge| read(&shards[guard(charge)], shared.as_deref(), places[place], charge),
            |place, change| changes.push((place, change)),
        );
        for (place, change) in changes {
            let charge = &batch.charges[place];
            apply(
                &mut shards[guard(charge)],
                shared.as_deref_mut(),
                places[place],
                charge,
                change,
                self.keys_per_shard,
            );
        }
        Ok(decisions)
    }

    /// What the table holds; locks one shard after the other.
    pub fn usage(&self) -> Usage {
        let mut usage = Usage { keys: self.shared.lock().len() as u64, ..Usage::default() };
        for shard in &self.shards {
            let shard = shard.lock();
            usage.keys += shard.table.len() as u64;
            usage.evicted += shard.evicted;
            usage.overflowed += shard.overflowed;
        }
        usage
    }

    /// The shard of a charge: the high half of the fingerprint, scaled; the low half serves the table inside.
    #[expect(clippy::cast_possible_truncation, reason = "a fraction of the number of shards is less than it")]
    fn shard(&self, charge: &Charge) -> usize {
        let high = charge.bucket.fingerprint >> 64;
        ((high * self.shards.len() as u128) >> 64) as usize
    }
}

/// Where a charge's bucket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Under its own fingerprint, or to be put there.
    Own,
    /// In the limit's shared bucket: the bucket is new and there is no room.
    Shared,
}

impl Shard {
    fn place(&mut self, charge: &Charge, now: Micros, bound: usize) -> Place {
        if self.table.len() < bound || self.find(charge).is_some() {
            return Place::Own;
        }
        // Only a full bucket may go: forgetting one that is not would give its owner a full one for nothing, and an
        // attacker would only have to send enough new ids to be rid of a denial.
        self.sweep(now, FULL_SWEEP);
        if self.table.len() < bound {
            return Place::Own;
        }
        self.overflowed += 1;
        Place::Shared
    }

    fn find(&self, charge: &Charge) -> Option<Meter> {
        let fingerprint = charge.bucket.fingerprint;
        self.table.find(hash(fingerprint), |entry| entry.fingerprint == fingerprint).map(|entry| entry.meter)
    }

    fn write(&mut self, charge: &Charge, meter: Meter, bound: usize) {
        let fingerprint = charge.bucket.fingerprint;
        let same = |entry: &Entry| entry.fingerprint == fingerprint;
        if self.table.len() == self.table.capacity() && self.table.num_buckets() >= slots_for(bound) {
            self.compact(bound);
        }
        match self.table.entry(hash(fingerprint), same, |entry| hash(entry.fingerprint)) {
            hash_table::Entry::Occupied(mut entry) => entry.get_mut().meter = meter,
            hash_table::Entry::Vacant(slot) => {
                slot.insert(Entry { fingerprint, meter });
                self.sweep(meter.since, SWEEP);
            }
        }
    }

    /// Makes the table anew at its final size.
    ///
    /// hashbrown counts the slots of removed entries as taken until it rehashes, and when more than half of the table
    /// is live it doubles instead of rehashing in place. Under churn that would break the bound on memory.
    fn compact(&mut self, bound: usize) {
        let mut table = HashTable::with_capacity(slots_for(bound) / 8 * 7);
        for entry in self.table.drain() {
            table.insert_unique(hash(entry.fingerprint), entry, |entry| hash(entry.fingerprint));
        }
        self.table = table;
    }

    fn clear(&mut self, charge: &Charge) {
        let fingerprint = charge.bucket.fingerprint;
        if let Ok(entry) = self.table.find_entry(hash(fingerprint), |entry| entry.fingerprint == fingerprint) {
            entry.remove();
        }
    }

    /// Drops the buckets that are full at `now` among the next `slots` slots.
    fn sweep(&mut self, now: Micros, slots: usize) {
        let all = self.table.num_buckets();
        for _ in 0..slots.min(all) {
            self.cursor = if self.cursor + 1 < all { self.cursor + 1 } else { 0 };
            if let Ok(entry) = self.table.get_bucket_entry(self.cursor)
                && entry.get().meter.is_full(now)
            {
                entry.remove();
                self.evicted += 1;
            }
        }
    }
}

fn read(shard: &Shard, shared: Option<&HashMap<String, Meter>>, place: Place, charge: &Charge) -> Option<Meter> {
    match place {
        Place::Own => shard.find(charge),
        Place::Shared => shared?.get(&shared_key(charge)).copied(),
    }
}

fn apply(
    shard: &mut Shard,
    shared: Option<&mut HashMap<String, Meter>>,
    place: Place,
    charge: &Charge,
    change: Change,
    bound: usize,
) {
    match (place, change, shared) {
        (_, Change::Keep, _) | (Place::Shared, _, None) => {}
        (Place::Own, Change::Write(meter), _) => shard.write(charge, meter, bound),
        (Place::Own, Change::Clear, _) => shard.clear(charge),
        (Place::Shared, Change::Write(meter), Some(shared)) => {
            // Limits that a reload removed leave their bucket here until it is full.
            shared.retain(|_, other| !other.is_full(meter.since));
            shared.insert(shared_key(charge), meter);
        }
        (Place::Shared, Change::Clear, Some(shared)) => {
            shared.remove(&shared_key(charge));
        }
    }
}

/// The bucket that new ids share: the key without its id.
fn shared_key(charge: &Charge) -> String {
    let key = &charge.bucket.key;
    let short = key.split([':', '#']).next().unwrap_or(key);
    let window = key.rsplit_once('#').map_or("0", |(_, window)| window);
    format!("{short}#{window}")
}

/// The slots of a table for `bound` entries, with a twentieth to spare for slots of removed ones.
fn slots_for(bound: usize) -> usize {
    ((bound + bound / 20) * 8 / 7 + 1).next_power_of_two().max(16)
}

/// A fingerprint is a hash already; its low half serves the table.
#[expect(clippy::cast_possible_truncation, reason = "the low half is meant")]
const fn hash(fingerprint: u128) -> u64 {
    fingerprint as u64
}
