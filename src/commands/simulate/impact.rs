//! Shows the facts about denied ids in the reports.

use std::borrow::Cow;

use serde_json::{Value, json};

use super::figures::{number_text, of, percent};
use super::json;
use super::lists::Customers;
use super::names::Names;
use crate::commands::print::joined;
use crate::engine::text::csv::{CANDIDATE, SHADOW};
use crate::engine::text::instant::rfc3339;
use crate::simulation::impact::{Breakdown, DeniedBy, IdImpact, LimitImpact, MOST_AGENTS, Values};
use crate::simulation::report::{DeniedId, LimitReport};

/// The values of denied requests that a report shows.
const MOST_VALUES: usize = 5;

/// The word for what denies, in CSV and JSON.
pub(super) fn denied_by(by: &DeniedBy) -> Cow<'static, str> {
    match by {
        DeniedBy::Limit => "limit".into(),
        DeniedBy::Shadow => SHADOW.into(),
        DeniedBy::Candidate(None) => CANDIDATE.into(),
        DeniedBy::Candidate(Some(name)) => format!("{CANDIDATE}:{name}").into(),
    }
}

/// A share from 0 to 1 with four decimals.
#[expect(clippy::cast_precision_loss, reason = "it is rounded to four digits")]
pub(super) fn share(part: u64, all: u64) -> String {
    if all == 0 { String::new() } else { format!("{:.4}", part as f64 / all as f64) }
}

/// The facts about an id among the most denied.
fn known_of<'r>(limit: &'r LimitReport, id: &DeniedId) -> Option<&'r IdImpact> {
    let mut ids = limit.impact.as_ref()?.ids.iter();
    ids.find(|known| !matches!(known.by, DeniedBy::Candidate(_)) && known.id.join(":") == id.id)
}

/// The facts about an id among the most denied, and its customer's name, for people.
pub(super) fn facts_text(limit: &LimitReport, id: &DeniedId, customers: &Customers) -> Option<String> {
    let known = known_of(limit, id)?;
    let customer = customers.name(&known.id).map(|name| format!("{name}: ")).unwrap_or_default();
    let agents = match known.agents {
        0 => "no agent".to_owned(),
        1 => "1 agent".to_owned(),
        MOST_AGENTS => format!("{MOST_AGENTS} or more agents"),
        agents => format!("{agents} agents"),
    };
    let pace = known
        .pace
        .map_or_else(String::new, |pace| format!(", one every {} (variation {:.1})", about(pace.mean), pace.variation));
    let [unauthorized, not_found] = [known.unauthorized, known.not_found].map(|part| percent(part, known.requests));
    Some(format!(
        "{customer}{} denied, peak {}{pace}, {agents}, 401: {unauthorized}, 404: {not_found}",
        of(known.denied, known.requests, "request"),
        number_text(known.peak.into()),
    ))
}

/// `16s`
fn about(seconds: f64) -> String {
    match seconds {
        ..0.1 => format!("{:.0}ms", seconds * 1e3),
        ..10.0 => format!("{seconds:.1}s"),
        ..120.0 => format!("{seconds:.0}s"),
        ..7200.0 => format!("{:.0}m", seconds / 60.0),
        _ => format!("{:.0}h", seconds / 3_600.0),
    }
}

/// The most frequent paths, methods, statuses and agents of a limit's denied requests, for people. Kinds that the log does not contain are left out.
pub(super) fn breakdown_text(impact: &LimitImpact, names: &Names) -> Vec<(&'static str, String)> {
    let text = |kind: Kind<'_>| {
        let values = kind.top(MOST_VALUES, names).into_iter();
        (kind.name, joined(values.map(|(value, denied)| format!("{value} ({})", number_text(denied))), ", "))
    };
    kinds(&impact.breakdown).map(text).into_iter().filter(|(_, text)| !text.is_empty()).collect()
}

/// The values of one kind.
pub(super) struct Kind<'a> {
    name: &'static str,
    values: &'a Values,
    /// Clients choose them, and ids may be among them.
    is_free: bool,
}

pub(super) const fn kinds(breakdown: &Breakdown) -> [Kind<'_>; 4] {
    let Breakdown { paths, methods, statuses, agents } = breakdown;
    [
        Kind { name: "paths", values: paths, is_free: true },
        Kind { name: "methods", values: methods, is_free: false },
        Kind { name: "statuses", values: statuses, is_free: false },
        Kind { name: "agents", values: agents, is_free: true },
    ]
}

impl Kind<'_> {
    /// The most frequent values; stand-ins unless ids are shown.
    pub(super) fn top(&self, most: usize, names: &Names) -> Vec<(String, u64)> {
        let name = |value: &str| if self.is_free { names.part(value) } else { value.to_owned() };
        self.values.top(most).into_iter().map(|(value, denied)| (name(value), denied)).collect()
    }
}

/// At most `most` ids.
pub(super) fn json(impact: &LimitImpact, names: &Names, customers: &Customers, most: usize) -> Value {
    let ids = impact.ids.iter().take(most).map(|id| {
        let mut object = json::fields(json!({
            "id": names.name(&id.id.join(":")),
            "customer": customers.name(&id.id),
            "denied_by": denied_by(&id.by),
            "requests": id.requests,
            "denied": id.denied,
            "first": rfc3339(id.first),
            "last": rfc3339(id.last),
            "peak": id.peak,
            "peak_at": rfc3339(id.peak_at),
            "agents": id.agents,
            "answered_401": id.unauthorized,
            "answered_404": id.not_found,
            "gap_seconds": id.pace.map(|pace| pace.mean),
            "gap_variation": id.pace.map(|pace| pace.variation),
        }));
        object.insert("by".into(), breakdown(&id.breakdown, names));
        Value::Object(object)
    });
    let ids: Vec<Value> = ids.collect();
    json!({ "ids": ids, "unlisted": impact.unlisted, "without_id": impact.without_id, "by": breakdown(&impact.breakdown, names) })
}

fn breakdown(found: &Breakdown, names: &Names) -> Value {
    let values = |kind: Kind<'_>| {
        let values = kind.top(MOST_VALUES, names).into_iter();
        (kind.name.to_owned(), values.map(|(value, denied)| json!({ "value": value, "denied": denied })).collect())
    };
    Value::Object(kinds(found).map(values).into_iter().collect())
}
