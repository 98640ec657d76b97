//! Why a limit does not apply to a request, in words.

use std::fmt::Display;

use ipnet::IpNet;

use crate::engine::limit::Limit;
use crate::engine::limit::identity::Lacking;
use crate::engine::limit::matching::{Match, Mismatch, ValueTest};
use crate::engine::request::Request;
use crate::engine::request::part::{Part, PartError};
use crate::engine::telling::explanation::Explanation;
use crate::engine::text::quote::joined;
use crate::message::lossless::shown;

impl Explanation {
    /// Returns why the limit does not apply; `None` if it does.
    pub fn reason(&self, limit: &Limit, request: &Request<'_>) -> Option<String> {
        Some(match self {
            Self::Off => "mode is off".to_owned(),
            Self::Unmatched(mismatch) => unmatched(&limit.conditions, request, *mismatch),
            Self::Banned(_) => "the limit does not cover the request, but its ban of the id does".to_owned(),
            Self::Exempt(by) => format!("the request is exempt, by {by}"),
            Self::Outranked => "a rule for this value or an earlier pattern takes precedence".to_owned(),
            Self::Undescribed => "the limit matches neither a domain nor a descriptor".to_owned(),
            Self::NoId(error) => {
                let part = lacking(limit, error.lacking);
                match error.reason {
                    PartError::Missing => format!("the request has no {part}"),
                    PartError::Malformed => {
                        format!("the {part} is malformed, and the limit has `malformed: skip`")
                    }
                }
            }
            Self::Applies { .. } => return None,
        })
    }
}

fn unmatched(conditions: &Match, request: &Request<'_>, mismatch: Mismatch) -> String {
    match mismatch {
        Mismatch::Method => {
            format!("the method is {}, the limit covers {}", request.method, conditions.methods.join(", "))
        }
        Mismatch::Host => {
            let excluded = conditions.other_hosts.iter().find(|host| host.matches(request.host));
            format!("the host is `{}`, {}", request.host, covered(&conditions.hosts, excluded))
        }
        Mismatch::Path => {
            let path = conditions.path_reading.of(request.path);
            let excluded = conditions.other_paths.iter().find(|condition| condition.matches(&path));
            format!("the path is {path}, {}", covered(&conditions.paths, excluded))
        }
        Mismatch::Domain => {
            let domain = request.domain.map_or_else(|| "none".to_owned(), |domain| format!("`{domain}`"));
            format!("the domain is {domain}, the limit covers {}", conditions.domains.join(", "))
        }
        Mismatch::Part(place) => part_unmatched(conditions, request, place),
        Mismatch::Network => {
            let excludes = |network: &&IpNet| request.client.is_some_and(|client| network.contains(&client));
            let excluded = conditions.other_networks.iter().find(excludes);
            let client = request.client.map_or_else(|| "unknown".to_owned(), |client| client.to_string());
            format!("the client is {client}, {}", covered(&conditions.networks, excluded))
        }
    }
}

/// The items that a limit covers, or the one that excludes the request.
fn covered<T: Display>(named: &[T], excluded: Option<&T>) -> String {
    match excluded {
        None => format!("the limit covers {}", joined(named, ", ")),
        Some(excluded) => format!("the limit does not cover {excluded}"),
    }
}

/// The condition, to follow "the limit requires it".
pub fn wanted_value(test: &ValueTest) -> String {
    match test {
        ValueTest::Present(true) => "to be present".to_owned(),
        ValueTest::Present(false) => "to be absent".to_owned(),
        ValueTest::Value(value) => format!("to be `{value}`"),
        ValueTest::Prefix(prefix) => format!("to start with `{prefix}`"),
        ValueTest::Regex(regex) => format!("to match `{regex}`"),
        ValueTest::Glob(glob) => format!("to match `{glob}`"),
        ValueTest::OneOf(tests) => joined(tests.iter().map(wanted_value), " or "),
        ValueTest::Not(excluded) => {
            let presence = if excluded.is_needed { "to be present and " } else { "" };
            let tests = excluded.tests.iter().map(|test| format!("not {}", wanted_value(test)));
            format!("{presence}{}", joined(tests, " and "))
        }
    }
}

fn part_unmatched(conditions: &Match, request: &Request<'_>, place: usize) -> String {
    let given = request.descriptor.get(place);
    let wanted = match (conditions.parts.get(place), given) {
        (None, None) => return String::new(),
        (None, Some(entry)) => return format!("the descriptor continues with `{}` after entry {place}", entry.key),
        (Some(wanted), _) => wanted,
    };
    match (&wanted.part, given) {
        (Part::Entry { .. }, None) => {
            let (given, wanted) = (request.descriptor.len(), conditions.parts.len());
            return format!("the descriptor has {given} entries, the limit requires {wanted}");
        }
        (Part::Entry { key, .. }, Some(entry)) if *key != entry.key => {
            return format!("entry {} is `{}`, the limit requires `{key}`", place + 1, entry.key);
        }
        _ => {}
    }
    let mut found = Vec::new();
    wanted.part.any_value(request, |value| {
        found.push(format!("`{}`", shown(value)));
        false
    });
    let found = if found.is_empty() { "absent".to_owned() } else { found.join(" and ") };
    let part = wanted.part.entry_key().map_or_else(|| wanted.part.to_string(), |key| format!("entry `{key}`"));
    format!("the {part} is {found}, the limit requires it {}", wanted_value(&wanted.test))
}

fn lacking(limit: &Limit, lacking: Lacking) -> String {
    match lacking {
        Lacking::Id(place) => limit.by.get(place).map_or_else(String::new, |part| part.part.to_string()),
        Lacking::Condition(place) => {
            limit.conditions.parts.get(place).map_or_else(String::new, |wanted| wanted.part.to_string())
        }
        Lacking::Cost => "cost".to_owned(),
    }
}
