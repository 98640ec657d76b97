//! Kong's routes: which requests each takes, and which of them has precedence.

use std::collections::BTreeMap;

use super::super::path_regex::path_regex;
use super::super::scope::{Condition, Scope, Test};
use super::super::settings::scalar;
use super::super::text::piece;
use super::super::tree::{list, member, text};
use crate::config::foreign::{Node, Value};

/// Conditions on connections.
const OTHERS: [&str; 3] = ["snis", "sources", "destinations"];

/// A route, or what Kong makes of one: its regular expressions, or its plain paths of one length.
pub(super) struct Route {
    pub(super) entity: usize,
    pub(super) service: Option<usize>,
    pub(super) scope: Scope,
    /// Why `match` cannot say which requests it takes.
    pub(super) unknown: Option<String>,
    rank: Rank,
}

/// The precedence of a route: Kong asks the greater one first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    /// The number of kinds of conditions.
    kinds: usize,
    has_only_plain_hosts: bool,
    headers: usize,
    is_regex: bool,
    regex_priority: i64,
    /// The length of plain paths.
    length: usize,
}

impl Route {
    pub(super) fn read(node: &Node, entity: usize, service: Option<usize>, are_regexes_marked: bool) -> Vec<Self> {
        let texts = |name| list(node, name).iter().filter_map(scalar);
        let mut outer = Scope {
            hosts: Condition::of(texts("hosts").map(Test::is)),
            methods: texts("methods").map(str::to_uppercase).collect(),
            ..Scope::default()
        };
        if let Some(Value::Map(headers)) = member(node, "headers").map(|headers| &headers.value) {
            let values = |node: &Node| match &node.value {
                Value::List(values) => values.iter().filter_map(scalar).map(header).collect(),
                _ => scalar(node).map(header).into_iter().collect::<Vec<_>>(),
            };
            let conditions = headers.iter().map(|(key, node)| (key.text.to_lowercase(), Condition::of(values(node))));
            outer.headers.extend(conditions);
        }
        let mut unknown = OTHERS.into_iter().find(|name| !list(node, name).is_empty());
        unknown = unknown.or_else(|| member(node, "expression").map(|_| "expression"));
        unknown = unknown.or_else(|| texts("hosts").find(|host| host.ends_with('*')).map(|_| "hosts"));
        let mut paths: BTreeMap<Option<usize>, Vec<Test>> = BTreeMap::new();
        for path in texts("paths") {
            let test = path_test(path, are_regexes_marked);
            let length = (!matches!(test, Test::Regex(_))).then_some(path.len());
            paths.entry(length).or_default().push(test);
        }
        if paths.is_empty() {
            paths.insert(Some(0), Vec::new());
        }
        let kinds = ["hosts", "paths", "methods", "snis"].into_iter().filter(|name| !list(node, name).is_empty());
        let kinds = kinds.count() + usize::from(!outer.headers.is_empty());
        let regex_priority =
            text(node, "regex_priority").and_then(|priority| priority.parse().ok()).unwrap_or_default();
        let of_paths = |(length, tests): (Option<usize>, Vec<Test>)| Self {
            entity,
            service,
            unknown: unknown.map(|name| format!("`match` cannot say {} of its route", piece(name))),
            rank: Rank {
                kinds,
                has_only_plain_hosts: !outer.hosts.is_open() && !texts("hosts").any(|host| host.contains('*')),
                headers: outer.headers.len(),
                is_regex: length.is_none(),
                regex_priority: if length.is_none() { regex_priority } else { 0 },
                length: length.unwrap_or_default(),
            },
            scope: Scope { paths: Condition::of(tests), ..outer.clone() },
        };
        paths.into_iter().map(of_paths).collect()
    }

    pub(super) fn beats(&self, other: &Self) -> bool {
        self.rank > other.rank
    }

    /// Returns true if a request may take both, and Kong's order of the two is that of their ids.
    pub(super) fn ties(&self, other: &Self) -> bool {
        self.rank == other.rank && self.meets(other)
    }

    /// Returns false if it is known that no request fits both routes.
    pub(super) fn meets(&self, other: &Self) -> bool {
        let is_literal = |test: &Test| matches!(test, Test::Regex(text) if text.starts_with(LITERAL));
        let are_apart = |own: &Condition, others: &Condition| {
            own.any.iter().chain(&others.any).all(is_literal) && !own.any.iter().any(|test| others.any.contains(test))
        };
        let mut headers = self.scope.headers.iter();
        let is_apart = headers.any(|(name, own)| {
            other.scope.headers.iter().any(|(other_name, others)| name == other_name && are_apart(own, others))
        });
        let mut left = other.scope.clone();
        !is_apart && (!left.subtract(&self.scope) || left != other.scope)
    }
}

/// Paths are prefixes of text. Before Kong 3.0, what is no plain path is a regular expression. Paths have no slash at their end here.
fn path_test(path: &str, are_regexes_marked: bool) -> Test {
    let is_plain = |each: char| each.is_ascii_alphanumeric() || "._~/%-".contains(each);
    let regex = |regex: &str| path_regex(&format!("^{regex}"), "");
    match path.strip_prefix('~') {
        Some(text) => regex(text),
        None if are_regexes_marked || path.chars().all(is_plain) => {
            Test::below(&path.replace('{', "%7B").replace('}', "%7D").replace('*', "%2A"))
        }
        None => regex(path),
    }
}

/// The beginning of a regular expression for a text in any case.
const LITERAL: &str = "^(?i:";

/// Kong ignores the case of values.
fn header(value: &str) -> Test {
    match value.strip_prefix("~*") {
        Some(regex) => Test::Regex(format!("(?i){regex}")),
        None => Test::Regex(format!("{LITERAL}{})$", regex::escape(&value.to_lowercase()))),
    }
}
