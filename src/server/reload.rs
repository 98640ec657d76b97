//! Keeping the rules in force as the files say.

use crate::clock::Clock;
use crate::config::{Change, Files, Loaded, Look, Problem, Report, Severity, Sources, Watcher, load};
use crate::engine::rules::by;
use crate::engine::rules::fingerprint::Fingerprinter;
use crate::engine::rules::limit::{Cost, Limit};
use crate::engine::rules::rule_set::Rules;
use crate::limiter::Shared;
use crate::message::underscores::Underscores;

/// Reads the files of the rules again and again. It blocks, so the server gives it a thread of its own.
pub struct Reloader {
    watcher: Watcher,
    how: How,
    fingerprinter: Fingerprinter,
    clock: Clock,
}

/// What rules are for.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// Whether they refuse nothing.
    pub shadow: bool,
    /// Whether their buckets live in Redis; some limits cannot be kept elsewhere.
    pub has_redis: bool,
    /// Whether there is a proxy listener: without one, rules that count requests in flight are as good as broken, since
    /// nobody sees a request end.
    pub sees_ends: bool,
    /// Whether rules see headers whose names have underscores.
    pub underscores: Underscores,
}

/// What a look at the files came to.
#[derive(Debug)]
pub enum Reloaded {
    /// They say what they said.
    Unchanged,
    /// New rules are in force.
    Replaced,
    /// They are broken or unreadable, and the rules in force are those of before.
    Refused(Report),
}

impl Reloader {
    /// Reads the files for the first time; the rules of them are the error if they are broken.
    pub fn start(files: Files, how: How, fingerprinter: Fingerprinter, clock: Clock) -> (Self, Loaded) {
        let mut watcher = Watcher::new(files);
        let loaded = match watcher.poll(Look::Always) {
            Change::New(sources) => compile(&sources, how, fingerprinter, &clock),
            Change::Unreadable(problem) => Loaded::broken(Report::of(problem)),
            Change::Same => Loaded::broken(Report::default()),
        };
        (Self { watcher, how, fingerprinter, clock }, loaded)
    }

    /// Looks at the files and puts what is new in force. `look` says whether to read them even if they seem untouched.
    ///
    /// A broken file changes nothing, is counted and logged once, and is reported until it is mended.
    pub fn reload(&mut self, shared: &Shared, look: Look) -> Reloaded {
        let loaded = match self.watcher.poll(look) {
            Change::Same => return Reloaded::Unchanged,
            Change::New(sources) => compile(&sources, self.how, self.fingerprinter, &self.clock),
            Change::Unreadable(problem) => Loaded::broken(Report::of(problem)),
        };
        let Some(rules) = loaded.rules else {
            shared.metrics().reload(false);
            tracing::error!("the rules are broken, those of before stay in force:\n{}", loaded.report);
            return Reloaded::Refused(loaded.report);
        };
        if loaded.report.warnings > 0 {
            tracing::warn!("the rules have warnings:\n{}", loaded.report);
        }
        tracing::info!(limits = rules.limits().len(), "new rules are in force");
        shared.replace(rules);
        shared.metrics().reload(true);
        shared.metrics().reload_timestamp.set(seconds(&self.clock));
        Reloaded::Replaced
    }
}

fn compile(sources: &Sources, how: How, fingerprinter: Fingerprinter, clock: &Clock) -> Loaded {
    let loaded = load(sources, fingerprinter, clock.now());
    let Loaded { mut rules, mut report, needs_redis } = if how.has_redis { loaded } else { loaded.in_memory() };
    let unseen = rules.iter().flat_map(Rules::limits).find(|limit| !how.sees_ends && limit.counts_in_flight());
    if let Some(limit) = unseen {
        report.problems.insert(
            0,
            Problem {
                severity: Severity::Error,
                file: sources.limits.as_ref().map_or_else(String::new, |source| source.name.clone()),
                place: None,
                message: format!(
                    "`{}` counts requests in flight, and no listener of this process sees a request end",
                    limit.name
                ),
                help: "open the proxy with `--upstream`, or limit by a rate".to_owned(),
                source_line: None,
            },
        );
        report.errors += 1;
        rules = None;
    }
    if how.underscores != Underscores::Keep {
        let file = sources.limits.as_ref().map_or_else(String::new, |source| source.name.clone());
        let unseen = rules.iter().flat_map(Rules::limits).filter_map(|limit| underscored(limit, &file));
        let unseen: Vec<_> = unseen.collect();
        report.warnings += unseen.len();
        report.problems.extend(unseen);
    }
    Loaded { rules: if how.shadow { rules.map(Rules::in_shadow) } else { rules }, report, needs_redis }
}

/// The warning about a limit that goes by a header with an underscore, which no request has by then.
fn underscored(limit: &Limit, file: &str) -> Option<Problem> {
    let by = limit.by.iter().filter_map(|component| match &component.source {
        by::Source::Header(name) => Some(name),
        _ => None,
    });
    let matched = limit.conditions.headers.iter().map(|header| &header.name);
    let cost = if let Cost::Header(name) = &limit.cost { Some(name) } else { None };
    let name = by.chain(matched).chain(cost).find(|name| name.as_str().contains('_'))?;
    Some(Problem {
        severity: Severity::Warning,
        file: file.to_owned(),
        place: None,
        message: format!("`{}` goes by `{name}`, and no request has a header with an underscore", limit.name),
        help: "name the header with hyphens, or start with `--underscores keep`".to_owned(),
        source_line: None,
    })
}

/// The wall clock in seconds.
pub fn seconds(clock: &Clock) -> i64 {
    i64::try_from(clock.now().0 / 1_000_000).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::config::Source;
    use crate::store::memory::MemoryStore;
    use crate::telemetry::metrics::Metrics;

    const IN_FLIGHT: &str = "limits: { One: { algorithm: concurrency, capacity: 1 } }";
    const RATE: &str = "limits: { One: { count: 1, period: 1s } }";

    const HOW: How = How { shadow: false, has_redis: false, sees_ends: true, underscores: Underscores::Drop };

    #[test]
    fn a_header_that_is_dropped_is_none_to_go_by() {
        let check = |limit: &str, underscores, expected| {
            let source =
                Source { name: "limits.yaml".into(), text: format!("limits: {{ One: {{ {limit}, burst: 1 }} }}") };
            let sources = Sources { limits: Some(source), ..Sources::default() };
            let loaded = compile(&sources, How { underscores, ..HOW }, Fingerprinter::new((1, 2)), &Clock::machine());
            assert!(loaded.rules.is_some() && loaded.report.warnings == expected, "{limit}: {}", loaded.report);
        };
        for limit in ["by: { header: x_id }", "match: { headers: { X_Plan: free } }", "cost: { header: x_cost }"] {
            check(limit, Underscores::Drop, 1);
            check(limit, Underscores::Reject, 1);
            check(limit, Underscores::Keep, 0);
        }
        check("by: { query: x_id }", Underscores::Drop, 0);
    }

    /// Starts with one text and reloads another, with or without a proxy listener; whether each was taken.
    #[track_caller]
    fn check(sees_ends: bool, texts: [&str; 2], expected: [bool; 2]) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("limits.yaml");
        std::fs::write(&path, texts[0]).unwrap();
        let files = Files { limits: Some(path.clone()), ..Files::default() };
        let fingerprinter = Fingerprinter::new((1, 2));
        let (mut reloader, loaded) = Reloader::start(files, How { sees_ends, ..HOW }, fingerprinter, Clock::machine());
        let is_loaded = loaded.rules.is_some();
        let rules =
            loaded.rules.unwrap_or_else(|| Rules::new(Vec::new(), fingerprinter, Clock::machine().now(), Vec::new()));
        let shared = Shared::new(rules, Arc::new(Metrics::new().unwrap()), MemoryStore::new(1));
        std::fs::write(&path, texts[1]).unwrap();
        let is_reloaded = match reloader.reload(&shared, Look::Always) {
            Reloaded::Replaced => true,
            Reloaded::Refused(report) => {
                assert!(report.to_string().contains("no listener of this process sees a request end"), "{report}");
                false
            }
            Reloaded::Unchanged => panic!("it has changed"),
        };
        assert_eq!([is_loaded, is_reloaded], expected, "{texts:?}");
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
