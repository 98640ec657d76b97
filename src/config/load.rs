//! The files as a whole: `limits`, `overrides`, and what they make together.

use super::envoy_ratelimit::Domains;
use super::limit::Limits;
use super::numbers::Interner;
use super::overrides::Reading;
use super::problem::{Findings, Place, Report, Reported, quoted};
use super::suggest::did_you_mean;
use super::yaml::{Opened, Reader, Seen};
use super::{Loaded, Sources};
use crate::engine::algorithms::micros::Micros;
use crate::engine::rules::fingerprint::Fingerprinter;
use crate::engine::rules::rule_set::Rules;

/// The keys of a rules file.
pub(super) const KEYS: [&str; 2] = ["limits", "overrides"];

/// The rules under construction.
struct Loader {
    limits: Limits,
    interner: Interner,
    fingerprinter: Fingerprinter,
    effective_from: Micros,
    files: Vec<String>,
}

/// Makes rules of all files together. Everything that is wrong with any of them is in the report; there are rules if none
/// of it is an error.
///
/// `effective_from` is the wall clock: when the numbers take effect, and what `until` is compared with for a warning.
pub fn load(sources: &Sources, fingerprinter: Fingerprinter, effective_from: Micros) -> Loaded {
    // Overrides name the files that they stand in: that of the limits has the number 0, whether or not there is one.
    let limits_name = sources.limits.as_ref().map_or("", |source| source.name.as_str());
    let overrides_names = sources.overrides.iter().map(|source| source.name.as_str());
    let files = std::iter::once(limits_name).chain(overrides_names).map(str::to_owned).collect();
    let mut loader = Loader {
        limits: Limits::with(&sources.scripts),
        interner: Interner::default(),
        fingerprinter,
        effective_from,
        files,
    };
    let mut findings = Findings::new(limits_name);
    // A text that cannot be read to its end has its complaint among the findings, like everything else.
    if let Some(limits) = &sources.limits {
        let (Ok(()) | Err(Reported)) = loader.rules_file(&limits.text, &mut findings);
    }
    let mut others = Vec::with_capacity(sources.overrides.len() + sources.envoy_ratelimit.len());
    for (source, file) in sources.overrides.iter().zip(1..) {
        let mut findings = Findings::new(&source.name);
        let (Ok(()) | Err(Reported)) = loader.overrides_file(&source.text, file, &mut findings);
        others.push(findings);
    }
    loader.finish(&mut findings);
    let mut domains = Domains::after(loader.limits.drafts.len());
    for source in &sources.envoy_ratelimit {
        let mut findings = Findings::new(&source.name);
        let (Ok(()) | Err(Reported)) = domains.add(&source.name, &source.text, &mut findings);
        others.push(findings);
    }

    let mut report = Report::default();
    report.add(findings, sources.limits.as_ref().map_or("", |source| source.text.as_str()));
    for (findings, source) in others.into_iter().zip(sources.overrides.iter().chain(&sources.envoy_ratelimit)) {
        report.add(findings, &source.text);
    }
    let mut needs_redis = Report::default();
    let mut findings = Findings::new(limits_name);
    loader.limits.report_needing_redis(&mut findings);
    needs_redis.add(findings, sources.limits.as_ref().map_or("", |source| source.text.as_str()));
    let rules = (report.errors == 0).then(|| {
        let drafts = loader.limits.drafts.into_iter().map(|draft| draft.limit);
        let (of_domains, trees) = domains.into_parts();
        let limits = drafts.chain(of_domains).collect();
        Rules::new(limits, fingerprinter, effective_from, loader.files).with_trees(trees)
    });
    Loaded { rules, report, needs_redis }
}

impl Loader {
    fn rules_file(&mut self, text: &str, findings: &mut Findings) -> Result<(), Reported> {
        Reader::refuse_tabs(text, findings)?;
        let mut reader = Reader::new(text);
        let root = match reader.root(findings)? {
            Opened::Map(place) => place,
            other => return Err(refuse_root(&other, "a rules file", "limits: {}", findings)),
        };
        let (mut has_limits, mut postponed) = (false, false);
        let mut seen = Seen::default();
        while let Some(key) = reader.key(findings)? {
            match key.text.as_str() {
                _ if !seen.is_new(&key, findings) => reader.skip(findings)?,
                "limits" => {
                    has_limits = true;
                    self.limits(&mut reader, key.place, findings)?;
                }
                "overrides" if has_limits => self.overrides(&mut reader, key.place, 0, findings)?,
                "overrides" => {
                    postponed = true;
                    reader.skip(findings)?;
                }
                _ => {
                    let message = format!("unknown key {} in a rules file", quoted(&key.text));
                    findings.error(key.place, message, did_you_mean(&key.text, KEYS));
                    reader.skip(findings)?;
                }
            }
        }
        reader.end(findings)?;
        if !has_limits {
            findings.error(root, "the file has no `limits`", "add `limits:` with the limits below it, or `limits: {}`");
        }
        if postponed { self.overrides_before_limits(text, findings) } else { Ok(()) }
    }

    /// Reads the text a second time where the overrides stand before the limits that they are checked against.
    fn overrides_before_limits(&mut self, text: &str, findings: &mut Findings) -> Result<(), Reported> {
        let mut reader = Reader::new(text);
        reader.root(findings)?;
        while let Some(key) = reader.key(findings)? {
            if key.text == "overrides" {
                return self.overrides(&mut reader, key.place, 0, findings);
            }
            reader.skip(findings)?;
        }
        Ok(())
    }

    fn limits(&mut self, reader: &mut Reader<'_>, place: Place, findings: &mut Findings) -> Result<(), Reported> {
        match reader.open(findings)? {
            Opened::Map(_) => {}
            other => {
                let what = if let Opened::Scalar(node) = &other { node.kind() } else { "a list" };
                let help = "write `Name: { count: 10, period: 1s }` below it, or `limits: {}`";
                return Err(findings.error(place, format!("`limits` must be a map, found {what}"), help));
            }
        }
        while let Some(key) = reader.key(findings)? {
            let node = reader.node(findings)?;
            self.limits.add(&key, &node, &mut self.interner, findings);
        }
        self.limits.check(findings);
        if self.limits.drafts.is_empty() {
            findings.warning(place, "there are no limits: every request passes", "");
        }
        Ok(())
    }

    fn overrides_file(&mut self, text: &str, file: u16, findings: &mut Findings) -> Result<(), Reported> {
        Reader::refuse_tabs(text, findings)?;
        let mut reader = Reader::new(text);
        let root = reader.root(findings)?;
        if !matches!(root, Opened::Map(_) | Opened::List(_)) {
            return Err(refuse_root(&root, "a file of overrides", "{}", findings));
        }
        self.entries(&mut reader, &root, file, findings)?;
        reader.end(findings)
    }

    fn overrides(
        &mut self,
        reader: &mut Reader<'_>,
        place: Place,
        file: u16,
        findings: &mut Findings,
    ) -> Result<(), Reported> {
        let opened = reader.open(findings)?;
        if !matches!(opened, Opened::Map(_) | Opened::List(_)) {
            findings.error(place, "`overrides` must be a map or a list", "write `overrides: {}` if there are none");
            return Ok(());
        }
        self.entries(reader, &opened, file, findings)
    }

    /// Adds the entries one by one: of a million only one is a tree in memory.
    fn entries(
        &mut self,
        reader: &mut Reader<'_>,
        opened: &Opened,
        file: u16,
        findings: &mut Findings,
    ) -> Result<(), Reported> {
        let mut reading = Reading {
            limits: &mut self.limits,
            interner: &mut self.interner,
            fingerprinter: self.fingerprinter,
            now: self.effective_from,
            files: &self.files,
            file,
        };
        if matches!(opened, Opened::List(_)) {
            while reader.item(findings)? {
                let node = reader.node(findings)?;
                reading.item(&node, findings);
            }
        } else {
            while let Some(key) = reader.key(findings)? {
                let node = reader.node(findings)?;
                reading.entry(&key, &node, findings);
            }
        }
        Ok(())
    }

    fn finish(&mut self, findings: &mut Findings) {
        self.limits.warn_of_idle(findings);
        for draft in &mut self.limits.drafts {
            if let Err(error) = draft.limit.overrides.finish() {
                let message = format!("the regular expressions for {} are too large", quoted(&draft.limit.name));
                findings.error(draft.place, message, error.to_string());
            }
        }
    }
}

fn refuse_root(root: &Opened, what: &str, smallest: &str, findings: &mut Findings) -> Reported {
    let help = format!("the smallest valid file is `{smallest}`");
    match root {
        Opened::Scalar(node) => {
            findings.error(node.place, format!("{what} must be a map, found {}", node.kind()), help)
        }
        Opened::List(place) => findings.error(*place, format!("{what} must be a map, found a list"), help),
        Opened::Nothing | Opened::Map(_) => {
            let place = Place { line: 1, column: 1, width: 1 };
            findings.error(place, "the file is empty", help)
        }
    }
}
