//! The limits of Kuadrant's limitador.
//!
//! Its conditions look at the entries of a descriptor as a `match` of ours does: in any order, among any others. What a
//! `match` cannot say leaves a limit wider than it was. Such a limit is written in shadow: it counts and reports, and
//! refuses nobody whom the old one would have let pass.

use std::collections::HashMap;

use super::amount::Amount;
use super::condition::{self, Condition};
use super::document::{Document, Limit, Origin};
use super::text::{Value, piece};
use crate::config::foreign::{self, Findings, Key, Node, Reported, find};
use crate::config::{Report, Source};

/// The fields that are read of a limit.
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
        // What is wrong is among the findings.
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
    // The object that Kuadrant's operator makes the file of has the list in `spec.limits`.
    let inner = |node: &'_ Node, name: &str| match &node.value {
        foreign::Value::Map(entries) => find(entries, name).map(|(_, node)| node.clone()),
        _ => None,
    };
    let list = inner(&root, "spec").and_then(|spec| inner(&spec, "limits")).or_else(|| inner(&root, "limits"));
    let mut outcome = Ok(());
    for item in list.as_ref().unwrap_or(&root).list("the file", help)? {
        // All are read, so that all mistakes are found.
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
    let origin = Origin::of(source, node.place);
    let help = "write `namespace`, `max_value` and `seconds`";
    let given = node.map("a limit", help)?;
    let needed = |name: &str, findings: &mut Findings| {
        let missing = || format!("a limit needs `{name}`");
        find(given, name).map(|(_, node)| node).ok_or_else(missing).map_err(|why| findings.error(node.place, why, help))
    };
    let namespace = needed("namespace", findings).and_then(|node| node.text());
    let most = needed("max_value", findings).and_then(|node| node.whole());
    let seconds = needed("seconds", findings).and_then(|node| seconds(node, findings));
    let name = find(given, "name").or_else(|| find(given, "id")).map(|(_, node)| node.text()).transpose();
    let conditions = list(given, "conditions");
    let variables = list(given, "variables");
    let (namespace, most, seconds, name) = (namespace?, most?, seconds?, name?);
    let (conditions, variables) = (conditions?, variables?);

    // limitador tells limits apart by these and forgets nothing when the others change.
    let sorted = |items: &[(&str, crate::config::Place)]| {
        let mut texts: Vec<&str> = items.iter().map(|(text, _)| *text).collect();
        texts.sort_unstable();
        texts.join("\n")
    };
    let identity = format!("{namespace}\n{seconds}\n{}\n\n{}", sorted(&conditions), sorted(&variables));
    let mut notes = Vec::new();
    for (key, _) in given.iter().filter(|(key, _)| !KNOWN.contains(&key.text.as_str())) {
        let note = format!("{}: no equivalent; left out.", piece(&key.text));
        notes.push(Origin::of(source, key.place).note(note));
    }
    let mut tests: Vec<Condition> = Vec::new();
    let mut is_wider = false;
    for (expression, place) in conditions {
        let read = condition::conditions(expression).and_then(|new| joined(&tests, new));
        let Some(read) = read else {
            is_wider = true;
            notes.push(
                Origin::of(source, place).note(format!("the condition {} has no equivalent.", piece(expression))),
            );
            continue;
        };
        tests = read;
    }
    let mut keys: Vec<String> = Vec::new();
    for (expression, place) in variables {
        match condition::variable(expression) {
            Some(key) if !keys.contains(&key) => keys.push(key),
            Some(_) => {}
            None => {
                is_wider = true;
                let note = format!("the variable {} has no equivalent: its values share a bucket.", piece(expression));
                notes.push(Origin::of(source, place).note(note));
            }
        }
    }
    if is_wider {
        notes.push(origin.note(
            "without it the limit covers more requests than before, so it is in shadow mode. Adapt `match` and `by`, or \
             have Envoy send an entry that distinguishes these requests, then remove `mode`.",
        ));
    }
    let mut of_request = vec![("domain".to_owned(), Value::Text(namespace.to_owned()))];
    if !tests.is_empty() {
        let tests = tests.iter().map(|test| (test.key.clone(), test.test.value())).collect();
        of_request.push(("descriptor".to_owned(), Value::Map(tests)));
    }
    let component = |key: &String| Value::map([("descriptor", Value::Text(key.clone()))]);
    let by = match keys.as_slice() {
        [] => Value::word("global"),
        [only] => component(only),
        several => Value::List(several.iter().map(component).collect()),
    };
    let mut fields = vec![("match", Value::Map(of_request)), ("by", by)];
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

/// Adds conditions to those of a `match`, which has one test for each key; `None` if it has no room for one.
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
fn seconds(node: &Node, findings: &mut Findings) -> Result<u64, Reported> {
    match node.whole()?.checked_mul(1_000) {
        Some(0) | None => {
            Err(findings.error(node.place, "a window must be at least 1 second long", "use seconds, such as 60"))
        }
        Some(milliseconds) => Ok(milliseconds),
    }
}

/// The texts of a list that may be absent.
fn list<'n>(given: &'n [(Key, Node)], name: &str) -> Result<Vec<(&'n str, crate::config::Place)>, Reported> {
    let Some((_, node)) = find(given, name) else { return Ok(Vec::new()) };
    let items = node.list(&format!("`{name}`"), "write `[]` if there are none")?;
    items.iter().map(|item| Ok((item.text()?, item.place))).collect()
}
