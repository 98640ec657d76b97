//! Tests of a limit's numbers, in the words of `tests:`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr};

use serde_json::Value;

use super::super::super::print::joined;
use crate::config::rule_tests::MOST_REPEATED;
use crate::engine::limit::matching::{PartMatch, ValueTest};
use crate::engine::limit::{Cost, Limit};
use crate::engine::request::part::Part;
use crate::engine::request::path_condition::PathCondition;
use crate::engine::request::path_pattern::{PathPattern, Segment};
use crate::message::host_pattern::HostPattern;
use crate::message::path::normalise;

/// The client of tests without a condition on addresses.
const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

/// Why there is no test of a limit that does not cover the request of one.
const EXCLUDED: &str = "its conditions have exceptions";

/// The value of parts that have no condition; a number, for ids with `as: int`.
const VALUE: &str = "1";

/// Returns a test in which `number` tokens are taken at once and one more is denied, to stand below `tests:`. The error says why there
/// is no such test.
pub(super) fn tests(limit: &Limit, number: u64) -> Result<String, &'static str> {
    let Cost::Fixed(cost @ 1..) = limit.cost else { return Err("its cost depends on the request") };
    let requests = number / cost;
    if requests == 0 {
        return Err("a request takes more than the number");
    }
    if requests > MOST_REPEATED {
        return Err("a test cannot send so many requests");
    }
    let (name, denied) = (&limit.name, if limit.is_enforced() { "deny" } else { "would_deny" });
    let request = request(limit)?;
    let step = |repeat: u64, expected: &str| {
        let repeat = if repeat > 1 { format!(", repeat: {repeat}") } else { String::new() };
        format!("{{ {request}{repeat}, expect: {{ limits: {{ {}: {expected} }} }} }}", scalar(name))
    };
    let mut text = String::new();
    let all = if requests == 1 { "1 request passes".to_owned() } else { format!("{requests} requests pass at once") };
    let _ = writeln!(text, "  \"{name}: {all}, the next does not\":");
    let _ = writeln!(text, "    - {}\n    - {}", step(requests, "allow"), step(1, denied));
    Ok(text)
}

/// A request that meets the conditions of a limit and has an id, as the keys of a step.
fn request(limit: &Limit) -> Result<String, &'static str> {
    let conditions = &limit.conditions;
    if !conditions.domains.is_empty() {
        return Err("it is about descriptors");
    }
    let mut found = Found::default();
    let host = conditions.hosts.first().map(|host| match host {
        HostPattern::Exact(host) => host.clone(),
        HostPattern::Below(domain) => format!("a{domain}"),
    });
    for PartMatch { part, test } in &conditions.parts {
        match test.alternatives().first().unwrap_or(test) {
            ValueTest::Present(true) => found.set(part, VALUE)?,
            ValueTest::Value(value) | ValueTest::Prefix(value) => found.set(part, value)?,
            ValueTest::Present(false) => {}
            _ => return Err("its conditions have patterns"),
        }
    }
    for typed in &limit.by {
        found.set(&typed.part, VALUE)?;
    }
    let target = scalar(&format!("{}{}", path(limit)?, found.query.unwrap_or_default()));
    let mut step = match conditions.methods.first().map_or("GET", String::as_str) {
        method @ ("GET" | "HEAD" | "POST" | "PUT" | "PATCH" | "DELETE" | "OPTIONS") => {
            format!("{}: {target}", method.to_ascii_lowercase())
        }
        method => format!("request: {}", Value::from(format!("{method} {target}"))),
    };
    if let Some(host) = &host {
        let _ = write!(step, ", host: {}", scalar(host));
    }
    let network = conditions.networks.first();
    let client = network.map_or(CLIENT, |network| network.hosts().next().unwrap_or_else(|| network.addr()));
    let excludes_host = |other: &HostPattern| host.as_ref().is_some_and(|host| other.matches(host));
    if conditions.other_hosts.iter().any(excludes_host)
        || conditions.other_networks.iter().any(|other| other.contains(&client))
    {
        return Err(EXCLUDED);
    }
    let _ = write!(step, ", ip: {}", scalar(&client.to_string()));
    if !found.headers.is_empty() {
        let headers = found.headers.iter().map(|(name, value)| format!("{}: {}", scalar(name), scalar(value)));
        let _ = write!(step, ", headers: {{ {} }}", joined(headers, ", "));
    }
    if let Some(subject) = found.tls_subject {
        let _ = write!(step, ", tls_subject: {}", scalar(&subject));
    }
    Ok(step)
}

/// A path that the first condition of a limit covers.
fn path(limit: &Limit) -> Result<String, &'static str> {
    let conditions = &limit.conditions;
    let path = match conditions.paths.first() {
        None => "/".to_owned(),
        Some(PathCondition::Pattern(pattern)) => matching(pattern),
        Some(PathCondition::Prefix(prefix)) => prefix.clone(),
        Some(PathCondition::Regex(_)) => return Err("its conditions have patterns"),
    };
    let normal = normalise(&path);
    let read = conditions.path_reading.of(&normal);
    let is_excluded = conditions.other_paths.iter().any(|condition| condition.matches(&read));
    if is_excluded { Err(EXCLUDED) } else { Ok(path) }
}

fn matching(pattern: &PathPattern) -> String {
    let mut path = String::new();
    for segment in &pattern.segments {
        path.push('/');
        path.push_str(match segment {
            Segment::Literal(text) => text,
            Segment::Parameter(_) => VALUE,
        });
    }
    if pattern.is_open || path.is_empty() {
        path.push('/');
    }
    path
}

/// The parts that a step names beside its path, method, host and address.
#[derive(Default)]
struct Found {
    /// With its `?`.
    query: Option<String>,
    headers: BTreeMap<String, String>,
    tls_subject: Option<String>,
}

impl Found {
    /// Sets a part unless it has a value.
    fn set(&mut self, part: &Part, value: &str) -> Result<(), &'static str> {
        match part {
            Part::Ip { .. } | Part::Host | Part::Method | Part::Path | Part::PathParameter { .. } => {}
            Part::Header(name) => {
                self.headers.entry(name.as_str().to_owned()).or_insert_with(|| value.to_owned());
            }
            Part::Cookie(name) => {
                self.headers.entry("cookie".to_owned()).or_insert_with(|| format!("{name}={value}"));
            }
            Part::Query(name) => {
                self.query.get_or_insert_with(|| format!("?{name}={value}"));
            }
            Part::TlsSubject => {
                self.tls_subject.get_or_insert_with(|| format!("CN={value}"));
            }
            Part::Credentials | Part::Claim(_) | Part::Body(_) | Part::Descriptor(_) | Part::Entry { .. } => {
                return Err("its ids or conditions are more than a line of a test");
            }
        }
        Ok(())
    }
}

/// In quotes unless YAML takes it for this text without them.
fn scalar(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'-' | b'_' | b'.');
    let is_word = text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '/');
    let is_keyword =
        matches!(text.to_ascii_lowercase().as_str(), "true" | "false" | "null" | "yes" | "no" | "on" | "off");
    if (is_word || text.parse::<IpAddr>().is_ok_and(|address| address.is_ipv4()))
        && text.bytes().all(is_plain)
        && !is_keyword
    {
        return text.to_owned();
    }
    Value::from(text).to_string()
}
