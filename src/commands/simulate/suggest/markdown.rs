//! The suggestions as Markdown, for a pull request.

use std::fmt::Write;

use super::super::figures::{instant, number_text, of, percent, share_text};
use super::super::left_out;
use super::proposal::Proposal;
use super::{Refused, Suggested};
use crate::commands::print::joined;
use crate::engine::algorithms::describe::Span;
use crate::simulation::report::LimitReport;
use crate::simulation::suggestion::Goal;

pub(super) fn render(suggested: &Suggested<'_>, logs: &str, rules: &str) -> String {
    let Suggested { goal, before, after, proposals, refused, tests } = suggested;
    let mut text = format!("# Limits of {rules} from {logs}\n\n");
    for told in left_out::sentences(before, false) {
        let _ = writeln!(text, "- {told}");
    }
    if before.overflowed > 0 {
        text.push_str("- there are more ids than --max-keys, so that some share a bucket and are denied more\n");
    }
    if let Some((first, last)) = before.span {
        let _ = writeln!(text, "- the requests are from {} to {} UTC", instant(first), instant(last));
    }
    if proposals.is_empty() {
        text.push_str("\nNo limit gets other numbers.\n");
    } else {
        let _ = writeln!(
            text,
            "\nWith all of the numbers below in force, each of these limits denies at most {}.",
            shares(goal)
        );
    }
    for (proposal, tests) in proposals.iter().zip(tests) {
        let place = proposal.limit as usize;
        if let (Some(before), Some(after)) = (before.side.limits.get(place), after.side.limits.get(place)) {
            limit(&mut text, proposal, before, after, tests);
        }
    }
    if !refused.is_empty() {
        text.push_str("\n## Without a suggestion\n\n");
        for Refused { name, why, .. } in *refused {
            let _ = writeln!(text, "- `{name}`: {why}");
        }
    }
    changed(&mut text, suggested);
    if !proposals.is_empty() {
        text.push_str(NEXT);
    }
    text
}

/// Names the limits that deny more or less without a suggestion, because of the others' numbers.
fn changed(text: &mut String, suggested: &Suggested<'_>) {
    let Suggested { before, after, proposals, .. } = suggested;
    let pairs = (0..).zip(before.side.limits.iter().zip(&after.side.limits));
    let others = pairs.filter(|(place, _)| proposals.iter().all(|proposal| proposal.limit != *place));
    let mut changed = others.filter(|(_, (before, after))| before.denied != after.denied).peekable();
    if changed.peek().is_some() {
        text.push_str(
            "\n## Limits that the suggestions change\n\nThey keep their numbers, but get other requests:\n\n",
        );
    }
    for (_, (before, after)) in changed {
        let [now, then] = [before, after].map(|found| of(found.denied, found.requests, "request"));
        let _ = writeln!(text, "- `{}` denies {now} now, and {then} with the suggestions", before.name);
    }
}

const NEXT: &str = "
## Before the numbers are enforced

- [ ] Candidates and limits in shadow have seen live traffic for as long as the traffic repeats itself, at least a day.
- [ ] The share of `denied` in `weir_candidate_decisions_total` is about what this document says.
- [ ] Whom the numbers deny is known: `weir simulate --impact` lists the ids.
";

fn limit(
    text: &mut String,
    proposal: &Proposal,
    before: &LimitReport,
    after: &LimitReport,
    tests: &Result<String, &'static str>,
) {
    let Proposal { number, numbers, peaks, .. } = proposal;
    let period = Span(numbers.period());
    let _ = writeln!(text, "\n## {}: {number} per {period}\n", before.name);
    text.push_str("| | now | suggested |\n|---|---|---|\n");
    let _ = writeln!(text, "| numbers | {} | {} |", before.numbers, after.numbers);
    let requests = [before, after].map(|found| of(found.denied, found.requests, "request"));
    let _ = writeln!(text, "| requests denied | {} | {} |", requests[0], requests[1]);
    let ids = [before, after].map(|found| of(found.ids_denied, found.ids, "id"));
    let _ = writeln!(text, "| ids denied | {} | {} |", ids[0], ids[1]);
    let peaks = peaks.named().map(|(name, peak)| format!("{name} {}", number_text(peak)));
    let _ = writeln!(text, "\nThe most that an id takes in {period}: {}.", joined(peaks, ", "));
    if let (Some(id), true) = (after.most_denied.first(), after.denied > 0) {
        let share = percent(id.denied, after.denied);
        let _ = writeln!(text, "Of the requests that would be denied, {share} are of one id.");
    }
    let numbers = format!("count: {number}, period: {period}");
    if before.is_enforced {
        let name = &before.name;
        let _ = writeln!(
            text,
            "\nBeside the limit, while live traffic is compared; this denies nothing:\n\n```yaml\n  {name}:\n    candidate: {{ {numbers} \
             }}\n```\n"
        );
    } else {
        let _ = writeln!(
            text,
            "\nThe limit is in shadow and denies nothing, so these may be its own numbers: `{numbers}`.\n"
        );
    }
    match tests {
        Ok(tests) => {
            let _ = writeln!(
                text,
                "Tests for the day on which these become the limit's own numbers:\n\n```yaml\ntests:\n{tests}```"
            );
        }
        Err(why) => {
            let _ = writeln!(text, "No test is suggested: {why}.");
        }
    }
}

fn shares(goal: &Goal) -> String {
    let shares = [(goal.requests, "requests"), (goal.ids, "ids")];
    let shares = shares.iter().filter_map(|(share, what)| Some(format!("{} of {what}", share_text((*share)?))));
    joined(shares, " and ")
}
