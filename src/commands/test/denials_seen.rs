//! The limits that no test has seen at work: they decided no request, or denied none.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::super::colors::Palette;
use super::super::print::joined;
use crate::engine::deciding::verdict::Verdict;
use crate::engine::limit::rules::Rules;
use crate::engine::limit::{Limit, LimitMode};

/// The most that tests have seen of a limit, in ascending order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Seen {
    #[default]
    Nothing,
    Decision,
    /// In shadow, a request that it would have denied.
    Denial,
}

/// The limits of all rules files. Several files of tests can share one rules file.
#[derive(Debug, Default)]
pub(super) struct DenialsSeen {
    /// By the canonical path. The name is as given first.
    files: BTreeMap<PathBuf, (String, BTreeMap<String, Seen>)>,
}

impl Seen {
    /// Adds the decisions on one request. `seen` is in the order of the rules.
    pub(super) fn add(seen: &mut [Self], verdict: &Verdict) {
        for answer in &verdict.answers {
            // A limit that the call carries is not in the rules.
            if let Some(seen) = seen.get_mut(answer.limit as usize) {
                *seen = (*seen).max(if answer.is_short() { Self::Denial } else { Self::Decision });
            }
        }
    }
}

/// The names of the limits that can deny, in the order of the rules; `None` for those that can do so by an override at most.
pub(super) fn denying(rules: &Rules) -> Vec<Option<String>> {
    let can_deny = |limit: &Limit| limit.mode != LimitMode::Off && limit.allowance.can_deny();
    rules.limits().iter().map(|limit| can_deny(limit).then(|| limit.name.clone())).collect()
}

impl DenialsSeen {
    /// Adds what the tests of one file have seen of the limits in `file`, of which `names` are those that can deny. Both are in
    /// the order of the rules.
    pub(super) fn add(&mut self, file: &str, names: Vec<Option<String>>, seen: &[Seen]) {
        let path = Path::new(file);
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let (_, limits) = self.files.entry(path).or_insert_with(|| (file.to_owned(), BTreeMap::new()));
        for (name, seen) in names.into_iter().zip(seen) {
            if let Some(name) = name {
                let known = limits.entry(name).or_default();
                *known = (*known).max(*seen);
            }
        }
    }

    /// Returns whether there are no rules, as with scenarios alone.
    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Returns whether tests have seen each limit deny.
    pub(super) fn is_whole(&self) -> bool {
        self.unseen().is_empty()
    }

    /// The names of the limits that tests have not seen deny.
    pub(super) fn unseen(&self) -> Vec<String> {
        let limits = self.files.values().flat_map(|(_, limits)| limits);
        limits.filter(|(_, seen)| **seen != Seen::Denial).map(|(name, _)| name.clone()).collect()
    }

    /// Sentences about the limits that tests have not seen deny, each with its rules file.
    pub(super) fn told(&self) -> Vec<(String, String)> {
        let mut sentences = Vec::new();
        for (file, limits) in self.files.values() {
            for (missing, told) in
                [(Seen::Nothing, "no test touches these limits"), (Seen::Decision, "no test sees these limits deny")]
            {
                let mut names = limits.iter().filter(|(_, seen)| **seen == missing).map(|(name, _)| name).peekable();
                if names.peek().is_some() {
                    sentences.push((file.clone(), format!("{told}: {}", joined(names, ", "))));
                }
            }
        }
        sentences
    }

    /// Prints them.
    pub(super) fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let Palette { doubtful, .. } = Palette::out();
        for (file, sentence) in self.told() {
            let file = if self.files.len() > 1 { format!("{file}: ") } else { String::new() };
            let (told, names) = sentence.split_once(':').unwrap_or((&sentence, ""));
            writeln!(out, "{file}{doubtful}{told}{doubtful:#}:{names}")?;
        }
        Ok(())
    }
}
