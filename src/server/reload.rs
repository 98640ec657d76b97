//! Reloads the rules when their files change.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::clock::Clock;
use crate::config::{
    self, Change, Definitions, Files, Lint, LoadResult, PollMode, Problem, Report, Severity, Sources, Watcher, load,
};
use crate::engine::algorithms::micros::Micros;
use crate::engine::limit::Limit;
use crate::engine::limit::fingerprint::Fingerprinter;
use crate::engine::limit::live::OverrideReader;
use crate::engine::limit::rules::Rules;
use crate::engine::request::part::Part;
use crate::limiter::Shared;
use crate::message::underscores::Underscores;

/// Watches the rules files. Its calls block, so it runs on a thread of its own.
pub struct Reloader {
    watcher: Watcher,
    compiler: Compiler,
    /// The dates of reviews until then are logged, or among the warnings about the rules.
    reviewed: Micros,
    /// Reads live overrides by the files that were read first, until it is taken.
    reader: Option<OverrideReader>,
}

/// Compiles the files of the rules for this process. Clones share what is compiled ahead.
#[derive(Clone)]
pub struct Compiler {
    options: RulesOptions,
    fingerprinter: Fingerprinter,
    clock: Clock,
    /// The rules that a check of new overrides has compiled, for the reload that follows, and the hash of their files. A million overrides
    /// take seconds.
    ahead: Arc<Mutex<Option<(u64, LoadResult)>>>,
}

/// Options of the rules in this process.
#[derive(Clone, Copy, Debug)]
pub struct RulesOptions {
    /// Count and report, but deny nothing.
    pub shadow: bool,
    /// True if buckets live in Redis: queues and scripts need it.
    pub has_redis: bool,
    /// True if a proxy listener is open. The other listeners do not see requests end, so without it `concurrency` limits
    /// are an error.
    pub sees_ends: bool,
    /// The treatment of headers with underscores in their names.
    pub underscores: Underscores,
}

/// The result of a reload.
#[derive(Debug)]
pub enum ReloadResult {
    Unchanged,
    Replaced,
    /// The files are broken or unreadable; the last good rules stay in force.
    Broken(Report),
}

impl Reloader {
    /// Reads the files for the first time. If they are broken, [`LoadResult::rules`] is `None`.
    pub fn start(files: Files, compiler: Compiler) -> (Self, LoadResult) {
        let mut watcher = Watcher::new(files);
        let mut reader = None;
        let loaded = match watcher.poll(PollMode::Always) {
            Change::New(sources) => {
                reader = Some(override_reader(&sources, compiler.fingerprinter));
                compiler.compile(&sources)
            }
            Change::Unreadable(problem) => LoadResult::broken(Report::of(problem)),
            Change::Same => LoadResult::broken(Report::default()),
        };
        let reviewed = loaded.rules.as_ref().map_or(Micros(0), |rules| rules.effective_from);
        (Self { watcher, compiler, reviewed, reader }, loaded)
    }

    /// Gives up how live overrides are read by the files that were read first.
    pub fn take_override_reader(&mut self) -> Option<OverrideReader> {
        self.reader.take()
    }

    /// Puts changed files in force. With [`PollMode::Always`], files are read even if they seem unchanged.
    ///
    /// A broken file changes nothing. It is counted and logged once, and reported until it is fixed.
    pub fn reload(&mut self, shared: &Shared, mode: PollMode) -> ReloadResult {
        for (limit, day) in self.reviews_due(shared) {
            tracing::warn!(
                "the review date of the limit `{limit}`, {day}, has passed: review it, then move `review_by` or remove it"
            );
        }
        let mut reader = None;
        let loaded = match self.watcher.poll(mode) {
            Change::Same => return ReloadResult::Unchanged,
            Change::New(sources) => {
                reader = Some(override_reader(&sources, self.compiler.fingerprinter));
                self.compiler.compile(&sources)
            }
            Change::Unreadable(problem) => LoadResult::broken(Report::of(problem)),
        };
        let Some(rules) = loaded.rules else {
            shared.metrics().server.reloaded(false);
            tracing::error!("the rules are broken, the last good ones stay in force:\n{}", loaded.report);
            return ReloadResult::Broken(loaded.report);
        };
        log_warnings(&loaded.report);
        tracing::info!(limits = rules.limits().len(), "new rules are in force");
        self.reviewed = rules.effective_from;
        shared.replace(rules, reader);
        shared.metrics().server.reloaded(true);
        shared.metrics().server.reload_timestamp.set(seconds(&self.compiler.clock));
        ReloadResult::Replaced
    }
}

impl Reloader {
    /// Returns the limits whose review date has passed since this was last asked, each once.
    fn reviews_due(&mut self, shared: &Shared) -> Vec<(String, String)> {
        let now = self.compiler.clock.now();
        shared.reviews_due(std::mem::replace(&mut self.reviewed, now), now)
    }
}

/// Logs the warnings about rules that have no errors.
pub fn log_warnings(report: &Report) {
    if report.warnings > 0 {
        tracing::warn!("the rules have warnings:\n{report}");
    }
}

/// Reads and compiles the files as [`Reloader::start`] does, and looks at the limits with all lints.
pub fn check(files: &Files, options: RulesOptions, clock: &Clock) -> LoadResult {
    match files.read() {
        // These rules serve no requests, so the hash needs no secret.
        Ok(sources) => {
            let loaded = config::check(&sources, Fingerprinter::new((0, 0)), clock.now(), &[]);
            within(loaded, &sources, options)
        }
        Err(problem) => LoadResult::broken(Report::of(problem)),
    }
}

impl Compiler {
    pub fn new(options: RulesOptions, fingerprinter: Fingerprinter, clock: Clock) -> Self {
        Self { options, fingerprinter, clock, ahead: Arc::default() }
    }

    /// Checks overrides from `url` with the other files, and keeps the rules for the reload that follows. The error has the mistakes.
    pub fn check_overrides(&self, files: &Files, url: &str, text: String) -> Result<(), Report> {
        let mut sources = files.read().map_err(Report::of)?;
        sources.set_overrides(url, text);
        let loaded = compile(&sources, self.options, self.fingerprinter, &self.clock);
        if loaded.rules.is_none() {
            return Err(loaded.report);
        }
        *self.ahead.lock() = Some((hash(&sources), loaded));
        Ok(())
    }

    /// Compiles the files, unless they were compiled ahead. What was compiled of others is dropped first.
    fn compile(&self, sources: &Sources) -> LoadResult {
        let ahead = self.ahead.lock().take();
        match ahead.filter(|(of, _)| *of == hash(sources)) {
            Some((_, loaded)) => loaded,
            None => compile(sources, self.options, self.fingerprinter, &self.clock),
        }
    }
}

/// An attacker who controls both texts can write any overrides anyway, so a collision gains nothing.
fn hash(sources: &Sources) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(sources)
}

fn override_reader(sources: &Sources, fingerprinter: Fingerprinter) -> OverrideReader {
    let definitions = Definitions::new(sources, fingerprinter);
    Arc::new(move |texts, now| definitions.read(texts, now))
}

fn compile(sources: &Sources, options: RulesOptions, fingerprinter: Fingerprinter, clock: &Clock) -> LoadResult {
    within(load(sources, fingerprinter, clock.now()), sources, options)
}

/// Adds the problems that rules have in this process.
fn within(loaded: LoadResult, sources: &Sources, options: RulesOptions) -> LoadResult {
    let mut loaded = if options.has_redis { loaded } else { loaded.in_memory() };
    let (mut rules, mut report) = (loaded.rules.take(), std::mem::take(&mut loaded.report));
    let file = sources.limits.as_ref().map_or("", |source| &source.name);
    let unseen = rules.iter().flat_map(Rules::limits).find(|limit| !options.sees_ends && limit.counts_in_flight());
    if let Some(limit) = unseen {
        let message = format!(
            "`{}` counts requests in flight, which needs the proxy (`--upstream`): other listeners do not see when a request ends",
            limit.name
        );
        let help = "open the proxy with `--upstream`, or limit by a rate";
        report.problems.insert(0, Problem::of_file(file, message, help));
        report.errors += 1;
        rules = None;
    } else if options.underscores != Underscores::Keep {
        let unread =
            rules.iter().flat_map(Rules::limits).filter(|limit| !loaded.ignores(&limit.name, Lint::UnderscoreHeader));
        let unread = unread.filter_map(|limit| underscored(limit, file));
        let before = report.problems.len();
        report.problems.extend(unread);
        report.warnings += report.problems.len() - before;
    }
    loaded.rules = if options.shadow { rules.map(Rules::in_shadow) } else { rules };
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

/// Returns the wall time in seconds since the Unix epoch.
pub fn seconds(clock: &Clock) -> i64 {
    i64::try_from(clock.now().0 / 1_000_000).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::config::{OverridesCopy, Source};
    use crate::store::memory::MemoryStore;
    use crate::telemetry::metrics::Metrics;

    const IN_FLIGHT: &str = "limits: { One: { algorithm: concurrency, capacity: 1 } }";
    const RATE: &str = "limits: { One: { count: 1, period: 1s } }";

    const OPTIONS: RulesOptions =
        RulesOptions { shadow: false, has_redis: false, sees_ends: true, underscores: Underscores::Drop };

    fn compiler(options: RulesOptions) -> Compiler {
        Compiler::new(options, Fingerprinter::new((1, 2)), Clock::machine())
    }

    #[test]
    fn checked_overrides_are_compiled_once_unless_another_file_changes() {
        const LIMITS: &str = "limits: { One: { by: ip, count: 1, period: 1s } }";
        let directory = tempfile::tempdir().unwrap();
        let [limits, copy] = ["limits.yaml", "copy.yaml"].map(|name| directory.path().join(name));
        std::fs::write(&limits, LIMITS).unwrap();
        let url = "http://a.example/".to_owned();
        let files = Files {
            limits: Some(limits.clone()),
            copies: vec![OverridesCopy { url: url.clone(), path: copy.clone() }],
            ..Files::default()
        };
        let compiler = compiler(OPTIONS);
        let (mut reloader, loaded) = Reloader::start(files.clone(), compiler.clone());
        let shared = Shared::new(loaded.rules.unwrap(), Arc::new(Metrics::new().unwrap()), MemoryStore::new(1));
        let is_ahead = || compiler.ahead.lock().is_some();
        // The burst of the limit, its overrides, and whether something is left that was compiled ahead.
        let mut reload = || {
            assert!(matches!(reloader.reload(&shared, PollMode::Always), ReloadResult::Replaced));
            let (mut burst, mut overrides) = (None, 0);
            shared.each_limit(|limit, _| {
                if limit.name == "One" {
                    burst = limit.allowance.windows().map(|windows| windows[0].burst());
                    overrides = limit.overrides.len();
                }
            });
            (burst, overrides, is_ahead())
        };
        let one = "One:192.0.2.7: { count: 2, period: 1s }".to_owned();
        assert!(
            compiler.check_overrides(&files, &url, "Two:192.0.2.7: { deny: true }".to_owned()).is_err() && !is_ahead()
        );
        compiler.check_overrides(&files, &url, one.clone()).unwrap();
        assert!(is_ahead());
        std::fs::write(&copy, &one).unwrap();
        assert_eq!(reload(), (Some(1), 1, false));
        // Others in their place show that they are not compiled again.
        let other = Source { name: "limits.yaml".into(), text: LIMITS.replace("count: 1", "count: 7") };
        let other = compiler.compile(&Sources { limits: Some(other), ..Sources::default() });
        compiler.check_overrides(&files, &url, "{}".to_owned()).unwrap();
        compiler.ahead.lock().as_mut().unwrap().1 = other;
        std::fs::write(&copy, "{}").unwrap();
        assert_eq!(reload(), (Some(7), 0, false));
        compiler.check_overrides(&files, &url, one.clone()).unwrap();
        std::fs::write(&copy, &one).unwrap();
        std::fs::write(&limits, LIMITS.replace("count: 1", "count: 3")).unwrap();
        assert_eq!(reload(), (Some(3), 1, false));
    }

    #[test]
    fn a_header_that_is_dropped_is_none_to_go_by() {
        let check = |limit: &str, underscores, expected| {
            let source = Source { name: "limits.yaml".into(), text: format!("limits: {{ One: {{ {limit} }} }}") };
            let sources = Sources { limits: Some(source), ..Sources::default() };
            let loaded = compile(
                &sources,
                RulesOptions { underscores, has_redis: true, ..OPTIONS },
                Fingerprinter::new((1, 2)),
                &Clock::machine(),
            );
            assert!(loaded.rules.is_some() && loaded.report.warnings == expected, "{limit}: {}", loaded.report);
        };
        for limit in ["by: { header: x_id }", "match: { headers: { X_Plan: free } }", "cost: { header: x_cost }"]
            .map(|limit| format!("{limit}, burst: 1"))
        {
            check(&limit, Underscores::Drop, 1);
            check(&limit, Underscores::Reject, 1);
            check(&limit, Underscores::Keep, 0);
        }
        check("algorithm: queue, capacity: 1, fields: { id: { header: x_id } }", Underscores::Drop, 1);
        check("by: { query: x_id }, burst: 1", Underscores::Drop, 0);
    }

    /// Starts with one text and reloads another, with or without a proxy listener; whether each was taken.
    #[track_caller]
    fn check(sees_ends: bool, texts: [&str; 2], expected: [bool; 2]) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("limits.yaml");
        std::fs::write(&path, texts[0]).unwrap();
        let files = Files { limits: Some(path.clone()), ..Files::default() };
        let fingerprinter = Fingerprinter::new((1, 2));
        let (mut reloader, loaded) = Reloader::start(files, compiler(RulesOptions { sees_ends, ..OPTIONS }));
        let is_loaded = loaded.rules.is_some();
        let rules =
            loaded.rules.unwrap_or_else(|| Rules::new(Vec::new(), fingerprinter, Clock::machine().now(), Vec::new()));
        let shared = Shared::new(rules, Arc::new(Metrics::new().unwrap()), MemoryStore::new(1));
        std::fs::write(&path, texts[1]).unwrap();
        let is_reloaded = match reloader.reload(&shared, PollMode::Always) {
            ReloadResult::Replaced => true,
            ReloadResult::Broken(report) => {
                assert!(report.to_string().contains("other listeners do not see when a request ends"), "{report}");
                false
            }
            ReloadResult::Unchanged => panic!("it has changed"),
        };
        assert_eq!([is_loaded, is_reloaded], expected, "{texts:?}");
    }

    #[test]
    fn a_review_is_due_once_when_its_day_ends() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("limits.yaml");
        let text = "limits: { A: { burst: 1, review_by: 2026-12-30 }, B: { burst: 1, review_by: 2026-12-31 }, C: { burst: 1 } }";
        std::fs::write(&path, text).unwrap();
        let end = 1_798_761_600_000_000;
        let clock = Clock::set(Micros(end - 1));
        let Clock::Set(time) = &clock else { panic!() };
        let files = Files { limits: Some(path.clone()), ..Files::default() };
        let (mut reloader, loaded) =
            Reloader::start(files, Compiler::new(OPTIONS, Fingerprinter::new((1, 2)), clock.clone()));
        assert_eq!(loaded.report.warnings, 1, "{}", loaded.report);
        let metrics = Arc::new(Metrics::new().unwrap());
        let shared = Shared::new(loaded.rules.unwrap(), metrics.clone(), MemoryStore::new(1));
        let due = |reloader: &mut Reloader, now| {
            time.store(now, Ordering::Relaxed);
            reloader.reviews_due(&shared)
        };
        assert!(due(&mut reloader, end - 1).is_empty());
        assert_eq!(due(&mut reloader, end), [("B".to_owned(), "2026-12-31".to_owned())]);
        assert!(due(&mut reloader, end + 1).is_empty());
        let page = || String::from_utf8(metrics.render().unwrap()).unwrap();
        let line = |name, end| format!("weir_limit_review_by_timestamp_seconds{{limit=\"{name}\"}} {end}\n");
        let (of_a, of_b) = (line("A", 1_798_675_200), line("B", 1_798_761_600));
        assert!(page().contains(&format!("timestamp_seconds gauge\n{of_a}{of_b}")), "{}", page());

        // It goes with its date, and a new date may have passed already.
        std::fs::write(&path, "limits: { A: { burst: 1 }, C: { burst: 1, review_by: 2027-01-01 } }").unwrap();
        time.store(end + 2 * 86_400_000_000, Ordering::Relaxed);
        assert!(matches!(reloader.reload(&shared, PollMode::Always), ReloadResult::Replaced));
        assert!(!page().contains("limit=\"A\"} 1798") && page().contains(&line("C", 1_798_848_000)), "{}", page());
        assert!(due(&mut reloader, end + 3 * 86_400_000_000).is_empty(), "it was among the warnings about the rules");
    }

    #[test]
    fn requests_in_flight_need_a_listener_that_sees_them_end() {
        check(true, [IN_FLIGHT, RATE], [true, true]);
        check(true, [RATE, IN_FLIGHT], [true, true]);
        check(false, [RATE, IN_FLIGHT], [true, false]);
        check(false, [IN_FLIGHT, RATE], [false, true]);
        let off = "limits: { One: { algorithm: concurrency, capacity: 1, mode: off } }";
        check(false, [RATE, off], [true, true]);
    }
}
