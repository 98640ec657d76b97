//! A bound on how often the same thing is logged.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// One line a second: an upstream that is down fails every request, and the log is not where they are counted.
const INTERVAL: Duration = Duration::from_secs(1);

/// Lets one line pass an interval.
#[derive(Debug, Default)]
pub struct Throttle {
    last: Cell<Option<Instant>>,
    suppressed: Cell<u64>,
}

impl Throttle {
    /// If a line may be written now: how many were not since the last one.
    pub fn pass(&self) -> Option<u64> {
        if self.last.get().is_some_and(|last| last.elapsed() < INTERVAL) {
            self.suppressed.set(self.suppressed.get() + 1);
            return None;
        }
        self.last.set(Some(Instant::now()));
        Some(self.suppressed.take())
    }
}
