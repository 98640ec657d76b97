//! Buckets in this process's memory: a sharded, bounded table of fingerprints.

use std::sync::Arc;

use locked::Locked;
use overflow::Overflow;
use parking_lot::{Mutex, MutexGuard};
use quotas::Quotas;
use shard::{BucketPlace, Shard};
use shares::Shares;
pub use shares::{LimitKeys, Reserve};

use super::{Batch, StoreError};
use crate::engine::algorithms::charge::Charge;
use crate::engine::algorithms::decision::{Attempt, Decisions};
use crate::engine::algorithms::level::LevelChange;
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::state::{self, Edit};
use crate::engine::algorithms::taking::has_duplicate;

mod limits;
mod locked;
#[cfg(test)]
mod model;
mod overflow;
mod quotas;
mod shard;
mod shares;
mod states;
mod table;

/// The default maximum number of buckets.
pub const DEFAULT_MAX_KEYS: usize = 1_000_000;

/// The buckets of a shard. They take some 600 KiB, which is the most that growing a shard moves at once. With shards of this
/// size, two threads rarely meet in one.
const KEYS_PER_SHARD: usize = 13_000;

pub struct MemoryStore {
    shards: Box<[Mutex<Shard>]>,
    max_keys: usize,
    keys_per_shard: usize,
    /// Locked after any shard.
    overflow: Mutex<Overflow>,
    /// Locked after the overflow.
    quotas: Mutex<Quotas>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Buckets and quotas held.
    pub keys: u64,
    /// Buckets dropped because they were full again.
    pub evicted: u64,
    /// Charges made to a shared bucket because the table or the limit was at its bound.
    pub overflowed: u64,
}

impl MemoryStore {
    /// A table of `max_keys` buckets (at least 1), and one more for each window of a limit that is at the bound.
    ///
    /// Ids are spread over shards by chance. A shard takes four standard deviations more than its fair share, so that none
    /// rejects an id before the whole table is at its bound.
    pub fn new(max_keys: usize) -> Self {
        Self::with_shards(max_keys, max_keys.div_ceil(KEYS_PER_SHARD).max(1))
    }

    fn with_shards(max_keys: usize, shards: usize) -> Self {
        let fair = max_keys.div_ceil(shards).max(1);
        let keys_per_shard = if shards == 1 { fair } else { fair + 4 * fair.isqrt() };
        let shares = Arc::new(Shares::of_none(max_keys));
        let shards = (0..shards).map(|_| Mutex::new(Shard::new(keys_per_shard, shares.clone()))).collect();
        Self { shards, max_keys, keys_per_shard, overflow: Mutex::default(), quotas: Mutex::default() }
    }

    /// Divides the table among the limits of rules that took effect at `changed`. Before the first call, any limit may use all
    /// of it. The buckets of other limits stay until they are full.
    pub fn set_limits(&self, limits: &[LimitKeys], changed: Micros) {
        let mut shards: Vec<MutexGuard<'_, Shard>> = self.shards.iter().map(Mutex::lock).collect();
        let Some(first) = shards.first() else { return };
        let shares = Arc::new(first.shares.renewed(limits, self.max_keys, changed));
        for shard in &mut shards {
            shard.shares = shares.clone();
        }
    }

    /// Removes all buckets and quotas.
    pub fn clear(&self) {
        let mut shards: Vec<MutexGuard<'_, Shard>> = self.shards.iter().map(Mutex::lock).collect();
        for shard in &mut shards {
            shard.clear(self.keys_per_shard);
        }
        *self.overflow.lock() = Overflow::default();
        *self.quotas.lock() = Quotas::default();
    }

    /// Removes all buckets of a limit, given its name in keys. Locks one shard after the other: an operator's reset must not hold up
    /// requests.
    pub fn remove_limit(&self, short: &str) {
        for shard in &self.shards {
            shard.lock().remove_limit(short);
        }
        self.overflow.lock().remove_limit(short);
    }

    /// Decides the charges of one request, all or nothing.
    pub fn decide(&self, batch: &Batch<'_>) -> Result<Decisions, StoreError> {
        if let [charge] = batch.charges
            && let Some(decisions) = self.decide_level_alone(charge, batch)
        {
            return Ok(decisions);
        }
        if has_duplicate(batch.charges) {
            return Err(StoreError::Duplicate);
        }
        Locked::of(self, batch.charges.iter()).decide(batch)
    }

    /// Decides a request of one charge to a level in the table, as most are. `None` if its bucket is elsewhere. [`Locked`] would do the
    /// same, in 800 instructions more: a seventh of what `weir simulate` takes for a line. The tests of `model` drive both.
    fn decide_level_alone(&self, charge: &Charge, batch: &Batch<'_>) -> Option<Decisions> {
        if !charge.keeps_level() || charge.origin.is_strike() || charge.reservation().is_some() {
            return None;
        }
        let now = batch.now;
        let mut shard = self.shards.get(self.shard_number(charge))?.lock();
        let place = shard.place(charge, now, self.keys_per_shard, &[]);
        let level = match place {
            BucketPlace::Table(level) => Some(level),
            BucketPlace::New(_) => None,
            BucketPlace::States | BucketPlace::Overflow | BucketPlace::OverflowSlot => return None,
        };
        let (decision, change) = state::decide_level(level.as_ref(), charge, now, batch.effective_from);
        let is_written = change != LevelChange::Keep;
        if is_written && shard.apply(place, charge, &Edit::Level(change)) {
            shard.tidy(now);
        }
        drop(shard);
        let taken = level.map_or(now, |level| level.since.max(now));
        let mut decisions = Decisions::from_iter([decision]);
        if charge.is_told() {
            let detail = Attempt::new(decision, is_written.then_some(())).told(charge, taken).detail;
            decisions.details.extend(detail.map(|detail| (0, detail)));
        }
        Some(decisions)
    }

    /// Decides several requests one after the other, without another request in between.
    pub fn decide_in_turn(&self, batches: &[Batch<'_>]) -> Result<Vec<Decisions>, StoreError> {
        if batches.iter().any(|batch| has_duplicate(batch.charges)) {
            return Err(StoreError::Duplicate);
        }
        let mut locked = Locked::of(self, batches.iter().flat_map(|batch| batch.charges));
        batches.iter().map(|batch| locked.decide(batch)).collect()
    }

    /// Locks one shard after the other.
    pub fn usage(&self) -> Usage {
        let (shared, quotas) = (self.overflow.lock().len(), self.quotas.lock().len());
        let mut usage = Usage { keys: (shared + quotas) as u64, ..Usage::default() };
        for shard in &self.shards {
            let shard = shard.lock();
            usage.keys += shard.len() as u64;
            usage.evicted += shard.evicted;
            usage.overflowed += shard.overflowed;
        }
        usage
    }

    /// Returns the number of a charge's shard: the high half of the fingerprint, scaled.
    #[expect(clippy::cast_possible_truncation, reason = "a fraction of the number of shards is less than it")]
    fn shard_number(&self, charge: &Charge) -> usize {
        let high = charge.bucket.fingerprint >> 64;
        ((high * self.shards.len() as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::engine::algorithms::charge::{Input, Mode, Slot};
    use crate::engine::algorithms::decision::{Decision, Outcome};
    use crate::engine::algorithms::numbers::Numbers;
    use crate::engine::limit::fingerprint::Fingerprinter;
    use crate::engine::limit::key::opaque;

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

    fn charge(limit: &str, id: u32, numbers: &Numbers, cost: u64, mode: Mode) -> Charge {
        let bucket = opaque(limit, &id.to_string(), &Fingerprinter::new((1, 2)));
        Charge::new(bucket, numbers.clone(), cost, mode)
    }

    fn decide(store: &Timed, charges: &[Charge]) -> Decisions {
        let now = Micros(store.now.load(Ordering::Relaxed));
        store.decide(&Batch { charges, effective_from: Micros(0), now }).unwrap()
    }

    /// Spends one token of one bucket; whether it was there.
    fn spend(store: &Timed, limit: &str, id: u32, numbers: &Numbers) -> bool {
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
            for (id, numbers) in [(1, &fixed(1)), (2, &log), (3, &fixed(1))] {
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
            spend(&store, "L", id, &fixed(2));
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
            assert!(spend(&store, "Slow", 0, &hour));
        }
        for id in 0..1_000_000 {
            now.fetch_add(60, Ordering::Relaxed);
            assert!(spend(&store, "Fast", id, &brief()));
            if id % 50_000 == 0 {
                assert!(!spend(&store, "Slow", 0, &hour), "after {id} ids");
            }
        }
        assert!(!spend(&store, "Slow", 0, &hour));
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
        assert!(spend(&store, "L", 0, &fixed(1)));
        for id in 1..10_000 {
            spend(&store, "L", id, &fixed(1));
        }
        assert!(!spend(&store, "L", 0, &fixed(1)));
    }

    #[test]
    fn full_buckets_make_room() {
        let (store, now) = store(100);
        for id in 0..100 {
            assert!(spend(&store, "L", id, &brief()));
        }
        assert_eq!(store.usage(), Usage { keys: 100, evicted: 0, overflowed: 0 });
        now.fetch_add(SECOND, Ordering::Relaxed);
        for id in 100..200 {
            assert!(spend(&store, "L", id, &brief()));
        }
        assert_eq!(store.usage(), Usage { keys: 100, evicted: 100, overflowed: 0 });
    }

    #[test]
    fn beyond_the_bound_new_ids_share_one_bucket_a_limit() {
        let (store, now) = store(10);
        let slow = Numbers::new(2, 1, 10_000 * SECOND).unwrap();
        for id in 0..10 {
            assert!(spend(&store, "L", id, &slow));
        }
        let outcomes = [10, 11, 12, 13].map(|id| spend(&store, "L", id, &slow));
        assert_eq!(outcomes, [true, true, false, false]);
        assert!(spend(&store, "Other", 10, &slow));
        assert!(spend(&store, "L", 0, &slow), "an id that has a bucket keeps it");
        assert_eq!(store.usage(), Usage { keys: 12, evicted: 0, overflowed: 5 });
        now.fetch_add(20 * SECOND, Ordering::Relaxed);
        assert!(spend(&store, "L", 12, &slow), "once others are full there is room");
        assert_eq!(store.usage().overflowed, 5);
    }

    fn limit(short: &str, max_keys: Option<u64>) -> LimitKeys {
        LimitKeys { short: short.into(), max_keys, reserve: Reserve::Share, limited: Arc::default() }
    }

    /// Charges so many new ids of a limit; how many found a bucket of their own.
    fn newcomers(store: &Timed, limit: &str, ids: std::ops::Range<u32>, numbers: &Numbers) -> u64 {
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
        assert_eq!(newcomers(&store, "Free", 0..150, &day), 100 - 16 - 3);
        assert_eq!(newcomers(&store, "Users", 0..30, &day), 16);
        assert_eq!(newcomers(&store, "Small", 0..30, &day), 3);
        assert!(!spend(&store, "Free", 0, &day), "what is exhausted stays");
        assert!(!spend(&store, "Users", 15, &day));
        let counted = limits.each_ref().map(|limit| limit.limited.load(Ordering::Relaxed));
        assert_eq!(counted, [150 - 81, 30 - 16, 30 - 3]);
        now.fetch_add(86_400 * SECOND, Ordering::Relaxed);
        assert_eq!(newcomers(&store, "Users", 100..250, &day), 100 - 16 - 3, "full buckets of others make room");
    }

    #[test]
    fn limits_come_and_go_and_keep_what_they_hold() {
        let (store, now) = store(100);
        store.set_limits(&[limit("A", None)], Micros(0));
        let hour = Numbers::new(1, 1, 3_600_000 * SECOND).unwrap();
        assert_eq!(newcomers(&store, "A", 0..70, &hour), 70);
        store.set_limits(&[limit("B", Some(40)), limit("C", None)], Micros(0));
        assert_eq!(
            newcomers(&store, "B", 0..70, &hour),
            25,
            "its share; A, which is gone, holds more than the open half"
        );
        assert!(!spend(&store, "A", 69, &hour));
        store.set_limits(&[limit("A", None), limit("B", Some(10))], Micros(0));
        assert_eq!(newcomers(&store, "B", 70..80, &hour), 0, "it holds more than it may");
        assert_eq!(newcomers(&store, "A", 70..80, &hour), 5);
        now.fetch_add(3_600 * SECOND, Ordering::Relaxed);
        assert_eq!(newcomers(&store, "B", 100..120, &hour), 10);
        assert_eq!(newcomers(&store, "A", 100..220, &hour), 90);
    }

    #[test]
    fn limits_that_are_gone_leave_their_place_to_others() {
        let (store, _) = store(100);
        for number in 0..=1 << shares::TAG_BITS {
            store.set_limits(&[limit(&format!("L{number}"), Some(2))], Micros(0));
        }
        let hour = Numbers::new(1, 1, 3_600_000 * SECOND).unwrap();
        let last = format!("L{}", 1 << shares::TAG_BITS);
        assert_eq!(newcomers(&store, &last, 0..5, &hour), 2, "the last one is bounded by itself");
    }

    /// Its request may find a bucket of its own by the time that it ends.
    #[test]
    fn a_slot_of_a_shared_bucket_is_renewed_and_given_back_there() {
        let (store, _) = store(1);
        let slots = Numbers::concurrency(1, 60 * 1_000_000_000).unwrap();
        let slot = |id: u32, mode| Charge {
            input: Some(Box::new(Input::Slot(Slot(id.into())))),
            ..charge("L", id, &slots, 1, mode)
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
        let charges: Vec<Charge> = (1..=4).map(|id| charge("L", id, &fixed(u64::from(id)), 1, Mode::Spend)).collect();
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
    fn a_bucket_twice_in_a_request_is_an_error_and_takes_nothing() {
        let (store, _) = store(100);
        let twice = [(1, 1), (2, 1), (1, 5)].map(|(id, cost)| charge("L", id, &fixed(9), cost, Mode::Spend));
        let batch = Batch { charges: &twice, effective_from: Micros(0), now: Micros(0) };
        assert_eq!(store.decide(&batch), Err(StoreError::Duplicate));
        assert_eq!(store.usage().keys, 0);
    }

    #[test]
    fn a_bucket_that_is_given_all_back_is_forgotten() {
        let (store, _) = store(100);
        let spent = charge("L", 1, &fixed(5), 3, Mode::Spend);
        for (mode, cost) in [(Mode::Refund, 3), (Mode::Refund, 99), (Mode::Reset, 0)] {
            decide(&store, std::slice::from_ref(&spent));
            assert_eq!(store.usage().keys, 1);
            let given = decide(&store, &[charge("L", 1, &fixed(5), cost, mode)])[0];
            assert_eq!((given.outcome, given.remaining), (Outcome::Allowed, 5));
            assert_eq!(store.usage().keys, 0);
        }
        decide(&store, &[charge("L", 1, &fixed(5), 1, Mode::Check), charge("L", 2, &fixed(5), 0, Mode::Spend)]);
        assert_eq!(store.usage().keys, 0, "what takes nothing writes nothing");
    }

    /// The bucket that the first charge adds makes the store look for full ones. By its last write the log is one, but not by the
    /// longer period that it is charged under now.
    #[test]
    fn what_a_decision_has_counted_stays_until_its_charge_is_made() {
        let (store, now) = store(100);
        let log = |seconds: u64| Numbers::sliding_log(5, seconds * 1_000 * SECOND).unwrap();
        assert!(spend(&store, "L", 1, &log(1)));
        now.fetch_add(SECOND, Ordering::Relaxed);
        let charges = [2, 1].map(|id| charge("L", id, &log(2), 1, Mode::Spend));
        assert_eq!(decide(&store, &charges)[1].remaining, 3);
        assert_eq!(decide(&store, &[charge("L", 1, &log(2), 0, Mode::Check)])[0].remaining, 3);
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
                        charge("L", 0, &fixed(1_000), 1, Mode::Spend),
                        charge("Own", own, &fixed(1_000), 1, Mode::Spend),
                    ];
                    scope.spawn(move || {
                        let one_by_one = (0..300).filter(|_| spend(store, "L", 0, &fixed(1_000))).count();
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
            spend(&store, "Other", 1, &fixed(5));
            let each = |mode, cost| {
                let log = Numbers::sliding_log(10, 1_000 * SECOND).unwrap();
                [charge("L", 7, &fixed(10), cost, mode), charge("M", 7, &log, cost, mode)]
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
