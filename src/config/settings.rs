//! A file of command line flags: `store: redis://...`, one key a flag, a list where the flag is repeatable.

use super::Source;
use super::problem::{Findings, Report, Reported};
use super::suggest::did_you_mean;
use super::yaml::{Node, Opened, Reader, Seen, Value};

/// A flag and its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The name of the flag, without the dashes.
    pub key: String,
    /// Its values, as written; several where the flag is repeatable.
    pub values: Vec<String>,
}

/// Reads the flags of a file; `known` are the names there are. The error is everything that is wrong.
pub fn settings(source: &Source, known: &[&str]) -> Result<Vec<Setting>, Report> {
    let mut findings = Findings::new(&source.name);
    let mut settings = Vec::new();
    let (Ok(()) | Err(Reported)) = collect(&source.text, known, &mut settings, &mut findings);
    let mut report = Report::default();
    report.add(findings, &source.text);
    if report.errors == 0 { Ok(settings) } else { Err(report) }
}

fn collect(text: &str, known: &[&str], settings: &mut Vec<Setting>, findings: &mut Findings) -> Result<(), Reported> {
    Reader::refuse_tabs(text, findings)?;
    let mut reader = Reader::new(text);
    match reader.root(findings)? {
        Opened::Map(_) => {}
        Opened::Nothing => return Ok(()),
        Opened::List(place) => return Err(findings.error(place, "expected a map of flags", "write `store: memory`")),
        Opened::Scalar(node) => {
            return Err(findings.error(node.place, "expected a map of flags", "write `store: memory`"));
        }
    }
    let mut seen = Seen::default();
    while let Some(key) = reader.key(findings)? {
        let node = reader.node(findings)?;
        if !seen.is_new(&key, findings) {
            continue;
        }
        if known.contains(&key.text.as_str()) {
            if let Ok(values) = values(&node, findings) {
                settings.push(Setting { key: key.text, values });
            }
        } else {
            let help = did_you_mean(&key.text, known.iter().copied());
            findings.error(key.place, format!("unknown flag `--{}`", key.text), help);
        }
    }
    reader.end(findings)
}

fn values(node: &Node, findings: &mut Findings) -> Result<Vec<String>, Reported> {
    let items = if let Value::List(items) = &node.value { items.as_slice() } else { std::slice::from_ref(node) };
    items.iter().map(|item| value(item, findings)).collect()
}

fn value(node: &Node, findings: &mut Findings) -> Result<String, Reported> {
    match &node.value {
        Value::Scalar { text, .. } if !node.is_null() => Ok(text.clone()),
        _ => {
            let message = format!("expected a flag's value, found {}", node.kind());
            Err(findings.error(node.place, message, "write a value or a list of values"))
        }
    }
}
