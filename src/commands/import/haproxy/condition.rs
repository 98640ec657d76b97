//! Conditions of HAProxy: access lists, and what they say about rates and requests.

use super::super::gateway::By;
use super::super::scope::{Condition, Scope, Test};
use super::super::text::piece;
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

const COUNTERS: [&str; 12] = [
    "http_req_rate",
    "conn_cur",
    "conn_rate",
    "conn_cnt",
    "sess_rate",
    "sess_cnt",
    "http_req_cnt",
    "http_err_rate",
    "http_fail_rate",
    "bytes_in_rate",
    "bytes_out_rate",
    "gpc0_rate",
];

/// A counter's name, and what it is of, in a fetch such as `sc_http_req_rate(0,table)`.
fn counter(fetch: &str) -> Option<(String, String, Option<String>)> {
    let (name, arguments) = fetch.split_once('(').unwrap_or((fetch, ""));
    let mut arguments = arguments.trim_end_matches(')').split(',').filter(|argument| !argument.is_empty());
    let (by, name) = name.split_once('_')?;
    let known = COUNTERS.iter().find(|known| **known == name)?;
    let by = if by == "sc" { format!("sc{}", arguments.next()?) } else { by.to_owned() };
    Some(((*known).to_owned(), by, arguments.next().map(str::to_owned)))
}

/// Returns true if a line is about limits.
pub(super) fn is_about_limits(line: &Line) -> bool {
    let is_counter = |word: &String| {
        counter(word.split(',').next().unwrap_or_default()).is_some() || word.contains("_http_req_rate(")
    };
    let words = ["stick-table", "rate-limit"];
    line.words.iter().any(is_counter)
        || line.words.iter().any(|word| word.contains("track-sc"))
        || line.words.first().is_some_and(|first| words.contains(&first.as_str()))
}

impl Section {
    /// The terms of a rule's condition, one for each of those of which one is enough. The error says what has no equivalent.
    pub(super) fn terms(&self, words: &[String]) -> Result<Vec<Terms>, String> {
        let place = words.iter().position(|word| word == "if" || word == "unless");
        let Some((start, words)) = place.and_then(|place| words.get(place..)?.split_first()) else {
            return Ok(vec![Terms::default()]);
        };
        if start == "unless" {
            return Err("`unless`: write it with `if !`".to_owned());
        }
        let mut all = Vec::new();
        for group in words.split(|word| word == "||" || word == "or") {
            let mut terms = vec![Terms::default()];
            let mut rest = group;
            while let Some((first, more)) = rest.split_first() {
                let (is_not, first) = first.strip_prefix('!').map_or((false, first.as_str()), |first| (true, first));
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
        if let Some((name, by, table)) = counter(fetch) {
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
        let Some((subject, own)) = subject(fetch) else { return no_equal() };
        let method = if method.is_empty() { own } else { method };
        let test = |value: &&str| test(value, method, ignores_case, &subject);
        let tests: Option<Vec<Test>> =
            if method == "found" { Some(vec![Test::Present]) } else { values.iter().map(test).collect() };
        let Some(tests) = tests else { return no_equal() };
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
fn subject(fetch: &str) -> Option<(By, &'static str)> {
    let (name, argument) = fetch.split_once('(').unwrap_or((fetch, ""));
    let argument = argument.split([',', ')']).next().unwrap_or_default().to_ascii_lowercase();
    let name = name.strip_prefix("req.").unwrap_or(name);
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
    .find_map(|(end, method)| Some((name.strip_suffix(end)?, *method)))
    .unwrap_or((name, "str"));
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

fn test(value: &str, method: &str, ignores_case: bool, subject: &By) -> Option<Test> {
    // Hosts have no case.
    let is_plain =
        !ignores_case || *subject == By::Word("host") || !value.contains(|each: char| each.is_ascii_alphabetic());
    let regex = |text: String| Some(Test::Regex(if ignores_case { format!("(?i){text}") } else { text }));
    let escaped = regex::escape(value);
    match (method, subject) {
        ("str", _) if is_plain => Some(Test::is(value.to_lowercase_if(*subject == By::Word("host")))),
        ("end", By::Word("host")) if value.starts_with('.') => Some(Test::is(format!("*{value}"))),
        (_, By::Word("host")) => None,
        ("beg", _) if is_plain => Some(Test::Prefix(value.to_owned())),
        ("str", _) => regex(format!("^{escaped}$")),
        ("beg", _) => regex(format!("^{escaped}")),
        ("end", _) => regex(format!("{escaped}$")),
        ("sub", _) => regex(escaped),
        ("reg", _) => regex(value.to_owned()),
        _ => None,
    }
}

trait Lower {
    fn to_lowercase_if(&self, is_wanted: bool) -> String;
}

impl Lower for str {
    fn to_lowercase_if(&self, is_wanted: bool) -> String {
        if is_wanted { self.to_ascii_lowercase() } else { self.to_owned() }
    }
}

/// The components of a tracked key. The error names what has no equivalent.
pub(super) fn key(text: &str) -> Result<Vec<By>, String> {
    let (fetch, converters) =
        text.split_once(',').filter(|_| !text.contains('(') || text.find(',') > text.find(')')).unwrap_or((text, ""));
    let (name, argument) = fetch.split_once('(').unwrap_or((fetch, ""));
    let argument = argument.split([',', ')']).next().unwrap_or_default();
    let by = match name.strip_prefix("req.").unwrap_or(name) {
        "src" | "hdr_ip" => vec![By::Address(128)],
        "hdr" | "fhdr" if argument.eq_ignore_ascii_case("x-forwarded-for") => vec![By::Address(128)],
        "hdr" | "fhdr" if argument.eq_ignore_ascii_case("host") => vec![By::Word("host")],
        "hdr" | "fhdr" => vec![By::Header(argument.to_ascii_lowercase())],
        "url_param" | "urlp" => vec![By::Query(argument.to_owned())],
        "cook" => vec![By::Cookie(argument.to_owned())],
        "path" => vec![By::Word("path")],
        "method" => vec![By::Word("method")],
        "base" | "base32" => vec![By::Word("host"), By::Word("path")],
        "base32+src" => vec![By::Word("host"), By::Word("path"), By::Address(128)],
        "str" | "int" | "always_true" => Vec::new(),
        _ => return Err(format!("{} has no equivalent in `by`", piece(text))),
    };
    match converters {
        "" | "lower" => Ok(by),
        mask if by == [By::Address(128)] && mask.starts_with("ipmask(32,") => {
            let bits = mask
                .trim_start_matches("ipmask(32,")
                .trim_end_matches(')')
                .parse()
                .map_err(|_| format!("invalid mask {}", piece(mask)))?;
            Ok(vec![By::Address(bits)])
        }
        other => Err(format!("`{other}` has no equivalent in `by`; IPv4 addresses count whole")),
    }
}
