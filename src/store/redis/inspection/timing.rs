//! Clock offsets and round trips.

use std::time::Duration;

use tokio::time::Instant;

use super::facts::{ClockOffset, RoundTrips};

/// The most calls that are timed, one after the other.
const MOST_CALLS: usize = 200;

/// No further call starts after this time, for a server that is far away.
const MOST_TIME: Duration = Duration::from_secs(2);

/// Times calls until one fails, which returns false.
pub(super) async fn round_trips(mut call: impl AsyncFnMut() -> bool) -> Option<RoundTrips> {
    let (start, mut taken) = (Instant::now(), Vec::with_capacity(MOST_CALLS));
    while taken.len() < MOST_CALLS && start.elapsed() < MOST_TIME {
        let called = Instant::now();
        if !call().await {
            return None;
        }
        taken.push(called.elapsed());
    }
    summary(taken)
}

fn summary(mut taken: Vec<Duration>) -> Option<RoundTrips> {
    taken.sort_unstable();
    let at = |percent: usize| taken.get((taken.len() * percent).div_ceil(100).saturating_sub(1)).copied();
    Some(RoundTrips { p50: at(50)?, p99: at(99)? })
}

/// The offset of a clock that showed `theirs` between two instants of ours, all in microseconds since the Unix epoch.
pub(super) fn offset(before: u64, theirs: u64, after: u64) -> ClockOffset {
    let within = after.saturating_sub(before) / 2;
    let (theirs, ours) =
        (i64::try_from(theirs).unwrap_or(i64::MAX), i64::try_from(before + within).unwrap_or(i64::MAX));
    ClockOffset { micros: theirs.saturating_sub(ours), within }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_calls_themselves() {
        let taken = (1..=200).rev().map(Duration::from_millis).collect();
        let expected = RoundTrips { p50: Duration::from_millis(100), p99: Duration::from_millis(198) };
        assert_eq!(summary(taken), Some(expected));
        let one = Duration::from_millis(3);
        assert_eq!(summary(vec![one]), Some(RoundTrips { p50: one, p99: one }));
        assert_eq!(summary(Vec::new()), None);
    }

    #[test]
    fn an_offset_is_counted_from_the_middle_of_the_call() {
        assert_eq!(offset(1_000, 1_100, 1_200), ClockOffset { micros: 0, within: 100 });
        assert_eq!(offset(1_000, 3_100, 1_200), ClockOffset { micros: 2_000, within: 100 });
        assert_eq!(offset(1_000, 100, 1_200), ClockOffset { micros: -1_000, within: 100 });
        // Our clock stepped back meanwhile.
        assert_eq!(offset(1_000, 1_000, 900), ClockOffset { micros: 0, within: 0 });
    }
}
