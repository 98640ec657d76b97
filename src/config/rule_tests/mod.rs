//! Tests beside the rules: `tests` of a rules file, or of a file of its own that names its rules.

use std::path::PathBuf;

use super::load::KEYS as RULES_KEYS;
use super::mapping::Mapping;
use super::node::{Node, Value};
use super::problem::{Findings, ReadResult, Report, quoted};
use super::suggest::{did_you_mean, nearest};
use super::yaml::{List, Reader, SeenKeys};
use super::{Source, instant};
use crate::engine::algorithms::micros::Micros;
use crate::engine::limit::Limit;
use crate::engine::limit::rules::Rules;

pub(super) mod expectation;
pub(super) mod step;
pub(super) mod subject;

pub use expectation::{Expectation, LimitExpectation, LimitVerdict, Wait};
pub use step::{MOST_REPEATED, Step};
pub use subject::{Subject, TestCharge, TestDescriptors, TestRequest};

/// The wall clock at a test's start if it has no `epoch`: 2026-01-01T00:00:00Z. It was a Thursday, like the first day of the
/// Unix epoch, so windows of a week, a day and what divides them begin there, as a month and a year do.
pub const EPOCH: Micros = Micros(1_767_225_600_000_000);

/// The keys of a test that is a map.
pub(super) const TEST_KEYS: [&str; 2] = ["epoch", "steps"];

/// The keys of a file of tests.
const FILE_KEYS: [&str; 3] = ["limits", "overrides", "tests"];

const HELP: &str = "write `a name: [{ get: /, expect: allow }]` below it";

/// A named test.
#[derive(Clone, Debug)]
pub struct RuleTest {
    pub name: String,
    /// The wall clock at the start.
    pub epoch: Micros,
    /// In the order of time. At least one expects something.
    pub steps: Vec<Step>,
}

/// The rules that the tests of a file are about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TestedRules {
    /// Those of the file itself.
    Own,
    /// Those of other files, as written.
    Of { limits: Option<PathBuf>, overrides: Vec<PathBuf> },
}

/// Reads which rules the tests of a file are about. In a file of tests, `limits` is the name of a file.
pub fn tested_rules(source: &Source) -> Result<TestedRules, Report> {
    let findings = Findings::new(&source.name);
    let read = read_head(&source.text, &findings);
    let mut report = Report::default();
    report.add(&findings, &source.text);
    read.ok().filter(|_| report.errors == 0).ok_or(report)
}

/// Reads the tests of a file, which must fit these rules. The error has all mistakes.
///
/// In the file of a team, the names of its limits need no prefix.
pub fn tests(source: &Source, team: Option<&str>, rules: &Rules) -> Result<Vec<RuleTest>, Report> {
    let findings = Findings::new(&source.name);
    let tests = read_tests(&source.text, Known { limits: rules.limits(), team }, &findings);
    let mut report = Report::default();
    report.add(&findings, &source.text);
    tests.ok().filter(|_| report.errors == 0).ok_or(report)
}

fn read_head(text: &str, findings: &Findings) -> ReadResult<TestedRules> {
    const SMALLEST: &str = "write `limits: FILE`, and `tests:` below it";
    let mut reader = Reader::without_tabs(text, findings)?;
    reader.root("a file of tests", List::Rejected, SMALLEST)?;
    let (mut limits, mut overrides, mut unknown) = (None, Vec::new(), Vec::new());
    let mut has_tests = false;
    let mut seen = SeenKeys::default();
    while let Some(key) = reader.key()? {
        if !seen.is_new(&key) {
            reader.skip()?;
            continue;
        }
        match key.text.as_str() {
            "limits" => {
                let node = reader.node()?;
                if !matches!(node.value, Value::Scalar { .. }) {
                    return Ok(TestedRules::Own);
                }
                limits = Some(PathBuf::from(node.text()?));
            }
            "overrides" => overrides = vec![reader.node()?],
            "tests" => {
                has_tests = true;
                reader.skip()?;
            }
            _ => {
                unknown.push(key);
                reader.skip()?;
            }
        }
    }
    reader.end()?;
    if !has_tests {
        // Loading it as rules tells what is missing.
        return Ok(TestedRules::Own);
    }
    for key in unknown {
        let is_of_rules = RULES_KEYS.contains(&key.text.as_str());
        let help =
            if is_of_rules { "it belongs into the rules file".into() } else { did_you_mean(&key.text, FILE_KEYS) };
        key.error(format!("unknown key {} in a file of tests", quoted(&key.text)), help);
    }
    let mut paths = Vec::new();
    for node in &overrides {
        paths = node.each(|file| file.text().map(PathBuf::from))?;
    }
    Ok(TestedRules::Of { limits, overrides: paths })
}

fn read_tests(text: &str, limits: Known<'_>, findings: &Findings) -> ReadResult<Vec<RuleTest>> {
    let mut reader = Reader::without_tabs(text, findings)?;
    reader.root("a file of tests", List::Rejected, HELP)?;
    if reader.find("tests")?.is_none() {
        return Ok(Vec::new());
    }
    let node = reader.node()?;
    let mut tests = Vec::new();
    for (name, node) in node.map("`tests`", HELP)? {
        if let Ok(test) = read_test(&name.text, node, limits) {
            tests.push(test);
        }
    }
    Ok(tests)
}

fn read_test(name: &str, node: &Node, limits: Known<'_>) -> ReadResult<RuleTest> {
    let (steps, epoch) = match &node.value {
        Value::Map(_) => {
            let map = Mapping::of(node, "a test", &TEST_KEYS)?;
            let epoch = map.read("epoch", epoch);
            (map.need("steps", "write `steps: [{ get: /, expect: allow }]`")?, epoch)
        }
        _ => (node, Ok(None)),
    };
    let list = steps.list("a test", "write steps, such as `- { get: /, expect: allow }`")?;
    let read = step::read_all(list, limits);
    let (steps, epoch) = (read?, epoch?.unwrap_or(EPOCH));
    if !steps.iter().any(|step| step.expectation.is_some()) {
        let help = "add `expect: allow` or `expect: deny` to a step";
        return Err(node.error(format!("the test {} expects nothing, so it cannot fail", quoted(name)), help));
    }
    Ok(RuleTest { name: name.to_owned(), epoch, steps })
}

fn epoch(node: &Node) -> ReadResult<Micros> {
    instant::parse_epoch(node.text()?).map_err(|(message, help)| node.error(message, help))
}

/// Reads a span in whole microseconds, the tick of the stores' clocks.
fn span(node: &Node) -> ReadResult<Micros> {
    let nanoseconds = node.duration()?;
    if nanoseconds.is_multiple_of(1_000) {
        return Ok(Micros(nanoseconds / 1_000));
    }
    Err(node.error("times are whole microseconds", "round it to 1us"))
}

/// The limits that tests can name.
#[derive(Clone, Copy)]
pub(super) struct Known<'r> {
    limits: &'r [Limit],
    /// The team whose file has the tests.
    team: Option<&'r str>,
}

impl<'r> Known<'r> {
    /// The error is a message and a help text.
    fn find(self, name: &str) -> Result<&'r Limit, (String, String)> {
        let is_own = |limit: &&Limit| limit.owner.as_deref() == self.team && limit.own_name() == name;
        let found = self.limits.iter().find(is_own).or_else(|| self.limits.iter().find(|limit| limit.name == name));
        found.ok_or_else(|| {
            let help = nearest(name, self.limits.iter().map(|limit| limit.name.as_str()))
                .map_or_else(|| "add it under `limits`".to_owned(), |near| format!("did you mean `{near}`?"));
            (format!("unknown limit {}", quoted(name)), help)
        })
    }

    /// Reads the name of a limit.
    fn name(self, node: &Node) -> ReadResult<String> {
        let found = self.find(node.text()?).map_err(|(message, help)| node.error(message, help))?;
        Ok(found.name.clone())
    }
}
