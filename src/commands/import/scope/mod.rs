//! The requests that a gateway's limit covers, as conditions of `match`.

pub(super) use self::condition::{Condition, Test};
use super::text::map;

mod condition;

/// The most scopes that one can except.
const MOST_EXCEPTIONS: usize = 100;

/// Methods of a request that avoids exceptions.
const METHODS: [&str; 4] = ["GET", "POST", "PUT", "DELETE"];

/// All conditions must hold, and none of `except`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Scope {
    pub(super) hosts: Condition,
    pub(super) paths: Condition,
    pub(super) networks: Condition,
    /// Empty for all methods.
    pub(super) methods: Vec<String>,
    pub(super) headers: Vec<(String, Condition)>,
    /// Requests that it does not cover, which `match` cannot say: the file's `exempt` does.
    pub(super) except: Vec<Self>,
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
            except: [&self.except[..], &other.except].concat(),
        })
    }

    /// The requests of either, if the two differ in one kind of conditions at most; `None` if `match` cannot say that.
    pub(super) fn or(&self, other: &Self) -> Option<Self> {
        let mut both = self.clone();
        let mut differing = 0;
        if self.headers.len() != other.headers.len() || self.except != other.except {
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

    /// Takes the requests of routes with precedence away. Returns false if there are too many that `match` cannot except.
    pub(super) fn subtract_all<'s>(&mut self, taken: impl IntoIterator<Item = &'s Self>) -> bool {
        let mut left: Vec<&Self> = taken.into_iter().collect();
        // What one cannot take by itself, it can once others are gone.
        loop {
            let before = left.len();
            left.retain(|taken| !self.cut(taken));
            if left.len() == before {
                break;
            }
        }
        left.into_iter().all(|taken| self.subtract(taken))
    }

    /// Takes the requests of a route with precedence away. Returns false if they cannot be excepted.
    pub(super) fn subtract(&mut self, taken: &Self) -> bool {
        if self.cut(taken) {
            return true;
        }
        // What both do not cover need not be said again.
        let fits = taken.except.iter().all(|scope| self.except.contains(scope)) && self.except.len() < MOST_EXCEPTIONS;
        let taken = Self { except: Vec::new(), ..taken.clone() };
        if fits && !self.except.contains(&taken) {
            self.except.push(taken);
        }
        fits
    }

    /// Takes the requests of a route with precedence away if `match` can say that.
    fn cut(&mut self, taken: &Self) -> bool {
        let apart = |own: &Condition, other: &Condition| {
            !own.any.is_empty()
                && !other.any.is_empty()
                && !own.any.iter().any(|test| other.any.iter().any(|each| test.may_meet(each)))
        };
        let other_methods = |own: &[String], other: &[String]| {
            !own.is_empty() && !other.is_empty() && !own.iter().any(|method| other.contains(method))
        };
        let are_gone =
            |own: &Condition, tests: &[Test]| tests.iter().all(|test| own.not.iter().any(|not| test.is_within(not)));
        let is_gone = |own: &Condition, other: &Condition| !other.any.is_empty() && are_gone(own, &other.any);
        if is_gone(&self.hosts, &taken.hosts)
            || is_gone(&self.paths, &taken.paths)
            || apart(&self.hosts, &taken.hosts)
            || apart(&self.paths, &taken.paths)
            || other_methods(&self.methods, &taken.methods)
        {
            return true;
        }
        if !taken.except.iter().all(|scope| self.except.contains(scope)) {
            return false;
        }
        let within = |own: &[Test], other: &[Test]| {
            other.is_empty() || !own.is_empty() && own.iter().all(|test| other.iter().any(|each| test.is_within(each)))
        };
        // Of these, the other takes all that are left.
        let is_all = |own: &Condition, other: &Condition| {
            own == other || within(&own.any, &other.any) && are_gone(own, &other.not)
        };
        if *taken == (Self { networks: taken.networks.clone(), ..Self::default() }) && taken.networks.not.is_empty() {
            self.networks.exclude(&taken.networks.any);
            return !taken.networks.any.is_empty();
        }
        let is_plain = taken.headers.is_empty() && taken.networks.is_open() && taken.methods.is_empty();
        // What the other does not take of its paths or hosts must be gone already.
        let can_exclude = |own: &Condition, other: &Condition| !other.any.is_empty() && are_gone(own, &other.not);
        if is_plain && is_all(&self.hosts, &taken.hosts) && can_exclude(&self.paths, &taken.paths) {
            self.paths.exclude(&taken.paths.any);
            true
        } else if is_plain && is_all(&self.paths, &taken.paths) && can_exclude(&self.hosts, &taken.hosts) {
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
            // A missing header has no value that is excluded.
            any => match condition.sample("weir") {
                Some(value) => Some(Some((name.clone(), value))),
                None => any.is_empty().then_some(None),
            },
        };
        let headers: Option<Vec<_>> = self.headers.iter().map(header).collect();
        let sample = Sample {
            method: String::new(),
            host: if self.hosts.any.is_empty() && self.hosts.not.is_empty() {
                None
            } else {
                Some(self.hosts.sample("weir.example")?)
            },
            path: self.paths.sample("/")?,
            address: self.networks.address()?,
            headers: headers?.into_iter().flatten().collect(),
        };
        let all: Vec<&str> = self.methods.iter().map(String::as_str).collect();
        let methods = if all.is_empty() { METHODS.to_vec() } else { all };
        let mut samples = methods.into_iter().map(|method| Sample { method: method.to_owned(), ..sample.clone() });
        samples.find(|sample| !self.except.iter().any(|scope| scope.covers(sample)))
    }

    fn covers(&self, sample: &Sample) -> bool {
        let value = |name: &str| sample.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value);
        let header = |(name, condition): &(String, Condition)| match value(name) {
            Some(value) => condition.covers(value),
            None => condition.any.is_empty() || condition.any.contains(&Test::Absent),
        };
        (self.methods.is_empty() || self.methods.contains(&sample.method))
            && sample.host.as_ref().map_or(self.hosts.any.is_empty(), |host| self.hosts.covers(host))
            && self.paths.covers(&sample.path)
            && (self.networks.is_open() || self.networks.holds(&sample.address))
            && self.headers.iter().all(header)
            && !self.except.iter().any(|scope| scope.covers(sample))
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
                .step_by(4)
                .flat_map(|paths| hosts.iter().step_by(8).map(|hosts| (paths.clone(), hosts.clone())));
            all.map(|(paths, hosts)| Scope { hosts, paths, ..Scope::default() }).collect()
        };
        for all in [scopes(&paths(), &hosts()), scopes(&with_regexes(), &hosts()[..9])] {
            for (own, other) in all.iter().flat_map(|own| all.iter().map(move |other| (own, other))) {
                let mut left = own.clone();
                found += usize::from(left.cut(other));
                left = own.clone();
                assert!(left.subtract(other));
                for (path, host) in PATHS.iter().flat_map(|path| HOSTS.map(|host| (path, host))) {
                    let sample = Sample {
                        method: "GET".to_owned(),
                        host: Some(host.to_owned()),
                        path: (*path).to_owned(),
                        address: "192.0.2.1".to_owned(),
                        headers: Vec::new(),
                    };
                    let covers = |scope: &Scope| scope.covers(&sample);
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
