//! A limit in the making: the same zone with the same numbers may stand in many blocks.

use super::super::super::print::joined;
use super::super::document::Document;
use super::super::gateway::{GatewayLimit, Rate};
use super::super::scope::Scope;
use super::super::settings::SettingState;
use super::super::text::piece;
use super::grammar::Directive;
use super::key::{Case, Variables};
use super::location::join;
use super::server::Taken;
use super::{Kind, is_zone};

/// The most lines that a comment names.
const MOST_LINES: usize = 5;

/// Variables of which several values are one client here.
const NARROWER: [(&str, &str); 2] = [
    ("http_authorization", "the scheme may be written in upper or lower case, or be missing"),
    ("http_host", "upper and lower case and the port make no difference"),
];

/// Weir's own status.
pub(super) const TOO_MANY_REQUESTS: u64 = 429;

pub(super) struct Draft<'d> {
    pub(super) directive: &'d Directive,
    pub(super) kind: &'static Kind,
    pub(super) taken: Taken,
    pub(super) status: Option<u64>,
    pub(super) is_shadow: bool,
    /// A limit of requests in flight, which nginx asks after this one.
    pub(super) in_flight: Option<&'d Directive>,
    /// The name of the server, if the key has it.
    pub(super) server: Option<&'d str>,
}

/// The value of an argument `name=value`.
pub(super) fn value<'d>(directive: &'d Directive, name: &str) -> Option<&'d str> {
    directive.arguments.iter().find_map(|argument| argument.strip_prefix(name)?.strip_prefix('='))
}

impl<'d> Draft<'d> {
    pub(super) fn zone(&self) -> &'d str {
        if self.kind.limit == "limit_conn" {
            self.directive.argument(0)
        } else {
            value(self.directive, "zone").unwrap_or_default()
        }
    }

    /// The scope of both, if they share counters and numbers.
    pub(super) fn joined(&self, other: &Self) -> Option<Scope> {
        let is_same = self.directive.arguments == other.directive.arguments
            && self.server == other.server
            && self.status == other.status
            && self.is_shadow == other.is_shadow;
        is_same.then(|| self.taken.scope.or(&other.taken.scope)).flatten()
    }

    pub(super) fn write(
        &self,
        zones: &[&Directive],
        variables: &Variables<'_>,
        others: &[&Self],
        document: &mut Document,
    ) {
        let (name, origin) = (self.zone(), &self.directive.origin);
        let leave_out = |document: &mut Document, why: String| {
            self.directive.state.set(SettingState::Told);
            document.unused(origin.note(format!("{}: {why}, so it is left out.", piece(&self.directive.text()))));
        };
        let Some(zone) = zones.iter().find(|zone| is_zone(zone, name)) else {
            return leave_out(document, format!("there is no {} {}", self.kind.zone, piece(name)));
        };
        let rate = match self.rate(zone) {
            Ok(rate) => rate,
            Err(why) => return leave_out(document, why),
        };
        let cases = match (Variables { server: self.server, ..variables.clone() }).cases(zone.argument(0)) {
            Ok(cases) => cases,
            Err(why) => return leave_out(document, why),
        };
        let notes = self.notes(zone, &cases, variables, others);
        if cases.is_empty() {
            self.directive.state.set(SettingState::Told);
            document.unused(origin.note(format!(
                "{}: nginx counts none of these requests, as the key is empty.",
                piece(&self.directive.text())
            )));
        }
        let is_first = others.iter().all(|other| other.directive.origin.line > origin.line);
        for (place, case) in cases.into_iter().enumerate() {
            let Some(scope) = case.scope.and_then(|scope| join(&self.taken.scope, &scope)) else {
                leave_out(document, "`match` cannot join the conditions of its key and of its block".to_owned());
                continue;
            };
            let limit = GatewayLimit {
                name: name.to_owned(),
                identity: if is_first && place == 0 { name.to_owned() } else { format!("{name}\n") },
                origin: origin.clone(),
                source: self.directive.text(),
                notes: notes.clone(),
                wider: self.taken.wider.clone(),
                scope,
                by: case.by,
                missing: case.is_shared.then_some("shared"),
                rate: rate.clone(),
                status: self.status,
                is_shadow: self.is_shadow,
            };
            if limit.write(document) {
                zone.use_it();
            } else {
                self.directive.state.set(SettingState::Told);
            }
        }
    }

    /// Tells what nginx counts otherwise.
    fn notes(&self, zone: &Directive, cases: &[Case], variables: &Variables, others: &[&Self]) -> Vec<String> {
        let origin = &self.directive.origin;
        let mut notes = self.taken.notes.clone();
        notes.extend(self.in_flight.map(|other| {
            let what = "nginx also counts what {} denies; here limits count all together or none.";
            origin.note(what.replace("{}", &piece(&other.text())))
        }));
        if !others.is_empty() {
            let lines = joined(others.iter().map(|other| other.directive.origin.line).take(MOST_LINES), ", ");
            let more = if others.len() > MOST_LINES { " and others" } else { "" };
            notes.push(origin.note(format!(
                "nginx counts zone {} together with line {lines}{more}; here each has buckets of its own.",
                piece(self.zone())
            )));
        }
        for (variable, what) in NARROWER {
            if variables.read(zone.argument(0)).contains(&variable) {
                notes.push(origin.note(format!("nginx counts each spelling of `${variable}` by itself; here {what}.")));
            }
        }
        if self.server.is_some() && !zone.argument(0).contains("$server_name") {
            notes.push(origin.note(format!(
                "nginx counts the servers together where {} is not their name; here each has buckets of its own.",
                piece(zone.argument(0))
            )));
        }
        // Without a header, the key of a case may be that of another.
        let meets = |case: &Case, other: &Case| {
            case.text == other.text
                && (case.by == other.by || other.is_shared && case.by.iter().all(|part| other.by.contains(part)))
        };
        let is_split = |case: &Case| cases.iter().filter(|other| meets(case, other)).count() > 1;
        if cases.iter().any(is_split) {
            notes.push(origin.note(format!(
                "nginx counts the cases of {} together; here each has buckets of its own.",
                piece(zone.argument(0))
            )));
        }
        notes
    }

    fn rate(&self, zone: &Directive) -> Result<Rate, String> {
        if self.kind.limit == "limit_conn" {
            let capacity = self.directive.argument(1);
            return capacity.parse().map(Rate::InFlight).map_err(|_| format!("invalid number {}", piece(capacity)));
        }
        let rate = value(zone, "rate").unwrap_or("1r/s");
        let (count, unit) = rate.split_once("r/").unwrap_or((rate, ""));
        let period = match unit {
            "s" => 1_000_000,
            "m" => 60_000_000,
            _ => return Err(format!("invalid rate {}", piece(rate))),
        };
        let number = |text: &str| text.parse::<u64>().map_err(|_| format!("invalid number {}", piece(text)));
        let count =
            number(count).ok().filter(|count| *count > 0).ok_or_else(|| format!("invalid rate {}", piece(rate)))?;
        let burst = value(self.directive, "burst").map_or(Ok(0), number)?;
        let at_once = match value(self.directive, "delay") {
            _ if self.directive.arguments.iter().any(|argument| argument == "nodelay") => burst,
            Some(at_once) => number(at_once)?.min(burst),
            None => 0,
        };
        let delay = (burst - at_once).saturating_mul(period).div_ceil(count.max(1));
        Ok(Rate::Bucket { burst: at_once.saturating_add(1), count, period, delay })
    }
}
