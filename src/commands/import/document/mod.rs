//! The rules file: limits, overrides, and comments on what cannot be expressed.
//!
//! Each limit and override is first read by our own loader. If the loader rejects it, it is written as a comment with the
//! reason, so the result passes `weir check` whatever the other file contains.

use std::collections::{BTreeMap, HashMap, HashSet};

pub(super) use self::entry::{Ids, Limit, Origin, Override, Subject};
use self::entry::{ImportState, block};
use self::rendering::sources;
use super::text::{piece, quoted};
use crate::config;
use crate::config::foreign::MOST_REGEXES;
use crate::engine::algorithms::micros::Micros;
use crate::engine::limit::fingerprint::Fingerprinter;
use crate::engine::limit::ids::Id;
use crate::engine::request::part::TypedPart;
use crate::engine::stable_hash::stable;

mod entry;
mod rendering;

/// The longest name of a limit.
const LONGEST_NAME: usize = 64;

/// The most exemptions. A rules file can have more, but each request is compared with all.
const MOST_EXEMPTIONS: usize = 1_000;

/// The longest name of a limit in the store.
const LONGEST_SHORT: usize = 32;

/// The reason for a number behind a name.
const TAKEN: &str = "another limit already has that name, ignoring case.";

#[derive(Debug)]
struct WrittenLimit {
    limit: Limit,
    /// Valid and unique.
    name: String,
    state: ImportState,
    by: Vec<TypedPart>,
    regexes: usize,
}

/// The entries of the files, by what happened to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) limits: usize,
    pub(super) overrides: usize,
    /// Comments on what Weir cannot express.
    pub(super) comments: usize,
    pub(super) limits_left_out: usize,
    /// Ids of overrides.
    pub(super) overrides_left_out: usize,
    /// The settings about limits that were read and used, if they are counted.
    pub(super) settings: Option<[usize; 2]>,
}

/// The file under construction.
#[derive(Debug, Default)]
pub(super) struct Document {
    /// The comments at the top.
    head: Vec<String>,
    /// Those of them that name what Weir cannot express.
    told: Vec<String>,
    /// The ids that are not written although other ids of their override are: they are invalid, or another override has them.
    refused: usize,
    limits: Vec<WrittenLimit>,
    overrides: Vec<(Override, ImportState)>,
    /// The names that are taken, including those in the store, in lower case.
    names: HashSet<String>,
    /// The override of each id, by limit.
    ids: HashMap<(usize, Vec<String>), usize>,
    tests: Vec<LimitTest>,
    /// The conditions of exemptions, with the limits that they are from.
    exemptions: BTreeMap<String, Vec<usize>>,
    /// True if an exemption goes by what clients send, so that the linter's finding about it is to be silenced.
    has_claimable_exemptions: bool,
    /// The settings about limits in the files, and how many of them the document uses or tells of; `None` if the format counts none.
    settings: Option<[usize; 2]>,
}

/// The behavior of a limit in the other limiter.
#[derive(Debug)]
struct LimitTest {
    limit: usize,
    title: String,
    /// With `\0` for the limit's name.
    steps: Vec<String>,
}

impl Document {
    /// Adds a comment at the top.
    pub(super) fn head(&mut self, text: impl Into<String>) {
        self.head.push(text.into());
    }

    /// Adds a comment at the top on what Weir cannot express.
    pub(super) fn unused(&mut self, text: impl Into<String>) {
        let text = text.into();
        self.head(text.clone());
        self.told.push(text);
    }

    /// Returns whether the loader takes a limit.
    pub(super) fn is_written(&self, limit: usize) -> bool {
        self.limits.get(limit).is_some_and(WrittenLimit::is_written)
    }

    /// Adds a limit and returns its index.
    pub(super) fn add_limit(&mut self, mut limit: Limit) -> usize {
        let (name, renamed) = self.name(&limit.name);
        let is_told = |why: &&str| limit.source.is_none() || *why != TAKEN;
        if let Some(why) = renamed.filter(is_told) {
            limit.notes.push(limit.origin.note(format!(
                "{} is renamed to {}: {why}",
                piece(&limit.name),
                piece(&name)
            )));
        }
        let short = self.short(&limit.identity, &name);
        limit.fields.push(("short", quoted(&short)));
        let text = format!("limits:\n{}", block(&name, &limit));
        let (state, by) = match checked(&text) {
            Ok(by) => (ImportState::Written, by),
            Err(reason) => (ImportState::LeftOut(reason), Vec::new()),
        };
        self.limits.push(WrittenLimit { limit, name, state, by, regexes: 0 });
        self.limits.len() - 1
    }

    /// Adds a test of a limit: its steps, in which `\0` stands for the limit's name.
    pub(super) fn add_test(&mut self, limit: usize, title: String, steps: Vec<String>) {
        if !steps.is_empty() {
            let same = self
                .tests
                .iter()
                .filter(|test| test.title == title || test.title.starts_with(&format!("{title} (")))
                .count();
            let title = if same == 0 { title } else { format!("{title} ({})", same + 1) };
            self.tests.push(LimitTest { limit, title, steps });
        }
    }

    /// Returns whether the loader takes requests with these conditions as exempt.
    pub(super) fn can_exempt(&self, conditions: &str) -> bool {
        self.exemptions.contains_key(conditions)
            || self.exemptions.len() < MOST_EXEMPTIONS
                && checked(&format!("limits:\n  L: {{ count: 1, period: 1s }}\nexempt:\n  - match: {conditions}\n"))
                    .is_ok()
    }

    /// Exempts requests from a limit.
    pub(super) fn exempt(&mut self, limit: usize, conditions: String) {
        self.exemptions.entry(conditions).or_default().push(limit);
    }

    /// Counts the settings about limits in the files, and those of them that are converted. Comments explain the others.
    pub(super) fn count_settings(&mut self, read: usize, used: usize) {
        let [all, of_them] = self.settings.get_or_insert_default();
        *all += read;
        *of_them += used;
    }

    /// Adds an override. If two have the same id, the later one applies.
    pub(super) fn add_override(&mut self, mut given: Override) {
        let index = self.overrides.len();
        let Some(limit) = self.limits.get_mut(given.limit) else { return };
        let state = match given.subject.clone() {
            _ if limit.state != ImportState::Written => ImportState::LeftOut("its limit is left out".to_owned()),
            Subject::Regex(_) => {
                limit.regexes += 1;
                if limit.regexes > MOST_REGEXES {
                    let most = format!("a limit can have at most {MOST_REGEXES} regular expressions");
                    ImportState::LeftOut(format!("{most}; combine them with `|`"))
                } else {
                    checked(&limit.with(&given)).map_or_else(ImportState::LeftOut, |_| ImportState::Written)
                }
            }
            Subject::Ids(ids) => self.add_ids(ids, index, &mut given),
        };
        self.overrides.push((given, state));
    }

    /// Keeps the ids that are valid for their limit.
    fn add_ids(&mut self, ids: Ids, index: usize, given: &mut Override) -> ImportState {
        let Some(limit) = self.limits.get(given.limit) else { return ImportState::Gone };
        let mut kept = Vec::new();
        let mut refused = Vec::new();
        for (id, comment) in ids {
            given.subject = Subject::Ids(vec![(id.clone(), comment.clone())]);
            let canonical = Id::parse(&limit.by, &id).map(|id| id.parts);
            match checked(&limit.with(given)).and(canonical) {
                Ok(canonical) => kept.push((id, comment, canonical)),
                Err(reason) => refused.push((id, comment, reason)),
            }
        }
        if kept.is_empty() {
            let reasons = refused.iter().map(|(_, _, reason)| reason.as_str()).collect::<Vec<_>>().join("; ");
            given.subject = Subject::Ids(refused.into_iter().map(|(id, comment, _)| (id, comment)).collect());
            return ImportState::LeftOut(reasons);
        }
        self.refused += refused.len();
        for (id, _, reason) in refused {
            given.notes.push(given.origin.note(format!("{} is left out: {reason}", piece(&id))));
        }
        let mut written = Ids::new();
        for (id, comment, canonical) in kept {
            match self.ids.insert((given.limit, canonical.clone()), index) {
                Some(earlier) if earlier == index => {
                    self.refused += 1;
                    given.notes.push(given.origin.note(format!("duplicate id {}.", piece(&id))));
                }
                Some(earlier) => {
                    self.refused += 1;
                    self.withdraw(earlier, &canonical, &given.origin);
                    written.push((id, comment));
                }
                None => written.push((id, comment)),
            }
        }
        given.subject = Subject::Ids(written);
        ImportState::Written
    }

    /// Removes an id from an override, because a later one has it too.
    fn withdraw(&mut self, index: usize, canonical: &[String], later: &Origin) {
        let Some((earlier, state)) = self.overrides.get_mut(index) else { return };
        let by = self.limits.get(earlier.limit).map(|limit| limit.by.as_slice()).unwrap_or_default();
        let Subject::Ids(ids) = &mut earlier.subject else { return };
        let is_it = |id: &str| Id::parse(by, id).is_ok_and(|id| id.parts == canonical);
        let Some(place) = ids.iter().position(|(id, _)| is_it(id)) else { return };
        let (id, _) = ids.remove(place);
        if ids.is_empty() {
            *state = ImportState::Gone;
        }
        let what = format!("{} is left out: {}:{} overrides it.", piece(&id), later.file, later.line);
        earlier.notes.push(earlier.origin.note(what));
    }

    /// A valid name that no other limit has, and the reason if it is not the wanted one.
    fn name(&mut self, wanted: &str) -> (String, Option<&'static str>) {
        let mut name: String = wanted.chars().map(|each| if is_plain(each) { each } else { '-' }).collect();
        if !name.starts_with(|first: char| first.is_ascii_alphabetic()) {
            name.insert_str(0, "L-");
        }
        name.truncate(LONGEST_NAME);
        let unique = self.unique(&name, LONGEST_NAME);
        let reason = if name == wanted {
            (unique != name).then_some(TAKEN)
        } else {
            Some("names start with a letter and have at most 64 letters, digits, `_`, `.` and `-`.")
        };
        (unique, reason)
    }

    /// The name in the store of a limit with this identity. No other limit has it as its name or in the store.
    fn short(&mut self, identity: &str, name: &str) -> String {
        let is_valid = !identity.is_empty() && identity.len() <= LONGEST_SHORT && identity.chars().all(is_plain);
        let short = if is_valid {
            identity.to_owned()
        } else {
            let first_line = identity.lines().next().unwrap_or_default();
            let readable: String = first_line.chars().filter(|each| is_plain(*each)).take(LONGEST_SHORT - 13).collect();
            format!("{readable}.{:012x}", stable(identity.as_bytes()) >> 16)
        };
        if short.eq_ignore_ascii_case(name) { short } else { self.unique(&short, LONGEST_SHORT) }
    }

    /// Takes a name, with a number if it is already taken, ignoring case.
    fn unique(&mut self, wanted: &str, longest: usize) -> String {
        let mut name = wanted.to_owned();
        let mut number = 1;
        while !self.names.insert(name.to_ascii_lowercase()) {
            number += 1;
            let suffix = format!("-{number}");
            name = wanted.chars().take(longest - suffix.len()).collect::<String>() + &suffix;
        }
        name
    }

    /// A line for each thing of the files that Weir cannot express.
    pub(super) fn told(&self) -> impl Iterator<Item = String> {
        let of_limits = self.limits.iter().flat_map(|limit| {
            let reason = if let ImportState::LeftOut(reason) = &limit.state { Some(reason) } else { None };
            let left_out = reason
                .map(|reason| limit.limit.origin.note(format!("{} is left out: {reason}", piece(&limit.limit.name))));
            limit.limit.notes.iter().cloned().chain(left_out)
        });
        self.told.iter().cloned().chain(of_limits)
    }

    fn name_of(&self, limit: usize) -> &str {
        self.limits.get(limit).map_or("", |limit| limit.name.as_str())
    }

    pub(super) fn counts(&self) -> Counts {
        let limits = || self.limits.iter().map(|limit| (1, &limit.state, &limit.limit.notes));
        let overrides = || self.overrides.iter().map(|(given, state)| (given.len(), state, &given.notes));
        let written =
            |(count, state, _): (usize, &ImportState, _)| if *state == ImportState::Written { count } else { 0 };
        let left_out = |(count, state, _): (usize, &ImportState, _)| {
            if matches!(state, ImportState::LeftOut(_)) { count } else { 0 }
        };
        let comments = |(_, state, notes): (_, &ImportState, &Vec<_>)| {
            notes.len() + usize::from(matches!(state, ImportState::LeftOut(_)))
        };
        let of_entries: usize = limits().chain(overrides()).map(comments).sum();
        Counts {
            limits: limits().map(written).sum(),
            overrides: overrides().map(written).sum(),
            comments: self.told.len() + of_entries,
            limits_left_out: limits().map(left_out).sum(),
            overrides_left_out: overrides().map(left_out).sum::<usize>() + self.refused,
            settings: self.settings,
        }
    }
}

fn is_plain(character: char) -> bool {
    character.is_ascii_alphanumeric() || "_.-".contains(character)
}

impl WrittenLimit {
    fn is_written(&self) -> bool {
        self.state == ImportState::Written
    }

    /// A rules file of the limit and one override.
    fn with(&self, given: &Override) -> String {
        let limit = block(&self.name, &self.limit);
        format!("limits:\n{limit}overrides:\n{}", given.text(&self.name, true))
    }
}

/// Loads a rules file. Returns the parts of its first limit, or the first error.
fn checked(text: &str) -> Result<Vec<TypedPart>, String> {
    // These rules serve no requests, so the hash needs no secret, and nothing expires before 1970.
    let loaded = config::load(&sources(text), Fingerprinter::new((0, 0)), Micros(0));
    match (loaded.rules, loaded.report.problems.first()) {
        (Some(rules), _) => Ok(rules.limits().first().map(|limit| limit.by.clone()).unwrap_or_default()),
        (None, Some(problem)) if problem.help.is_empty() => Err(problem.message.clone()),
        (None, Some(problem)) => Err(format!("{} ({})", problem.message, problem.help)),
        (None, None) => Err("cannot be read".to_owned()),
    }
}
