//! The most frequent of many ids, in a fixed number of counters: the Space-Saving algorithm (Metwally, Agrawal, El Abbadi: Efficient
//! Computation of Frequent and Top-k Elements in Data Streams, 2005).
//!
//! An id without a counter takes over the one with the least count, and keeps that count as its error. So a count is never too low, and at
//! most its error too high; an error is at most the number of events divided by the number of counters.

/// Counters of a sketch. An id with more than a 64th of the events has one.
pub(super) const COUNTERS: usize = 64;

/// A sketch of ids. An id may come with a text for people.
#[derive(Debug, Default)]
pub(super) struct Sketch {
    /// Apart from the counters, so that a search reads eight cache lines.
    ids: Vec<u64>,
    counters: Vec<Counter>,
    /// The place of the last id. In a flood, the next one is often the same.
    last: usize,
}

#[derive(Clone, Debug)]
pub(super) struct Counter {
    /// At most `error` too high.
    pub(super) count: u64,
    pub(super) error: u64,
    pub(super) text: Option<Box<str>>,
}

impl Sketch {
    /// Counts an id. `text` is called if it gets a counter.
    pub(super) fn add(&mut self, id: u64, text: impl FnOnce() -> Option<Box<str>>) {
        if self.ids.get(self.last) != Some(&id) {
            match self.ids.iter().position(|known| *known == id) {
                Some(place) => self.last = place,
                None => self.last = self.replace(id, text()),
            }
        }
        if let Some(counter) = self.counters.get_mut(self.last) {
            counter.count += 1;
        }
    }

    /// Gives an id a counter, which has not counted it yet. Returns its place.
    fn replace(&mut self, id: u64, text: Option<Box<str>>) -> usize {
        if self.ids.len() < COUNTERS {
            self.ids.push(id);
            self.counters.push(Counter { count: 0, error: 0, text });
            return self.ids.len() - 1;
        }
        let least = self.counters.iter_mut().enumerate().min_by_key(|(_, counter)| counter.count);
        let Some((place, counter)) = least else { return 0 };
        *counter = Counter { count: counter.count, error: counter.count, text };
        if let Some(known) = self.ids.get_mut(place) {
            *known = id;
        }
        place
    }

    /// The most events that an id without a counter may have.
    pub(super) fn unseen(&self) -> u64 {
        if self.ids.len() < COUNTERS {
            return 0;
        }
        self.counters.iter().map(|counter| counter.count).min().unwrap_or(0)
    }

    pub(super) fn counters(&self) -> impl Iterator<Item = (u64, &Counter)> {
        self.ids.iter().copied().zip(&self.counters)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// Adds ids from a stream in which some come often and most once.
    fn stream(events: u64) -> (Sketch, HashMap<u64, u64>) {
        let (mut sketch, mut exact) = (Sketch::default(), HashMap::new());
        let mut state = 1_u64;
        for event in 0..events {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let often = (state >> 33) % 20;
            let id = if often < 10 { often } else { 1_000 + event };
            sketch.add(id, || Some(id.to_string().into()));
            *exact.entry(id).or_insert(0) += 1;
        }
        (sketch, exact)
    }

    #[test]
    fn counts_are_as_exact_as_they_say() {
        let (sketch, exact) = stream(20_000);
        assert_eq!(sketch.counters().count(), COUNTERS);
        for (id, Counter { count, error, text }) in sketch.counters() {
            let exact = exact[&id];
            assert!(count - error <= exact && exact <= *count, "{id}: {count} with {error}, exactly {exact}");
            assert!(*error <= 20_000 / COUNTERS as u64, "{id}: {error}");
            assert_eq!(text.as_deref(), Some(id.to_string().as_str()));
        }
        for often in 0..10 {
            assert!(sketch.counters().any(|(id, _)| id == often), "{often} comes 1,000 times");
        }
        let without = exact.iter().filter(|(id, _)| sketch.counters().all(|(known, _)| known != **id));
        assert!(without.into_iter().all(|(_, count)| *count <= sketch.unseen()));
    }

    #[test]
    fn few_ids_are_counted_exactly() {
        let mut sketch = Sketch::default();
        for id in (0..64).flat_map(|id| std::iter::repeat_n(id, 3)) {
            sketch.add(id, || None);
        }
        assert_eq!(sketch.unseen(), 3);
        assert!(sketch.counters().all(|(_, counter)| counter.count == 3 && counter.error == 0));
    }
}
