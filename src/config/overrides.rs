//! Reads overrides: `Name:id` with numbers, or `Name` with numbers and the ids, networks or regular expressions they apply to.

use std::sync::LazyLock;

use super::algorithms::{self, elevated};
use super::instant::parse_until;
use super::limit::{Draft, burst_below_cost};
use super::lints::Lint;
use super::lints::expressions::{is_unanchored, matches_no_id};
use super::lints::overrides::{DoubtfulOverride, DoubtfulOverrides, for_network, never_charged, never_in_network};
use super::load::Loader;
use super::mapping::Mapping;
use super::matching::{MOST_REGEXES, network, regex};
use super::node::{Key, Node, Value};
use super::numbers::{self, Interner};
use super::problem::{ReadResult, ReportedError, quoted};
use super::request_numbers;
use crate::engine::algorithms::micros::Micros;
use crate::engine::limit::allowance::Allowance;
use crate::engine::limit::fingerprint::Fingerprinter;
use crate::engine::limit::ids::Id;
use crate::engine::limit::overrides::{Override, OverrideOrigin};

/// The keys of an override.
pub(super) static KEYS: LazyLock<Vec<&str>> =
    LazyLock::new(|| algorithms::override_keys(SUBJECTS.into_iter().chain(["until", "comment"]).chain(numbers::KEYS)));

/// The keys of the subjects of an override whose key has no id.
const SUBJECTS: [&str; 3] = ["ids", "regex", "cidr"];

/// The keys of an item of `ids`.
pub(super) const ID_KEYS: [&str; 2] = ["id", "comment"];

/// The most colons of an id. Where addresses may have some, each way to split at colons is tried: 15504 with six
/// parts. Two whole IPv6 addresses and four numbers have 18 colons.
const MOST_COLONS: usize = 20;

/// The longest id in bytes. A hostname set of a hundred names, each as long as a name can be, takes 25 KiB.
const LONGEST_ID: usize = 32 * 1024;

impl Loader {
    /// Adds the overrides of one item of a list: usually one key. `file` is the index of the file.
    pub(super) fn override_item(&mut self, node: &Node, file: u16) {
        let Ok(entries) = node.map("an override", "write `- Name: { count: 10, period: 1s, ids: [...] }`") else {
            return;
        };
        if entries.is_empty() {
            node.error("the override is empty", "remove it");
        }
        let beside = entries.iter().find(|(key, _)| KEYS.contains(&key.text.as_str()));
        if let Some((key, _)) = beside.filter(|_| entries.len() > 1) {
            let message = format!("{} is on the same level as the limit's name", quoted(&key.text));
            key.error(message, "indent it further than the name");
            return;
        }
        for (key, value) in entries {
            self.override_entry(key, value, file);
        }
    }

    /// Adds the overrides of one entry.
    pub(super) fn override_entry(&mut self, key: &Key, node: &Node, file: u16) {
        let (name, id) = match key.text.split_once(':') {
            Some((name, id)) => (name, Some(key.scalar(id))),
            None => (key.text.as_str(), None),
        };
        let index = self.limits.find(name);
        key.findings.ignores().enter(index);
        if index.is_none() && self.limits_are_known {
            self.report_unknown(name, key);
        }
        if node.is_null() {
            key.error(format!("{} has no numbers", quoted(&key.text)), "write `{ count: 40, period: 1s }`");
            return;
        }
        let Ok(map) = Mapping::of(node, "an override", &KEYS) else { return };
        // An override of an unknown limit is checked all the same.
        let mut unknown = index.is_none().then(|| Draft::new(key.clone()));
        let draft = index.map(|index| &mut self.limits.drafts[index]).or(unknown.as_mut());
        let Some(draft) = draft else { return };
        let given = numbers(key, &map, draft, &mut self.interner, self.now);
        let Ok((kind, subjects)) = subjects(key, id.as_ref(), &map) else { return };
        // With wrong numbers the override is not used, but its subjects are checked all the same.
        let (allowance, until, comment) = given.unwrap_or((Allowance::Disabled, None, None));
        let origin = OverrideOrigin { file, line: 0, comment: comment.map(Into::into) };
        let given = Override { allowance, until, origin };
        let (fingerprinter, has_lints) = (self.fingerprinter, self.has_lints);
        let mut target = OverriddenLimit {
            draft,
            given,
            index,
            fingerprinter,
            files: &self.files,
            has_lints,
            doubtful: &mut self.doubtful,
        };
        for node in subjects {
            // A mistake has been reported, and the others may be right.
            let (Ok(()) | Err(ReportedError)) = match kind {
                "cidr" => target.add_network(node),
                "regex" => target.add_regex(node),
                _ => target.add_id(node),
            };
        }
    }

    fn report_unknown(&self, name: &str, key: &Key) {
        if self.may_have_gone(name) {
            let message = format!("no team has the limit {}", quoted(name));
            key.warning(Lint::OverrideNeverApplies, message, "correct or remove it");
            return;
        }
        let help = match name {
            _ if key.findings.is_full() => String::new(),
            "" => "write a limit's name before the colon".into(),
            "overrides" | "limits" => "an overrides file lists its entries without this key".into(),
            name => self.limits.suggest(name),
        };
        key.error(format!("unknown limit {}", quoted(name)), help);
    }
}

/// Reads the keys of an override except its subjects: the allowance, `until` and `comment`.
fn numbers<'n>(
    key: &Key,
    map: &Mapping<'n>,
    draft: &mut Draft,
    interner: &mut Interner,
    now: Micros,
) -> ReadResult<(Allowance, Option<Micros>, Option<&'n str>)> {
    let read = |inherited| algorithms::settings(inherited, map);
    let settings = draft.settings.as_deref().map(read).transpose().and_then(|mut settings| {
        if let Some(settings) = &mut settings {
            settings.read_override(map, &mut draft.limit)?;
        }
        Ok(settings)
    });
    let (algorithm, base) = draft.numbers_are_known.then_some((draft.limit.algorithm, &draft.limit.allowance)).unzip();
    let allowance = settings
        .and_then(|settings| {
            request_numbers::reject(map, "an override")?;
            algorithms::allowance(settings.as_deref(), map, interner)
        })
        .and_then(|plain| elevated::add(map, plain, algorithm, base, interner));
    let until = map.read("until", |node| until(node, now));
    let comment = map.read("comment", Node::text);
    let (allowance, until, comment) = (allowance?, until?, comment?);
    if allowance == Allowance::Disabled && map.get("elevated").is_none() {
        let numbers = draft.settings.as_ref().map_or("`count` and `period`", |settings| settings.number_keys());
        let help = format!("add {numbers}, `unlimited: true` or `deny: true`");
        return Err(map.lacks_at(key.place, format!("{} sets no numbers", quoted(&key.text)), help));
    }
    if let Some(burst) = burst_below_cost(&draft.limit.cost, &allowance) {
        let message = format!("the limit's cost exceeds this burst of {burst}: no request can pass");
        key.warning(Lint::CostAboveBurst, message, "raise `burst`, or write `deny: true` if this is intended");
    }
    Ok((allowance, until, comment))
}

fn until(node: &Node, now: Micros) -> ReadResult<Micros> {
    let until = parse_until(node.text()?).map_err(|(message, help)| node.error(message, help))?;
    if until <= now {
        node.warning(Lint::OverrideNeverApplies, "this override has expired", "remove it or extend `until`");
    }
    Ok(until)
}

/// A limit that gets overrides with the same numbers.
struct OverriddenLimit<'t> {
    draft: &'t mut Draft,
    /// The override, but for its line.
    given: Override,
    /// The index of the limit; `None` if it is unknown.
    index: Option<usize>,
    fingerprinter: Fingerprinter,
    files: &'t [String],
    has_lints: bool,
    doubtful: &'t mut Option<DoubtfulOverrides>,
}

impl OverriddenLimit<'_> {
    /// Adds an override for an id, or for an item of `ids`.
    fn add_id(&mut self, item: &Node) -> ReadResult<()> {
        let (node, comment) = if matches!(item.value, Value::Map(_)) {
            let map = Mapping::of(item, "an item of `ids`", &ID_KEYS)?;
            let comment = map.read("comment", Node::text)?;
            (map.need("id", "write `{ id: ..., comment: ... }`")?, comment)
        } else {
            (item, None)
        };
        let id = node.text()?;
        if id.trim().is_empty() {
            return Err(node.error("the id is empty", "write the id that the override applies to"));
        }
        if !self.draft.by_is_known {
            return Ok(());
        }
        if id.len() > LONGEST_ID {
            return Err(node.error("the id is too long", format!("use at most {LONGEST_ID} bytes")));
        }
        if id.bytes().filter(|byte| *byte == b':').count() > MOST_COLONS {
            let help = format!("write colons within a component as %3A; at most {MOST_COLONS} others are allowed");
            return Err(node.error("the id has too many colons", help));
        }
        let given = self.given(node, comment);
        let limit = &mut self.draft.limit;
        let parsed = Id::parse(&limit.by, id)
            .map_err(|why| node.error(format!("{} is not a valid id for {}", quoted(id), quoted(&limit.name)), why))?;
        if let Some(message) = self.has_lints.then(|| never_charged(limit, &parsed.parts)).flatten() {
            node.warning(Lint::OverrideNeverApplies, message, "correct or remove it");
        }
        if let Some(message) = self.has_lints.then(|| for_network(limit, id, &parsed.parts)).flatten() {
            node.warning(Lint::OverrideForNetwork, message, "write the network, or `by: ip/128` on the limit");
        }
        let is_doubtful = given.allowance == limit.allowance || given.allowance == Allowance::Unlimited;
        if let (Some(limit), Some(doubtful), true) = (self.index, self.doubtful.as_mut(), is_doubtful) {
            doubtful.add(|| DoubtfulOverride { limit, node: node.clone(), parts: parsed.parts.clone() });
        }
        let fingerprint = parsed.fingerprint(&limit.short, &self.fingerprinter);
        let added = limit.overrides.add_id(parsed.parts.len(), fingerprint, given);
        added.map_err(|first| self.report_duplicate(first, node, &parsed.to_string()))
    }

    fn add_network(&mut self, node: &Node) -> ReadResult<()> {
        let network = network(node)?;
        let limit = &self.draft.limit;
        if let Some(message) = self.has_lints.then(|| never_in_network(limit, &network)).flatten() {
            node.warning(Lint::OverrideNeverApplies, message, "correct or remove it");
        }
        let added = self.draft.limit.overrides.add_network(network, self.given(node, None));
        added.map_err(|first| self.report_duplicate(first, node, &network.to_string()))
    }

    fn add_regex(&mut self, node: &Node) -> ReadResult<()> {
        let regex = regex(node)?;
        if self.has_lints && is_unanchored(regex.as_str()) {
            let message = format!("{} also matches ids that only contain it", quoted(regex.as_str()));
            node.warning(Lint::UnanchoredRegex, message, "write `^` before it and `$` after it");
        }
        if self.has_lints && self.draft.by_is_known && matches_no_id(&self.draft.limit, regex.as_str()) {
            let message = format!("no id of this limit matches {}", quoted(regex.as_str()));
            node.warning(Lint::OverrideNeverApplies, message, "correct or remove it");
        }
        let given = self.given(node, None);
        let draft = &mut *self.draft;
        if draft.by_is_known && draft.limit.by.is_empty() {
            let message = format!("{} is `by: global` and has no ids to match", quoted(&draft.limit.name));
            return Err(node.error(message, "set the numbers on the limit itself"));
        }
        draft.regexes += 1;
        if draft.regexes > MOST_REGEXES {
            let message = format!("more than {MOST_REGEXES} regular expressions for one limit");
            return Err(node.error(message, "combine them with `|`, or list ids"));
        }
        draft.limit.overrides.add_regex(regex.as_str(), given);
        Ok(())
    }

    fn given(&self, node: &Node, comment: Option<&str>) -> Override {
        let mut given = self.given.clone();
        given.origin.line = node.place.line;
        given.origin.comment = comment.map(Into::into).or(given.origin.comment);
        given
    }

    fn report_duplicate(&self, first: usize, node: &Node, what: &str) -> ReportedError {
        let origin = self.draft.limit.overrides.get(first).map(|given| &given.origin);
        let file = origin.and_then(|origin| self.files.get(usize::from(origin.file))).map_or("", String::as_str);
        let line = origin.map_or(0, |origin| origin.line);
        let help = format!("the first one is at {file}:{line}; keep one of them");
        node.error(format!("duplicate override for {}", quoted(what)), help)
    }
}

/// Returns the key of an override's subjects, and the subjects. `id` is the id in its key.
fn subjects<'n>(key: &Key, id: Option<&'n Node>, map: &Mapping<'n>) -> ReadResult<(&'static str, &'n [Node])> {
    let given: Vec<_> = SUBJECTS.iter().filter_map(|kind| map.get(kind).map(|entry| (*kind, entry))).collect();
    match (id, &given[..]) {
        (Some(id), []) => Ok(("ids", std::slice::from_ref(id))),
        (Some(_), [(kind, (other, _)), ..]) => {
            Err(other.error(format!("`{kind}` cannot be combined with an id in the key"), "remove one of them"))
        }
        (None, []) => {
            let help = "write `Name:id`, or add `ids`, `regex` or `cidr`; defaults belong under `limits`";
            Err(map.lacks_at(key.place, format!("{} has no id", quoted(&key.text)), help))
        }
        (None, [(kind @ "ids", (_, node))]) if !matches!(node.value, Value::List(_)) => {
            Err(node.error(format!("`{kind}` must be a list, found {}", node.kind()), "write `ids: [...]`"))
        }
        (None, [(kind, (_, node))]) => Ok((kind, node.one_or_more()?)),
        (None, [_, (kind, (other, _)), ..]) => {
            let message = format!("`{kind}` cannot be combined with `ids`, `regex` or `cidr`");
            Err(other.error(message, "write one override for each of them"))
        }
    }
}
