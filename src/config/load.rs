//! Loads the files together: `limits`, `overrides`, overrides in files of their own, and envoyproxy/ratelimit's files.

use std::rc::Rc;

use super::ignores::{self, Ignores};
use super::jwt::{self, Issuers};
use super::limit::{Draft, Limits};
use super::lints::overrides::DoubtfulOverrides;
use super::lints::{self, Lint, Subject};
use super::node::{Key, Node};
use super::numbers::Interner;
use super::plain_overrides;
use super::problem::{Findings, ReadResult, Report, ReportedError, quoted};
use super::words;
use super::yaml::{List, Reader, SeenKeys};
use super::{LoadResult, Source, Sources, review};
use super::{envoy_ratelimit, exempt};
use crate::engine::algorithms::micros::Micros;
use crate::engine::limit::exemptions::Exemption;
use crate::engine::limit::fingerprint::Fingerprinter;
use crate::engine::limit::rules::Rules;

/// The keys of a rules file.
pub(super) const KEYS: [&str; 6] = [jwt::KEY, "limits", "overrides", exempt::KEY, "tests", ignores::KEY];

/// The rules under construction.
pub(super) struct Loader {
    pub(super) limits: Limits,
    pub(super) issuers: Issuers,
    /// The value of `exempt`, which refers to limits and issuers.
    pub(super) exempt: Option<Node>,
    pub(super) interner: Interner,
    pub(super) fingerprinter: Fingerprinter,
    /// The wall clock, to warn of expired overrides.
    pub(super) now: Micros,
    /// The names of the rules file and the files of overrides.
    pub(super) files: Vec<String>,
    /// True if the lints look at the limits.
    pub(super) has_lints: bool,
    /// Overrides that the lints compare with all others once these are read, if they do.
    pub(super) doubtful: Option<DoubtfulOverrides>,
    /// False if the limits could not be read, so that any of them may have been meant by an override.
    pub(super) limits_are_known: bool,
}

/// Compiles all files into rules. There are rules if the report has no errors.
///
/// `effective_from` is the wall clock: the time at which the numbers take effect, and that `until` is compared with for a
/// warning.
pub fn load(sources: &Sources, fingerprinter: Fingerprinter, effective_from: Micros) -> LoadResult {
    compile(sources, fingerprinter, effective_from, None)
}

/// Compiles all files as [`load`] does, and looks at the limits with all lints. `untested` are the names of the limits that tests of
/// the rules file have not seen deny.
pub fn check(
    sources: &Sources,
    fingerprinter: Fingerprinter,
    effective_from: Micros,
    untested: &[String],
) -> LoadResult {
    compile(sources, fingerprinter, effective_from, Some(untested))
}

/// The lints look at the limits if the `untested` ones are known.
fn compile(
    sources: &Sources,
    fingerprinter: Fingerprinter,
    effective_from: Micros,
    untested: Option<&[String]>,
) -> LoadResult {
    let none = Source { name: String::new(), text: String::new() };
    let rules = sources.limits.as_ref().unwrap_or(&none);
    // Overrides refer to files by index. Index 0 is reserved for the rules file.
    let files = std::iter::once(rules).chain(&sources.overrides).map(|source| source.name.clone()).collect();
    let limits = Limits::with(&sources.named_files);
    let interner = Interner::default();
    let issuers = Issuers::default();
    let mut loader = Loader {
        limits,
        issuers,
        exempt: None,
        interner,
        fingerprinter,
        now: effective_from,
        files,
        has_lints: untested.is_some(),
        doubtful: untested.map(|_| DoubtfulOverrides::default()),
        limits_are_known: true,
    };
    let mut report = Report::default();

    let ignores = Rc::new(Ignores::of_file(&rules.text));
    let findings = Findings::with(&rules.name, &ignores);
    // A mistake that ends the reading of a file is among its findings.
    if sources.limits.is_some() && loader.rules_file(&rules.text, &findings).is_err() {
        loader.limits_are_known = false;
    }
    let mut files = Vec::new();
    for (source, file) in sources.overrides.iter().zip(1..) {
        let findings = Findings::with(&source.name, &ignores);
        let (Ok(()) | Err(ReportedError)) = loader.overrides_file(&source.text, file, &findings);
        files.push((findings, &source.text));
    }
    let exemptions = loader.resolve(&findings);
    loader.limits.finish();
    review::warn(&loader.limits, &findings, effective_from);
    let (domains, of_domains) = envoy_ratelimit::read(&sources.envoy_ratelimit, |name| Findings::with(name, &ignores));
    if let Some(untested) = untested {
        loader.lint(&findings, untested);
    }
    report.add(&findings, &rules.text);
    let mut others = Report::default();
    for (findings, text) in files {
        others.add(&findings, text);
    }
    others.join(of_domains);
    report.join(others);
    let not_compared = loader.doubtful.as_ref().map_or(0, |doubtful| doubtful.not_compared);
    let ignored = ignores.by_name(|limit| loader.limits.drafts[limit].limit.name.clone());

    let findings = Findings::new(&rules.name);
    loader.limits.report_needing_redis(&findings);
    let mut needs_redis = Report::default();
    needs_redis.add(&findings, &rules.text);
    let rules = (report.errors == 0).then(|| {
        let mut limits = loader.limits.drafts.into_iter().map(|draft| draft.limit).collect();
        let trees = envoy_ratelimit::limits::add(domains, &mut limits);
        let rules = Rules::new(limits, fingerprinter, effective_from, loader.files).with_trees(trees);
        rules.with_issuers(loader.issuers.sound).with_exemptions(exemptions)
    });
    LoadResult { rules, report, needs_redis, not_compared, ignored }
}

impl Loader {
    fn rules_file(&mut self, text: &str, findings: &Findings) -> ReadResult<()> {
        const SMALLEST: &str = "the smallest valid file is `limits: {}`";
        let mut reader = Reader::without_tabs(text, findings)?;
        reader.root("a rules file", List::Rejected, SMALLEST)?;
        let root = reader.place();
        let (mut has_limits, mut has_early_overrides, mut has_unknown_key) = (false, false, false);
        let mut seen = SeenKeys::default();
        while let Some(key) = reader.key()? {
            match key.text.as_str() {
                _ if !seen.is_new(&key) => reader.skip()?,
                "limits" => {
                    has_limits = true;
                    self.limits(&mut reader, &key)?;
                }
                jwt::KEY => {
                    let node = reader.node()?;
                    self.issuers = jwt::read(&node, self.limits.named_files(), &self.files[0]);
                }
                exempt::KEY => self.exempt = Some(reader.node()?),
                // It was read before the limits.
                ignores::KEY => {
                    let (Ok(_) | Err(ReportedError)) = reader.node().and_then(|node| ignores::read(&node));
                }
                "overrides" if has_limits => self.overrides(&mut reader, &key)?,
                "overrides" => {
                    has_early_overrides = true;
                    reader.skip()?;
                }
                // `weir test` and `weir check` read them. A mistake in a test must not keep a gateway from its rules.
                "tests" => reader.skip()?,
                _ => {
                    has_unknown_key = true;
                    let message = format!("unknown key {} in a rules file", quoted(&key.text));
                    key.error(message, words::help(&key.text, &KEYS));
                    reader.skip()?;
                }
            }
        }
        reader.end()?;
        self.limits_are_known = has_limits;
        // An unknown key may be a misspelling of it.
        if !has_limits && !has_unknown_key {
            findings.error(root, "the file has no `limits`", "add `limits:` with the limits below it, or `limits: {}`");
        }
        if has_early_overrides {
            // Overrides are checked against the limits, so those before the limits are read in a second pass.
            let mut reader = Reader::new(text, findings);
            reader.root("a rules file", List::Rejected, SMALLEST)?;
            if let Some(key) = reader.find("overrides")? {
                self.overrides(&mut reader, &key)?;
            }
        }
        Ok(())
    }

    /// Finds the issuers of claims, and the limits of the exemptions, which it returns.
    fn resolve(&mut self, findings: &Findings) -> Vec<Exemption> {
        let Self { limits, issuers, limits_are_known, .. } = self;
        for draft in &mut limits.drafts {
            jwt::resolve(&mut draft.limit, &draft.places, issuers, findings);
        }
        let known = exempt::Known { limits, issuers, has_all_limits: *limits_are_known };
        self.exempt.as_ref().map(|node| exempt::read(node, &known)).unwrap_or_default()
    }

    /// Reads the limits of a rules file and nothing else.
    pub(super) fn limits_alone(&mut self, text: &str, findings: &Findings) -> ReadResult<()> {
        let mut reader = Reader::without_tabs(text, findings)?;
        reader.root("a rules file", List::Rejected, "")?;
        match reader.find("limits")? {
            Some(key) => self.limits(&mut reader, &key),
            None => Ok(()),
        }
    }

    fn limits(&mut self, reader: &mut Reader<'_>, key: &Key) -> ReadResult<()> {
        let help = "write `Name: { count: 10, period: 1s }` below it, or `limits: {}`";
        reader.open("`limits`", Some(key), List::Rejected, help)?;
        while let Some(name) = reader.key()? {
            let node = reader.node()?;
            self.limits.add(name, &node, &mut self.interner);
        }
        self.limits.check_short_names();
        if self.limits.drafts.is_empty() {
            key.warning(Lint::NoLimits, "there are no limits: every request passes", "add one below `limits`");
        }
        Ok(())
    }

    /// Adds the findings of the lints about whole limits. They need limits without mistakes.
    fn lint(&self, findings: &Findings, untested: &[String]) {
        let is_sound = |draft: &Draft| draft.by_is_known && draft.numbers_are_known && draft.settings.is_some();
        let drafts = &self.limits.drafts;
        let ignores = findings.ignores();
        if drafts.iter().all(is_sound) {
            let subjects: Vec<_> =
                drafts.iter().map(|draft| Subject { limit: &draft.limit, places: &draft.places }).collect();
            for finding in lints::findings(&subjects) {
                ignores.enter(Some(finding.limit));
                findings.warning(finding.lint, finding.place, finding.message, finding.help);
            }
            for (limit, draft) in drafts.iter().enumerate().filter(|(_, draft)| untested.contains(&draft.limit.name)) {
                ignores.enter(Some(limit));
                let message = format!("no test sees {} deny", quoted(&draft.limit.name));
                findings.warning(Lint::UntestedLimit, draft.places.name, message, "add a test that does");
            }
            for one in self.doubtful.iter().flat_map(DoubtfulOverrides::iter) {
                ignores.enter(Some(one.limit));
                one.look(&subjects, self.fingerprinter);
            }
        }
        for (limit, lint, place) in ignores.unused() {
            ignores.enter(limit);
            let message = format!("`ignore_lints: [{}]` has nothing to silence", lint.name());
            findings.warning(Lint::UnusedIgnore, place, message, "remove it");
        }
        ignores.enter(None);
    }

    fn overrides_file(&mut self, text: &str, file: u16, findings: &Findings) -> ReadResult<()> {
        if let Some(entries) = plain_overrides::entries(text, findings) {
            entries.for_each(|(key, node)| self.override_entry(&key, &node, file));
            findings.ignores().enter(None);
            return Ok(());
        }
        let mut reader = Reader::without_tabs(text, findings)?;
        let is_list = reader.root("a file of overrides", List::Allowed, "the smallest valid file is `{}`")?;
        self.entries(&mut reader, is_list, file)?;
        reader.end()
    }

    fn overrides(&mut self, reader: &mut Reader<'_>, key: &Key) -> ReadResult<()> {
        let help = "write `overrides: {}` if there are none";
        let is_list = reader.open("`overrides`", Some(key), List::Allowed, help)?;
        self.entries(reader, is_list, 0)
    }

    /// Adds overrides one by one: of a million only one is a tree in memory.
    fn entries(&mut self, reader: &mut Reader<'_>, is_list: bool, file: u16) -> ReadResult<()> {
        if is_list {
            while reader.item()? {
                self.override_item(&reader.node()?, file);
            }
        } else {
            while let Some(key) = reader.key()? {
                self.override_entry(&key, &reader.node()?, file);
            }
        }
        reader.findings().ignores().enter(None);
        Ok(())
    }
}
