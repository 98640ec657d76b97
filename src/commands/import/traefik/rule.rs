//! Rules of Traefik's routers: matchers with `&&`, `||`, `!` and parentheses.

use regex::Regex;

use super::super::path_regex::{has_equivalent, path_regex};
use super::super::scope::{Condition, Scope, Test};
use super::super::text::piece;

/// The most scopes of a rule.
const MOST_SCOPES: usize = 64;

/// The most matchers and parentheses of a rule.
const MOST_MATCHERS: usize = 256;

/// Reads a rule. One of the scopes is enough. With them comes what they cover besides; the error says what has no equivalent.
pub(super) fn scopes(rule: &str) -> Result<(Vec<Scope>, Vec<String>), String> {
    read(rule, false)
}

/// All requests that a rule may take: those without what has no equivalent. The error says why Traefik rejects it.
pub(super) fn at_most(rule: &str) -> Result<Vec<Scope>, String> {
    read(rule, true).map(|(scopes, _)| scopes)
}

fn read(rule: &str, is_wide: bool) -> Result<(Vec<Scope>, Vec<String>), String> {
    let mut reader = Reader { rest: rule.trim(), matchers: 0, is_wide, broader: Vec::new() };
    let scopes = reader.either(false)?;
    if reader.rest.is_empty() {
        Ok((scopes, reader.broader))
    } else {
        Err(format!("{} is not expected in a rule", piece(reader.rest)))
    }
}

struct Reader<'t> {
    rest: &'t str,
    matchers: usize,
    /// True if matchers without an equivalent take all requests.
    is_wide: bool,
    broader: Vec<String>,
}

impl Reader<'_> {
    fn skip(&mut self, token: &str) -> bool {
        let rest = self.rest.trim_start();
        let found = rest.strip_prefix(token);
        self.rest = found.unwrap_or(rest);
        found.is_some()
    }

    /// Terms with `||`. Under a `!`, all of them must fail.
    fn either(&mut self, is_not: bool) -> Result<Vec<Scope>, String> {
        let mut all = self.both(is_not)?;
        while self.skip("||") {
            let next = self.both(is_not)?;
            all = if is_not { self.product(&all, &next)? } else { [all, next].concat() };
        }
        Ok(all)
    }

    /// Terms with `&&`. Under a `!`, one of them must fail.
    fn both(&mut self, is_not: bool) -> Result<Vec<Scope>, String> {
        let mut all = self.one(is_not)?;
        while self.skip("&&") {
            let next = self.one(is_not)?;
            all = if is_not { [all, next].concat() } else { self.product(&all, &next)? };
        }
        Ok(all)
    }

    fn one(&mut self, is_not: bool) -> Result<Vec<Scope>, String> {
        if self.skip("!") {
            return self.one(!is_not);
        }
        self.matchers += 1;
        if self.matchers > MOST_MATCHERS {
            return Err(format!("a rule of more than {MOST_MATCHERS} matchers and parentheses"));
        }
        if self.skip("(") {
            let inner = self.either(is_not)?;
            return if self.skip(")") { Ok(inner) } else { Err("a `)` is missing".to_owned()) };
        }
        let (name, rest) = self.rest.split_once('(').ok_or_else(|| format!("{} is not a matcher", piece(self.rest)))?;
        let name = name.trim();
        let mut values = Vec::new();
        self.rest = rest;
        while !self.skip(")") {
            let quote = self.rest.chars().next().filter(|quote| "`\"'".contains(*quote));
            let value = quote.and_then(|quote| self.rest.get(1..)?.split_once(quote));
            let (value, rest) = value.ok_or_else(|| format!("{}: values stand in backticks", piece(name)))?;
            values.push(value);
            self.rest = rest;
            self.skip(",");
        }
        let regexes = values.iter().skip(usize::from(name.starts_with("Header")));
        if let Some(wrong) = regexes
            .filter(|_| ["PathRegexp", "HeaderRegexp", "HeadersRegexp"].contains(&name))
            .find(|value| Regex::new(value).is_err())
        {
            return Err(format!("invalid regular expression {}", piece(wrong)));
        }
        if name == "HostRegexp" {
            let broader = values.iter().filter(|regex| hosts(regex).is_some_and(|(_, is_exact)| !is_exact));
            self.broader
                .extend(broader.map(|regex| format!("{}; here also for other names below that domain", piece(regex))));
        }
        matcher(name, &values, is_not).or_else(|why| if self.is_wide { Ok(vec![Scope::default()]) } else { Err(why) })
    }

    fn product(&self, first: &[Scope], second: &[Scope]) -> Result<Vec<Scope>, String> {
        let both = first.iter().flat_map(|first| second.iter().map(|second| first.and(second)));
        let both = both.collect::<Option<Vec<_>>>().filter(|both| !self.is_wide || both.len() <= MOST_SCOPES);
        let both = both.or_else(|| self.is_wide.then(|| first.to_vec()));
        let both = both.ok_or("`match` cannot join the conditions of its rule")?;
        if both.len() > MOST_SCOPES { Err(format!("a rule of more than {MOST_SCOPES} cases")) } else { Ok(both) }
    }
}

/// The requests that a matcher takes.
fn matcher(name: &str, values: &[&str], is_not: bool) -> Result<Vec<Scope>, String> {
    let no_equivalent = || {
        format!(
            "`{name}({})` has no equivalent",
            values.iter().map(|value| format!("`{value}`")).collect::<Vec<_>>().join(", ")
        )
    };
    let condition = |tests: Vec<Test>| if is_not { Condition::except(tests) } else { Condition::of(tests) };
    let paths = |test: fn(&str) -> Test| Scope {
        paths: condition(values.iter().map(|value| test(value)).collect()),
        ..Scope::default()
    };
    let header = |tests: Vec<Test>| {
        let name = values.first().map(|name| name.to_ascii_lowercase()).unwrap_or_default();
        Scope { headers: vec![(name, condition(tests))], ..Scope::default() }
    };
    let values_of_header = || values.iter().skip(1);
    let scope = match name {
        // A template of Go.
        _ if values.iter().any(|value| value.contains("{{")) => return Err(no_equivalent()),
        "Host" => Scope {
            hosts: condition(values.iter().map(|host| Test::is(host.to_ascii_lowercase())).collect()),
            ..Scope::default()
        },
        "HostRegexp" => {
            let all = values.iter().map(|regex| hosts(regex)).collect::<Option<Vec<_>>>().ok_or_else(no_equivalent)?;
            let hosts = all.into_iter().flat_map(|(hosts, _)| hosts).collect();
            Scope { hosts: condition(hosts), ..Scope::default() }
        }
        // In version 2, `{name:regex}` stands for a part of a path.
        "Path" | "PathPrefix" if values.iter().any(|value| value.contains('{')) => {
            let regexes = values.iter().map(|value| regex_of(value, name == "Path")).collect();
            Scope { paths: condition(regexes), ..Scope::default() }
        }
        "Path" => paths(|path| Test::is(path)),
        "PathPrefix" if values == ["/"] && !is_not => Scope::default(),
        "PathPrefix" => paths(Test::below),
        "PathRegexp" if values.iter().all(|regex| has_equivalent(regex)) => paths(|regex| path_regex(regex, "")),
        "Method" if !is_not => {
            Scope { methods: values.iter().map(|method| (*method).to_owned()).collect(), ..Scope::default() }
        }
        "ClientIP" => Scope {
            networks: condition(values.iter().map(|network| Test::network(network)).collect()),
            ..Scope::default()
        },
        "Header" | "Headers" => header(values_of_header().map(|value| Test::is(*value)).collect()),
        "HeaderRegexp" | "HeadersRegexp" => {
            header(values_of_header().map(|regex| Test::Regex((*regex).to_owned())).collect())
        }
        _ => return Err(no_equivalent()),
    };
    Ok(vec![scope])
}

/// `^(www|shop)\.example\.com$`, or `{name:www|shop}.example.com` of version 2: what stands for the first name, and the rest.
const HOSTS: [&str; 2] = [
    r"^\^(?:(\([^()]*\)|\.\+|\[[^\]]+\]\+)\\\.)?((?:[A-Za-z0-9-]|\\\.)+)\$?$",
    r"^\{\w+(?::(.+))?\}\.([A-Za-z0-9.-]+)$",
];

/// The hosts of a regular expression for one host, some or all names below it, and whether they are no more than these.
fn hosts(regex: &str) -> Option<(Vec<Test>, bool)> {
    let found = HOSTS.iter().find_map(|shape| Regex::new(shape).ok()?.captures(regex))?;
    let rest = found.get(2)?.as_str().replace("\\.", ".").to_ascii_lowercase();
    let is_name =
        |name: &&str| !name.is_empty() && name.chars().all(|each| each.is_ascii_alphanumeric() || each == '-');
    let Some(first) = found.get(1).map(|first| first.as_str().trim_start_matches('(').trim_end_matches(')')) else {
        return Some(if regex.starts_with('^') {
            (vec![Test::is(rest)], true)
        } else {
            (vec![Test::is(format!("*.{rest}"))], false)
        });
    };
    let names: Vec<&str> = first.split('|').collect();
    if names.iter().all(is_name) {
        return Some((
            names.iter().map(|name| Test::is(format!("{name}.{rest}").to_ascii_lowercase())).collect(),
            true,
        ));
    }
    Some((vec![Test::is(format!("*.{rest}"))], first == ".+"))
}

/// A path with parameters as a regular expression.
fn regex_of(path: &str, is_whole: bool) -> Test {
    let mut regex = "^".to_owned();
    let mut rest = path;
    while let Some((before, after)) = rest.split_once('{') {
        let end = after.rfind("}/").or_else(|| after.rfind('}')).unwrap_or(after.len());
        let (inner, after) = after.split_at(end);
        regex.push_str(&regex::escape(before));
        regex.extend(["(", inner.split_once(':').map_or("[^/]+", |(_, inner)| inner), ")"]);
        rest = after.strip_prefix('}').unwrap_or_default();
    }
    regex.push_str(&regex::escape(rest));
    path_regex(&if is_whole { regex + "$" } else { regex }, "")
}
