//! The ids that each limit has denied most in the last minutes, in bounded memory.
//!
//! Each worker counts in sketches of its own, which a reader merges. A worker's lock is held by somebody else only while a reader copies a
//! limit. Requests that no limit denies cost nothing.

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::engine::frequent_ids::FrequentIds;

/// The counts of one period. An id with more than a 64th of the denials is among them. Its text is the key of its bucket.
type Sketch = FrequentIds<u64, Box<str>, MOST_IDS>;

/// The limits that a worker counts for: 13 KiB for each kind of denial, and the keys. A further limit takes the
/// place of one that has denied nothing for two [`GENERATION`]s.
const MOST_LIMITS: usize = 256;

/// A period of counting. A list covers the current period and the one before: the last 5 to 10 minutes.
pub const GENERATION: Duration = Duration::from_mins(5);

/// The longest list.
pub const MOST_IDS: usize = 64;

/// A kind of denial, with a list of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenialKind {
    Denied,
    /// By a limit or an id in shadow.
    Shadow,
    Candidate,
}

impl DenialKind {
    pub const ALL: [Self; 3] = [Self::Denied, Self::Shadow, Self::Candidate];
}

/// An id of a limit, and how often it was denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeniedId {
    /// The half of the fingerprint that logs show as well.
    pub hash: u64,
    /// The key of its bucket.
    pub key: Box<str>,
    /// At most `error` too high.
    pub denied: u64,
    pub error: u64,
}

/// The sketches of all workers.
#[derive(Debug, Default)]
pub struct MostDenied {
    workers: Mutex<Vec<Weak<WorkerDenials>>>,
}

/// The sketches of one worker.
#[derive(Debug, Default)]
pub struct WorkerDenials {
    limits: Mutex<Vec<LimitDenials>>,
}

/// The place of a limit in a worker's list, if it is known.
#[derive(Debug)]
pub struct PlaceHint(Cell<usize>);

impl Default for PlaceHint {
    fn default() -> Self {
        Self(Cell::new(usize::MAX))
    }
}

#[derive(Debug)]
struct LimitDenials {
    name: Box<str>,
    kinds: [Generations; DenialKind::ALL.len()],
}

/// The counts of two periods.
#[derive(Debug)]
struct Generations {
    began: Instant,
    current: Sketch,
    last: Sketch,
}

impl MostDenied {
    /// Returns the sketches of a new worker. They are dropped with it.
    pub fn join(&self) -> Arc<WorkerDenials> {
        let worker = Arc::default();
        let mut workers = self.workers.lock();
        workers.retain(|worker| worker.strong_count() > 0);
        workers.push(Arc::downgrade(&worker));
        worker
    }

    /// Returns the names of limits that may have denied lately.
    pub fn limits(&self) -> BTreeSet<Box<str>> {
        let workers: Vec<_> = self.workers.lock().iter().filter_map(Weak::upgrade).collect();
        let mut names = BTreeSet::new();
        for worker in workers {
            names.extend(worker.limits.lock().iter().map(|limit| limit.name.clone()));
        }
        names
    }

    /// Returns up to `most` ids that a limit has denied most at `now`, those that were certainly denied most first.
    pub fn of(&self, limit: &str, kind: DenialKind, most: usize, now: Instant) -> Vec<DeniedId> {
        let workers: Vec<_> = self.workers.lock().iter().filter_map(Weak::upgrade).collect();
        let mut merged = Merged::default();
        for worker in workers {
            let limits = worker.limits.lock();
            if let Some(limit) = limits.iter().find(|known| *known.name == *limit)
                && let Some(generations) = limit.kinds.get(kind as usize)
            {
                generations.at(now).for_each(|sketch| merged.add(sketch));
            }
        }
        merged.list(most)
    }
}

impl WorkerDenials {
    /// Counts a denial of an id, given by the half of its fingerprint that logs show. `key` is called if the id gets a counter.
    pub fn add(
        &self,
        limit: &str,
        hint: &PlaceHint,
        kind: DenialKind,
        now: Instant,
        id: u64,
        key: impl FnOnce() -> Box<str>,
    ) {
        let mut limits = self.limits.lock();
        if limits.get(hint.0.get()).is_none_or(|known| *known.name != *limit) {
            let Some(place) = place(&mut limits, limit, now) else { return };
            hint.0.set(place);
        }
        if let Some(limit) = limits.get_mut(hint.0.get())
            && let Some(generations) = limit.kinds.get_mut(kind as usize)
        {
            generations.current(now).add(id, key);
        }
    }
}

/// Finds or makes the place of a limit; `None` if there is no room.
#[cold]
fn place(limits: &mut Vec<LimitDenials>, name: &str, now: Instant) -> Option<usize> {
    if let Some(place) = limits.iter().position(|known| *known.name == *name) {
        return Some(place);
    }
    let new = LimitDenials { name: name.into(), kinds: DenialKind::ALL.map(|_| Generations::new(now)) };
    if limits.len() < MOST_LIMITS {
        limits.push(new);
        return Some(limits.len() - 1);
    }
    let is_idle = |limit: &LimitDenials| limit.kinds.iter().all(|kind| kind.at(now).all(Sketch::is_empty));
    let place = limits.iter().position(is_idle)?;
    *limits.get_mut(place)? = new;
    Some(place)
}

impl Generations {
    fn new(now: Instant) -> Self {
        Self { began: now, current: Sketch::default(), last: Sketch::default() }
    }

    /// Returns the sketch to count in.
    fn current(&mut self, now: Instant) -> &mut Sketch {
        let age = now.saturating_duration_since(self.began);
        if age >= GENERATION {
            let current = std::mem::take(&mut self.current);
            let is_young = age < 2 * GENERATION;
            self.last = if is_young { current } else { Sketch::default() };
            self.began = if is_young { self.began + GENERATION } else { now };
        }
        &mut self.current
    }

    /// Returns the sketches that are young enough.
    fn at(&self, now: Instant) -> impl Iterator<Item = &Sketch> {
        let age = now.saturating_duration_since(self.began);
        let current = (age < 2 * GENERATION).then_some(&self.current);
        let last = (age < GENERATION).then_some(&self.last);
        current.into_iter().chain(last)
    }
}

/// Several sketches together.
#[derive(Default)]
struct Merged {
    ids: HashMap<u64, MergedId>,
    /// The most events that an id without any counter may have.
    unseen: u64,
}

/// The counts of an id.
struct MergedId {
    count: u64,
    error: u64,
    /// The part of [`Merged::unseen`] of the sketches that have a counter for it.
    seen: u64,
    text: Box<str>,
}

impl Merged {
    fn add(&mut self, sketch: &Sketch) {
        let unseen = sketch.unseen();
        self.unseen += unseen;
        for (id, counter) in sketch.counters() {
            let new = || MergedId { count: 0, error: 0, seen: 0, text: counter.text.clone() };
            let known = self.ids.entry(id).or_insert_with(new);
            known.count += counter.count;
            known.error += counter.error;
            known.seen += unseen;
        }
    }

    fn list(self, most: usize) -> Vec<DeniedId> {
        let all = self.unseen;
        let denied = |(hash, id): (u64, MergedId)| {
            // A sketch without a counter for an id may have missed as many of its events as of any other.
            let missed = all - id.seen;
            DeniedId { hash, key: id.text, denied: id.count + missed, error: id.error + missed }
        };
        let mut list: Vec<DeniedId> = self.ids.into_iter().map(denied).collect();
        list.sort_by_key(|id| (std::cmp::Reverse((id.denied - id.error, id.denied)), id.hash));
        list.truncate(most);
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(worker: &WorkerDenials, limit: &str, id: u64, now: Instant) {
        worker.add(limit, &PlaceHint::default(), DenialKind::Denied, now, id, || id.to_string().into());
    }

    fn list(all: &MostDenied, limit: &str, now: Instant) -> Vec<(u64, u64, u64)> {
        let ids = all.of(limit, DenialKind::Denied, 3, now);
        ids.iter().map(|id| (id.hash, id.denied, id.error)).collect()
    }

    #[test]
    fn workers_count_by_themselves_and_are_read_together() {
        let (all, now) = (MostDenied::default(), Instant::now());
        let workers = [all.join(), all.join()];
        for (worker, id, times) in [(0, 7, 3), (1, 7, 2), (1, 8, 4), (0, 9, 1)] {
            (0..times).for_each(|_| add(&workers[worker], "L", id, now));
        }
        assert_eq!(list(&all, "L", now), [(7, 5, 0), (8, 4, 0), (9, 1, 0)]);
        assert!(list(&all, "M", now).is_empty() && all.of("L", DenialKind::Candidate, 3, now).is_empty());
        let [first, _second] = workers;
        drop(first);
        assert_eq!(list(&all, "L", now), [(8, 4, 0), (7, 2, 0)]);
    }

    /// The error of a merged count covers what each worker may have missed.
    #[test]
    fn an_id_that_one_worker_has_lost_has_that_as_its_error() {
        let (all, now) = (MostDenied::default(), Instant::now());
        let workers = [all.join(), all.join()];
        (0..5).for_each(|_| add(&workers[0], "L", 7, now));
        (100..300).for_each(|id| add(&workers[1], "L", id, now));
        let [first, ..] = list(&all, "L", now)[..] else { panic!() };
        assert_eq!(first, (7, 6, 1));
    }

    #[test]
    fn counts_are_of_the_last_minutes() {
        let (all, start) = (MostDenied::default(), Instant::now());
        let worker = all.join();
        let at = |minutes| start + Duration::from_mins(minutes);
        add(&worker, "L", 1, at(0));
        add(&worker, "L", 2, at(4));
        add(&worker, "L", 2, at(6));
        assert_eq!(list(&all, "L", at(6)), [(2, 2, 0), (1, 1, 0)]);
        add(&worker, "L", 3, at(11));
        assert_eq!(list(&all, "L", at(11)), [(2, 1, 0), (3, 1, 0)]);
        assert_eq!(list(&all, "L", at(15)), [(3, 1, 0)]);
        assert_eq!(list(&all, "L", at(19)), [(3, 1, 0)]);
        assert!(list(&all, "L", at(20)).is_empty());
        add(&worker, "L", 4, at(40));
        assert_eq!(list(&all, "L", at(40)), [(4, 1, 0)]);
    }

    #[test]
    fn limits_are_bounded_and_idle_ones_give_way() {
        let (all, start) = (MostDenied::default(), Instant::now());
        let worker = all.join();
        for limit in 0..=MOST_LIMITS {
            add(&worker, &format!("L{limit}"), 1, start);
        }
        let last = format!("L{MOST_LIMITS}");
        assert!(list(&all, &last, start).is_empty());
        assert_eq!(list(&all, "L0", start), [(1, 1, 0)]);
        let later = start + 2 * GENERATION;
        add(&worker, &last, 1, later);
        assert_eq!((list(&all, &last, later), worker.limits.lock().len()), (vec![(1, 1, 0)], MOST_LIMITS));
    }

    #[test]
    fn a_limit_whose_place_was_given_away_finds_another() {
        let (all, start) = (MostDenied::default(), Instant::now());
        let (worker, hint) = (all.join(), PlaceHint::default());
        let add_hinted = |now| worker.add("L", &hint, DenialKind::Denied, now, 1, || "1".into());
        add_hinted(start);
        let later = start + 2 * GENERATION;
        (0..MOST_LIMITS).for_each(|limit| add(&worker, &format!("M{limit}"), 2, later));
        add_hinted(later);
        assert_eq!(list(&all, "M0", later), [(2, 1, 0)], "it is not counted for another limit");
    }
}
