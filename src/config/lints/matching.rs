//! `never-matches`: conditions that no request with an id can meet. `no-effect`: exclusions of what is not covered.

use std::fmt::Display;

use ipnet::IpNet;

use super::super::problem::{Place, quoted};
use super::Subject;
use crate::engine::limit::Limit;
use crate::engine::limit::identity::Fallback;
use crate::engine::limit::matching::{PartMatch, ValueTest};
use crate::engine::request::part::{Part, Source};
use crate::engine::request::path_condition::PathCondition;
use crate::engine::request::path_pattern::PathPattern;
use crate::engine::telling::coverage::{all_within, host_is_within, networks_are_within, path_is_within};
use crate::message::host_pattern::HostPattern;

/// Returns the place and the reason why a limit never charges a request.
pub(super) fn contradiction(subject: &Subject<'_>) -> Option<(Place, String)> {
    let limit = subject.limit;
    let headers = limit.conditions.parts.iter().filter(|wanted| matches!(wanted.part, Part::Header(_)));
    let mut impossible = headers
        .filter_map(|wanted| Some(format!("no request matches: the {} {}", wanted.part, impossible(&wanted.test)?)));
    let reason = impossible.next().or_else(|| excludes_everyone(limit));
    let reason = reason.or_else(|| excludes_what_it_covers(limit)).or_else(|| excludes_ids(limit))?;
    Some((subject.places.of("match"), reason))
}

/// Finds a `not` that excludes nothing: the other items of its list cover none of its values.
pub(super) fn idle_exclusion(subject: &Subject<'_>) -> Option<(Place, String)> {
    fn find<T: Display>(covered: &[T], excluded: &[T], overlaps: impl Fn(&T, &T) -> bool) -> Option<String> {
        let is_idle = |other: &&T| !covered.is_empty() && !covered.iter().any(|one| overlaps(one, other));
        excluded.iter().find(is_idle).map(T::to_string)
    }
    let limit = &subject.limit.conditions;
    let overlaps = |one: &IpNet, other: &IpNet| one.contains(other) || other.contains(one);
    let idle = find(&limit.hosts, &limit.other_hosts, HostPattern::overlaps)
        .or_else(|| find(&limit.paths, &limit.other_paths, PathCondition::overlaps))
        .or_else(|| find(&limit.networks, &limit.other_networks, overlaps))?;
    let message = format!("`not` has no effect: the limit does not cover {} anyway", quoted(&idle));
    Some((subject.places.of("match"), message))
}

/// Returns why no value passes a test.
fn impossible(test: &ValueTest) -> Option<&'static str> {
    let has_controls = |text: &str| text.bytes().any(|byte| byte.is_ascii_control() && byte != b'\t');
    match test {
        ValueTest::Value(text) | ValueTest::Prefix(text) if has_controls(text) => {
            Some("cannot have control characters")
        }
        ValueTest::OneOf(tests) => tests.iter().map(impossible).collect::<Option<Vec<_>>>()?.first().copied(),
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

/// Finds a list whose `not` excludes all that its other items cover.
fn excludes_what_it_covers(limit: &Limit) -> Option<String> {
    let limit = &limit.conditions;
    let all = [PathCondition::Pattern(PathPattern { segments: Vec::new(), is_open: true })];
    let paths = if limit.paths.is_empty() { &all } else { limit.paths.as_slice() };
    let (networks, others) = (&limit.networks, &limit.other_networks);
    let lists = [
        ("host", !limit.hosts.is_empty() && all_within(&limit.hosts, &limit.other_hosts, host_is_within)),
        ("path", all_within(paths, &limit.other_paths, path_is_within)),
        ("cidr", !networks.is_empty() && !others.is_empty() && networks_are_within(networks, others)),
    ];
    let (key, _) = lists.into_iter().find(|(_, is_empty)| *is_empty)?;
    Some(format!("no request matches: `not` in `{key}` excludes all that the limit covers"))
}

/// Finds a condition that lets only requests without an id pass.
fn excludes_ids(limit: &Limit) -> Option<String> {
    if limit.missing != Fallback::Skip {
        return None;
    }
    let lacks = |part: &&Part| limit.conditions.parts.iter().any(|wanted| excludes(wanted, part));
    let lacking = limit.by.iter().map(|by| &by.part).find(lacks)?;
    Some(format!("no request has an id: `by` needs the {lacking}, and `match` only takes requests without it"))
}

/// Returns true if requests that meet a condition have no such part.
fn excludes(condition: &PartMatch, part: &Part) -> bool {
    let is_read_from = match &condition.part {
        Part::Header(name) => part.source() == Source::Header(name.as_str().to_owned()),
        Part::Descriptor(_) => *part == condition.part,
        // A claim of a token that is not valid may have any value.
        _ => false,
    };
    is_read_from && matches!(condition.test, ValueTest::Present(false))
}
