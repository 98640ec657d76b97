//! Which requests a limit covers: `match`.

use std::fmt;
use std::net::Ipv6Addr;

use http::header::HeaderName;
use ipnet::IpNet;
use regex::Regex;

use super::glob::Glob;
use super::path::Pattern;
use super::request::{Entry, Request};

/// The conditions of a limit. All that are given must hold; in a list one is enough.
#[derive(Clone, Debug, Default)]
pub struct Match {
    /// Methods, as sent (they are case-sensitive, RFC 9110 section 9.1). Empty: any.
    pub methods: Vec<String>,
    /// Hosts. Empty: any.
    pub hosts: Vec<HostPattern>,
    /// Path patterns. Empty: any.
    pub paths: Vec<Pattern>,
    /// Fields; each must hold.
    pub headers: Vec<HeaderMatch>,
    /// Networks of the client's address. Empty: any.
    pub networks: Vec<IpNet>,
    /// Domains of the rate limit service. Empty: any, and requests that have none.
    pub domains: Vec<String>,
    /// Entries of the descriptor.
    pub descriptor: DescriptorMatch,
}

impl Match {
    /// Whether it covers only requests of which a descriptor is known: none that a proxy sees.
    pub fn needs_descriptor(&self) -> bool {
        let wants = |entries: &[EntryMatch]| entries.iter().any(|entry| entry.test != EntryTest::Present(false));
        match &self.descriptor {
            DescriptorMatch::Each(entries) => !self.domains.is_empty() || wants(entries),
            DescriptorMatch::Whole(_) => true,
        }
    }
}

/// Conditions on a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DescriptorMatch {
    /// Each of these must hold, wherever the entry stands and whatever stands beside it.
    Each(Vec<EntryMatch>),
    /// The descriptor has these entries in this order and no other: a path through a [`super::descriptors::Tree`].
    Whole(Vec<EntryMatch>),
}

impl Default for DescriptorMatch {
    fn default() -> Self {
        Self::Each(Vec::new())
    }
}

/// A condition on one entry of a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryMatch {
    /// The key, case-sensitive.
    pub key: String,
    /// What its value must be.
    pub test: EntryTest,
}

/// What the value of an entry must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryTest {
    /// The entry is there (`true`) or is not (`false`).
    Present(bool),
    /// Exactly this.
    Value(String),
    /// Text that fits.
    Glob(Glob),
}

impl EntryTest {
    fn holds(&self, value: Option<&str>) -> bool {
        match self {
            Self::Present(present) => value.is_some() == *present,
            Self::Value(wanted) => value == Some(wanted),
            Self::Glob(glob) => value.is_some_and(|value| glob.matches(value)),
        }
    }
}

impl DescriptorMatch {
    /// The first entry that does not fit, by its index: that of the condition, or of the first entry too many.
    fn check(&self, request: &Request<'_>) -> Result<(), usize> {
        match self {
            Self::Each(entries) => {
                let unmet = entries.iter().position(|entry| !entry.test.holds(request.entry(&entry.key)));
                unmet.map_or(Ok(()), Err)
            }
            Self::Whole(path) => {
                let fits = |(wanted, given): (&EntryMatch, &Entry<'_>)| {
                    wanted.key == given.key && wanted.test.holds(Some(given.value))
                };
                let common = path.len().min(request.descriptor.len());
                match path.iter().zip(request.descriptor).position(|pair| !fits(pair)) {
                    Some(place) => Err(place),
                    None if path.len() == request.descriptor.len() => Ok(()),
                    None => Err(common),
                }
            }
        }
    }

    /// The conditions.
    pub fn entries(&self) -> &[EntryMatch] {
        let (Self::Each(entries) | Self::Whole(entries)) = self;
        entries
    }
}

/// A host to match, in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPattern {
    /// This host.
    Exact(String),
    /// `*.example.com`, kept as `.example.com`: any name below it, at any depth, and not `example.com` itself.
    Below(String),
}

impl HostPattern {
    /// Reads `api.example.com`, `*.example.com` or `[2001:db8::1]`, in any case and without a port. The error is what to
    /// write instead.
    pub fn parse(text: &str) -> Result<Self, String> {
        let host = text.to_ascii_lowercase();
        if let Some((_, rest)) = host.split_once("://") {
            return Err(format!("write the host alone, {}", rest.split(['/', ':']).next().unwrap_or(rest)));
        }
        if host.parse::<Ipv6Addr>().is_ok() {
            return Err(format!("write an IPv6 address in brackets, [{host}]"));
        }
        if let Some((name, port)) = host.rsplit_once(':')
            && !host.ends_with(']')
            && port.bytes().all(|byte| byte.is_ascii_digit())
        {
            return Err(format!("hosts are matched without the port; write {name}"));
        }
        if host == "*" {
            return Err("leave it out for any host".to_owned());
        }
        let bracketed = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        if bracketed.is_some_and(|address| address.parse::<Ipv6Addr>().is_ok()) {
            return Ok(Self::Exact(host));
        }
        let name = host.strip_prefix("*.").unwrap_or(&host);
        let fits = |label: &str| {
            !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
        };
        if name.len() > 253 || !name.split('.').all(fits) {
            return Err("write api.example.com, or *.example.com for every name below it".to_owned());
        }
        Ok(if name.len() == host.len() { Self::Exact(host) } else { Self::Below(format!(".{name}")) })
    }

    /// Whether it matches a host in lower case.
    pub fn matches(&self, host: &str) -> bool {
        match self {
            Self::Exact(exact) => exact == host,
            Self::Below(suffix) => host.len() > suffix.len() && host.ends_with(suffix.as_str()),
        }
    }
}

/// As it is written.
impl fmt::Display for HostPattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => formatter.write_str(name),
            Self::Below(suffix) => write!(formatter, "*{suffix}"),
        }
    }
}

/// A condition on one field.
#[derive(Clone, Debug)]
pub struct HeaderMatch {
    /// The field.
    pub name: HeaderName,
    /// What its value must be.
    pub test: HeaderTest,
}

/// What a field's value must be.
#[derive(Clone, Debug)]
pub enum HeaderTest {
    /// The field is there (`true`) or is not (`false`).
    Present(bool),
    /// Exactly this.
    Value(String),
    /// Begins with this.
    Prefix(String),
    /// Matches this, unanchored.
    Regex(Regex),
}

impl HeaderMatch {
    fn holds(&self, request: &Request<'_>) -> bool {
        match &self.test {
            HeaderTest::Present(present) => request.headers.contains(self.name.as_str()) == *present,
            HeaderTest::Value(value) => request.header(self.name.as_str()) == Some(value),
            HeaderTest::Prefix(prefix) => {
                request.header(self.name.as_str()).is_some_and(|value| value.starts_with(prefix))
            }
            HeaderTest::Regex(regex) => request.header(self.name.as_str()).is_some_and(|value| regex.is_match(value)),
        }
    }
}

/// A condition that a request does not meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// `methods`
    Method,
    /// `host`
    Host,
    /// `path`
    Path,
    /// `headers`, at this index.
    Header(usize),
    /// `cidr`
    Network,
    /// `domain`
    Domain,
    /// `descriptor`, at this index.
    Entry(usize),
}

impl Match {
    /// Whether a request meets the conditions; the error is the first that it does not.
    pub fn check(&self, request: &Request<'_>) -> Result<(), Mismatch> {
        let methods = &self.methods;
        if !methods.is_empty() && !methods.iter().any(|method| method == request.method) {
            return Err(Mismatch::Method);
        }
        if !self.hosts.is_empty() && !self.hosts.iter().any(|host| host.matches(request.host)) {
            return Err(Mismatch::Host);
        }
        if !self.paths.is_empty() && !self.paths.iter().any(|pattern| pattern.matches(request.path)) {
            return Err(Mismatch::Path);
        }
        if let Some(place) = self.headers.iter().position(|header| !header.holds(request)) {
            return Err(Mismatch::Header(place));
        }
        let inside = |client| self.networks.iter().any(|network| network.contains(&client));
        if !self.networks.is_empty() && !request.client.is_some_and(inside) {
            return Err(Mismatch::Network);
        }
        if !self.domains.is_empty() && !self.domains.iter().any(|domain| Some(domain.as_str()) == request.domain) {
            return Err(Mismatch::Domain);
        }
        self.descriptor.check(request).map_err(Mismatch::Entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_names_wildcards_and_bracketed_addresses() {
        for (text, expected) in [
            ("api.example.com", "api.example.com"),
            ("API.Example", "api.example"),
            ("*.Example.com", "*.example.com"),
            ("_dmarc.a", "_dmarc.a"),
            ("192.0.2.1", "192.0.2.1"),
            ("[2001:DB8::1]", "[2001:db8::1]"),
        ] {
            assert_eq!(HostPattern::parse(text).map(|host| host.to_string()), Ok(expected.to_owned()), "{text}");
        }
    }

    #[test]
    fn mistaken_hosts_say_what_to_write() {
        for (text, part) in [
            ("https://a.example:1/x", "the host alone, a.example"),
            ("a.example:443", "write a.example"),
            ("[::1]:80", "write [::1]"),
            ("::1", "write an IPv6 address in brackets, [::1]"),
            ("*", "leave it out"),
            ("a.*.com", "*.example.com for every name below"),
            ("", "write api.example.com"),
            ("a..b", "write api.example.com"),
        ] {
            assert!(HostPattern::parse(text).is_err_and(|help| help.contains(part)), "{text}");
        }
    }
}
