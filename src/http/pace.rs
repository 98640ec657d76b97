//! The rate at which a client sends or reads a body.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// The time that a client kept us waiting for a body, and the bytes it moved in that time.
///
/// Time spent waiting for the upstream does not count, so a slow upstream does not make its client slow.
#[derive(Debug, Default)]
pub(super) struct Pace {
    waited: Cell<Duration>,
    bytes: Cell<u64>,
    since: Cell<Option<Instant>>,
}

/// A grace period at the start of each body, because connections pause and windows fill. Kestrel's
/// `MinRequestBodyDataRate` has the same.
const RATE_GRACE: Duration = Duration::from_secs(5);

impl Pace {
    pub(super) fn reset(&self) {
        self.waited.set(Duration::ZERO);
        self.bytes.set(0);
        self.since.set(None);
    }

    /// Returns whether this is the start of a wait.
    pub(super) fn wait(&self, now: Instant) -> bool {
        let is_start = self.since.get().is_none();
        if is_start {
            self.since.set(Some(now));
        }
        is_start
    }

    pub(super) const fn is_waiting(&self) -> bool {
        self.since.get().is_some()
    }

    /// It is not waited for any more.
    pub(super) fn stop(&self) {
        self.since.set(None);
    }

    pub(super) fn moved(&self, bytes: u64, now: Instant) {
        self.bytes.set(self.bytes.get() + bytes);
        if let Some(since) = self.since.take() {
            self.waited.set(self.waited.get() + now.saturating_duration_since(since));
        }
    }

    /// Returns when the client, if it is being waited for, falls below the rate.
    pub(super) fn deadline(&self, rate: u64) -> Option<Instant> {
        let since = self.since.get().filter(|_| rate > 0)?;
        let earned = RATE_GRACE + Duration::from_millis(self.bytes.get().saturating_mul(1_000) / rate);
        since.checked_add(earned.saturating_sub(self.waited.get()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_time_counts_in_which_the_client_is_waited_for() {
        let (pace, start) = (Pace::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(pace.deadline(100), None);
        pace.wait(at(10));
        assert_eq!(pace.deadline(100), Some(at(15)), "the grace");
        pace.wait(at(12));
        pace.moved(300, at(13));
        assert_eq!(pace.deadline(100), None, "it is not waited for");
        pace.wait(at(50));
        assert_eq!(pace.deadline(100), Some(at(55)), "5 s of grace and 3 s for 300 bytes, less the 3 s it has waited");
        assert_eq!(pace.deadline(0), None, "no minimum");
    }
}
