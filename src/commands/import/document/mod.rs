//! The file that is written: limits, overrides, and a comment for each thing that has no equal among ours.
//!
//! Each limit and each override is read by our own loader before it is taken. One that the loader refuses is written as a
//! comment, with the reason, so what is written passes `weir check` whatever the other file says.

use std::collections::{HashMap, HashSet};

pub(super) use self::entry::{Limit, Origin, Override, Subject};
use self::entry::{State, block, entry};
use super::text::{Value, comment, piece};
use crate::config::foreign::MOST_REGEXES;
use crate::config::{self, Source, Sources};
use crate::engine::algorithms::micros::Micros;
use crate::engine::rules::component::Component;
use crate::engine::rules::fingerprint::{Fingerprinter, stable};
use crate::engine::rules::ids::Id;

mod entry;

/// The longest name of a limit.
const LONGEST_NAME: usize = 64;

/// The longest name of a limit in the store.
const LONGEST_SHORT: usize = 32;

#[derive(Debug)]
struct WrittenLimit {
    limit: Limit,
    /// The name that it has.
    name: String,
    state: State,
    /// What its ids are made of.
    by: Vec<Component>,
    regexes: usize,
}

/// The file under construction.
#[derive(Debug, Default)]
pub(super) struct Document {
    /// What stands above everything, each a comment of its own.
    head: Vec<String>,
    limits: Vec<WrittenLimit>,
    overrides: Vec<(Override, State)>,
    /// The names that are taken, those in the store included, in lower case.
    names: HashSet<String>,
    /// Which override an id of a limit has.
    ids: HashMap<(usize, Vec<String>), usize>,
}

impl Document {
    /// Adds a comment above everything.
    pub(super) fn head(&mut self, text: impl Into<String>) {
        self.head.push(text.into());
    }

    /// Adds a limit and gives its number.
    pub(super) fn add_limit(&mut self, mut limit: Limit) -> usize {
        let (name, renamed) = self.name(&limit.name);
        if let Some(why) = renamed {
            limit.notes.push(limit.origin.note(format!(
                "{} is renamed to {}: {why}",
                piece(&limit.name),
                piece(&name)
            )));
        }
        let short = self.short(&limit.identity, &name);
        limit.fields.push(("short", Value::Text(short)));
        let text = format!("limits:\n{}", block(&name, &limit));
        let (state, by) = match checked(&text) {
            Ok(by) => (State::Written, by),
            Err(reason) => (State::LeftOut(reason), Vec::new()),
        };
        self.limits.push(WrittenLimit { limit, name, state, by, regexes: 0 });
        self.limits.len() - 1
    }

    /// Adds an override. Of two for the same id the later one is kept.
    pub(super) fn add_override(&mut self, mut given: Override) {
        let index = self.overrides.len();
        let Some(limit) = self.limits.get_mut(given.limit) else { return };
        let reason = match &mut given.subject {
            _ if limit.state != State::Written => Some("its limit is left out".to_owned()),
            Subject::Regex(_) => {
                limit.regexes += 1;
                let too_many = limit.regexes > MOST_REGEXES;
                too_many.then(|| {
                    format!("a limit can have at most {MOST_REGEXES} regular expressions; combine them with `|`")
                })
            }
            Subject::Ids(_) => None,
        };
        let mut state = reason.map_or(State::Written, State::LeftOut);
        if state == State::Written {
            state = match given.subject.clone() {
                Subject::Regex(_) => match checked(&limit.with(&given)) {
                    Ok(_) => State::Written,
                    Err(reason) => State::LeftOut(reason),
                },
                Subject::Ids(ids) => self.add_ids(ids, index, &mut given),
            };
        }
        self.overrides.push((given, state));
    }

    /// Keeps those of the ids that can be ids of their limit.
    fn add_ids(&mut self, ids: Vec<(String, Option<String>)>, index: usize, given: &mut Override) -> State {
        let Some(limit) = self.limits.get(given.limit) else { return State::Gone };
        let mut kept = Vec::new();
        let mut refused = Vec::new();
        for (id, comment) in ids {
            given.subject = Subject::Ids(vec![(id.clone(), comment.clone())]);
            let canonical = Id::parse(&limit.by, &id).map(Id::into_components);
            match checked(&limit.with(given)).and(canonical) {
                Ok(canonical) => kept.push((id, comment, canonical)),
                Err(reason) => refused.push((id, comment, reason)),
            }
        }
        if kept.is_empty() {
            let reasons = refused.iter().map(|(_, _, reason)| reason.as_str()).collect::<Vec<_>>().join("; ");
            given.subject = Subject::Ids(refused.into_iter().map(|(id, comment, _)| (id, comment)).collect());
            return State::LeftOut(reasons);
        }
        for (id, _, reason) in refused {
            given.notes.push(given.origin.note(format!("{} is left out: {reason}", piece(&id))));
        }
        let mut written: Vec<(String, Option<String>)> = Vec::new();
        for (id, comment, canonical) in kept {
            match self.ids.insert((given.limit, canonical.clone()), index) {
                Some(earlier) if earlier == index => {
                    given.notes.push(given.origin.note(format!("duplicate id {}.", piece(&id))));
                }
                Some(earlier) => {
                    self.withdraw(earlier, &canonical, &given.origin);
                    written.push((id, comment));
                }
                None => written.push((id, comment)),
            }
        }
        given.subject = Subject::Ids(written);
        State::Written
    }

    /// Takes an id away from an override, because a later one is for it too.
    fn withdraw(&mut self, index: usize, canonical: &[String], later: &Origin) {
        let Some((earlier, state)) = self.overrides.get_mut(index) else { return };
        let by = self.limits.get(earlier.limit).map(|limit| limit.by.as_slice()).unwrap_or_default();
        let Subject::Ids(ids) = &mut earlier.subject else { return };
        let is_it = |id: &str| Id::parse(by, id).is_ok_and(|id| id.into_components() == canonical);
        let Some(place) = ids.iter().position(|(id, _)| is_it(id)) else { return };
        let (id, _) = ids.remove(place);
        if ids.is_empty() {
            *state = State::Gone;
        }
        let what = format!("{} is left out: {}:{} overrides it.", piece(&id), later.file, later.line);
        earlier.notes.push(earlier.origin.note(what));
    }

    /// A name for a limit that no other has, and why it is another one if it is.
    fn name(&mut self, wanted: &str) -> (String, Option<&'static str>) {
        let plain = |character: char| character.is_ascii_alphanumeric() || "_.-".contains(character);
        let mut name: String = wanted.chars().map(|each| if plain(each) { each } else { '-' }).collect();
        if !name.starts_with(|first: char| first.is_ascii_alphabetic()) {
            name.insert_str(0, "L-");
        }
        name.truncate(LONGEST_NAME);
        let mut why = (name != wanted)
            .then_some("names start with a letter and have at most 64 letters, digits, `_`, `.` and `-`.");
        let first = name.clone();
        for number in 2.. {
            if self.names.insert(name.to_ascii_lowercase()) {
                break;
            }
            let suffix = format!("-{number}");
            name = first.chars().take(LONGEST_NAME - suffix.len()).collect::<String>() + &suffix;
            why = why.or(Some("another limit already has that name, ignoring case."));
        }
        (name, why)
    }

    /// The name in the store of a limit with this identity. No other limit has it, as its name or in the store.
    fn short(&mut self, identity: &str, name: &str) -> String {
        let plain = |character: char| character.is_ascii_alphanumeric() || "_.-".contains(character);
        let is_plain = !identity.is_empty() && identity.len() <= LONGEST_SHORT && identity.chars().all(plain);
        let first = if is_plain {
            identity.to_owned()
        } else {
            let first_line = identity.lines().next().unwrap_or_default();
            let readable: String = first_line.chars().filter(|each| plain(*each)).take(LONGEST_SHORT - 13).collect();
            format!("{readable}.{:012x}", stable(identity.as_bytes()) >> 16)
        };
        if first.eq_ignore_ascii_case(name) || self.names.insert(first.to_ascii_lowercase()) {
            return first;
        }
        let numbered = (2u32..).map(|number| {
            let suffix = format!("-{number}");
            first.chars().take(LONGEST_SHORT - suffix.len()).collect::<String>() + &suffix
        });
        numbered.into_iter().find(|short| self.names.insert(short.to_ascii_lowercase())).unwrap_or(first)
    }

    /// The text of the file, or why our own loader would refuse it.
    pub(super) fn text(&self) -> Result<String, String> {
        let text = self.rendered();
        checked(&text)?;
        Ok(text)
    }

    fn rendered(&self) -> String {
        let mut out = String::new();
        for (place, text) in self.head.iter().enumerate() {
            if place > 0 {
                out.push_str("#\n");
            }
            comment(0, text, &mut out);
        }
        out.push('\n');
        let is_empty = self.limits.iter().all(|limit| limit.state != State::Written);
        out.push_str(if is_empty { "limits: {}\n" } else { "limits:\n" });
        for (place, limit) in self.limits.iter().enumerate() {
            if place > 0 {
                out.push('\n');
            }
            entry(&limit.limit.notes, &limit.state, &block(&limit.name, &limit.limit), &mut out);
        }
        if self.overrides.is_empty() {
            return out;
        }
        out.push('\n');
        let written = || self.overrides.iter().filter(|(_, state)| *state == State::Written);
        if written().next().is_some() {
            out.push_str("overrides:\n");
        }
        // A map is what people write, and has room for one entry without an id for each limit.
        let in_list = written().any(|(given, _)| given.key(self.name_of(given.limit)).is_none());
        for (given, state) in &self.overrides {
            entry(&given.notes, state, &given.text(self.name_of(given.limit), in_list), &mut out);
        }
        out
    }

    fn name_of(&self, limit: usize) -> &str {
        self.limits.get(limit).map_or("", |limit| limit.name.as_str())
    }

    /// What was written: limits, overrides, and comments on what has no equal.
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        let limits = self.limits.iter().filter(|limit| limit.state == State::Written).count();
        let written = self.overrides.iter().filter(|(_, state)| *state == State::Written);
        let overrides = written.map(|(given, _)| given.subject.len()).sum();
        let comments = |notes: &[String], state: &State| notes.len() + usize::from(matches!(state, State::LeftOut(_)));
        let of_limits: usize = self.limits.iter().map(|limit| comments(&limit.limit.notes, &limit.state)).sum();
        let of_overrides: usize = self.overrides.iter().map(|(given, state)| comments(&given.notes, state)).sum();
        (limits, overrides, of_limits + of_overrides)
    }
}

impl WrittenLimit {
    /// A file of the limit and one override.
    fn with(&self, given: &Override) -> String {
        let limit = block(&self.name, &self.limit);
        format!("limits:\n{limit}overrides:\n{}", given.text(&self.name, true))
    }
}

/// What the ids of the first limit of a file are made of, or why our loader refuses the file.
fn checked(text: &str) -> Result<Vec<Component>, String> {
    let limits = Some(Source { name: String::new(), text: text.to_owned() });
    // Nothing is looked up in these rules, so the hash needs no secret, and nothing expires before 1970.
    let loaded = config::load(&Sources { limits, ..Sources::default() }, Fingerprinter::new((0, 0)), Micros(0));
    match (loaded.rules, loaded.report.problems.first()) {
        (Some(rules), _) => Ok(rules.limits().first().map(|limit| limit.by.clone()).unwrap_or_default()),
        (None, Some(problem)) if problem.help.is_empty() => Err(problem.message.clone()),
        (None, Some(problem)) => Err(format!("{} ({})", problem.message, problem.help)),
        (None, None) => Err("cannot be read".to_owned()),
    }
}
