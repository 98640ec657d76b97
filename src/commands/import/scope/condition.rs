//! Conditions on one part of a request, such as its path.

use std::net::IpAddr;

use ipnet::IpNet;
use regex::Regex;

use super::super::text::{map, one_or_list, quoted};

/// A test of a host, a path, a network or a header's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum Test {
    /// A pattern of `match`: `/v1/**`, `*.example.com`, or exactly this text.
    Is(String),
    Network(IpNet),
    Prefix(String),
    Regex(String),
    Present,
    Absent,
}

/// Values that pass one of the tests in `any`, and none of those in `not`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Condition {
    /// Empty for all values.
    pub(in super::super) any: Vec<Test>,
    pub(in super::super) not: Vec<Test>,
}

impl Test {
    pub(in super::super) fn is(text: impl Into<String>) -> Self {
        Self::Is(text.into())
    }

    /// A network or an address; bits behind the prefix do not count. Text that is neither stays as it is, for the loader to refuse.
    pub(in super::super) fn network(text: &str) -> Self {
        let network = text.parse::<IpNet>().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
        network.map_or_else(|| Self::is(text), |network| Self::Network(network.trunc()))
    }

    /// The paths at or below a folder, which ends with a slash, or those that begin with this text.
    pub(in super::super) fn below(prefix: &str) -> Self {
        if prefix.ends_with('/') { Self::Is(format!("{prefix}**")) } else { Self::Prefix(prefix.to_owned()) }
    }

    pub(super) fn text(&self) -> String {
        match self {
            Self::Is(text) => quoted(text),
            Self::Network(network) if network.prefix_len() == network.max_prefix_len() => {
                quoted(&network.addr().to_string())
            }
            Self::Network(network) => quoted(&network.to_string()),
            Self::Prefix(text) => map(&[("prefix", quoted(text))]),
            Self::Regex(text) => map(&[("regex", quoted(text))]),
            Self::Present => "{ present: true }".to_owned(),
            Self::Absent => "{ present: false }".to_owned(),
        }
    }

    /// The text that all its values begin with, and whether they may go on.
    fn start(&self) -> Option<(&str, bool)> {
        match self {
            Self::Is(text) => Some(text.strip_suffix("**").map_or((text.as_str(), false), |start| (start, true))),
            Self::Prefix(text) => Some((text, true)),
            _ => None,
        }
    }

    pub(in super::super) fn covers(&self, value: &str) -> bool {
        match self {
            Self::Is(text) if text.starts_with("*.") => value.ends_with(text.get(1..).unwrap_or_default()),
            Self::Regex(text) => Regex::new(text).is_ok_and(|regex| regex.is_match(value)),
            Self::Network(network) => value.parse::<IpAddr>().is_ok_and(|address| network.contains(&address)),
            Self::Present => true,
            Self::Absent => false,
            _ => self.start().is_some_and(|(start, is_open)| {
                value == start || is_open && (value.starts_with(start) || value == start.trim_end_matches('/'))
            }),
        }
    }

    /// Returns true if it is known that `outer` covers all values that this covers.
    pub(in super::super) fn is_within(&self, outer: &Self) -> bool {
        if let (Self::Network(own), Self::Network(outer)) = (self, outer) {
            return outer.contains(own);
        }
        match (self.start(), outer.start()) {
            _ if self == outer => true,
            (None, None) => matches!((self, outer), (Self::Regex(_), Self::Present)),
            (Some((start, false)), _) if !start.starts_with("*.") => outer.covers(start),
            (Some((start, _)), Some((outer, true))) => start.starts_with(outer),
            (Some((start, _)), Some((outer, false))) => outer.starts_with("*.") && start.ends_with(&outer[1..]),
            _ => false,
        }
    }

    /// Returns false if it is known that no value passes both.
    pub(in super::super) fn may_meet(&self, other: &Self) -> bool {
        let is_exact = |test: &Self| matches!(test.start(), Some((start, false)) if !start.starts_with("*."));
        let is_regex = |test: &Self| matches!(test, Self::Regex(_));
        self.is_within(other)
            || other.is_within(self)
            || is_regex(self) && !is_exact(other)
            || is_regex(other) && !is_exact(self)
    }
}

impl Condition {
    pub(in super::super) fn of(any: impl IntoIterator<Item = Test>) -> Self {
        Self { any: any.into_iter().collect(), not: Vec::new() }
    }

    pub(in super::super) fn except(not: impl IntoIterator<Item = Test>) -> Self {
        Self { any: Vec::new(), not: not.into_iter().collect() }
    }

    pub(in super::super) fn is_open(&self) -> bool {
        self.any.is_empty() && self.not.is_empty()
    }

    pub(in super::super) fn covers(&self, value: &str) -> bool {
        (self.any.is_empty() || self.any.iter().any(|test| test.covers(value)))
            && !self.not.iter().any(|test| test.covers(value))
    }

    /// Excludes more values. Those that this does not cover anyway need no mention.
    pub(in super::super) fn exclude(&mut self, tests: &[Test]) {
        for test in tests {
            let meets = self.any.is_empty() || self.any.iter().any(|own| own.may_meet(test));
            if meets && !self.not.iter().any(|known| test.is_within(known)) {
                self.not.retain(|known| !known.is_within(test));
                self.not.push(test.clone());
            }
        }
    }

    /// The values that pass both; `None` if `match` cannot say that.
    pub(in super::super) fn and(&self, other: &Self) -> Option<Self> {
        let within =
            |inner: &[Test], outer: &[Test]| inner.iter().all(|test| outer.iter().any(|out| test.is_within(out)));
        let any = match (self.any.as_slice(), other.any.as_slice()) {
            (all, []) | ([], all) => all,
            (own, others) if within(own, others) => own,
            (own, others) if within(others, own) => others,
            _ => return None,
        };
        let mut both = Self::of(any.to_vec());
        both.exclude(&self.not);
        both.exclude(&other.not);
        Some(both)
    }

    /// The values of either, if what one excludes is not among those of the other.
    pub(super) fn or(&self, other: &Self) -> Option<Self> {
        if let Some(all) = [self, other].into_iter().find(|condition| condition.is_open()) {
            return Some(all.clone());
        }
        let cuts = |not: &[Test], any: &[Test]| not.iter().any(|test| any.iter().any(|each| each.may_meet(test)));
        if self.any.is_empty() || other.any.is_empty() || cuts(&self.not, &other.any) || cuts(&other.not, &self.any) {
            return None;
        }
        let mut both = self.clone();
        both.any.extend(other.any.iter().filter(|test| !self.any.contains(test)).cloned());
        both.not.extend(other.not.iter().filter(|test| !self.not.contains(test)).cloned());
        Some(both)
    }

    /// The value of a key of `match`.
    pub(super) fn text(&self) -> String {
        let not: Vec<String> = self.not.iter().map(Test::text).collect();
        let not = (!not.is_empty()).then(|| map(&[("not", one_or_list(&not))]));
        one_or_list(&self.any.iter().map(Test::text).chain(not).collect::<Vec<_>>())
    }

    /// Returns false if a header's condition cannot say it: of a list of tests, one is enough.
    pub(in super::super) fn fits_header(&self) -> bool {
        self.not.is_empty() || matches!(self.any.as_slice(), [] | [Test::Present])
    }

    /// The condition on a header.
    pub(super) fn header_text(&self) -> String {
        let not: Vec<String> = self.not.iter().map(Test::text).collect();
        match self.any.as_slice() {
            [] => map(&[("not", one_or_list(&not))]),
            [Test::Present] if !not.is_empty() => map(&[("present", "true".to_owned()), ("not", one_or_list(&not))]),
            any => one_or_list(&any.iter().map(Test::text).collect::<Vec<_>>()),
        }
    }

    fn networks(&self) -> [Vec<IpNet>; 2] {
        let parsed = |test: &Test| if let Test::Network(network) = test { Some(*network) } else { None };
        [&self.any, &self.not].map(|tests| tests.iter().filter_map(parsed).collect())
    }

    /// Returns whether an address passes.
    pub(super) fn holds(&self, address: &str) -> bool {
        let Ok(address) = address.parse::<IpAddr>() else { return false };
        let [any, not] = self.networks();
        let holds = |networks: &[IpNet]| networks.iter().any(|network| network.contains(&address));
        (any.is_empty() || holds(&any)) && !holds(&not)
    }

    /// An address that passes.
    pub(super) fn address(&self) -> Option<String> {
        let [any, not] = self.networks();
        let first = |network: &IpNet| network.hosts().nth(1).or_else(|| network.hosts().next());
        let candidates = any.iter().filter_map(first).chain(any.is_empty().then_some(IpAddr::from([192, 0, 2, 1])));
        let mut candidates = candidates.filter(|address| !not.iter().any(|network| network.contains(address)));
        candidates.next().map(|address| address.to_string())
    }

    /// A value that passes.
    pub(super) fn sample(&self, default: &str) -> Option<String> {
        let starts = self.any.iter().filter_map(Test::start);
        let starts = starts.map(|(start, is_open)| {
            (start.strip_prefix('*').map_or(start.to_owned(), |rest| format!("weir{rest}")), is_open)
        });
        let defaults = self.any.is_empty().then(|| (default.to_owned(), default == "/"));
        let literals = self.any.iter().filter_map(|test| match test {
            Test::Regex(text) => text.strip_prefix("^(?i:")?.strip_suffix(")$"),
            _ => None,
        });
        let literals = literals.map(|text| (text.replace('\\', ""), false));
        let candidates = starts.chain(literals).chain(defaults).flat_map(|(start, is_open)| {
            let longer = is_open.then(|| format!("{start}weir"));
            std::iter::once(start).chain(longer)
        });
        candidates.into_iter().find(|value| !value.contains(['{', '*']) && self.covers(value))
    }
}
