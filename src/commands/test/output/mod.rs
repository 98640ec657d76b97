//! The results of tests, and the formats that they are printed in.

mod github;
mod junit;
mod tap;

use std::io::{self, Write};
use std::time::Duration;

use crate::commands::colors::Palette;
use crate::config::{Place, Problem};
use crate::engine::text::quote::quoted;
use crate::message::lossless::shown;

/// `--format`
#[derive(clap::ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Format {
    /// For people
    #[default]
    Text,
    /// `JUnit` XML, as Jenkins' xUnit plugin defines it
    Junit,
    /// Test Anything Protocol 14
    Tap,
    /// Annotations of a GitHub workflow
    Github,
}

/// The result of one test.
#[derive(Debug)]
pub(super) struct TestResult {
    /// The name of the file with the test.
    pub(super) file: String,
    pub(super) name: String,
    pub(super) took: Duration,
    pub(super) failure: Option<TestFailure>,
}

/// Why a test has failed.
#[derive(Debug)]
pub(super) struct TestFailure {
    /// The line of the step.
    pub(super) line: u32,
    /// One line; or several, each indented and with its end.
    pub(super) details: String,
}

impl TestFailure {
    const fn place(&self) -> Place {
        Place { line: self.line, column: 1, width: 1 }
    }
}

/// The numbers of tests that passed and failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::commands) struct Tally {
    pub(in crate::commands) passed: usize,
    pub(in crate::commands) failed: usize,
    /// Those that need a store which was not given.
    pub(in crate::commands) not_run: usize,
}

/// The results so far.
pub(super) struct Results<'a> {
    pub(super) out: &'a mut dyn Write,
    pub(super) palette: Palette,
    format: Format,
    all: Vec<TestResult>,
}

impl<'a> Results<'a> {
    pub(super) const fn new(out: &'a mut dyn Write, palette: Palette, format: Format) -> Self {
        Self { out, palette, format, all: Vec::new() }
    }

    pub(super) fn is_for_people(&self) -> bool {
        self.format == Format::Text
    }

    /// Adds a result. People see a failure at once.
    pub(super) fn add(&mut self, result: TestResult) -> io::Result<()> {
        if let (true, Some(failure)) = (self.is_for_people(), &result.failure) {
            let (Palette { name: style, .. }, TestResult { file, name, .. }) = (self.palette, &result);
            let TestFailure { line, details } = failure;
            // A name may control a terminal, or begin a line that a pipeline takes for a command.
            let name = shown(name);
            if details.ends_with('\n') {
                write!(self.out, "{file}:{line}: {style}{name}{style:#}\n{details}")?;
            } else {
                writeln!(self.out, "{file}:{line}: {name}: {details}")?;
            }
        }
        self.all.push(result);
        Ok(())
    }

    pub(super) fn tally(&self) -> Tally {
        let failed = self.all.iter().filter(|result| result.failure.is_some()).count();
        Tally { passed: self.all.len() - failed, failed, not_run: 0 }
    }

    /// Returns each test that failed as a problem of its file, at the line of the step that differs.
    pub(super) fn failures(&self) -> Vec<Problem> {
        let failed = self.all.iter().filter_map(|result| Some((result, result.failure.as_ref()?)));
        let problem = |(result, failure): (&TestResult, &TestFailure)| {
            let lines = failure.details.lines().map(|line| line.strip_prefix("  ").unwrap_or(line));
            let message = format!("test {} failed", quoted(&result.name));
            let found = Problem::of_file(&result.file, message, &lines.collect::<Vec<_>>().join("\n"));
            Problem { place: Some(failure.place()), ..found }
        };
        failed.map(problem).collect()
    }

    /// Prints everything in a format for programs. `unseen` are the sentences about limits that no test sees deny, each with
    /// its rules file.
    pub(super) fn print(&mut self, unseen: &[(String, String)]) -> io::Result<()> {
        let text = match self.format {
            Format::Text => return Ok(()),
            Format::Junit => junit::document(&self.all),
            Format::Tap => tap::document(&self.all, unseen),
            Format::Github => github::commands(&self.all, unseen),
        };
        self.out.write_all(text.as_bytes())
    }
}

/// Replaces the control characters that neither XML nor YAML can have.
fn printable(text: &str) -> String {
    let is_allowed = |character: char| matches!(character, '\t' | '\n') || !character.is_control();
    text.chars().map(|character| if is_allowed(character) { character } else { char::REPLACEMENT_CHARACTER }).collect()
}
