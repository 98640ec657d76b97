//! Reads envoyproxy/ratelimit's files into limits and a tree of them per domain.
//!
//! The files are read as that service reads them (`src/config/config_impl.go`) with `MERGE_DOMAIN_CONFIG=true`: several files
//! may describe one domain. There are four deliberate differences: a file may have several documents; a level may have the
//! same key and value once per unit, and all of these limits apply; a `rate_limit` without a number is a mistake rather than
//! a limit of 0; and a name that would break the header that Envoy writes it into is rejected.

use std::collections::HashMap;

use super::foreign;
use super::lints::Lint;
use super::mapping::Mapping;
use super::matching::{domain, entry_value};
use super::node::Node;
use super::problem::{Findings, Place, ReadResult, ReportedError, quoted};
use crate::engine::limit::descriptors::{DescriptorRule, Tree, limit_name};
use crate::engine::limit::matching::{DescriptorMatch, EntryMatch, Match, ValueTest};
use crate::engine::limit::{Limit, LimitMode, StoreErrorPolicy};
use crate::engine::request::component::{Component, ComponentSource};
use crate::engine::request::value_type::ValueType;
use siblings::Siblings;

mod metadata;
mod rate_limit;
mod siblings;

/// The keys of a document.
const KEYS: [&str; 3] = ["name", "domain", "descriptors"];

const DESCRIPTOR_KEYS: [&str; 10] = [
    "key",
    "value",
    "rate_limit",
    "descriptors",
    "shadow_mode",
    "quota_mode",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
];

/// The domains read so far.
#[derive(Default)]
pub(super) struct Domains {
    /// The limits, in the order of the files.
    limits: Vec<Limit>,
    by_name: HashMap<String, Domain>,
    /// The index of the first limit, after those of `limits.yaml`.
    first: u32,
}

/// The descriptors of a domain.
#[derive(Default)]
struct Domain {
    tree: Tree,
    /// The entries of the first level.
    siblings: Siblings,
}

/// One entry on the path to a limit.
#[derive(Clone)]
struct Level {
    entry: EntryMatch,
    /// All matching values share a counter.
    shares: bool,
}

/// Reads the descriptors of one document.
struct DocumentReader<'d> {
    domain: String,
    limits: &'d mut Vec<Limit>,
    first: u32,
    tree: Tree,
    /// True once a warning has said that metrics never contain values of requests.
    metrics_are_explained: bool,
}

impl Domains {
    /// Returns no domains; their limits will follow the `first` ones.
    pub(super) fn after(first: usize) -> Self {
        Self { first: u32::try_from(first).unwrap_or(u32::MAX), ..Self::default() }
    }

    /// Adds the domains of a file, one per document. The descriptors of a known domain are added to it.
    pub(super) fn add(&mut self, text: &str, findings: &Findings) -> ReadResult<()> {
        let documents = foreign::documents(text, findings)?;
        let help = "write `domain:` and `descriptors:`";
        if documents.is_empty() {
            return Err(findings.error(Place::START, "the file is empty", help));
        }
        let mut outcome = Ok(());
        for document in &documents {
            // All are read, so that all mistakes are found.
            outcome = document.map("the file", help).and_then(|_| self.document(document)).and(outcome);
        }
        outcome
    }

    fn document(&mut self, document: &Node) -> ReadResult<()> {
        let map = Mapping::sparse(document, "the file", &KEYS)?;
        // The name by which a control plane knows the document.
        let name = map.read("name", Node::text);
        let name_of_domain = map.need("domain", "use the `domain` of the gateway's filter").and_then(domain);
        let known = name_of_domain.as_ref().ok().and_then(|domain| self.by_name.remove(domain));
        let Domain { tree, mut siblings } = known.unwrap_or_default();
        let mut reader = DocumentReader {
            domain: name_of_domain.clone().unwrap_or_default(),
            limits: &mut self.limits,
            first: self.first,
            tree,
            metrics_are_explained: false,
        };
        if let Some((_, node)) = map.get("descriptors") {
            reader.level(node, &[], &mut siblings);
        }
        let tree = reader.tree;
        self.by_name.insert(name_of_domain?, Domain { tree, siblings });
        name.map(drop)
    }

    /// Returns the limits, and the tree of each domain.
    pub(super) fn into_parts(self) -> (Vec<Limit>, HashMap<String, Tree>) {
        (self.limits, self.by_name.into_iter().map(|(name, domain)| (name, domain.tree)).collect())
    }
}

impl DocumentReader<'_> {
    /// Reads the descriptors of one level. Recursion is bounded by the depth of the text.
    fn level(&mut self, node: &Node, above: &[Level], siblings: &mut Siblings) {
        let Ok(items) = node.list("`descriptors`", "write one `- key: NAME` per descriptor") else { return };
        for item in items {
            // A mistake has been reported; the others may be right.
            let (Ok(()) | Err(ReportedError)) = self.descriptor(item, above, siblings);
        }
    }

    fn descriptor(&mut self, node: &Node, above: &[Level], siblings: &mut Siblings) -> ReadResult<()> {
        let map = Mapping::sparse(node, "a descriptor", &DESCRIPTOR_KEYS)?;
        let level = level(&map);
        let limit = self.limit(&map);
        let below = map.get("descriptors");
        let path = level.map(|level| [above, &[level]].concat());
        if let Some((_, below)) = below {
            // If this level has a mistake, the levels below are still checked.
            self.level(below, path.as_deref().unwrap_or(above), &mut Siblings::default());
        }
        let (path, limit) = (path?, limit?);
        let entries: Vec<EntryMatch> = path.iter().map(|level| level.entry.clone()).collect();
        let Some(last) = entries.last() else { return Ok(()) };
        let unit = limit.as_ref().and_then(|limit| Some(limit.rule.as_deref()?.per_unit?.unit));
        let number = siblings.add(last, node, unit, below.is_some())?;
        let index = limit.is_some().then(|| self.first + u32::try_from(self.limits.len()).unwrap_or(u32::MAX));
        self.tree.insert(&entries, index);
        if let Some(limit) = limit {
            let name = limit_name(&self.domain, &entries, unit.filter(|_| number > 0));
            let (domains, descriptor) = (vec![self.domain.clone()], DescriptorMatch::Whole(entries));
            let conditions = Match { domains, descriptor, ..Match::default() };
            self.limits.push(Limit { short: name.clone(), name, conditions, by: components(&path), ..limit });
        }
        Ok(())
    }

    /// Reads the limit of a descriptor, if it has one, without its name and its conditions.
    fn limit(&mut self, map: &Mapping<'_>) -> ReadResult<Option<Limit>> {
        let is_shadow = map.read("shadow_mode", Node::truth);
        let is_quota = map.read("quota_mode", Node::truth);
        let metadata = map.read("metadata", metadata::read);
        let detailed = self.explain_metrics(map, "detailed_metric");
        let by_value = self.explain_metrics(map, "value_to_metric");
        let rule = map.read("rate_limit", rate_limit::read)?;
        let (is_shadow, is_quota, metadata) = (is_shadow?.unwrap_or(false), is_quota?.unwrap_or(false), metadata?);
        detailed.and(by_value)?;
        Ok(rule.map(|(rule, allowance)| Limit {
            allowance,
            mode: if is_shadow { LimitMode::Shadow } else { LimitMode::Enforce },
            // Envoy's `failure_mode_deny` decides about requests that cannot be counted.
            on_store_error: StoreErrorPolicy::Deny,
            // That service counts what is over the limit as well.
            drain_over_limit: true,
            rule: Some(Box::new(DescriptorRule { is_quota, metadata, ..rule })),
            ..Limit::new("")
        }))
    }

    /// Warns once per file that metrics of values are not supported.
    fn explain_metrics(&mut self, map: &Mapping<'_>, name: &str) -> ReadResult<()> {
        let is_on = map.read(name, Node::truth)?.unwrap_or(false);
        if let (Some((key, _)), true, false) = (map.get(name), is_on, self.metrics_are_explained) {
            self.metrics_are_explained = true;
            let message = format!("{} has no effect: decisions are counted per rule", quoted(name));
            key.warning(Lint::NoEffect, message, "metric labels never carry request values, whose number is unbounded");
        }
        Ok(())
    }
}

/// Reads the entry that a descriptor is for.
fn level(map: &Mapping<'_>) -> ReadResult<Level> {
    let value = map.read("value", Node::text);
    let shares = map.read("share_threshold", Node::truth);
    let help = "add `key:` with a key that the gateway sends";
    let node = map.need("key", help)?;
    let key = match node.text()? {
        "" => return Err(node.error("the key is empty", help)),
        key => key.to_owned(),
    };
    let test = value?.filter(|value| !value.is_empty()).map_or(ValueTest::Present(true), entry_value);
    let shares = shares?.unwrap_or(false);
    if let (Some((key, _)), true, false) = (map.get("share_threshold"), shares, matches!(test, ValueTest::Glob(_))) {
        let help = "use a `value` such as `files/*`; all values that match share one counter";
        return Err(key.error("`share_threshold` needs a value with `*`", help));
    }
    Ok(Level { entry: EntryMatch { key, test }, shares })
}

/// Returns the components of ids: the entries whose values the path leaves open.
fn components(path: &[Level]) -> Vec<Component> {
    let is_open = |level: &Level| match level.entry.test {
        ValueTest::Value(_) => false,
        ValueTest::Glob(_) => !level.shares,
        _ => true,
    };
    let open = path.iter().enumerate().filter(|(_, level)| is_open(level));
    open.map(|(place, level)| {
        let source = ComponentSource::Entry { key: level.entry.key.clone(), place };
        Component::new(source, ValueType::Text)
    })
    .collect()
}
