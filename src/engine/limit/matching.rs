//! `match`: the conditions under which a limit covers a request.

use http::header::HeaderName;
use ipnet::IpNet;
use regex::Regex;
use smallvec::SmallVec;

use crate::engine::request::claims::ClaimRef;
use crate::engine::request::glob::Glob;
use crate::engine::request::path_pattern::{PathPattern, PathReading};
use crate::engine::request::{DescriptorEntry, Request};
use crate::message::host_pattern::HostPattern;

/// The indices of limits that may cover a request.
pub type Candidates = SmallVec<[u32; 16]>;

/// The conditions of a limit. All that are given must hold; of a list, one is enough. An empty list matches everything.
#[derive(Clone, Debug, Default)]
pub struct Match {
    /// Case-sensitive (RFC 9110 section 9.1).
    pub methods: Vec<String>,
    pub hosts: Vec<HostPattern>,
    /// Hosts that are excluded.
    pub other_hosts: Vec<HostPattern>,
    /// Read by `path_reading`.
    pub paths: Vec<PathPattern>,
    pub path_reading: PathReading,
    /// Each must hold.
    pub headers: Vec<HeaderMatch>,
    /// Each must hold.
    pub claims: Vec<ClaimMatch>,
    /// Networks of the client's address.
    pub networks: Vec<IpNet>,
    /// Networks that are excluded. A client without an address is in none.
    pub other_networks: Vec<IpNet>,
    /// Domains of the rate limit service. An empty list also matches requests without a domain.
    pub domains: Vec<String>,
    pub descriptor: DescriptorMatch,
}

impl Match {
    /// Returns true if it covers only requests with a descriptor, which the proxy never sees.
    pub fn needs_descriptor(&self) -> bool {
        let wants = |entries: &[EntryMatch]| entries.iter().any(|entry| entry.test.needs_value());
        match &self.descriptor {
            DescriptorMatch::Each(entries) => !self.domains.is_empty() || wants(entries),
            DescriptorMatch::Whole(_) => true,
        }
    }
}

/// Conditions on a descriptor.
#[derive(Clone, Debug)]
pub enum DescriptorMatch {
    /// Each of these must hold; order and other entries do not matter.
    Each(Vec<EntryMatch>),
    /// The descriptor has exactly these entries in this order: a path through a [`crate::engine::limit::descriptors::Tree`].
    Whole(Vec<EntryMatch>),
}

impl Default for DescriptorMatch {
    fn default() -> Self {
        Self::Each(Vec::new())
    }
}

/// A condition on one entry of a descriptor.
#[derive(Clone, Debug)]
pub struct EntryMatch {
    /// Case-sensitive.
    pub key: String,
    pub test: ValueTest,
}

/// A condition on the values of a header or of a descriptor's entries. One match is enough if there are several.
#[derive(Clone, Debug)]
pub enum ValueTest {
    /// True if there must be a value, false if there must be none.
    Present(bool),
    Value(String),
    Prefix(String),
    /// Unanchored.
    Regex(Regex),
    Glob(Glob),
    Not(Exclusion),
}

/// Excluded values.
#[derive(Clone, Debug)]
pub struct Exclusion {
    /// The tests that a value must not pass.
    pub tests: Vec<ValueTest>,
    /// False if requests without a value are covered, too.
    pub is_needed: bool,
}

impl ValueTest {
    /// Returns true if requests without a value do not match.
    pub const fn needs_value(&self) -> bool {
        match self {
            Self::Present(present) => *present,
            Self::Not(excluded) => excluded.is_needed,
            _ => true,
        }
    }

    /// Returns true if a value passes the test.
    pub(crate) fn meets(&self, value: &str) -> bool {
        match self {
            Self::Present(present) => *present,
            Self::Value(wanted) => value == wanted,
            Self::Prefix(prefix) => value.starts_with(prefix),
            Self::Regex(regex) => regex.is_match(value),
            Self::Glob(glob) => glob.matches(value),
            Self::Not(excluded) => !excluded.tests.iter().any(|test| test.meets(value)),
        }
    }

    fn holds<V: AsRef<str>>(&self, mut values: impl Iterator<Item = V>) -> bool {
        match self {
            Self::Present(present) => values.next().is_some() == *present,
            // One value that is not excluded is enough, so that nobody evades the limit by adding values.
            Self::Not(excluded) => match values.next() {
                None => !excluded.is_needed,
                Some(first) => self.meets(first.as_ref()) || values.any(|value| self.meets(value.as_ref())),
            },
            test => values.any(|value| test.meets(value.as_ref())),
        }
    }
}

impl DescriptorMatch {
    /// The error is the index of the first mismatch: that of the condition, or of the first surplus entry.
    fn check(&self, request: &Request<'_>) -> Result<(), usize> {
        match self {
            Self::Each(entries) => {
                let unmet = entries.iter().position(|entry| !entry.test.holds(request.entries(&entry.key)));
                unmet.map_or(Ok(()), Err)
            }
            Self::Whole(path) => {
                let fits = |(wanted, given): (&EntryMatch, &DescriptorEntry<'_>)| {
                    wanted.key == given.key && wanted.test.meets(given.value)
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

    pub fn entries(&self) -> &[EntryMatch] {
        let (Self::Each(entries) | Self::Whole(entries)) = self;
        entries
    }
}

/// A condition on one header.
#[derive(Clone, Debug)]
pub struct HeaderMatch {
    pub name: HeaderName,
    pub test: ValueTest,
}

/// A condition on one claim. Of a list, one value is enough.
#[derive(Clone, Debug)]
pub struct ClaimMatch {
    pub claim: ClaimRef,
    pub test: ValueTest,
}

impl HeaderMatch {
    fn holds(&self, request: &Request<'_>) -> bool {
        self.test.holds(request.lines(self.name.as_str()))
    }
}

/// The condition of `match` that a request does not meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    Method,
    Host,
    Path,
    /// `headers`, at this index.
    Header(usize),
    /// `claims`, at this index.
    Claim(usize),
    /// `cidr`
    Network,
    Domain,
    /// `descriptor`, at this index.
    Entry(usize),
}

impl Match {
    /// The first claim that may have any value, because its token is not valid. The request counts as one that the limit covers,
    /// and `malformed` decides.
    pub(crate) fn unreadable_claim(&self, request: &Request<'_>) -> Option<usize> {
        self.claims.iter().position(|wanted| wanted.claim.is_unreadable(request.claims))
    }

    /// Checks whether a request meets the conditions; the error is the first that it does not meet.
    pub fn check(&self, request: &Request<'_>) -> Result<(), Mismatch> {
        let methods = &self.methods;
        if !methods.is_empty() && !methods.iter().any(|method| method == request.method) {
            return Err(Mismatch::Method);
        }
        let is_among = |hosts: &[HostPattern]| hosts.iter().any(|host| host.matches(request.host));
        if !self.hosts.is_empty() && !is_among(&self.hosts) || is_among(&self.other_hosts) {
            return Err(Mismatch::Host);
        }
        if !self.paths.is_empty() {
            let path = self.path_reading.of(request.path);
            if !self.paths.iter().any(|pattern| pattern.matches(&path)) {
                return Err(Mismatch::Path);
            }
        }
        if let Some(place) = self.headers.iter().position(|header| !header.holds(request)) {
            return Err(Mismatch::Header(place));
        }
        let is_inside = |networks: &[IpNet]| {
            request.client.is_some_and(|client| networks.iter().any(|network| network.contains(&client)))
        };
        if !self.networks.is_empty() && !is_inside(&self.networks) || is_inside(&self.other_networks) {
            return Err(Mismatch::Network);
        }
        if !self.domains.is_empty() && !self.domains.iter().any(|domain| Some(domain.as_str()) == request.domain) {
            return Err(Mismatch::Domain);
        }
        self.descriptor.check(request).map_err(Mismatch::Entry)?;
        // Last: a request whose tokens are not verified yet meets all others if it fails here.
        let holds = |wanted: &ClaimMatch| {
            wanted.claim.is_unreadable(request.claims) || wanted.test.holds(wanted.claim.texts(request.claims))
        };
        self.claims.iter().position(|claim| !holds(claim)).map_or(Ok(()), |place| Err(Mismatch::Claim(place)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::request::sample;
    use crate::message::headers::Headers;

    fn headers(name: &'static str, test: ValueTest) -> Match {
        Match { headers: vec![HeaderMatch { name: HeaderName::from_static(name), test }], ..Match::default() }
    }

    #[track_caller]
    fn covers(conditions: &Match, lines: &[&[u8]], expected: bool) {
        let headers: Headers = lines.iter().map(|line| ("x-plan", line)).collect();
        assert_eq!(conditions.check(&sample(&headers)).is_ok(), expected, "{conditions:?} {lines:?}");
    }

    #[test]
    fn headers_match_whatever_bytes_they_have() {
        let value = |text: &str| headers("x-plan", ValueTest::Value(text.into()));
        covers(&value("caf\u{e9}"), &["caf\u{e9}".as_bytes()], true);
        covers(&value("caf\u{e9}"), &[b"caf\xe9"], false);
        covers(&value("free"), &[b"free"], true);
        covers(&headers("x-plan", ValueTest::Prefix("Bad".into())), &[b"Bad \xe9"], true);
        let regex = |text| headers("x-plan", ValueTest::Regex(Regex::new(text).unwrap()));
        covers(&regex("^Bad .x$"), &[b"Bad \xe9x"], true);
        covers(&regex("x$"), &[b"\xff x"], true);
        covers(&headers("x-plan", ValueTest::Present(true)), &[b"\xe9"], true);
    }

    #[test]
    fn one_of_several_lines_is_enough_to_be_covered() {
        let free = || ValueTest::Value("free".into());
        covers(&headers("x-plan", free()), &[b"paid", b"free"], true);
        covers(&headers("x-plan", free()), &[b"paid", b""], false);
        let not = |is_needed| headers("x-plan", ValueTest::Not(Exclusion { tests: vec![free()], is_needed }));
        covers(&not(false), &[b"free", b"paid"], true);
        covers(&not(false), &[b"free", b"free"], false);
        covers(&not(false), &[], true);
        covers(&not(true), &[], false);
        covers(&not(true), &[b""], true);
    }

    #[test]
    fn what_is_excluded_is_not_covered() {
        let hosts = |text: &str| vec![HostPattern::parse(text).unwrap()];
        let headers = Headers::new();
        let check = |conditions: &Match, host, client: Option<[u8; 4]>| {
            conditions.check(&Request { host, client: client.map(Into::into), ..sample(&headers) })
        };
        let not_host = Match { other_hosts: hosts("*.a.example"), ..Match::default() };
        assert_eq!(check(&not_host, "x.a.example", None), Err(Mismatch::Host));
        assert_eq!(check(&not_host, "a.example", None), Ok(()));
        let not_inside = Match { other_networks: vec!["10.0.0.0/8".parse().unwrap()], ..Match::default() };
        assert_eq!(check(&not_inside, "a", Some([10, 1, 2, 3])), Err(Mismatch::Network));
        assert_eq!(check(&not_inside, "a", Some([192, 0, 2, 1])), Ok(()));
        assert_eq!(check(&not_inside, "a", None), Ok(()));
    }

    #[test]
    fn entries_are_excluded_as_headers_are() {
        let gold = || ValueTest::Value("gold".into());
        let test = |test, entries: &[&str], expected| {
            let descriptor = DescriptorMatch::Each(vec![EntryMatch { key: "plan".into(), test }]);
            let conditions = Match { descriptor, ..Match::default() };
            let entries: Vec<_> = entries.iter().map(|value| DescriptorEntry { key: "plan", value }).collect();
            let headers = Headers::new();
            let request = Request { descriptor: &entries, ..sample(&headers) };
            assert_eq!(conditions.check(&request).is_ok(), expected, "{conditions:?} {entries:?}");
        };
        let not = |is_needed| ValueTest::Not(Exclusion { tests: vec![gold()], is_needed });
        for (is_needed, entries, expected) in [
            (false, &[][..], true),
            (true, &[], false),
            (true, &["gold"], false),
            (true, &["gold", "free"], true),
            (false, &[""], true),
        ] {
            test(not(is_needed), entries, expected);
        }
        test(gold(), &["free", "gold"], true);
    }
}
