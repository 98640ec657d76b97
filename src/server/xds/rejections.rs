//! The rejections in a row, which are told ever later: servers answer a rejection with the same version at once, and some with one after
//! another.

use std::time::Duration;

use tokio::time::Instant;

/// The wait between the second rejection and the first, which doubles up to the longest.
const REPEATED: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(10)];

/// The rejections since a new configuration was accepted.
#[derive(Clone, Debug, Default)]
pub(super) struct Rejections {
    count: u32,
    /// The time of the last one that was sent.
    told: Option<Instant>,
    /// The version and the reason that were logged last.
    logged: Option<(String, String)>,
}

impl Rejections {
    /// Adds one, and returns when the server is to be told.
    pub(super) fn add(&mut self, now: Instant) -> Instant {
        self.count = self.count.saturating_add(1);
        let [first, longest] = REPEATED;
        let wait = self
            .count
            .checked_sub(2)
            .map_or(Duration::ZERO, |repeated| first.saturating_mul(2_u32.saturating_pow(repeated)).min(longest));
        self.told.map_or(now, |told| now.max(told + wait))
    }

    /// Notes that one is sent now. Logs it, unless the last one was the same.
    pub(super) fn tell(&mut self, version: &str, reason: &str) {
        self.told = Some(Instant::now());
        if self.logged.as_ref().is_some_and(|(known, why)| known == version && why == reason) {
            return;
        }
        tracing::error!(
            version,
            "rejecting the management server's configuration, the last good one stays in force: {reason}"
        );
        self.logged = Some((version.to_owned(), reason.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejections_in_a_row_are_told_ever_later() {
        let start = Instant::now();
        let mut rejections = Rejections::default();
        let mut now = start;
        let mut waits = Vec::new();
        for _ in 0..10 {
            let due = rejections.add(now);
            waits.push((due - now).as_millis());
            (now, rejections.told) = (due, Some(due));
        }
        assert_eq!(waits, [0, 250, 500, 1_000, 2_000, 4_000, 8_000, 10_000, 10_000, 10_000]);
        // Newer ones that come meanwhile do not put it off, and a late one does not wait.
        let told = now;
        for later in [1, 2, 9_999] {
            assert_eq!(rejections.add(told + Duration::from_millis(later)), told + Duration::from_secs(10));
        }
        let much_later = told + Duration::from_mins(1);
        assert_eq!(rejections.add(much_later), much_later);
    }
}
