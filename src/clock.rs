//! The clock: the machine's, or one that a scenario sets.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use crate::engine::algorithms::micros::Micros;

/// The source of wall time.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The machine's clock. With it, a Redis store decides by its server's time.
    Machine(MachineClock),
    /// Microseconds since the Unix epoch, set by a test or scenario. Redis decides by it, too.
    Set(Arc<AtomicU64>),
}

impl Clock {
    pub fn machine() -> Self {
        Self::Machine(MachineClock::new())
    }

    /// Returns a clock that stands still until it is set.
    pub fn set(now: Micros) -> Self {
        Self::Set(Arc::new(AtomicU64::new(now.0)))
    }

    /// Returns the wall time.
    pub fn now(&self) -> Micros {
        match self {
            Self::Machine(clock) => clock.now(),
            Self::Set(now) => Micros(now.load(Ordering::Relaxed)),
        }
    }

    /// Returns the wall time at `instant`. Saves the 20 ns of reading the clock if the caller has just read it.
    pub fn at(&self, instant: Instant) -> Micros {
        match self {
            Self::Machine(clock) => clock.at(instant),
            Self::Set(_) => self.now(),
        }
    }

    /// Catches up with the machine's wall clock after a step or a suspend. Call it about once per second.
    pub fn follow(&self) {
        let Self::Machine(clock) = self else { return };
        let before = Instant::now();
        let wall = wall_clock();
        if before.elapsed() < SAME_MOMENT {
            clock.follow(wall, before);
        }
    }

    /// Returns the time of a clock that is set, and `None` for the machine's.
    pub fn set_time(&self) -> Option<Micros> {
        match self {
            Self::Machine(_) => None,
            Self::Set(now) => Some(Micros(now.load(Ordering::Relaxed))),
        }
    }
}

/// The largest difference from the wall clock that is not a step. The monotonic clock is slewed like the wall clock, so a
/// larger difference means that the wall clock was stepped or the machine was suspended.
const LARGEST_SLEW: Duration = Duration::from_millis(100);

/// Two clock reads that are further apart than this are not compared: the thread was descheduled between them.
const SAME_MOMENT: Duration = Duration::from_millis(1);

/// A wall clock at the cost of a monotonic one: the wall time at `start`, plus the monotonic time since. It steps only in
/// [`Clock::follow`]. Clones share their steps.
#[derive(Clone, Debug)]
pub struct MachineClock {
    /// The wall time at `start`, in microseconds since the Unix epoch.
    wall: Arc<AtomicU64>,
    start: Instant,
}

fn wall_clock() -> Micros {
    micros(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

impl MachineClock {
    fn new() -> Self {
        Self { wall: Arc::new(AtomicU64::new(wall_clock().0)), start: Instant::now() }
    }

    /// Adopts `wall`, read from the wall clock at `instant`, if it is a step away.
    fn follow(&self, wall: Micros, instant: Instant) {
        let ours = self.at(instant);
        if ours.0.abs_diff(wall.0) <= micros(LARGEST_SLEW).0 {
            return;
        }
        let passed = micros(instant.saturating_duration_since(self.start));
        self.wall.store(wall.since(passed).0, Ordering::Relaxed);
        let (from, to) = (ours.0 / 1_000, wall.0 / 1_000);
        tracing::warn!(from, to, "the machine's clock was stepped; limits use the new time");
    }

    fn now(&self) -> Micros {
        self.at(Instant::now())
    }

    fn at(&self, instant: Instant) -> Micros {
        let wall = self.wall.load(Ordering::Relaxed);
        Micros(wall.saturating_add(micros(instant.saturating_duration_since(self.start)).0))
    }
}

pub(crate) fn micros(span: Duration) -> Micros {
    Micros(u64::try_from(span.as_micros()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_follows_steps_and_suspends_and_nothing_else() {
        let clock = MachineClock::new();
        let (clone, start, wall) = (clock.clone(), clock.start, clock.at(clock.start));
        let second = Duration::from_secs(1);
        // Slewed, stepped ahead, suspended for a day, and stepped back to before the start.
        for (passed, wall_passed, seen) in [
            (1, 1_099_000, 1_000_000),
            (2, 3_602_000_000, 3_602_000_000),
            (3, 90_003_000_000, 90_003_000_000),
            (4, -60_000_000, -60_000_000),
            (5, -58_950_000, -59_000_000),
        ] {
            let instant = start + passed * second;
            clock.follow(Micros(wall.0.strict_add_signed(wall_passed)), instant);
            assert_eq!(clone.at(instant), Micros(wall.0.strict_add_signed(seen)), "after {passed} s");
            assert_eq!(clone.at(instant + second).0, clone.at(instant).0 + 1_000_000);
        }
    }

    #[test]
    fn a_clock_that_is_right_stays_as_it_is() {
        let clock = Clock::machine();
        let Clock::Machine(own) = &clock else { panic!("{clock:?}") };
        let before = own.wall.load(Ordering::Relaxed);
        clock.follow();
        assert_eq!(own.wall.load(Ordering::Relaxed), before);
        own.wall.store(before - 3_600_000_000, Ordering::Relaxed);
        while own.wall.load(Ordering::Relaxed) < before - 1_000_000 {
            clock.follow();
        }
    }
}
