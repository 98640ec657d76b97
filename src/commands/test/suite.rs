//! The tests of a file, and the rules that they are about.

use std::path::{Path, PathBuf};

use super::super::exit::Failure;
use crate::config::rule_tests::{self, RuleTest, Subject, TestedRules};
use crate::config::{self, Files, LoadResult, Source, Sources};
use crate::engine::algorithms::micros::Micros;
use crate::engine::limit::fingerprint::Fingerprinter;
use crate::engine::limit::rules::Rules;

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
}

impl Suite {
    /// Reads the tests of a file. `files` are the rules of `weir serve`: those of a file of tests that names none, and the
    /// overrides of every file.
    pub(super) fn read(source: &Source, files: &Files) -> Result<Self, Failure> {
        let mut sources = tested_files(source, files)?.read()?;
        if let Some(limits) = sources.limits.as_mut().filter(|limits| limits.name == source.name) {
            // Read once, so that rules and tests are those of the same moment.
            limits.text.clone_from(&source.text);
        }
        Self::within(source, &sources)
    }

    /// Takes bodies as a gateway does that reads up to so many bytes of them.
    pub(super) fn inspecting(mut self, bytes: usize) -> Self {
        for step in self.tests.iter_mut().flat_map(|test| &mut test.steps) {
            if let Subject::Request(request) = &mut step.subject {
                request.inspected_bytes = bytes;
            }
        }
        self
    }

    /// Reads the tests of a file about these rules.
    pub(super) fn within(source: &Source, sources: &Sources) -> Result<Self, Failure> {
        // The tests have clocks of their own, and ids need no secret here.
        let loaded = config::load(sources, Fingerprinter::new((0, 0)), Micros(0));
        let LoadResult { rules, report, needs_redis, .. } = loaded;
        let Some(rules) = rules else { return Err(report.into()) };
        let tests = rule_tests::tests(source, sources.team_of(&source.name), &rules)?;
        let rules_name = Some(sources.rules_name()).filter(|name| !name.is_empty());
        let rules_name = rules_name.unwrap_or_else(|| source.name.clone());
        Ok(Self { name: source.name.clone(), rules_name, tests, rules, needs_redis: needs_redis.errors > 0 })
    }
}

/// The files of the rules that the tests of a file are about.
pub(super) fn tested_files(source: &Source, files: &Files) -> Result<Files, Failure> {
    Ok(match rule_tests::tested_rules(source)? {
        TestedRules::Own if files.has_rules_of(Path::new(&source.name)) => files.clone(),
        TestedRules::Own => Files { limits: Some(source.name.clone().into()), ..files.clone() },
        TestedRules::Of { limits, overrides } => beside(Path::new(&source.name), files, limits.as_deref(), &overrides),
    })
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
