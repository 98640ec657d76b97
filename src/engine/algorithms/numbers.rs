//! The numbers of a limit: burst, count and period, and the integers that the algorithms compute with. Their constructors are
//! in the files of the algorithms.

use std::sync::Arc;

use super::algorithm::Algorithm;
use super::calendar::{Calendar, MOST_WINDOWS_AHEAD};
use super::micros::Micros;
use super::windows::{Refill, Windows};

/// The numbers of one window of a limit, checked and reduced.
///
/// A bucket is measured in levels. A token is `token` levels, and `drain` levels leave the bucket every microsecond. Both are
/// whole numbers whatever the rate, so counting never rounds (GCRA's emission interval is `token / drain` microseconds, its
/// burst offset `capacity / drain`). The other algorithms have one level per token.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Numbers {
    pub(super) burst: u64,
    pub(super) count: u64,
    /// In nanoseconds.
    pub(super) period: u64,
    pub(super) token: u64,
    pub(super) refill: Refill,
    pub(super) algorithm: Algorithm,
    /// The windows, if a calendar gives them.
    pub(super) calendar: Option<Arc<Calendar>>,
}

/// The reason why numbers are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NumbersError {
    #[error("burst must be at least 1")]
    Burst,
    #[error("count must be at least 1")]
    Count,
    #[error("period must be longer than 0")]
    Period,
    /// The emission interval, period / count, would be less than a nanosecond.
    #[error("count is more than one per nanosecond of the period")]
    TooFast,
    #[error("burst x period / count is more than 2^53 ticks can hold (285 years of microseconds at a count of 1)")]
    TooLarge,
    /// The stores' clocks tick in microseconds.
    #[error("the period of a window must be a whole number of microseconds")]
    Tick,
    #[error("burst / count windows take longer than 2^53 microseconds, 285 years")]
    TooLong,
    #[error("it takes more than {MOST_WINDOWS_AHEAD} windows of the calendar to fill the bucket")]
    TooManyWindows,
    /// A sliding log has an entry for each token.
    #[error("a sliding log keeps at most {0} entries")]
    TooManyEntries(u64),
    /// The share of the previous window would fall in too few ticks.
    #[error("count x period is more than a sliding window can hold in 2^53 ticks")]
    TooManyToSlide,
    #[error("two periods of a sliding window take longer than 2^53 microseconds, 285 years")]
    TooLongToSlide,
    #[error("at most {0} requests in flight are counted")]
    TooManySlots(u64),
    /// A shorter lease is lost with every pause of the store; a longer one keeps the slots of dead processes.
    #[error("a lease is 1s to 24h long, in whole microseconds")]
    Lease,
    #[error("the capacity of a queue must be at least 1")]
    Capacity,
    /// A longer queue is a backlog, not a buffer.
    #[error("the capacity of a queue is at most {0}")]
    TooManyWaiting(u64),
    #[error("`max_age` must be longer than 0")]
    MaxAge,
    /// The stores' clocks tick in microseconds, 2^53 of which are 285 years.
    #[error("`max_age` must be a whole number of microseconds below 2^53")]
    MaxAgeTick,
    #[error("queues and scripts do not take the numbers of a call")]
    NotPerCall,
    #[error("months and years differ in length, so their tokens cannot come back evenly")]
    CalendarEvenly,
}

impl Numbers {
    pub(super) const fn with(burst: u64, count: u64, period: u64, algorithm: Algorithm, refill: Refill) -> Self {
        Self { burst, count, period, token: 1, refill, algorithm, calendar: None }
    }

    /// Returns the numbers of a fixed window as those of GCRA, and others as they are.
    pub fn evenly(&self) -> Result<Self, NumbersError> {
        match self.algorithm {
            Algorithm::FixedWindow(_) if self.is_calendar() => Err(NumbersError::CalendarEvenly),
            Algorithm::FixedWindow(_) => Self::new(self.burst, self.count, self.period),
            _ => Ok(self.clone()),
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

    /// The period, in nanoseconds; 0 if the bucket never refills, or with a calendar.
    pub const fn period(&self) -> u64 {
        self.period
    }

    #[inline]
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The period, lease or maximum age in microseconds, for algorithms that keep no level; 0 if it is not set.
    pub const fn span(&self) -> u64 {
        self.refill.micros()
    }

    /// The levels of a token.
    pub const fn token(&self) -> u64 {
        self.token
    }

    /// Levels that leave the bucket every microsecond; 0 if it never refills, or in windows.
    pub const fn drain(&self) -> u64 {
        self.refill.drain()
    }

    /// The windows in which the bucket refills; `None` if it does not refill in windows.
    #[inline]
    pub fn windows(&self) -> Option<Windows<'_>> {
        self.calendar.as_deref().map(Windows::Calendar).or_else(|| self.refill.windows())
    }

    /// Replaces the calendar with the one that `share` returns, so that equal calendars are in memory once.
    pub fn share_calendar(&mut self, share: impl FnOnce(&Arc<Calendar>) -> Arc<Calendar>) {
        if let Some(calendar) = &mut self.calendar {
            *calendar = share(calendar);
        }
    }

    /// The levels of a token, or the tokens that each window adds.
    #[inline]
    pub const fn weight(&self) -> u64 {
        if self.refill.is_evenly() { self.token } else { self.count }
    }

    /// The windows that add up to the burst; 0 if the bucket does not refill in windows.
    pub fn windows_to_fill(&self) -> u64 {
        if self.windows().is_none() { 0 } else { self.burst.div_ceil(self.count) }
    }

    /// Returns true if a refund must know when its tokens were taken, so as not to give back others. A bucket that refills evenly or
    /// over several windows bounds refunds by itself.
    pub fn is_dated(&self) -> bool {
        self.algorithm.is_sliding() || self.algorithm.keeps_level() && self.windows_to_fill() == 1
    }

    /// The capacity of the bucket, in levels.
    #[inline]
    pub const fn capacity(&self) -> u64 {
        self.burst * self.token
    }

    /// Returns how long `levels` take to leave a bucket that refills evenly, rounded up; `None` if they never do.
    #[inline]
    pub const fn time_for(&self, levels: u64) -> Option<Micros> {
        match (levels, self.drain()) {
            (0, _) => Some(Micros(0)),
            (_, 0) => None,
            (levels, drain) => Some(Micros(levels.div_ceil(drain))),
        }
    }

    /// Returns the `w` of `RateLimit-Policy` in seconds, rounded up: the time in which an empty bucket refills, or the length
    /// of a window. `None` for buckets that never refill, and for months and years, whose lengths vary.
    pub fn window_seconds(&self) -> Option<u64> {
        match self.algorithm {
            Algorithm::Gcra => self.time_for(self.capacity()).map(Micros::ceil_seconds),
            Algorithm::FixedWindow(_) => match self.windows() {
                Some(Windows::First(period) | Windows::Clock(period)) => Some(Micros(period).ceil_seconds()),
                Some(Windows::Calendar(_)) | None => None,
            },
            algorithm => algorithm.is_sliding().then(|| Micros(self.span()).ceil_seconds()),
        }
    }

    /// Returns true if denied requests count as well.
    pub fn counts_denied(&self) -> bool {
        self.algorithm == Algorithm::SlidingWindow { count_denied: true }
    }

    pub fn is_calendar(&self) -> bool {
        self.calendar.is_some()
    }

    pub fn is_slots(&self) -> bool {
        self.algorithm == Algorithm::Concurrency
    }

    pub fn is_script(&self) -> bool {
        self.algorithm == Algorithm::Script
    }

    /// Returns true if tokens come back more often than every microsecond, the tick of the stores' clocks.
    pub const fn is_finer_than_the_clock(&self) -> bool {
        self.token < self.drain()
    }
}

/// Converts a period of a window from nanoseconds to microseconds.
pub(super) const fn whole_micros(period: u64) -> Result<u64, NumbersError> {
    match period {
        0 => Err(NumbersError::Period),
        _ if !period.is_multiple_of(1_000) => Err(NumbersError::Tick),
        _ => Ok(period / 1_000),
    }
}

#[cfg(test)]
mod tests {
    use super::super::algorithm::Aligned;
    use super::super::calendar::Unit;
    use super::super::micros::EXACT;
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
            (Numbers::fixed_window(100, 10, 90 * SECOND, Aligned::Clock), Some(90), 10),
            (Numbers::fixed_window(10, 10, SECOND / 2, Aligned::First), Some(1), 1),
            (Numbers::calendar_window(11, 10, month.clone()), None, 2),
        ] {
            let numbers = numbers.unwrap();
            assert_eq!((numbers.window_seconds(), numbers.windows_to_fill()), (seconds, to_fill), "{numbers}");
        }
        let windows = |burst, count, period| Numbers::fixed_window(burst, count, period, Aligned::First).unwrap_err();
        assert_eq!(windows(0, 1, SECOND), NumbersError::Burst);
        assert_eq!(windows(1, 0, SECOND), NumbersError::Count);
        assert_eq!(windows(1, 1, 0), NumbersError::Period);
        assert_eq!(windows(1, 1, 1_500), NumbersError::Tick);
        assert_eq!(windows(EXACT, 1, SECOND), NumbersError::TooLarge);
        assert_eq!(windows(EXACT - 1, 1, SECOND), NumbersError::TooLong);
        assert_eq!(Numbers::calendar_window(241, 10, month), Err(NumbersError::TooManyWindows));
    }

    #[test]
    fn times_round_up_and_a_fixed_bucket_never_refills() {
        let seven = Numbers::new(7, 7, SECOND).unwrap();
        assert_eq!(seven.time_for(seven.token()), Some(Micros(142_858)));
        assert_eq!(seven.window_seconds(), Some(1));
        assert_eq!(Numbers::fixed(7).unwrap().time_for(1), None);
        assert_eq!(Numbers::fixed(7).unwrap().time_for(0), Some(Micros(0)));
    }

    #[test]
    fn numbers_know_their_algorithm() {
        let month = || Calendar::find(Unit::Month(1), "UTC").unwrap();
        let gcra = Numbers::new(1, 1_000_000, SECOND).unwrap();
        let faster = Numbers::new(1, 1_000_001, SECOND).unwrap();
        assert_eq!([&gcra, &faster].map(Numbers::is_finer_than_the_clock), [false, true]);
        let mut calendar = Numbers::calendar_window(10, 5, month()).unwrap();
        let slots = Numbers::concurrency(1, SECOND).unwrap();
        let fixed = Numbers::fixed_window(10, 5, SECOND, Aligned::First).unwrap();
        for (numbers, is) in [
            (&gcra, (false, false, false)),
            (&calendar, (true, false, false)),
            (&slots, (false, true, false)),
            (&Numbers::script(1), (false, false, true)),
        ] {
            assert_eq!((numbers.is_calendar(), numbers.is_slots(), numbers.is_script()), is, "{numbers}");
        }
        assert_eq!([&gcra, &fixed].map(Numbers::weight), [1, 5]);
        assert_eq!(Numbers::new(1, 1, SECOND).unwrap().weight(), 1_000_000);
        assert_eq!(fixed.evenly(), Numbers::new(10, 5, SECOND));
        assert_eq!(calendar.evenly(), Err(NumbersError::CalendarEvenly));
        assert_eq!(slots.evenly().as_ref(), Ok(&slots));
        let shared = Arc::new(month());
        calendar.share_calendar(|_| Arc::clone(&shared));
        assert!(Arc::ptr_eq(calendar.calendar.as_ref().unwrap(), &shared));
    }
}
