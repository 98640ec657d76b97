//! Reloads the rules when their files change.

use super::compiler::{Compiler, RulesOptions, override_reader, within};
use crate::clock::Clock;
use crate::config::{self, Change, Files, LoadResult, PollMode, Report, Watcher};
use crate::engine::algorithms::micros::Micros;
use crate::engine::limit::fingerprint::Fingerprinter;
use crate::engine::limit::live::OverrideReader;
use crate::limiter::Shared;

/// Watches the rules files. Its calls block, so it runs on a thread of its own.
pub struct Reloader {
    watcher: Watcher,
    compiler: Compiler,
    /// The dates of reviews until then are logged, or among the warnings about the rules.
    reviewed: Micros,
    /// Reads live overrides by the files that were read first, until it is taken.
    reader: Option<OverrideReader>,
    /// The mistakes in files of a directory, which were logged.
    held_back: Report,
}

/// The result of a reload.
#[derive(Debug)]
pub enum ReloadResult {
    Unchanged,
    Replaced,
    /// New rules are in force, but for these broken files of a directory.
    Partly(Report),
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
                let (loaded, sources) = compiler.compile(sources);
                reader = Some(override_reader(&sources, compiler.fingerprinter));
                loaded
            }
            Change::Unreadable(problem) => LoadResult::broken(Report::of(problem)),
            Change::Same => LoadResult::broken(Report::default()),
        };
        let reviewed = loaded.rules.as_ref().map_or(Micros(0), |rules| rules.effective_from);
        (Self { watcher, compiler, reviewed, reader, held_back: Report::default() }, loaded)
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
        let (mut reader, before) = (None, self.compiler.owners());
        let loaded = match self.watcher.poll(mode) {
            Change::Same => return ReloadResult::Unchanged,
            Change::New(sources) => {
                let (loaded, sources) = self.compiler.compile(sources);
                reader = Some(override_reader(&sources, self.compiler.fingerprinter));
                loaded
            }
            Change::Unreadable(problem) => LoadResult::broken(Report::of(problem)),
        };
        let Some(rules) = loaded.rules else {
            shared.metrics().server.reloaded(false);
            if !loaded.owners.is_empty() {
                shared.metrics().server.set_files(&loaded.owners);
            }
            tracing::error!("the rules are broken, the last good ones stay in force:\n{}", loaded.report);
            return ReloadResult::Broken(loaded.report);
        };
        log_warnings(&loaded.report);
        tracing::info!(limits = rules.limits().len(), "new rules are in force");
        self.reviewed = rules.effective_from;
        shared.replace(rules, reader);
        shared.metrics().server.reload_timestamp.set(seconds(&self.compiler.clock));
        let after = self.compiler.owners();
        for owner in before.iter().filter(|owner| !after.contains(owner)) {
            tracing::warn!(owner, "the file of this owner is gone, and its limits with it");
        }
        shared.metrics().server.set_files(&loaded.owners);
        let of_held_back = loaded.owners.iter().filter(|(_, is_held_back)| *is_held_back);
        let held_back_owners: Vec<&str> = of_held_back.map(|(owner, _)| owner.as_str()).collect();
        let held_back = loaded.held_back;
        let is_known = std::mem::replace(&mut self.held_back, held_back.clone()) == held_back;
        shared.metrics().server.reloaded(held_back.errors == 0);
        if held_back.errors == 0 {
            return ReloadResult::Replaced;
        }
        if !is_known {
            tracing::error!(
                owners = held_back_owners.join(", "),
                "the files of these owners do not fit, so their last good versions stay in force, if any:\n{held_back}"
            );
        }
        ReloadResult::Partly(held_back)
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

/// Returns the wall time in seconds since the Unix epoch.
pub fn seconds(clock: &Clock) -> i64 {
    i64::try_from(clock.now().0 / 1_000_000).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use super::super::compiler::compile;
    use super::*;
    use crate::config::{OverridesCopy, Source, Sources};
    use crate::engine::limit::rules::Rules;
    use crate::message::underscores::Underscores;
    use crate::store::memory::MemoryStore;
    use crate::telemetry::metrics::Metrics;

    const IN_FLIGHT: &str = "limits: { One: { algorithm: concurrency, capacity: 1 } }";
    const RATE: &str = "limits: { One: { count: 1, period: 1s } }";

    const OPTIONS: RulesOptions = RulesOptions {
        shadow: false,
        near_limit: None,
        has_redis: false,
        sees_ends: true,
        underscores: Underscores::Drop,
    };

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
        let other = compiler.settle(Sources { limits: Some(other), ..Sources::default() });
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
            other => panic!("{other:?}"),
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
