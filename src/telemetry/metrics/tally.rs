//! Counters per worker, added up when the metrics are rendered.
//!
//! A counter that all workers share is a cache line that moves from core to core with every request, for 50 ns or more each
//! time. Here each worker adds to its own cache line, with a plain load and store.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use prometheus::{IntCounter, IntGauge};

use super::limits::Count;

/// A worker's share of a counter or gauge.
#[derive(Debug)]
pub struct Tally {
    line: Arc<Line>,
    /// Not `Sync`: only one thread may write.
    _one_writer: PhantomData<Cell<u64>>,
}

/// A count in its own cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line(AtomicU64);

impl Tally {
    pub fn inc(&self) {
        self.add(1);
    }

    /// For gauges.
    pub fn dec(&self) {
        self.add(u64::MAX);
    }

    fn add(&self, change: u64) {
        let count = &self.line.0;
        count.store(count.load(Ordering::Relaxed).wrapping_add(change), Ordering::Relaxed);
    }
}

/// All workers' tallies.
#[derive(Debug, Default)]
pub(super) struct Tallies {
    /// One per worker and metric. Those that a worker or replaced rules have dropped are removed.
    open: Mutex<Vec<Open>>,
}

/// A tally and its target.
#[derive(Debug)]
struct Open {
    line: Arc<Line>,
    target: TallyTarget,
    /// The part that was already added to the target.
    added: u64,
}

#[derive(Debug)]
enum TallyTarget {
    Counter(IntCounter),
    Count(Count),
    Gauge(IntGauge),
}

impl Tallies {
    pub(super) fn counter(&self, counter: IntCounter) -> Tally {
        self.open(TallyTarget::Counter(counter))
    }

    pub(super) fn count(&self, count: Count) -> Tally {
        self.open(TallyTarget::Count(count))
    }

    pub(super) fn gauge(&self, gauge: IntGauge) -> Tally {
        self.open(TallyTarget::Gauge(gauge))
    }

    fn open(&self, target: TallyTarget) -> Tally {
        let line = Arc::new(Line::default());
        self.open.lock().push(Open { line: line.clone(), target, added: 0 });
        Tally { line, _one_writer: PhantomData }
    }

    /// Adds what was counted since the last call to the targets.
    pub(super) fn add_up(&self) {
        self.open.lock().retain_mut(|open| {
            // Checked first, so that the last count of a dropped tally is seen: `get_mut` synchronises with the drop.
            let is_in_use = Arc::get_mut(&mut open.line).is_none();
            let count = open.line.0.load(Ordering::Relaxed);
            let change = count.wrapping_sub(std::mem::replace(&mut open.added, count));
            match &open.target {
                TallyTarget::Counter(counter) => counter.inc_by(change),
                TallyTarget::Count(count) => count.inc_by(change),
                TallyTarget::Gauge(gauge) => gauge.add(change.cast_signed()),
            }
            is_in_use
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_worker_counts_by_itself() {
        let (tallies, counter) = (Tallies::default(), IntCounter::new("a", "a").unwrap());
        let gauge = IntGauge::new("b", "b").unwrap();
        let count = || {
            let (counted, open) = (tallies.counter(counter.clone()), tallies.gauge(gauge.clone()));
            (0..1_000).for_each(|_| counted.inc());
            open.inc();
            open.inc();
            open.dec();
            (counted, open)
        };
        let both = count();
        std::thread::scope(|scope| {
            scope.spawn(|| drop(count()));
        });
        for _ in 0..2 {
            tallies.add_up();
            assert_eq!((counter.get(), gauge.get(), tallies.open.lock().len()), (2_000, 2, 2));
        }
        both.0.inc();
        both.1.dec();
        drop(both);
        tallies.add_up();
        assert_eq!((counter.get(), gauge.get(), tallies.open.lock().len()), (2_001, 1, 0));
    }
}
