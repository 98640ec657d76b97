//! The requests that a gateway's limit covers, as conditions of `match`.

use std::net::IpAddr;

use ipnet::IpNet;
use regex::Regex;

use super::text::{map, one_or_list, quoted};

/// A test of a host, a path, a network or a header's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Test {
    /// A pattern of `match`: `/v1/**`, `*.example.com`, `10.0.0.0/8`, or exactly this text.
    Is(String),
    Prefix(String),
    Regex(String),
    Present,
    Absent,
}

/// Values that pass one of the tests in `any`, and none of those in `not`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Condition {
    /// Empty for all values.
    pub(super) any: Vec<Test>,
    pub(super) not: Vec<Test>,
}

/// All conditions must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Scope {
    pub(super) hosts: Condition,
    pub(super) paths: Condition,
    pub(super) networks: Condition,
    /// Empty for all methods.
    pub(super) methods: Vec<String>,
    pub(super) headers: Vec<(String, Condition)>,
}

/// A request that a scope covers, for tests.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) method: String,
    pub(super) host: Option<String>,
    pub(super) path: String,
    pub(super) address: String,
    pub(super) headers: Vec<(String, String)>,
}

impl Test {
    pub(super) fn is(text: impl Into<String>) -> Self {
        Self::Is(text.into())
    }

    /// The paths at or below a folder, which ends with a slash, or those that begin with this text.
    pub(super) fn below(prefix: &str) -> Self {
        if prefix.ends_with('/') { Self::Is(format!("{prefix}**")) } else { Self::Prefix(prefix.to_owned()) }
    }

    fn text(&self) -> String {
        match self {
            Self::Is(text) => quoted(text),
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

    pub(super) fn covers(&self, value: &str) -> bool {
        match self {
            Self::Is(text) if text.starts_with("*.") => value.ends_with(text.get(1..).unwrap_or_default()),
            Self::Regex(text) => Regex::new(text).is_ok_and(|regex| regex.is_match(value)),
            Self::Present => true,
            Self::Absent => false,
            _ => self.start().is_some_and(|(start, is_open)| {
                value == start || is_open && (value.starts_with(start) || value == start.trim_end_matches('/'))
            }),
        }
    }

    /// Returns true if it is known that `outer` covers all values that this covers.
    pub(super) fn is_within(&self, outer: &Self) -> bool {
        let network = |test: &Self| {
            test.start().and_then(|(text, _)| {
                text.parse::<IpNet>().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
            })
        };
        if let Some((own, outer)) = network(self).zip(network(outer)) {
            return outer.contains(&own);
        }
        match (self.start(), outer.start()) {
            _ if self == outer => true,
            (Some((start, false)), _) if !start.starts_with("*.") => outer.covers(start),
            (Some((start, _)), Some((outer, true))) => start.starts_with(outer),
            (Some((start, _)), Some((outer, false))) => outer.starts_with("*.") && start.ends_with(&outer[1..]),
            _ => false,
        }
    }

    /// Returns false if it is known that no value passes both.
    pub(super) fn may_meet(&self, other: &Self) -> bool {
        let is_exact = |test: &Self| matches!(test.start(), Some((start, false)) if !start.starts_with("*."));
        let is_regex = |test: &Self| matches!(test, Self::Regex(_));
        self.is_within(other)
            || other.is_within(self)
            || is_regex(self) && !is_exact(other)
            || is_regex(other) && !is_exact(self)
    }
}

impl Condition {
    pub(super) fn of(any: impl IntoIterator<Item = Test>) -> Self {
        Self { any: any.into_iter().collect(), not: Vec::new() }
    }

    pub(super) fn except(not: impl IntoIterator<Item = Test>) -> Self {
        Self { any: Vec::new(), not: not.into_iter().collect() }
    }

    pub(super) fn is_open(&self) -> bool {
        self.any.is_empty() && self.not.is_empty()
    }

    pub(super) fn covers(&self, value: &str) -> bool {
        (self.any.is_empty() || self.any.iter().any(|test| test.covers(value)))
            && !self.not.iter().any(|test| test.covers(value))
    }

    /// Excludes more values. Those that this does not cover anyway need no mention.
    pub(super) fn exclude(&mut self, tests: &[Test]) {
        for test in tests {
            let meets = self.any.is_empty() || self.any.iter().any(|own| own.may_meet(test));
            if meets && !self.not.iter().any(|known| test.is_within(known)) {
                self.not.retain(|known| !known.is_within(test));
                self.not.push(test.clone());
            }
        }
    }

    /// The values that pass both; `None` if `match` cannot say that.
    pub(super) fn and(&self, other: &Self) -> Option<Self> {
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
    fn or(&self, other: &Self) -> Option<Self> {
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
    fn text(&self) -> String {
        let not: Vec<String> = self.not.iter().map(Test::text).collect();
        let not = (!not.is_empty()).then(|| map(&[("not", one_or_list(&not))]));
        one_or_list(&self.any.iter().map(Test::text).chain(not).collect::<Vec<_>>())
    }

    /// Returns false if a header's condition cannot say it: of a list of tests, one is enough.
    pub(super) fn fits_header(&self) -> bool {
        self.not.is_empty() || matches!(self.any.as_slice(), [] | [Test::Present])
    }

    /// The condition on a header.
    fn header_text(&self) -> String {
        let not: Vec<String> = self.not.iter().map(Test::text).collect();
        match self.any.as_slice() {
            [] => map(&[("not", one_or_list(&not))]),
            [Test::Present] if !not.is_empty() => map(&[("present", "true".to_owned()), ("not", one_or_list(&not))]),
            any => one_or_list(&any.iter().map(Test::text).collect::<Vec<_>>()),
        }
    }

    /// An address that passes.
    fn address(&self) -> Option<String> {
        let parsed = |test: &Test| {
            test.start()
                .and_then(|(text, _)| text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from)))
        };
        let [any, not]: [Vec<IpNet>; 2] = [&self.any, &self.not].map(|tests| tests.iter().filter_map(parsed).collect());
        let first = |network: &IpNet| network.hosts().nth(1).or_else(|| network.hosts().next());
        let candidates = any.iter().filter_map(first).chain(any.is_empty().then_some(IpAddr::from([192, 0, 2, 1])));
        let mut candidates = candidates.filter(|address| !not.iter().any(|network| network.contains(address)));
        candidates.next().map(|address| address.to_string())
    }

    /// A value that passes.
    fn sample(&self, default: &str) -> Option<String> {
        let starts = self.any.iter().filter_map(Test::start);
        let starts = starts.map(|(start, is_open)| {
            (start.strip_prefix('*').map_or(start.to_owned(), |rest| format!("weir{rest}")), is_open)
        });
        let defaults = self.any.is_empty().then(|| (default.to_owned(), default == "/"));
        let candidates = starts.chain(defaults).flat_map(|(start, is_open)| {
            let longer = is_open.then(|| format!("{start}weir"));
            std::iter::once(start).chain(longer)
        });
        candidates.into_iter().find(|value| !value.contains(['{', '*']) && self.covers(value))
    }
}

impl Scope {
    /// The requests that both cover; `None` if `match` cannot say that.
    pub(super) fn and(&self, other: &Self) -> Option<Self> {
        let methods = match (self.methods.as_slice(), other.methods.as_slice()) {
            (all, []) | ([], all) => all.to_vec(),
            (own, others) => {
                let both: Vec<_> = own.iter().filter(|method| others.contains(method)).cloned().collect();
                (!both.is_empty()).then_some(both)?
            }
        };
        let mut headers = self.headers.clone();
        for (name, condition) in &other.headers {
            match headers.iter_mut().find(|(own, _)| own == name) {
                Some((_, own)) => *own = own.and(condition).filter(Condition::fits_header)?,
                None => headers.push((name.clone(), condition.clone())),
            }
        }
        Some(Self {
            hosts: self.hosts.and(&other.hosts)?,
            paths: self.paths.and(&other.paths)?,
            networks: self.networks.and(&other.networks)?,
            methods,
            headers,
        })
    }

    /// The requests of either, if the two differ in one kind of conditions at most; `None` if `match` cannot say that.
    pub(super) fn or(&self, other: &Self) -> Option<Self> {
        let mut both = self.clone();
        let mut differing = 0;
        if self.headers.len() != other.headers.len() {
            return None;
        }
        for ((own_name, own), (name, others)) in both.headers.iter_mut().zip(&other.headers) {
            if own_name != name {
                return None;
            } else if own != others {
                differing += 1;
                *own = own.or(others).filter(Condition::fits_header)?;
            }
        }
        if self.methods != other.methods {
            differing += if self.methods.is_empty() || other.methods.is_empty() { 2 } else { 1 };
            both.methods.extend(other.methods.iter().filter(|method| !self.methods.contains(method)).cloned());
        }
        let conditions =
            [(&mut both.hosts, &other.hosts), (&mut both.paths, &other.paths), (&mut both.networks, &other.networks)];
        for (own, others) in conditions {
            if own != others {
                differing += 1;
                *own = own.or(others)?;
            }
        }
        (differing < 2).then_some(both)
    }

    /// Takes the requests of a route with precedence away, all that its hosts or paths name. Returns false if `match` cannot say that.
    pub(super) fn subtract(&mut self, taken: &Self) -> bool {
        let apart = |own: &Condition, other: &Condition| {
            !own.any.is_empty()
                && !other.any.is_empty()
                && !own.any.iter().any(|test| other.any.iter().any(|each| test.may_meet(each)))
        };
        let other_methods = |own: &[String], other: &[String]| {
            !own.is_empty() && !other.is_empty() && !own.iter().any(|method| other.contains(method))
        };
        let is_gone = |own: &Condition, other: &Condition| {
            !other.any.is_empty() && other.any.iter().all(|test| own.not.iter().any(|not| test.is_within(not)))
        };
        if is_gone(&self.hosts, &taken.hosts)
            || is_gone(&self.paths, &taken.paths)
            || apart(&self.hosts, &taken.hosts)
            || apart(&self.paths, &taken.paths)
            || other_methods(&self.methods, &taken.methods)
        {
            return true;
        }
        let within = |own: &[Test], other: &[Test]| {
            other.is_empty() || !own.is_empty() && own.iter().all(|test| other.iter().any(|each| test.is_within(each)))
        };
        let is_all = |own: &Condition, other: &Condition| {
            own == other || within(&own.any, &other.any) && other.not.iter().all(|test| own.not.contains(test))
        };
        if *taken == (Self { networks: taken.networks.clone(), ..Self::default() }) && taken.networks.not.is_empty() {
            self.networks.exclude(&taken.networks.any);
            return !taken.networks.any.is_empty();
        }
        let is_plain = taken.headers.is_empty() && taken.networks.is_open() && taken.methods.is_empty();
        if is_plain && is_all(&self.hosts, &taken.hosts) && !taken.paths.any.is_empty() {
            self.paths.exclude(&taken.paths.any);
            true
        } else if is_plain && is_all(&self.paths, &taken.paths) && !taken.hosts.any.is_empty() {
            self.hosts.exclude(&taken.hosts.any);
            true
        } else {
            false
        }
    }

    /// The value of `match`; `None` if the scope covers all requests.
    pub(super) fn text(&self) -> Option<String> {
        let mut conditions = Vec::new();
        if !self.methods.is_empty() {
            conditions.push(("methods", format!("[{}]", self.methods.join(", "))));
        }
        let conditioned = [("host", &self.hosts), ("path", &self.paths), ("cidr", &self.networks)];
        conditions.extend(
            conditioned
                .iter()
                .filter(|(_, condition)| !condition.is_open())
                .map(|(key, condition)| (*key, condition.text())),
        );
        if !self.headers.is_empty() {
            let headers: Vec<_> =
                self.headers.iter().map(|(name, condition)| (name, condition.header_text())).collect();
            conditions.push(("headers", map(&headers)));
        }
        (!conditions.is_empty()).then(|| map(&conditions))
    }

    /// A request that it covers; `None` if none can be told from the conditions.
    pub(super) fn sample(&self) -> Option<Sample> {
        let header = |(name, condition): &(String, Condition)| match condition.any.as_slice() {
            [Test::Absent] => Some(None),
            [Test::Present] => Some(Some((name.clone(), "weir".to_owned()))),
            _ => condition.sample("weir").map(|value| Some((name.clone(), value))),
        };
        let headers: Option<Vec<_>> = self.headers.iter().map(header).collect();
        Some(Sample {
            method: self.methods.first().cloned().unwrap_or_else(|| "GET".to_owned()),
            host: if self.hosts.any.is_empty() && self.hosts.not.is_empty() {
                None
            } else {
                Some(self.hosts.sample("weir.example")?)
            },
            path: self.paths.sample("/")?,
            address: self.networks.address()?,
            headers: headers?.into_iter().flatten().collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATHS: [&str; 9] = ["/", "/a", "/a/b", "/a/b/c", "/ab", "/ab/c", "/c.php", "/a/c.php", "/d"];
    const HOSTS: [&str; 4] = ["x.example", "a.x.example", "b.a.x.example", "y.example"];

    fn conditions(tests: &[Test]) -> Vec<Condition> {
        let some: Vec<Vec<Test>> = (0..1_usize << tests.len())
            .map(|bits| {
                tests.iter().enumerate().filter(move |(place, _)| bits >> place & 1 == 1).map(|(_, test)| test.clone())
            })
            .map(Iterator::collect)
            .filter(|some: &Vec<_>| some.len() < 3)
            .collect();
        let all = some.iter().flat_map(|any| some.iter().map(|not| Condition { any: any.clone(), not: not.clone() }));
        all.collect()
    }

    fn paths() -> Vec<Condition> {
        conditions(&[Test::is("/a"), Test::is("/a/**"), Test::Prefix("/a".into()), Test::is("/a/b")])
    }

    /// A few: compiling a regular expression takes a hundred times as long as the rest.
    fn with_regexes() -> Vec<Condition> {
        let all = conditions(&[Test::is("/a/**"), Test::is("/c.php"), Test::Regex(r"\.php$".into())]);
        all.into_iter().step_by(3).collect()
    }

    fn hosts() -> Vec<Condition> {
        conditions(&[
            Test::is("x.example"),
            Test::is("*.x.example"),
            Test::is("*.a.x.example"),
            Test::is("a.x.example"),
        ])
    }

    #[track_caller]
    fn agrees(
        found: &Condition,
        own: &Condition,
        other: &Condition,
        values: &[&str],
        expected: impl Fn(bool, bool) -> bool,
    ) {
        for value in values {
            let expected = expected(own.covers(value), other.covers(value));
            assert_eq!(found.covers(value), expected, "{value}: {own:?} {other:?}: {found:?}");
        }
    }

    #[test]
    fn joined_conditions_cover_what_is_said() {
        let mut found = [0, 0];
        for (all, values) in [(paths(), &PATHS[..]), (with_regexes(), &PATHS), (hosts(), &HOSTS)] {
            for own in &all {
                for other in &all {
                    if let Some(both) = own.and(other) {
                        agrees(&both, own, other, values, |own, other| own && other);
                        found[0] += 1;
                    }
                    if let Some(either) = own.or(other) {
                        agrees(&either, own, other, values, |own, other| own || other);
                        found[1] += 1;
                    }
                }
            }
        }
        assert!(found.iter().all(|found| *found > 500), "{found:?}");
    }

    #[test]
    fn what_is_taken_away_is_not_covered() {
        let mut found = 0;
        let scopes = |paths: &[Condition], hosts: &[Condition]| -> Vec<Scope> {
            let all = paths
                .iter()
                .step_by(3)
                .flat_map(|paths| hosts.iter().step_by(5).map(|hosts| (paths.clone(), hosts.clone())));
            all.map(|(paths, hosts)| Scope { hosts, paths, ..Scope::default() }).collect()
        };
        let all = [scopes(&paths(), &hosts()), scopes(&with_regexes(), &hosts()[..9])].concat();
        // All that the paths of the other name is taken away, also what it excludes.
        let others = all.iter().filter(|other| other.paths.not.is_empty() && other.hosts.not.is_empty());
        for other in others {
            for own in &all {
                let mut left = own.clone();
                if !left.subtract(other) {
                    continue;
                }
                found += 1;
                for (path, host) in PATHS.iter().flat_map(|path| HOSTS.map(|host| (path, host))) {
                    let covers = |scope: &Scope| scope.paths.covers(path) && scope.hosts.covers(host);
                    assert_eq!(
                        covers(&left),
                        covers(own) && !covers(other),
                        "{path} {host}: {own:?} {other:?}: {left:?}"
                    );
                }
            }
        }
        assert!(found > 1_000, "{found}");
    }

    #[test]
    fn a_sample_is_covered() {
        for condition in paths().into_iter().chain(with_regexes()) {
            let sample = condition.sample("/");
            assert!(sample.as_ref().is_none_or(|sample| condition.covers(sample)), "{condition:?}: {sample:?}");
            let is_plain = !condition.any.iter().chain(&condition.not).any(|test| matches!(test, Test::Regex(_)));
            let covers_any = PATHS.iter().any(|value| condition.covers(value));
            assert!(sample.is_some() || !is_plain || !covers_any, "{condition:?} has no sample");
        }
    }
}
