//! Limits how often a message is logged.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// One line per second: a failed upstream or store fails every request, and metrics count them.
const INTERVAL: Duration = Duration::from_secs(1);

/// Passes one line per interval.
#[derive(Debug, Default)]
pub struct Throttle {
    last: Cell<Option<Instant>>,
    suppressed: Cell<u64>,
}

impl Throttle {
    /// If a line may be written now, returns the number skipped since the last one.
    pub fn pass(&self) -> Option<u64> {
        if self.last.get().is_some_and(|last| last.elapsed() < INTERVAL) {
            self.suppressed.set(self.suppressed.get() + 1);
            return None;
        }
        self.last.set(Some(Instant::now()));
        Some(self.suppressed.take())
    }
}
