//! The report of a simulation for people.

use std::fmt::Write;

use super::super::print::joined;
use super::names::Names;
use crate::engine::algorithms::micros::Micros;
use crate::simulation::against::{Comparison, Difference};
use crate::simulation::report::{DeniedId, LimitReport, Load, Report, SideReport, Status};
use crate::simulation::suggestion::{Found, Goal, Suggestion};

/// The names of the rules files.
pub(super) struct Files {
    pub(super) here: String,
    pub(super) there: String,
}

pub(super) fn render(report: &Report, names: &Names, files: &Files, goal: &Goal) -> String {
    let mut text = String::new();
    let _ = write!(text, "{}", of(report.side.denied, report.requests, "request"));
    text.push_str(" would be denied");
    if let Some((first, last)) = report.span {
        let _ = write!(text, ", {} to {} UTC", instant(first), instant(last));
    }
    text.push('\n');
    lines(&mut text, report);
    side(&mut text, &report.side, names, goal);
    if let (Some(comparison), Some(other)) = (&report.comparison, &report.other) {
        compare(&mut text, comparison, names, files);
        for limit in &other.limits {
            if let Status::NotCovered(missing) = &limit.status {
                let missing = joined(missing, ", ");
                let _ = writeln!(text, "  {} of {}: not covered by this log: {missing}", limit.name, files.there);
            }
        }
    }
    text
}

/// What is worth knowing of the lines.
fn lines(text: &mut String, report: &Report) {
    let counts = &report.lines;
    let mut line = |number: u64, what: &str| {
        if number > 0 {
            let _ = writeln!(text, "{} {what}", number_text(number));
        }
    };
    line(counts.unreadable, &format!("of {} lines could not be read", number_text(counts.lines)));
    line(counts.other, "lines tell of no request");
    line(counts.rejected, "requests are rejected before any limit");
    line(counts.invalid, "requests are rejected because their cost is not a number");
    line(report.late, "requests came too far out of order and were decided later than they arrived");
    line(report.overflowed, "charges went to a bucket that ids share, because there are more ids than --max-keys");
    line(report.undecided, "requests could not be decided, because two limits have the same bucket");
    let has_denials = report.side.limits.iter().any(|limit| limit.denied > 0);
    if has_denials && report.precision >= Micros(1_000_000) {
        text.push_str("the log has whole seconds: bursts within a second look larger than they were\n");
    }
}

fn side(text: &mut String, side: &SideReport, names: &Names, goal: &Goal) {
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
            Status::Covered => covered(text, limit, side.series.width(), names, goal),
        }
    }
}

fn covered(text: &mut String, limit: &LimitReport, width: Micros, names: &Names, goal: &Goal) {
    let about = if limit.ids_are_estimates { "about " } else { "" };
    let shadow = if limit.is_enforced { "" } else { " (shadow)" };
    let _ = writeln!(text, "{}{shadow}: {about}{} would be denied", limit.name, of(limit.ids_denied, limit.ids, "id"));
    if !limit.numbers.is_empty() {
        detail(text, "numbers", &limit.numbers);
    }
    detail(text, "denied", &of(limit.denied, limit.requests, "request"));
    if limit.is_enforced && limit.denied_in_shadow > 0 {
        detail(text, "", &format!("{} of them in shadow", number_text(limit.denied_in_shadow)));
    }
    if let Some(denied) = limit.candidate_denied {
        detail(text, "candidate", &format!("denies {}", of(denied, limit.requests, "request")));
    }
    if let (Some(first), Some(last), Some((worst, denied))) = (limit.first, limit.last, limit.worst) {
        detail(text, "when", &format!("{} to {}", instant(first), instant(last)));
        detail(text, "most at", &format!("{}: {} in {}", instant(worst), number_text(denied), span(width)));
    }
    for (place, id) in limit.most_denied.iter().enumerate() {
        let name = if place == 0 { "most denied" } else { "" };
        detail(text, name, &format!("{} {}", number_text(id.denied), names.name(&id.id)));
    }
    if let Some(load) = &limit.load {
        detail(text, "load", &load_text(load));
    }
    match &limit.suggestion {
        None => {}
        Some(Err(reason)) => detail(text, "suggestion", &format!("none: {reason}")),
        Some(Ok(suggestion)) => suggest(text, suggestion, goal),
    }
}

fn load_text(load: &Load) -> String {
    let per = load.period.map_or_else(|| "in the whole log".to_owned(), |period| format!("in {}", span(period)));
    let [p50, p99, p999, most] = [load.p50, load.p99, load.p999, load.most].map(|n| number_text(n.into()));
    format!("requests of an id {per}: p50 {p50}, p99 {p99}, p99.9 {p999}, max {most}")
}

fn suggest(text: &mut String, suggestion: &Suggestion, goal: &Goal) {
    let shares = [(goal.requests, "requests"), (goal.ids, "ids")];
    let shares = shares.iter().filter_map(|(share, what)| Some(format!("{} of {what}", share_text((*share)?))));
    detail(text, "to deny", &format!("at most {}:", joined(shares, " and ")));
    let found = |found: &Found| {
        let denied = format!("{} requests", number_text(found.denied));
        format!("denies {denied} of {} ids", number_text(found.ids_denied))
    };
    if let Some(burst) = &suggestion.burst {
        let number = number_text(burst.number);
        detail(text, "", &format!("burst {number} with the present count {}", found(burst)));
    }
    if let Some(both) = &suggestion.both {
        let number = number_text(both.number);
        detail(text, "", &format!("burst and count {number} {}", found(both)));
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

/// `3 of 1,200 requests (0.25%)`
fn of(part: u64, all: u64, what: &str) -> String {
    let share = if all == 0 { String::new() } else { format!(" ({})", percent(part, all)) };
    format!("{} of {} {what}{}{share}", number_text(part), number_text(all), if all == 1 { "" } else { "s" })
}

#[expect(clippy::cast_precision_loss, reason = "it is rounded to two digits")]
fn percent(part: u64, all: u64) -> String {
    let percent = part as f64 * 100.0 / all as f64;
    match percent {
        0.0 => "0%".to_owned(),
        percent if percent < 0.001 => "<0.001%".to_owned(),
        percent if percent < 0.1 => format!("{percent:.3}%"),
        percent if percent < 10.0 => format!("{percent:.2}%"),
        percent => format!("{percent:.1}%"),
    }
}

/// A share in millionths as a percentage.
fn share_text(millionths: u64) -> String {
    let text = format!("{}.{:04}", millionths / 10_000, millionths % 10_000);
    format!("{}%", text.trim_end_matches('0').trim_end_matches('.'))
}

/// `1,234,567`
fn number_text(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn instant(at: Micros) -> String {
    let micros = i64::try_from(at.0).unwrap_or(i64::MAX);
    jiff::Timestamp::from_microsecond(micros)
        .map_or_else(|_| at.0.to_string(), |at| at.strftime("%Y-%m-%d %H:%M:%S").to_string())
}

fn span(span: Micros) -> String {
    crate::engine::algorithms::describe::Span(span.0.saturating_mul(1_000)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_shares_are_short() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(number_text), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(of(3, 1_200, "request"), "3 of 1,200 requests (0.25%)");
        assert_eq!(of(0, 1, "id"), "0 of 1 id (0%)");
        assert_eq!([1_000, 1_000_000, 123_456, 0].map(share_text), ["0.1%", "100%", "12.3456%", "0%"]);
    }
}
