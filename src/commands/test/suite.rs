//! The tests of a file, and the rules that they are about.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::super::exit::Failure;
use crate::config::rule_tests::{self, RuleTest, Subject, TestStep, TestedRules};
use crate::config::{self, Files, LoadResult, Report, Source, Sources};
use crate::engine::algorithms::micros::Micros;
use crate::engine::limit::fingerprint::Fingerprinter;
use crate::engine::limit::rules::Rules;

pub(super) const FINGERPRINTER: Fingerprinter = Fingerprinter::new((0, 0));

/// Tests and their rules.
pub(super) struct Suite {
    /// The name of the file with the tests.
    pub(super) name: String,
    /// The name of the file with the limits.
    pub(super) rules_name: String,
    pub(super) tests: Vec<RuleTest>,
    pub(super) rules: Rules,
    /// True if some limits do not work in memory.
    pub(super) needs_redis: bool,
    /// The files of the rules.
    pub(super) sources: Sources,
}

impl Suite {
    /// Reads the tests of a file. `files` are the rules of `weir serve`: those of a file of tests that names none, and the
    /// overrides of every file.
    pub(super) fn read(source: &Source, files: &Files) -> Result<Self, Failure> {
        let of_tests = match rule_tests::tested_rules(source)? {
            TestedRules::Own => Files { limits: Some(source.name.clone().into()), ..files.clone() },
            TestedRules::Of { limits, overrides } => {
                beside(Path::new(&source.name), files, limits.as_deref(), &overrides)
            }
        };
        let mut sources = of_tests.read()?;
        if let Some(limits) = sources.limits.as_mut().filter(|limits| limits.name == source.name) {
            // Read once, so that rules and tests are those of the same moment.
            limits.text.clone_from(&source.text);
        }
        Self::within(source, &sources)
    }

    /// Takes bodies as a gateway does that reads up to so many bytes of them.
    pub(super) fn inspecting(mut self, bytes: usize) -> Self {
        let steps = self.tests.iter_mut().flat_map(|test| &mut test.steps);
        for step in steps.filter_map(TestStep::as_ask_mut) {
            if let Subject::Request(request) = &mut step.subject {
                request.inspected_bytes = bytes;
            }
        }
        self
    }

    /// Reads the tests of a file about these rules.
    pub(super) fn within(source: &Source, sources: &Sources) -> Result<Self, Failure> {
        let LoadResult { rules, report, needs_redis, .. } = load(sources, Micros(0));
        let Some(rules) = rules else { return Err(report.into()) };
        // Steps after a reload may name limits of the new rules.
        let mut names: BTreeSet<String> = rules.names().map(str::to_owned).collect();
        for path in rule_tests::reloaded_files(source) {
            let reloaded = load(&reloaded(Path::new(&source.name), &path, sources)?, Micros(0));
            names.extend(reloaded.rules.ok_or(reloaded.report)?.names().map(str::to_owned));
        }
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let tests = rule_tests::tests(source, &names)?;
        let rules_name = sources.limits.as_ref().map_or_else(|| source.name.clone(), |limits| limits.name.clone());
        let (name, needs_redis) = (source.name.clone(), needs_redis.errors > 0);
        Ok(Self { name, rules_name, tests, rules, needs_redis, sources: sources.clone() })
    }
}

/// Compiles rules. The tests have clocks of their own, and ids need no secret here.
pub(super) fn load(sources: &Sources, effective_from: Micros) -> LoadResult {
    config::load(sources, FINGERPRINTER, effective_from)
}

/// Reads the rules file that a step of `tests` reloads. The files of overrides stay.
pub(super) fn reloaded(tests: &Path, path: &Path, sources: &Sources) -> Result<Sources, Report> {
    let limits = tests.parent().unwrap_or(Path::new("")).join(path);
    let read = Files { limits: Some(limits), ..Files::default() }.read().map_err(Report::of)?;
    Ok(Sources { overrides: sources.overrides.clone(), ..read })
}

/// The rules that a file of tests names, by paths relative to it.
fn beside(tests: &Path, files: &Files, limits: Option<&Path>, overrides: &[PathBuf]) -> Files {
    let folder = tests.parent().unwrap_or(Path::new(""));
    let mut found = files.clone();
    if let Some(limits) = limits {
        found.limits = Some(folder.join(limits));
    }
    if !overrides.is_empty() {
        found.overrides = overrides.iter().map(|path| folder.join(path)).collect();
    }
    found
}
