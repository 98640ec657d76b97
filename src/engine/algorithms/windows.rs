//! Windows of time, and how buckets refill.

use super::calendar::Calendar;
use super::micros::Micros;

/// The windows of a bucket, by their starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Windows<'c> {
    /// Windows of this many microseconds, counted from the first charge on a full bucket.
    First(u64),
    /// Multiples of this many microseconds since the Unix epoch.
    Clock(u64),
    /// The months or years of a time zone.
    Calendar(&'c Calendar),
}

impl Windows<'_> {
    /// Returns the number of the window that holds `at`. [`Self::First`] counts from `anchor`, the start of a window that
    /// is not after `at`; the others count from the epoch.
    pub fn number(self, anchor: Micros, at: Micros) -> u64 {
        match self {
            Self::First(period) => at.since(anchor).0 / period,
            Self::Clock(period) => at.0 / period,
            Self::Calendar(calendar) => calendar.number(at),
        }
    }

    /// Returns the start of the window with this number.
    pub fn start(self, anchor: Micros, number: u64) -> Micros {
        match self {
            Self::First(period) => anchor.after(Micros(number.saturating_mul(period))),
            Self::Clock(period) => Micros(number.saturating_mul(period)),
            Self::Calendar(calendar) => calendar.start(number),
        }
    }

    /// Returns the start of the window that is `count` windows after the one that begins at `start`.
    pub fn after(self, start: Micros, count: u64) -> Micros {
        match self {
            Self::First(period) | Self::Clock(period) => start.after(Micros(count.saturating_mul(period))),
            Self::Calendar(calendar) => calendar.start(calendar.number(start).saturating_add(count)),
        }
    }
}

/// The refill of a bucket, in one word. The memory store keeps it with every bucket. An enum would take another word, a fifth
/// more memory per bucket.
///
/// The top three bits are the kind. The rest is a drain, a span in microseconds (both below 2^53), or a calendar's id
/// and a window's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Refill(u64);

const KIND: u64 = 0b111 << 61;
const EVENLY: u64 = 0b000 << 61;
const FIRST: u64 = 0b001 << 61;
const CLOCK: u64 = 0b010 << 61;
const CALENDAR: u64 = 0b011 << 61;
const SPAN: u64 = 0b100 << 61;
const VALUE: u64 = !KIND;

/// The bits of a calendar window's length in seconds; a leap year has fewer than 2^25.
const LENGTH_BITS: u32 = 32;
const LENGTH: u64 = (1 << LENGTH_BITS) - 1;

impl Refill {
    /// The level falls by `drain` every microsecond; 0 for never.
    pub const fn evenly(drain: u64) -> Self {
        Self(EVENLY | (drain & VALUE))
    }

    /// The level falls at the start of each window.
    pub(crate) const fn by(windows: Windows<'_>) -> Self {
        match windows {
            Windows::First(period) => Self(FIRST | (period & VALUE)),
            Windows::Clock(period) => Self(CLOCK | (period & VALUE)),
            Windows::Calendar(calendar) => Self(CALENDAR | ((calendar.id as u64) << LENGTH_BITS)),
        }
    }

    /// Each entry ends by itself after this many microseconds.
    pub(crate) const fn span(micros: u64) -> Self {
        Self(SPAN | (micros & VALUE))
    }

    /// Returns the refill of a calendar in a window of this many microseconds.
    #[must_use]
    pub(crate) const fn in_window(self, length: u64) -> Self {
        Self(self.0 & !LENGTH | (length / 1_000_000) & LENGTH)
    }

    /// Returns true if buckets refill in the same way. The length of a calendar's window does not matter.
    #[inline]
    pub(crate) const fn is_like(self, other: Self) -> bool {
        self.0 == other.0 || self.0 & KIND == CALENDAR && (self.0 ^ other.0) & !LENGTH == 0
    }

    /// Returns the levels that drain every microsecond; 0 if the bucket never refills, or in windows.
    #[inline]
    pub(crate) const fn drain(self) -> u64 {
        if self.0 & KIND == EVENLY { self.0 } else { 0 }
    }

    /// The period, lease or maximum age in microseconds, for algorithms that keep no level.
    pub(crate) const fn micros(self) -> u64 {
        self.0 & VALUE
    }

    pub(crate) const fn is_evenly(self) -> bool {
        self.0 & KIND == EVENLY
    }

    /// Returns the windows; `None` if the bucket does not refill in windows. Those of a calendar are taken to be as long as the
    /// one that the bucket was written in.
    #[inline]
    pub(super) const fn windows(self) -> Option<Windows<'static>> {
        let value = self.0 & VALUE;
        match self.0 & KIND {
            FIRST => Some(Windows::First(value)),
            CLOCK => Some(Windows::Clock(value)),
            CALENDAR if value & LENGTH == 0 => Some(Windows::First(1)),
            CALENDAR => Some(Windows::First((value & LENGTH) * 1_000_000)),
            _ => None,
        }
    }

    /// Returns an instant at which a bucket is full that had used `used` levels at `since`; `None` if it never is. In windows,
    /// each adds `weight` levels. For a calendar it is the latest possible instant.
    pub(super) fn full_at(self, since: Micros, used: u64, weight: u64) -> Option<Micros> {
        let windows = match (self.windows(), self.drain()) {
            (Some(windows), _) => windows,
            (None, 0) => return None,
            (None, drain) => return Some(since.after(Micros(used.div_ceil(drain)))),
        };
        let count = used.div_ceil(weight);
        if self.0 & KIND != CALENDAR {
            return Some(windows.after(since, count));
        }
        let first = windows.after(since, count.min(1));
        let longest = if first.since(since).0 > LONGEST_MONTH { LONGEST_YEAR } else { LONGEST_MONTH };
        Some(first.after(Micros(count.saturating_sub(1).saturating_mul(longest))))
    }
}

/// The longest month and the longest year, plus a day in case a time zone crosses the date line.
pub(super) const LONGEST_MONTH: u64 = 32 * 86_400_000_000;
pub(super) const LONGEST_YEAR: u64 = 367 * 86_400_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    use super::super::calendar::Unit;

    #[test]
    fn refills_are_alike_whatever_the_length_of_a_calendar_window() {
        let [utc, tokyo] = ["UTC", "Asia/Tokyo"].map(|zone| Calendar::find(Unit::Month(1), zone).unwrap());
        let of = |calendar| Refill::by(Windows::Calendar(calendar));
        let (long, short) = (of(&utc).in_window(31 * DAY), of(&utc).in_window(28 * DAY));
        let all = [
            of(&utc),
            of(&tokyo),
            Refill::evenly(5),
            Refill::evenly(6),
            Refill::by(Windows::First(5)),
            Refill::by(Windows::First(6)),
            Refill::by(Windows::Clock(5)),
            Refill::span(5),
        ];
        for (a, refill) in all.iter().enumerate() {
            for (b, other) in all.iter().enumerate() {
                assert_eq!(refill.is_like(*other), a == b, "{refill:?} {other:?}");
            }
        }
        assert!(long.is_like(short) && long.is_like(all[0]) && !long.is_like(all[1]) && long != short);
        assert_eq!(all.map(Refill::is_evenly), [false, false, true, true, false, false, false, false]);
    }

    #[test]
    fn a_bucket_is_full_when_its_windows_are_over_and_in_a_calendar_at_the_latest() {
        let at = Micros(7_000);
        let calendar = Calendar::find(Unit::Year, "UTC").unwrap();
        let in_days = |days| Refill::by(Windows::Calendar(&calendar)).in_window(days * DAY);
        for (refill, used, full) in [
            (Refill::evenly(0), 7, None),
            (Refill::evenly(3), 7, Some(3)),
            (Refill::by(Windows::First(5)), 7, Some(15)),
            (Refill::by(Windows::Clock(5)), 6, Some(10)),
            (in_days(31), 3, Some(31 * DAY)),
            (in_days(31), 7, Some(31 * DAY + 2 * LONGEST_MONTH)),
            (in_days(32), 4, Some(32 * DAY + LONGEST_MONTH)),
            (in_days(366), 4, Some(366 * DAY + LONGEST_YEAR)),
        ] {
            assert_eq!(refill.full_at(at, used, 3), full.map(|full| at.after(Micros(full))), "{refill:?}");
        }
        // A window of no length must not be divided by.
        assert_eq!(in_days(0).windows(), Some(Windows::First(1)));
        assert_eq!(in_days(1).windows(), Some(Windows::First(DAY)));
    }

    const DAY: u64 = 86_400_000_000;
}
