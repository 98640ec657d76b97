//! Conditions of HAProxy: access lists, and what they say about rates and requests.

use super::super::gateway::By;
use super::super::path_regex::{has_equivalent, path_regex};
use super::super::regex_text::{Part, characters};
use super::super::scope::{Condition, Scope, Test};
use super::super::text::piece;
use super::fetch::Fetch;
use super::grammar::{Line, Section};

/// A test of a counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Counter {
    /// `http_req_rate`, `conn_cur` or another one.
    pub(super) name: String,
    /// `sc0`, or `src` for a lookup by the address.
    pub(super) by: String,
    pub(super) table: Option<String>,
    /// The most that passes.
    pub(super) most: u64,
}

/// Terms that must all hold.
#[derive(Clone, Debug, Default)]
pub(super) struct Terms {
    pub(super) counters: Vec<Counter>,
    pub(super) scope: Scope,
}

/// The most combinations of conditions that a rule can be met by.
const MOST_TERMS: usize = 64;

impl Section {
    /// The terms of a rule's condition, one for each of those of which one is enough. The error says what has no equivalent.
    pub(super) fn terms(&self, words: &[String]) -> Result<Vec<Terms>, String> {
        let place = words.iter().position(|word| word == "if" || word == "unless");
        let Some((start, words)) = place.and_then(|place| words.get(place..)?.split_first()) else {
            return Ok(vec![Terms::default()]);
        };
        // Of one condition, `unless` is `if` with the opposite.
        let is_single = words.first().is_some_and(|first| first.ends_with('{') || words.len() == 1)
            && !words.iter().rev().skip(1).any(|word| word == "}");
        if start == "unless" && !is_single {
            return Err("`unless` with several conditions: write it with `if !`".to_owned());
        }
        let is_opposite = start == "unless";
        let mut all = Vec::new();
        for group in words.split(|word| word == "||" || word == "or") {
            let mut terms = vec![Terms::default()];
            let mut rest = group;
            while let Some((first, more)) = rest.split_first() {
                let (is_not, first) = first.strip_prefix('!').map_or((false, first.as_str()), |first| (true, first));
                let is_not = is_not != is_opposite;
                let (first, more) = if first.is_empty() {
                    more.split_first().map_or(("", more), |(first, more)| (first.as_str(), more))
                } else {
                    (first, more)
                };
                let found = if first == "{" {
                    let end = more.iter().position(|word| word == "}").ok_or("`{` without `}`")?;
                    rest = more.get(end + 1..).unwrap_or_default();
                    vec![Self::fetch(&more[..end], is_not)?]
                } else {
                    rest = more;
                    self.list(first, is_not)?
                };
                if terms.len() * found.len() > MOST_TERMS {
                    return Err(format!("its conditions can be met in more than {MOST_TERMS} ways"));
                }
                let both = terms.iter().flat_map(|term| found.iter().map(|next| term.and(next)));
                terms = both
                    .collect::<Option<_>>()
                    .ok_or_else(|| format!("`match` cannot join {} with the others", piece(first)))?;
            }
            all.append(&mut terms);
        }
        Ok(all)
    }

    /// The lines of the access lists that a rule names.
    pub(super) fn lists<'l>(&'l self, rule: &'l Line) -> impl Iterator<Item = &'l Line> {
        let is_named = |list: &&Line| {
            list.starts_with(&["acl"])
                && rule
                    .words
                    .iter()
                    .skip(1)
                    .any(|word| list.words.get(1).is_some_and(|name| word.trim_start_matches('!') == name))
        };
        self.lines.iter().filter(is_named)
    }

    /// The terms of a named access list: each line of it is enough.
    fn list(&self, name: &str, is_not: bool) -> Result<Vec<Terms>, String> {
        let lines = self.lines.iter().filter(|line| line.starts_with(&["acl", name]));
        let terms = lines.map(|line| Self::fetch(&line.words[2..], is_not));
        let terms = terms.collect::<Result<Vec<_>, _>>()?;
        match terms.as_slice() {
            [] if name == "TRUE" => Ok(vec![Terms::default()]),
            [] => Err(format!("{} is no access list of this section", piece(name))),
            [first, rest @ ..] if is_not => {
                let none = rest.iter().try_fold(first.clone(), |all, next| all.and(next));
                none.map(|none| vec![none])
                    .ok_or_else(|| format!("`match` cannot say what is in no line of {}", piece(name)))
            }
            [first, rest @ ..] => {
                let one = rest.iter().try_fold(first.clone(), |all, next| all.or(next));
                Ok(one.map_or_else(|| terms.clone(), |one| vec![one]))
            }
        }
    }

    /// A fetch with its flags and values.
    fn fetch(words: &[String], is_not: bool) -> Result<Terms, String> {
        let no_equal = || Err(format!("{} has no equivalent", piece(&words.join(" "))));
        let Some((fetch, rest)) = words.split_first() else { return no_equal() };
        let (mut values, mut method, mut ignores_case) = (Vec::new(), "", false);
        let mut rest = rest.iter();
        while let Some(word) = rest.next() {
            match word.as_str() {
                "-i" => ignores_case = true,
                "-m" => method = rest.next().map_or("", String::as_str),
                "--" => {}
                flag if flag.starts_with('-') && flag.len() == 2 => return no_equal(),
                value => values.push(value),
            }
        }
        let fetch = Fetch::of(fetch);
        if let Some((name, by, table)) = fetch.counter().filter(|_| fetch.converters.is_empty()) {
            let most = match values.as_slice() {
                ["gt", most] => most.parse().ok(),
                ["ge", most] => most.parse::<u64>().ok().and_then(|most| most.checked_sub(1)),
                _ => None,
            };
            return match most.filter(|_| !is_not) {
                Some(most) => Ok(Terms { counters: vec![Counter { name, by, table, most }], ..Terms::default() }),
                None => no_equal(),
            };
        }
        let Some((subject, own)) = subject(&fetch) else { return no_equal() };
        let method = if method.is_empty() { own } else { method };
        let is_lower = fetch.converters == "lower";
        if !is_lower && !fetch.converters.is_empty()
            || is_lower && values.iter().any(|value| value.contains(|each: char| each.is_ascii_uppercase()))
        {
            return no_equal();
        }
        let is_list = fetch.name.starts_with("hdr");
        let tests = |value: &&str| tests(value, method, ignores_case || is_lower, is_list, &subject);
        let tests: Option<Vec<Vec<Test>>> =
            if method == "found" { Some(vec![vec![Test::Present]]) } else { values.iter().map(tests).collect() };
        let Some(tests) = tests.map(|tests| tests.concat()).filter(|tests| !tests.is_empty()) else {
            return no_equal();
        };
        let condition = match (is_not, tests.as_slice()) {
            (true, [Test::Present]) => Condition::of([Test::Absent]),
            (true, _) => Condition::except(tests),
            (false, _) => Condition::of(tests),
        };
        let mut scope = Scope::default();
        match subject {
            By::Word("host") => scope.hosts = condition,
            By::Word("path") => scope.paths = condition,
            By::Address(_) => scope.networks = condition,
            By::Word("method") if !is_not => scope.methods = values.iter().map(|value| (*value).to_owned()).collect(),
            By::Header(name) => scope.headers.push((name, condition)),
            _ => return no_equal(),
        }
        Ok(Terms { scope, ..Terms::default() })
    }
}

impl Terms {
    pub(super) fn and(&self, other: &Self) -> Option<Self> {
        Some(Self {
            counters: [self.counters.clone(), other.counters.clone()].concat(),
            scope: self.scope.and(&other.scope)?,
        })
    }

    pub(super) fn or(&self, other: &Self) -> Option<Self> {
        (self.counters == other.counters)
            .then(|| self.scope.or(&other.scope))
            .flatten()
            .map(|scope| Self { scope, ..self.clone() })
    }
}

/// The part of a request that a fetch reads, and its default comparison.
fn subject(fetch: &Fetch<'_>) -> Option<(By, &'static str)> {
    let argument = fetch.argument().to_ascii_lowercase();
    let (name, method) = [
        ("_beg", "beg"),
        ("_end", "end"),
        ("_reg", "reg"),
        ("_sub", "sub"),
        ("_dir", ""),
        ("_dom", ""),
        ("_str", "str"),
    ]
    .iter()
    .find_map(|(end, method)| Some((fetch.name.strip_suffix(end)?, *method)))
    .unwrap_or((fetch.name, "str"));
    let by = match name {
        "path" => By::Word("path"),
        "method" => By::Word("method"),
        "src" => By::Address(128),
        "hdr" | "fhdr" if argument == "host" => By::Word("host"),
        "hdr" | "fhdr" => By::Header(argument),
        _ => return None,
    };
    (!method.is_empty()).then_some((by, method))
}

/// The tests for a value, of which one is enough; `None` if `match` has no equivalent. Of a list, each value is compared.
fn tests(value: &str, method: &str, ignores_case: bool, is_list: bool, subject: &By) -> Option<Vec<Test>> {
    // Hosts have no case.
    let is_plain =
        !ignores_case || *subject == By::Word("host") || !value.contains(|each: char| each.is_ascii_alphabetic());
    let regex = |text: String| Test::Regex(if ignores_case { format!("(?i){text}") } else { text });
    let escaped = regex::escape(value);
    let is_list = is_list && matches!(subject, By::Header(_));
    let [begin, end] = if is_list { [r"(?:^|,)\s*", r"\s*(?:,|$)"] } else { ["^", "$"] };
    // In a path, braces and stars are text, and none that is normalised ends with a slash.
    let is_pattern = value.contains(['{', '*']);
    let is_path = *subject == By::Word("path");
    let plain = match (method, subject) {
        ("str", By::Word("path")) if is_plain && !is_pattern => return Some(vec![Test::is(value)]),
        ("str", By::Word("host")) => return Some(vec![Test::is(value.to_ascii_lowercase())]),
        ("str", By::Word("method")) => return Some(vec![Test::is(value)]),
        ("str", By::Address(_)) => return Some(vec![Test::network(value)]),
        ("end", By::Word("host")) if value.starts_with('.') => return Some(vec![Test::is(format!("*{value}"))]),
        (_, By::Word("host")) => return None,
        ("end", _) if is_path && value.ends_with('/') => return None,
        // Each value of a list is compared by itself.
        (_, By::Header(_)) if is_list && value.contains(',') => return None,
        ("sub", _) if is_path => return Some(vec![path_regex(&escaped, if ignores_case { "(?i)" } else { "" })]),
        ("reg", _) if is_path => {
            return has_equivalent(value).then(|| vec![path_regex(value, if ignores_case { "(?i)" } else { "" })]);
        }
        ("str", _) if is_plain && !is_path => Some(Test::is(value)),
        ("beg", _) if is_plain => Some(Test::Prefix(value.to_owned())),
        _ => None,
    };
    let full = match method {
        "str" => regex(format!("{begin}{escaped}{end}")),
        "beg" => regex(format!("{begin}{escaped}")),
        "end" => regex(format!("{escaped}{end}")),
        "sub" => regex(escaped),
        "reg" => regex(if is_list { in_list(value, begin, end)? } else { value.to_owned() }),
        _ => return None,
    };
    // A plain test says what most requests have; the other one is for lists.
    Some(plain.iter().cloned().chain((plain.is_none() || is_list).then_some(full)).collect())
}

/// A regular expression of one value as one of a list; `None` if its anchors are those of an alternative.
fn in_list(regex: &str, begin: &str, end: &str) -> Option<String> {
    let rest = regex.strip_prefix('^').unwrap_or(regex);
    let inner = rest.strip_suffix('$').filter(|inner| !inner.ends_with('\\')).unwrap_or(rest);
    let begin = if rest == regex { "" } else { begin };
    let end = if inner == rest { "" } else { end };
    let is_one = inner.starts_with('(') || !inner.contains('|') || inner == regex;
    is_one.then(|| format!("{begin}{}{end}", without_commas(inner)))
}

/// A regular expression whose dots and negated classes take no comma.
fn without_commas(regex: &str) -> String {
    let mut text = String::new();
    let mut before = (' ', Part::Literal);
    for (_, character, part) in characters(regex) {
        let is_outside = matches!(part, Part::Outside(_));
        let is_negation = character == '^' && part == Part::Class && before.0 == '[' && before.1 != Part::Class;
        match character {
            '.' if is_outside => text.push_str("[^,]"),
            _ if is_negation => text.push_str("^,"),
            _ => text.push(character),
        }
        before = (character, part);
    }
    text
}
