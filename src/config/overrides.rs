//! Reads overrides: `Name:id` with numbers, or `Name` with numbers and the ids, networks or expressions they apply to.

use std::sync::LazyLock;

use super::algorithms::fixed_window::Windows;
use super::algorithms::script::args;
use super::algorithms::{self, Settings, elevated};
use super::instant::parse_until;
use super::limit::{Limits, burst_below_cost};
use super::mapping::{Mapping, map, one_or_more};
use super::matching::{MOST_REGEXES, network, regex};
use super::numbers::{self, Interner};
use super::problem::{Findings, Place, Reported, quoted};
use super::scalars::text;
use super::yaml::{Key, Node, Value};
use crate::engine::algorithms::micros::Micros;
use crate::engine::rules::allowance::Allowance;
use crate::engine::rules::fingerprint::Fingerprinter;
use crate::engine::rules::ids::Id;
use crate::engine::rules::overrides::{Override, OverrideOrigin, Overrides};

/// The keys of an override.
pub(super) static KEYS: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let own = SUBJECTS.into_iter().chain(["until", "comment"]);
    let mut keys: Vec<_> = own.chain(numbers::KEYS).chain(algorithms::override_keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
});

/// What an override may hold for, where its key names no id.
const SUBJECTS: [&str; 3] = ["ids", "regex", "cidr"];

/// The fields of an item of `ids` that is a map.
pub(super) const ID_KEYS: [&str; 2] = ["id", "comment"];

/// Each way to read colons as separators is tried where addresses may have some: 15504 with six components. Two whole
/// IPv6 addresses and four numbers have 18 colons.
const MOST_COLONS: usize = 20;

/// A hostname set of a hundred names, each as long as a name can be, takes 25 KiB.
const LONGEST_ID: usize = 32 * 1024;

/// What entries are read with.
pub(super) struct Reading<'l> {
    pub(super) limits: &'l mut Limits,
    pub(super) interner: &'l mut Interner,
    pub(super) fingerprinter: Fingerprinter,
    /// The wall clock, to warn of what has expired.
    pub(super) now: Micros,
    /// The names of all files, and which of them this is.
    pub(super) files: &'l [String],
    pub(super) file: u16,
}

/// The values of one entry that hold for all of its subjects.
struct Shared<'n> {
    allowance: Allowance,
    until: Option<Micros>,
    comment: Option<&'n str>,
}

impl Reading<'_> {
    /// Adds the overrides of one item of a list: usually one key.
    pub(super) fn item(&mut self, node: &Node, findings: &mut Findings) {
        let help = "write `- Name: { count: 10, period: 1s, ids: [...] }`";
        let Ok(entries) = map(node, "an override", help, findings) else { return };
        if entries.is_empty() {
            findings.error(node.place, "the override is empty", "remove it");
        }
        let beside = entries.iter().find(|(key, _)| KEYS.contains(&key.text.as_str()));
        if let Some((key, _)) = beside.filter(|_| entries.len() > 1) {
            let message = format!("{} is on the same level as the limit's name", quoted(&key.text));
            findings.error(key.place, message, "indent it further than the name");
            return;
        }
        for (key, value) in entries {
            self.entry(key, value, findings);
        }
    }

    /// Adds the overrides of one entry.
    pub(super) fn entry(&mut self, key: &Key, node: &Node, findings: &mut Findings) {
        let (name, id) = match key.text.split_once(':') {
            Some((name, id)) => (name, Some(id)),
            None => (key.text.as_str(), None),
        };
        let limit = self.limits.find(name);
        if limit.is_none() {
            self.unknown(name, key, findings);
        }
        if node.is_null() {
            findings.error(
                key.place,
                format!("{} has no numbers", quoted(&key.text)),
                "write `{ count: 40, period: 1s }`",
            );
            return;
        }
        let Ok(fields) = Mapping::of(node, "an override", &KEYS, findings) else { return };
        let shared = self.shared(key, &fields, limit, findings);
        let subject = subject(key, id, &fields, findings);
        if let (Ok(subject), Some(limit)) = (subject, limit) {
            // With its numbers wrong the override is not used, but whom it is for is checked all the same.
            let unusable = Shared { allowance: Allowance::Disabled, until: None, comment: None };
            self.add(limit, &shared.unwrap_or(unusable), &subject, findings);
        }
    }

    fn unknown(&self, name: &str, key: &Key, findings: &mut Findings) {
        let help = match name {
            _ if findings.is_full() => String::new(),
            "" => "write a limit's name before the colon".into(),
            "overrides" | "limits" => "an overrides file lists its entries without this key".into(),
            name => self.limits.suggest(name),
        };
        findings.error(key.place, format!("unknown limit {}", quoted(name)), help);
    }

    fn shared<'n>(
        &mut self,
        key: &Key,
        fields: &Mapping<'n>,
        limit: Option<usize>,
        findings: &mut Findings,
    ) -> Result<Shared<'n>, Reported> {
        let draft = limit.map(|place| &self.limits.drafts[place]);
        let inherited = draft.and_then(|draft| draft.settings.clone());
        // With an unknown algorithm, the numbers are checked like those of the one that accepts the most.
        let settings = inherited.map_or_else(
            || Ok(Settings::FixedWindow(Windows::default())),
            |inherited| self.settings(&inherited, fields, limit, findings),
        );
        let draft = limit.map(|place| &self.limits.drafts[place]);
        let base = draft.filter(|draft| draft.numbers_are_known);
        let base = base.map(|draft| (&draft.limit.allowance, draft.settings.as_ref()));
        let allowance = settings
            .and_then(|settings| settings.allowance(fields, self.interner, findings))
            .and_then(|plain| elevated::of_override(fields, plain, base, self.interner, findings));
        let until = fields.read("until", findings, |node, findings| self.until(node, findings));
        let comment = fields.read("comment", findings, text);
        let (allowance, until, comment) = (allowance?, until?, comment?);
        if allowance == Allowance::Disabled && fields.get("elevated").is_none() {
            let settings = draft.and_then(|draft| draft.settings.as_ref());
            let numbers = settings.map_or("`count` and `period`", Settings::number_keys);
            let help = format!("add {numbers}, `unlimited: true` or `deny: true`");
            return Err(findings.error(key.place, format!("{} sets no numbers", quoted(&key.text)), help));
        }
        if let Some(burst) = draft.and_then(|draft| burst_below_cost(&draft.limit.cost, &allowance)) {
            let message = format!("the limit's cost exceeds this burst of {burst}: no request can pass");
            findings.warning(key.place, message, "raise `burst`, or write `deny: true` if this is intended");
        }
        Ok(Shared { allowance, until, comment })
    }

    /// Reads the settings, with the arguments of a script.
    fn settings(
        &mut self,
        inherited: &Settings,
        fields: &Mapping<'_>,
        limit: Option<usize>,
        findings: &mut Findings,
    ) -> Result<Settings, Reported> {
        let mut settings = inherited.read(fields, findings)?;
        if let (Settings::Script { arguments }, Some((_, node))) = (&mut settings, fields.get("args")) {
            let given = args(node, findings)?;
            let draft = limit.and_then(|place| self.limits.drafts.get_mut(place));
            *arguments = draft.and_then(|draft| Some(draft.limit.script.as_mut()?.index_of(given)));
        }
        Ok(settings)
    }

    fn until(&self, node: &Node, findings: &mut Findings) -> Result<Micros, Reported> {
        let given = text(node, findings)?;
        let until = parse_until(given).map_err(|(message, help)| findings.error(node.place, message, help))?;
        if until <= self.now {
            findings.warning(node.place, "this override has expired", "remove it or extend `until`");
        }
        Ok(until)
    }

    fn add(&mut self, limit: usize, shared: &Shared<'_>, subject: &Subject<'_>, findings: &mut Findings) {
        let mut each =
            |nodes: &[Node], add: fn(&mut Self, usize, &Shared<'_>, &Node, &mut Findings) -> Result<(), Reported>| {
                for node in nodes {
                    // What is wrong has been reported, and the others may be right.
                    let (Ok(()) | Err(Reported)) = add(self, limit, shared, node, findings);
                }
            };
        match subject {
            Subject::Id(id, place) => {
                let (Ok(()) | Err(Reported)) = self.add_id(limit, shared, id, *place, None, findings);
            }
            Subject::Ids(nodes) => each(nodes, Self::add_item),
            Subject::Networks(nodes) => each(nodes, Self::add_network),
            Subject::Regexes(nodes) => each(nodes, Self::add_regex),
        }
    }

    fn add_item(
        &mut self,
        limit: usize,
        shared: &Shared<'_>,
        item: &Node,
        findings: &mut Findings,
    ) -> Result<(), Reported> {
        if !matches!(item.value, Value::Map(_)) {
            return self.add_id(limit, shared, text(item, findings)?, item.place, None, findings);
        }
        let fields = Mapping::of(item, "an item of `ids`", &ID_KEYS, findings)?;
        let comment = fields.read("comment", findings, text)?;
        let Some((_, id)) = fields.get("id") else {
            return Err(findings.error(
                item.place,
                "an item of `ids` has no `id`",
                "write `{ id: ..., comment: ... }`",
            ));
        };
        self.add_id(limit, shared, text(id, findings)?, id.place, comment, findings)
    }

    fn add_id(
        &mut self,
        limit: usize,
        shared: &Shared<'_>,
        id: &str,
        place: Place,
        comment: Option<&str>,
        findings: &mut Findings,
    ) -> Result<(), Reported> {
        if id.trim().is_empty() {
            return Err(findings.error(place, "the id is empty", "write the id that the override applies to"));
        }
        let given = self.given(shared, place, comment);
        let draft = &mut self.limits.drafts[limit];
        if !draft.by_is_known {
            return Ok(());
        }
        if id.len() > LONGEST_ID {
            return Err(findings.error(place, "the id is too long", format!("use at most {LONGEST_ID} bytes")));
        }
        if id.bytes().filter(|byte| *byte == b':').count() > MOST_COLONS {
            let help = format!("write colons within a component as %3A; at most {MOST_COLONS} others are allowed");
            return Err(findings.error(place, "the id has too many colons", help));
        }
        let limit = &mut draft.limit;
        let parsed = Id::parse(&limit.by, id).map_err(|why| {
            let message = format!("{} is not a valid id for {}", quoted(id), quoted(&limit.name));
            findings.error(place, message, why)
        })?;
        let fingerprint = parsed.fingerprint(&limit.short, &self.fingerprinter);
        let added = limit.overrides.add_id(parsed.len(), fingerprint, given);
        added.map_err(|first| twice(&limit.overrides, first, self.files, place, &parsed.to_string(), findings))
    }

    fn add_network(
        &mut self,
        limit: usize,
        shared: &Shared<'_>,
        node: &Node,
        findings: &mut Findings,
    ) -> Result<(), Reported> {
        let network = network(node, findings)?;
        let given = self.given(shared, node.place, None);
        let overrides = &mut self.limits.drafts[limit].limit.overrides;
        let added = overrides.add_network(network, given);
        added.map_err(|first| twice(overrides, first, self.files, node.place, &network.to_string(), findings))
    }

    fn add_regex(
        &mut self,
        limit: usize,
        shared: &Shared<'_>,
        node: &Node,
        findings: &mut Findings,
    ) -> Result<(), Reported> {
        let regex = regex(node, findings)?;
        let given = self.given(shared, node.place, None);
        let draft = &mut self.limits.drafts[limit];
        if draft.by_is_known && draft.limit.by.is_empty() {
            let message = format!("{} is `by: global` and has no ids to match", quoted(&draft.limit.name));
            return Err(findings.error(node.place, message, "set the numbers on the limit itself"));
        }
        draft.regexes += 1;
        if draft.regexes > MOST_REGEXES {
            let message = format!("more than {MOST_REGEXES} regular expressions for one limit");
            return Err(findings.error(node.place, message, "combine them with `|`, or list ids"));
        }
        draft.limit.overrides.add_regex(regex.as_str(), given);
        Ok(())
    }

    fn given(&self, shared: &Shared<'_>, place: Place, comment: Option<&str>) -> Override {
        let comment = comment.or(shared.comment).map(Into::into);
        let origin = OverrideOrigin { file: self.file, line: place.line, comment };
        Override { allowance: shared.allowance.clone(), until: shared.until, origin }
    }
}

/// Whom an override is for.
enum Subject<'n> {
    Id(&'n str, Place),
    Ids(&'n [Node]),
    Networks(&'n [Node]),
    Regexes(&'n [Node]),
}

fn subject<'n>(
    key: &'n Key,
    id: Option<&'n str>,
    fields: &Mapping<'n>,
    findings: &mut Findings,
) -> Result<Subject<'n>, Reported> {
    let mut given = SUBJECTS.iter().filter_map(|name| fields.get(name));
    let (first, second) = (given.next(), given.next());
    if let Some(id) = id {
        return match first {
            None => Ok(Subject::Id(id, key.place)),
            Some((other, _)) => {
                let message = format!("`{}` cannot be combined with an id in the key", other.text);
                Err(findings.error(other.place, message, "remove one of them"))
            }
        };
    }
    if let Some((other, _)) = second {
        let help = "write one override for each of them";
        return Err(findings.error(
            other.place,
            format!("`{}` cannot be combined with `ids`, `regex` or `cidr`", other.text),
            help,
        ));
    }
    let Some((kind, node)) = first else {
        let message = format!("{} has no id", quoted(&key.text));
        let help = "write `Name:id`, or add `ids`, `regex` or `cidr`; defaults belong under `limits`";
        return Err(findings.error(key.place, message, help));
    };
    let nodes = match (kind.text.as_str(), &node.value) {
        ("ids", Value::Scalar { .. } | Value::Map(_)) => {
            let message = format!("`ids` must be a list, found {}", node.kind());
            return Err(findings.error(node.place, message, "write `ids: [...]`"));
        }
        _ => one_or_more(node, findings)?,
    };
    Ok(match kind.text.as_str() {
        "ids" => Subject::Ids(nodes),
        "cidr" => Subject::Networks(nodes),
        _ => Subject::Regexes(nodes),
    })
}

fn twice(
    overrides: &Overrides,
    first: usize,
    files: &[String],
    place: Place,
    what: &str,
    findings: &mut Findings,
) -> Reported {
    let origin = overrides.get(first).map(|given| &given.origin);
    let file = origin.and_then(|origin| files.get(usize::from(origin.file))).map_or("", String::as_str);
    let line = origin.map_or(0, |origin| origin.line);
    let help = format!("the first one is at {file}:{line}; keep one of them");
    findings.error(place, format!("duplicate override for {}", quoted(what)), help)
}
