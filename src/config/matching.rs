//! Reads `match`: the requests that a limit covers.

use std::collections::HashSet;
use std::net::IpAddr;

use http::header::HeaderName;
use ipnet::IpNet;
use regex::{Regex, RegexBuilder};

use super::jwt;
use super::lints::Lint;
use super::mapping::{Mapping, all};
use super::node::{Key, Node, Value};
use super::paths;
use super::problem::{ReadResult, quoted};
use super::scalars::one_of;
use super::suggest::nearest;
use crate::engine::limit::matching::{Exclusion, Match, PartMatch, ValueTest};
use crate::engine::request::claims::ClaimRef;
use crate::engine::request::glob::Glob;
use crate::engine::request::part::Part;
use crate::message::host_pattern::HostPattern;

pub(super) const KEYS: [&str; 11] =
    ["methods", "host", "path", "path_case", "path_params", "headers", "claims", "jwt", "cidr", "domain", "descriptor"];

/// The keys that conflict with `domain`.
const WITHOUT_DOMAIN: [&str; 8] = ["methods", "host", "path", "path_case", "path_params", "headers", "claims", "cidr"];

pub(super) const PATH_CASE: [(&str, bool); 2] = [("exact", false), ("ignore", true)];

pub(super) const PATH_PARAMS: [(&str, bool); 2] = [("keep", false), ("strip", true)];

pub(super) const HEADER_KEYS: [&str; 5] = ["value", "prefix", "regex", "present", "not"];

pub(super) const ENTRY_KEYS: [&str; 5] = ["value", "glob", "regex", "present", "not"];

/// The keys of a map among hosts or networks.
pub(super) const NOT_KEYS: [&str; 1] = ["not"];

/// Registered methods (RFC 9110, RFC 4918). Others are accepted, unless they look like one of these.
const METHODS: &str =
    "GET HEAD POST PUT DELETE CONNECT OPTIONS TRACE PATCH PROPFIND PROPPATCH MKCOL COPY MOVE LOCK UNLOCK";

/// The most regular expressions of one limit's overrides: all run on each request that no id matches.
pub(crate) const MOST_REGEXES: usize = 1_000;

/// Reads `match` into `conditions`. Conditions with mistakes are left out. Returns whether `path` has none.
pub(super) fn read(node: &Node, conditions: &mut Match) -> bool {
    let Ok(map) = Mapping::of(node, "`match`", &KEYS) else { return false };
    map.set("methods", &mut conditions.methods, |node| node.each(method));
    let (mut hosts, mut networks) = (Default::default(), Default::default());
    map.set("host", &mut hosts, |node| each_or_not(node, &NOT_KEYS, host));
    (conditions.hosts, conditions.other_hosts) = hosts;
    map.set("path_case", &mut conditions.path_reading.ignores_case, one_of(&PATH_CASE));
    map.set("path_params", &mut conditions.path_reading.strips_parameters, one_of(&PATH_PARAMS));
    let reading = conditions.path_reading;
    let paths = map.read("path", |node| {
        let paths = each_or_not(node, &paths::KEYS, |node| paths::condition(node, reading))?;
        paths::check_count(node, &paths).map(|()| paths)
    });
    let paths_are_known = paths.is_ok() && !map.has_wrong_key;
    (conditions.paths, conditions.other_paths) = paths.ok().flatten().unwrap_or_default();
    let (mut on_headers, mut on_entries, mut on_claims) = (Vec::new(), Vec::new(), Vec::new());
    map.set("headers", &mut on_headers, headers);
    let jwt = map.read(jwt::KEY, |node| node.text().map(str::to_owned)).ok().flatten();
    if let Some((key, _)) = map.get(jwt::KEY).filter(|_| map.get("claims").is_none()) {
        map.lacks_at(key.place, "`jwt` needs `claims`", "write `match: { jwt: NAME, claims: { plan: free } }`");
    }
    map.set("claims", &mut on_claims, |node| claims(node, jwt.as_deref()));
    map.set("cidr", &mut networks, |node| each_or_not(node, &NOT_KEYS, network));
    (conditions.networks, conditions.other_networks) = networks;
    map.set("domain", &mut conditions.domains, |node| node.each(domain));
    map.set("descriptor", &mut on_entries, descriptor);
    conditions.parts = [on_headers, on_entries, on_claims].concat();
    if let Some((key, _)) = map.get("domain")
        && let Some((other, _)) = map.first(&WITHOUT_DOMAIN)
    {
        let message = format!("`{}` and `domain` cannot be combined", other.text);
        key.error(message, "the rate limit service receives only descriptors");
    }
    paths_are_known
}

/// Reads values and those after `not:`. Returns the ones that are covered and the ones that are excluded. `keys` are those of a map.
fn each_or_not<T>(node: &Node, keys: &[&str], read: impl Fn(&Node) -> ReadResult<T>) -> ReadResult<(Vec<T>, Vec<T>)> {
    let (mut covered, mut excluded) = (Vec::new(), Vec::new());
    for item in node.one_or_more()? {
        match exclusion(item, keys) {
            Ok(Some(values)) => excluded.push(values.each(&read)),
            Ok(None) => covered.push(read(item)),
            Err(reported) => covered.push(Err(reported)),
        }
    }
    let (covered, excluded) = (all(covered.into_iter()), all(excluded.into_iter()));
    Ok((covered?, excluded?.into_iter().flatten().collect()))
}

/// Returns the value of `not`; `None` for another condition.
fn exclusion<'n>(node: &'n Node, keys: &[&str]) -> ReadResult<Option<&'n Node>> {
    if !matches!(node.value, Value::Map(_)) {
        return Ok(None);
    }
    let map = Mapping::of(node, "a condition", keys)?;
    let (key, value) = map.only(keys)?;
    Ok((key.text == "not").then_some(value))
}

fn method(node: &Node) -> ReadResult<String> {
    let method = node.text()?;
    let upper = method.to_ascii_uppercase();
    let is_registered = |method: &str| METHODS.split(' ').any(|known| known == method);
    if http::Method::from_bytes(method.as_bytes()).is_err() {
        return Err(node.error(format!("invalid method {}", quoted(method)), "use a method such as GET"));
    }
    if method != upper && is_registered(&upper) {
        let message = format!("{} never matches: methods are case-sensitive", quoted(method));
        return Err(node.error(message, format!("write {upper}")));
    }
    if !is_registered(method)
        && let Some(known) = nearest(method, METHODS.split(' '))
    {
        let message = format!("{} is not a registered method", quoted(method));
        node.warning(Lint::UnknownMethod, message, format!("did you mean {known}?"));
    }
    Ok(method.to_owned())
}

fn host(node: &Node) -> ReadResult<HostPattern> {
    let given = node.text()?;
    HostPattern::parse(given).map_err(|help| node.error(format!("invalid host pattern {}", quoted(given)), help))
}

/// Reads a domain of the rate limit service.
pub(super) fn domain(node: &Node) -> ReadResult<String> {
    match node.text()? {
        "" => Err(node.error("the domain is empty", "use the `domain` of the gateway's filter")),
        domain => Ok(domain.to_owned()),
    }
}

fn headers(node: &Node) -> ReadResult<Vec<PartMatch>> {
    let entries = entries(node, "`headers`", "write `headers: { x-plan: free }`")?;
    let mut found: Vec<PartMatch> = Vec::with_capacity(entries.len());
    let mut outcome = Ok(());
    for (key, value) in entries {
        match header(key, value) {
            Ok(header) if found.iter().any(|given| given.part == header.part) => {
                let help = "header names are case-insensitive; keep one of them";
                outcome = Err(key.error(format!("duplicate header {}", quoted(&key.text)), help));
            }
            Ok(header) => found.push(header),
            Err(reported) => outcome = Err(reported),
        }
    }
    outcome.map(|()| found)
}

fn header(key: &Key, node: &Node) -> ReadResult<PartMatch> {
    let name = HeaderName::from_bytes(key.text.as_bytes())
        .map_err(|_| key.error(format!("invalid header name {}", quoted(&key.text)), "use a name such as x-plan"));
    let test = Subject::Header.condition(key, node);
    Ok(PartMatch { part: Part::Header(name?), test: test? })
}

fn claims(node: &Node, jwt: Option<&str>) -> ReadResult<Vec<PartMatch>> {
    let entries = entries(node, "`claims`", "write `claims: { plan: free }`")?;
    all(entries.iter().map(|(key, value)| {
        let path = jwt::claim(&key.scalar(&key.text));
        let test = Subject::Claim.condition(key, value);
        Ok(PartMatch { part: Part::Claim(ClaimRef::new(jwt.map(str::to_owned), path?)), test: test? })
    }))
}

fn descriptor(node: &Node) -> ReadResult<Vec<PartMatch>> {
    let entries = entries(node, "`descriptor`", "write `descriptor: { tenant: acme }`")?;
    all(entries.iter().map(|(key, value)| {
        let test = Subject::Entry.condition(key, value)?;
        Ok(PartMatch { part: Part::Descriptor(key.text.clone()), test })
    }))
}

fn entries<'n>(node: &'n Node, what: &str, help: &str) -> ReadResult<&'n [(Key, Node)]> {
    match node.map(what, help)? {
        [] => Err(node.error("the map is empty", "add an entry or remove the key")),
        entries => Ok(entries),
    }
}

/// The subject of a condition on values.
#[derive(Clone, Copy)]
enum Subject {
    Header,
    Claim,
    Entry,
}

impl Subject {
    /// Reads a plain condition. Only entries may have globs.
    fn plain(self, node: &Node) -> ReadResult<ValueTest> {
        match self {
            Self::Header | Self::Claim => self.value(node).map(ValueTest::Value),
            Self::Entry => node.text().map(entry_value),
        }
    }

    /// Reads a value to compare with. Those of headers are trimmed in requests, others are not.
    fn value(self, node: &Node) -> ReadResult<String> {
        let value = node.text()?;
        if !matches!(self, Self::Header) || value.trim() == value {
            return Ok(value.to_owned());
        }
        let message = format!("{} never matches: surrounding spaces are not part of a header's value", quoted(value));
        Err(node.error(message, format!("write {}", quoted(value.trim()))))
    }

    /// Reads the value of one of the keys except `not`.
    fn test(self, key: &str, node: &Node) -> ReadResult<ValueTest> {
        match key {
            "present" => node.truth().map(ValueTest::Present),
            "prefix" => self.value(node).map(ValueTest::Prefix),
            "regex" => regex(node).map(ValueTest::Regex),
            "glob" => {
                let text = node.text()?;
                Glob::parse(text).map(ValueTest::Glob).ok_or_else(|| {
                    node.error(format!("the glob {} has no `*`", quoted(text)), "use `value:` for an exact match")
                })
            }
            _ => self.value(node).map(ValueTest::Value),
        }
    }

    /// Reads the condition on one header or entry.
    fn condition(self, key: &Key, node: &Node) -> ReadResult<ValueTest> {
        match &node.value {
            Value::Scalar { text, plain: true } if matches!(text.to_ascii_lowercase().as_str(), "true" | "false") => {
                let help = format!("write `{{ present: {0} }}`, or `\"{0}\"` for the text", text.to_ascii_lowercase());
                Err(node.error("ambiguous: either a value, or a test for presence", help))
            }
            Value::Scalar { .. } if node.is_null() => {
                let help = "write `{ present: true }`, or `\"\"` for an empty value";
                Err(key.error(format!("{} has no value", quoted(&key.text)), help))
            }
            Value::Scalar { .. } => self.plain(node),
            Value::List(_) => self.values(node, "a list only has values").map(ValueTest::OneOf),
            Value::Map(_) => self.map(node),
        }
    }

    fn map(self, node: &Node) -> ReadResult<ValueTest> {
        let (what, keys) = match self {
            Self::Header => ("a condition on a header", &HEADER_KEYS[..]),
            Self::Claim => ("a condition on a claim", &HEADER_KEYS[..]),
            Self::Entry => ("a condition on an entry", &ENTRY_KEYS[..]),
        };
        let map = Mapping::of(node, what, keys)?;
        match map.all(keys)[..] {
            // The keys are in the order of `keys`.
            [(present, value), (not, tests)] if present.text == "present" && not.text == "not" => {
                if value.truth()? {
                    return self.exclusion(tests, true);
                }
                let help = "remove `not`, or write `present: true`";
                Err(not.error("`present: false` leaves no value to exclude", help))
            }
            _ => {
                let (key, value) = map.only(keys)?;
                if key.text == "not" { self.exclusion(value, false) } else { self.test(&key.text, value) }
            }
        }
    }

    /// Reads the value of `not`.
    fn exclusion(self, tests: &Node, is_needed: bool) -> ReadResult<ValueTest> {
        let tests = self.values(tests, "`not` only excludes values")?;
        Ok(ValueTest::Not(Exclusion { tests, is_needed }))
    }

    /// Reads one test of values or several. `message` says that there can be no others.
    fn values(self, tests: &Node, message: &str) -> ReadResult<Vec<ValueTest>> {
        let mut seen = HashSet::new();
        tests.each(|node| match &node.value {
            Value::Map(entries) if entries.iter().any(|(key, _)| matches!(key.text.as_str(), "present" | "not")) => {
                Err(node.error(message, "to require absence, write `present: false`"))
            }
            Value::Map(_) => self.map(node),
            _ => {
                let text = node.text()?;
                if !seen.insert(text.to_owned()) {
                    node.warning(Lint::NoEffect, format!("duplicate value {}", quoted(text)), "remove it");
                }
                self.plain(node)
            }
        })
    }
}

/// Returns the test for an entry's value, which may be a glob.
fn entry_value(text: &str) -> ValueTest {
    Glob::parse(text).map_or_else(|| ValueTest::Value(text.to_owned()), ValueTest::Glob)
}

/// Reads a regular expression. The crate bounds its size and matches in linear time.
pub(super) fn regex(node: &Node) -> ReadResult<Regex> {
    regex_as(node, false)
}

pub(super) fn regex_as(node: &Node, ignores_case: bool) -> ReadResult<Regex> {
    let pattern = node.text()?;
    RegexBuilder::new(pattern).case_insensitive(ignores_case).build().map_err(|error| {
        // The crate's text has several lines and ends with the reason.
        let text = error.to_string();
        let why = text.lines().last().unwrap_or_default().trim_start_matches("error: ");
        node.error(format!("invalid regular expression {}", quoted(pattern)), why)
    })
}

/// Reads a network or a single address.
pub(super) fn network(node: &Node) -> ReadResult<IpNet> {
    let given = node.text()?;
    let parsed = given.parse::<IpNet>().or_else(|_| given.parse::<IpAddr>().map(IpNet::from));
    let Ok(network) = parsed else {
        let help = "use a network such as 10.0.0.0/8 or 2001:db8::/32, or a single address";
        return Err(node.error(format!("invalid network {}", quoted(given)), help));
    };
    if let IpNet::V6(wide) = network
        && let Some(folded) = wide.addr().to_ipv4_mapped()
    {
        let prefix = wide.prefix_len().saturating_sub(96);
        let message = format!("{} never matches: IPv4-mapped addresses are read as IPv4", quoted(given));
        return Err(node.error(message, format!("write {folded}/{prefix}")));
    }
    if network.trunc() != network {
        return Err(node.error(format!("{} has host bits set", quoted(given)), format!("write {}", network.trunc())));
    }
    Ok(network)
}
