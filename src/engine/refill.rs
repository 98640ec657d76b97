//! How a bucket refills: evenly, or in windows.

use super::calendar::Calendar;
use super::numbers::Micros;

/// How a bucket refills, in one word: the memory store keeps it with each of its buckets, and with room for every kind a
/// bucket would take a fifth more memory to look at.
///
/// The top bit tells windows from a drain, the next two tell their kinds, and the rest is a drain, a period in
/// microseconds or the number of a calendar. All of them are below 2^53.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Refill(u64);

/// Where the windows of a bucket begin and end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Windows {
    /// This many microseconds from the first charge on a full bucket, and so on from there.
    First(u64),
    /// At the multiples of this many microseconds since the Unix epoch.
    Clock(u64),
    /// With the months or years of a time zone.
    Calendar(Calendar),
}

const WINDOWS: u64 = 1 << 63;
const CLOCK: u64 = 1 << 61;
const CALENDAR: u64 = 1 << 62;
const VALUE: u64 = CLOCK - 1;

impl Refill {
    /// So many levels every microsecond; 0 is never.
    pub const fn evenly(drain: u64) -> Self {
        Self(drain & VALUE)
    }

    /// A number of tokens at the beginning of each window.
    pub const fn by(windows: Windows) -> Self {
        match windows {
            Windows::First(period) => Self(WINDOWS | (period & VALUE)),
            Windows::Clock(period) => Self(WINDOWS | CLOCK | (period & VALUE)),
            Windows::Calendar(calendar) => Self(WINDOWS | CALENDAR | calendar.code()),
        }
    }

    /// Levels that leave the bucket every microsecond; 0 if it never refills, or in windows.
    pub const fn drain(self) -> u64 {
        if self.0 & WINDOWS == 0 { self.0 } else { 0 }
    }

    /// The windows, if it refills in windows.
    #[inline]
    pub const fn windows(self) -> Option<Windows> {
        if self.0 & WINDOWS == 0 {
            return None;
        }
        let value = self.0 & VALUE;
        Some(match (self.0 & CALENDAR, self.0 & CLOCK) {
            (0, 0) => Windows::First(value),
            (0, _) => Windows::Clock(value),
            _ => Windows::Calendar(Calendar::from_code(value)),
        })
    }
}

impl Windows {
    /// The number of the window that holds `at`. For [`Self::First`] windows are counted from `anchor`, where one of them
    /// begins and which is not after `at`; for the others since the epoch.
    pub fn number(self, anchor: Micros, at: Micros) -> u64 {
        match self {
            Self::First(period) => at.since(anchor).0 / period,
            Self::Clock(period) => at.0 / period,
            Self::Calendar(calendar) => calendar.number(at),
        }
    }

    /// When the window of such a number begins.
    pub fn start(self, anchor: Micros, number: u64) -> Micros {
        match self {
            Self::First(period) => Micros(anchor.0.saturating_add(number.saturating_mul(period))),
            Self::Clock(period) => Micros(number.saturating_mul(period)),
            Self::Calendar(calendar) => calendar.start(number),
        }
    }

    /// When the window begins that is `ahead` windows after the one that begins at `start`.
    pub fn ahead(self, start: Micros, ahead: u64) -> Micros {
        match self {
            Self::First(period) | Self::Clock(period) => Micros(start.0.saturating_add(ahead.saturating_mul(period))),
            Self::Calendar(calendar) => calendar.start(calendar.number(start).saturating_add(ahead)),
        }
    }

    /// The same windows as others see them who know nothing but one of them, which begins at `start`: those after it
    /// are as long.
    #[must_use]
    pub fn as_plain(self, start: Micros) -> Self {
        match self {
            Self::First(_) | Self::Clock(_) => self,
            Self::Calendar(calendar) => Self::First(calendar.length(calendar.number(start)).max(1)),
        }
    }
}
