//! Which requests a limit covers: `match`.

use http::header::HeaderName;
use ipnet::IpNet;
use regex::Regex;

use super::path::Pattern;
use super::request::Request;

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
    /// Whether it matches a host in lower case.
    pub fn matches(&self, host: &str) -> bool {
        match self {
            Self::Exact(exact) => exact == host,
            Self::Below(suffix) => host.len() > suffix.len() && host.ends_with(suffix.as_str()),
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
        if !self.networks.is_empty() && !self.networks.iter().any(|network| network.contains(&request.client)) {
            return Err(Mismatch::Network);
        }
        Ok(())
    }
}
