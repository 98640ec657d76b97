//! Instants and spans, in whole microseconds.

/// An instant, in microseconds since the Unix epoch, or a span of microseconds.
///
/// Redis' Lua has only doubles. They count microseconds exactly until the year 2255. Of nanoseconds since the epoch, they have
/// already lost the last eight bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(pub u64);

/// Doubles hold every integer below 2^53 exactly. Everything that Redis' Lua counts stays below.
pub const EXACT: u64 = 1 << 53;

/// The most by which a bucket's date may be ahead of the clock: threads read the clock a moment apart, and servers' clocks
/// differ by milliseconds. A bucket that is further ahead is redated.
pub const MOST_AHEAD: Micros = Micros(1_000_000);

impl Micros {
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis * 1_000)
    }

    /// Returns the span from `earlier` to `self`; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }

    /// Returns the instant that is `span` after this one.
    #[must_use]
    pub const fn after(self, span: Self) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// Returns the instant that is `span` before this one, and not before the epoch.
    #[must_use]
    pub const fn before(self, span: Self) -> Self {
        Self(self.0.saturating_sub(span.0))
    }

    /// Returns the span in seconds, rounded up so that a client that waits this long is not too early.
    pub const fn ceil_seconds(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }

    /// Returns true if the clock has stepped back since this instant, or another clock set it.
    #[inline]
    pub(crate) const fn is_ahead_of(self, now: Self) -> bool {
        self.0 > now.after(MOST_AHEAD).0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_do_not_leave_the_range() {
        assert_eq!(Micros::from_millis(3), Micros(3_000));
        assert_eq!((Micros(5).before(Micros(3)), Micros(5).before(Micros(6))), (Micros(2), Micros(0)));
        let ahead = [MOST_AHEAD.0 - 1, MOST_AHEAD.0, MOST_AHEAD.0 + 1, MOST_AHEAD.0 * 2];
        assert_eq!(ahead.map(|by| Micros(7 + by).is_ahead_of(Micros(7))), [false, false, true, true]);
    }
}
