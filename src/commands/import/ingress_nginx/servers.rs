//! The servers that ingress-nginx makes of all Ingresses: one for each host.

use std::collections::{HashMap, HashSet};

use super::super::document::{Document, Origin};
use super::super::scope::{Condition, Test};
use super::super::text::piece;
use super::super::tree::{at, list_at, text_at};
use super::{Ingress, PREFIX};
use crate::config::foreign::Node;

#[derive(Default)]
pub(super) struct Servers {
    /// Other names of hosts.
    aliases: HashMap<String, Vec<String>>,
    /// Those whose paths are regular expressions.
    with_regexes: HashSet<String>,
}

impl Servers {
    pub(super) fn of(ingresses: &[Ingress<'_>], document: &mut Document) -> Self {
        let mut served: Vec<&Ingress<'_>> = ingresses.iter().filter(|ingress| ingress.is_served()).collect();
        served.sort_by_key(|ingress| ingress.created());
        let rules = || served.iter().flat_map(|ingress| rules(ingress).map(move |(host, rule)| (*ingress, host, rule)));
        let hosts: HashSet<&str> = rules().map(|(_, host, _)| host).collect();
        let mut servers = Self::default();
        for (ingress, host, rule) in rules() {
            if ingress.has_regexes(rule) {
                servers.with_regexes.insert(host.to_owned());
            }
            let aliases = ingress.aliases().filter(|_| !host.is_empty());
            let (patterns, names): (Vec<&str>, Vec<&str>) = aliases.partition(|alias| alias.starts_with('~'));
            // A host of an Ingress is nobody's alias.
            let names: Vec<String> =
                names.into_iter().filter(|alias| !hosts.contains(alias)).map(str::to_owned).collect();
            let mut tell = |what: &str| {
                let key = format!("{PREFIX}server-alias");
                let place = ingress.annotations.and_then(|all| at(all, &[&key])).map(|node| node.place);
                document.unused(Origin::of(&ingress.file, place.unwrap_or_default()).note(what));
            };
            for pattern in patterns {
                tell(&format!("`server-alias` {}: `host` has names and `*.NAME`.", piece(pattern)));
            }
            let known = servers.aliases.entry(host.to_owned()).or_default();
            if known.is_empty() {
                *known = names;
            } else if !names.is_empty() && *known != names {
                let what =
                    "ingress-nginx takes the aliases of {} from the oldest Ingress that has some; these are left out.";
                tell(&what.replace("{}", &piece(host)));
            }
        }
        let mut told: HashSet<&str> = HashSet::new();
        for (ingress, host, rule) in rules().filter(|(_, host, _)| host.starts_with("*.") && told.insert(host)) {
            let place = at(rule, &["host"]).map(|node| node.place).unwrap_or_default();
            let what = format!("{}: `*` is one label in ingress-nginx, and any number of them here.", piece(host));
            document.unused(Origin::of(&ingress.file, place).note(what));
        }
        servers
    }

    /// The names of a host.
    pub(super) fn names(&self, host: &str) -> Condition {
        let aliases = self.aliases.get(host).into_iter().flatten().map(String::as_str);
        Condition::of((!host.is_empty()).then_some(host).into_iter().chain(aliases).map(Test::is))
    }

    /// Returns whether nginx takes all paths of a host as regular expressions.
    pub(super) fn has_regexes(&self, host: &str) -> bool {
        self.with_regexes.contains(host)
    }
}

/// The rules of an Ingress, each with its host.
pub(super) fn rules<'n>(ingress: &Ingress<'n>) -> impl Iterator<Item = (&'n str, &'n Node)> + use<'n> {
    list_at(ingress.node, &["spec", "rules"]).iter().map(|rule| (text_at(rule, &["host"]).unwrap_or_default(), rule))
}

/// Returns true if nginx looks at the first path before the second: exact ones, then longer ones.
pub(super) fn is_before(first: &Condition, second: &Condition) -> bool {
    let rank = |condition: &Condition| match condition.any.first() {
        Some(Test::Is(text)) if !text.ends_with("**") => (1, text.len()),
        Some(Test::Is(text) | Test::Prefix(text) | Test::Regex(text)) => (0, text.trim_end_matches("/**").len()),
        _ => (0, 0),
    };
    rank(first) > rank(second)
}
