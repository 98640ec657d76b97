//! What a simulation leaves out of a log, told before anything else.

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};

use serde_json::{Value, json};

use super::figures::{count, number_text, of, percent, share_text};
use crate::commands::print::{counted, joined};
use crate::engine::algorithms::micros::Micros;
use crate::engine::text::quote::WIDEST_WORD;
use crate::logs::address::last_of_list;
use crate::message::lossless;
use crate::simulation::coverage::Missing;
use crate::simulation::report::{
    Example, LeftOut, LimitLeftOut, LimitReport, MOST_UNREAD, RecordingReport, Report, SideReport, Status,
};

/// The names of limits in a sentence, at most.
const MOST_NAMES: usize = 10;

/// Tells which share of the log was decided, then what the verdict does not cover: a sentence for each reason.
pub(super) fn sentences(report: &Report, shows_ids: bool) -> Vec<String> {
    let (decided, lines) = report.coverage();
    let mut told = vec![format!("{} decided", of(decided, lines, "line"))];
    told.extend(blurred(report).map(str::to_owned));
    told.extend(report.interrupted.iter().map(|reason| format!("not read to the end: {reason}")));
    if !report.error_logs.is_empty() {
        let names: Vec<&str> = report.error_logs.iter().map(String::as_str).collect();
        told.push(format!("not read, because of names of error logs: {}", listed(&names)));
    }
    told.extend(not_simulated(report));
    let reasons = LeftOut::ALL.into_iter().filter(|reason| *reason != LeftOut::NoRequest);
    told.extend(reasons.filter_map(|reason| sentence(report, reason, shows_ids)));
    told.extend(report.recordings.iter().flat_map(|recording| [lacking(recording), miscounted(recording)]).flatten());
    told.extend(proxied(report));
    if report.has_one_private_client {
        told.push(
            "every request comes from one private address: if that is a proxy, log the address that it names, such as \
             X-Forwarded-For, and give --trusted-proxies"
                .to_owned(),
        );
    }
    told.extend(of_limits(report));
    told.extend(new_members(report));
    if report.undecided > 0 {
        let requests = count(report.undecided, "request");
        told.push(format!("{requests} could not be decided, because two limits have the same bucket"));
    }
    if report.settled_early > 0 {
        let costs = count(report.settled_early, "cost");
        told.push(format!(
            "{costs} that responses report were charged before these ended, because more than --max-keys were in flight"
        ));
    }
    if report.late > 0 {
        let late = of(report.late, report.requests, "request");
        told.push(format!("{late} came too far out of order and were decided later than they arrived"));
    }
    told
}

/// Tells what the instants of the log do not tell; `None` if bursts are as they were.
fn blurred(report: &Report) -> Option<&'static str> {
    let (larger, smaller) = (report.precision >= Micros(1_000_000), !report.is_arrival);
    match (larger, smaller) {
        (false, false) => None,
        (true, false) => Some("the log has whole seconds: bursts within a second look larger than they were"),
        (false, true) => Some("the log has only the ends of requests: bursts look smaller than they were"),
        (true, true) => Some(
            "the log has only ends, in whole seconds: brief bursts look larger than they were, longer ones smaller",
        ),
    }
}

/// Reports what is missing from a recording; `None` if nothing is.
fn lacking(recording: &RecordingReport) -> Option<String> {
    let file = &recording.file;
    let Some(end) = recording.end else {
        return Some(format!(
            "{file} has no last line: the recording was cut off, and nothing says what else is missing"
        ));
    };
    let parts = [
        (end.dropped, "request", "that came faster than they could be written"),
        (end.outside_the_share, "request", "of clients outside its share"),
        (end.without_a_request, "call", "that name their limits"),
    ];
    let parts = parts.iter().filter(|(number, ..)| *number > 0);
    let parts: Vec<String> = parts.map(|(number, what, which)| format!("{} {which}", count(*number, what))).collect();
    (!parts.is_empty()).then(|| format!("{file} lacks {}", joined(parts, ", ")))
}

/// Names the limits that were not simulated at all. Those that need the same share a sentence.
fn not_simulated(report: &Report) -> Vec<String> {
    let mut told: Vec<(&[Missing], Vec<&str>)> = Vec::new();
    for limit in report.sides().flat_map(|side| &side.limits) {
        let Status::NotCovered(missing) = &limit.status else { continue };
        match told.iter_mut().find(|(other, _)| other == missing) {
            Some((_, names)) if names.contains(&limit.name.as_str()) => {}
            Some((_, names)) => names.push(&limit.name),
            None => told.push((missing, vec![&limit.name])),
        }
    }
    let sentence = |(missing, names): (&[Missing], Vec<&str>)| {
        let are = if names.len() == 1 { "is" } else { "are" };
        format!("{} {are} not simulated: the log lacks {}", listed(&names), joined(missing, ", "))
    };
    told.into_iter().map(sentence).collect()
}

/// Tells which limits say nothing of which lines. Limits that lack the same share a sentence.
fn of_limits(report: &Report) -> Vec<String> {
    let mut told: Vec<(&LimitLeftOut, Vec<&str>)> = Vec::new();
    for limit in report.sides().flat_map(|side| &side.limits) {
        for left in &limit.left_out {
            match told.iter_mut().find(|(other, _)| *other == left) {
                Some((_, names)) if names.contains(&limit.name.as_str()) => {}
                Some((_, names)) => names.push(&limit.name),
                None => told.push((left, vec![&limit.name])),
            }
        }
    }
    let sentence = |(left, names): (&LimitLeftOut, Vec<&str>)| {
        let (name, lines) = (listed(&names), of(left.lines, report.lines.lines, "line"));
        let (file, line) = (&left.file, left.line);
        let all = if names.len() == 1 { "leaves" } else { "leave" };
        format!("{name} {all} out {lines}, which lack {}, such as {file}:{line}", left.lacks)
    };
    told.into_iter().map(sentence).collect()
}

/// The first of these names, and how many more there are.
fn listed(names: &[&str]) -> String {
    let more = names.len().saturating_sub(MOST_NAMES);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", joined(names.iter().take(MOST_NAMES), ", "))
}

/// Reports a recording that has not the lines that it says; `None` if it has.
fn miscounted(recording: &RecordingReport) -> Option<String> {
    let (file, lines) = (&recording.file, count(recording.lines, "request"));
    let kept = recording.end.and_then(|end| end.kept).filter(|_| recording.is_miscounted())?;
    let kept = number_text(kept);
    Some(format!("{file} has {lines}, but its last line counts {kept}: lines were removed or added"))
}

/// Reports lines with members that the first lines lack and that are therefore ignored.
fn new_members(report: &Report) -> Option<String> {
    let first = report.new_member.as_ref()?;
    let lines = of(report.new_members, report.lines.lines, "line");
    let (file, line, name) = (&first.file, first.line, visible(&first.found));
    Some(format!(
        "{lines} have members that the first lines lack, such as `{name}` in {file}:{line}; they are ignored: start the log with such a line"
    ))
}

/// Reports requests that a limit had already denied; `None` without such requests.
pub(super) fn denied_before(report: &Report) -> Option<String> {
    let denied = of(report.answered_429, report.requests, "request");
    (report.answered_429 > 0)
        .then(|| format!("{denied} were already answered with 429 and count like the others: a limit was in force"))
}

/// Reports that most requests seem to come from proxies that are not trusted.
fn proxied(report: &Report) -> Option<String> {
    let proxied = of(report.maybe_proxied, report.requests, "request");
    (report.maybe_proxied * 2 > report.requests).then(|| {
        format!(
            "{proxied} come from private addresses and name other clients: if these are proxies, give --trusted-proxies"
        )
    })
}

/// What one rules file would have denied, of what was decided.
pub(super) fn verdict(report: &Report, side: &SideReport) -> String {
    let (denied, requests) = (side.denied, report.requests);
    if requests == 0 {
        return "no request could be decided".to_owned();
    }
    if !side.decides() {
        return format!("no limit decided any of the {}", count(requests, "request"));
    }
    if report.is_whole() {
        return format!("{} would be denied", of(denied, requests, "request"));
    }
    let requests_read = count(requests, "request");
    format!(
        "of the {requests_read} that were read, {} ({}) would be denied",
        number_text(denied),
        percent(denied, requests)
    )
}

/// Tells that ids share a bucket; `None` if none do.
pub(super) fn overflowed(report: &Report) -> Option<String> {
    let charges = count(report.overflowed, "charge");
    (report.overflowed > 0)
        .then(|| format!("{charges} went to a bucket that ids share, because there are more ids than --max-keys"))
}

/// Names the limits that could have decided requests, and decided none; `None` if each decided some.
pub(super) fn idle(report: &Report) -> Option<String> {
    let side = &report.side;
    let idle = side.active().filter(|limit| limit.status == Status::Covered);
    let idle = idle.filter(|limit| limit.requests == 0 && report.requests > 0);
    let idle: Vec<&str> = idle.map(|limit| limit.name.as_str()).collect();
    let limits = counted(side.active().count(), "limit");
    (!idle.is_empty()).then(|| format!("{} of {limits} decided no request: {}", idle.len(), listed(&idle)))
}

/// Why a limit that the log covers decided nothing.
pub(super) fn unmet(report: &Report, limit: &LimitReport) -> String {
    if report.requests == 0 {
        return "decided no request".to_owned();
    }
    if !limit.left_out.is_empty() {
        let lacks = joined(limit.left_out.iter().map(|left| &left.lacks), ", ");
        return format!("decided no request: lines lack {lacks}");
    }
    let reads = joined(&limit.reads, ", ");
    match limit.exempt {
        0 if reads.is_empty() => "no request of this log meets it".to_owned(),
        0 => format!("no request of this log meets it, which reads {reads}"),
        exempt => format!("each request of this log that meets it is exempt ({})", count(exempt, "request")),
    }
}

/// Tells of the lines that were left out for one reason; `None` if there are none.
pub(super) fn sentence(report: &Report, reason: LeftOut, shows_ids: bool) -> Option<String> {
    let lines = report.lines.left_out(reason);
    let example = report.examples.iter().find(|example| example.reason == reason).filter(|_| lines > 0)?;
    let lines = of(lines, report.lines.lines, "line");
    let what = match reason {
        LeftOut::NoClient => "are left out: no client's address can be read",
        LeftOut::Unreadable => "are left out: they do not fit the format",
        LeftOut::Rejected => "are left out: the requests would get 400 before any limit",
        LeftOut::InvalidEntry => "are left out: their requests are rejected, because the entry of a queue is too large",
        LeftOut::CarriesLimits => "are left out: their calls carry limits, which a recording does not keep",
        LeftOut::NoRequest => "tell of no request",
    };
    let hint = match reason {
        LeftOut::NoClient if is_listed(report) => "; of a list, --trusted-proxies tells which address is the client's",
        _ => "",
    };
    Some(format!("{lines} {what}, such as {}{hint}", place(example, shows_ids)))
}

/// Returns true if lines without a client have a list of addresses in its place.
fn is_listed(report: &Report) -> bool {
    let mut unread = report.examples.iter().filter(|example| example.reason == LeftOut::NoClient);
    unread.any(|example| last_of_list(example.found.as_bytes()).is_some())
}

/// Writes the examples of lines that were not read, for who has the log.
pub(super) fn write_examples(report: &Report, shows_ids: bool, err: &mut dyn Write) -> io::Result<()> {
    for example in &report.examples {
        let what = match example.reason {
            LeftOut::NoClient => "no client's address",
            LeftOut::Unreadable => "unreadable line",
            _ => continue,
        };
        let (file, line) = (&example.file, example.line);
        writeln!(err, "{file}:{line}: {what}: {}", found(example, shows_ids).unwrap_or_default())?;
    }
    for reason in &report.interrupted {
        writeln!(err, "error: {reason}")?;
    }
    Ok(())
}

/// Why the coverage is less than what is required, in millionths; `None` if it is not.
pub(super) fn too_little(report: &Report, required: u64) -> Option<String> {
    let (decided, lines) = report.coverage();
    let is_enough = u128::from(decided) * 1_000_000 >= u128::from(lines) * u128::from(required);
    let decided = of(decided, lines, "line");
    (!is_enough).then(|| format!("{decided} decided, less than --require-coverage {}", share_text(required)))
}

/// Why the report cannot be relied on; `None` if it can.
pub(super) fn doubt(report: &Report) -> Option<String> {
    let way_out = "--allow-unread succeeds all the same";
    if !report.interrupted.is_empty() {
        return Some(format!("a log was not read to its end; {way_out}"));
    }
    if report.is_too_much_unread() {
        let flag = if is_listed(report) { "--trusted-proxies" } else { "their format with --log-format" };
        return Some(format!("more than {MOST_UNREAD}% of the lines could not be read; give {flag}; {way_out}"));
    }
    if report.late * 100 > report.requests * MOST_UNREAD {
        return Some(format!("more than {MOST_UNREAD}% of the requests came too far out of order; {way_out}"));
    }
    if !report.side.decides() {
        return Some(format!("no limit decided a request of the log; {way_out}"));
    }
    let limit = report.too_much_left_out()?;
    Some(format!("{} leaves out too many lines, which lack what it reads; {way_out}", limit.name))
}

pub(super) fn json(report: &Report, shows_ids: bool) -> Value {
    let reasons = LeftOut::ALL.into_iter().filter(|reason| report.lines.left_out(*reason) > 0);
    let told = reasons.map(|reason| {
        let example = report.examples.iter().find(|example| example.reason == reason);
        json!({
            "reason": name(reason),
            "lines": report.lines.left_out(reason),
            "file": example.map(|example| &example.file),
            "line": example.map(|example| example.line),
            "found": example.and_then(|example| found(example, shows_ids)),
        })
    });
    told.collect()
}

const fn name(reason: LeftOut) -> &'static str {
    match reason {
        LeftOut::NoClient => "no_client",
        LeftOut::Unreadable => "unreadable",
        LeftOut::Rejected => "rejected",
        LeftOut::InvalidEntry => "invalid_entry",
        LeftOut::CarriesLimits => "carries_limits",
        LeftOut::NoRequest => "no_request",
    }
}

/// The place of a line, and what was found there.
fn place(example: &Example, shows_ids: bool) -> String {
    let place = format!("{}:{}", example.file, example.line);
    found(example, shows_ids).map_or(place.clone(), |found| format!("{place}: {found}"))
}

fn found(example: &Example, shows_ids: bool) -> Option<String> {
    match example.reason {
        LeftOut::NoClient if matches!(&*example.found, "" | "-") => Some("found nothing".to_owned()),
        LeftOut::NoClient if shows_ids => Some(format!("found `{}`", visible(&example.found))),
        LeftOut::NoClient => Some(format!("found `{}`", visible(&without_ids(&example.found)))),
        LeftOut::Unreadable => Some(example.found.clone()),
        LeftOut::Rejected | LeftOut::InvalidEntry | LeftOut::CarriesLimits | LeftOut::NoRequest => None,
    }
}

/// At most [`WIDEST_WORD`] characters, with escapes for those that cannot be seen.
fn visible(text: &str) -> String {
    let text = lossless::shown(text);
    let mut shown = String::new();
    for character in text.chars().take(WIDEST_WORD) {
        if character == '\u{feff}' {
            shown.extend(character.escape_debug());
        } else {
            shown.push(character);
        }
    }
    if text.chars().nth(WIDEST_WORD).is_some() {
        shown.push_str("...");
    }
    shown
}

/// The text with stand-ins for what may be a client: addresses, and names of hosts.
fn without_ids(text: &str) -> String {
    let is_in_word = |character: char| character.is_alphanumeric() || ".:-_[]".contains(character);
    if text.chars().all(is_in_word) && !text.ends_with(':') && !is_address(text) {
        return "(name)".to_owned();
    }
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let word = rest.find(|character| !is_in_word(character)).unwrap_or(rest.len());
        let (word, behind) = rest.split_at(word);
        if is_address(word) {
            shown.push_str("(address)");
        } else {
            let parts: Vec<&str> = word.split(':').map(part_without_id).collect();
            shown.push_str(&parts.join(":"));
        }
        let between = behind.find(is_in_word).unwrap_or(behind.len());
        shown.push_str(&behind[..between]);
        rest = &behind[between..];
    }
    shown
}

fn part_without_id(part: &str) -> &str {
    let is_name = part.rsplit_once('.').is_some_and(|(_, last)| {
        let is_domain = last.len() > 1 && last.bytes().all(|byte| byte.is_ascii_alphabetic());
        is_domain || part.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
    });
    match () {
        () if is_address(part) => "(address)",
        () if is_name => "(name)",
        () => part,
    }
}

/// With or without a port and brackets.
fn is_address(word: &str) -> bool {
    let bare = word.strip_prefix('[').and_then(|word| word.strip_suffix(']')).unwrap_or(word);
    bare.parse::<IpAddr>().is_ok() || word.parse::<SocketAddr>().is_ok()
}
