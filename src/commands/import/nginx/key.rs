//! Keys of zones: text with variables, which `map` and `geo` may define.

use std::collections::HashMap;
use std::net::IpAddr;

use ipnet::IpNet;

use super::super::gateway::By;
use super::super::scope::{Condition, Scope, Test};
use super::super::text::piece;
use super::grammar::Directive;

/// The deepest nesting of maps.
const DEEPEST: usize = 8;

/// The most cases of a key.
const MOST_CASES: usize = 64;

/// Requests whose key consists of these parts. A key without text is not counted.
#[derive(Clone, Debug)]
pub(in super::super) struct Case {
    /// `None` if `match` has no such conditions.
    pub(in super::super) scope: Option<Scope>,
    pub(in super::super) by: Vec<By>,
    /// Text of the configuration.
    text: String,
}

impl Case {
    fn is_counted(&self) -> bool {
        !self.by.is_empty() || !self.text.is_empty()
    }

    fn of(scope: Option<Scope>) -> Self {
        Self { scope, by: Vec::new(), text: String::new() }
    }

    fn text(text: &str) -> Self {
        Self { text: text.to_owned(), ..Self::of(Some(Scope::default())) }
    }

    fn and(&self, other: &Self) -> Self {
        let scope = self.scope.as_ref().zip(other.scope.as_ref()).and_then(|(own, other)| own.and(other));
        Self { scope, by: [self.by.clone(), other.by.clone()].concat(), text: format!("{}{}", self.text, other.text) }
    }
}

/// The variables of the configuration: their `map` or `geo`.
#[derive(Default)]
pub(in super::super) struct Variables<'d>(pub(super) HashMap<String, &'d Directive>);

impl Variables<'_> {
    /// The cases of a key; the error says which part of it has no equivalent.
    pub(in super::super) fn cases(&self, key: &str) -> Result<Vec<Case>, String> {
        let mut cases = self.text(key, 0)?;
        // The rest of a key counts alone where a header is missing.
        let mut more = Vec::new();
        for case in cases.iter().filter(|case| case.by.len() > 1) {
            for by in &case.by {
                let rest: Vec<By> = case.by.iter().filter(|other| *other != by).cloned().collect();
                match by {
                    By::Header(name) => {
                        let absent =
                            Scope { headers: vec![(name.clone(), Condition::of([Test::Absent]))], ..Scope::default() };
                        more.push(Case { by: rest, ..case.and(&Case::of(Some(absent))) });
                    }
                    By::Query(name) | By::Cookie(name) => {
                        return Err(format!("the rest of {} counts alone where `{name}` is missing", piece(key)));
                    }
                    _ => {}
                }
            }
        }
        cases.extend(more);
        cases.retain(Case::is_counted);
        // Requests with the same key share its counter.
        let mut joined: Vec<Case> = Vec::new();
        for case in cases {
            let mut same = joined.iter_mut().filter(|known| known.by == case.by && known.text == case.text);
            let both = |known: &Case| known.scope.as_ref()?.or(case.scope.as_ref()?);
            match same.find_map(|known| Some((both(known)?, known))) {
                Some((both, known)) => known.scope = Some(both),
                None => joined.push(case),
            }
        }
        let cases = joined;
        if cases.iter().any(|case| case.scope.is_none()) {
            return Err(format!("`match` has no conditions for the cases of {}", piece(key)));
        }
        Ok(cases)
    }

    fn text(&self, text: &str, depth: usize) -> Result<Vec<Case>, String> {
        let mut cases = vec![Case::text("")];
        let mut rest = text;
        while !rest.is_empty() {
            let found = if let Some(after) = rest.strip_prefix('$') {
                let is_name = |each: char| each.is_ascii_alphanumeric() || each == '_';
                let (name, end) = if let Some(braced) = after.strip_prefix('{') {
                    braced.split_once('}').unwrap_or((braced, ""))
                } else {
                    after.split_at(after.find(|each| !is_name(each)).unwrap_or(after.len()))
                };
                rest = end;
                self.variable(name, depth)?
            } else {
                let (text, end) = rest.split_at(rest.find('$').unwrap_or(rest.len()));
                rest = end;
                vec![Case::text(text)]
            };
            cases = cases.iter().flat_map(|case| found.iter().map(|next| case.and(next))).collect();
            if cases.len() > MOST_CASES {
                return Err(format!("{} has more than {MOST_CASES} cases", piece(text)));
            }
        }
        Ok(cases)
    }

    fn variable(&self, name: &str, depth: usize) -> Result<Vec<Case>, String> {
        if let Some(part) = part(name) {
            return Ok(vec![Case { by: vec![part], ..Case::text("") }]);
        }
        match self.0.get(name) {
            // The same for all requests of a server.
            None if name == "server_name" => Ok(vec![Case::text("server")]),
            Some(directive) if depth < DEEPEST && directive.name == "geo" => geo(directive),
            Some(directive) if depth < DEEPEST => self.map(directive, depth + 1),
            _ => Err(format!("`${name}` has no equivalent in a rules file")),
        }
    }

    /// The cases of a `map`: exact values first, then regular expressions in their order, then the default.
    fn map(&self, map: &Directive, depth: usize) -> Result<Vec<Case>, String> {
        let options = ["default", "hostnames", "volatile", "include"];
        if let Some(option) = map.block.iter().find(|entry| options[1..].contains(&entry.name.as_str())) {
            return Err(format!("`{}` in the map of `{}`", option.name, map.argument(1)));
        }
        let is_regex = |entry: &&Directive| entry.name.starts_with('~');
        let (regexes, exact): (Vec<_>, Vec<_>) =
            map.block.iter().filter(|entry| entry.name != "default").partition(is_regex);
        let default = map.block.iter().find(|entry| entry.name == "default");
        let mut cases = Vec::new();
        for input in self.text(map.argument(0), depth)? {
            if let [part] = input.by.as_slice()
                && input.text.is_empty()
            {
                let mut before: Vec<Test> = Vec::new();
                let entries = exact.iter().chain(&regexes).map(|entry| (Some(test(&entry.name)), entry.argument(0)));
                for (test, value) in entries.chain([(None, default.map_or("", |entry| entry.argument(0)))]) {
                    let own = input.and(&Case::of(scope(part, test.as_ref(), &before)));
                    let own = Case { by: Vec::new(), ..own };
                    cases.extend(self.text(value, depth)?.iter().map(|case| case.and(&own)));
                    before.extend(test);
                }
            } else if input.by.is_empty() {
                let is_it = |entry: &&&Directive| match test(&entry.name) {
                    Test::Absent => input.text.is_empty(),
                    test => test.covers(&input.text),
                };
                let entry = exact.iter().find(is_it).or_else(|| regexes.iter().find(is_it)).copied().or(default);
                let found = self.text(entry.map_or("", |entry| entry.argument(0)), depth)?;
                cases.extend(found.iter().map(|case| case.and(&Case::of(input.scope.clone()))));
            } else if input.by == [By::Word("method"), By::Word("path")] && regexes.is_empty() {
                let rest = Case { scope: None, ..Case::text("") };
                cases.extend(
                    self.text(default.map_or("", |entry| entry.argument(0)), depth)?.iter().map(|case| case.and(&rest)),
                );
                for entry in &exact {
                    let (method, path) = entry.name.split_once(&input.text).unwrap_or((&entry.name, ""));
                    let paths = Condition::of([Test::is(path)]);
                    let own = Case::of(Some(Scope { paths, methods: vec![method.to_owned()], ..Scope::default() }));
                    cases.extend(self.text(entry.argument(0), depth)?.iter().map(|case| case.and(&own)));
                }
            } else {
                return Err(format!("the map of {} reads more than one part", piece(map.argument(0))));
            }
        }
        Ok(cases)
    }
}

fn part(name: &str) -> Option<By> {
    let dashed = |name: &str| name.replace('_', "-");
    Some(match name {
        "binary_remote_addr" | "remote_addr" | "realip_remote_addr" => By::Address(128),
        "host" | "http_host" => By::Word("host"),
        "request_method" => By::Word("method"),
        "uri" | "document_uri" => By::Word("path"),
        "ssl_client_s_dn" => By::TlsSubject,
        _ => match name.split_once('_')? {
            ("http", name) => By::Header(dashed(name)),
            ("arg", name) => By::Query(name.to_owned()),
            ("cookie", name) => By::Cookie(name.to_owned()),
            _ => return None,
        },
    })
}

/// The values that an entry of a map takes.
fn test(entry: &str) -> Test {
    match entry.strip_prefix('~') {
        Some(regex) => {
            Test::Regex(regex.strip_prefix('*').map_or_else(|| regex.to_owned(), |regex| format!("(?i){regex}")))
        }
        None if entry.is_empty() => Test::Absent,
        None => Test::Is(entry.strip_prefix('\\').unwrap_or(entry).to_owned()),
    }
}

/// The requests of which a part passes a test, or any without one, and none of the tests before it.
fn scope(part: &By, test: Option<&Test>, before: &[Test]) -> Option<Scope> {
    let mut condition = Condition::of(test.cloned());
    condition.exclude(before);
    let mut scope = Scope::default();
    match part {
        By::Header(name) => {
            // nginx compares the texts of a map ignoring case.
            for test in condition.any.iter_mut().chain(&mut condition.not) {
                if let Test::Is(text) = test
                    && text.contains(|each: char| each.is_ascii_alphabetic())
                {
                    *test = Test::Regex(format!("(?i)^{}$", regex::escape(text)));
                }
            }
            if let Some(absent) = condition.not.iter().position(|test| *test == Test::Absent) {
                condition.not.remove(absent);
                if condition.any.is_empty() {
                    condition.any.push(Test::Present);
                }
            }
            if !condition.is_open() {
                scope.headers.push((name.clone(), condition.fits_header().then_some(condition)?));
            }
        }
        By::Word("host") => scope.hosts = condition,
        By::Word("path") => scope.paths = condition,
        By::Word("method") => match test {
            Some(Test::Is(method)) => scope.methods.push(method.clone()),
            None if before.is_empty() => {}
            _ => return None,
        },
        By::Address(_) if condition.any.iter().chain(&condition.not).all(|test| matches!(test, Test::Is(_))) => {
            scope.networks = condition;
        }
        _ => return None,
    }
    Some(scope)
}

/// The cases of a `geo`: networks with a value, less those inside them that have another.
fn geo(geo: &Directive) -> Result<Vec<Case>, String> {
    let words = ["default", "ranges", "delete", "proxy", "proxy_recursive", "include"];
    if let Some(word) = geo.block.iter().find(|entry| words[1..].contains(&entry.name.as_str())) {
        return Err(format!("`{}` in the `geo` of `{}`", word.name, geo.arguments.join(" ")));
    }
    if geo.arguments.len() > 1 && !matches!(geo.argument(0), "$remote_addr" | "$binary_remote_addr") {
        return Err(format!("a `geo` of `{}`", geo.argument(0)));
    }
    let networks: Vec<(&Directive, IpNet)> =
        geo.block.iter().filter_map(|entry| Some((entry, network(&entry.name)?))).collect();
    let default = geo.block.iter().find(|entry| entry.name == "default").map_or("", |entry| entry.argument(0));
    let test = |network: &IpNet| Test::is(network.to_string());
    let mut cases = vec![(default, Condition::except(networks.iter().map(|(_, network)| test(network))))];
    for (entry, network) in &networks {
        let inner = networks.iter().filter(|(_, inner)| inner != network && network.contains(inner));
        let not = inner.map(|(_, inner)| test(inner)).collect();
        cases.push((entry.argument(0), Condition { any: vec![test(network)], not }));
    }
    // Networks with the same value become one case, if none of them has exceptions.
    let mut joined: Vec<(&str, Condition)> = Vec::new();
    for (value, condition) in cases {
        let same = joined
            .iter_mut()
            .skip(1)
            .find(|(other, known)| *other == value && known.not.is_empty() && condition.not.is_empty());
        match same {
            Some((_, known)) => known.any.extend(condition.any),
            None => joined.push((value, condition)),
        }
    }
    let case = |(value, networks): (&str, Condition)| Case {
        scope: Some(Scope { networks, ..Scope::default() }),
        ..Case::text(value)
    };
    Ok(joined.into_iter().map(case).collect())
}

fn network(text: &str) -> Option<IpNet> {
    text.parse().or_else(|_| text.parse().map(|address: IpAddr| address.into())).ok()
}
