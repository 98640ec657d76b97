//! The report of a simulation for people.

use std::fmt::Write;

use super::super::colors::Palette;
use super::super::print::joined;
use super::Files;
use super::figures::{
    candidate_text, count, delays_text, instant, load_text, number_text, numbers_text, of, share_text, span,
};
use super::lists::Customers;
use super::names::Names;
use super::{curves, impact, left_out};
use crate::engine::algorithms::micros::Micros;
use crate::simulation::against::{Comparison, Difference};
use crate::simulation::report::{DeniedId, LeftOut, LimitReport, Report, Status};
use crate::simulation::suggestion::{Found, Goal, Suggestion};

pub(super) fn render(report: &Report, names: &Names, customers: &Customers, files: &Files, goal: &Goal) -> String {
    let mut text = String::new();
    for told in left_out::sentences(report, names.shows_ids()) {
        let _ = writeln!(text, "{told}");
    }
    text.push_str(&left_out::verdict(report, &report.side));
    if let Some((first, last)) = report.span {
        let _ = write!(text, ", {} to {} UTC", instant(first), instant(last));
    }
    text.push('\n');
    if let Some(delays) = &report.side.delays {
        let _ = writeln!(text, "delayed, and then passed: {}", delays_text(delays, report.requests));
    }
    notes(&mut text, report, names);
    side(&mut text, report, names, customers, goal);
    if let (Some(comparison), Some(other)) = (&report.comparison, &report.other) {
        compare(&mut text, comparison, names, files);
        for limit in other.limits.iter().filter(|limit| limit.requests == 0) {
            let why = match &limit.status {
                Status::Off => continue,
                Status::NotCovered(missing) => format!("not covered by this log: {}", joined(missing, ", ")),
                Status::Covered => left_out::unmet(report, limit),
            };
            let _ = writeln!(text, "  {} of {}: {why}", limit.name, files.there);
        }
    }
    text
}

/// Adds what the reader of the verdict should know.
fn notes(text: &mut String, report: &Report, names: &Names) {
    let no_request = left_out::sentence(report, LeftOut::NoRequest, names.shows_ids());
    let told = [left_out::denied_before(report), left_out::idle(report), no_request, left_out::overflowed(report)];
    for told in told.into_iter().flatten() {
        let _ = writeln!(text, "{told}");
    }
}

fn side(text: &mut String, report: &Report, names: &Names, customers: &Customers, goal: &Goal) {
    let side = &report.side;
    for limit in &side.limits {
        text.push('\n');
        match &limit.status {
            Status::Off => {
                let _ = writeln!(text, "{}: off", limit.name);
            }
            Status::NotCovered(missing) => {
                let _ =
                    writeln!(text, "{}: not covered by this log, which lacks {}", limit.name, joined(missing, ", "));
            }
            Status::Covered if limit.requests == 0 => {
                let _ = writeln!(text, "{}: {}", limit.name, left_out::unmet(report, limit));
            }
            Status::Covered => {
                covered(text, limit, side.series.width());
                most_denied(text, limit, names, customers);
                load(text, limit, goal);
            }
        }
    }
}

fn covered(text: &mut String, limit: &LimitReport, width: Micros) {
    let about = if limit.ids_are_estimates { "about " } else { "" };
    let shadow = if limit.is_enforced { "" } else { " (shadow)" };
    let Palette { name, bad, good, doubtful, .. } = Palette::out();
    let tone = match (limit.ids_denied, limit.is_enforced) {
        (0, _) => good,
        (_, true) => bad,
        (_, false) => doubtful,
    };
    let denied = of(limit.ids_denied, limit.ids, "id");
    let _ = writeln!(text, "{name}{}{name:#}{shadow}: {tone}{about}{denied} would be denied{tone:#}", limit.name);
    if !limit.numbers.is_empty() {
        detail(text, "numbers", &numbers_text(limit));
    }
    detail(text, "denied", &of(limit.denied, limit.requests, "request"));
    if limit.exempt > 0 {
        detail(text, "exempt", &count(limit.exempt, "request"));
    }
    if limit.is_enforced && limit.denied_in_shadow > 0 {
        detail(text, "", &format!("{} of them in shadow", number_text(limit.denied_in_shadow)));
    }
    if let Some(bans) = limit.bans {
        detail(text, "bans", &number_text(bans));
    }
    if let Some(warnings) = limit.warnings {
        detail(text, "warnings", &number_text(warnings));
    }
    if let Some(delays) = &limit.delays {
        detail(text, "delayed", &delays_text(delays, limit.requests));
    }
    for candidate in &limit.candidates {
        detail(text, "candidate", &candidate_text(candidate));
    }
    if let (Some(first), Some(last), Some((worst, denied))) = (limit.first, limit.last, limit.worst) {
        detail(text, "when", &format!("{} to {}", instant(first), instant(last)));
        detail(text, "most at", &format!("{}: {} in {}", instant(worst), number_text(denied), span(width)));
    }
}

fn most_denied(text: &mut String, limit: &LimitReport, names: &Names, customers: &Customers) {
    for (place, id) in limit.most_denied.iter().enumerate() {
        let name = if place == 0 { "most denied" } else { "" };
        detail(text, name, &format!("{} {}", number_text(id.denied), names.name(&id.id)));
        if let Some(facts) = impact::facts_text(limit, id, customers) {
            detail(text, "", &format!("  {facts}"));
        }
    }
    for (kind, values) in limit.impact.iter().flat_map(|impact| impact::breakdown_text(impact, names)) {
        detail(text, kind, &values);
    }
}

fn load(text: &mut String, limit: &LimitReport, goal: &Goal) {
    if let Some(load) = &limit.load {
        detail(text, "load", &load_text(load));
    }
    match &limit.curves {
        None => {}
        Some(Err(reason)) => detail(text, "curve", &format!("none: {reason}")),
        Some(Ok(curves)) => {
            for (place, line) in curves::text(curves).iter().enumerate() {
                detail(text, if place == 0 { "curve" } else { "" }, line);
            }
        }
    }
    match &limit.suggestion {
        None => {}
        Some(Err(reason)) => detail(text, "suggestion", &format!("none: {reason}")),
        Some(Ok(suggestion)) => suggest(text, suggestion, goal),
    }
}

fn suggest(text: &mut String, suggestion: &Suggestion, goal: &Goal) {
    let shares = [(goal.requests, "requests"), (goal.ids, "ids")];
    let shares = shares.iter().filter_map(|(share, what)| Some(format!("{} of {what}", share_text((*share)?))));
    detail(text, "to deny", &format!("at most {}:", joined(shares, " and ")));
    let mut found = |numbers: &str, found: &Found| {
        let denied = format!("denies {} of {}", count(found.denied, "request"), count(found.ids_denied, "id"));
        detail(text, "", &format!("{} {numbers}{denied}", number_text(found.number)));
    };
    if let Some(burst) = &suggestion.burst {
        found("as burst, with the present count, ", burst);
    }
    if let Some(both) = &suggestion.both {
        found("as burst and count ", both);
    }
    if suggestion.burst.is_none() && suggestion.both.is_none() {
        detail(text, "", "no numbers do");
    }
}

fn compare(text: &mut String, comparison: &Comparison, names: &Names, files: &Files) {
    let Files { here, there } = files;
    let [only_here, only_there, both] = [comparison.only_here, comparison.only_there, comparison.both].map(number_text);
    let _ =
        writeln!(text, "\nRequests denied only by {here}: {only_here}, only by {there}: {only_there}, by both: {both}");
    for limit in &comparison.limits {
        let mut side = |difference: &Difference, file: &str| {
            if difference.requests > 0 {
                let requests = number_text(difference.requests);
                let ids = number_text(difference.ids);
                let most = difference
                    .most
                    .iter()
                    .map(|DeniedId { id, denied }| format!("{} ({})", names.name(id), number_text(*denied)));
                let most = joined(most, ", ");
                let _ = writeln!(text, "  {}: {requests} denied only by {file}, ids: {ids}; most: {most}", limit.name);
            }
        };
        side(&limit.only_here, here);
        side(&limit.only_there, there);
    }
}

fn detail(text: &mut String, name: &str, value: &str) {
    let _ = writeln!(text, "  {name:<12} {value}");
}
