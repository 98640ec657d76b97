//! `match`: the conditions under which a limit covers a request.

use ipnet::IpNet;
use regex::Regex;
use smallvec::SmallVec;

use crate::engine::request::Request;
use crate::engine::request::claims::ClaimRef;
use crate::engine::request::glob::Glob;
use crate::engine::request::part::{ADDRESS, Part};
use crate::engine::request::path_condition::PathCondition;
use crate::engine::request::path_pattern::PathReading;
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
    pub paths: Vec<PathCondition>,
    /// Paths that are excluded, read by `path_reading`.
    pub other_paths: Vec<PathCondition>,
    pub path_reading: PathReading,
    /// Networks of the client's address.
    pub networks: Vec<IpNet>,
    /// Networks that are excluded. A client without an address is in none.
    pub other_networks: Vec<IpNet>,
    /// Domains of the rate limit service. An empty list also matches requests without a domain.
    pub domains: Vec<String>,
    /// Each must hold. Those on claims come last.
    pub parts: Vec<PartMatch>,
    /// True if it covers only descriptors with as many entries as it has conditions: `parts` are a path through a
    /// [`crate::engine::limit::descriptors::Tree`].
    pub is_whole: bool,
}

/// A condition on a part of a request. Of several values, one is enough.
#[derive(Clone, Debug)]
pub struct PartMatch {
    pub part: Part,
    pub test: ValueTest,
}

/// A condition on values.
#[derive(Clone, Debug)]
pub enum ValueTest {
    /// True if there must be a value, false if there must be none.
    Present(bool),
    Value(String),
    Prefix(String),
    /// Unanchored.
    Regex(Regex),
    Glob(Glob),
    /// One of the tests is enough. None of them is `Present` or `Not`.
    OneOf(Vec<ValueTest>),
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

    /// The tests of which one is enough: those of a list, or this one.
    pub(crate) fn alternatives(&self) -> &[Self] {
        if let Self::OneOf(tests) = self { tests } else { std::slice::from_ref(self) }
    }

    /// The values that pass the test, if these are a few exact ones.
    pub(crate) fn exact(&self) -> Option<Vec<&str>> {
        let tests = self.alternatives().iter();
        tests.map(|test| if let Self::Value(value) = test { Some(value.as_str()) } else { None }).collect()
    }

    /// Returns true if a value passes the test.
    pub(crate) fn meets(&self, value: &str) -> bool {
        match self {
            Self::Present(present) => *present,
            Self::Value(wanted) => value == wanted,
            Self::Prefix(prefix) => value.starts_with(prefix),
            Self::Regex(regex) => regex.is_match(value),
            Self::Glob(glob) => glob.matches(value),
            Self::OneOf(tests) => tests.iter().any(|test| test.meets(value)),
            Self::Not(excluded) => !excluded.tests.iter().any(|test| test.meets(value)),
        }
    }
}

impl PartMatch {
    fn holds(&self, request: &Request<'_>) -> bool {
        let mut is_present = false;
        let mut meets = |value: &str| {
            is_present = true;
            self.test.meets(value)
        };
        // One value that is not excluded is enough, so that nobody evades the limit by adding values.
        self.may_be_any(request) || self.part.any_value(request, &mut meets) || !is_present && !self.test.needs_value()
    }

    /// Returns true for a claim of a token that is not valid.
    fn may_be_any(&self, request: &Request<'_>) -> bool {
        matches!(&self.part, Part::Claim(claim) if claim.is_unreadable(request.claims))
    }
}

/// The condition of `match` that a request does not meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    Method,
    Host,
    Path,
    /// `cidr`
    Network,
    Domain,
    /// The condition of [`Match::parts`] with this index, or the entry of the descriptor that is one too many.
    Part(usize),
}

impl Match {
    /// The parts of a request that it reads.
    pub fn parts_read(&self) -> impl Iterator<Item = &Part> {
        let lists = [
            (!self.methods.is_empty(), &Part::Method),
            (!self.hosts.is_empty() || !self.other_hosts.is_empty(), &Part::Host),
            (!self.paths.is_empty() || !self.other_paths.is_empty(), &Part::Path),
            (!self.networks.is_empty() || !self.other_networks.is_empty(), &ADDRESS),
        ];
        let read = lists.into_iter().filter(|(is_read, _)| *is_read).map(|(_, part)| part);
        read.chain(self.parts.iter().map(|wanted| &wanted.part))
    }

    /// The conditions on entries of a descriptor, by key.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &ValueTest)> {
        self.parts.iter().filter_map(|wanted| Some((wanted.part.entry_key()?, &wanted.test)))
    }

    /// The claims that it tests.
    pub(crate) fn claims(&self) -> impl Iterator<Item = &ClaimRef> {
        self.parts.iter().filter_map(|wanted| if let Part::Claim(claim) = &wanted.part { Some(claim) } else { None })
    }

    /// Returns true if it covers only requests with a descriptor, which the proxy never sees.
    pub fn needs_descriptor(&self) -> bool {
        self.is_whole || !self.domains.is_empty() || self.entries().any(|(_, test)| test.needs_value())
    }

    /// The first claim that may have any value, because its token is not valid. The request counts as one that the limit covers,
    /// and `malformed` decides.
    pub(crate) fn unreadable_claim(&self, request: &Request<'_>) -> Option<usize> {
        self.parts.iter().position(|wanted| wanted.may_be_any(request))
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
        if !self.paths.is_empty() || !self.other_paths.is_empty() {
            let path = self.path_reading.of(request.path);
            let is_among = |paths: &[PathCondition]| paths.iter().any(|condition| condition.matches(&path));
            if !self.paths.is_empty() && !is_among(&self.paths) || is_among(&self.other_paths) {
                return Err(Mismatch::Path);
            }
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
        if let Some(place) = self.parts.iter().position(|wanted| !wanted.holds(request)) {
            return Err(Mismatch::Part(place));
        }
        let is_too_long = self.is_whole && request.descriptor.len() > self.parts.len();
        if is_too_long { Err(Mismatch::Part(self.parts.len())) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use http::header::HeaderName;

    use super::*;
    use crate::engine::request::{DescriptorEntry, sample};
    use crate::message::headers::Headers;

    fn headers(name: &'static str, test: ValueTest) -> Match {
        let part = Part::Header(HeaderName::from_static(name));
        Match { parts: vec![PartMatch { part, test }], ..Match::default() }
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
        let tests = vec![free(), ValueTest::Prefix("trial".into())];
        let one_of = headers("x-plan", ValueTest::OneOf(tests));
        covers(&one_of, &[b"paid", b"trial-2"], true);
        covers(&one_of, &[b"free"], true);
        covers(&one_of, &[b"paid", b""], false);
        covers(&one_of, &[], false);
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
        let list = Match { hosts: hosts("*.example"), ..not_host.clone() };
        assert_eq!(check(&list, "b.example", None), Ok(()));
        assert_eq!(check(&list, "x.a.example", None), Err(Mismatch::Host));
        assert_eq!(check(&list, "b", None), Err(Mismatch::Host));
        let not_inside = Match { other_networks: vec!["10.0.0.0/8".parse().unwrap()], ..Match::default() };
        assert_eq!(check(&not_inside, "a", Some([10, 1, 2, 3])), Err(Mismatch::Network));
        assert_eq!(check(&not_inside, "a", Some([192, 0, 2, 1])), Ok(()));
        assert_eq!(check(&not_inside, "a", None), Ok(()));
    }

    #[test]
    fn excluded_paths_are_read_as_covered_ones() {
        let path_reading = PathReading { ignores_case: true, strips_parameters: true };
        let prefix = |text: &str| vec![PathCondition::prefix(text, path_reading).unwrap()];
        let headers = Headers::new();
        let check = |conditions: &Match, path| conditions.check(&Request { path, ..sample(&headers) });
        let list = Match { paths: prefix("/A"), other_paths: prefix("/a/B"), path_reading, ..Match::default() };
        for (path, expected) in [
            ("/A;x/c", Ok(())),
            ("/a;x/bc", Err(Mismatch::Path)),
            ("/A/x/..;y/b", Err(Mismatch::Path)),
            ("/c", Err(Mismatch::Path)),
        ] {
            assert_eq!(check(&list, path), expected, "{path}");
        }
        let not = Match { other_paths: prefix("/a/b"), ..Match::default() };
        assert_eq!((check(&not, "/c"), check(&not, "/a/b")), (Ok(()), Err(Mismatch::Path)));
        let read = |conditions: &Match| conditions.parts_read().cloned().collect::<Vec<_>>();
        assert_eq!((read(&not), read(&list)), (vec![Part::Path], vec![Part::Path]));
    }

    #[test]
    fn entries_are_excluded_as_headers_are() {
        let gold = || ValueTest::Value("gold".into());
        let test = |test, entries: &[&str], expected| {
            let parts = vec![PartMatch { part: Part::Descriptor("plan".into()), test }];
            let conditions = Match { parts, ..Match::default() };
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
