//! Reads live overrides as if they stood in a file beside the limits.

use std::fmt::Write;
use std::rc::Rc;

use serde_json::{Map, Value};

use super::Sources;
use super::ignores::Ignores;
use super::lints::Lint;
use super::load::Loader;
use super::node::Key;
use super::problem::{Findings, Problem, ReadResult, Report, ReportedError, Severity};
use super::yaml::{List, Reader};
use crate::engine::algorithms::micros::Micros;
use crate::engine::limit::fingerprint::Fingerprinter;
use crate::engine::limit::ids::Id;
use crate::engine::limit::live::{OverrideText, PlacedOverride};
use crate::engine::limit::overrides::{Override, OverrideOrigin, OverrideSubject};
use crate::message::unique_json;

/// The name of an override's text, for messages that name a file.
const NAME: &str = "live";

/// The limits as the files of the rules define them. Live overrides are checked against them.
#[derive(Debug)]
pub struct Definitions {
    sources: Sources,
    fingerprinter: Fingerprinter,
}

impl Definitions {
    /// `fingerprinter` must be that of the rules.
    pub fn new(sources: &Sources, fingerprinter: Fingerprinter) -> Self {
        let (limits, teams, named_files) = (sources.limits.clone(), sources.teams.clone(), sources.named_files.clone());
        Self { sources: Sources { limits, teams, named_files, ..Sources::default() }, fingerprinter }
    }

    /// Reads overrides. Each result is that of the text at the same index; the error says what is wrong and where.
    pub fn read(&self, texts: &[OverrideText<'_>], now: Micros) -> Vec<Result<PlacedOverride, String>> {
        let mut loader = Loader { has_lints: true, ..Loader::new(Vec::new(), self.fingerprinter, now) };
        for file in self.sources.rules_files() {
            loader.limits.enter(&file);
            // The files had no mistakes when they became the rules.
            let (Ok(()) | Err(ReportedError)) = loader.limits_alone(&file.source.text, &Findings::new(NAME));
        }
        loader.limits.leave();
        texts.iter().map(|text| read(&mut loader, *text)).collect()
    }
}

fn read(loader: &mut Loader, given: OverrideText<'_>) -> Result<PlacedOverride, String> {
    let numbers = unique_json::parse(given.numbers.as_bytes()).map_err(|error| format!("invalid JSON: {error}"))?;
    let Value::Object(members) = numbers else { return Err("its numbers are not an object".to_owned()) };
    if members.contains_key("args") {
        return Err("`args`: the arguments of a script can only be set in a file".to_owned());
    }
    // One line for each member, so that the line of a mistake tells the member.
    let mut text = format!("{}:", Value::from(given.bucket));
    if members.is_empty() {
        text.push_str(" {}");
    }
    for (key, value) in &members {
        let _ = write!(text, "\n  {}: {value}", Value::from(key.as_str()));
    }
    text.push('\n');
    let findings = Findings::with(NAME, &Rc::new(Ignores::of_file("")));
    let entry = entry(loader, &text, &findings);
    let mut report = Report::default();
    report.add(&findings, &text);
    let told = |problem: &Problem| told(problem, &members);
    let errors: Vec<String> =
        report.problems.iter().filter(|problem| problem.severity == Severity::Error).map(told).collect();
    let placed = entry.ok().and_then(|key| placed(loader, &key));
    let (Some(mut placed), []) = (placed, errors.as_slice()) else {
        return Err(if errors.is_empty() { "it is not an override".to_owned() } else { errors.join(". ") });
    };
    for problem in &report.problems {
        if problem.lint == Some(Lint::OverrideNeverApplies) {
            placed.never_applies.get_or_insert(told(problem));
        } else {
            placed.warnings.push(told(problem));
        }
    }
    Ok(placed)
}

/// Reads the only entry of a text.
fn entry(loader: &mut Loader, text: &str, findings: &Findings) -> ReadResult<Key> {
    let mut reader = Reader::without_tabs(text, findings)?;
    reader.root("an override", List::Rejected, "")?;
    let Some(key) = reader.key()? else {
        return Err(findings.error(reader.place(), "the override is empty", ""));
    };
    loader.override_entry(&key, &reader.node()?, u16::MAX);
    Ok(key)
}

/// Takes the override of this key out of its limit, which has no other.
fn placed(loader: &mut Loader, key: &Key) -> Option<PlacedOverride> {
    let (name, id) = key.text.split_once(':')?;
    let limit = loader.limits.find(name)?;
    let settings = &mut loader.limits.drafts[limit].limit;
    let overrides = std::mem::take(&mut settings.overrides);
    let (OverrideSubject::Id(parts, fingerprint), given) = overrides.entries().next()? else { return None };
    let id = Id::parse(&settings.by, id).ok()?;
    let given = Override { origin: OverrideOrigin::live(None), ..given.clone() };
    let bucket = format!("{}:{id}", settings.name);
    Some(PlacedOverride { bucket, limit, parts, fingerprint, given, never_applies: None, warnings: Vec::new() })
}

/// `count: must be at least 1; write ...`
fn told(problem: &Problem, members: &Map<String, Value>) -> String {
    let line = problem.place.map_or(1, |place| place.line as usize);
    let member = line.checked_sub(2).and_then(|place| members.keys().nth(place));
    let place = member.map(|key| format!("`{key}`: ")).unwrap_or_default();
    let help = if problem.help.is_empty() { String::new() } else { format!("; {}", problem.help) };
    format!("{place}{}{help}", problem.message)
}
