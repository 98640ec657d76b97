//! The files of envoyproxy/ratelimit, turned into limits and a tree of them for each domain.
//!
//! They are read as that service reads them (`src/config/config_impl.go`) with `MERGE_DOMAIN_CONFIG=true`: what several
//! files say of one domain holds together. Four differences are on purpose: a file may hold several documents; a key and a
//! value may stand on one level once for each unit, and all of these hold; a `rate_limit` without a number is a mistake
//! rather than a limit of 0; and a name that would break the header that Envoy writes it into is refused.

use std::collections::HashMap;

use super::foreign;
use super::mapping::{Mapping, list};
use super::problem::{Findings, Place, Reported, quoted};
use super::scalars::{text, truth};
use super::yaml::{Node, Value};
use crate::engine::rules::component::{Component, ComponentSource};
use crate::engine::rules::descriptors::{DescriptorRule, Tree, limit_name};
use crate::engine::rules::glob::Glob;
use crate::engine::rules::limit::{Limit, LimitMode, StoreErrorPolicy};
use crate::engine::rules::matching::{DescriptorMatch, EntryMatch, EntryTest, Match};
use crate::engine::rules::value_type::ValueType;
use siblings::Siblings;

mod metadata;
mod rate_limit;
mod siblings;

/// The keys of a document.
const KEYS: [&str; 3] = ["name", "domain", "descriptors"];

/// The fields of a descriptor.
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
    /// The domains. Their limits are numbered from those of `limits.yaml` on.
    known: HashMap<String, Known>,
    /// The index of the first limit.
    first: u32,
}

/// What is known of a domain.
#[derive(Default)]
struct Known {
    tree: Tree,
    /// The entries of its first level.
    siblings: Siblings,
}

/// One entry on the way to a limit.
#[derive(Clone)]
struct Level {
    entry: EntryMatch,
    /// Whether all values that fit share a counter.
    shares: bool,
}

/// What is read of one document.
struct Reading<'d> {
    domain: String,
    file: &'d str,
    limits: &'d mut Vec<Limit>,
    first: u32,
    tree: Tree,
    /// Whether it was said that metrics have no values of requests.
    metrics_are_explained: bool,
}

impl Domains {
    /// No domains; `first` limits stand before theirs.
    pub(super) fn after(first: usize) -> Self {
        Self { first: u32::try_from(first).unwrap_or(u32::MAX), ..Self::default() }
    }

    /// Adds the domains of a file, one for each of its documents. A domain that is known already gets more descriptors.
    pub(super) fn add(&mut self, file: &str, text: &str, findings: &mut Findings) -> Result<(), Reported> {
        let documents = foreign::documents(text, findings)?;
        let help = "write `domain:` and `descriptors:`";
        if documents.is_empty() {
            return Err(findings.error(Place { line: 1, column: 1, width: 1 }, "the file is empty", help));
        }
        let mut outcome = Ok(());
        for document in &documents {
            if !matches!(document.value, Value::Map(_)) {
                let message = format!("the file must be a map, found {}", document.kind());
                outcome = Err(findings.error(document.place, message, help));
                continue;
            }
            // All are read, so that all mistakes are found.
            outcome = self.document(file, document, findings).and(outcome);
        }
        outcome
    }

    fn document(&mut self, file: &str, document: &Node, findings: &mut Findings) -> Result<(), Reported> {
        let fields = Mapping::sparse(document, "the file", &KEYS, findings)?;
        // The name by which a control plane knows the document.
        let name = fields.read("name", findings, text);
        let domain = domain(&fields, findings);
        let known = domain.as_ref().ok().and_then(|domain| self.known.remove(domain));
        let Known { tree, siblings } = known.unwrap_or_default();
        let mut reading = Reading {
            domain: domain.clone().unwrap_or_default(),
            file,
            limits: &mut self.limits,
            first: self.first,
            tree,
            metrics_are_explained: false,
        };
        let mut siblings = siblings;
        if let Some((_, node)) = fields.get("descriptors") {
            reading.level(node, &[], &mut siblings, findings);
        }
        let tree = reading.tree;
        self.known.insert(domain?, Known { tree, siblings });
        name.map(drop)
    }

    /// The limits, and which of them cover a descriptor of each domain.
    pub(super) fn into_parts(self) -> (Vec<Limit>, HashMap<String, Tree>) {
        (self.limits, self.known.into_iter().map(|(domain, known)| (domain, known.tree)).collect())
    }
}

fn domain(fields: &Mapping<'_>, findings: &mut Findings) -> Result<String, Reported> {
    let help = "use the `domain` of the gateway's filter";
    let Some((_, node)) = fields.get("domain") else {
        return Err(findings.error(fields.place, "the file has no `domain`", help));
    };
    match text(node, findings)? {
        "" => Err(findings.error(node.place, "the domain is empty", help)),
        domain => Ok(domain.to_owned()),
    }
}

impl Reading<'_> {
    /// Reads the descriptors of one level. The depth of the text bounds the recursion.
    fn level(&mut self, node: &Node, above: &[Level], siblings: &mut Siblings, findings: &mut Findings) {
        let Ok(items) = list(node, "`descriptors`", "write one `- key: NAME` per descriptor", findings) else { return };
        for item in items {
            // A mistake has been reported; the others may be right.
            let (Ok(()) | Err(Reported)) = self.descriptor(item, above, siblings, findings);
        }
    }

    fn descriptor(
        &mut self,
        node: &Node,
        above: &[Level],
        siblings: &mut Siblings,
        findings: &mut Findings,
    ) -> Result<(), Reported> {
        let fields = Mapping::sparse(node, "a descriptor", &DESCRIPTOR_KEYS, findings)?;
        let level = level(&fields, findings);
        let limit = self.limit(&fields, findings);
        let below = fields.get("descriptors");
        let path = level.map(|level| [above, &[level]].concat());
        if let Some((_, below)) = below {
            // Without its own level what is below would stand where it does not belong, and is still looked through.
            self.level(below, path.as_deref().unwrap_or(above), &mut Siblings::default(), findings);
        }
        let (path, limit) = (path?, limit?);
        let entries: Vec<EntryMatch> = path.iter().map(|level| level.entry.clone()).collect();
        let Some(last) = entries.last() else { return Ok(()) };
        let unit = limit.as_ref().and_then(|limit| Some(limit.rule.as_deref()?.per_unit?.unit));
        let number = siblings.add(last, (self.file, node.place), unit, below.is_some(), findings)?;
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

    /// The limit of a descriptor, if it has one, without its name and what it covers.
    fn limit(&mut self, fields: &Mapping<'_>, findings: &mut Findings) -> Result<Option<Limit>, Reported> {
        let is_shadow = fields.read("shadow_mode", findings, truth);
        let is_quota = fields.read("quota_mode", findings, truth);
        let metadata = fields.read("metadata", findings, metadata::read);
        let detailed = self.explain_metrics(fields, "detailed_metric", findings);
        let by_value = self.explain_metrics(fields, "value_to_metric", findings);
        let rule = fields.read("rate_limit", findings, rate_limit::read)?;
        let (is_shadow, is_quota, metadata) = (is_shadow?.unwrap_or(false), is_quota?.unwrap_or(false), metadata?);
        detailed.and(by_value)?;
        Ok(rule.map(|(rule, allowance)| Limit {
            allowance,
            mode: if is_shadow { LimitMode::Shadow } else { LimitMode::Enforce },
            // Envoy's `failure_mode_deny` decides what becomes of a request that cannot be counted.
            on_store_error: StoreErrorPolicy::Deny,
            // That service counts what is over the limit as well.
            drain_over_limit: true,
            rule: Some(Box::new(DescriptorRule { is_quota, metadata, ..rule })),
            ..Limit::new("")
        }))
    }

    /// Says once in a file what becomes of the switches that make metrics of values.
    fn explain_metrics(&mut self, fields: &Mapping<'_>, name: &str, findings: &mut Findings) -> Result<(), Reported> {
        let is_on = fields.read(name, findings, truth)?.unwrap_or(false);
        if let (Some((key, _)), true, false) = (fields.get(name), is_on, self.metrics_are_explained) {
            self.metrics_are_explained = true;
            let message = format!("{} has no effect: decisions are counted per rule", quoted(name));
            findings.warning(key.place, message, "metric labels never carry request values, whose number is unbounded");
        }
        Ok(())
    }
}

/// The entry that a descriptor is for.
fn level(fields: &Mapping<'_>, findings: &mut Findings) -> Result<Level, Reported> {
    let key = fields.read("key", findings, text);
    let value = fields.read("value", findings, text);
    let shares = fields.read("share_threshold", findings, truth);
    let help = "add `key:` with a key that the gateway sends";
    let key = match (key?, fields.get("key")) {
        (None, _) => return Err(findings.error(fields.place, "a descriptor needs `key`", help)),
        (Some(""), Some((_, node))) => return Err(findings.error(node.place, "the key is empty", help)),
        (Some(key), _) => key.to_owned(),
    };
    let test = match value?.filter(|value| !value.is_empty()) {
        None => EntryTest::Present(true),
        Some(value) => Glob::parse(value).map_or_else(|| EntryTest::Value(value.to_owned()), EntryTest::Glob),
    };
    let shares = shares?.unwrap_or(false);
    if let (Some((key, _)), true, false) = (fields.get("share_threshold"), shares, matches!(test, EntryTest::Glob(_))) {
        let help = "use a `value` such as `files/*`; all values that match share one counter";
        return Err(findings.error(key.place, "`share_threshold` needs a value with `*`", help));
    }
    Ok(Level { entry: EntryMatch { key, test }, shares })
}

/// What tells the counters of one limit apart: the entries whose values the path leaves open.
fn components(path: &[Level]) -> Vec<Component> {
    let is_open = |level: &Level| match level.entry.test {
        EntryTest::Present(_) | EntryTest::Not(_) => true,
        EntryTest::Glob(_) => !level.shares,
        EntryTest::Value(_) => false,
    };
    let open = path.iter().enumerate().filter(|(_, level)| is_open(level));
    open.map(|(place, level)| {
        let source = ComponentSource::Entry { key: level.entry.key.clone(), place };
        Component::new(source, ValueType::Text)
    })
    .collect()
}
