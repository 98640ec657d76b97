//! How much a limit allows: burst, count and period, and the integers that the algorithms compute with.

use std::sync::Arc;

use super::calendar::{Calendar, MOST_WINDOWS_AHEAD};
use super::details::{Elevated, WithElevated};
use super::queue::MOST_WAITING;
use super::refill::{Kind, Refill, Windows};
use super::sliding_window;

mod describe;

pub(crate) use describe::Span;

/// An instant, in microseconds since the Unix epoch, or a span of microseconds.
///
/// Microseconds because Redis' Lua has only doubles: 2^53 microseconds reach the year 2255, while nanoseconds since
/// the epoch already lose their last eight bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(pub u64);

impl Micros {
    /// A span of whole milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis * 1_000)
    }

    /// The span from `earlier` to `self`, zero if `earlier` is later: a clock that steps back gives nothing.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }

    /// The span in whole seconds, rounded up: a client that waits the rounded time never comes too early.
    pub const fn ceil_seconds(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }
}

/// The largest integer below which a double holds every integer: what Redis' Lua can count with exactly.
pub const EXACT: u64 = 1 << 53;

/// The largest count of a sliding log: in Redis each entry takes some 10 bytes, and to look at one in the midst of
/// so many takes 1.2 microseconds in place of the 0.6 at an end.
pub const MOST_LOGGED: u64 = 10_000;

/// The largest number of requests in flight: in Redis each takes some 130 bytes.
pub const MOST_SLOTS: u64 = 10_000;

/// The shortest lease of a slot, in nanoseconds. It is renewed three times in its span, and a store may be away for a
/// moment.
pub const SHORTEST_LEASE: u64 = 1_000_000_000;

/// The lease where none is given, in nanoseconds.
pub const DEFAULT_LEASE: u64 = 60 * 1_000_000_000;

/// The longest: for as long are the slots of a process lost that has died.
pub const LONGEST_LEASE: u64 = 24 * 3_600 * 1_000_000_000;

/// The numbers of one window of a limit, checked and reduced.
///
/// A bucket is measured in levels, 1/`drain` of a microsecond each: a token weighs `token` levels, and `drain` levels
/// leave the bucket every microsecond. Both are whole numbers whatever the rate, so nothing is ever rounded while
/// counting (GCRA's emission interval is `token / drain` microseconds, its burst offset `capacity / drain`). In fixed
/// windows a token weighs one level, and each window adds `count` of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Numbers {
    burst: u64,
    count: u64,
    period: u64,
    token: u64,
    refill: Refill,
}

/// Where fixed windows begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Aligned {
    /// With the first charge on a full bucket.
    #[default]
    First,
    /// With the multiples of the period since the Unix epoch.
    Clock,
}

/// What a limit or an override allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allowance {
    /// No numbers: the limit applies only where an override gives some.
    Disabled,
    /// Everything passes, and no store is asked.
    Unlimited,
    /// Nothing passes, and no store is asked.
    Deny,
    /// One window, or several at once (`rates:`), all or nothing. Shared, because overrides repeat the same numbers.
    Windows(Arc<[Numbers]>),
    /// One window, and other numbers that switch on by themselves when its bucket is empty.
    Elevated(Arc<WithElevated>),
}

impl Allowance {
    /// The windows, if it has some: one where `elevated` stands beside it.
    pub fn windows(&self) -> Option<&Arc<[Numbers]>> {
        match self {
            Self::Windows(windows) => Some(windows),
            Self::Elevated(with) => Some(&with.base),
            Self::Disabled | Self::Unlimited | Self::Deny => None,
        }
    }

    /// The numbers that switch on by themselves.
    pub fn elevated(&self) -> Option<&Arc<Elevated>> {
        match self {
            Self::Elevated(with) => Some(&with.elevated),
            _ => None,
        }
    }
}

/// Why numbers cannot be counted with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NumbersError {
    /// A bucket that holds nothing refuses everything; `deny: true` says that plainly.
    #[error("burst must be at least 1")]
    Burst,
    /// A count of 0 would divide by zero.
    #[error("count must be at least 1")]
    Count,
    /// A period of 0 would be an endless rate.
    #[error("period must be longer than 0")]
    Period,
    /// The emission interval, period / count, would be less than a nanosecond.
    #[error("count is more than one per nanosecond of the period")]
    TooFast,
    /// `burst x period / count` does not fit into 2^53 ticks.
    #[error("burst x period / count is more than 2^53 ticks can hold (285 years of microseconds at a count of 1)")]
    TooLarge,
    /// The stores' clocks tick in microseconds.
    #[error("the period of a window is a whole number of microseconds")]
    Tick,
    /// The windows that it takes to fill the bucket do not fit into 2^53 microseconds.
    #[error("burst / count windows take longer than 2^53 microseconds, 285 years")]
    TooLong,
    /// More calendar windows than a decision may speak of.
    #[error("it takes more than {MOST_WINDOWS_AHEAD} windows of the calendar to fill the bucket")]
    TooManyWindows,
    /// A sliding log has an entry for each token.
    #[error("a sliding log keeps at most {MOST_LOGGED} entries")]
    TooManyEntries,
    /// Too few ticks of a sliding window's period would be left for shares of it.
    #[error("count x period is more than a sliding window can hold in 2^53 ticks")]
    TooManyToSlide,
    /// Two periods of a sliding window do not fit into 2^53 microseconds.
    #[error("two periods of a sliding window take longer than 2^53 microseconds, 285 years")]
    TooLongToSlide,
    /// The store has an entry for each request in flight.
    #[error("at most {MOST_SLOTS} requests in flight are counted")]
    TooManySlots,
    /// A lease that is too short is lost with every pause of the store; one that is too long keeps the slots of the dead.
    #[error("a lease is 1s to 24h long, in whole microseconds")]
    Lease,
    /// A queue of nothing refuses everything.
    #[error("the capacity of a queue must be at least 1")]
    Capacity,
    /// A queue is a buffer of work, not a store of it.
    #[error("the capacity of a queue is at most {MOST_WAITING}")]
    TooManyWaiting,
    /// An entry that is stale at once.
    #[error("`max_age` must be longer than 0")]
    MaxAge,
    /// The stores' clocks tick in microseconds, 2^53 of which are 285 years.
    #[error("`max_age` is a whole number of microseconds below 2^53")]
    MaxAgeTick,
    /// A caller gives numbers to a queue or to a script.
    #[error("a queue and a script have no numbers of a call")]
    NotPerCall,
}

impl Numbers {
    /// Numbers that refill `count` tokens every `period` nanoseconds up to `burst`.
    pub fn new(burst: u64, count: u64, period: u64) -> Result<Self, NumbersError> {
        if burst == 0 {
            return Err(NumbersError::Burst);
        }
        if count == 0 {
            return Err(NumbersError::Count);
        }
        if period == 0 {
            return Err(NumbersError::Period);
        }
        if count > period {
            return Err(NumbersError::TooFast);
        }
        let levels_per_microsecond = u128::from(count) * 1_000;
        let divisor = greatest_common_divisor(u128::from(period), levels_per_microsecond);
        let exact =
            |value: u128| u64::try_from(value).ok().filter(|&value| value < EXACT).ok_or(NumbersError::TooLarge);
        let token = exact(u128::from(period) / divisor)?;
        let drain = exact(levels_per_microsecond / divisor)?;
        exact(u128::from(burst) * u128::from(token))?;
        Ok(Self { burst, count, period, token, refill: Refill::evenly(drain) })
    }

    /// Numbers that add `count` tokens with each window of `period` nanoseconds, up to `burst`. The windows of a bucket
    /// begin with the first charge that finds it full, or with the multiples of the period since the Unix epoch.
    pub fn windows(burst: u64, count: u64, period: u64, aligned: Aligned) -> Result<Self, NumbersError> {
        if period == 0 {
            return Err(NumbersError::Period);
        }
        if !period.is_multiple_of(1_000) {
            return Err(NumbersError::Tick);
        }
        let micros = period / 1_000;
        let windows = match aligned {
            Aligned::First => Windows::First(micros),
            Aligned::Clock => Windows::Clock(micros),
        };
        let numbers = Self::windowed(burst, count, period, windows)?;
        let full = u128::from(numbers.windows_to_fill()) * u128::from(micros);
        if full < u128::from(EXACT) { Ok(numbers) } else { Err(NumbersError::TooLong) }
    }

    /// Numbers that add `count` tokens with each month or year of a calendar, up to `burst`.
    pub fn calendar(burst: u64, count: u64, calendar: Calendar) -> Result<Self, NumbersError> {
        let numbers = Self::windowed(burst, count, 0, Windows::Calendar(calendar))?;
        if numbers.windows_to_fill() <= MOST_WINDOWS_AHEAD { Ok(numbers) } else { Err(NumbersError::TooManyWindows) }
    }

    fn windowed(burst: u64, count: u64, period: u64, windows: Windows) -> Result<Self, NumbersError> {
        match (burst, count) {
            (0, _) => Err(NumbersError::Burst),
            (_, 0) => Err(NumbersError::Count),
            (EXACT.., _) | (_, EXACT..) => Err(NumbersError::TooLarge),
            _ => Ok(Self { burst, count, period, token: 1, refill: Refill::by(windows) }),
        }
    }

    /// Numbers of a log that lets `count` tokens pass in any `period` nanoseconds.
    pub fn sliding_log(count: u64, period: u64) -> Result<Self, NumbersError> {
        match (count, period / 1_000) {
            (0, _) => Err(NumbersError::Count),
            (_, 0) if period == 0 => Err(NumbersError::Period),
            _ if !period.is_multiple_of(1_000) => Err(NumbersError::Tick),
            (_, EXACT..) => Err(NumbersError::TooLong),
            (count, _) if count > MOST_LOGGED => Err(NumbersError::TooManyEntries),
            (count, micros) => {
                Ok(Self { burst: count, count, period, token: 1, refill: Refill::of(Kind::Log(micros)) })
            }
        }
    }

    /// Numbers of two windows, the older of which fades, that let about `count` tokens pass in any `period` nanoseconds.
    /// With `count_denied` what is refused counts as well.
    pub fn sliding_window(count: u64, period: u64, count_denied: bool) -> Result<Self, NumbersError> {
        match (count, period / 1_000) {
            (0, _) => Err(NumbersError::Count),
            (_, 0) if period == 0 => Err(NumbersError::Period),
            _ if !period.is_multiple_of(1_000) => Err(NumbersError::Tick),
            (_, micros) if micros > sliding_window::LONGEST_PERIOD => Err(NumbersError::TooLongToSlide),
            (count, micros) if count > sliding_window::largest_count(micros) => Err(NumbersError::TooManyToSlide),
            (count, micros) => {
                let refill = Refill::of(Kind::SlidingWindow(micros));
                let refill = if count_denied { refill.counting_denied() } else { refill };
                Ok(Self { burst: count, count, period, token: 1, refill })
            }
        }
    }

    /// Numbers of a bucket that lets `capacity` requests be in flight, each for `lease` nanoseconds unless it is renewed.
    pub fn slots(capacity: u64, lease: u64) -> Result<Self, NumbersError> {
        match (capacity, lease) {
            (0, _) => Err(NumbersError::Burst),
            (capacity, _) if capacity > MOST_SLOTS => Err(NumbersError::TooManySlots),
            (_, SHORTEST_LEASE..=LONGEST_LEASE) if lease.is_multiple_of(1_000) => {
                let refill = Refill::of(Kind::Slots(lease / 1_000));
                Ok(Self { burst: capacity, count: 0, period: 0, token: 1, refill })
            }
            _ => Err(NumbersError::Lease),
        }
    }

    /// Numbers of a queue in which `capacity` entries may wait, each for `max_age` nanoseconds at most if that is given.
    pub fn queue(capacity: u64, max_age: Option<u64>) -> Result<Self, NumbersError> {
        let stale = match (capacity, max_age) {
            (0, _) => return Err(NumbersError::Capacity),
            (capacity, _) if capacity > MOST_WAITING => return Err(NumbersError::TooManyWaiting),
            (_, None) => 0,
            (_, Some(0)) => return Err(NumbersError::MaxAge),
            (_, Some(max_age)) if !max_age.is_multiple_of(1_000) || max_age / 1_000 >= EXACT => {
                return Err(NumbersError::MaxAgeTick);
            }
            (_, Some(max_age)) => max_age / 1_000,
        };
        Ok(Self { burst: capacity, count: 0, period: 0, token: 1, refill: Refill::of(Kind::Queue(stale)) })
    }

    /// Numbers of a script that runs with the arguments of this number among those of its limit. How much it allows is
    /// for the script to know, so its burst is whatever can be counted.
    pub const fn script(arguments: u64) -> Self {
        Self { burst: EXACT - 1, count: arguments, period: 0, token: 1, refill: Refill::of(Kind::Script) }
    }

    /// Whether a script says what these numbers are.
    pub const fn is_script(&self) -> bool {
        matches!(self.refill.kind(), Kind::Script)
    }

    /// Numbers of a bucket that never refills: only a refund or a reset gives tokens back.
    pub fn fixed(burst: u64) -> Result<Self, NumbersError> {
        match burst {
            0 => Err(NumbersError::Burst),
            EXACT.. => Err(NumbersError::TooLarge),
            _ => Ok(Self { burst, count: 0, period: 0, token: 1, refill: Refill::evenly(0) }),
        }
    }

    /// The capacity of the bucket, in tokens.
    pub const fn burst(&self) -> u64 {
        self.burst
    }

    /// Tokens that come back every period; 0 if the bucket never refills.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// The period, in nanoseconds; 0 if the bucket never refills, or with the calendar.
    pub const fn period(&self) -> u64 {
        self.period
    }

    /// What one token weighs, in levels.
    pub const fn token(&self) -> u64 {
        self.token
    }

    /// Levels that leave the bucket every microsecond; 0 if it never refills, or in windows.
    pub const fn drain(&self) -> u64 {
        self.refill.drain()
    }

    /// How the bucket refills.
    pub const fn refill(&self) -> Refill {
        self.refill
    }

    /// What a meter keeps of the numbers that it is written under: the weight of a token, or the tokens that each window
    /// adds, and how the bucket refills.
    #[inline]
    pub const fn written(&self) -> (u64, Refill) {
        (if self.refill.windows().is_none() { self.token } else { self.count }, self.refill)
    }

    /// Whether the bucket refills with the months or years of a calendar.
    pub const fn is_calendar(&self) -> bool {
        matches!(self.refill.windows(), Some(Windows::Calendar(_)))
    }

    /// The windows that add up to the burst; 0 if it does not refill in windows.
    pub const fn windows_to_fill(&self) -> u64 {
        if self.refill.windows().is_none() { 0 } else { self.burst.div_ceil(self.count) }
    }

    /// The capacity of the bucket, in levels.
    pub const fn capacity(&self) -> u64 {
        self.burst * self.token
    }

    /// How long `levels` take to leave a bucket that refills evenly, rounded up; `None` if they never do.
    pub const fn time_for(&self, levels: u64) -> Option<Micros> {
        match (levels, self.drain()) {
            (0, _) => Some(Micros(0)),
            (_, 0) => None,
            (levels, drain) => Some(Micros(levels.div_ceil(drain))),
        }
    }

    /// How long an empty bucket takes to be full, or how long a window is, in seconds, rounded up: the `w` of
    /// `RateLimit-Policy`. `None` if the bucket never refills, and for months and years, whose length is no constant.
    pub fn window_seconds(&self) -> Option<u64> {
        match self.refill.kind() {
            Kind::Level => {}
            Kind::Log(period) | Kind::SlidingWindow(period) => return Some(Micros(period).ceil_seconds()),
            Kind::Slots(_) | Kind::Queue(_) | Kind::Script => return None,
        }
        match self.refill.windows() {
            None => self.time_for(self.capacity()).map(Micros::ceil_seconds),
            Some(Windows::First(period) | Windows::Clock(period)) => Some(Micros(period).ceil_seconds()),
            Some(Windows::Calendar(_)) => None,
        }
    }

    /// Whether requests in flight are counted.
    pub const fn is_slots(&self) -> bool {
        matches!(self.refill.kind(), Kind::Slots(_))
    }

    /// Whether one token comes back more often than every microsecond, the tick of the stores' clocks.
    pub const fn is_finer_than_the_clock(&self) -> bool {
        self.token < self.drain()
    }
}

fn greatest_common_divisor(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::super::calendar::Unit;
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn rates_reduce_to_the_smallest_integers() {
        let three = Numbers::new(3, 3, SECOND).unwrap();
        assert_eq!((three.token(), three.drain()), (1_000_000, 3));
        let fast = Numbers::new(10, 5_000_000, SECOND).unwrap();
        assert_eq!((fast.token(), fast.drain(), fast.is_finer_than_the_clock()), (1, 5, true));
        let nanoseconds = Numbers::new(1, 1, 1_500).unwrap();
        assert_eq!((nanoseconds.token(), nanoseconds.drain()), (3, 2));
    }

    #[test]
    fn what_cannot_be_counted_is_refused() {
        assert_eq!(Numbers::new(0, 1, SECOND), Err(NumbersError::Burst));
        assert_eq!(Numbers::new(1, 0, SECOND), Err(NumbersError::Count));
        assert_eq!(Numbers::new(1, 1, 0), Err(NumbersError::Period));
        assert_eq!(Numbers::new(10, 2_000_000_000, SECOND), Err(NumbersError::TooFast));
        assert_eq!(Numbers::new(1_000_000_000, 1, 2160 * 3600 * SECOND), Err(NumbersError::TooLarge));
        assert_eq!(Numbers::fixed(0), Err(NumbersError::Burst));
        assert_eq!(Numbers::fixed(u64::MAX), Err(NumbersError::TooLarge));
    }

    #[test]
    fn windows_are_as_long_as_their_period_and_months_have_no_length() {
        let month = Calendar::find(Unit::Month(1), "UTC").unwrap();
        for (numbers, seconds, to_fill) in [
            (Numbers::windows(100, 10, 90 * SECOND, Aligned::Clock), Some(90), 10),
            (Numbers::windows(10, 10, SECOND / 2, Aligned::First), Some(1), 1),
            (Numbers::calendar(11, 10, month), None, 2),
        ] {
            let numbers = numbers.unwrap();
            assert_eq!((numbers.window_seconds(), numbers.windows_to_fill()), (seconds, to_fill), "{numbers}");
        }
        let windows = |burst, count, period| Numbers::windows(burst, count, period, Aligned::First).unwrap_err();
        assert_eq!(windows(0, 1, SECOND), NumbersError::Burst);
        assert_eq!(windows(1, 0, SECOND), NumbersError::Count);
        assert_eq!(windows(1, 1, 0), NumbersError::Period);
        assert_eq!(windows(1, 1, 1_500), NumbersError::Tick);
        assert_eq!(windows(EXACT, 1, SECOND), NumbersError::TooLarge);
        assert_eq!(windows(EXACT - 1, 1, SECOND), NumbersError::TooLong);
        assert_eq!(Numbers::calendar(241, 10, month), Err(NumbersError::TooManyWindows));
    }

    #[test]
    fn times_round_up_and_a_fixed_bucket_never_refills() {
        let seven = Numbers::new(7, 7, SECOND).unwrap();
        assert_eq!(seven.time_for(seven.token()), Some(Micros(142_858)));
        assert_eq!(seven.window_seconds(), Some(1));
        assert_eq!(Numbers::fixed(7).unwrap().time_for(1), None);
        assert_eq!(Numbers::fixed(7).unwrap().time_for(0), Some(Micros(0)));
    }
}
