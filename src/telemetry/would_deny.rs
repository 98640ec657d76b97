//! The ids that a limit in shadow or a candidate would have denied since it began, in bounded memory.
//!
//! An id is counted in the shard of its hash, whichever worker decides, so what is known of it is in one place. A shard is locked for one
//! look-up, or while a reader copies it.

use std::cmp::Reverse;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::engine::algorithms::micros::Micros;
use crate::engine::frequent_ids::FrequentIds;

/// The lists of a process that have ids, of about 0.5 MiB each when full. Further ones only count.
pub const MOST_LISTS: usize = 64;

const SHARDS: usize = 16;

/// The ids that a shard keeps when it is full: a list has at least 2,048 ids then, and at most 3,584.
const IDS_OF_SHARD: usize = 128;

const MINUTE: u64 = 60_000_000;

/// The number of lists that have ids.
#[derive(Clone, Debug, Default)]
pub struct ListCount(Arc<AtomicUsize>);

/// The ids that one limit in shadow, or one candidate, would deny.
#[derive(Debug)]
pub struct WouldDeny {
    since: Micros,
    lists: ListCount,
    /// Made by the first id; `None` if there were too many lists.
    shards: OnceLock<Option<Box<[Mutex<Shard>; SHARDS]>>>,
    /// Denials without an id, or in a list without ids.
    unlisted: AtomicU64,
}

#[derive(Debug, Default)]
struct Shard {
    denied: u64,
    ids: FrequentIds<u64, Known, IDS_OF_SHARD>,
}

/// The facts about an id.
#[derive(Clone, Debug)]
struct Known {
    key: Box<str>,
    first: Micros,
    last: Micros,
    /// The minute of the last denial, since the Unix epoch.
    minute: u64,
    in_minute: u32,
    peak: u32,
    peak_minute: u64,
}

/// An id that would be denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WouldBeDenied {
    /// The half of the fingerprint that logs show as well.
    pub hash: u64,
    /// The key of its bucket.
    pub key: Box<str>,
    /// At most `error` too high.
    pub denied: u64,
    pub error: u64,
    /// The rest is since it has a counter: with an `error`, earlier denials may be missing.
    pub first: Micros,
    pub last: Micros,
    /// The most denials in one minute of the clock, and the start of that minute.
    pub peak: u32,
    pub peak_at: Micros,
}

/// The content of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WouldBeDeniedList {
    pub since: Micros,
    /// Those that were certainly denied most come first.
    pub ids: Vec<WouldBeDenied>,
    /// The denials of no id of the list, at most `others_error` too high.
    pub others: u64,
    pub others_error: u64,
}

impl ListCount {
    /// Returns whether another list may have ids, and counts it.
    fn take(&self) -> bool {
        let more = |lists| (lists < MOST_LISTS).then_some(lists + 1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }
}

impl WouldDeny {
    pub const fn new(since: Micros, lists: ListCount) -> Self {
        Self { since, lists, shards: OnceLock::new(), unlisted: AtomicU64::new(0) }
    }

    /// Returns true if there were too many lists when the first id came.
    pub fn lacks_room(&self) -> bool {
        matches!(self.shards.get(), Some(None))
    }

    /// Counts a denial of an id, given by the half of its fingerprint that logs show. `key` is called if the id gets a counter.
    pub fn add(&self, id: u64, now: Micros, key: impl FnOnce() -> Box<str>) {
        let shards = self.shards.get_or_init(|| self.lists.take().then(Box::default));
        // Maps take the other bits.
        let shard = shards.as_ref().and_then(|shards| shards.get((id >> 32) as usize % SHARDS));
        match shard {
            Some(shard) => shard.lock().add(id, now, key),
            None => self.add_without_id(),
        }
    }

    pub fn add_without_id(&self) {
        self.unlisted.fetch_add(1, Ordering::Relaxed);
    }

    pub fn list(&self) -> WouldBeDeniedList {
        let others = self.unlisted.load(Ordering::Relaxed);
        let mut list = WouldBeDeniedList { since: self.since, ids: Vec::new(), others, others_error: 0 };
        for shard in self.shards.get().and_then(Option::as_deref).into_iter().flatten() {
            shard.lock().add_to(&mut list);
        }
        list.ids.sort_by_key(|id| (Reverse((id.denied - id.error, id.denied)), id.hash));
        list
    }
}

impl Drop for WouldDeny {
    fn drop(&mut self) {
        if let Some(Some(_)) = self.shards.get() {
            self.lists.0.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Shard {
    fn add(&mut self, id: u64, now: Micros, key: impl FnOnce() -> Box<str>) {
        self.denied += 1;
        self.ids.note(id, || Known::new(now, key()), |known| known.count(now));
    }

    fn add_to(&self, list: &mut WouldBeDeniedList) {
        let (mut most, mut least) = (0, 0);
        for (hash, counter) in self.ids.counters() {
            let (denied, error, known) = (counter.count, counter.error, &counter.text);
            most += denied;
            least += denied - error;
            list.ids.push(WouldBeDenied {
                hash,
                key: known.key.clone(),
                denied,
                error,
                first: known.first,
                last: known.last,
                peak: known.peak,
                peak_at: Micros(known.peak_minute * MINUTE),
            });
        }
        let others = self.denied - least;
        list.others += others;
        list.others_error += others - self.denied.saturating_sub(most);
    }
}

impl Known {
    const fn new(now: Micros, key: Box<str>) -> Self {
        let minute = now.0 / MINUTE;
        Self { key, first: now, last: now, minute, in_minute: 0, peak: 0, peak_minute: minute }
    }

    fn count(&mut self, now: Micros) {
        self.first = self.first.min(now);
        self.last = self.last.max(now);
        let minute = now.0 / MINUTE;
        if self.minute != minute {
            (self.minute, self.in_minute) = (minute, 0);
        }
        self.in_minute = self.in_minute.saturating_add(1);
        if self.in_minute > self.peak {
            (self.peak, self.peak_minute) = (self.in_minute, minute);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::engine::stable_hash::stable;

    const START: Micros = Micros(1_800_000_000_000_000);

    /// The exact counts of an id.
    #[derive(Default)]
    struct Exact {
        times: Vec<Micros>,
    }

    impl Exact {
        /// The most in one minute, and the first minute with so many.
        fn peak(&self) -> (u32, Micros) {
            let mut minutes = HashMap::<u64, u32>::new();
            let mut peak = (0, Micros(0));
            for time in &self.times {
                let count = minutes.entry(time.0 / MINUTE).or_default();
                *count += 1;
                if *count > peak.0 {
                    peak = (*count, Micros(time.0 / MINUTE * MINUTE));
                }
            }
            peak
        }
    }

    /// Counts denials of numbered ids, a second apart, and compares with exact counts.
    #[track_caller]
    fn check(stream: &[u64], without_id: u64) -> WouldBeDeniedList {
        let counted = WouldDeny::new(START, ListCount::default());
        let mut exact = HashMap::<u64, Exact>::new();
        for (second, number) in (0..).zip(stream) {
            let (id, now) = (stable(&number.to_le_bytes()), START.after(Micros(second * 1_000_000)));
            counted.add(id, now, || number.to_string().into());
            exact.entry(id).or_default().times.push(now);
        }
        (0..without_id).for_each(|_| counted.add_without_id());
        let list = counted.list();
        let mut others = stream.len() as u64 + without_id;
        for id in &list.ids {
            let exact = &exact[&id.hash];
            let denied = exact.times.len() as u64;
            others -= denied;
            assert!(id.denied - id.error <= denied && denied <= id.denied, "{id:?}: exactly {denied}");
            assert_eq!(stable(&id.key.parse::<u64>().unwrap().to_le_bytes()), id.hash);
            assert_eq!(Some(&id.last), exact.times.last());
            let (first, peak) = (exact.times[0], exact.peak());
            if id.error == 0 {
                assert_eq!((id.denied, id.first, id.peak, id.peak_at), (denied, first, peak.0, peak.1), "{id:?}");
            }
            assert!(id.first >= first && id.first <= id.last && id.peak <= peak.0 && id.peak > 0, "{id:?}");
        }
        let (most, error) = (list.others, list.others_error);
        assert!(most - error <= others && others <= most, "{most} with {error}: exactly {others}");
        if exact.len() <= IDS_OF_SHARD {
            assert_eq!((list.ids.len(), list.others, list.others_error), (exact.len(), without_id, 0));
        }
        assert!(list.ids.len() <= SHARDS * IDS_OF_SHARD / 4 * 7, "{}", list.ids.len());
        list
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        /// Streams of few ids or of more than there is room for; with more `skew`, some come more often.
        #[test]
        fn lists_are_as_exact_as_they_say(
            ids in prop_oneof![1_u64..100, 1_000_u64..20_000],
            skew in 1_i32..6,
            shares in vec(0.0..1.0_f64, 0..8_000),
            without_id in 0_u64..3,
        ) {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "small")]
            let stream: Vec<u64> = shares.iter().map(|share| (share.powi(skew) * ids as f64) as u64).collect();
            check(&stream, without_id);
        }
    }

    #[test]
    fn the_most_denied_stay_when_there_are_too_many() {
        let stream: Vec<u64> = (1_000..21_000).flat_map(|rare| [rare, rare % 10]).collect();
        let list = check(&stream, 0);
        let first: Vec<u64> = list.ids[..10].iter().map(|id| id.key.parse().unwrap()).collect();
        assert!(first.iter().all(|number| *number < 10), "{first:?}");
        assert!(list.ids.len() >= 2_048 && list.others > 10_000 && list.others_error < list.others, "{}", list.others);
    }

    #[test]
    fn lists_beyond_the_bound_only_count() {
        let lists = ListCount::default();
        let new = || WouldDeny::new(START, lists.clone());
        let mut full: Vec<WouldDeny> = (0..MOST_LISTS).map(|_| new()).collect();
        let idle = new();
        for list in &full {
            list.add(1, START, || "L:1".into());
        }
        idle.add(1, START, || "L:1".into());
        let ids = |list: &WouldDeny| (list.list().ids.len(), list.list().others, list.lacks_room());
        assert_eq!((ids(&idle), ids(&full[0])), ((0, 1, true), (1, 0, false)));
        full.pop();
        let next = new();
        next.add(1, START, || "L:1".into());
        assert_eq!(ids(&next), (1, 0, false));
    }
}
