//! Compiles the files of the rules for this process. In a directory, a broken file gives way to its last good version.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::clock::Clock;
use crate::config::{
    Definitions, Files, Lint, LoadResult, OwnedFile, Problem, Report, Severity, Source, Sources, load,
};
use crate::engine::limit::Limit;
use crate::engine::limit::fingerprint::Fingerprinter;
use crate::engine::limit::live::OverrideReader;
use crate::engine::limit::rules::Rules;
use crate::engine::request::part::Part;
use crate::message::underscores::Underscores;

/// Compiles the files of the rules for this process. Clones share what is compiled ahead.
#[derive(Clone)]
pub struct Compiler {
    options: RulesOptions,
    pub(super) fingerprinter: Fingerprinter,
    pub(super) clock: Clock,
    /// The rules that a check of new overrides has compiled, for the reload that follows, and the hash of their files. A million overrides
    /// take seconds.
    pub(super) ahead: Arc<Mutex<Option<(u64, Settled)>>>,
    /// The last good files of a directory; `None` before the first start.
    last_good: Arc<Mutex<Option<Vec<OwnedFile>>>>,
}

/// The rules, and the files that they are of.
type Settled = (LoadResult, Sources);

/// Options of the rules in this process.
#[derive(Clone, Copy, Debug)]
pub struct RulesOptions {
    /// Count and report, but deny nothing.
    pub shadow: bool,
    /// The percentage from which requests of descriptors' limits count as near the limit.
    pub near_limit: Option<u8>,
    /// True if buckets live in Redis: queues and scripts need it.
    pub has_redis: bool,
    /// True if a proxy listener is open. The other listeners do not see requests end, so without it `concurrency` limits
    /// are an error.
    pub sees_ends: bool,
    /// The treatment of headers with underscores in their names.
    pub underscores: Underscores,
}

impl Compiler {
    pub fn new(options: RulesOptions, fingerprinter: Fingerprinter, clock: Clock) -> Self {
        Self { options, fingerprinter, clock, ahead: Arc::default(), last_good: Arc::default() }
    }

    /// Checks overrides from `url` with the other files, and keeps the rules for the reload that follows. The error has the mistakes.
    pub fn check_overrides(&self, files: &Files, url: &str, text: String) -> Result<(), Report> {
        let mut sources = files.read().map_err(Report::of)?;
        sources.set_overrides(url, text);
        self.settle_ahead(sources)
    }

    /// Checks pushed rules with the files, and keeps both for the reload that follows. The error has the mistakes.
    pub fn check_pushed(&self, files: &Files, pushed: Vec<Source>) -> Result<(), Report> {
        self.settle_ahead(files.read_with(pushed.clone()).map_err(Report::of)?)?;
        files.pushed.set(pushed);
        Ok(())
    }

    /// Compiles the files, and keeps the rules for the reload that follows.
    fn settle_ahead(&self, sources: Sources) -> Result<(), Report> {
        let hash = hash(&sources);
        let settled = self.settle(sources);
        if settled.0.rules.is_none() {
            return Err(settled.0.report);
        }
        *self.ahead.lock() = Some((hash, settled));
        Ok(())
    }

    /// Compiles the files, unless they were compiled ahead. What was compiled of others is dropped first.
    pub(super) fn compile(&self, sources: Sources) -> Settled {
        let ahead = self.ahead.lock().take();
        let (loaded, sources) = match ahead.filter(|(of, _)| *of == hash(&sources)) {
            Some((_, settled)) => settled,
            None => self.settle(sources),
        };
        if loaded.rules.is_some() {
            *self.last_good.lock() = Some(sources.teams.clone());
        }
        (loaded, sources)
    }

    /// Compiles the files. Once there are rules, a file of a directory with which there would be none gives way to its last good version,
    /// or is left out: it has mistakes itself, or others do not fit what it has changed.
    pub(super) fn settle(&self, sources: Sources) -> Settled {
        let compile = |sources: &Sources| compile(sources, self.options, self.fingerprinter, &self.clock);
        let mut loaded = compile(&sources);
        let last_good = self.last_good.lock();
        let Some(last_good) = last_good.as_ref().filter(|_| loaded.rules.is_none()) else { return (loaded, sources) };
        let mut held_back = std::mem::take(&mut loaded.report);
        held_back.problems.retain(|problem| problem.severity == Severity::Error);
        held_back.warnings = 0;
        let has_mistakes = |file: &OwnedFile| held_back.problems.iter().any(|it| it.file == file.source.name);
        let mut doubtful: Vec<bool> =
            sources.teams.iter().map(|file| has_mistakes(file) || !last_good.contains(file)).collect();
        let without = |doubtful: &[bool]| {
            let good = |file: &OwnedFile| last_good.iter().find(|good| good.source.name == file.source.name).cloned();
            let files = sources.teams.iter().zip(doubtful);
            let teams = files.filter_map(|(file, doubtful)| if *doubtful { good(file) } else { Some(file.clone()) });
            Sources { teams: teams.collect(), ..sources.clone() }
        };
        let owners = |broken: &dyn Fn(usize, &OwnedFile) -> bool| {
            let files = sources.teams.iter().enumerate();
            files.map(|(place, file)| (file.owner.clone(), broken(place, file))).collect()
        };
        let mut settled = without(&doubtful);
        let mut loaded = compile(&settled);
        if loaded.rules.is_none() {
            let owners = owners(&|_, file| has_mistakes(file));
            let mut broken = LoadResult::broken(held_back);
            broken.owners = owners;
            return (broken, sources);
        }
        let mut is_progress = true;
        // A file may fit only once a later one has changed, too.
        while std::mem::take(&mut is_progress) {
            for place in 0..doubtful.len() {
                if std::mem::replace(&mut doubtful[place], false) {
                    let tried = without(&doubtful);
                    let with_it = compile(&tried);
                    if with_it.rules.is_some() {
                        (loaded, settled, is_progress) = (with_it, tried, true);
                    } else {
                        doubtful[place] = true;
                    }
                }
            }
        }
        loaded.owners = owners(&|place, _| doubtful.get(place).copied().unwrap_or_default());
        loaded.held_back = held_back;
        (loaded, settled)
    }

    /// The owners of the files in force, of a directory.
    pub(super) fn owners(&self) -> Vec<String> {
        self.last_good.lock().iter().flatten().map(|file| file.owner.clone()).collect()
    }
}

/// An attacker who controls both texts can write any overrides anyway, so a collision gains nothing.
fn hash(sources: &Sources) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(sources)
}

pub(super) fn override_reader(sources: &Sources, fingerprinter: Fingerprinter) -> OverrideReader {
    let definitions = Definitions::new(sources, fingerprinter);
    Arc::new(move |texts, now| definitions.read(texts, now))
}

pub(super) fn compile(
    sources: &Sources,
    options: RulesOptions,
    fingerprinter: Fingerprinter,
    clock: &Clock,
) -> LoadResult {
    within(load(sources, fingerprinter, clock.now()), sources, options)
}

/// Adds the problems that rules have in this process.
pub(super) fn within(loaded: LoadResult, sources: &Sources, options: RulesOptions) -> LoadResult {
    let mut loaded = if options.has_redis { loaded } else { loaded.in_memory() };
    let (mut rules, mut report) = (loaded.rules.take(), std::mem::take(&mut loaded.report));
    let file = |limit: &Limit| sources.file_of(limit.owner.as_deref());
    let limits = || rules.iter().flat_map(Rules::limits);
    let unseen: Vec<Problem> = limits().filter(|limit| !options.sees_ends && limit.counts_in_flight()).map(|limit| {
        let message = format!(
            "`{}` counts requests in flight, which needs the proxy (`--upstream`): other listeners do not see when a request ends",
            limit.name
        );
        let help = "open the proxy with `--upstream`, or limit by a rate";
        Problem::of_file(file(limit), message, help)
    }).collect();
    if !unseen.is_empty() {
        report.errors += unseen.len();
        report.problems.splice(0..0, unseen);
        rules = None;
    } else if options.underscores != Underscores::Keep {
        let unread = limits().filter(|limit| !loaded.ignores(limit, Lint::UnderscoreHeader));
        let unread: Vec<Problem> = unread.filter_map(|limit| underscored(limit, file(limit))).collect();
        let before = report.problems.len();
        report.problems.extend(unread);
        report.warnings += report.problems.len() - before;
    }
    let rules = if options.shadow { rules.map(Rules::in_shadow) } else { rules };
    loaded.rules = match options.near_limit {
        Some(percent) => rules.map(|rules| rules.counting_near(percent)),
        None => rules,
    };
    loaded.report = report;
    loaded
}

/// Warns of a limit that reads a header with an underscore in its name: such headers never reach the rules.
fn underscored(limit: &Limit, file: &str) -> Option<Problem> {
    let name = limit.parts().find_map(|(_, part)| match part {
        Part::Header(name) if name.as_str().contains('_') => Some(name),
        _ => None,
    })?;
    let message = format!("`{}` reads `{name}`, but headers with underscores never reach the rules", limit.name);
    let help = "use hyphens in the header's name, or start with `--underscores keep`";
    let lint = Some(Lint::UnderscoreHeader);
    Some(Problem { severity: Severity::Warning, lint, ..Problem::of_file(file, message, help) })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn files_that_change_together_are_in_force_together_beside_a_broken_one() {
        let directory = tempfile::tempdir().unwrap();
        let write = |texts: [&str; 3]| {
            for (name, text) in ["base", "payments", "search"].iter().zip(texts) {
                fs::write(directory.path().join(format!("{name}.yaml")), text).unwrap();
            }
        };
        let options = RulesOptions {
            shadow: false,
            near_limit: None,
            has_redis: false,
            sees_ends: true,
            underscores: Underscores::Drop,
        };
        let compiler = Compiler::new(options, Fingerprinter::new((1, 2)), Clock::machine());
        let files = Files { limits: Some(directory.path().to_owned()), ..Files::default() };
        let compiled = || {
            let (loaded, _) = compiler.compile(files.read().unwrap());
            assert!(loaded.rules.is_some(), "{}", loaded.report);
            loaded.owners.into_iter().map(|(_, is_held_back)| is_held_back).collect::<Vec<_>>()
        };
        let issuer = "jwt: { main: { issuer: 'https://a.example', audiences: [api], jwks_url: 'https://a.example/keys' } }\nlimits: {}";
        let limit = |by: &str| format!("limits: {{ L: {{ by: {by}, count: 5, period: 1s }} }}");
        write([issuer, &limit("{ claim: sub }"), &limit("ip")]);
        assert_eq!(compiled(), [false; 3]);
        // The issuer can go only once no limit uses it.
        write(["limits: {}", &limit("ip"), "limits: ["]);
        assert_eq!(compiled(), [false, false, true]);
        write(["limits: {}", &limit("{ claim: sub }"), &limit("ip")]);
        assert_eq!(compiled(), [false, true, false]);
    }
}
