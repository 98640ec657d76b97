//! Empties the memory that replaces a failed store, once the store has answered for a minute.
//!
//! If it were emptied at once, each failure of a store that fails every second would be worth a full burst. If it were never
//! emptied, a limit that hardly refills would start the next outage with the usage of the last one.

use std::time::{Duration, Instant};

use super::{Limiter, Shared};

/// How long the store must answer without a failure.
const SETTLED: Duration = Duration::from_mins(1);

impl Shared {
    pub(super) fn store_failed(&self, now: Instant) {
        *self.store_failed.lock() = Some(now);
    }

    /// Empties the memory if no worker has seen a failure for long enough.
    fn store_answered(&self, now: Instant) {
        let mut failed = self.store_failed.lock();
        if failed.is_some_and(|failed| now.saturating_duration_since(failed) >= SETTLED) {
            *failed = None;
            self.local.clear();
        }
    }
}

impl Limiter {
    /// Must be called about once a second.
    pub(super) fn note_store(&self) {
        let answered = self.answered.take();
        if !self.store.is_remote() {
            return;
        }
        if self.store.ready().is_err() {
            self.shared.store_failed(Instant::now());
        } else if answered {
            self.shared.store_answered(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::engine::algorithms::charge::{Bucket, Charge, Mode};
    use crate::engine::algorithms::micros::Micros;
    use crate::engine::algorithms::numbers::Numbers;
    use crate::engine::limit::fingerprint::Fingerprinter;
    use crate::engine::limit::rules::Rules;
    use crate::store::Batch;
    use crate::store::memory::MemoryStore;
    use crate::telemetry::metrics::Metrics;

    #[test]
    fn it_is_emptied_when_the_store_has_answered_for_a_minute() {
        let rules = Rules::new(Vec::new(), Fingerprinter::new((1, 2)), Micros(0), Vec::new());
        let shared = Shared::new(rules, Arc::new(Metrics::new().unwrap()), MemoryStore::new(10));
        let spend = || {
            let bucket = Bucket::new("L:k", 1);
            let charges = [Charge::new(bucket, Numbers::fixed(3).unwrap(), 1, Mode::Spend)];
            let batch = Batch { charges: &charges, effective_from: Micros(0), now: Micros(0) };
            !shared.local.decide(&batch).unwrap()[0].is_denied()
        };
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        shared.store_failed(at(0));
        assert_eq!([spend(), spend(), spend(), spend()], [true, true, true, false]);
        for flap in 1..100 {
            shared.store_answered(at(flap));
            shared.store_failed(at(flap));
            assert!(!spend(), "after {flap} s");
        }
        shared.store_answered(at(158));
        assert!(!spend());
        shared.store_answered(at(159));
        assert_eq!([spend(), spend(), spend(), spend()], [true, true, true, false]);
        shared.store_answered(at(1_000));
        assert!(!spend(), "there was no other outage");
    }
}
