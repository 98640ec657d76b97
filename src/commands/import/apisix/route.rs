//! APISIX' routes: which requests each takes, and which of them has precedence.

use std::cmp::Reverse;

use super::super::scope::{Condition, Scope, Test};
use super::super::settings::scalar;
use super::super::text::piece;
use super::super::tree::{list, member, text};
use crate::config::foreign::{Node, Value};

/// A path of a route on one of its hosts: APISIX asks the routes of each host by themselves.
pub(super) struct Route {
    pub(super) owner: usize,
    /// The owners of its plugins: itself, its plugin config and its service.
    pub(super) owners: Vec<usize>,
    pub(super) scope: Scope,
    /// Why `match` cannot say which requests it takes.
    pub(super) unknown: Option<String>,
    /// The greater one is asked first: by a host without a star, the host's length, an exact path, the path's length, the priority, and
    /// the place from the end.
    pub(super) rank: (bool, usize, bool, usize, i64, Reverse<usize>),
}

impl Route {
    pub(super) fn read(owner: usize, owners: &[usize], node: &Node, service: Option<&Node>) -> Vec<Self> {
        let hosts = Some(texts(node, "host", "hosts")).filter(|hosts| !hosts.is_empty());
        let hosts = hosts.or_else(|| service.map(|service| texts(service, "host", "hosts"))).unwrap_or_default();
        let mut outer = Scope {
            networks: Condition::of(texts(node, "remote_addr", "remote_addrs").into_iter().map(Test::network)),
            methods: texts(node, "method", "methods").into_iter().map(str::to_owned).collect(),
            ..Scope::default()
        };
        let mut unknown = member(node, "filter_func").map(|_| "`match` has no `filter_func`".to_owned());
        for variable in list(node, "vars") {
            match header(variable) {
                Some(condition) => outer.headers.push(condition),
                None => unknown = Some("`match` cannot say its `vars`".to_owned()),
            }
        }
        let priority = text(node, "priority").and_then(|priority| priority.parse().ok()).unwrap_or_default();
        let hosts: Vec<Option<&str>> =
            if hosts.is_empty() { vec![None] } else { hosts.into_iter().map(Some).collect() };
        let of_path = |host: Option<&str>, path: &str| {
            let start = path.strip_suffix('*');
            let is_pattern = start.unwrap_or(path).contains('*') || path.contains("/:");
            let odd = is_pattern.then(|| format!("{} depends on the router of APISIX", piece(path)));
            let test = match start {
                Some("/") => None,
                Some(start) => Some(Test::below(start)),
                None => Some(Test::is(path.replace('{', "%7B").replace('}', "%7D"))),
            };
            Self {
                owner,
                owners: owners.to_vec(),
                scope: Scope { hosts: Condition::of(host.map(Test::is)), paths: Condition::of(test), ..outer.clone() },
                unknown: unknown.clone().or(odd),
                rank: (
                    host.is_some_and(|host| !host.starts_with('*')),
                    host.map_or(0, str::len),
                    start.is_none(),
                    path.len(),
                    priority,
                    Reverse(owner),
                ),
            }
        };
        let of_paths = |host| texts(node, "uri", "uris").into_iter().map(move |path| (host, path));
        hosts.into_iter().flat_map(of_paths).map(|(host, path)| of_path(host, path)).collect()
    }
}

/// The values of a key, or of the one for several.
fn texts<'n>(node: &'n Node, one: &str, several: &str) -> Vec<&'n str> {
    text(node, one).into_iter().chain(list(node, several).iter().filter_map(scalar)).collect()
}

/// `["http_x_beta", "==", "yes"]` as a condition on a header.
fn header(variable: &Node) -> Option<(String, Condition)> {
    let Value::List(words) = &variable.value else { return None };
    let words: Vec<&str> = words.iter().map(scalar).collect::<Option<_>>()?;
    let [name, operator, value] = words.as_slice() else { return None };
    let test = match *operator {
        "==" => Test::is(*value),
        "~~" => Test::Regex((*value).to_owned()),
        _ => return None,
    };
    Some((name.strip_prefix("http_")?.replace('_', "-"), Condition::of([test])))
}
