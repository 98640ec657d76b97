//! A file of command line flags: `store: redis://...`, one key per flag, with a list for a repeatable flag. It may have the
//! proxy's routes, too.

use super::Source;
use super::mapping::all;
use super::node::{Node, Value};
use super::problem::{Findings, ReadResult, Report, ReportedError};
use super::suggest::did_you_mean;
use super::yaml::{List, Reader, SeenKeys};

/// A flag and its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The name of the flag, without the dashes.
    pub key: String,
    /// Its values as written; several for a repeatable flag.
    pub values: Vec<String>,
}

/// A flag that a file may set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownFlag<'a> {
    /// Its name without the dashes.
    pub name: &'a str,
    pub is_repeatable: bool,
}

/// The key of the routes.
const ROUTES: &str = "routes";

/// Reads the flags of a file, and gives its routes to `routes`. The error has all mistakes.
pub(crate) fn settings(
    source: &Source,
    known: &[KnownFlag<'_>],
    mut routes: impl FnMut(&Node),
) -> Result<Vec<Setting>, Report> {
    let findings = Findings::new(&source.name);
    let mut settings = Vec::new();
    let (Ok(()) | Err(ReportedError)) = collect(&source.text, known, &mut settings, &mut routes, &findings);
    let mut report = Report::default();
    report.add(&findings, &source.text);
    if report.errors == 0 { Ok(settings) } else { Err(report) }
}

fn collect(
    text: &str,
    known: &[KnownFlag<'_>],
    settings: &mut Vec<Setting>,
    routes: &mut impl FnMut(&Node),
    findings: &Findings,
) -> ReadResult<()> {
    let mut reader = Reader::without_tabs(text, findings)?;
    if !reader.document()? {
        return Ok(());
    }
    reader.open("a file of flags", None, List::Rejected, "write `store: memory`")?;
    let mut seen = SeenKeys::default();
    while let Some(key) = reader.key()? {
        let node = reader.node()?;
        if !seen.is_new(&key) {
            continue;
        }
        if key.text == ROUTES {
            routes(&node);
            continue;
        }
        let Some(flag) = known.iter().find(|flag| flag.name == key.text) else {
            let help = did_you_mean(&key.text, known.iter().map(|flag| flag.name).chain([ROUTES]));
            key.error(format!("unknown flag `--{}`", key.text), help);
            continue;
        };
        let Ok(values) = values(&node) else { continue };
        if matches!(node.value, Value::List(_)) && !flag.is_repeatable {
            node.error(
                format!("`--{}` takes one value, found {}", key.text, node.kind()),
                format!("write `{}: VALUE`", key.text),
            );
        } else {
            settings.push(Setting { key: key.text, values });
        }
    }
    reader.end()
}

fn values(node: &Node) -> ReadResult<Vec<String>> {
    let items = if let Value::List(items) = &node.value { items.as_slice() } else { std::slice::from_ref(node) };
    all(items.iter().map(|item| match &item.value {
        Value::Scalar { text, .. } if !item.is_null() => Ok(text.clone()),
        _ => {
            let message = format!("expected a flag's value, found {}", item.kind());
            Err(item.error(message, "write a value or a list of values"))
        }
    }))
}
