//! A file of envoyproxy/ratelimit as a tree. It has been checked before, so whatever cannot be read is absent.

use super::super::amount::{Amount, milliseconds};
use super::super::document::Origin;
use super::super::text::quoted;
use crate::config::Source;
use crate::config::foreign::{self, Findings, Key, Node, find};
use crate::engine::limit::descriptors::RateUnit;

pub(super) struct Domain {
    pub(super) name: String,
    pub(super) branches: Vec<Branch>,
}

/// A descriptor of the file.
pub(super) struct Branch {
    pub(super) origin: Origin,
    pub(super) key: String,
    pub(super) test: Test,
    /// `share_threshold`
    pub(super) shares: bool,
    pub(super) rule: Option<Rule>,
    /// Keys that cannot be expressed.
    pub(super) unused: Vec<String>,
    /// Keys that have no effect because the descriptor has no limit.
    pub(super) without_effect: Vec<&'static str>,
    pub(super) below: Vec<Branch>,
}

/// The condition on an entry's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Test {
    Any,
    Value(String),
    Glob(String),
}

/// A `rate_limit`, and the modes of its descriptor.
#[derive(Default)]
pub(super) struct Rule {
    pub(super) origin: Origin,
    pub(super) name: String,
    pub(super) amount: Amount,
    pub(super) is_shadow: bool,
    pub(super) is_quota: bool,
    pub(super) replaces: Vec<String>,
    /// The name of its unit, if a calendar period has the same name.
    pub(super) unit: Option<&'static str>,
}

impl Test {
    /// The test in a `match`. An open value needs none, as it is part of the id.
    pub(super) fn value(&self) -> Option<String> {
        match self {
            Self::Any => None,
            Self::Value(text) | Self::Glob(text) => Some(quoted(text)),
        }
    }
}

/// Reads files that have been checked.
pub(super) fn read(sources: &[Source]) -> Vec<Domain> {
    let mut domains: Vec<Domain> = Vec::new();
    for source in sources {
        for root in foreign::documents(&source.text, &Findings::new(&source.name)).unwrap_or_default() {
            let all = map(&root);
            let (name, mut branches) = (text(all, "domain").unwrap_or_default(), branches(source, all));
            match domains.iter_mut().find(|known| known.name == name) {
                Some(known) => known.branches.append(&mut branches),
                None => domains.push(Domain { name, branches }),
            }
        }
    }
    domains
}

fn branches(source: &Source, above: &[(Key, Node)]) -> Vec<Branch> {
    let Some((_, node)) = find(above, "descriptors") else { return Vec::new() };
    let foreign::Value::List(items) = &node.value else { return Vec::new() };
    items.iter().map(|item| branch(source, item)).collect()
}

fn branch(source: &Source, node: &Node) -> Branch {
    let given = map(node);
    let test = match text(given, "value").filter(|value| !value.is_empty()) {
        None => Test::Any,
        Some(value) if value.contains('*') => Test::Glob(value),
        Some(value) => Test::Value(value),
    };
    let is_on = |name: &str| text(given, name).is_some_and(|value| value.eq_ignore_ascii_case("true"));
    let unused = ["detailed_metric", "value_to_metric"].into_iter().filter(|name| is_on(name));
    let unused = unused.chain(find(given, "metadata").map(|_| "metadata"));
    let modes = ["shadow_mode", "quota_mode"].into_iter().filter(|name| is_on(name));
    let without_effect = match find(given, "rate_limit") {
        None => unused.clone().chain(modes).collect(),
        Some(_) => Vec::new(),
    };
    let unused = unused.map(str::to_owned).collect();
    let rule = find(given, "rate_limit").map(|(key, node)| Rule {
        is_shadow: is_on("shadow_mode"),
        is_quota: is_on("quota_mode"),
        ..rule(Origin::of(source, key.place), map(node))
    });
    Branch {
        origin: Origin::of(source, node.place),
        key: text(given, "key").unwrap_or_default(),
        test,
        shares: is_on("share_threshold"),
        rule,
        unused,
        without_effect,
        below: branches(source, given),
    }
}

fn rule(origin: Origin, given: &[(Key, Node)]) -> Rule {
    let wanted = text(given, "unit").unwrap_or_default();
    let unit = RateUnit::ALL.into_iter().find(|(name, _)| name.eq_ignore_ascii_case(&wanted)).map(|(_, unit)| unit);
    let requests = text(given, "requests_per_unit").and_then(|number| number.parse::<u64>().ok()).unwrap_or(0);
    let amount = match unit {
        None => Amount::Unlimited,
        Some(_) if requests == 0 => Amount::Deny,
        Some(unit) => Amount::Rate { burst: None, count: requests, period: milliseconds(unit.seconds() * 1_000) },
    };
    let replaces = match find(given, "replaces").map(|(_, node)| &node.value) {
        Some(foreign::Value::List(items)) => items.iter().filter_map(|item| text(map(item), "name")).collect(),
        _ => Vec::new(),
    };
    let unit = unit.filter(|unit| requests > 0 && matches!(unit, RateUnit::Month | RateUnit::Year)).map(RateUnit::name);
    Rule { origin, name: text(given, "name").unwrap_or_default(), amount, replaces, unit, ..Rule::default() }
}

fn map(node: &Node) -> &[(Key, Node)] {
    if let foreign::Value::Map(entries) = &node.value { entries } else { &[] }
}

fn text(entries: &[(Key, Node)], name: &str) -> Option<String> {
    match &find(entries, name)?.1.value {
        foreign::Value::Scalar { text, .. } => Some(text.clone()),
        _ => None,
    }
}
