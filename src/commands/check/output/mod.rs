//! The formats of the problems that `weir check` finds.

mod github;
mod json;
mod sarif;

use std::borrow::Cow;
use std::io::{self, Write};

use crate::commands::colors::{self, Palette};
use crate::commands::print::counted;
use crate::commands::test::{Tally, TestedFile};
use crate::config::{Lint, Problem, Report, Severity};

/// `--format`
#[derive(clap::ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Format {
    /// For people
    #[default]
    Text,
    /// One JSON object
    Json,
    /// Annotations of a GitHub workflow
    Github,
    /// SARIF 2.1.0, for code scanning
    Sarif,
}

/// The result for the files of one rule set, or for a store.
#[derive(Debug, Default)]
pub(super) struct Checked {
    /// The names of the files, or the store's URL.
    pub(super) name: String,
    /// The numbers of limits and overrides; `None` if they do not load, and for a store.
    pub(super) counts: Option<(usize, usize)>,
    /// The number of overrides that no lint has compared with other limits.
    pub(super) not_compared: usize,
    /// `None` if there are no tests.
    pub(super) tests: Option<Tally>,
    /// Why the tests fail: one line, and the details, which have several.
    pub(super) failure: Option<(String, String)>,
    /// The same for programs: each test that fails. Empty if no test runs, because some have mistakes.
    pub(super) failed_tests: Vec<Problem>,
    pub(super) report: Report,
}

/// The name of a mistake that keeps rules from loading.
const INVALID_RULES: &str = "invalid-rules";

/// The name of a test that fails.
const FAILING_TEST: &str = "failing-test";

/// A problem for programs.
struct Finding<'c> {
    problem: Cow<'c, Problem>,
    help: &'c str,
    /// That of the lint, [`INVALID_RULES`] or [`FAILING_TEST`].
    name: &'static str,
}

impl Checked {
    /// Returns whether it passes: without errors, and if it `is_strict`, without warnings.
    pub(super) const fn passes(&self, is_strict: bool) -> bool {
        self.report.errors == 0 && self.failure.is_none() && (!is_strict || self.report.warnings == 0)
    }

    /// Adds the result of the tests and their differences.
    pub(super) fn add_tests(&mut self, tested: TestedFile, differences: String) {
        (self.tests, self.failed_tests) = (tested.tally, tested.failures);
        if let Some(Tally { passed, failed: failed @ 1.., .. }) = self.tests {
            self.failure = Some((format!("{failed} of {} failed", counted(passed + failed, "test")), differences));
        }
    }

    /// The number of errors, failed tests included.
    fn errors(&self) -> usize {
        self.report.errors + self.failed_tests.len().max(usize::from(self.failure.is_some()))
    }

    /// All problems.
    fn findings(&self) -> Vec<Finding<'_>> {
        let of_tests = |problem, help| Finding { problem, help, name: FAILING_TEST };
        let failure = self.failure.iter().filter(|_| self.failed_tests.is_empty()).map(|(message, details)| {
            of_tests(Cow::Owned(Problem::of_file(&self.name, message.clone(), "")), details.trim_end())
        });
        let failed = self.failed_tests.iter().map(|problem| of_tests(Cow::Borrowed(problem), &problem.help));
        let others = self.report.problems.iter().map(|problem| {
            let name = problem.lint.map_or(INVALID_RULES, Lint::name);
            Finding { problem: Cow::Borrowed(problem), help: &problem.help, name }
        });
        failure.chain(failed).chain(others).collect()
    }

    /// Prints the problems to `err`, and a summary to `out` if it passes, or else to `err`.
    pub(super) fn print(&self, is_strict: bool, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<()> {
        write!(err, "{}", self.report.styled(colors::of_reports()))?;
        self.summarize(is_strict, out, err)
    }

    /// Prints the problems of a store, which have no place in a file, like those of files.
    pub(super) fn print_store(&self, is_strict: bool, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<()> {
        for problem in &self.report.problems {
            let style = Palette::err().of(problem.severity);
            writeln!(err, "{style}{}{style:#}: {}", severity(problem), problem.message)?;
        }
        self.summarize(is_strict, out, err)
    }

    fn summarize(&self, is_strict: bool, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<()> {
        let Self { name, counts, not_compared, tests, failure, report, .. } = self;
        let (Palette { bad, .. }, Palette { good, doubtful, .. }) = (Palette::err(), Palette::out());
        if let Some((message, details)) = failure {
            write!(err, "{details}")?;
            return writeln!(err, "{name}: {bad}{message}{bad:#}");
        }
        let warnings = counted(report.warnings, "warning");
        if report.errors > 0 {
            return writeln!(err, "{name}: {bad}{}{bad:#}", counted(report.errors, "error"));
        }
        if !self.passes(is_strict) {
            return writeln!(err, "{name}: {bad}{warnings}{bad:#}, and --strict allows none");
        }
        write!(out, "{name}: {good}ok{good:#}")?;
        if let Some((limits, overrides)) = counts {
            write!(out, ", {}, {}", counted(*limits, "limit"), counted(*overrides, "override"))?;
            if *not_compared > 0 {
                write!(out, " ({not_compared} not compared with other limits)")?;
            }
        }
        if let Some(tests) = tests {
            match tests.not_run {
                0 => write!(out, ", {}", counted(tests.passed, "test"))?,
                not_run => {
                    let not_run = counted(not_run, "test");
                    write!(out, ", {not_run} not run: they need Redis, `weir test --store redis://...`")?;
                }
            }
        }
        if report.warnings > 0 {
            write!(out, ", {doubtful}{warnings}{doubtful:#}")?;
        }
        writeln!(out)
    }
}

/// Prints everything in a format for programs.
pub(super) fn print(format: Format, checked: &[Checked], out: &mut dyn Write) -> io::Result<()> {
    match format {
        Format::Text => Ok(()),
        Format::Json => writeln!(out, "{:#}", json::document(checked)),
        Format::Github => write!(out, "{}", github::commands(checked)),
        Format::Sarif => writeln!(out, "{:#}", sarif::document(checked)),
    }
}

/// Returns all problems.
fn findings(checked: &[Checked]) -> impl Iterator<Item = Finding<'_>> {
    checked.iter().flat_map(Checked::findings)
}

/// `error` or `warning`, the word of all formats.
const fn severity(problem: &Problem) -> &'static str {
    match problem.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    }
}
