//! The live overrides of this process, and the rules with them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::PathBuf;

use super::Shared;
use crate::engine::algorithms::micros::Micros;
use crate::engine::limit::allowance::Allowance;
use crate::engine::limit::live::{LiveOverride, OverrideReader, OverrideText, PlacedOverride};
use crate::engine::limit::resets::LimitReset;
use crate::engine::limit::rules::Rules;

/// The live overrides, and what they are under the rules in force.
#[derive(Default)]
pub(super) struct Live {
    /// `None` if the rules do not come from files.
    pub(super) reader: Option<OverrideReader>,
    pub(super) list: Vec<KnownOverride>,
    pub(super) resets: Vec<LimitReset>,
    /// The file that keeps them over a restart, beside a memory store.
    pub(super) file: Option<PathBuf>,
}

/// A live override under the rules in force.
#[derive(Clone, Debug)]
pub struct KnownOverride {
    pub given: LiveOverride,
    /// The error says why the rules in force have no use for it.
    pub allowance: Result<Allowance, String>,
}

impl Live {
    /// Reads overrides by the rules in force. An error says what is wrong and where.
    pub(super) fn read(&self, texts: &[OverrideText<'_>], now: Micros) -> Vec<Result<PlacedOverride, String>> {
        let unread = |_| Err("the rules do not come from files".to_owned());
        self.reader.as_ref().map_or_else(|| texts.iter().map(unread).collect(), |read| read(texts, now))
    }

    /// Returns rules with these overrides. `effective_from` is when the numbers change.
    fn apply(&mut self, rules: &Rules, list: Vec<LiveOverride>, effective_from: Micros) -> Rules {
        let read = self.read(&list.iter().map(LiveOverride::text).collect::<Vec<_>>(), effective_from);
        let mut placed = Vec::with_capacity(list.len());
        let mut ids = HashMap::with_capacity(list.len());
        let inert = self.list.drain(..).filter_map(|known| Some((known.given.bucket, known.allowance.err()?)));
        let inert: HashMap<String, String> = inert.collect();
        for (given, read) in list.into_iter().zip(read) {
            let allowance = read.and_then(|read| {
                // Two names of one id, such as after a limit was renamed to another's name, have one override.
                match ids.entry((read.limit, read.parts, read.fingerprint)) {
                    Entry::Occupied(first) => Err(format!("the same id has the live override of {}", first.get())),
                    Entry::Vacant(place) => {
                        place.insert(given.bucket.clone());
                        let allowance = read.given.allowance.clone();
                        placed.push(read.of(&given));
                        Ok(allowance)
                    }
                }
            });
            if let Err(reason) = &allowance
                && inert.get(&given.bucket) != Some(reason)
            {
                tracing::warn!("the live override of {} does not apply: {reason}", given.bucket);
            }
            self.list.push(KnownOverride { given, allowance });
        }
        rules.with_live(placed, effective_from)
    }
}

impl Shared {
    /// Sets how live overrides are read, those that a file has kept, and the file. Must be called before requests come.
    pub fn keep_overrides(&self, reader: OverrideReader, kept: Vec<LiveOverride>, file: Option<PathBuf>, now: Micros) {
        let mut live = self.live.lock();
        (live.reader, live.file) = (Some(reader), file);
        drop(live);
        self.apply_overrides(kept, now);
    }

    /// Puts new rules in force, with the resets there are, and the live overrides as `reader` reads them by these rules. Requests that
    /// have begun keep the old ones.
    pub fn replace(&self, rules: Rules, reader: Option<OverrideReader>) {
        let mut live = self.live.lock();
        live.reader = reader.or(live.reader.take());
        let mut rules = if live.resets.is_empty() { rules } else { rules.with_resets(&live.resets) };
        if !live.list.is_empty() {
            let list = live.list.iter().map(|known| known.given.clone()).collect();
            // They may have changed while the rules were compiled.
            let effective_from = rules.effective_from.max(self.snapshot.load().rules.effective_from);
            rules = live.apply(&rules, list, effective_from);
            self.count_overrides(&live);
        }
        self.put(rules);
    }

    /// Puts these live overrides in force, and no others. `effective_from` is when the numbers change.
    pub(super) fn apply_overrides(&self, list: Vec<LiveOverride>, effective_from: Micros) {
        let mut live = self.live.lock();
        if list.is_empty() && live.list.is_empty() {
            return;
        }
        // The lock is held until the rules are in force, so that a reload cannot come between.
        let rules = self.snapshot.load();
        let rules = live.apply(&rules.rules, list, effective_from.max(rules.rules.effective_from));
        self.count_overrides(&live);
        self.put(rules);
    }

    fn count_overrides(&self, live: &Live) {
        let in_force = live.list.iter().filter(|known| known.allowance.is_ok()).count();
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.metrics.listeners.live_overrides.set(count(in_force));
        self.metrics.listeners.live_overrides_inert.set(count(live.list.len() - in_force));
    }
}
