//! Reads envoyproxy/ratelimit's files into a tree of descriptors per domain, to be served or imported.
//!
//! The files are read as that service reads them (`src/config/config_impl.go`) with `MERGE_DOMAIN_CONFIG=true`: several files
//! may describe one domain. There are four deliberate differences: a file may have several documents; a level may have the
//! same key and value once per unit, and all of these limits apply; a `rate_limit` without a number is a mistake rather than
//! a limit of 0; and a name that would break the header that Envoy writes it into is rejected.

use std::collections::HashMap;

use self::siblings::Siblings;
use super::Source;
use super::foreign;
use super::lints::Lint;
use super::mapping::Mapping;
use super::matching::domain;
use super::node::Node;
use super::problem::{Findings, Place, ReadResult, Report, ReportedError, quoted};
use crate::engine::limit::descriptors::{DescriptorRule, RateUnit};
use crate::engine::request::glob::Glob;

pub(super) mod limits;
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

/// The descriptors of one domain, from all files.
#[derive(Default)]
pub(crate) struct Domain {
    pub(crate) name: String,
    pub(crate) descriptors: Vec<Descriptor>,
    /// The entries of the first level.
    siblings: Siblings,
}

/// A descriptor of a file, with those below it.
pub(crate) struct Descriptor {
    /// Those of its file.
    pub(crate) findings: Findings,
    pub(crate) place: Place,
    pub(crate) level: Level,
    pub(crate) limit: Option<RateLimit>,
    /// The number of descriptors before it that have the same entry, with other units.
    number: usize,
    pub(crate) below: Vec<Self>,
}

/// One entry on the path to a limit.
#[derive(Clone)]
pub(crate) struct Level {
    pub(crate) key: String,
    pub(crate) value: EntryValue,
    /// `share_threshold`: all values that match share a counter.
    pub(crate) shares: bool,
}

/// The values of an entry that a descriptor is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum EntryValue {
    Any,
    One(String),
    Glob(Glob),
}

/// The `rate_limit` of a descriptor, and the descriptor's modes.
pub(crate) struct RateLimit {
    pub(crate) place: Place,
    pub(crate) rule: DescriptorRule,
    pub(crate) is_shadow: bool,
}

/// The domains read so far, in the order of the files.
#[derive(Default)]
struct Domains {
    all: Vec<Domain>,
    /// Their indexes by name.
    by_name: HashMap<String, usize>,
}

/// Reads the descriptors of one document.
#[derive(Default)]
struct DocumentReader {
    /// True once a warning has said that metrics never contain values of requests.
    metrics_are_explained: bool,
}

/// Reads files, whose documents describe one domain each. What they say about the same domain is joined. The domains are
/// complete if the report has no errors.
pub(crate) fn read(sources: &[Source], findings_of: impl Fn(&str) -> Findings) -> (Vec<Domain>, Report) {
    let mut domains = Domains::default();
    let mut report = Report::default();
    for source in sources {
        let findings = findings_of(&source.name);
        let (Ok(()) | Err(ReportedError)) = domains.add(&source.text, &findings);
        report.add(&findings, &source.text);
    }
    (domains.all, report)
}

impl Domains {
    fn add(&mut self, text: &str, findings: &Findings) -> ReadResult<()> {
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
        let domain = map.need("domain", "use the `domain` of the gateway's filter").and_then(domain);
        let mut nameless = Domain::default();
        let target = domain.as_ref().map_or(&mut nameless, |name| self.named(name));
        if let Some((_, node)) = map.get("descriptors") {
            target.descriptors.extend(DocumentReader::default().level(node, &mut target.siblings));
        }
        domain.and(name).map(drop)
    }

    fn named(&mut self, name: &str) -> &mut Domain {
        let index = *self.by_name.entry(name.to_owned()).or_insert_with(|| {
            self.all.push(Domain { name: name.to_owned(), ..Domain::default() });
            self.all.len() - 1
        });
        &mut self.all[index]
    }
}

impl DocumentReader {
    /// Reads the descriptors of one level. Recursion is bounded by the depth of the text.
    fn level(&mut self, node: &Node, siblings: &mut Siblings) -> Vec<Descriptor> {
        let items = node.list("`descriptors`", "write one `- key: NAME` per descriptor").unwrap_or_default();
        // The mistakes of one have been reported; the others may be right.
        items.iter().filter_map(|item| self.descriptor(item, siblings).ok()).collect()
    }

    fn descriptor(&mut self, node: &Node, siblings: &mut Siblings) -> ReadResult<Descriptor> {
        let map = Mapping::sparse(node, "a descriptor", &DESCRIPTOR_KEYS)?;
        let level = Level::read(&map);
        let limit = self.limit(&map);
        // If this level has a mistake, the levels below are still checked.
        let below = map.get("descriptors").map(|(_, below)| self.level(below, &mut Siblings::default()));
        let (level, limit) = (level?, limit?);
        let unit = limit.as_ref().and_then(RateLimit::unit);
        let number = siblings.add(&level, node, unit, below.is_some())?;
        let (findings, place, below) = (node.findings.clone(), node.place, below.unwrap_or_default());
        Ok(Descriptor { findings, place, level, limit, number, below })
    }

    fn limit(&mut self, map: &Mapping<'_>) -> ReadResult<Option<RateLimit>> {
        let is_shadow = map.read("shadow_mode", Node::truth);
        let is_quota = map.read("quota_mode", Node::truth);
        let metadata = map.read("metadata", metadata::read);
        let detailed = self.explain_metrics(map, "detailed_metric");
        let by_value = self.explain_metrics(map, "value_to_metric");
        let rule = map.read("rate_limit", rate_limit::read)?;
        let (is_shadow, is_quota, metadata) = (is_shadow?.unwrap_or(false), is_quota?.unwrap_or(false), metadata?);
        detailed.and(by_value)?;
        let Some((rule, (key, _))) = rule.zip(map.get("rate_limit")) else {
            let given = [("metadata", metadata.is_some()), ("shadow_mode", is_shadow), ("quota_mode", is_quota)];
            for (key, _) in given.iter().filter(|(_, is_on)| *is_on).filter_map(|(name, _)| map.get(name)) {
                let message = format!("{} has no effect without `rate_limit`", quoted(&key.text));
                key.warning(Lint::NoEffect, message, "move it to the descriptors that have a `rate_limit`");
            }
            return Ok(None);
        };
        let rule = DescriptorRule { is_quota, metadata, ..rule };
        Ok(Some(RateLimit { place: key.place, rule, is_shadow }))
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

impl Level {
    /// Reads the entry that a descriptor is for.
    fn read(map: &Mapping<'_>) -> ReadResult<Self> {
        let value = map.read("value", Node::text);
        let shares = map.read("share_threshold", Node::truth);
        let help = "add `key:` with a key that the gateway sends";
        let node = map.need("key", help)?;
        let key = match node.text()? {
            "" => return Err(node.error("the key is empty", help)),
            key => key.to_owned(),
        };
        let value = match value?.unwrap_or_default() {
            "" => {
                if key.ends_with('*') {
                    let help = "write the key without `*`, which matches all its values, or add a `value` with one";
                    node.warning(Lint::NoEffect, "a key has no wildcards, so this matches only a key with `*`", help);
                }
                EntryValue::Any
            }
            value => Glob::parse(value).map_or_else(|| EntryValue::One(value.to_owned()), EntryValue::Glob),
        };
        let shares = shares?.unwrap_or(false);
        if let (Some((key, _)), true, false) =
            (map.get("share_threshold"), shares, matches!(value, EntryValue::Glob(_)))
        {
            let help = "use a `value` such as `files/*`; all values that match share one counter";
            return Err(key.error("`share_threshold` needs a value with `*`", help));
        }
        Ok(Self { key, value, shares })
    }

    /// True if each value has a bucket of its own.
    pub(crate) fn is_open(&self) -> bool {
        !self.shares && !matches!(self.value, EntryValue::One(_))
    }

    /// `key=value`, or the key alone.
    pub(crate) fn shown(&self) -> String {
        self.value.text().map_or_else(|| self.key.clone(), |value| format!("{}={value}", self.key))
    }
}

impl EntryValue {
    /// The text in the file; `None` if there is none.
    pub(crate) fn text(&self) -> Option<String> {
        match self {
            Self::Any => None,
            Self::One(value) => Some(value.clone()),
            Self::Glob(glob) => Some(glob.to_string()),
        }
    }
}

impl RateLimit {
    /// The unit; `None` if unlimited.
    fn unit(&self) -> Option<RateUnit> {
        self.rule.per_unit.map(|per_unit| per_unit.unit)
    }
}
