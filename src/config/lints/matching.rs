//! `never-matches`: conditions that no request with an id can meet.

use ipnet::IpNet;

use super::super::problem::{Place, quoted};
use super::Subject;
use crate::engine::limit::Limit;
use crate::engine::limit::identity::Fallback;
use crate::engine::limit::matching::{DescriptorMatch, Match, ValueTest};
use crate::engine::request::part::Source;

/// Returns the place and the reason why a limit never charges a request.
pub(super) fn contradiction(subject: &Subject<'_>) -> Option<(Place, String)> {
    let limit = subject.limit;
    let impossible = limit.conditions.headers.iter().find_map(|header| {
        let why = impossible(&header.test)?;
        Some(format!("no request matches: the header {} {why}", quoted(header.name.as_str())))
    });
    let reason = impossible.or_else(|| excludes_everyone(limit)).or_else(|| excludes_ids(limit))?;
    Some((subject.places.of("match"), reason))
}

/// Returns why no value passes a test.
fn impossible(test: &ValueTest) -> Option<&'static str> {
    let has_controls = |text: &str| text.bytes().any(|byte| byte.is_ascii_control() && byte != b'\t');
    match test {
        ValueTest::Value(text) | ValueTest::Prefix(text) if has_controls(text) => {
            Some("cannot have control characters")
        }
        ValueTest::Not(excluded) if excluded.is_needed => {
            let takes_all = |test: &ValueTest| match test {
                ValueTest::Prefix(prefix) => prefix.is_empty(),
                ValueTest::Regex(regex) => matches!(regex.as_str(), "" | ".*" | "^.*$" | "^"),
                _ => false,
            };
            excluded.tests.iter().any(takes_all).then_some("must be present, but all its values are excluded")
        }
        _ => None,
    }
}

/// The networks of all addresses.
fn excludes_everyone(limit: &Limit) -> Option<String> {
    let excludes = |wanted: &str| {
        let is_whole = |network: &IpNet| network.prefix_len() == 0 && network.to_string() == wanted;
        limit.conditions.other_networks.iter().any(is_whole)
    };
    let is_everyone = limit.is_by_client() && excludes("0.0.0.0/0") && excludes("::/0");
    (is_everyone && limit.missing == Fallback::Skip)
        .then(|| "no client matches: `cidr` excludes all addresses".to_owned())
}

/// Finds a condition that lets only requests without an id pass.
fn excludes_ids(limit: &Limit) -> Option<String> {
    if limit.missing != Fallback::Skip {
        return None;
    }
    let conditions = &limit.conditions;
    let lacking = limit.by.iter().map(|by| &by.part).find(|part| match part.source() {
        Source::Header(name) => lacks_header(conditions, &name),
        Source::Descriptor => part.name().is_some_and(|key| lacks_entry(conditions, key)),
        _ => false,
    })?;
    Some(format!("no request has an id: `by` needs the {lacking}, and `match` only takes requests without it"))
}

fn lacks_header(conditions: &Match, name: &str) -> bool {
    conditions.headers.iter().any(|header| header.name == name && matches!(header.test, ValueTest::Present(false)))
}

fn lacks_entry(conditions: &Match, key: &str) -> bool {
    let DescriptorMatch::Each(entries) = &conditions.descriptor else { return false };
    entries.iter().any(|entry| entry.key == key && matches!(entry.test, ValueTest::Present(false)))
}
