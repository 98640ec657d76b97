//! Reads `match`: the requests that a limit covers.

use std::net::IpAddr;

use http::header::HeaderName;
use ipnet::IpNet;
use regex::Regex;

use super::mapping::{Mapping, all, map, one_or_more};
use super::problem::{Findings, Reported, quoted};
use super::scalars::{one_of, text, truth};
use super::suggest::nearest;
use super::yaml::{Key, Node, Value};
use crate::engine::rules::glob::Glob;
use crate::engine::rules::matching::{
    DescriptorMatch, EntryMatch, EntryTest, Exclusion, HeaderMatch, HeaderTest, Match,
};
use crate::engine::rules::path_pattern::{PathPattern, PathReading};
use crate::message::host_pattern::HostPattern;

/// The fields of `match`.
pub(super) const KEYS: [&str; 9] =
    ["methods", "host", "path", "path_case", "path_params", "headers", "cidr", "domain", "descriptor"];

/// The words of `path_case`.
pub(super) const PATH_CASE: [(&str, bool); 2] = [("exact", false), ("ignore", true)];

/// The words of `path_params`.
pub(super) const PATH_PARAMS: [(&str, bool); 2] = [("keep", false), ("strip", true)];

/// The conditions on one header.
pub(super) const HEADER_KEYS: [&str; 5] = ["value", "prefix", "regex", "present", "not"];

/// The conditions on one entry of a descriptor.
pub(super) const ENTRY_KEYS: [&str; 4] = ["value", "glob", "present", "not"];

/// The conditions on a host or a network that is a map.
pub(super) const NOT_KEYS: [&str; 1] = ["not"];

/// Registered methods (RFC 9110, RFC 4918). Others are accepted, unless they look like one of these.
const METHODS: &str =
    "GET HEAD POST PUT DELETE CONNECT OPTIONS TRACE PATCH PROPFIND PROPPATCH MKCOL COPY MOVE LOCK UNLOCK";

/// The most regular expressions of one limit's overrides: all run on each request that no id matches.
pub(crate) const MOST_REGEXES: usize = 1_000;

/// The conditions, and whether `path` among them could be read.
pub(super) struct Conditions {
    pub(super) conditions: Match,
    pub(super) paths_are_known: bool,
}

/// Reads `match`. Conditions with mistakes are reported and left out.
pub(super) fn parse(node: &Node, findings: &mut Findings) -> Conditions {
    let mut conditions = Match::default();
    let Ok(map) = Mapping::of(node, "`match`", &KEYS, findings) else {
        return Conditions { conditions, paths_are_known: false };
    };
    map.set("methods", &mut conditions.methods, findings, |node, findings| each(node, findings, method));
    let (mut hosts, mut networks) = (Default::default(), Default::default());
    map.set("host", &mut hosts, findings, |node, findings| each_or_not(node, findings, host));
    (conditions.hosts, conditions.other_hosts) = hosts;
    map.set("path_case", &mut conditions.path_reading.ignores_case, findings, one_of(&PATH_CASE));
    map.set("path_params", &mut conditions.path_reading.strips_parameters, findings, one_of(&PATH_PARAMS));
    let reading = conditions.path_reading;
    let path = |node: &Node, findings: &mut Findings| path(node, reading, findings);
    let paths = map.read("path", findings, |node, findings| each(node, findings, path));
    let paths_are_known = paths.is_ok();
    conditions.paths = paths.ok().flatten().unwrap_or_default();
    map.set("headers", &mut conditions.headers, findings, headers);
    map.set("cidr", &mut networks, findings, |node, findings| each_or_not(node, findings, network));
    (conditions.networks, conditions.other_networks) = networks;
    map.set("domain", &mut conditions.domains, findings, |node, findings| each(node, findings, domain));
    let mut entries = Vec::new();
    map.set("descriptor", &mut entries, findings, descriptor);
    conditions.descriptor = DescriptorMatch::Each(entries);
    if let Some((key, _)) = map.get("domain") {
        let other = KEYS.iter().filter(|name| !matches!(**name, "domain" | "descriptor"));
        if let Some((other, _)) = other.into_iter().find_map(|name| map.get(name)) {
            let message = format!("`{}` and `domain` cannot be combined", other.text);
            findings.error(key.place, message, "the rate limit service receives only descriptors");
        }
    }
    Conditions { conditions, paths_are_known }
}

/// Reads a value, or each value of a list.
fn each<T>(
    node: &Node,
    findings: &mut Findings,
    read: impl Fn(&Node, &mut Findings) -> Result<T, Reported>,
) -> Result<Vec<T>, Reported> {
    all(one_or_more(node, findings)?.iter().map(|item| read(item, findings)))
}

/// Reads values, or those after `not:`. Returns the ones that are covered and the ones that are excluded.
fn each_or_not<T>(
    node: &Node,
    findings: &mut Findings,
    read: impl Fn(&Node, &mut Findings) -> Result<T, Reported>,
) -> Result<(Vec<T>, Vec<T>), Reported> {
    if !matches!(node.value, Value::Map(_)) {
        return Ok((each(node, findings, read)?, Vec::new()));
    }
    let fields = Mapping::of(node, "a condition", &NOT_KEYS, findings)?;
    let Some((_, excluded)) = fields.get("not") else {
        return Err(findings.error(node.place, "the map is empty", "write `{ not: VALUE }`"));
    };
    Ok((Vec::new(), each(excluded, findings, read)?))
}

/// Reads `not:`, alone or beside `present: true`; `None` if the map has no `not:`.
fn excluded<T>(
    fields: &Mapping<'_>,
    findings: &mut Findings,
    read: impl Fn(&Node, &mut Findings) -> Result<T, Reported>,
) -> Result<Option<Exclusion<T>>, Reported> {
    let Some((key, node)) = fields.get("not") else { return Ok(None) };
    let is_needed = match fields.get("present") {
        None => false,
        Some((_, present)) => {
            if !truth(present, findings)? {
                let help = "remove `not`, or write `present: true`";
                return Err(findings.error(key.place, "`present: false` leaves no value to exclude", help));
            }
            true
        }
    };
    Ok(Some(Exclusion { tests: each(node, findings, read)?, is_needed }))
}

fn method(node: &Node, findings: &mut Findings) -> Result<String, Reported> {
    let method = text(node, findings)?;
    let upper = method.to_ascii_uppercase();
    let is_registered = |method: &str| METHODS.split(' ').any(|known| known == method);
    if http::Method::from_bytes(method.as_bytes()).is_err() {
        return Err(findings.error(
            node.place,
            format!("invalid method {}", quoted(method)),
            "use a method such as GET",
        ));
    }
    if method != upper && is_registered(&upper) {
        let message = format!("{} never matches: methods are case-sensitive", quoted(method));
        return Err(findings.error(node.place, message, format!("write {upper}")));
    }
    if !is_registered(method)
        && let Some(known) = nearest(method, METHODS.split(' '))
    {
        let message = format!("{} is not a registered method", quoted(method));
        findings.warning(node.place, message, format!("did you mean {known}?"));
    }
    Ok(method.to_owned())
}

fn host(node: &Node, findings: &mut Findings) -> Result<HostPattern, Reported> {
    let given = text(node, findings)?;
    HostPattern::parse(given)
        .map_err(|help| findings.error(node.place, format!("invalid host pattern {}", quoted(given)), help))
}

fn path(node: &Node, reading: PathReading, findings: &mut Findings) -> Result<PathPattern, Reported> {
    let given = text(node, findings)?;
    PathPattern::parse(given)
        .and_then(|pattern| pattern.read_as(reading))
        .map_err(|why| findings.error(node.place, format!("invalid path pattern {}", quoted(given)), why))
}

fn headers(node: &Node, findings: &mut Findings) -> Result<Vec<HeaderMatch>, Reported> {
    let entries = entries(node, "`headers`", "write `headers: { x-plan: free }`", findings)?;
    let mut found: Vec<HeaderMatch> = Vec::with_capacity(entries.len());
    let mut outcome = Ok(());
    for (key, value) in entries {
        match header(key, value, findings) {
            Ok(header) if found.iter().any(|given| given.name == header.name) => {
                let message = format!("duplicate header {}", quoted(&key.text));
                outcome =
                    Err(findings.error(key.place, message, "header names are case-insensitive; keep one of them"));
            }
            Ok(header) => found.push(header),
            Err(reported) => outcome = Err(reported),
        }
    }
    outcome.map(|()| found)
}

fn domain(node: &Node, findings: &mut Findings) -> Result<String, Reported> {
    match text(node, findings)? {
        "" => Err(findings.error(node.place, "the domain is empty", "use the `domain` of the gateway's filter")),
        domain => Ok(domain.to_owned()),
    }
}

fn descriptor(node: &Node, findings: &mut Findings) -> Result<Vec<EntryMatch>, Reported> {
    let entries = entries(node, "`descriptor`", "write `descriptor: { tenant: acme }`", findings)?;
    all(entries.iter().map(|(key, value)| {
        let test = condition(key, value, &ENTRIES, findings)?;
        Ok(EntryMatch { key: key.text.clone(), test })
    }))
}

fn entries<'n>(node: &'n Node, what: &str, help: &str, findings: &mut Findings) -> Result<&'n [(Key, Node)], Reported> {
    match map(node, what, help, findings)? {
        [] => Err(findings.error(node.place, "the map is empty", "add an entry or remove the key")),
        entries => Ok(entries),
    }
}

fn header(key: &Key, node: &Node, findings: &mut Findings) -> Result<HeaderMatch, Reported> {
    let name = HeaderName::from_bytes(key.text.as_bytes()).map_err(|_| {
        let message = format!("invalid header name {}", quoted(&key.text));
        findings.error(key.place, message, "use a name such as x-plan")
    });
    let test = condition(key, node, &HEADERS, findings);
    Ok(HeaderMatch { name: name?, test: test? })
}

/// How conditions on headers and on descriptor entries differ.
struct Kind<T> {
    /// `header` or `entry`, for errors.
    what: &'static str,
    keys: &'static [&'static str],
    /// Reads a plain value.
    value: fn(&Node, &mut Findings) -> Result<T, Reported>,
    /// Reads the value of one of the keys.
    test: fn(&str, &Node, &mut Findings) -> Result<T, Reported>,
    not: fn(Exclusion<T>) -> T,
    /// Whether `not:` can exclude it.
    can_be_excluded: fn(&T) -> bool,
}

const HEADERS: Kind<HeaderTest> = Kind {
    what: "header",
    keys: &HEADER_KEYS,
    value: |node, findings| value(node, findings).map(HeaderTest::Value),
    test: |key, node, findings| {
        Ok(match key {
            "value" => HeaderTest::Value(value(node, findings)?),
            "prefix" => HeaderTest::Prefix(value(node, findings)?),
            "regex" => HeaderTest::Regex(regex(node, findings)?),
            _ => HeaderTest::Present(truth(node, findings)?),
        })
    },
    not: HeaderTest::Not,
    can_be_excluded: |test| !matches!(test, HeaderTest::Present(_) | HeaderTest::Not(_)),
};

/// Unlike those of headers, values of entries are compared with their spaces, and may be globs.
const ENTRIES: Kind<EntryTest> = Kind {
    what: "entry",
    keys: &ENTRY_KEYS,
    value: |node, findings| {
        let text = text(node, findings)?;
        Ok(Glob::parse(text).map_or_else(|| EntryTest::Value(text.to_owned()), EntryTest::Glob))
    },
    test: |key, node, findings| match key {
        "value" => Ok(EntryTest::Value(text(node, findings)?.to_owned())),
        "glob" => {
            let text = text(node, findings)?;
            Glob::parse(text).map(EntryTest::Glob).ok_or_else(|| {
                let message = format!("the glob {} has no `*`", quoted(text));
                findings.error(node.place, message, "use `value:` for an exact match")
            })
        }
        _ => truth(node, findings).map(EntryTest::Present),
    },
    not: EntryTest::Not,
    can_be_excluded: |test| !matches!(test, EntryTest::Present(_) | EntryTest::Not(_)),
};

/// Reads the condition on one header or entry.
fn condition<T>(key: &Key, node: &Node, kind: &Kind<T>, findings: &mut Findings) -> Result<T, Reported> {
    match &node.value {
        Value::Scalar { text, plain: true } if matches!(text.to_ascii_lowercase().as_str(), "true" | "false") => {
            let help = format!("write `{{ present: {0} }}`, or `\"{0}\"` for the text", text.to_ascii_lowercase());
            let message = format!("ambiguous: a value, or whether the {} is present", kind.what);
            Err(findings.error(node.place, message, help))
        }
        Value::Scalar { .. } if node.is_null() => {
            let help = "write `{ present: true }`, or `\"\"` for an empty value";
            Err(findings.error(key.place, format!("{} has no value", quoted(&key.text)), help))
        }
        Value::Scalar { .. } => (kind.value)(node, findings),
        _ => keyed_condition(node, kind, findings),
    }
}

fn keyed_condition<T>(node: &Node, kind: &Kind<T>, findings: &mut Findings) -> Result<T, Reported> {
    let map = Mapping::of(node, &format!("a condition on a {}", kind.what), kind.keys, findings)?;
    let given: Vec<_> = kind.keys.iter().filter_map(|name| map.get(name)).collect();
    let read = |node: &Node, findings: &mut Findings| excluded_value(node, kind, findings);
    if given.len() <= 2
        && let Some(excluded) = excluded(&map, findings, read)?
        && (given.len() == 1 || excluded.is_needed)
    {
        return Ok((kind.not)(excluded));
    }
    if let [(key, given)] = given[..] {
        return (kind.test)(&key.text, given, findings);
    }
    let message = format!("a condition needs exactly one test, found {}", given.len());
    Err(findings.error(node.place, message, format!("use one of {}", kind.keys.join(", "))))
}

/// Reads a value that `not:` excludes: plain, or a map with a test for values.
fn excluded_value<T>(node: &Node, kind: &Kind<T>, findings: &mut Findings) -> Result<T, Reported> {
    if !matches!(node.value, Value::Map(_)) {
        return (kind.value)(node, findings);
    }
    let test = keyed_condition(node, kind, findings)?;
    if (kind.can_be_excluded)(&test) {
        return Ok(test);
    }
    Err(findings.error(node.place, "`not` only excludes values", "to require absence, write `present: false`"))
}

/// Reads the value of a header; those of requests are trimmed.
fn value(node: &Node, findings: &mut Findings) -> Result<String, Reported> {
    let value = text(node, findings)?;
    if value.trim() != value {
        let message = format!("{} never matches: surrounding spaces are not part of a header's value", quoted(value));
        return Err(findings.error(node.place, message, format!("write {}", quoted(value.trim()))));
    }
    Ok(value.to_owned())
}

/// Reads a regular expression. The crate bounds its size and matches in linear time.
pub(super) fn regex(node: &Node, findings: &mut Findings) -> Result<Regex, Reported> {
    let pattern = text(node, findings)?;
    Regex::new(pattern).map_err(|error| {
        // The crate's text has several lines and ends with the reason.
        let text = error.to_string();
        let why = text.lines().last().unwrap_or_default().trim_start_matches("error: ");
        findings.error(node.place, format!("invalid regular expression {}", quoted(pattern)), why)
    })
}

/// Reads a network or a single address.
pub(super) fn network(node: &Node, findings: &mut Findings) -> Result<IpNet, Reported> {
    let given = text(node, findings)?;
    let parsed = given.parse::<IpNet>().or_else(|_| given.parse::<IpAddr>().map(IpNet::from));
    let Ok(network) = parsed else {
        let help = "use a network such as 10.0.0.0/8 or 2001:db8::/32, or a single address";
        return Err(findings.error(node.place, format!("invalid network {}", quoted(given)), help));
    };
    if let IpNet::V6(wide) = network
        && let Some(folded) = wide.addr().to_ipv4_mapped()
    {
        let prefix = wide.prefix_len().saturating_sub(96);
        let message = format!("{} never matches: IPv4-mapped addresses are read as IPv4", quoted(given));
        return Err(findings.error(node.place, message, format!("write {folded}/{prefix}")));
    }
    if network.trunc() != network {
        let message = format!("{} has host bits set", quoted(given));
        return Err(findings.error(node.place, message, format!("write {}", network.trunc())));
    }
    Ok(network)
}
