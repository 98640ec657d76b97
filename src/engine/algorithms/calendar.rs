//! Months and years as windows: where each of them begins, in a time zone.
//!
//! A calendar is computed once, when rules load, for all instants that can be counted with. To decide is then to look a
//! time up among numbers, without a rule of any time zone: what the clock reads is the argument, and this module reads
//! none.

use std::sync::OnceLock;

use jiff::civil::Date;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use parking_lot::Mutex;

use super::numbers::{EXACT, Micros};

/// Different calendars that a process may have met, in all the rules that it has loaded: they are never forgotten, as
/// meters name them by number. One takes 27 KiB.
pub const MOST_CALENDARS: usize = 256;

/// The windows that a bucket may take to be full again, if each adds less than it holds. All that a decision may speak of
/// go along to Redis with each charge, 17 bytes a window.
pub const MOST_WINDOWS_AHEAD: u64 = 24;

/// The last day of a month that every month has; beyond it `resets_on` means the last one.
const LONGEST_MONTH: i8 = 31;

/// What kind of windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// Months that begin on this day, 1 to 31; on the last one of a month that has no such day.
    Month(i8),
    /// Years that begin on the first of January.
    Year,
}

/// A calendar, by its number in this process. Two that are equal have the same windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Calendar(u16);

/// Why there is no such calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CalendarError {
    /// The IANA time zone database has no zone of this name.
    #[error("there is no such time zone")]
    Zone,
    /// No month has this day.
    #[error("a month has the days 1 to 31")]
    Day,
    /// The process has met too many.
    #[error("there are more than {MOST_CALENDARS} different calendars; those of former rules count until a restart")]
    TooMany,
}

/// The windows of a calendar.
#[derive(Debug)]
struct Table {
    unit: Unit,
    /// The zone, as the database spells it.
    zone: String,
    /// The same on every gateway, for a bucket that several of them share: `month/15/Europe/Berlin`.
    name: String,
    /// Where each window begins, in microseconds since the Unix epoch, from the one on that holds the epoch.
    starts: Box<[u64]>,
}

static TABLES: [OnceLock<Table>; MOST_CALENDARS] = [const { OnceLock::new() }; MOST_CALENDARS];

/// Held while a calendar is added.
static ADDING: Mutex<()> = Mutex::new(());

impl Calendar {
    /// The calendar of a time zone, which has an IANA name such as `Europe/Berlin`, in any case.
    pub fn find(unit: Unit, zone: &str) -> Result<Self, CalendarError> {
        if matches!(unit, Unit::Month(day) if !(1..=LONGEST_MONTH).contains(&day)) {
            return Err(CalendarError::Day);
        }
        let zone = TimeZoneDatabase::bundled().get(zone).map_err(|_| CalendarError::Zone)?;
        let name = zone.iana_name().ok_or(CalendarError::Zone)?;
        let _adding = ADDING.lock();
        for (number, place) in (0..).zip(&TABLES) {
            match place.get() {
                Some(table) if table.unit == unit && table.zone == name => return Ok(Self(number)),
                Some(_) => {}
                None => {
                    place.get_or_init(|| Table::new(unit, name, &zone));
                    return Ok(Self(number));
                }
            }
        }
        Err(CalendarError::TooMany)
    }

    /// Whether a time zone has this name, in any case.
    pub fn is_zone(name: &str) -> bool {
        TimeZoneDatabase::bundled().get(name).is_ok_and(|zone| zone.iana_name().is_some())
    }

    /// The names of all time zones.
    pub fn zones() -> Vec<String> {
        TimeZoneDatabase::bundled().available().map(|name| name.to_string()).collect()
    }

    /// The name that all processes have for it. It has no blanks, commas or colons.
    pub fn name(self) -> &'static str {
        self.table().map_or("", |table| &table.name)
    }

    /// What kind of windows it has.
    pub fn unit(self) -> Unit {
        self.table().map_or(Unit::Year, |table| table.unit)
    }

    /// The time zone's name.
    pub fn zone(self) -> &'static str {
        self.table().map_or("", |table| &table.zone)
    }

    /// The number of the window that holds an instant before the year 2255; the one that holds the Unix epoch is 0.
    pub fn number(self, at: Micros) -> u64 {
        self.starts().partition_point(|start| *start <= at.0).saturating_sub(1) as u64
    }

    /// When a window begins, from number 0 to [`MOST_WINDOWS_AHEAD`] and one more after that of the year 2255.
    pub fn start(self, number: u64) -> Micros {
        let start = usize::try_from(number).ok().and_then(|place| self.starts().get(place));
        Micros(start.copied().unwrap_or(u64::MAX))
    }

    /// How long a window is.
    pub fn length(self, number: u64) -> u64 {
        self.start(number + 1).since(self.start(number)).0
    }

    /// The number that a refill carries for this calendar.
    pub(crate) const fn code(self) -> u64 {
        self.0 as u64
    }

    /// The calendar of such a number.
    pub(crate) const fn from_code(code: u64) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "codes are made from 16 bits")]
        Self(code as u16)
    }

    fn starts(self) -> &'static [u64] {
        self.table().map_or(&[], |table| &table.starts)
    }

    /// There is one: calendars are made by [`Self::find`] alone.
    fn table(self) -> Option<&'static Table> {
        TABLES.get(usize::from(self.0))?.get()
    }
}

impl Table {
    fn new(unit: Unit, zone_name: &str, zone: &TimeZone) -> Self {
        let name = match unit {
            Unit::Month(day) => format!("month/{day}/{zone_name}"),
            Unit::Year => format!("year/{zone_name}"),
        };
        let mut starts: Vec<u64> = Vec::new();
        for window in 0.. {
            let start = day(unit, window).and_then(|day| instant(day, zone));
            let Some(start) = start else { break };
            match u64::try_from(start).unwrap_or(0) {
                // The window that holds the epoch counts from there: no bucket is older.
                0 => starts = vec![0],
                start => starts.push(start),
            }
            let countable = starts.partition_point(|start| *start < EXACT) as u64;
            if starts.len() as u64 > countable + MOST_WINDOWS_AHEAD {
                break;
            }
        }
        Self { unit, zone: zone_name.to_owned(), name, starts: starts.into() }
    }
}

/// The day on which a window begins; 0 is the first of 1969.
fn day(unit: Unit, window: i32) -> Option<Date> {
    let (years, month, day) = match unit {
        Unit::Month(day) => (window / 12, i8::try_from(window % 12 + 1).ok()?, day),
        Unit::Year => (window, 1, 1),
    };
    let first = Date::new(i16::try_from(1969 + years).ok()?, month, 1).ok()?;
    Date::new(first.year(), month, day.min(first.days_in_month())).ok()
}

/// When a day begins in a zone, in microseconds since the epoch: at midnight, at the first of two midnights where clocks
/// are set back over it, and where they are set forward over it, when they are.
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
        for zone in Calendar::zones().into_iter().step_by(25).chain(["Pacific/Apia".into(), "America/Havana".into()]) {
            let time_zone = TimeZoneDatabase::bundled().get(&zone).unwrap();
            for unit in [Unit::Month(1), Unit::Month(31), Unit::Year] {
                let starts = Table::new(unit, &zone, &time_zone).starts;
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
        assert_eq!(Calendar::find(Unit::Month(15), "europe/berlin"), Ok(berlin));
        assert_ne!(Calendar::find(Unit::Month(16), "Europe/Berlin"), Ok(berlin));
        assert_eq!(berlin.name(), "month/15/Europe/Berlin");
        assert_eq!(Calendar::find(Unit::Year, "Asia/Tokyo").unwrap().name(), "year/Asia/Tokyo");
        assert_eq!(Calendar::find(Unit::Year, "Mars/Olympus"), Err(CalendarError::Zone));
        assert_eq!(Calendar::find(Unit::Month(32), "UTC"), Err(CalendarError::Day));
        assert_eq!(berlin.number(Micros(0)), 0);
    }
}
