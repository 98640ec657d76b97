//! Which requests: `match`.

use std::net::IpAddr;

use http::header::HeaderName;
use ipnet::IpNet;
use regex::Regex;

use super::fields::{Fields, choice, one_or_more, text, truth};
use super::problem::{Findings, Reported, quoted};
use super::suggest::nearest;
use super::yaml::{Key, Node, Value};
use crate::engine::rules::glob::Glob;
use crate::engine::rules::matching::{
    DescriptorMatch, EntryMatch, EntryTest, Excluded, HeaderMatch, HeaderTest, HostPattern, Match,
};
use crate::message::path::{Pattern, Reading};

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

/// Methods that are registered (RFC 9110, RFC 4918). Others are accepted, unless they look like one of these.
const METHODS: [&str; 16] = [
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "DELETE",
    "CONNECT",
    "OPTIONS",
    "TRACE",
    "PATCH",
    "PROPFIND",
    "PROPPATCH",
    "MKCOL",
    "COPY",
    "MOVE",
    "LOCK",
    "UNLOCK",
];

/// The conditions, and whether `path` among them could be read.
pub(super) struct Conditions {
    pub(super) conditions: Match,
    pub(super) paths_are_known: bool,
}

/// Parses `match`; what could not be read is left out and has been reported.
pub(super) fn parse(node: &Node, findings: &mut Findings) -> Conditions {
    let mut conditions = Match::default();
    let Ok(fields) = Fields::of(node, "`match`", &KEYS, findings) else {
        return Conditions { conditions, paths_are_known: false };
    };
    let methods = fields.read("methods", findings, |node, findings| each(node, findings, method));
    let hosts = fields.read("host", findings, |node, findings| each_or_not(node, findings, host));
    let ignores_case = fields.read("path_case", findings, |node, findings| choice(node, &PATH_CASE, findings));
    let strips = fields.read("path_params", findings, |node, findings| choice(node, &PATH_PARAMS, findings));
    let reading = Reading {
        ignores_case: ignores_case.ok().flatten().unwrap_or_default(),
        strips_parameters: strips.ok().flatten().unwrap_or_default(),
    };
    let paths = fields
        .read("path", findings, |node, findings| each(node, findings, |node, findings| path(node, reading, findings)));
    let headers = fields.read("headers", findings, headers);
    let networks = fields.read("cidr", findings, |node, findings| each_or_not(node, findings, network));
    let domains = fields.read("domain", findings, |node, findings| each(node, findings, domain));
    let entries = fields.read("descriptor", findings, entries);
    let paths_are_known = paths.is_ok();
    conditions.methods = methods.ok().flatten().unwrap_or_default();
    (conditions.hosts, conditions.other_hosts) = hosts.ok().flatten().unwrap_or_default();
    conditions.paths = paths.ok().flatten().unwrap_or_default();
    conditions.path_reading = reading;
    conditions.headers = headers.ok().flatten().unwrap_or_default();
    (conditions.networks, conditions.other_networks) = networks.ok().flatten().unwrap_or_default();
    conditions.domains = domains.ok().flatten().unwrap_or_default();
    conditions.descriptor = DescriptorMatch::Each(entries.ok().flatten().unwrap_or_default());
    if let Some((key, _)) = fields.get("domain") {
        let unknown = KEYS.iter().filter(|name| !matches!(**name, "domain" | "descriptor"));
        let unknown = unknown.into_iter().find_map(|name| fields.get(name));
        if let Some((other, _)) = unknown {
            let message = format!("`{}` and `domain` cannot be combined", other.text);
            findings.error(key.place, message, "the rate limit service receives only descriptors");
        }
    }
    Conditions { conditions, paths_are_known }
}

/// Reads a value or each of a list; all are read before the first error counts.
fn each<T>(
    node: &Node,
    findings: &mut Findings,
    read: impl Fn(&Node, &mut Findings) -> Result<T, Reported>,
) -> Result<Vec<T>, Reported> {
    let read: Vec<_> = one_or_more(node, findings)?.iter().map(|item| read(item, findings)).collect();
    read.into_iter().collect()
}

/// Reads values, or those after `not:`: the ones that are covered, and the ones that are excluded.
fn each_or_not<T>(
    node: &Node,
    findings: &mut Findings,
    read: impl Fn(&Node, &mut Findings) -> Result<T, Reported>,
) -> Result<(Vec<T>, Vec<T>), Reported> {
    if !matches!(node.value, Value::Map(_)) {
        return Ok((each(node, findings, read)?, Vec::new()));
    }
    let fields = Fields::of(node, "a condition", &NOT_KEYS, findings)?;
    let Some((_, excluded)) = fields.get("not") else {
        return Err(findings.error(node.place, "the map is empty", "write `{ not: VALUE }`"));
    };
    Ok((Vec::new(), each(excluded, findings, read)?))
}

/// Reads `not:`, alone or beside `present: true`; `None` if the map has no `not:`.
fn excluded<T>(
    fields: &Fields<'_>,
    findings: &mut Findings,
    read: impl Fn(&Node, &mut Findings) -> Result<T, Reported>,
) -> Result<Option<Excluded<T>>, Reported> {
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
    Ok(Some(Excluded { tests: each(node, findings, read)?, is_needed }))
}

fn method(node: &Node, findings: &mut Findings) -> Result<String, Reported> {
    let method = text(node, findings)?;
    let upper = method.to_ascii_uppercase();
    if http::Method::from_bytes(method.as_bytes()).is_err() {
        return Err(findings.error(
            node.place,
            format!("invalid method {}", quoted(method)),
            "use a method such as GET",
        ));
    }
    if method != upper && METHODS.contains(&upper.as_str()) {
        let message = format!("{} never matches: methods are case-sensitive", quoted(method));
        return Err(findings.error(node.place, message, format!("write {upper}")));
    }
    if !METHODS.contains(&method)
        && let Some(known) = nearest(method, METHODS)
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

fn path(node: &Node, reading: Reading, findings: &mut Findings) -> Result<Pattern, Reported> {
    let given = text(node, findings)?;
    Pattern::parse(given)
        .and_then(|pattern| pattern.read_as(reading))
        .map_err(|why| findings.error(node.place, format!("invalid path pattern {}", quoted(given)), why))
}

fn headers(node: &Node, findings: &mut Findings) -> Result<Vec<HeaderMatch>, Reported> {
    let Value::Map(entries) = &node.value else {
        let message = format!("`headers` must be a map, found {}", node.kind());
        return Err(findings.error(node.place, message, "write `headers: { x-plan: free }`"));
    };
    if entries.is_empty() {
        return Err(findings.error(node.place, "the map is empty", "add a header or remove the key"));
    }
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
    let domain = text(node, findings)?;
    if domain.is_empty() {
        return Err(findings.error(node.place, "the domain is empty", "use the `domain` of the gateway's filter"));
    }
    Ok(domain.to_owned())
}

fn entries(node: &Node, findings: &mut Findings) -> Result<Vec<EntryMatch>, Reported> {
    let Value::Map(entries) = &node.value else {
        let message = format!("`descriptor` must be a map, found {}", node.kind());
        return Err(findings.error(node.place, message, "write `descriptor: { tenant: acme }`"));
    };
    if entries.is_empty() {
        return Err(findings.error(node.place, "the map is empty", "add an entry or remove the key"));
    }
    let read: Vec<_> = entries.iter().map(|(key, value)| entry(key, value, findings)).collect();
    read.into_iter().collect()
}

/// One entry. Unlike those of headers its value is compared as it is, spaces included.
fn entry(key: &Key, node: &Node, findings: &mut Findings) -> Result<EntryMatch, Reported> {
    let test = match &node.value {
        Value::Scalar { text, plain: true } if matches!(text.to_ascii_lowercase().as_str(), "true" | "false") => {
            let help = format!("write `{{ present: {0} }}`, or `\"{0}\"` for the text", text.to_ascii_lowercase());
            return Err(findings.error(node.place, "ambiguous: a value, or whether the entry is present", help));
        }
        Value::Scalar { .. } if node.is_null() => {
            let help = "write `{ present: true }`, or `\"\"` for an empty value";
            return Err(findings.error(key.place, format!("{} has no value", quoted(&key.text)), help));
        }
        Value::Scalar { text, .. } => value_or_glob(text),
        _ => entry_test(node, findings)?,
    };
    Ok(EntryMatch { key: key.text.clone(), test })
}

fn value_or_glob(text: &str) -> EntryTest {
    Glob::parse(text).map_or_else(|| EntryTest::Value(text.to_owned()), EntryTest::Glob)
}

/// Reads an excluded value of an entry: a text, which may have `*` in it, or a condition.
fn excluded_entry(node: &Node, findings: &mut Findings) -> Result<EntryTest, Reported> {
    match &node.value {
        Value::Map(_) => entry_test(node, findings).and_then(|test| match test {
            EntryTest::Present(_) | EntryTest::Not(_) => Err(no_negation(node, findings)),
            test => Ok(test),
        }),
        _ => text(node, findings).map(value_or_glob),
    }
}

fn excluded_header(node: &Node, findings: &mut Findings) -> Result<HeaderTest, Reported> {
    match &node.value {
        Value::Map(_) => header_test(node, findings).and_then(|test| match test {
            HeaderTest::Present(_) | HeaderTest::Not(_) => Err(no_negation(node, findings)),
            test => Ok(test),
        }),
        _ => value(node, findings).map(HeaderTest::Value),
    }
}

fn no_negation(node: &Node, findings: &mut Findings) -> Reported {
    findings.error(node.place, "`not` only excludes values", "to require absence, write `present: false`")
}

fn entry_test(node: &Node, findings: &mut Findings) -> Result<EntryTest, Reported> {
    let fields = Fields::of(node, "a condition on an entry", &ENTRY_KEYS, findings)?;
    let given: Vec<_> = ENTRY_KEYS.iter().filter_map(|name| fields.get(name)).collect();
    if given.len() <= 2
        && let Some(excluded) = excluded(&fields, findings, excluded_entry)?
        && (given.len() == 1 || excluded.is_needed)
    {
        return Ok(EntryTest::Not(excluded));
    }
    let [(key, given)] = given[..] else {
        let message = format!("an entry needs exactly one condition, found {}", given.len());
        return Err(findings.error(node.place, message, "use one of value, glob, present, not"));
    };
    Ok(match key.text.as_str() {
        "value" => EntryTest::Value(text(given, findings)?.to_owned()),
        "glob" => {
            let written = text(given, findings)?;
            let glob = Glob::parse(written);
            EntryTest::Glob(glob.ok_or_else(|| {
                let message = format!("the glob {} has no `*`", quoted(written));
                findings.error(given.place, message, "use `value:` for an exact match")
            })?)
        }
        _ => EntryTest::Present(truth(given, findings)?),
    })
}

fn header(key: &Key, node: &Node, findings: &mut Findings) -> Result<HeaderMatch, Reported> {
    let name = HeaderName::from_bytes(key.text.as_bytes()).map_err(|_| {
        let help = "use a name such as x-plan";
        findings.error(key.place, format!("invalid header name {}", quoted(&key.text)), help)
    });
    let test = match &node.value {
        Value::Scalar { text, plain: true } if matches!(text.to_ascii_lowercase().as_str(), "true" | "false") => {
            let help = format!("write `{{ present: {0} }}`, or `\"{0}\"` for the text", text.to_ascii_lowercase());
            Err(findings.error(node.place, "ambiguous: a value, or whether the header is present", help))
        }
        Value::Scalar { .. } if node.is_null() => {
            let help = "write `{ present: true }`, or `\"\"` for an empty value";
            Err(findings.error(key.place, format!("{} has no value", quoted(&key.text)), help))
        }
        Value::Scalar { .. } => value(node, findings).map(HeaderTest::Value),
        _ => header_test(node, findings),
    };
    Ok(HeaderMatch { name: name?, test: test? })
}

fn header_test(node: &Node, findings: &mut Findings) -> Result<HeaderTest, Reported> {
    let fields = Fields::of(node, "a condition on a header", &HEADER_KEYS, findings)?;
    let given: Vec<_> = HEADER_KEYS.iter().filter_map(|name| fields.get(name)).collect();
    if given.len() <= 2
        && let Some(excluded) = excluded(&fields, findings, excluded_header)?
        && (given.len() == 1 || excluded.is_needed)
    {
        return Ok(HeaderTest::Not(excluded));
    }
    let [(key, given)] = given[..] else {
        let message = format!("a header needs exactly one condition, found {}", given.len());
        return Err(findings.error(node.place, message, "use one of value, prefix, regex, present, not"));
    };
    Ok(match key.text.as_str() {
        "value" => HeaderTest::Value(value(given, findings)?),
        "prefix" => HeaderTest::Prefix(value(given, findings)?),
        "regex" => HeaderTest::Regex(regex(given, findings)?),
        _ => HeaderTest::Present(truth(given, findings)?),
    })
}

/// A value to compare with; those of requests are trimmed.
fn value(node: &Node, findings: &mut Findings) -> Result<String, Reported> {
    let value = text(node, findings)?;
    if value.trim() != value {
        let message = format!("{} never matches: surrounding spaces are not part of a header's value", quoted(value));
        return Err(findings.error(node.place, message, format!("write {}", quoted(value.trim()))));
    }
    Ok(value.to_owned())
}

/// A regular expression; the crate bounds the size of what it compiles to, and runs in linear time.
pub(super) fn regex(node: &Node, findings: &mut Findings) -> Result<Regex, Reported> {
    let pattern = text(node, findings)?;
    Regex::new(pattern).map_err(|error| {
        // The crate's text has several lines and ends with the reason.
        let text = error.to_string();
        let why = text.lines().last().unwrap_or_default().trim_start_matches("error: ");
        findings.error(node.place, format!("invalid regular expression {}", quoted(pattern)), why)
    })
}

/// A network; a bare address is one of its own.
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
