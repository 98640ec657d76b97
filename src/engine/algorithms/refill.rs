//! How a bucket refills: evenly, in windows, or as its entries end one by one.

use super::calendar::Calendar;
use super::numbers::Micros;

/// How a bucket refills, in one word: the memory store keeps it with each of its buckets, and with room for every kind a
/// bucket would take a fifth more memory to look at.
///
/// The top three bits tell the kinds, and the rest is a drain, a span in microseconds or the number of a calendar. All
/// of them are below 2^53.
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

/// What a bucket counts, which decides what is kept of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A level that drains, or that windows make smaller: a [`super::gcra::Meter`].
    Level,
    /// Entries of the last so many microseconds, each with its instant.
    Log(u64),
    /// Entries of two windows of so many microseconds, the older ones by their share of the last window's length.
    SlidingWindow(u64),
    /// Requests in flight, each for so many microseconds at most unless it is renewed.
    Slots(u64),
    /// What only a server keeps: entries of a queue, which are stale after so many microseconds, or never if that is 0.
    Queue(u64),
    /// Whatever a script of the user counts.
    Script,
}

const KIND: u64 = 0b111 << 61;
const EVEN: u64 = 0b000 << 61;
const LOG: u64 = 0b001 << 61;
const SLOTS: u64 = 0b010 << 61;
const ELSEWHERE: u64 = 0b011 << 61;
const FIRST: u64 = 0b100 << 61;
const CLOCK: u64 = 0b101 << 61;
const CALENDAR: u64 = 0b110 << 61;
const SLIDING_WINDOW: u64 = 0b111 << 61;
const VALUE: u64 = !KIND;

/// Of a sliding window: what is refused counts as well. A period leaves the bit free.
const DENIED_TOO: u64 = 1 << 60;

/// Which of those that are kept elsewhere are scripts.
const SCRIPT: u64 = VALUE;

impl Refill {
    /// So many levels every microsecond; 0 is never.
    pub const fn evenly(drain: u64) -> Self {
        Self(EVEN | (drain & VALUE))
    }

    /// A number of tokens at the beginning of each window.
    pub const fn by(windows: Windows) -> Self {
        match windows {
            Windows::First(period) => Self(FIRST | (period & VALUE)),
            Windows::Clock(period) => Self(CLOCK | (period & VALUE)),
            Windows::Calendar(calendar) => Self(CALENDAR | calendar.code()),
        }
    }

    /// As the entries of such a bucket end. A level has none: it is evenly again that never refills.
    pub const fn of(kind: Kind) -> Self {
        match kind {
            Kind::Level => Self(EVEN),
            Kind::Log(period) => Self(LOG | (period & VALUE)),
            Kind::SlidingWindow(period) => Self(SLIDING_WINDOW | (period & VALUE)),
            Kind::Slots(lease) => Self(SLOTS | (lease & VALUE)),
            Kind::Queue(stale) => Self(ELSEWHERE | (stale & VALUE)),
            Kind::Script => Self(ELSEWHERE | SCRIPT),
        }
    }

    /// Levels that leave the bucket every microsecond; 0 if it never refills, or not evenly.
    pub const fn drain(self) -> u64 {
        if self.0 & KIND == EVEN { self.0 } else { 0 }
    }

    /// What the bucket counts.
    #[inline]
    pub const fn kind(self) -> Kind {
        let value = self.0 & VALUE;
        match self.0 & KIND {
            LOG => Kind::Log(value),
            SLIDING_WINDOW => Kind::SlidingWindow(value & !DENIED_TOO),
            SLOTS => Kind::Slots(value),
            ELSEWHERE if value == SCRIPT => Kind::Script,
            ELSEWHERE => Kind::Queue(value),
            _ => Kind::Level,
        }
    }

    /// The same sliding window, and what it refuses counts as well.
    #[must_use]
    pub(crate) const fn counting_denied(self) -> Self {
        Self(self.0 | DENIED_TOO)
    }

    /// Whether it is a sliding window in which what is refused counts as well.
    pub const fn counts_denied(self) -> bool {
        self.0 & (KIND | DENIED_TOO) == SLIDING_WINDOW | DENIED_TOO
    }

    /// The algorithm by the name that rules give it.
    pub const fn algorithm(self) -> &'static str {
        match self.kind() {
            Kind::Level if self.windows().is_none() => "gcra",
            Kind::Level => "fixed_window",
            Kind::Log(_) => "sliding_log",
            Kind::SlidingWindow(_) => "sliding_window",
            Kind::Slots(_) => "concurrency",
            Kind::Queue(_) => "queue",
            Kind::Script => "script",
        }
    }

    /// The windows, if it refills in windows.
    #[inline]
    pub const fn windows(self) -> Option<Windows> {
        let value = self.0 & VALUE;
        match self.0 & KIND {
            FIRST => Some(Windows::First(value)),
            CLOCK => Some(Windows::Clock(value)),
            CALENDAR => Some(Windows::Calendar(Calendar::from_code(value))),
            _ => None,
        }
    }
}

impl Kind {
    /// What tells the key of such a bucket from that of the same limit with another algorithm, whose state it could not
    /// read. Levels carry over from one to the other and have no mark.
    pub const fn mark(self) -> &'static str {
        match self {
            Self::Level => "",
            Self::Log(_) => "#log",
            Self::SlidingWindow(_) => "#sliding",
            Self::Slots(_) => "#slots",
            Self::Queue(_) => "#queue",
            Self::Script => "#script",
        }
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
