//! Keys of zones: text with variables, which `map` and `geo` may define.

use std::collections::HashMap;
use std::net::IpAddr;

use super::super::gateway::By;
use super::super::path_regex::{escaped, path_regex};
use super::super::scope::{Condition, Scope, Test};
use super::super::text::piece;
use super::geo;
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
    pub(super) text: String,
    /// Requests without one of these parts are counted, too.
    pub(in super::super) is_shared: bool,
}

impl Case {
    fn is_counted(&self) -> bool {
        !self.by.is_empty() || !self.text.is_empty()
    }

    fn of(scope: Option<Scope>) -> Self {
        Self { scope, by: Vec::new(), text: String::new(), is_shared: false }
    }

    pub(super) fn text(text: &str) -> Self {
        Self { text: text.to_owned(), ..Self::of(Some(Scope::default())) }
    }

    fn and(&self, other: &Self) -> Self {
        let scope = self.scope.as_ref().zip(other.scope.as_ref()).and_then(|(own, other)| own.and(other));
        let mut by = self.by.clone();
        by.extend(other.by.iter().filter(|part| !self.by.contains(part)).cloned());
        Self { scope, by, text: format!("{}{}", self.text, other.text), is_shared: false }
    }

    /// Splits the case into those that `by` can count: of parts that may all be missing, a header is there, or it is not.
    fn split(mut self, cases: &mut Vec<Self>) -> Result<(), String> {
        let may_be_empty = |by: &By| matches!(by, By::Header(_) | By::Query(_) | By::Cookie(..) | By::TlsSubject);
        let lacks = |by: &By| may_be_empty(by) || *by == By::Word("host");
        let is_empty = self.text.is_empty() && self.by.iter().all(may_be_empty);
        if !is_empty {
            self.is_shared = self.by.iter().any(lacks);
        } else if self.by.len() > 1 {
            let header = |by: &By| if let By::Header(name) = by { Some(name.clone()) } else { None };
            let Some(name) = self.by.iter().find_map(header) else {
                return Err("`match` cannot say where all parts of the key are missing".to_owned());
            };
            let by: Vec<By> = self.by.iter().filter(|by| header(by).as_ref() != Some(&name)).cloned().collect();
            let of = |condition| Some(Scope { headers: vec![(name.clone(), condition)], ..Scope::default() });
            let absent = Self { by, ..self.and(&Self::of(of(empty()))) };
            absent.split(cases)?;
            self = Self { is_shared: true, ..self.and(&Self::of(of(filled()))) };
        }
        cases.push(self);
        Ok(())
    }
}

/// The variables of the configuration: their `map` or `geo`.
#[derive(Clone, Default)]
pub(in super::super) struct Variables<'d> {
    pub(super) maps: HashMap<String, &'d Directive>,
    /// The name of the server.
    pub(super) server: Option<&'d str>,
}

impl Variables<'_> {
    /// The variables that a key depends on.
    pub(super) fn read<'k>(&'k self, key: &'k str) -> Vec<&'k str> {
        let mut all: Vec<&str> = names(key).collect();
        let mut place = 0;
        while let Some(name) = all.get(place).copied() {
            place += 1;
            let Some(map) = self.maps.get(name) else { continue };
            for name in map.block.iter().map(|entry| entry.argument(0)).chain([map.argument(0)]).flat_map(names) {
                if !all.contains(&name) {
                    all.push(name);
                }
            }
        }
        all
    }

    /// The cases of a key; the error says which part of it has no equivalent.
    pub(in super::super) fn cases(&self, key: &str) -> Result<Vec<Case>, String> {
        let mut cases = Vec::new();
        for case in self.text(key, 0)? {
            case.split(&mut cases)?;
        }
        cases.retain(Case::is_counted);
        // Requests with the same key share its counter.
        let mut joined: Vec<Case> = Vec::new();
        for case in cases {
            let is_same =
                |known: &&mut Case| known.by == case.by && known.text == case.text && known.is_shared == case.is_shared;
            let mut same = joined.iter_mut().filter(is_same);
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
        match self.maps.get(name) {
            Some(directive) if depth < DEEPEST && directive.name == "geo" => geo::cases(directive),
            Some(directive) if depth < DEEPEST => self.map(directive, depth + 1),
            // The same for all requests of a server.
            None if name == "server_name" => Ok(vec![Case::text(self.server.unwrap_or("server"))]),
            _ => match part(name) {
                Some(part) => Ok(vec![Case { by: vec![part], ..Case::text("") }]),
                None => Err(format!("`${name}` has no equivalent in a rules file")),
            },
        }
    }

    /// The cases of a `map`: exact values first, then regular expressions in their order, then the default.
    fn map(&self, map: &Directive, depth: usize) -> Result<Vec<Case>, String> {
        let options = ["default", "hostnames", "volatile", "include"];
        if let Some(option) = map.block.iter().find(|entry| options[1..].contains(&entry.name.as_str())) {
            return Err(format!("`{}` in the map of `{}`", option.name, map.argument(1)));
        }
        // No text equals the bytes of an address.
        let has_entries = |entry: &&Directive| entry.name != "default" && !is_binary(map.argument(0));
        let is_regex = |entry: &&Directive| entry.name.starts_with('~');
        let (regexes, exact): (Vec<_>, Vec<_>) = map.block.iter().filter(has_entries).partition(is_regex);
        let default = map.block.iter().find(|entry| entry.name == "default").map_or("", |entry| entry.argument(0));
        let mut cases = Vec::new();
        let mut add = |value: &str, own: &Case| -> Result<(), String> {
            cases.extend(self.text(value, depth)?.iter().map(|case| case.and(own)));
            Ok(())
        };
        for input in self.text(map.argument(0), depth)? {
            if let [part] = input.by.as_slice()
                && input.text.is_empty()
            {
                let mut before: Vec<Test> = Vec::new();
                let mut own = |test: Option<&Test>, before: &[Test], value: &str| {
                    let own = input.and(&Case::of(scope(part, test, before)));
                    add(value, &Case { by: Vec::new(), ..own })
                };
                let is_method = *part == By::Word("method");
                for entry in exact.iter().chain(&regexes).filter(|_| is_method) {
                    for test in methods(&entry.name)? {
                        if !before.contains(&test) {
                            own(Some(&test), &[], entry.argument(0))?;
                            before.push(test);
                        }
                    }
                }
                for entry in exact.iter().filter(|_| !is_method) {
                    let Some(test) = test(part, &entry.name) else { continue };
                    own(Some(&test), &[], entry.argument(0))?;
                    before.push(test);
                }
                for entry in regexes.iter().filter(|_| !is_method) {
                    let Some(test) = test(part, &entry.name) else { continue };
                    own(Some(&test), &before, entry.argument(0))?;
                    before.push(test);
                }
                own(None, &before, default)?;
            } else if input.by.is_empty() {
                let is_it = |entry: &&&Directive| match entry.name.strip_prefix('~') {
                    Some(regex) => Test::Regex(insensitive(regex)).covers(&input.text),
                    None => plain(&entry.name).eq_ignore_ascii_case(&input.text),
                };
                let entry = exact.iter().find(is_it).or_else(|| regexes.iter().find(is_it));
                add(entry.map_or(default, |entry| entry.argument(0)), &Case::of(input.scope.clone()))?;
            } else if input.by == [By::Word("method"), By::Word("path")]
                && regexes.is_empty()
                && map.argument(0).ends_with("uri")
                && map.argument(0).starts_with('$')
            {
                add(default, &Case { scope: None, ..Case::text("") })?;
                for entry in &exact {
                    let (method, path) = entry.name.split_at(entry.name.find('/').unwrap_or(entry.name.len()));
                    let Some(method) = method.strip_suffix(&input.text) else { continue };
                    let paths = Condition::of(test(&By::Word("path"), path));
                    let methods = vec![method.to_ascii_uppercase()];
                    add(entry.argument(0), &Case::of(Some(Scope { paths, methods, ..Scope::default() })))?;
                }
            } else {
                return Err(format!("the map of {} reads more than one part", piece(map.argument(0))));
            }
        }
        Ok(cases)
    }
}

/// The variables in a text.
fn names(text: &str) -> impl Iterator<Item = &str> {
    let name = |rest: &'_ str| rest.find(|each| !is_name(each)).unwrap_or(rest.len());
    text.split('$').skip(1).map(|rest| rest.trim_start_matches('{')).map(move |rest| &rest[..name(rest)])
}

fn is_name(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_'
}

fn is_binary(key: &str) -> bool {
    names(key).eq(["binary_remote_addr"])
}

fn part(name: &str) -> Option<By> {
    let dashed = |name: &str| name.replace('_', "-");
    Some(match name {
        "binary_remote_addr" | "remote_addr" => By::Address(128),
        "host" | "http_host" => By::Word("host"),
        "request_method" => By::Word("method"),
        "uri" | "document_uri" => By::Word("path"),
        "ssl_client_s_dn" => By::TlsSubject,
        _ => match name.split_once('_')? {
            ("http", name) => By::Header(dashed(name)),
            ("arg", name) => By::Query(name.to_owned()),
            ("cookie", name) => By::Cookie(name.to_owned(), "first"),
            _ => return None,
        },
    })
}

/// The regular expression of an entry.
fn insensitive(regex: &str) -> String {
    regex.strip_prefix('*').map_or_else(|| regex.to_owned(), |regex| format!("(?i){regex}"))
}

fn plain(entry: &str) -> &str {
    entry.strip_prefix('\\').unwrap_or(entry)
}

/// The values of a part that an entry of a map takes, ignoring the case of texts; `None` if it never takes one.
fn test(part: &By, entry: &str) -> Option<Test> {
    let is_header = matches!(part, By::Header(_));
    match entry.strip_prefix('~') {
        Some("^$") if is_header => return Some(Test::Absent),
        Some(regex) if *part == By::Word("path") => {
            let (flags, regex) = regex.strip_prefix('*').map_or(("", regex), |regex| ("(?i)", regex));
            return Some(path_regex(regex, flags));
        }
        Some(regex) => return Some(Test::Regex(insensitive(regex))),
        None => {}
    }
    let text = plain(entry);
    match part {
        By::Word("path") if !text.starts_with('/') => None,
        By::Word("path") if text.contains(|each: char| each.is_ascii_alphabetic()) => {
            let path = regex::escape(&escaped(text.trim_end_matches('/')));
            Some(Test::Regex(format!("(?i)^{path}$")))
        }
        By::Word("path") => Some(Test::Is(escaped(text))),
        By::Word("host") => (!text.contains('*') && !text.is_empty()).then(|| Test::Is(text.to_ascii_lowercase())),
        By::Address(_) => text.parse::<IpAddr>().ok().map(|address| Test::Network(address.into())),
        _ if text.is_empty() => Some(Test::Absent),
        _ if is_header && text.contains(|each: char| each.is_ascii_alphabetic()) => {
            Some(Test::Regex(format!("(?i)^{}$", regex::escape(text))))
        }
        _ => Some(Test::Is(text.to_owned())),
    }
}

/// The methods that an entry of a map takes: a word, or a regular expression of words.
fn methods(entry: &str) -> Result<Vec<Test>, String> {
    let words = match entry.strip_prefix('~') {
        None => vec![plain(entry)],
        Some(regex) => {
            let all = regex.trim_start_matches('*').strip_prefix('^').and_then(|regex| regex.strip_suffix('$'));
            let all = all.map(|all| {
                let group = all.strip_prefix("(?:").or(all.strip_prefix('('));
                group.and_then(|all| all.strip_suffix(')')).unwrap_or(all)
            });
            all.map(|all| all.split('|').collect()).unwrap_or_default()
        }
    };
    if words.is_empty() || words.iter().any(|word| !word.chars().all(|each| each.is_ascii_alphabetic())) {
        return Err(format!("{} is no list of methods", piece(entry)));
    }
    Ok(words.into_iter().filter(|word| !word.is_empty()).map(|word| Test::Is(word.to_ascii_uppercase())).collect())
}

/// A header is missing, or empty, which nginx does not tell apart.
fn empty() -> Condition {
    Condition::except([Test::Regex(".".to_owned())])
}

fn filled() -> Condition {
    Condition { any: vec![Test::Present], not: vec![Test::Regex("^$".to_owned())] }
}

/// The requests of which a part passes a test, or any without one, and none of the tests before it.
fn scope(part: &By, test: Option<&Test>, before: &[Test]) -> Option<Scope> {
    let mut condition = Condition::of(test.cloned());
    condition.exclude(before);
    let mut scope = Scope::default();
    match part {
        By::Header(name) => {
            let of = |condition| Scope { headers: vec![(name.clone(), condition)], ..Scope::default() };
            let takes_empty = |test: &Test| *test == Test::Absent || matches!(test, Test::Regex(_)) && test.covers("");
            let is_taken = before.iter().any(takes_empty);
            let not: Vec<Test> = before.iter().filter(|test| **test != Test::Absent).cloned().collect();
            match test {
                Some(Test::Absent) => scope = of(empty()),
                // An absent header passes no test.
                Some(test) if takes_empty(test) && !is_taken => return None,
                Some(test) => {
                    scope = of(Condition::of([test.clone()]));
                    let meets = |not: &&Test| match (test, not) {
                        (Test::Regex(regex), Test::Is(text)) => Test::Regex(format!("(?i){regex}")).covers(text),
                        _ => true,
                    };
                    scope.except.extend(not.iter().filter(meets).map(|not| of(Condition::of([not.clone()]))));
                }
                None if is_taken => {
                    let not = [not, filled().not].concat();
                    scope = of(Condition { any: vec![Test::Present], not });
                }
                None if not.is_empty() => {}
                None => scope = of(Condition::except(not)),
            }
        }
        By::Word("host") => scope.hosts = condition,
        By::Word("path") => scope.paths = condition,
        By::Word("method") => match test {
            Some(Test::Is(method)) => scope.methods.push(method.clone()),
            None => {
                let text = |test: &Test| if let Test::Is(method) = test { Some(method.clone()) } else { None };
                let methods: Option<Vec<_>> = before.iter().map(text).collect();
                scope.except.extend(
                    methods.filter(|methods| !methods.is_empty()).map(|methods| Scope { methods, ..Scope::default() }),
                );
            }
            Some(_) => return None,
        },
        By::Address(_) if condition.any.iter().chain(&condition.not).all(|test| matches!(test, Test::Network(_))) => {
            scope.networks = condition;
        }
        _ => return None,
    }
    Some(scope)
}
