//! Dates of the Gregorian calendar, in UTC.

/// Seconds of a day: UTC as systems count it has no leap seconds.
pub const DAY: i64 = 86_400;

/// Days from 0000-03-01 to 1970-01-01, and of 400 years: the calendar repeats itself after that.
const EPOCH: i64 = 719_468;
const ERA: i64 = 146_097;

/// A date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Date {
    /// The year.
    pub year: i64,
    /// The month, 1 to 12.
    pub month: i64,
    /// The day of the month, 1 to 31.
    pub day: i64,
}

impl Date {
    /// The date, if there is such a day.
    pub fn new(year: i64, month: i64, day: i64) -> Option<Self> {
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let length = match month {
            2 => 28 + i64::from(leap),
            4 | 6 | 9 | 11 => 30,
            1..=12 => 31,
            _ => return None,
        };
        (1..=length).contains(&day).then_some(Self { year, month, day })
    }

    /// The date that is so many days after 1970-01-01.
    pub fn from_days(days: i64) -> Self {
        let days = days + EPOCH;
        let day_of_era = days.rem_euclid(ERA);
        // A leap day every 4 years (1460 days), but not after 100 (36524), and yet after 400.
        let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let month = (month_from_march + 2) % 12 + 1;
        let year = days.div_euclid(ERA) * 400 + year_of_era + i64::from(month <= 2);
        Self { year, month, day: day_of_year - (153 * month_from_march + 2) / 5 + 1 }
    }

    /// Days since 1970-01-01.
    pub fn days(self) -> i64 {
        // Years that begin in March put the leap day last.
        let year = self.year - i64::from(self.month <= 2);
        let day_of_year = (153 * ((self.month + 9) % 12) + 2) / 5 + self.day - 1;
        365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year - EPOCH
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_and_dates_are_each_other() {
        for (days, year, month, day) in [
            (0, 1970, 1, 1),
            (-1, 1969, 12, 31),
            (11_016, 2000, 2, 29),
            (11_017, 2000, 3, 1),
            (20_778, 2026, 11, 21),
            (47_541, 2100, 3, 1),
            (-719_468, 0, 3, 1),
        ] {
            let date = Date { year, month, day };
            assert_eq!((Date::from_days(days), date.days()), (date, days));
            assert_eq!(Date::new(year, month, day), Some(date));
        }
        // 800 years, day by day.
        for days in -146_097..146_097 {
            let date = Date::from_days(days);
            assert_eq!(Date::new(date.year, date.month, date.day).map(Date::days), Some(days));
        }
    }

    #[test]
    fn days_that_are_not_are_refused() {
        for (year, month, day) in
            [(2025, 2, 29), (1900, 2, 29), (2026, 4, 31), (2026, 13, 1), (2026, 0, 1), (2026, 1, 0)]
        {
            assert_eq!(Date::new(year, month, day), None, "{year}-{month}-{day}");
        }
    }
}
