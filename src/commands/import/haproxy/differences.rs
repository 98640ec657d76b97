//! Differences between HAProxy and a limit.

use super::super::gateway::{By, Rate};
use super::super::scope::Scope;
use super::fetch::Fetch;
use super::grammar::{Line, Moment};
use super::rules::{Denial, Track};

/// The differences between a limit and its rule.
pub(super) fn of_rule(denial: &Denial<'_>, track: &Track<'_>, limited: &Scope, rate: &Rate) -> Vec<String> {
    let is_in_flight = matches!(rate, Rate::InFlight(_));
    let counts_connections = is_in_flight && !track.line.starts_with(&["http-request"]);
    let of_action = match denial.action {
        "tarpit" if is_in_flight => Some("HAProxy holds what it denies before it answers; Weir answers at once."),
        "tarpit" => {
            Some("HAProxy holds what it denies and then answers; here requests wait until they fit, at most as long.")
        }
        "reject" | "silent-drop" => Some("HAProxy closes the connection without an answer."),
        _ => None,
    };
    let notes = [
        (track.scope != *limited).then_some(
            "HAProxy also counts requests that this rule does not deny; here only those count that it can deny.",
        ),
        counts_connections.then_some("HAProxy counts connections, also idle ones; here requests in flight count."),
        of_action,
    ];
    notes.into_iter().flatten().map(|note| denial.line.origin.note(note)).collect()
}

/// The differences between a key in a table and `by`, and whether the limit also counts requests without such a key.
pub(super) fn of_key(track: &Track<'_>, table: &Line) -> (Vec<String>, bool) {
    let fetch = Fetch::of(track.key);
    let kind = table.after("type").unwrap_or_default();
    let is_text = track.by.iter().any(|by| matches!(by, By::Header(_) | By::Query(_) | By::Cookie(..)));
    let is_address = is_text && (fetch.name == "hdr_ip" || ["ip", "ipv6"].contains(&kind));
    let most = table.after("len").unwrap_or("32");
    let last = if is_text && fetch.name == "hdr" { " of the last value in a list" } else { "" };
    let empty = if is_text { ", also of empty text" } else { "" };
    let is_cut = kind == "string" && (is_text || ["path", "base"].contains(&fetch.name));
    let notes = [
        (track.by == [By::Address(128)] && fetch.name != "src")
            .then(|| "the address is from `X-Forwarded-For`: give Weir the proxies in `--trusted-proxies`.".to_owned()),
        is_address.then(|| "HAProxy counts by the address in it, if it is one; here any text counts.".to_owned()),
        (is_text && kind == "integer")
            .then(|| "HAProxy counts by the number at its beginning; here by the whole text.".to_owned()),
        is_cut.then(|| format!("HAProxy counts by the first {most} characters{last}{empty}; here by the whole text.")),
        (is_text && fetch.converters == "lower")
            .then(|| "HAProxy counts upper and lower case together; here each spelling counts by itself.".to_owned()),
    ];
    (notes.into_iter().flatten().map(|note| track.line.origin.note(note)).collect(), is_address)
}

/// The part of a request that a rule changes.
fn change(line: &Line) -> Option<By> {
    let (_, action, rest) = line.rule()?;
    match action {
        "set-header" | "add-header" | "del-header" | "replace-header" | "replace-value" => {
            match rest.first()?.to_ascii_lowercase().as_str() {
                "host" => Some(By::Word("host")),
                name => Some(By::Header(name.to_owned())),
            }
        }
        "set-src" => Some(By::Address(128)),
        "set-method" => Some(By::Word("method")),
        "set-path" | "replace-path" | "set-pathq" | "replace-pathq" | "set-uri" | "replace-uri" | "normalize-uri" => {
            Some(By::Word("path"))
        }
        "set-query" => Some(By::Query(String::new())),
        _ => None,
    }
}

/// The rules that change what a limit reads, before HAProxy reads it.
pub(super) fn changes<'l>(
    lines: impl Iterator<Item = (Moment, &'l Line)>,
    track: &Track<'_>,
    scope: &Scope,
    until: Moment,
) -> Vec<&'l Line> {
    let in_key = |part: &By| {
        track.by.iter().any(|by| match (part, by) {
            (By::Address(_), By::Address(_)) | (By::Query(_), By::Query(_)) => true,
            (By::Header(name), By::Cookie(..)) => name == "cookie",
            _ => part == by,
        })
    };
    let in_scope = |part: &By| match part {
        By::Word("host") => !scope.hosts.is_open(),
        By::Word("path") => !scope.paths.is_open(),
        By::Word(_) => !scope.methods.is_empty(),
        By::Address(_) => !scope.networks.is_open(),
        By::Header(name) => scope.headers.iter().any(|(own, _)| own == name),
        _ => false,
    };
    let is_changed = |(moment, line): &(Moment, &Line)| {
        change(line).is_some_and(|part| *moment < track.moment && in_key(&part) || *moment < until && in_scope(&part))
    };
    lines.filter(is_changed).map(|(_, line)| line).collect()
}

/// The numbers of lines, for a comment.
pub(super) fn numbers(lines: &[&Line]) -> String {
    let numbers: Vec<String> = lines.iter().map(|line| line.origin.line.to_string()).collect();
    format!("{} {}", if numbers.len() == 1 { "line" } else { "lines" }, numbers.join(", "))
}
