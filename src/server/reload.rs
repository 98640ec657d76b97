//! Keeping the rules in force as the files say.

use crate::config::{Change, Files, Loaded, Look, Report, Sources, Watcher, load};
use crate::engine::fingerprint::Fingerprinter;
use crate::engine::rules::Rules;
use crate::gate::Shared;
use crate::store::Clock;

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
    let Loaded { rules, report, needs_redis } = if how.has_redis { loaded } else { loaded.in_memory() };
    Loaded { rules: if how.shadow { rules.map(Rules::in_shadow) } else { rules }, report, needs_redis }
}

/// The wall clock in seconds.
pub fn seconds(clock: &Clock) -> i64 {
    i64::try_from(clock.now().0 / 1_000_000).unwrap_or(i64::MAX)
}
