//! Months and years as windows, and their starts in a time zone.
//!
//! The starts are computed once, when the rules load, for all instants that can be counted. A decision only searches them.

use std::hash::{Hash, Hasher};
use std::sync::{LazyLock, OnceLock};

use jiff::civil::Date;
use jiff::tz::{TimeZone, TimeZoneDatabase};

use super::micros::{EXACT, Micros};
use super::windows;

/// The most windows that a bucket may take to refill. Each charge sends Redis the starts of all windows that its decision may
/// need, 17 bytes each.
pub const MOST_WINDOWS_AHEAD: u64 = 24;

/// `resets_on: 31` is the last day of every month.
const LONGEST_MONTH: i8 = 31;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// Months that begin on this day, 1 to 31, or on their last day if they are shorter.
    Month(i8),
    /// Years that begin on 1 January.
    Year,
}

/// The windows of a calendar. Calendars with the same unit and zone are equal.
#[derive(Clone, Debug)]
pub struct Calendar {
    pub(crate) unit: Unit,
    pub(crate) zone: &'static str,
    /// Unique in this binary for the unit and the zone.
    pub(super) id: u16,
    name: String,
    /// Computed by [`Self::prepare`], or at the first use. Months take 27 KiB.
    starts: OnceLock<Box<[u64]>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CalendarError {
    #[error("there is no such time zone")]
    Zone,
    #[error("a month has the days 1 to 31")]
    Day,
}

/// The time zones in this binary, by their IANA names.
static ZONES: LazyLock<Vec<String>> = LazyLock::new(|| {
    let database = TimeZoneDatabase::bundled();
    let mut zones: Vec<String> = database.available().map(|name| name.to_string()).collect();
    zones.sort_unstable();
    zones
});

impl Calendar {
    /// Finds the calendar of a time zone by its IANA name, such as `Europe/Berlin`, in any case.
    pub fn find(unit: Unit, zone: &str) -> Result<Self, CalendarError> {
        let day = match unit {
            Unit::Year => 0,
            Unit::Month(day) => {
                u16::try_from(day).ok().filter(|_| (1..=LONGEST_MONTH).contains(&day)).ok_or(CalendarError::Day)?
            }
        };
        let number = ZONES.iter().position(|known| known.eq_ignore_ascii_case(zone)).ok_or(CalendarError::Zone)?;
        let zone = ZONES[number].as_str();
        let id = u16::try_from(number * 32).map_err(|_| CalendarError::Zone)? + day;
        let name = match unit {
            Unit::Month(day) => format!("month/{day}/{zone}"),
            Unit::Year => format!("year/{zone}"),
        };
        Ok(Self { unit, zone, id, name, starts: OnceLock::new() })
    }

    pub fn zones() -> &'static [String] {
        &ZONES
    }

    /// Computes the windows, so that no decision has to.
    pub fn prepare(&self) {
        self.starts();
    }

    /// The name in calls to Redis, the same in all gateways: `month/15/Europe/Berlin`. It has no spaces, commas or colons.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number of the window that holds an instant before the year 2255. Window 0 holds the Unix epoch.
    pub fn number(&self, at: Micros) -> u64 {
        self.starts().partition_point(|start| *start <= at.0).saturating_sub(1) as u64
    }

    /// Returns the start of a window. The last one that is known begins [`MOST_WINDOWS_AHEAD`] + 1 windows after 2255.
    pub fn start(&self, number: u64) -> Micros {
        let start = usize::try_from(number).ok().and_then(|number| self.starts().get(number));
        Micros(start.copied().unwrap_or(u64::MAX))
    }

    /// Returns the length of a window, in microseconds.
    pub fn length(&self, number: u64) -> u64 {
        self.start(number + 1).since(self.start(number)).0
    }

    /// Returns bounds of the lengths of its windows, in microseconds. Each leaves a day for time zones that cross the date line.
    pub const fn lengths(&self) -> (u64, u64) {
        const DAY: u64 = 86_400_000_000;
        match self.unit {
            Unit::Month(_) => (27 * DAY, windows::LONGEST_MONTH),
            Unit::Year => (364 * DAY, windows::LONGEST_YEAR),
        }
    }

    fn starts(&self) -> &[u64] {
        self.starts.get_or_init(|| {
            TimeZoneDatabase::bundled().get(self.zone).map_or_else(|_| Box::default(), |zone| starts(self.unit, &zone))
        })
    }
}

impl PartialEq for Calendar {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Calendar {}

impl Hash for Calendar {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

/// Computes the starts of all windows from the Unix epoch on, in microseconds since then.
fn starts(unit: Unit, zone: &TimeZone) -> Box<[u64]> {
    let mut starts: Vec<u64> = Vec::new();
    for window in 0.. {
        let start = day(unit, window).and_then(|day| instant(day, zone));
        let Some(start) = start else { break };
        match u64::try_from(start).unwrap_or(0) {
            // The window that holds the epoch begins with it, because no bucket is older.
            0 => starts = vec![0],
            start => starts.push(start),
        }
        let countable = starts.partition_point(|start| *start < EXACT) as u64;
        if starts.len() as u64 > countable + MOST_WINDOWS_AHEAD {
            break;
        }
    }
    starts.into()
}

/// Returns the day on which a window begins; window 0 begins on 1 January 1969.
fn day(unit: Unit, window: i32) -> Option<Date> {
    let (years, month, day) = match unit {
        Unit::Month(day) => (window / 12, i8::try_from(window % 12 + 1).ok()?, day),
        Unit::Year => (window, 1, 1),
    };
    let first = Date::new(i16::try_from(1969 + years).ok()?, month, 1).ok()?;
    Date::new(first.year(), month, day.min(first.days_in_month())).ok()
}

/// Returns the start of a day in microseconds since the epoch: midnight, the first of two midnights where clocks are set
/// back over it, or the instant at which clocks are set forward over it.
fn instant(day: Date, zone: &TimeZone) -> Option<i64> {
    Some(day.to_zoned(zone.clone()).ok()?.timestamp().as_microsecond())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(text: &str) -> Micros {
        Micros(u64::try_from(text.parse::<jiff::Timestamp>().unwrap().as_microsecond()).unwrap())
    }

    /// The window that holds `at` ends at `end`, both in RFC 3339.
    #[track_caller]
    fn check(unit: Unit, zone: &str, at: &str, start: &str, end: &str) {
        let calendar = Calendar::find(unit, zone).unwrap();
        let number = calendar.number(micros(at));
        let found = [number, number + 1].map(|number| {
            let start = i64::try_from(calendar.start(number).0).unwrap();
            jiff::Timestamp::from_microsecond(start).unwrap().to_string()
        });
        assert_eq!(found, [start, end], "{unit:?} {zone}");
    }

    /// Kong's header and envoyproxy/ratelimit's window would say thirty days from there.
    #[test]
    fn a_month_asked_on_its_last_day_ends_with_it() {
        let month = Unit::Month(1);
        check(month, "UTC", "2024-01-31T12:00:00Z", "2024-01-01T00:00:00Z", "2024-02-01T00:00:00Z");
        check(month, "Europe/Berlin", "2024-01-31T22:59:59.999999Z", "2023-12-31T23:00:00Z", "2024-01-31T23:00:00Z");
        check(month, "Europe/Berlin", "2024-01-31T23:00:00Z", "2024-01-31T23:00:00Z", "2024-02-29T23:00:00Z");
        check(month, "Asia/Kathmandu", "2024-01-31T12:00:00Z", "2023-12-31T18:15:00Z", "2024-01-31T18:15:00Z");
        check(month, "Pacific/Kiritimati", "2024-02-29T09:00:00Z", "2024-01-31T10:00:00Z", "2024-02-29T10:00:00Z");
    }

    #[test]
    fn leap_years_have_their_day() {
        for (at, end) in [
            ("2023-02-01T00:00:00Z", "2023-03-01T00:00:00Z"),
            ("2024-02-01T00:00:00Z", "2024-03-01T00:00:00Z"),
            ("2100-02-01T00:00:00Z", "2100-03-01T00:00:00Z"),
        ] {
            check(Unit::Month(1), "UTC", at, at, end);
        }
        check(Unit::Year, "UTC", "2024-12-31T23:59:59Z", "2024-01-01T00:00:00Z", "2025-01-01T00:00:00Z");
        let year = Calendar::find(Unit::Year, "UTC").unwrap();
        let days = [2023, 2024, 2100, 2000].map(|name| year.length(name - 1970) / 86_400_000_000);
        assert_eq!(days, [365, 366, 365, 366]);
    }

    #[test]
    fn a_billing_day_beyond_the_end_of_a_month_is_its_last() {
        let check = |day, at, start, end| check(Unit::Month(day), "UTC", at, start, end);
        check(15, "2024-03-14T23:59:59Z", "2024-02-15T00:00:00Z", "2024-03-15T00:00:00Z");
        check(15, "2024-03-15T00:00:00Z", "2024-03-15T00:00:00Z", "2024-04-15T00:00:00Z");
        check(31, "2024-02-10T00:00:00Z", "2024-01-31T00:00:00Z", "2024-02-29T00:00:00Z");
        check(31, "2024-02-29T00:00:00Z", "2024-02-29T00:00:00Z", "2024-03-31T00:00:00Z");
        check(30, "2023-02-28T00:00:00Z", "2023-02-28T00:00:00Z", "2023-03-30T00:00:00Z");
        check(31, "2024-04-30T00:00:00Z", "2024-04-30T00:00:00Z", "2024-05-31T00:00:00Z");
    }

    #[test]
    fn clocks_that_are_set_move_the_boundary() {
        // Berlin's March begins in winter and ends in summer: an hour short.
        check(Unit::Month(1), "Europe/Berlin", "2024-03-15T00:00:00Z", "2024-02-29T23:00:00Z", "2024-03-31T22:00:00Z");
        check(
            Unit::Month(1),
            "America/New_York",
            "2024-11-15T00:00:00Z",
            "2024-11-01T04:00:00Z",
            "2024-12-01T05:00:00Z",
        );
        // No midnight: in Sao Paulo 2018-11-04 began at 1:00.
        check(
            Unit::Month(4),
            "America/Sao_Paulo",
            "2018-11-04T12:00:00Z",
            "2018-11-04T03:00:00Z",
            "2018-12-04T02:00:00Z",
        );
        // Two midnights: the first one counts. Havana, 2020-11-01, back from 1:00 to 0:00.
        check(Unit::Month(1), "America/Havana", "2020-11-01T05:30:00Z", "2020-11-01T04:00:00Z", "2020-12-01T05:00:00Z");
        // Apia had no 30 December 2011.
        check(Unit::Month(30), "Pacific/Apia", "2011-12-30T10:00:00Z", "2011-12-30T10:00:00Z", "2012-01-29T10:00:00Z");
    }

    #[test]
    fn windows_follow_each_other_from_the_epoch_until_time_ends() {
        // Of six hundred zones, most of which have the rules of another, as many as take a second.
        for zone in Calendar::zones().iter().map(String::as_str).step_by(25).chain(["Pacific/Apia", "America/Havana"]) {
            let time_zone = TimeZoneDatabase::bundled().get(zone).unwrap();
            for unit in [Unit::Month(1), Unit::Month(31), Unit::Year] {
                let starts = starts(unit, &time_zone);
                assert_eq!(starts[0], 0);
                assert!(starts.is_sorted_by(|a, b| a < b), "{unit:?} {zone}");
                // Redis' Lua knows them exactly, beyond 2^53 too.
                assert!(starts.iter().all(|start| *start <= EXACT || start % 64 == 0), "{unit:?} {zone}");
                let beyond = starts.iter().filter(|start| **start >= EXACT).count() as u64;
                assert!(beyond > MOST_WINDOWS_AHEAD, "{unit:?} {zone}");
            }
        }
    }

    #[test]
    fn calendars_are_found_again_and_told_apart() {
        let berlin = Calendar::find(Unit::Month(15), "Europe/Berlin").unwrap();
        assert_eq!(Calendar::find(Unit::Month(15), "europe/berlin").as_ref(), Ok(&berlin));
        assert_ne!(Calendar::find(Unit::Month(16), "Europe/Berlin").as_ref(), Ok(&berlin));
        assert_eq!(berlin.name(), "month/15/Europe/Berlin");
        assert_eq!(Calendar::find(Unit::Year, "Asia/Tokyo").unwrap().name(), "year/Asia/Tokyo");
        assert_eq!(Calendar::find(Unit::Year, "Mars/Olympus"), Err(CalendarError::Zone));
        assert_eq!(Calendar::find(Unit::Month(32), "UTC"), Err(CalendarError::Day));
        assert_eq!(berlin.number(Micros(0)), 0);
    }

    #[test]
    fn no_two_calendars_have_one_id() {
        let units: Vec<Unit> = (1..=LONGEST_MONTH).map(Unit::Month).chain([Unit::Year]).collect();
        let of_zone =
            |zone: &String| units.iter().map(|unit| Calendar::find(*unit, zone).unwrap().id).collect::<Vec<_>>();
        let ids: std::collections::HashSet<u16> = Calendar::zones().iter().flat_map(of_zone).collect();
        assert!(Calendar::zones().len() > 400 && Calendar::zones().iter().any(|zone| zone == "Europe/Berlin"));
        assert_eq!(ids.len(), Calendar::zones().len() * units.len());
    }

    #[test]
    fn a_prepared_calendar_leaves_nothing_to_decisions() {
        let calendar = Calendar::find(Unit::Year, "UTC").unwrap();
        assert!(calendar.starts.get().is_none());
        calendar.prepare();
        assert!(calendar.starts.get().is_some());
    }
}
