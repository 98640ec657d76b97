//! Converts the limits of Kuadrant's limitador.
//!
//! Its conditions test a descriptor's entries like `match` does: in any order, among any others. What a `match` cannot
//! express leaves a limit wider than it was. Such a limit is written in shadow mode: it counts and reports, but denies
//! nothing that the old one would have allowed.

use std::collections::HashMap;

use super::amount::Amount;
use super::condition::{self, Condition};
use super::document::{Document, Limit};
use super::origin;
use super::text::{Value, piece};
use crate::config::foreign::{self, Findings, Key, Node, Reported, find, text, whole};
use crate::config::{Place, Report, Source};

/// The supported keys of a limit.
const KNOWN: [&str; 7] = ["namespace", "max_value", "seconds", "name", "id", "conditions", "variables"];

/// Adds the limits of the files to the document.
pub(super) fn import(sources: &[Source], document: &mut Document) -> Report {
    document.head(
        "These limits serve Envoy's rate limit service (`weir serve --grpc 127.0.0.1:9001`); the domain is the \
         namespace. Each descriptor of a request is decided separately.",
    );
    let mut report = Report::default();
    let mut numbers = HashMap::new();
    for source in sources {
        let mut findings = Findings::new(&source.name);
        // Mistakes are among the findings.
        let (Ok(()) | Err(Reported)) = file(source, &mut findings, &mut numbers, document);
        report.add(findings, &source.text);
    }
    report
}

fn file(
    source: &Source,
    findings: &mut Findings,
    numbers: &mut HashMap<String, usize>,
    document: &mut Document,
) -> Result<(), Reported> {
    let help = "write a list of limits, each with `namespace`, `max_value` and `seconds`";
    let root = foreign::read(&source.text, findings)?;
    // In the resource of Kuadrant's operator, the list is in `spec.limits`.
    let inner = |node: &'_ Node, name: &str| match &node.value {
        foreign::Value::Map(entries) => find(entries, name).map(|(_, node)| node.clone()),
        _ => None,
    };
    let list = inner(&root, "spec").and_then(|spec| inner(&spec, "limits")).or_else(|| inner(&root, "limits"));
    let mut outcome = Ok(());
    for item in foreign::list(list.as_ref().unwrap_or(&root), "the file", help, findings)? {
        // All are read, so that every mistake is reported.
        outcome = limit(source, item, findings, numbers, document).and(outcome);
    }
    outcome
}

fn limit(
    source: &Source,
    node: &Node,
    findings: &mut Findings,
    numbers: &mut HashMap<String, usize>,
    document: &mut Document,
) -> Result<(), Reported> {
    let origin = origin(source, node.place);
    let help = "write `namespace`, `max_value` and `seconds`";
    let given = foreign::map(node, "a limit", help, findings)?;
    let needed = |name: &str, findings: &mut Findings| {
        let missing = || format!("a limit needs `{name}`");
        find(given, name).map(|(_, node)| node).ok_or_else(missing).map_err(|why| findings.error(node.place, why, help))
    };
    let namespace = needed("namespace", findings).and_then(|node| text(node, findings));
    let most = needed("max_value", findings).and_then(|node| whole(node, findings));
    let seconds = needed("seconds", findings).and_then(|node| seconds(node, findings));
    let name = find(given, "name").or_else(|| find(given, "id")).map(|(_, node)| text(node, findings)).transpose();
    let conditions = list(given, "conditions", findings);
    let variables = list(given, "variables", findings);
    let (namespace, most, seconds, name) = (namespace?, most?, seconds?, name?);
    let (conditions, variables) = (conditions?, variables?);

    // limitador identifies limits by these, and keeps the counters when the other keys change.
    let sorted = |items: &[(&str, Place)]| {
        let mut texts: Vec<&str> = items.iter().map(|(text, _)| *text).collect();
        texts.sort_unstable();
        texts.join("\n")
    };
    let identity = format!("{namespace}\n{seconds}\n{}\n\n{}", sorted(&conditions), sorted(&variables));
    let mut notes = Vec::new();
    for (key, _) in given.iter().filter(|(key, _)| !KNOWN.contains(&key.text.as_str())) {
        notes.push(super::origin(source, key.place).note(format!("{}: no equivalent; left out.", piece(&key.text))));
    }
    let noted = notes.len();
    let tests = tests(source, conditions, &mut notes);
    let keys = keys(source, variables, &mut notes);
    let is_wider = notes.len() > noted;
    if is_wider {
        notes.push(origin.note(
            "without it the limit covers more requests than before, so it is in shadow mode. Adapt `match` and `by`, or \
             have Envoy send an entry that distinguishes these requests, then remove `mode`.",
        ));
    }
    let mut conditions = vec![("domain".to_owned(), Value::Text(namespace.to_owned()))];
    if !tests.is_empty() {
        let tests = tests.iter().map(|test| (test.key.clone(), test.test.value())).collect();
        conditions.push(("descriptor".to_owned(), Value::Map(tests)));
    }
    let components = keys.into_iter().map(|key| Value::map([("descriptor", Value::Text(key))]));
    let mut fields = vec![("match", Value::Map(conditions)), ("by", Value::by(components.collect()))];
    if is_wider {
        fields.push(("mode", Value::word("shadow")));
    }
    let amount = if most == 0 {
        notes.push(origin.note("a `max_value` of 0 denies everything."));
        Amount::Deny
    } else {
        fields.push(("algorithm", Value::word("fixed_window")));
        Amount::Rate { burst: None, count: most, period: super::amount::milliseconds(seconds) }
    };
    let number = numbers.entry(namespace.to_owned()).or_insert(0);
    *number += 1;
    let name = name.map_or_else(|| format!("{namespace}.{number}"), str::to_owned);
    document.add_limit(Limit { name, identity, origin, notes, fields, amount, elevated: None });
    Ok(())
}

/// The conditions that a `match` can express, with a note on each of the others.
fn tests(source: &Source, conditions: Vec<(&str, Place)>, notes: &mut Vec<String>) -> Vec<Condition> {
    let mut tests: Vec<Condition> = Vec::new();
    for (expression, place) in conditions {
        if let Some(joined) = condition::conditions(expression).and_then(|new| joined(&tests, new)) {
            tests = joined;
        } else {
            let note = format!("the condition {} has no equivalent.", piece(expression));
            notes.push(super::origin(source, place).note(note));
        }
    }
    tests
}

/// The keys that variables stand for, with a note on each that has none.
fn keys(source: &Source, variables: Vec<(&str, Place)>, notes: &mut Vec<String>) -> Vec<String> {
    let mut keys: Vec<String> = Vec::new();
    for (expression, place) in variables {
        match condition::variable(expression) {
            Some(key) if !keys.contains(&key) => keys.push(key),
            Some(_) => {}
            None => {
                let note = format!("the variable {} has no equivalent: its values share a bucket.", piece(expression));
                notes.push(super::origin(source, place).note(note));
            }
        }
    }
    keys
}

/// Adds conditions to those of a `match`, which has one test per key; `None` if two cannot be combined.
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

/// Reads the window, in milliseconds.
fn seconds(node: &Node, findings: &mut Findings) -> Result<u64, Reported> {
    match whole(node, findings)?.checked_mul(1_000) {
        Some(0) | None => {
            Err(findings.error(node.place, "a window must be at least 1 second long", "use seconds, such as 60"))
        }
        Some(milliseconds) => Ok(milliseconds),
    }
}

/// Reads the texts of an optional list.
fn list<'n>(given: &'n [(Key, Node)], name: &str, findings: &mut Findings) -> Result<Vec<(&'n str, Place)>, Reported> {
    let Some((_, node)) = find(given, name) else { return Ok(Vec::new()) };
    let items = foreign::list(node, &format!("`{name}`"), "write `[]` if there are none", findings)?;
    items.iter().map(|item| Ok((text(item, findings)?, item.place))).collect()
}
