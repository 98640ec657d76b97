//! Reads `burst`, `count`, `period` and `rates` of limits and overrides.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

use super::lints::Lint;
use super::mapping::{Mapping, all};
use super::node::Node;
use super::problem::{ReadResult, ReportedError};
use super::request_numbers;
use crate::engine::algorithms::calendar::{Calendar, MOST_WINDOWS_AHEAD};
use crate::engine::algorithms::micros::EXACT;
use crate::engine::algorithms::numbers::{Numbers, NumbersError};
use crate::engine::algorithms::sliding_window::{LONGEST_PERIOD, largest_count};
use crate::engine::limit::allowance::ElevatedAllowance;

pub(super) const KEYS: [&str; 6] = ["burst", "count", "period", "rates", "unlimited", "deny"];

pub(super) const WINDOW_KEYS: [&str; 3] = ["burst", "count", "period"];

/// The most windows of one limit. Each is a bucket in the store and an item in the headers.
pub(super) const MOST_WINDOWS: usize = 8;

/// Shares equal numbers: a million overrides have few different ones.
#[derive(Default)]
pub(super) struct Interner {
    windows: HashSet<Arc<[Numbers]>>,
    elevated: HashSet<Arc<ElevatedAllowance>>,
    calendars: HashSet<Arc<Calendar>>,
}

impl Interner {
    pub(super) fn share(&mut self, mut windows: Vec<Numbers>) -> Arc<[Numbers]> {
        for numbers in &mut windows {
            numbers.share_calendar(|calendar| {
                let calendar = shared(&mut self.calendars, Arc::clone(calendar));
                calendar.prepare();
                calendar
            });
        }
        shared(&mut self.windows, windows.into())
    }

    pub(super) fn share_elevated(&mut self, with: ElevatedAllowance) -> Arc<ElevatedAllowance> {
        shared(&mut self.elevated, Arc::new(with))
    }
}

fn shared<T: ?Sized + Eq + Hash>(known: &mut HashSet<Arc<T>>, new: Arc<T>) -> Arc<T> {
    if let Some(known) = known.get(&new) {
        return Arc::clone(known);
    }
    known.insert(Arc::clone(&new));
    new
}

/// The value of `period`.
#[derive(Clone, Copy)]
pub(super) enum Period {
    /// In nanoseconds.
    Span(u64),
    Month,
    Year,
}

/// Reads a duration, or a month or a year.
pub(super) fn period(node: &Node) -> ReadResult<Period> {
    match node.text()? {
        "month" => Ok(Period::Month),
        "year" => Ok(Period::Year),
        _ => match node.duration()? {
            0 => Err(node.error(NumbersError::Period.to_string(), "use a duration such as 1s")),
            nanoseconds => Ok(Period::Span(nanoseconds)),
        },
    }
}

/// The numbers of one window, for its algorithm to check.
pub(super) struct Rate<'m> {
    pub(super) map: &'m Mapping<'m>,
    pub(super) burst: u64,
    pub(super) count: u64,
    pub(super) period: Period,
}

/// The numbers that an algorithm makes of a [`Rate`].
pub(super) type Window = ReadResult<Result<Numbers, NumbersError>>;

/// An algorithm's reader of a [`Rate`].
pub(super) type ReadWindow<'f> = &'f dyn Fn(&Rate<'_>) -> Window;

impl Rate<'_> {
    /// Returns the period in nanoseconds. Only fixed windows can follow the calendar.
    pub(super) fn span(&self) -> ReadResult<u64> {
        if let Period::Span(span) = self.period {
            return Ok(span);
        }
        let help = "add it to the limit, or use a duration such as 30d";
        Err(self.map.value("period").error("calendar periods need `algorithm: fixed_window`", help))
    }

    /// Rejects a burst that differs from the count.
    pub(super) fn without_burst(&self, algorithm: &str) -> ReadResult<()> {
        if self.burst == self.count {
            return Ok(());
        }
        let message = format!("`burst` must equal `count` with `algorithm: {algorithm}`");
        Err(self.map.value("burst").error(message, format!("remove `burst`, or write {}", self.count)))
    }
}

/// Reads `rates`, or the one window without it. `may_be_fixed` allows a burst alone, which never refills.
pub(super) fn rates(map: &Mapping<'_>, may_be_fixed: bool, read: ReadWindow<'_>) -> ReadResult<Vec<Numbers>> {
    let Some((_, rates)) = map.get("rates") else {
        return window(map, may_be_fixed, read).map(Vec::from_iter);
    };
    if let Some((key, _)) = map.first(&WINDOW_KEYS) {
        let message = format!("`{}` and `rates` cannot be combined", key.text);
        return Err(key.error(message, "move it into one of the `rates`"));
    }
    let items = rates.list("`rates`", "write `rates: [{ count: 10, period: 1s }, ...]`")?;
    rates.check_count("`rates`", items.len(), "windows", MOST_WINDOWS)?;
    all(items.iter().map(|item| {
        let map = Mapping::of(item, "an item of `rates`", &WINDOW_KEYS)?;
        request_numbers::reject(&map, "an item of `rates`")?;
        window(&map, false, read)?.ok_or_else(|| map.lacks("a window needs `count` and `period`", ""))
    }))
}

/// Reads one window; `None` if it has none of the keys.
pub(super) fn window(map: &Mapping<'_>, may_be_fixed: bool, read: ReadWindow<'_>) -> ReadResult<Option<Numbers>> {
    let at_least_one = |zero: NumbersError| move |node: &Node| request_numbers::own(node, zero);
    let burst = map.read("burst", at_least_one(NumbersError::Burst));
    let count = map.read("count", at_least_one(NumbersError::Count));
    let period = map.read("period", period);
    let (key, message, help) = match (burst?, count?, period?) {
        (None, None, None) => return Ok(None),
        (Some(burst), None, None) if may_be_fixed => {
            return Numbers::fixed(burst).map(Some).map_err(|error| map.value("burst").error(error.to_string(), ""));
        }
        (burst, Some(count), Some(period)) => {
            let rate = Rate { map, burst: burst.unwrap_or(count), count, period };
            let numbers = read(&rate)?.map_err(|error| report_unusable(error, &rate))?;
            if numbers.is_finer_than_the_clock() {
                let message = "tokens refill faster than one per microsecond, the clock's resolution";
                let help = "counting stays exact; waits are rounded up to a microsecond";
                map.value("count").warning(Lint::FinerThanClock, message, help);
            }
            return Ok(Some(numbers));
        }
        (Some(_), None, None) => ("burst", "`burst` needs `count` and `period`", "add both"),
        (_, Some(_), None) => ("count", "`count` without `period`", "add `period`, such as `period: 1s`"),
        (_, None, Some(_)) => ("period", "`period` without `count`", "add `count`, the number of tokens per period"),
    };
    Err(map.lacks_at(map.value(key).place, message, help))
}

/// Reports numbers that are out of range, with the largest valid one.
fn report_unusable(error: NumbersError, rate: &Rate<'_>) -> ReportedError {
    let Rate { map, count, .. } = *rate;
    let span = if let Period::Span(span) = rate.period { Some(span) } else { None };
    let help = match (error, span) {
        (NumbersError::TooFast, Some(period)) => format!("for this period the largest count is {period}"),
        (NumbersError::TooLarge, Some(period)) => Numbers::new(1, count, period).map_or_else(
            |_| "use a rounder count or a shorter period".into(),
            |one| format!("for this count and period the largest burst is {}", (EXACT - 1) / one.token()),
        ),
        (NumbersError::TooLong, Some(period)) => {
            let burst = ((EXACT - 1) / (period / 1_000)).saturating_mul(count).min(EXACT - 1);
            format!("for this count and period the largest burst is {burst}")
        }
        (NumbersError::TooManyWindows, _) => {
            format!("for this count the largest burst is {}", count.saturating_mul(MOST_WINDOWS_AHEAD))
        }
        (NumbersError::TooManyEntries(_), _) => {
            "use `algorithm: sliding_window`, which stores two numbers whatever the count".into()
        }
        (NumbersError::TooManyToSlide, Some(period)) => {
            format!("for this period the largest count is {}", largest_count(period / 1_000))
        }
        (NumbersError::TooLongToSlide, _) => format!("the longest period is {}d", LONGEST_PERIOD / 86_400_000_000),
        _ => String::new(),
    };
    let key = match error {
        NumbersError::TooLarge | NumbersError::TooLong | NumbersError::TooManyWindows if map.get("burst").is_some() => {
            "burst"
        }
        NumbersError::Period | NumbersError::Tick | NumbersError::TooLongToSlide => "period",
        _ => "count",
    };
    map.value(key).error(error.to_string(), help)
}
