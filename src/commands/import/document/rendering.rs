//! The text of the document, with the linter's findings about it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::super::text::{comment, quoted};
use super::entry::{ImportState, block, entry};
use super::{Document, WrittenLimit, checked};
use crate::commands::colors::Palette;
use crate::commands::print::joined;
use crate::commands::test::{self, TestedFile};
use crate::config::{self, Lint, Source, Sources};
use crate::engine::algorithms::micros::Micros;
use crate::engine::limit::fingerprint::Fingerprinter;

/// The key for findings of the linter that are intended.
const IGNORES: &str = "ignore_lints";

/// The document as text.
struct Rendered {
    text: String,
    /// The line at which each limit begins.
    limits: Vec<usize>,
    /// The lines at which tests begin, and which these are.
    tests: Vec<(usize, usize)>,
}

impl Document {
    /// The text of the file. The error is that of our own loader.
    ///
    /// The linter's findings about limits as they were are silenced, so that those about later changes are seen.
    pub(in super::super) fn text(&mut self) -> Result<String, String> {
        let Rendered { mut text, mut limits, tests } = self.render();
        checked(&text)?;
        if self.tests.is_empty() {
            return Ok(text);
        }
        // Where other limits deny a test's requests before its own does, nothing can be tested.
        let mut failed: Vec<usize> = Vec::new();
        let mut result = tested(&text)?;
        for line in result.failures.iter().filter_map(|problem| problem.place).map(|place| place.line as usize) {
            failed.extend(tests.iter().rfind(|(begin, _)| *begin <= line).map(|(_, test)| *test));
        }
        if !failed.is_empty() {
            let names: BTreeSet<&str> =
                failed.iter().filter_map(|test| self.tests.get(*test)).map(|test| self.name_of(test.limit)).collect();
            let told = "other limits deny the requests of their tests before they do";
            let told = format!("These limits have no test of all their numbers, as {told}: {}.", joined(names, ", "));
            self.head(told);
            let mut place = 0..;
            self.tests.retain(|_| !place.next().is_some_and(|place| failed.contains(&place)));
            let rendered = self.render();
            (text, limits) = (rendered.text, rendered.limits);
            result = tested(&text)?;
        }
        // A report keeps only the first warnings, so that each round silences those.
        let mut silenced: BTreeMap<usize, BTreeSet<&'static str>> = BTreeMap::new();
        loop {
            let mut is_new = false;
            for (line, lint) in lints(&text, &result.unseen) {
                if lint == Lint::ClaimableExemption {
                    is_new |= !self.has_claimable_exemptions;
                    self.has_claimable_exemptions = true;
                    continue;
                }
                let Some(limit) = limits.iter().rposition(|begin| *begin <= line) else { continue };
                let is_first = silenced.entry(limit).or_default().insert(lint.name());
                is_new |= is_first;
                let limit = self.limits.get_mut(limit).filter(|_| is_first && lint == Lint::NeverMatches);
                if let Some(WrittenLimit { limit, .. }) = limit {
                    limit.notes.push(limit.origin.note("no request meets these conditions: others take them all."));
                }
            }
            if !is_new {
                return Ok(text);
            }
            for (limit, lints) in &silenced {
                let Some(limit) = self.limits.get_mut(*limit) else { continue };
                limit.limit.fields.retain(|(key, _)| *key != IGNORES);
                limit.limit.fields.push((IGNORES, format!("[{}]", joined(lints, ", "))));
            }
            let rendered = self.render();
            (text, limits) = (rendered.text, rendered.limits);
        }
    }

    fn render(&self) -> Rendered {
        let mut out = String::new();
        let (mut places, mut of_tests) = (Vec::new(), Vec::new());
        for (place, text) in self.head.iter().enumerate() {
            if place > 0 {
                out.push_str("#\n");
            }
            comment(0, text, &mut out);
        }
        out.push('\n');
        let is_empty = self.limits.iter().all(|limit| limit.state != ImportState::Written);
        out.push_str(if is_empty { "limits: {}\n" } else { "limits:\n" });
        for (place, limit) in self.limits.iter().enumerate() {
            if place > 0 {
                out.push('\n');
            }
            places.push(out.lines().count() + 1);
            if let Some(source) = &limit.limit.source {
                comment(2, source, &mut out);
            }
            entry(&limit.limit.notes, &limit.state, &block(&limit.name, &limit.limit), &mut out);
        }
        let written = || self.overrides.iter().filter(|(_, state)| *state == ImportState::Written);
        if !self.overrides.is_empty() {
            out.push('\n');
        }
        if written().next().is_some() {
            out.push_str("overrides:\n");
        }
        // A map needs an id in each key; a list does not.
        let in_list = written().any(|(given, _)| given.key(self.name_of(given.limit)).is_none());
        for (given, state) in &self.overrides {
            entry(&given.notes, state, &given.text(self.name_of(given.limit), in_list), &mut out);
        }
        self.render_exemptions(&mut out);
        for (place, test) in self.tests.iter().enumerate().filter(|(_, test)| self.is_written(test.limit)) {
            out.push_str(if of_tests.is_empty() { "\ntests:\n" } else { "" });
            of_tests.push((out.lines().count() + 1, place));
            let _ = writeln!(out, "  {}:", quoted(&test.title));
            for step in &test.steps {
                let _ = writeln!(out, "    - {}", step.replace('\0', self.name_of(test.limit)));
            }
        }
        Rendered { text: out, limits: places, tests: of_tests }
    }
}

impl Document {
    /// Writes the exemptions, those from the same limits next to each other.
    fn render_exemptions(&self, out: &mut String) {
        if self.exemptions.is_empty() {
            return;
        }
        out.push('\n');
        comment(0, "What these limits do not count in the other gateway, and their `match` cannot except.", out);
        out.push_str("exempt:\n");
        let mut exemptions: Vec<_> = self.exemptions.iter().map(|(conditions, limits)| (limits, conditions)).collect();
        exemptions.sort();
        for (limits, conditions) in exemptions {
            let names = joined(limits.iter().map(|limit| self.name_of(*limit)), ", ");
            let _ = writeln!(out, "  - {{ match: {conditions}, limits: [{names}] }}");
        }
        if self.has_claimable_exemptions {
            let _ = writeln!(out, "\n{IGNORES}: [{}]", Lint::ClaimableExemption.name());
        }
    }
}

/// Runs the tests of a rules file.
fn tested(text: &str) -> Result<TestedFile, String> {
    test::run_in_memory(&sources(text), &mut std::io::sink(), Palette::default())
        .map_err(|failure| format!("{failure:?}"))
}

/// The linter's warnings about a rules file, with their lines. `unseen` are the limits that no test sees deny.
fn lints(text: &str, unseen: &[String]) -> Vec<(usize, Lint)> {
    let loaded = config::check(&sources(text), Fingerprinter::new((0, 0)), Micros(0), unseen);
    let warnings = loaded.report.problems.iter();
    warnings.filter_map(|problem| Some((problem.place?.line as usize, problem.lint?))).collect()
}

pub(super) fn sources(text: &str) -> Sources {
    let limits = Source { name: "the rules".to_owned(), text: text.to_owned() };
    Sources { limits: Some(limits), ..Sources::default() }
}
