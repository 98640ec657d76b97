//! How tokens come back: `algorithm`, `aligned`, `timezone`, `resets_on`, and what a `period` may be.

use super::fields::{Fields, choice, text, truth, whole};
use super::numbers::value_place;
use super::problem::{Findings, Place, Reported, quoted};
use super::suggest::nearest;
use super::yaml::Node;
use super::{queue, script};
use crate::engine::algorithms::calendar::{Calendar, Unit};
use crate::engine::algorithms::numbers::{Aligned, DEFAULT_LEASE, LONGEST_LEASE, NumbersError, SHORTEST_LEASE};
use crate::engine::rules::duration;
use crate::engine::rules::limit::Algorithm;

/// The algorithms of this version. The first two names mean GCRA, which is a token bucket that refills evenly.
pub(super) const ALGORITHMS: &[&str] =
    &["gcra", "token_bucket", "fixed_window", "sliding_log", "sliding_window", "concurrency", "queue", "script"];

/// The fields that say how tokens come back in fixed windows.
pub(super) const STYLE_KEYS: [&str; 3] = ["aligned", "timezone", "resets_on"];

/// The words of `aligned`.
pub(super) const ALIGNED: [(&str, Aligned); 2] = [("first", Aligned::First), ("clock", Aligned::Clock)];

/// How the tokens of a limit come back, for its own numbers and for those of its overrides.
#[derive(Clone, Debug, Default)]
pub(super) enum Style {
    /// Evenly.
    #[default]
    Gcra,
    /// In fixed windows.
    FixedWindow(WindowStyle),
    /// One by one, a period after each was taken.
    SlidingLog,
    /// With the window after the one in which they were taken.
    SlidingWindow {
        /// Whether what is refused counts as well.
        count_denied: bool,
    },
    /// When a request ends, or this many nanoseconds after its process has died.
    Concurrency(u64),
    /// As workers take entries from a queue; after so many nanoseconds an entry is stale, if the limit says so.
    Queue(Option<u64>),
    /// As a script says; which of the arguments it has, if these fields say some.
    Script(Option<u64>),
}

/// What a limit or an override says of its fixed windows, beside their numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct WindowStyle {
    pub(super) aligned: Aligned,
    /// The name of the time zone of months and years, and where it stands.
    zone: Option<(String, Place)>,
    /// The day on which a month begins.
    day: Option<i8>,
}

/// The value of `period`.
#[derive(Clone, Copy)]
pub(super) enum Period {
    /// Nanoseconds.
    Span(u64),
    Month,
    Year,
}

impl Style {
    /// The style of fields whose limit has `base`: what they do not say is as there.
    pub(super) fn of(fields: &Fields<'_>, base: &Self, findings: &mut Findings) -> Result<Self, Reported> {
        check_own(fields, base, findings)?;
        let base = match base {
            Self::FixedWindow(base) => base,
            Self::SlidingWindow { count_denied } => {
                let given = fields.read("count_denied", findings, truth)?;
                return Ok(Self::SlidingWindow { count_denied: given.unwrap_or(*count_denied) });
            }
            Self::Concurrency(base) => {
                return Ok(Self::Concurrency(fields.read("lease", findings, lease)?.unwrap_or(*base)));
            }
            Self::Queue(max_age) => return Ok(Self::Queue(queue::max_age(fields, findings)?.or(*max_age))),
            Self::Script(_) => return Ok(Self::Script(None)),
            Self::Gcra | Self::SlidingLog => return Ok(base.clone()),
        };
        let aligned = fields.read("aligned", findings, |node, findings| choice(node, &ALIGNED, findings));
        let zone = fields.read("timezone", findings, |node, findings| Ok((zone(node, findings)?, node.place)));
        let day = fields.read("resets_on", findings, day);
        Ok(Self::FixedWindow(WindowStyle {
            aligned: aligned?.unwrap_or(base.aligned),
            zone: zone?.or_else(|| base.zone.clone()),
            day: day?.or(base.day),
        }))
    }

    /// The algorithm that counts by it.
    pub(super) const fn algorithm(&self) -> Algorithm {
        match self {
            Self::Gcra => Algorithm::Gcra,
            Self::FixedWindow(windows) => Algorithm::FixedWindow(windows.aligned),
            Self::SlidingLog => Algorithm::SlidingLog,
            Self::SlidingWindow { count_denied } => Algorithm::SlidingWindow { count_denied: *count_denied },
            Self::Concurrency(_) => Algorithm::Concurrency,
            Self::Queue(_) => Algorithm::Queue,
            Self::Script(_) => Algorithm::Script,
        }
    }
}

/// Refuses fields of one algorithm for another one.
fn check_own(fields: &Fields<'_>, style: &Style, findings: &mut Findings) -> Result<(), Reported> {
    let (concurrency, queue) = (matches!(style, Style::Concurrency(_)), matches!(style, Style::Queue(_)));
    let own: [(&[&str], &str, bool); 6] = [
        (&STYLE_KEYS, "`algorithm: fixed_window`", matches!(style, Style::FixedWindow(_))),
        (&["count_denied"], "`algorithm: sliding_window`", matches!(style, Style::SlidingWindow { .. })),
        (&["capacity"], "`algorithm: concurrency` or `queue`", concurrency || queue),
        (&["lease"], "`algorithm: concurrency`", concurrency),
        (&queue::KEYS, "`algorithm: queue`", queue),
        (&script::KEYS, "`algorithm: script`", matches!(style, Style::Script(_))),
    ];
    for (keys, wanted, _) in own.iter().filter(|(.., is_it)| !is_it) {
        if let Some((key, _)) = keys.iter().find_map(|name| fields.get(name)) {
            let message = format!("`{}` needs {wanted}", key.text);
            return Err(findings.error(key.place, message, "add it to the limit or remove this key"));
        }
    }
    Ok(())
}

/// The style that the value of `algorithm` names.
pub(super) fn algorithm(node: &Node, findings: &mut Findings) -> Result<Style, Reported> {
    let words: Vec<(&str, &str)> = ALGORITHMS.iter().map(|name| (*name, *name)).collect();
    match choice(node, &words, findings)? {
        "fixed_window" => Ok(Style::FixedWindow(WindowStyle::default())),
        "sliding_log" => Ok(Style::SlidingLog),
        "sliding_window" => Ok(Style::SlidingWindow { count_denied: false }),
        "concurrency" => Ok(Style::Concurrency(DEFAULT_LEASE)),
        "queue" => Ok(Style::Queue(None)),
        "script" => Ok(Style::Script(None)),
        _ => Ok(Style::Gcra),
    }
}

/// The name of a time zone.
fn zone(node: &Node, findings: &mut Findings) -> Result<String, Reported> {
    let given = text(node, findings)?;
    if !Calendar::is_zone(given) {
        let zones = Calendar::zones();
        let help = nearest(given, zones.iter().map(String::as_str)).map_or_else(
            || "use an IANA name such as Europe/Berlin or UTC".into(),
            |zone| format!("did you mean `{zone}`?"),
        );
        return Err(findings.error(node.place, format!("unknown time zone {}", quoted(given)), help));
    }
    Ok(given.to_owned())
}

/// A day of a month.
fn day(node: &Node, findings: &mut Findings) -> Result<i8, Reported> {
    let day = whole(node, findings)?;
    i8::try_from(day).ok().filter(|day| (1..=31).contains(day)).ok_or_else(|| {
        let help = "use 1 to 31; 31 means the last day of every month";
        findings.error(node.place, format!("{day} is not a day of the month"), help)
    })
}

/// The calendar of months or years.
pub(super) fn calendar(
    fields: &Fields<'_>,
    style: &WindowStyle,
    period: Period,
    findings: &mut Findings,
) -> Result<Calendar, Reported> {
    let place = value_place(fields, "period");
    if let (Some((_, node)), Aligned::First) = (fields.get("aligned"), style.aligned) {
        let message = "calendar periods cannot start with the first request";
        return Err(findings.error(node.place, message, "remove `aligned`, or use a duration such as 30d"));
    }
    let unit = match (period, style.day) {
        (Period::Year, Some(_)) if fields.get("resets_on").is_some() => {
            let place = value_place(fields, "resets_on");
            return Err(findings.error(
                place,
                "`resets_on` needs `period: month`",
                "a year always starts on 1 January",
            ));
        }
        (Period::Year, _) => Unit::Year,
        (_, day) => Unit::Month(day.unwrap_or(1)),
    };
    let (zone, place) = style.zone.as_ref().map_or(("UTC", place), |(zone, place)| (zone.as_str(), *place));
    Calendar::find(unit, zone).map_err(|error| findings.error(place, error.to_string(), ""))
}

/// For how long a slot is held unless it is renewed, in nanoseconds.
fn lease(node: &Node, findings: &mut Findings) -> Result<u64, Reported> {
    let help = "leases of live requests are renewed; the lease bounds how long a crashed process keeps its slots";
    match duration::parse(text(node, findings)?) {
        Ok(lease) if (SHORTEST_LEASE..=LONGEST_LEASE).contains(&lease) && lease.is_multiple_of(1_000) => Ok(lease),
        Ok(_) => Err(findings.error(node.place, NumbersError::Lease.to_string(), help)),
        Err((message, help)) => Err(findings.error(node.place, message, help)),
    }
}

/// A span of time, or a month or a year.
pub(super) fn period(node: &Node, findings: &mut Findings) -> Result<Period, Reported> {
    let given = text(node, findings)?;
    match given {
        "month" => return Ok(Period::Month),
        "year" => return Ok(Period::Year),
        _ => {}
    }
    match duration::parse(given) {
        Ok(0) => Err(findings.error(node.place, NumbersError::Period.to_string(), "use a duration such as 1s")),
        Ok(nanoseconds) => Ok(Period::Span(nanoseconds)),
        Err((message, help)) => Err(findings.error(node.place, message, help)),
    }
}
