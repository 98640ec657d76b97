//! `algorithm: fixed_window`: all tokens come back when a window ends. Keys: `aligned`, `timezone`, `resets_on`.

use super::super::mapping::Mapping;
use super::super::numbers::{Period, Rate, Window, rates};
use super::super::problem::{Findings, Place, Reported, quoted};
use super::super::scalars::{one_of, text, whole};
use super::super::suggest::nearest;
use super::super::yaml::Node;
use super::{Entry, Settings};
use crate::engine::algorithms::algorithm::Aligned;
use crate::engine::algorithms::calendar::{Calendar, Unit};
use crate::engine::algorithms::numbers::Numbers;

pub(super) const ENTRY: Entry = Entry {
    words: &["fixed_window"],
    settings: Settings::FixedWindow(Windows { aligned: Aligned::First, zone: None, day: None }),
    keys: &KEYS,
    override_keys: &KEYS,
};

const KEYS: [&str; 3] = ["aligned", "timezone", "resets_on"];

pub(in super::super) const ALIGNED: [(&str, Aligned); 2] = [("first", Aligned::First), ("clock", Aligned::Clock)];

/// How windows begin and end.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct Windows {
    pub(super) aligned: Aligned,
    /// The time zone of months and years, and its place in the file.
    zone: Option<(String, Place)>,
    /// The day on which months begin.
    day: Option<i8>,
}

impl Windows {
    /// Reads the keys; what is not set is inherited.
    pub(super) fn read(&self, map: &Mapping<'_>, findings: &mut Findings) -> Result<Self, Reported> {
        let aligned = map.read("aligned", findings, one_of(&ALIGNED));
        let zone = map.read("timezone", findings, |node, findings| Ok((zone(node, findings)?, node.place)));
        let day = map.read("resets_on", findings, day);
        Ok(Self {
            aligned: aligned?.unwrap_or(self.aligned),
            zone: zone?.or_else(|| self.zone.clone()),
            day: day?.or(self.day),
        })
    }

    pub(super) fn numbers(&self, map: &Mapping<'_>, findings: &mut Findings) -> Result<Vec<Numbers>, Reported> {
        let windows = rates(map, true, &|rate, findings| self.window(rate, findings), findings)?;
        let has_calendar = windows.is_empty() || windows.iter().any(Numbers::is_calendar);
        match map.first(&["timezone", "resets_on"]).filter(|_| !has_calendar) {
            None => Ok(windows),
            Some((key, _)) => {
                let message = format!("`{}` needs `period: month`, or `year` with a time zone", key.text);
                Err(findings.error(key.place, message, "other periods do not follow the calendar; remove it"))
            }
        }
    }

    fn window(&self, rate: &Rate<'_>, findings: &mut Findings) -> Window {
        let (map, burst, count) = (rate.map, rate.burst, rate.count);
        let unit = match rate.period {
            Period::Span(span) => return Ok(Numbers::fixed_window(burst, count, span, self.aligned)),
            Period::Year if map.get("resets_on").is_some() => {
                let place = map.value_place("resets_on");
                return Err(findings.error(
                    place,
                    "`resets_on` needs `period: month`",
                    "a year always starts on 1 January",
                ));
            }
            Period::Year => Unit::Year,
            Period::Month => Unit::Month(self.day.unwrap_or(1)),
        };
        if let (Some((_, node)), Aligned::First) = (map.get("aligned"), self.aligned) {
            let help = "remove `aligned`, or use a duration such as 30d";
            return Err(findings.error(node.place, "calendar periods cannot start with the first request", help));
        }
        let place = map.value_place("period");
        let (zone, place) = self.zone.as_ref().map_or(("UTC", place), |(zone, place)| (zone.as_str(), *place));
        let calendar = Calendar::find(unit, zone).map_err(|error| findings.error(place, error.to_string(), ""))?;
        Ok(Numbers::calendar_window(burst, count, calendar))
    }
}

/// Reads the name of a time zone.
fn zone(node: &Node, findings: &mut Findings) -> Result<String, Reported> {
    let given = text(node, findings)?;
    if Calendar::is_zone(given) {
        return Ok(given.to_owned());
    }
    let zones = Calendar::zones();
    let help = nearest(given, zones.iter().map(String::as_str)).map_or_else(
        || "use an IANA name such as Europe/Berlin or UTC".into(),
        |zone| format!("did you mean `{zone}`?"),
    );
    Err(findings.error(node.place, format!("unknown time zone {}", quoted(given)), help))
}

/// Reads a day of the month.
fn day(node: &Node, findings: &mut Findings) -> Result<i8, Reported> {
    let day = whole(node, findings)?;
    i8::try_from(day).ok().filter(|day| (1..=31).contains(day)).ok_or_else(|| {
        let help = "use 1 to 31; 31 means the last day of every month";
        findings.error(node.place, format!("{day} is not a day of the month"), help)
    })
}
