//! Loads the files together: `limits`, `overrides`, overrides in files of their own, and envoyproxy/ratelimit's files.

use std::collections::HashSet;
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
use super::teams::{RulesFile, prefix};
use super::words;
use super::yaml::{List, Reader, SeenKeys};
use super::{LoadResult, Sources, review};
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
    pub(super) exemptions: Vec<Exemption>,
    pub(super) interner: Interner,
    pub(super) fingerprinter: Fingerprinter,
    /// The wall clock, to warn of expired overrides.
    pub(super) now: Micros,
    /// The names of the rules files and the files of overrides.
    pub(super) files: Vec<String>,
    /// The number of the rules file that is read; `None` once all were.
    pub(super) file: Option<u16>,
    /// True if the rules files are those of a directory.
    pub(super) is_directory: bool,
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
    // Overrides and exemptions refer to files by number.
    let mut loader = Loader {
        is_directory: !sources.teams.is_empty(),
        has_lints: untested.is_some(),
        doubtful: untested.map(|_| DoubtfulOverrides::default()),
        ..Loader::new(sources.file_names().collect(), fingerprinter, effective_from)
    };
    let (mut files, mut others) = loader.read_all(sources);
    let of_rules = files.first().filter(|(file, _)| file.owner.is_none());
    let ignores = of_rules.map_or_else(Rc::default, |(_, findings)| Rc::clone(findings.shared_ignores()));
    let first = u16::try_from(loader.files.len() - sources.overrides.len()).unwrap_or(u16::MAX);
    let mut of_overrides = Vec::new();
    for (source, file) in sources.overrides.iter().zip(first..) {
        let findings = Findings::with(&source.name, &ignores);
        let (Ok(()) | Err(ReportedError)) = loader.overrides_file(&source.text, file, &findings);
        of_overrides.push((findings, source));
    }
    loader.limits.finish();
    review::warn(&loader.limits, effective_from);
    let (domains, of_domains) = envoy_ratelimit::read(&sources.envoy_ratelimit, |name| Findings::with(name, &ignores));
    if let Some(untested) = untested {
        loader.lint(files.iter().map(|(_, findings)| findings), untested);
    }
    let mut report = Report::default();
    let (mut needs_redis, mut ignored) = (Report::default(), HashSet::new());
    for (RulesFile { owner, source, .. }, findings) in files.drain(..) {
        report.add(&findings, &source.text);
        let of_file = owner.map(prefix).unwrap_or_default();
        ignored.extend(findings.ignores().by_name(&of_file, |limit| loader.limits.drafts[limit].limit.name.clone()));
        let findings = Findings::new(&source.name);
        loader.limits.report_needing_redis(owner, &findings);
        needs_redis.add(&findings, &source.text);
    }
    for (findings, source) in of_overrides {
        others.add(&findings, &source.text);
    }
    others.join(of_domains);
    report.join(others);
    let owners = sources.teams.iter().map(|file| (file.owner.clone(), false)).collect();
    let not_compared = loader.doubtful.as_ref().map_or(0, |doubtful| doubtful.not_compared);
    let rules = (report.errors == 0).then(|| {
        let mut limits = loader.limits.drafts.into_iter().map(|draft| draft.limit).collect();
        let trees = envoy_ratelimit::limits::add(domains, &mut limits);
        let rules = Rules::new(limits, fingerprinter, effective_from, loader.files).with_trees(trees);
        rules.with_issuers(loader.issuers.sound).with_exemptions(loader.exemptions)
    });
    LoadResult { rules, report, needs_redis, not_compared, held_back: Report::default(), owners, ignored }
}

impl Loader {
    /// Returns a loader that has read nothing. `files` are the names of all files.
    pub(super) fn new(files: Vec<String>, fingerprinter: Fingerprinter, now: Micros) -> Self {
        Self {
            limits: Limits::default(),
            issuers: Issuers::default(),
            exemptions: Vec::new(),
            interner: Interner::default(),
            fingerprinter,
            now,
            files,
            file: None,
            is_directory: false,
            has_lints: false,
            doubtful: None,
            limits_are_known: true,
        }
    }

    /// Reads the rules files. Returns them with their findings, and the problems of those that cannot be read.
    fn read_all<'s>(&mut self, sources: &'s Sources) -> (Vec<(RulesFile<'s>, Findings)>, Report) {
        let (mut files, mut unreadable) = (Vec::new(), Report::default());
        for (number, file) in (0..).zip(sources.rules_files()) {
            if let Some(problem) = file.problem {
                unreadable.join(Report::of(problem.clone()));
                self.limits_are_known = false;
                continue;
            }
            let findings = Findings::with(&file.source.name, &Rc::new(Ignores::of_file(&file.source.text)));
            self.file = Some(number);
            self.limits.enter(&file);
            // A mistake that ends the reading of a file is among its findings.
            if self.rules_file(&file.source.text, &findings).is_err() {
                self.limits_are_known = false;
            }
            files.push((file, findings));
        }
        self.limits.leave();
        self.file = None;
        (files, unreadable)
    }

    fn rules_file(&mut self, text: &str, findings: &Findings) -> ReadResult<()> {
        const SMALLEST: &str = "the smallest valid file is `limits: {}`";
        let mut reader = Reader::without_tabs(text, findings)?;
        reader.root("a rules file", List::Rejected, SMALLEST)?;
        let root = reader.place();
        let (mut has_limits, mut has_early_overrides, mut has_unknown_key) = (false, false, false);
        let (mut exempt, first) = (None, self.limits.drafts.len());
        let mut seen = SeenKeys::default();
        while let Some(key) = reader.key()? {
            match key.text.as_str() {
                _ if !seen.is_new(&key) => reader.skip()?,
                "limits" => {
                    has_limits = true;
                    self.limits(&mut reader, &key)?;
                }
                jwt::KEY if self.limits.is_of_team() => {
                    key.error("issuers of tokens are those of all teams", "move `jwt` to `base.yaml`");
                    reader.skip()?;
                }
                jwt::KEY => self.issuers = jwt::read(&reader.node()?, self.limits.named_files()),
                exempt::KEY => exempt = Some(reader.node()?),
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
        self.limits_are_known &= has_limits;
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
        self.resolve(first, exempt.as_ref(), findings);
        Ok(())
    }

    /// Finds the issuers of claims of the limits since `first`, and the limits of the exemptions.
    fn resolve(&mut self, first: usize, exempt: Option<&Node>, findings: &Findings) {
        let Self { limits, issuers, limits_are_known, file, .. } = self;
        for draft in limits.drafts.iter_mut().skip(first) {
            jwt::resolve(&mut draft.limit, &draft.places, issuers, findings);
        }
        let known =
            exempt::Known { limits, issuers, has_all_limits: *limits_are_known, file: file.unwrap_or_default() };
        self.exemptions.extend(exempt.into_iter().flat_map(|node| exempt::read(node, &known)));
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
        let first = self.limits.drafts.len();
        while let Some(name) = reader.key()? {
            let node = reader.node()?;
            self.limits.add(name, &node, &mut self.interner);
        }
        self.limits.check_short_names(first);
        if self.limits.drafts.is_empty() && !self.is_directory {
            key.warning(Lint::NoLimits, "there are no limits: every request passes", "add one below `limits`");
        }
        Ok(())
    }

    /// Adds the findings of the lints about whole limits. They need limits without mistakes.
    fn lint<'f>(&self, files: impl Iterator<Item = &'f Findings>, untested: &[String]) {
        let is_sound = |draft: &Draft| draft.by_is_known && draft.numbers_are_known && draft.settings.is_some();
        let drafts = &self.limits.drafts;
        // The findings of the file of a limit.
        let of = |limit: usize| {
            let findings = &drafts[limit].name.findings;
            findings.ignores().enter(Some(limit));
            findings
        };
        if drafts.iter().all(is_sound) {
            let exempt: HashSet<u32> = self.exemptions.iter().flat_map(|one| one.limits.iter().copied()).collect();
            let has_exemptions = |place: usize| u32::try_from(place).is_ok_and(|place| exempt.contains(&place));
            let subjects = drafts.iter().enumerate().map(|(place, draft)| Subject {
                limit: &draft.limit,
                places: &draft.places,
                has_exemptions: has_exemptions(place),
            });
            let subjects: Vec<_> = subjects.collect();
            for finding in lints::findings(&subjects) {
                of(finding.limit).warning(finding.lint, finding.place, finding.message, finding.help);
            }
            for (limit, draft) in drafts.iter().enumerate().filter(|(_, draft)| untested.contains(&draft.limit.name)) {
                let message = format!("no test sees {} deny", quoted(&draft.limit.name));
                of(limit).warning(Lint::UntestedLimit, draft.places.name, message, "add a test that does");
            }
            for one in self.doubtful.iter().flat_map(DoubtfulOverrides::iter) {
                of(one.limit);
                one.look(&subjects, self.fingerprinter);
            }
        }
        for findings in files {
            let ignores = findings.ignores();
            for (limit, lint, place) in ignores.unused() {
                ignores.enter(limit);
                let message = format!("`ignore_lints: [{}]` has nothing to silence", lint.name());
                findings.warning(Lint::UnusedIgnore, place, message, "remove it");
            }
            ignores.enter(None);
        }
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
        self.entries(reader, is_list, self.file.unwrap_or_default())
    }

    /// Returns true if a name in a file of overrides is that of a team's limit. The team may remove the limit without waiting for those
    /// who wrote the override.
    pub(super) fn may_have_gone(&self, name: &str) -> bool {
        self.is_directory && self.file.is_none() && name.contains('/')
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
