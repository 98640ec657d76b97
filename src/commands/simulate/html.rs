//! The report of a simulation as one HTML page that loads nothing.

use std::fmt::{Display, Write};

use super::Files;
use super::chart::{self, HALF, WIDE, chart, denied_over_time, same_load};
use super::curves::{self, Named};
use super::figures::{
    candidate_text, delays_text, instant, load_text, number_text, numbers_text, of, share_text, span,
};
use super::lists::Customers;
use super::names::Names;
use super::{impact, left_out};
use crate::commands::print::joined;
use crate::engine::algorithms::micros::Micros;
use crate::message::inline_source::inline_source;
use crate::simulation::against::{Comparison, Difference};
use crate::simulation::report::{LeftOut, LimitReport, Report, SideReport, Status};
use crate::simulation::suggestion::{Found, Goal, Suggestion};

const STYLE: &str = include_str!("report.css");
const SCRIPT: &str = include_str!("report.js");

pub(super) fn render(report: &Report, names: &Names, customers: &Customers, files: &Files, goal: &Goal) -> String {
    let mut page = head();
    list(&mut page, &left_out::sentences(report, names.shows_ids()));
    let _ = write!(page, "<header><h1>{}</h1>", Text(&left_out::verdict(report, &report.side)));
    if let Some((first, last)) = report.span {
        let _ = write!(
            page,
            "<p class=\"muted\">{} to {} UTC, decided by {}",
            instant(first),
            instant(last),
            Text(&files.here)
        );
        if report.other.is_some() {
            let _ = write!(page, " and by {}", Text(&files.there));
        }
        page.push_str("</p>");
    }
    page.push_str("</header>\n<main>\n");
    notes(&mut page, report, names);
    if let (Some(comparison), Some(_)) = (&report.comparison, &report.other) {
        compare(&mut page, report, comparison, names, files);
    }
    let pair = [&files.here, &files.there].map(String::as_str);
    let here = report.other.is_some().then_some(pair);
    side(&mut page, report, &report.side, (names, customers), goal, here);
    if let Some(other) = &report.other {
        side(&mut page, report, other, (names, customers), goal, Some([pair[1], pair[0]]));
    }
    let _ = write!(page, "</main>\n<script>{SCRIPT}</script>\n</html>\n");
    page
}

fn head() -> String {
    let (style, script) = (inline_source(STYLE), inline_source(SCRIPT));
    let policy =
        format!("default-src 'none'; style-src {style}; script-src {script}; base-uri 'none'; form-action 'none'");
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Weir: simulation</title>\n<style>{STYLE}</style>\n{}",
        chart::HATCH
    )
}

/// Writes what the reader of the verdict should know.
fn notes(page: &mut String, report: &Report, names: &Names) {
    let no_request = left_out::sentence(report, LeftOut::NoRequest, names.shows_ids());
    let told = [left_out::denied_before(report), left_out::idle(report), no_request, left_out::overflowed(report)];
    let notes: Vec<String> = told.into_iter().flatten().collect();
    list(page, &notes);
}

fn list(page: &mut String, notes: &[String]) {
    if notes.is_empty() {
        return;
    }
    page.push_str("<ul class=\"notes\">");
    for note in notes {
        let _ = write!(page, "<li>{}</li>", Text(note));
    }
    page.push_str("</ul>\n");
}

/// Writes all limits of one rules file. `files` are its name and that of the other, if there are two.
fn side(
    page: &mut String,
    report: &Report,
    side: &SideReport,
    who: (&Names, &Customers),
    goal: &Goal,
    files: Option<[&str; 2]>,
) {
    if let Some([file, _]) = files {
        let _ = writeln!(page, "<h2>{}</h2>", Text(file));
    }
    page.push_str("<section class=\"panel\"><h3>All limits</h3>");
    let _ = write!(page, "<p>{}</p>", Text(&left_out::verdict(report, side)));
    if let Some(delays) = &side.delays {
        let _ = write!(page, "<p>Delayed, and then passed: {}</p>", delays_text(delays, report.requests));
    }
    page.push_str(&chart(&side.series, 0, "All limits", WIDE));
    page.push_str("</section>\n");
    let compared = same_load(&side.series, 1..=side.limits.len());
    for columns in &compared {
        beside(page, side, columns);
    }
    let compared = compared.concat();
    for (column, limit) in (1..).zip(&side.limits) {
        page.push_str("<section class=\"panel\">");
        let mark =
            if limit.is_enforced || limit.status == Status::Off { "" } else { " <span class=\"mark\">shadow</span>" };
        let _ = write!(page, "<h3>{}{mark}</h3>", Text(&limit.name));
        match &limit.status {
            Status::Off => page.push_str("<p class=\"muted\">Off</p>"),
            Status::NotCovered(missing) => {
                let missing = joined(missing, ", ");
                let _ = write!(page, "<p>Not covered by this log, which lacks {}</p>", Text(&missing));
            }
            Status::Covered if limit.requests == 0 => {
                let _ = write!(page, "<p>{}</p>", Text(&left_out::unmet(report, limit)));
            }
            Status::Covered => {
                covered(page, limit, goal, side.series.width());
                if !compared.contains(&column) {
                    page.push_str(&chart(&side.series, column, &limit.name, WIDE));
                }
                curves(page, report, limit, files);
                most_denied(page, limit, who);
            }
        }
        page.push_str("</section>\n");
    }
}

/// Draws limits that cover the same requests beside each other, to the same scale.
fn beside(page: &mut String, side: &SideReport, columns: &[usize]) {
    page.push_str("<section class=\"panel\"><h3>The same requests under each limit</h3><div class=\"beside\">");
    for column in columns {
        let Some(limit) = column.checked_sub(1).and_then(|place| side.limits.get(place)) else { continue };
        let _ =
            write!(page, "<div><h4>{} <span class=\"muted\">{}</span></h4>", Text(&limit.name), Text(&limit.numbers));
        page.push_str(&chart(&side.series, *column, &limit.name, HALF));
        page.push_str("</div>");
    }
    page.push_str("</div></section>\n");
}

fn covered(page: &mut String, limit: &LimitReport, goal: &Goal, width: Micros) {
    let about = if limit.ids_are_estimates { "about " } else { "" };
    let _ = write!(page, "<p>{about}{} would be denied</p><dl>", of(limit.ids_denied, limit.ids, "id"));
    row(page, "Numbers", numbers_text(limit));
    row(page, "Denied", of(limit.denied, limit.requests, "request"));
    if limit.is_enforced && limit.denied_in_shadow > 0 {
        row(page, "In shadow", format!("{} of them", number_text(limit.denied_in_shadow)));
    }
    if let Some(delays) = &limit.delays {
        row(page, "Delayed", delays_text(delays, limit.requests));
    }
    for candidate in &limit.candidates {
        row(page, "Candidate", candidate_text(candidate));
    }
    if let (Some(first), Some(last), Some((worst, denied))) = (limit.first, limit.last, limit.worst) {
        row(page, "When", format!("{} to {} UTC", instant(first), instant(last)));
        row(page, "Most at", format!("{}: {} in {}", instant(worst), number_text(denied), span(width)));
    }
    if let Some(load) = &limit.load {
        row(page, "Load", load_text(load));
    }
    match &limit.suggestion {
        None => {}
        Some(Err(reason)) => row(page, "Suggestion", format!("none: {reason}")),
        Some(Ok(suggestion)) => row(page, "Suggestion", suggestion_text(suggestion, goal)),
    }
    page.push_str("</dl>");
}

fn suggestion_text(suggestion: &Suggestion, goal: &Goal) -> String {
    let shares = [(goal.requests, "requests"), (goal.ids, "ids")];
    let shares = shares.iter().filter_map(|(share, what)| Some(format!("{} of {what}", share_text((*share)?))));
    let found = |what: &str, found: &Option<Found>| {
        let Found { number, denied, ids_denied } = (*found)?;
        let [number, denied, ids] = [number, denied, ids_denied].map(number_text);
        Some(format!("{what} {number} denies {denied} requests of {ids} ids"))
    };
    let found: Vec<String> = [found("a burst of", &suggestion.burst), found("a burst and count of", &suggestion.both)]
        .into_iter()
        .flatten()
        .collect();
    let found = if found.is_empty() { "no numbers do".to_owned() } else { joined(found, "; ") };
    format!("to deny at most {}: {found}", joined(shares, " and "))
}

/// Writes what a limit would deny with other numbers. Those of the first of two rules `files` are drawn
/// over those of the other.
fn curves(page: &mut String, report: &Report, limit: &LimitReport, files: Option<[&str; 2]>) {
    let [own, other_file] = files.unwrap_or_default();
    match &limit.curves {
        None => {}
        Some(Err(why)) => {
            let _ = write!(page, "<p class=\"muted\">No curve: {why}</p>");
        }
        Some(Ok(curves)) => {
            let is_here = report.side.limits.iter().any(|here| std::ptr::eq(here, limit));
            let mut others = report.other.iter().filter(|_| is_here).flat_map(|other| &other.limits);
            let other = others.find(|other| other.name == limit.name).and_then(|other| other.curves.as_ref());
            let here = Named { file: own, curves };
            let there = other.and_then(|there| there.as_ref().ok()).map(|curves| Named { file: other_file, curves });
            curves::html(page, &limit.name, &here, there.as_ref());
        }
    }
}

/// Writes the ids that a limit denies most, and what is known of them.
fn most_denied(page: &mut String, limit: &LimitReport, (names, customers): (&Names, &Customers)) {
    if limit.most_denied.is_empty() {
        return;
    }
    let has_facts = limit.impact.is_some();
    page.push_str("<table><thead><tr><th scope=\"col\">Ids most denied</th><th scope=\"col\">Requests denied</th>");
    page.push_str(if has_facts { "<th scope=\"col\">Of</th></tr></thead><tbody>" } else { "</tr></thead><tbody>" });
    for id in &limit.most_denied {
        let _ = write!(page, "<tr><td>{}</td><td>{}</td>", Text(&names.name(&id.id)), number_text(id.denied));
        if has_facts {
            let facts = impact::facts_text(limit, id, customers).unwrap_or_default();
            let _ = write!(page, "<td>{}</td>", Text(&facts));
        }
        page.push_str("</tr>");
    }
    page.push_str("</tbody></table>");
    let kinds: Vec<_> = limit.impact.iter().flat_map(|impact| impact::breakdown_text(impact, names)).collect();
    if !kinds.is_empty() {
        page.push_str("<dl class=\"kinds\">");
        for (kind, values) in kinds {
            row(page, &format!("Denied {kind}"), values);
        }
        page.push_str("</dl>");
    }
}

fn compare(page: &mut String, report: &Report, comparison: &Comparison, names: &Names, files: &Files) {
    let Files { here, there } = files;
    page.push_str("<section class=\"panel\"><h2>Side by side</h2><dl>");
    row(page, "Denied by both", number_text(comparison.both));
    row(page, &format!("Only by {here}"), number_text(comparison.only_here));
    row(page, &format!("Only by {there}"), number_text(comparison.only_there));
    page.push_str("</dl>");
    if let Some(other) = &report.other {
        let (ours, theirs) = (&report.side, other);
        let series = [&ours.series, &theirs.series];
        page.push_str(&denied_over_time(series, [0, 0], "All limits", [here, there]));
        for (column, limit) in (1..).zip(&ours.limits) {
            let Some(place) = theirs.limits.iter().position(|other| other.name == limit.name) else { continue };
            let drawn = denied_over_time(series, [column, place + 1], &limit.name, [here, there]);
            if !drawn.is_empty() {
                let _ = write!(page, "<h4>{}</h4>{drawn}", Text(&limit.name));
            }
        }
    }
    if !comparison.limits.is_empty() {
        page.push_str(
            "<table><thead><tr><th scope=\"col\">Limit</th><th scope=\"col\">Denied only by</th><th scope=\"col\">Requests</th>\
             <th scope=\"col\">Ids</th><th scope=\"col\">Most denied</th></tr></thead><tbody>",
        );
        for limit in &comparison.limits {
            for (file, difference) in [(here, &limit.only_here), (there, &limit.only_there)] {
                difference_row(page, &limit.name, file, difference, names);
            }
        }
        page.push_str("</tbody></table>");
    }
    page.push_str("</section>\n");
}

fn difference_row(page: &mut String, limit: &str, file: &str, difference: &Difference, names: &Names) {
    if difference.requests == 0 {
        return;
    }
    let most = joined(difference.most.iter().map(|id| names.name(&id.id)), ", ");
    let [requests, ids] = [difference.requests, difference.ids].map(number_text);
    let (limit, file, most) = (Text(limit), Text(file), Text(&most));
    let _ = write!(page, "<tr><td>{limit}</td><td>{file}</td><td>{requests}</td><td>{ids}</td><td>{most}</td></tr>");
}

fn row(page: &mut String, name: &str, value: impl AsRef<str>) {
    if !value.as_ref().is_empty() {
        let _ = write!(page, "<div><dt>{}</dt><dd>{}</dd></div>", Text(name), Text(value.as_ref()));
    }
}

/// Text in HTML, between tags or in a quoted attribute.
pub(super) struct Text<'a>(pub(super) &'a str);

impl Display for Text<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for character in self.0.chars() {
            match character {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                character => f.write_char(character)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_clients_choose_is_text() {
        let text = Text("<img src=x onerror='a(\"b\")'>&").to_string();
        assert_eq!(text, "&lt;img src=x onerror=&#39;a(&quot;b&quot;)&#39;&gt;&amp;");
    }
}
