//! `algorithm: fixed_window`: all tokens come back when a window ends. Keys: `aligned`, `timezone`,
//! `resets_on`, `lease`, `delay`.

use super::super::numbers::{Period, Rate, Window, rates};
use super::super::scalars::one_of;
use super::super::suggest::nearest;
use super::super::{delay, lease};
use super::{Algorithm, AlgorithmEntry, Context, Limit, Mapping, Node, Numbers, ReadResult, Settings, quoted};
use crate::engine::algorithms::algorithm::Aligned;
use crate::engine::algorithms::calendar::{Calendar, Unit};
use crate::engine::algorithms::numbers::NumbersError;

pub(super) const ENTRY: AlgorithmEntry = AlgorithmEntry {
    words: &["fixed_window"],
    settings: || Box::new(FixedWindow::default()),
    keys: &["aligned", "timezone", "resets_on", "lease", "delay"],
    override_keys: &["aligned", "timezone", "resets_on", "fixed_window"],
};

pub(in super::super) const ALIGNED: [(&str, Aligned); 2] = [("first", Aligned::First), ("clock", Aligned::Clock)];

#[derive(Default)]
pub(super) struct FixedWindow {
    aligned: Aligned,
    /// The time zone of months and years.
    zone: Option<Node>,
    /// The day on which months begin.
    day: Option<i8>,
    /// True if an override switches the windows off.
    is_off: bool,
}

impl Settings for FixedWindow {
    fn algorithm(&self) -> Algorithm {
        Algorithm::FixedWindow(self.aligned)
    }

    fn read(&self, map: &Mapping<'_>) -> ReadResult<Box<dyn Settings>> {
        let aligned = map.read("aligned", one_of(&ALIGNED));
        let zone = map.read("timezone", zone);
        let day = map.read("resets_on", day);
        let is_on = map.read("fixed_window", Node::truth);
        Ok(Box::new(Self {
            is_off: is_on? == Some(false),
            aligned: aligned?.unwrap_or(self.aligned),
            zone: zone?.or_else(|| self.zone.clone()),
            day: day?.or(self.day),
        }))
    }

    fn numbers(&self, map: &Mapping<'_>) -> ReadResult<Vec<Numbers>> {
        let windows = rates(map, true, &|rate| self.window(rate))?;
        let has_calendar = windows.is_empty() || windows.iter().any(Numbers::is_calendar);
        match map.first(&["timezone", "resets_on"]).filter(|_| !has_calendar) {
            None => Ok(windows),
            Some((key, _)) => {
                let message = format!("`{}` needs `period: month`, or `year` with a time zone", key.text);
                Err(key.error(message, "other periods do not follow the calendar; remove it"))
            }
        }
    }

    fn read_limit(&mut self, map: &Mapping<'_>, _context: Context<'_>, limit: &mut Limit) {
        lease::read(map, limit);
        delay::read(map, limit);
    }

    fn read_override(&mut self, map: &Mapping<'_>, _limit: &mut Limit) -> ReadResult<()> {
        lease::check_override(map)?;
        delay::check_override(map)
    }

    fn check(&self, map: &Mapping<'_>, limit: &mut Limit) {
        delay::check(map, limit);
    }
}

impl FixedWindow {
    fn window(&self, rate: &Rate<'_>) -> Window {
        let (map, burst, count) = (rate.map, rate.burst, rate.count);
        let unit = match rate.period {
            Period::Span(span) if self.is_off => return Ok(Numbers::new(burst, count, span)),
            Period::Span(span) => return Ok(Numbers::fixed_window(burst, count, span, self.aligned)),
            Period::Month | Period::Year if self.is_off => return Ok(Err(NumbersError::CalendarEvenly)),
            Period::Month => Unit::Month(self.day.unwrap_or(1)),
            Period::Year => match map.get("resets_on") {
                None => Unit::Year,
                Some((_, node)) => {
                    let help = "a year always starts on 1 January";
                    return Err(node.error("`resets_on` needs `period: month`", help));
                }
            },
        };
        // Its value decides, because the settings are the defaults if `algorithm` has a mistake.
        if let Some((_, node)) = map.get("aligned").filter(|(_, node)| node.text() == Ok("first")) {
            let help = "remove `aligned`, or use a duration such as 30d";
            return Err(node.error("calendar periods cannot start with the first request", help));
        }
        let (zone, node) = match &self.zone {
            Some(node) => (node.text()?, node),
            None => ("UTC", map.value("period")),
        };
        let calendar = Calendar::find(unit, zone).map_err(|error| node.error(error.to_string(), ""))?;
        Ok(Numbers::calendar_window(burst, count, calendar))
    }
}

/// Reads a time zone's name.
fn zone(node: &Node) -> ReadResult<Node> {
    let given = node.text()?;
    let zones = Calendar::zones();
    if zones.iter().any(|zone| zone.eq_ignore_ascii_case(given)) {
        return Ok(node.clone());
    }
    let help = nearest(given, zones.iter().map(String::as_str)).map_or_else(
        || "use an IANA name such as Europe/Berlin or UTC".into(),
        |zone| format!("did you mean `{zone}`?"),
    );
    Err(node.error(format!("unknown time zone {}", quoted(given)), help))
}

/// Reads a day of the month.
fn day(node: &Node) -> ReadResult<i8> {
    let day = node.whole()?;
    i8::try_from(day).ok().filter(|day| (1..=31).contains(day)).ok_or_else(|| {
        let help = "use 1 to 31; 31 means the last day of every month";
        node.error(format!("{day} is not a day of the month"), help)
    })
}
