//! The activations of elevated numbers in a month, of one bucket or of a quota that buckets share.

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::micros::{EXACT, Micros};

/// Months are in UTC, by the deciding clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activations {
    pub(super) count: u64,
    /// The end of their month; 0 before the first.
    pub(super) month_end: Micros,
}

impl Activations {
    /// More than any limit allows, until the month is over.
    pub fn exhausted(now: Micros) -> Self {
        Self { count: u64::MAX, month_end: next_month(now) }
    }

    /// Returns those that count at an instant. After the clock stepped back, those of a later month do.
    #[must_use]
    pub fn at(self, instant: Micros) -> Self {
        if self.is_over(instant) { Self::default() } else { self }
    }

    pub fn is_over(self, instant: Micros) -> bool {
        self.month_end <= instant
    }

    /// Counts one more.
    #[must_use]
    pub fn with_one(self, instant: Micros) -> Self {
        let Self { count, month_end } = self.at(instant);
        let month_end = if count == 0 { next_month(instant) } else { month_end };
        Self { count: count.saturating_add(1), month_end }
    }
}

/// Returns the end of the month in UTC, or the last countable instant if that is earlier.
fn next_month(at: Micros) -> Micros {
    let end = || {
        let at = Timestamp::from_microsecond(i64::try_from(at.0).ok()?).ok()?.to_zoned(TimeZone::UTC);
        let end = at.date().last_of_month().tomorrow().ok()?.to_zoned(TimeZone::UTC).ok()?;
        u64::try_from(end.timestamp().as_microsecond()).ok()
    };
    Micros(end().map_or(EXACT - 1, |end| end.min(EXACT - 1)))
}

#[cfg(test)]
mod tests {
    use super::super::calendar::{Calendar, Unit};
    use super::*;

    #[test]
    fn a_month_counts_its_own_and_one_that_has_begun_is_not_left_again() {
        let [march, april] = [1_711_929_599_999_999, 1_711_929_600_000_000].map(Micros);
        let once = Activations::default().with_one(march);
        assert_eq!((once.count, once.month_end), (1, april));
        assert_eq!((once.with_one(march).count, once.with_one(april).count), (2, 1));
        let later = once.with_one(april);
        assert_eq!((later.at(march), later.with_one(march).month_end), (later, later.month_end));
        assert!(once.is_over(april) && !once.is_over(march));
        assert_eq!(Activations::exhausted(march).at(april), Activations::default());
    }

    /// The instants at which limitd lets its count of a month expire.
    #[test]
    fn months_end_with_those_of_utc() {
        for (at, end) in [
            ("2024-03-15T12:00:00Z", 1_711_929_600_000),
            ("2024-03-31T23:00:00Z", 1_711_929_600_000),
            ("2024-03-31T23:59:59Z", 1_711_929_600_000),
            ("2024-04-01T00:00:00Z", 1_714_521_600_000),
            ("2024-12-31T23:59:59Z", 1_735_689_600_000),
            ("2024-02-29T00:00:00Z", 1_709_251_200_000),
        ] {
            let at: jiff::Timestamp = at.parse().unwrap();
            let at = Micros(u64::try_from(at.as_microsecond()).unwrap());
            assert_eq!(next_month(at), Micros::from_millis(end));
        }
        let utc = Calendar::find(Unit::Month(1), "UTC").unwrap();
        for month in 0..3_420 {
            let (start, end) = (utc.start(month), utc.start(month + 1));
            assert_eq!([next_month(start), next_month(Micros(end.0 - 1))], [end, end]);
        }
        assert_eq!(next_month(Micros(u64::MAX)), Micros(EXACT - 1));
    }

    #[test]
    fn an_exhausted_month_allows_none_until_it_ends() {
        let [march, april] = [1_711_929_599_999_999, 1_711_929_600_000_000].map(Micros);
        let exhausted = Activations::exhausted(march);
        assert_eq!((exhausted.at(march).count, exhausted.month_end), (u64::MAX, april));
        assert_eq!(Activations::exhausted(Micros(EXACT - 2)).month_end, Micros(EXACT - 1));
    }
}
