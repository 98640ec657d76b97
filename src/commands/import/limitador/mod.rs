//! The limits of Kuadrant's limitador.
//!
//! Its conditions test the entries of a descriptor as our `match` does: in any order, among any others. A condition that a
//! `match` cannot express leaves the limit wider than it was. Such a limit is in shadow mode: it counts and reports, and
//! denies nothing that the old limit would have allowed.

mod condition;

use std::collections::HashMap;

use self::condition::Condition;
use super::amount::{Amount, milliseconds};
use super::document::{Document, Limit, Origin};
use super::files::read_each;
use super::text::{by_entries, map, piece, quoted};
use crate::config::foreign::{self, Key, Node, ReadResult, all, find};
use crate::config::{Place, Report, Source};

const KNOWN: [&str; 7] = ["namespace", "max_value", "seconds", "name", "id", "conditions", "variables"];

/// The keys of a resource that say nothing about limits.
const RESOURCE: [&str; 3] = ["apiVersion", "kind", "metadata"];

const HELP: &str = "write `namespace`, `max_value` and `seconds`";

/// A limit of the file.
struct LimitEntry<'n> {
    origin: Origin,
    namespace: &'n str,
    max_value: u64,
    /// The window, in milliseconds.
    window: u64,
    name: Option<&'n str>,
    conditions: Vec<(&'n str, Place)>,
    variables: Vec<(&'n str, Place)>,
    unknown: Vec<&'n Key>,
}

/// Adds the limits of the files to the document.
pub(super) fn import(sources: &[Source], document: &mut Document) -> Report {
    document.head(
        "These limits serve Envoy's rate limit service (`weir serve --grpc 127.0.0.1:9001`); the domain is the \
         namespace. Each descriptor of a request is decided separately.",
    );
    let mut numbers = HashMap::new();
    read_each(sources, |source, root| file(source, root, &mut numbers, document))
}

fn file(source: &Source, root: &Node, numbers: &mut HashMap<String, usize>, document: &mut Document) -> ReadResult<()> {
    let help = "write a list of limits, each with `namespace`, `max_value` and `seconds`";
    // In the resource of Kuadrant's operator, the list is in `spec.limits`.
    let inner = |node: &Node, name: &str| match &node.value {
        foreign::Value::Map(entries) => find(entries, name).map(|(_, node)| node.clone()),
        _ => None,
    };
    let spec = inner(root, "spec").filter(|spec| inner(spec, "limits").is_some());
    let list = spec.as_ref().and_then(|spec| inner(spec, "limits")).or_else(|| inner(root, "limits"));
    let items = list.as_ref().unwrap_or(root).list("the file", help)?;
    let of_root = [&RESOURCE[..], &[if spec.is_some() { "spec" } else { "limits" }]].concat();
    for (node, used) in [(Some(root), &of_root[..]), (spec.as_ref(), &["limits"])] {
        let Some(foreign::Value::Map(entries)) = node.map(|node| &node.value) else { continue };
        for (key, _) in entries.iter().filter(|(key, _)| !used.contains(&key.text.as_str())) {
            let what = format!("{}: no equivalent; left out.", piece(&key.text));
            document.unused(Origin::of(&source.name, key.place).note(what));
        }
    }
    let limits = items.iter().map(|item| {
        let given = LimitEntry::read(source, item)?;
        let number = numbers.entry(given.namespace.to_owned()).or_insert(0);
        *number += 1;
        document.add_limit(given.limit(source, *number));
        Ok(())
    });
    all(limits).map(drop)
}

impl<'n> LimitEntry<'n> {
    fn read(source: &Source, node: &'n Node) -> ReadResult<Self> {
        let given = node.map("a limit", HELP)?;
        let needed = |name: &str| match find(given, name) {
            Some((_, node)) => Ok(node),
            None => Err(node.error(format!("a limit needs `{name}`"), HELP)),
        };
        let namespace = needed("namespace").and_then(Node::text);
        let max_value = needed("max_value").and_then(Node::whole);
        let window = needed("seconds").and_then(seconds);
        let name = find(given, "name").or_else(|| find(given, "id")).map(|(_, node)| node.text()).transpose();
        // One of the two is the limit's name here.
        let is_second_name = |key: &str| key == "id" && find(given, "name").is_some();
        let conditions = list(given, "conditions");
        let variables = list(given, "variables");
        Ok(Self {
            origin: Origin::of(&source.name, node.place),
            namespace: namespace?,
            max_value: max_value?,
            window: window?,
            name: name?,
            conditions: conditions?,
            variables: variables?,
            unknown: given
                .iter()
                .map(|(key, _)| key)
                .filter(|key| !KNOWN.contains(&key.text.as_str()) || is_second_name(&key.text))
                .collect(),
        })
    }

    /// The limit; `number` is its place in the namespace, counted from 1.
    fn limit(self, source: &Source, number: usize) -> Limit {
        let left_out = |key: &&Key| {
            Origin::of(&source.name, key.place).note(format!("{}: no equivalent; left out.", piece(&key.text)))
        };
        let mut notes: Vec<_> = self.unknown.iter().map(left_out).collect();
        let before = notes.len();
        let tests = self.tests(source, &mut notes);
        let keys = self.keys(source, &mut notes);
        let is_wider = notes.len() > before;
        if is_wider {
            notes.push(self.origin.note(
                "without it the limit covers more requests than before, so it is in shadow mode. Adapt `match` and \
                 `by`, or have Envoy send an entry that distinguishes these requests, then remove `mode`.",
            ));
        }
        let mut conditions = vec![("domain", quoted(self.namespace))];
        if !tests.is_empty() {
            let tests: Vec<_> = tests.iter().map(|test| (&test.key, test.test.value())).collect();
            conditions.push(("descriptor", map(&tests)));
        }
        let mut fields = vec![("match", map(&conditions)), ("by", by_entries(keys.iter().map(String::as_str)))];
        if is_wider {
            fields.push(("mode", "shadow".to_owned()));
        }
        let amount = if self.max_value == 0 {
            notes.push(self.origin.note("a `max_value` of 0 denies everything."));
            Amount::Deny
        } else {
            fields.push(("algorithm", "fixed_window".to_owned()));
            Amount::Rate { burst: None, count: self.max_value, period: milliseconds(self.window) }
        };
        let name = self.name.map_or_else(|| format!("{}.{number}", self.namespace), str::to_owned);
        Limit {
            name,
            identity: self.identity(),
            origin: self.origin,
            source: None,
            notes,
            fields,
            amount: amount.fields(),
        }
    }

    /// The fields by which limitador identifies a limit; the counters stay if others change.
    fn identity(&self) -> String {
        let sorted = |items: &[(&str, Place)]| {
            let mut texts: Vec<&str> = items.iter().map(|(text, _)| *text).collect();
            texts.sort_unstable();
            texts.join("\n")
        };
        let (namespace, window) = (self.namespace, self.window);
        format!("{namespace}\n{window}\n{}\n\n{}", sorted(&self.conditions), sorted(&self.variables))
    }

    /// The conditions that a `match` can express; the others are noted.
    fn tests(&self, source: &Source, notes: &mut Vec<String>) -> Vec<Condition> {
        let mut tests = Vec::new();
        for (expression, place) in &self.conditions {
            if let Some(joined) = condition::conditions(expression).and_then(|new| joined(&tests, new)) {
                tests = joined;
            } else {
                let note = format!("the condition {} has no equivalent.", piece(expression));
                notes.push(Origin::of(&source.name, *place).note(note));
            }
        }
        tests
    }

    /// The keys of the variables; variables that are not keys are noted.
    fn keys(&self, source: &Source, notes: &mut Vec<String>) -> Vec<String> {
        let mut keys = Vec::new();
        for (expression, place) in &self.variables {
            match condition::variable(expression) {
                Some(key) if keys.contains(&key) => {}
                Some(key) => keys.push(key),
                None => {
                    let what = piece(expression);
                    let note = format!("the variable {what} has no equivalent: its values share a bucket.");
                    notes.push(Origin::of(&source.name, *place).note(note));
                }
            }
        }
        keys
    }
}

/// Adds conditions to those of a `match`, which has one test per key. Returns `None` if two tests cannot be joined.
fn joined(tests: &[Condition], new: Vec<Condition>) -> Option<Vec<Condition>> {
    let mut tests = tests.to_vec();
    for condition in new {
        match tests.iter_mut().find(|known| known.key == condition.key) {
            Some(known) => known.test = known.test.and(&condition.test)?,
            None => tests.push(condition),
        }
    }
    Some(tests)
}

/// The window, in milliseconds.
fn seconds(node: &Node) -> ReadResult<u64> {
    match node.whole()?.checked_mul(1_000) {
        Some(0) | None => Err(node.error("a window must be at least 1 second long", "use seconds, such as 60")),
        Some(milliseconds) => Ok(milliseconds),
    }
}

/// The texts of a list that may be absent.
fn list<'n>(given: &'n [(Key, Node)], name: &str) -> ReadResult<Vec<(&'n str, Place)>> {
    let Some((_, node)) = find(given, name) else { return Ok(Vec::new()) };
    let items = node.list(&format!("`{name}`"), "write `[]` if there are none")?;
    items.iter().map(|item| Ok((item.text()?, item.place))).collect()
}
