//! Kong's routes: which requests each takes, and which of them has precedence.

use super::super::scope::{Condition, Scope, Test};
use super::super::settings::scalar;
use super::super::text::piece;
use super::super::tree::{list, member, text};
use super::reference;
use crate::config::foreign::{Node, Value};

/// Conditions on connections.
const OTHERS: [&str; 3] = ["snis", "sources", "destinations"];

pub(super) struct Route<'n> {
    pub(super) name: &'n str,
    pub(super) service: Option<&'n str>,
    pub(super) scope: Scope,
    /// Why `match` cannot say which requests it takes.
    pub(super) unknown: Option<String>,
    /// The kinds of conditions, whether one is a regular expression, its priority, and the longest path: the greater one is asked first.
    rank: (usize, bool, i64, usize),
}

impl<'n> Route<'n> {
    pub(super) fn read(node: &'n Node, service: Option<&'n str>, are_regexes_marked: bool) -> Self {
        let texts = |name| list(node, name).iter().filter_map(scalar);
        let mut scope = Scope {
            hosts: Condition::of(texts("hosts").map(host)),
            paths: Condition::of(texts("paths").map(|path| path_test(path, are_regexes_marked))),
            methods: texts("methods").map(str::to_owned).collect(),
            ..Scope::default()
        };
        if let Some(Value::Map(headers)) = member(node, "headers").map(|headers| &headers.value) {
            let values = |node: &Node| match &node.value {
                Value::List(values) => values.iter().filter_map(scalar).map(header).collect(),
                _ => scalar(node).map(header).into_iter().collect::<Vec<_>>(),
            };
            let conditions = headers.iter().map(|(key, node)| (key.text.to_lowercase(), Condition::of(values(node))));
            scope.headers.extend(conditions);
        }
        let unknown = ["expression"].iter().chain(&OTHERS).find(|name| member(node, name).is_some());
        let kinds = [!scope.hosts.is_open(), !scope.paths.is_open(), !scope.methods.is_empty()];
        Self {
            name: reference(node).unwrap_or("route"),
            service: service.or_else(|| member(node, "service").and_then(reference)),
            unknown: unknown.map(|name| format!("`match` cannot say {} of its route", piece(name))),
            rank: (
                kinds.iter().filter(|kind| **kind).count() + scope.headers.len(),
                scope.paths.any.iter().any(|test| matches!(test, Test::Regex(_))),
                text(node, "regex_priority").and_then(|priority| priority.parse().ok()).unwrap_or_default(),
                texts("paths").map(str::len).max().unwrap_or_default(),
            ),
            scope,
        }
    }

    pub(super) fn beats(&self, other: &Self) -> bool {
        self.rank > other.rank
    }
}

fn host(host: &str) -> Test {
    match host.strip_suffix(".*") {
        Some(start) => Test::Regex(format!("^{}\\.", regex::escape(start))),
        None => Test::is(host),
    }
}

/// Paths are prefixes of text. Before Kong 3.0, what is no plain path is a regular expression.
fn path_test(path: &str, are_regexes_marked: bool) -> Test {
    let is_plain = |each: char| each.is_ascii_alphanumeric() || "._~/%-".contains(each);
    match path.strip_prefix('~') {
        Some(regex) => Test::Regex(format!("^{regex}")),
        None if are_regexes_marked || path.chars().all(is_plain) => {
            Test::below(&path.replace('{', "%7B").replace('}', "%7D").replace('*', "%2A"))
        }
        None => Test::Regex(format!("^{path}")),
    }
}

fn header(value: &str) -> Test {
    match value.strip_prefix("~*") {
        Some(regex) => Test::Regex(format!("(?i){regex}")),
        None => Test::is(value),
    }
}
