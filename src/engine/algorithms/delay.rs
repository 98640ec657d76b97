//! Delays: charges that do not fit yet are booked ahead of time, and their requests wait until then.
//!
//! A booked charge counts from the moment of the decision, so a bucket may have used more than its burst. GCRA then stands as far
//! below empty as refills within the delay. In fixed windows, what is beyond the burst belongs to the windows that follow.

use super::micros::{EXACT, Micros};
use super::numbers::Numbers;
use super::windows::Windows;

/// The shortest and the longest `delay:`, in microseconds. Timers tick in milliseconds. A client that waits longer has most likely
/// given up.
pub const SHORTEST_DELAY: u64 = 1_000;
pub const LONGEST_DELAY: u64 = 600_000_000;

/// `delay:` of a limit, and how much of it the caller of a charge can wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay {
    /// The limit's delay. It bounds what may be booked ahead.
    pub most: Micros,
    /// The longest wait of this charge: 0 if its caller cannot wait.
    pub patience: Micros,
}

impl Delay {
    pub const fn new(most: Micros) -> Self {
        Self { most, patience: most }
    }

    /// Returns the most levels that a bucket which refills evenly has booked ahead.
    pub(super) fn levels(&self, numbers: &Numbers) -> u64 {
        self.most.0.saturating_mul(numbers.drain()).min(EXACT - 1)
    }

    /// Returns the number of windows after the current one that may have bookings. No window of a calendar is shorter than a delay.
    pub fn windows(&self, windows: Windows<'_>) -> u64 {
        match windows {
            Windows::First(period) | Windows::Clock(period) => self.most.0.div_ceil(period.max(1)),
            Windows::Calendar(_) => 1,
        }
    }
}
