//! Why a limit does not apply to a request, in words.

use std::fmt::Display;

use crate::engine::limit::Limit;
use crate::engine::limit::identity::Lacking;
use crate::engine::limit::matching::{DescriptorMatch, Match, Mismatch, ValueTest};
use crate::engine::request::Request;
use crate::engine::request::part::PartError;
use crate::engine::telling::explanation::Explanation;
use crate::engine::text::quote::joined;
use crate::message::lossless::shown;

impl Explanation {
    /// Returns why the limit does not apply; `None` if it does.
    pub fn reason(&self, limit: &Limit, request: &Request<'_>) -> Option<String> {
        Some(match self {
            Self::Off => "mode is off".to_owned(),
            Self::Unmatched(mismatch) => unmatched(&limit.conditions, request, *mismatch),
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
            format!("the host is `{}`, {}", request.host, covered(&conditions.hosts, &conditions.other_hosts))
        }
        Mismatch::Path => {
            let path = conditions.path_reading.of(request.path);
            format!("the path is {path}, the limit covers {}", joined(&conditions.paths, ", "))
        }
        Mismatch::Header(place) => conditions.headers.get(place).map_or_else(String::new, |header| {
            let found = values(request.lines(header.name.as_str()));
            format!("the header `{}` is {found}, the limit requires it {}", header.name, wanted_value(&header.test))
        }),
        Mismatch::Claim(place) => conditions.claims.get(place).map_or_else(String::new, |wanted| {
            let found = values(wanted.claim.texts(request.claims));
            format!("the claim `{}` is {found}, the limit requires it {}", wanted.claim, wanted_value(&wanted.test))
        }),
        Mismatch::Domain => {
            let domain = request.domain.map_or_else(|| "none".to_owned(), |domain| format!("`{domain}`"));
            format!("the domain is {domain}, the limit covers {}", conditions.domains.join(", "))
        }
        Mismatch::Entry(place) => entry_unmatched(&conditions.descriptor, request, place),
        Mismatch::Network => {
            let client = request.client.map_or_else(|| "unknown".to_owned(), |client| client.to_string());
            format!("the client is {client}, {}", covered(&conditions.networks, &conditions.other_networks))
        }
    }
}

/// The hosts or networks that a limit covers, or those that it excludes.
fn covered<T: Display>(named: &[T], excluded: &[T]) -> String {
    match excluded {
        [] => format!("the limit covers {}", joined(named, ", ")),
        excluded => format!("the limit does not cover {}", joined(excluded, ", ")),
    }
}

/// All values under one name.
fn values(found: impl IntoIterator<Item: AsRef<str>>) -> String {
    let found = joined(found.into_iter().map(|value| format!("`{}`", shown(value.as_ref()))), " and ");
    if found.is_empty() { "absent".to_owned() } else { found }
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
        ValueTest::Not(excluded) => {
            let presence = if excluded.is_needed { "to be present and " } else { "" };
            let tests = excluded.tests.iter().map(|test| format!("not {}", wanted_value(test)));
            format!("{presence}{}", joined(tests, " and "))
        }
    }
}

fn entry_unmatched(conditions: &DescriptorMatch, request: &Request<'_>, place: usize) -> String {
    let wanted = conditions.entries().get(place);
    let found = match (conditions, wanted, request.descriptor.get(place)) {
        (DescriptorMatch::Each(_), Some(wanted), _) => request.entries(&wanted.key).collect(),
        (DescriptorMatch::Each(_), None, _) => Vec::new(),
        (DescriptorMatch::Whole(path), _, None) => {
            let (given, wanted) = (request.descriptor.len(), path.len());
            return format!("the descriptor has {given} entries, the limit requires {wanted}");
        }
        (DescriptorMatch::Whole(_), None, Some(entry)) => {
            return format!("the descriptor continues with `{}` after entry {place}", entry.key);
        }
        (DescriptorMatch::Whole(_), Some(wanted), Some(entry)) if wanted.key != entry.key => {
            return format!("entry {} is `{}`, the limit requires `{}`", place + 1, entry.key, wanted.key);
        }
        (DescriptorMatch::Whole(_), Some(_), Some(entry)) => vec![entry.value],
    };
    let Some(wanted) = wanted else { return String::new() };
    format!("the entry `{}` is {}, the limit requires it {}", wanted.key, values(found), wanted_value(&wanted.test))
}

fn lacking(limit: &Limit, lacking: Lacking) -> String {
    match lacking {
        Lacking::Id(place) => limit.by.get(place).map_or_else(String::new, |part| part.part.to_string()),
        Lacking::Claim(place) => {
            limit.conditions.claims.get(place).map_or_else(String::new, |wanted| format!("claim `{}`", wanted.claim))
        }
        Lacking::Cost => "cost".to_owned(),
    }
}
