//! How much: `burst`, `count` and `period`, `rates`, `unlimited`, `deny`; the same for limits and overrides.

use std::collections::HashSet;
use std::sync::Arc;

use super::algorithm::{Period, Style, calendar, period};
use super::fields::{Fields, truth, whole};
use super::problem::{Findings, Place, Reported};
use super::queue;
use super::yaml::{Node, Value};
use crate::engine::algorithms::calendar::MOST_WINDOWS_AHEAD;
use crate::engine::algorithms::details::WithElevated;
use crate::engine::algorithms::numbers::{Allowance, EXACT, Numbers, NumbersError};
use crate::engine::algorithms::sliding_window::{LONGEST_PERIOD, largest_count};

/// The fields that say how much.
pub(super) const KEYS: [&str; 6] = ["burst", "count", "period", "rates", "unlimited", "deny"];

/// The fields of one window of `rates`.
pub(super) const WINDOW_KEYS: [&str; 3] = ["burst", "count", "period"];

/// Each window is a bucket of its own in the store and an entry of its own in the headers.
pub(super) const MOST_WINDOWS: usize = 8;

/// Allowances that are equal are one: a million overrides have a few kinds of numbers.
#[derive(Default)]
pub(super) struct Interner {
    windows: HashSet<Arc<[Numbers]>>,
    elevated: HashSet<Arc<WithElevated>>,
}

impl Interner {
    fn share(&mut self, windows: &[Numbers]) -> Arc<[Numbers]> {
        if let Some(known) = self.windows.get(windows) {
            return Arc::clone(known);
        }
        let shared: Arc<[Numbers]> = windows.into();
        self.windows.insert(Arc::clone(&shared));
        shared
    }

    pub(super) fn share_elevated(&mut self, with: WithElevated) -> Arc<WithElevated> {
        if let Some(known) = self.elevated.get(&with) {
            return Arc::clone(known);
        }
        let shared = Arc::new(with);
        self.elevated.insert(Arc::clone(&shared));
        shared
    }
}

/// What the fields allow; [`Allowance::Disabled`] if they say nothing about it.
pub(super) fn allowance(
    fields: &Fields<'_>,
    style: &Style,
    interner: &mut Interner,
    findings: &mut Findings,
) -> Result<Allowance, Reported> {
    let unlimited = fields.read("unlimited", findings, truth);
    let deny = fields.read("deny", findings, truth);
    let amounts = KEYS.iter().take(4).chain(&["capacity", "args"]);
    let given = amounts.into_iter().find_map(|name| fields.get(name).map(|(key, _)| key));
    let windows = windows(fields, style, findings);
    let (unlimited, deny, windows) = (unlimited?.unwrap_or(false), deny?.unwrap_or(false), windows?);
    let flag = match (unlimited, deny) {
        (true, true) => return Err(two_things(fields.place, "`unlimited: true` and `deny: true`", findings)),
        (true, false) => Some(("`unlimited: true`", Allowance::Unlimited)),
        (false, true) => Some(("`deny: true`", Allowance::Deny)),
        (false, false) => None,
    };
    match (flag, given) {
        (Some((flag, _)), Some(key)) => Err(two_things(key.place, &format!("{flag} and `{}`", key.text), findings)),
        (Some((_, allowance)), None) => Ok(allowance),
        (None, _) if windows.is_empty() => Ok(Allowance::Disabled),
        (None, _) => Ok(Allowance::Windows(interner.share(&windows))),
    }
}

fn two_things(place: Place, what: &str, findings: &mut Findings) -> Reported {
    findings.error(place, format!("{what} cannot be combined"), "remove one of them")
}

fn windows(fields: &Fields<'_>, style: &Style, findings: &mut Findings) -> Result<Vec<Numbers>, Reported> {
    match style {
        Style::Queue(max_age) => return Ok(queue::numbers(fields, *max_age, findings)?.into_iter().collect()),
        Style::Script(arguments) => return script_numbers(fields, *arguments, findings),
        _ => {}
    }
    let windows = rates(fields, style, findings)?;
    for name in ["timezone", "resets_on"] {
        let idle = !windows.is_empty() && !windows.iter().any(Numbers::is_calendar);
        if let Some((key, _)) = fields.get(name).filter(|_| idle) {
            let message = format!("`{name}` needs `period: month`, or `year` with a time zone");
            let help = "other periods do not follow the calendar; remove it";
            return Err(findings.error(key.place, message, help));
        }
    }
    Ok(windows)
}

/// The numbers of a script, which are the arguments that it has.
fn script_numbers(
    fields: &Fields<'_>,
    arguments: Option<u64>,
    findings: &mut Findings,
) -> Result<Vec<Numbers>, Reported> {
    if let Some((key, _)) = KEYS.iter().take(4).find_map(|name| fields.get(name)) {
        let message = format!("`{}` does not apply to `algorithm: script`", key.text);
        return Err(findings.error(key.place, message, "pass it to the script: `args: [10, 60]`"));
    }
    Ok(arguments.map(Numbers::script).into_iter().collect())
}

fn rates(fields: &Fields<'_>, style: &Style, findings: &mut Findings) -> Result<Vec<Numbers>, Reported> {
    if matches!(style, Style::Concurrency(_)) {
        return Ok(slots(fields, style, findings)?.into_iter().collect());
    }
    let Some((_, rates)) = fields.get("rates") else {
        return Ok(window(fields, style, false, findings)?.into_iter().collect());
    };
    if let Some((key, _)) = WINDOW_KEYS.iter().find_map(|name| fields.get(name)) {
        let message = format!("`{}` and `rates` cannot be combined", key.text);
        return Err(findings.error(key.place, message, "move it into one of the `rates`"));
    }
    let Value::List(items) = &rates.value else {
        let message = format!("`rates` must be a list, found {}", rates.kind());
        return Err(findings.error(rates.place, message, "write `rates: [{ count: 10, period: 1s }, ...]`"));
    };
    if items.is_empty() || items.len() > MOST_WINDOWS {
        let message = format!("`rates` has {} windows", items.len());
        return Err(findings.error(rates.place, message, format!("use 1 to {MOST_WINDOWS}")));
    }
    // All are looked at before the first error counts, so that all are reported.
    let windows: Vec<_> = items
        .iter()
        .map(|item| {
            let fields = Fields::of(item, "an item of `rates`", &WINDOW_KEYS, findings)?;
            let window = window(&fields, style, true, findings)?;
            window.ok_or_else(|| findings.error(item.place, "a window needs `count` and `period`", ""))
        })
        .collect();
    windows.into_iter().collect()
}

/// How many requests may be in flight, or nothing if that is not said.
fn slots(fields: &Fields<'_>, style: &Style, findings: &mut Findings) -> Result<Option<Numbers>, Reported> {
    let Style::Concurrency(lease) = *style else { return Ok(None) };
    if let Some((key, _)) = ["period", "rates"].iter().find_map(|name| fields.get(name)) {
        let message = format!("`{}` does not apply to `algorithm: concurrency`", key.text);
        return Err(findings.error(key.place, message, "use `capacity`; to limit the rate as well, add another limit"));
    }
    let mut given = ["capacity", "count", "burst"].iter().filter_map(|name| fields.get(name));
    let (first, second) = (given.next(), given.next());
    let Some((first, node)) = first else { return Ok(None) };
    if let Some((key, _)) = second {
        let message = format!("`{}` and `{}` both set the capacity", first.text, key.text);
        return Err(findings.error(key.place, message, "remove one of them"));
    }
    let capacity = positive(node, NumbersError::Burst, findings)?;
    let slots = Numbers::slots(capacity, lease)
        .map_err(|error| findings.error(node.place, error.to_string(), "limit the rate instead"))?;
    Ok(Some(slots))
}

/// One window, or nothing if none of its fields is there.
pub(super) fn window(
    fields: &Fields<'_>,
    style: &Style,
    must_refill: bool,
    findings: &mut Findings,
) -> Result<Option<Numbers>, Reported> {
    let burst = fields.read("burst", findings, |node, findings| positive(node, NumbersError::Burst, findings));
    let count = fields.read("count", findings, |node, findings| positive(node, NumbersError::Count, findings));
    let period = fields.read("period", findings, period);
    let (burst_place, count_place) = (value_place(fields, "burst"), value_place(fields, "count"));
    let numbers = match (burst?, count?, period?) {
        (None, None, None) => return Ok(None),
        (Some(_), None, None) if must_refill => {
            return Err(findings.error(burst_place, "a window needs `count` and `period`", "add both"));
        }
        (Some(_), None, None) if let Some(name) = sliding(style) => {
            let message = format!("a sliding {name} needs `count` and `period`");
            return Err(findings.error(burst_place, message, "add both"));
        }
        (Some(burst), None, None) => Numbers::fixed(burst),
        (burst, Some(count), Some(period)) => {
            let burst = burst.unwrap_or(count);
            match (style, period) {
                (Style::Gcra, Period::Span(period)) => Numbers::new(burst, count, period),
                (Style::FixedWindow(style), Period::Span(period)) => {
                    Numbers::windows(burst, count, period, style.aligned)
                }
                (Style::SlidingLog, Period::Span(period)) if burst == count => Numbers::sliding_log(count, period),
                (Style::SlidingWindow { count_denied }, Period::Span(period)) if burst == count => {
                    Numbers::sliding_window(count, period, *count_denied)
                }
                (Style::SlidingLog | Style::SlidingWindow { .. }, Period::Span(_)) => {
                    let message =
                        format!("the burst of a sliding {} must equal its count", sliding(style).unwrap_or_default());
                    return Err(findings.error(burst_place, message, format!("remove `burst`, or write {count}")));
                }
                (Style::FixedWindow(style), period) => {
                    Numbers::calendar(burst, count, calendar(fields, style, period, findings)?)
                }
                _ => {
                    let (place, help) =
                        (value_place(fields, "period"), "add it to the limit, or use a duration such as 30d");
                    return Err(findings.error(place, "calendar periods need `algorithm: fixed_window`", help));
                }
            }
        }
        (_, Some(_), None) => {
            let help = "add `period`, such as `period: 1s`";
            return Err(findings.error(count_place, "`count` without `period`", help));
        }
        (_, None, Some(_)) => {
            let place = value_place(fields, "period");
            return Err(findings.error(
                place,
                "`period` without `count`",
                "add `count`, the number of tokens per period",
            ));
        }
    };
    let numbers = numbers.map_err(|error| {
        let place = match error {
            NumbersError::TooLarge | NumbersError::TooLong | NumbersError::TooManyWindows
                if fields.get("burst").is_some() =>
            {
                burst_place
            }
            NumbersError::Period | NumbersError::Tick | NumbersError::TooLongToSlide => value_place(fields, "period"),
            _ => count_place,
        };
        findings.error(place, error.to_string(), what_fits(error, fields))
    })?;
    if numbers.is_finer_than_the_clock() {
        let message = "tokens refill faster than one per microsecond, the clock's resolution";
        findings.warning(count_place, message, "counting stays exact; waits are rounded up to a microsecond");
    }
    Ok(Some(numbers))
}

/// What slides, of an algorithm whose tokens all come back a period after they were taken.
const fn sliding(style: &Style) -> Option<&'static str> {
    match style {
        Style::SlidingLog => Some("log"),
        Style::SlidingWindow { .. } => Some("window"),
        _ => None,
    }
}

/// The largest values that could be counted with, for help.
fn what_fits(error: NumbersError, fields: &Fields<'_>) -> String {
    // The values were read without complaint before, so these findings stay empty.
    let mut unused = Findings::new("");
    let mut read = |name| fields.read(name, &mut unused, whole).ok().flatten();
    let count = read("count");
    let period = match fields.read("period", &mut Findings::new(""), period) {
        Ok(Some(Period::Span(period))) => Some(period),
        _ => None,
    };
    match (error, count, period) {
        (NumbersError::TooFast, _, Some(period)) => format!("for this period the largest count is {period}"),
        (NumbersError::TooLarge, Some(count), Some(period)) => Numbers::new(1, count, period).map_or_else(
            |_| "use a rounder count or a shorter period".into(),
            |one| format!("for this count and period the largest burst is {}", (EXACT - 1) / one.token()),
        ),
        (NumbersError::TooLong, Some(count), Some(period)) => {
            let burst = ((EXACT - 1) / (period / 1_000)).saturating_mul(count).min(EXACT - 1);
            format!("for this count and period the largest burst is {burst}")
        }
        (NumbersError::TooManyWindows, Some(count), _) => {
            format!("for this count the largest burst is {}", count.saturating_mul(MOST_WINDOWS_AHEAD))
        }
        (NumbersError::TooManyEntries, ..) => {
            "use `algorithm: sliding_window`, which stores two numbers whatever the count".into()
        }
        (NumbersError::TooManyToSlide, _, Some(period)) => {
            format!("for this period the largest count is {}", largest_count(period / 1_000))
        }
        (NumbersError::TooLongToSlide, ..) => {
            format!("the longest period is {}d", LONGEST_PERIOD / 86_400_000_000)
        }
        _ => String::new(),
    }
}

pub(super) fn value_place(fields: &Fields<'_>, name: &str) -> Place {
    fields.get(name).map_or(fields.place, |(_, node)| node.place)
}

fn positive(node: &Node, zero: NumbersError, findings: &mut Findings) -> Result<u64, Reported> {
    match whole(node, findings)? {
        0 => Err(findings.error(node.place, zero.to_string(), "write `deny: true` to deny every request")),
        number => Ok(number),
    }
}
