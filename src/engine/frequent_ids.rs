//! The most frequent of many ids, in bounded memory: Space-Saving (Metwally, Agrawal, El Abbadi: Efficient Computation of Frequent and
//! Top-k Elements in Data Streams, 2005), whose counters are given away in batches (Anderson and others: A High-Performance Algorithm for
//! Identifying Frequent Items in Data Streams, 2017), so that an event costs one look-up, however many counters there are.

use std::cmp::Reverse;
use std::hash::Hash;

use super::algorithms::by_fingerprint::ByFingerprint;

/// Counts ids, which are fingerprints or halves of them. Each counted id comes with a text.
///
/// It has at most 7/4 of `KEPT` counters. When there are so many, only the `KEPT` highest stay. What a forgotten id may have had is the
/// error of the next ids, so a count is never too low, and at most its error too high. An error is less than the number of events divided
/// by `KEPT`, and an id with more events than that has a counter.
#[derive(Debug)]
pub struct FrequentIds<K, T, const KEPT: usize> {
    counters: ByFingerprint<K, Counter<T>>,
    unseen: u64,
}

/// The events of an id.
#[derive(Clone, Debug)]
pub struct Counter<T> {
    /// At most `error` too high.
    pub count: u64,
    pub error: u64,
    pub text: T,
}

// Derived, it would need a default text.
impl<K, T, const KEPT: usize> Default for FrequentIds<K, T, KEPT> {
    fn default() -> Self {
        Self { counters: ByFingerprint::default(), unseen: 0 }
    }
}

impl<K: Copy + Eq + Hash, T, const KEPT: usize> FrequentIds<K, T, KEPT> {
    /// A `HashMap` doubles its memory once 7/8 of a power of two are taken.
    const MOST: usize = KEPT / 4 * 7;

    /// Counts an event of an id. `text` is called if it gets a counter.
    pub fn add(&mut self, id: K, text: impl FnOnce() -> T) {
        self.note(id, text, |_| ());
    }

    /// Counts an event of an id, and has `change` note it in what comes with the counter, which `new` makes for a new counter.
    pub fn note(&mut self, id: K, new: impl FnOnce() -> T, change: impl FnOnce(&mut T)) {
        let error = self.unseen;
        let counter = self.counters.entry(id).or_insert_with(|| Counter { count: error, error, text: new() });
        counter.count += 1;
        change(&mut counter.text);
        if self.counters.len() >= Self::MOST {
            self.forget();
        }
    }

    /// The most events that an id without a counter may have.
    pub const fn unseen(&self) -> u64 {
        self.unseen
    }

    pub fn counters(&self) -> impl Iterator<Item = (K, &Counter<T>)> {
        self.counters.iter().map(|(id, counter)| (*id, counter))
    }

    pub fn into_counters(self) -> impl Iterator<Item = Counter<T>> {
        self.counters.into_values()
    }

    pub fn is_empty(&self) -> bool {
        self.counters.is_empty()
    }

    /// Keeps the highest counters.
    fn forget(&mut self) {
        let mut counts: Vec<u64> = self.counters.values().map(|counter| counter.count).collect();
        let (higher, &mut highest_forgotten, _) = counts.select_nth_unstable_by_key(KEPT, |count| Reverse(*count));
        let mut equal = higher.iter().filter(|count| **count == highest_forgotten).count();
        self.counters.retain(|_, counter| {
            let is_kept_equal = counter.count == highest_forgotten && equal > 0;
            equal -= usize::from(is_kept_equal);
            counter.count > highest_forgotten || is_kept_equal
        });
        self.unseen = highest_forgotten;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const KEPT: usize = 8;

    /// Counts a stream, and compares with exact counts.
    #[track_caller]
    fn check(stream: &[u64]) {
        let (mut counted, mut exact) = (FrequentIds::<u64, String, KEPT>::default(), HashMap::<u64, u64>::new());
        for (events, id) in (1..).zip(stream) {
            counted.add(*id, || id.to_string());
            *exact.entry(*id).or_default() += 1;
            assert!(counted.counters.len() < KEPT / 4 * 7, "{}", counted.counters.len());
            assert!(counted.unseen() * (KEPT as u64 + 1) <= events, "{} of {events}", counted.unseen());
        }
        for (id, Counter { count, error, text }) in counted.counters() {
            let exact = exact.remove(&id).unwrap();
            assert!(count - error <= exact && exact <= *count, "{id}: {count} with {error}, exactly {exact}");
            assert!(*error <= counted.unseen() && *text == id.to_string(), "{id}: {error}, {text}");
        }
        assert!(exact.values().all(|count| *count <= counted.unseen()), "{exact:?}, {}", counted.unseen());
    }

    proptest! {
        /// Streams of few ids or many; with more `skew`, some come more often.
        #[test]
        fn counts_are_as_exact_as_they_say(ids in 1_u64..200, skew in 1_i32..6, shares in vec(0.0..1.0_f64, 0..2_000)) {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "small")]
            let stream: Vec<u64> = shares.iter().map(|share| (share.powi(skew) * ids as f64) as u64).collect();
            check(&stream);
        }
    }

    #[test]
    fn few_ids_are_counted_exactly() {
        let mut counted = FrequentIds::<u64, (), 64>::default();
        for id in (0..111).flat_map(|id| [id, id, id]) {
            counted.add(id, || ());
        }
        assert!(counted.counters().all(|(_, counter)| counter.count == 3 && counter.error == 0));
        assert_eq!((counted.counters().count(), counted.unseen()), (111, 0));
        counted.add(111, || ());
        assert_eq!((counted.counters().count(), counted.unseen()), (64, 3));
    }

    /// None of them is more frequent than the others, and still some are told.
    #[test]
    fn many_ids_of_one_event_leave_some() {
        let mut counted = FrequentIds::<u64, (), 64>::default();
        (0..10_000).for_each(|id| counted.add(id, || ()));
        assert!(counted.counters().count() >= 64, "{}", counted.counters().count());
    }
}
