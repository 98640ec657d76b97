//! Reads the limits of `limits`.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::LazyLock;

use super::algorithms::{self, Context, Settings, elevated};
use super::lints::{Lint, Places};
use super::mapping::Mapping;
use super::named_files::NamedFile;
use super::node::{Key, Node, Value};
use super::numbers::{self, Interner};
use super::problem::{Findings, Place, ReadResult, ReportedError, quoted};
use super::scalars::{is_name, one_of, share};
use super::suggest::nearest;
use super::teams::{RulesFile, prefix};
use super::{ban, by, candidate, cost, deny_with, ignores, matching, request_numbers, response_cost, review, warn_at};
use crate::engine::algorithms::tag::Tag;
use crate::engine::limit::allowance::Allowance;
use crate::engine::limit::deny_with::Visibility;
use crate::engine::limit::identity::Fallback;
use crate::engine::limit::matching::Match;
use crate::engine::limit::{Cost, Limit, LimitMode, StoreErrorPolicy};
use crate::engine::request::part::{IPV6_CLIENT_PREFIX, Part, TypedPart};

/// The keys of limits with any algorithm, beyond [`numbers::KEYS`].
const COMMON_KEYS: &str = "match by cost cost_from_response reserve spend_when mode enforce_for candidate candidates \
                           missing malformed on_store_error deny_with headers max_keys max_new_keys per_call drain_over_limit short tag algorithm \
                           review_by ignore_lints ban warn_at";

/// The keys of a limit.
pub(super) static KEYS: LazyLock<Vec<&str>> =
    LazyLock::new(|| algorithms::limit_keys(COMMON_KEYS.split(' ').chain(numbers::KEYS)));

pub(super) const MODES: [(&str, LimitMode); 3] =
    [("enforce", LimitMode::Enforce), ("shadow", LimitMode::Shadow), ("off", LimitMode::Off)];

/// The values of `missing` and `malformed`.
pub(super) const FALLBACKS: [(&str, Fallback); 3] =
    [("skip", Fallback::Skip), ("deny", Fallback::Deny), ("shared", Fallback::Shared)];

pub(super) const STORE_ERROR: [(&str, StoreErrorPolicy); 3] =
    [("allow", StoreErrorPolicy::Allow), ("deny", StoreErrorPolicy::Deny), ("local", StoreErrorPolicy::Local)];

const LONGEST_NAME: usize = 64;
const LONGEST_SHORT: usize = 32;

/// The limits read so far.
#[derive(Default)]
pub(super) struct Limits {
    pub(super) drafts: Vec<Draft>,
    /// The files that limits name.
    named_files: Vec<NamedFile>,
    /// The indices of drafts by name in lower case.
    names: HashMap<String, usize>,
    /// The team whose file is read.
    owner: Option<String>,
}

/// A limit that may have mistakes, which have been reported.
pub(super) struct Draft {
    pub(super) limit: Limit,
    pub(super) name: Key,
    /// Whether ids can be checked against its `by`.
    pub(super) by_is_known: bool,
    /// The number of regular expressions in its overrides.
    pub(super) regexes: usize,
    /// The algorithm's settings, which its overrides inherit; `None` if they have a mistake.
    pub(super) settings: Option<Box<dyn Settings>>,
    /// Whether its numbers have no mistakes.
    pub(super) numbers_are_known: bool,
    /// The place of `algorithm`, if it needs Redis.
    needs_redis: Option<Place>,
    /// The value of `short`.
    short: Option<Node>,
    pub(super) places: Places,
}

impl Limits {
    /// Reads the limits of a file from now on, and finds none but them.
    pub(super) fn enter(&mut self, file: &RulesFile<'_>) {
        self.named_files = file.named_files.to_vec();
        self.owner = file.owner.map(str::to_owned);
    }

    /// Finds the limits of all files from now on.
    pub(super) fn leave(&mut self) {
        self.owner = None;
    }

    fn full_name(&self, name: &str) -> String {
        self.owner.as_deref().map(prefix).unwrap_or_default() + name
    }

    pub(super) const fn is_of_team(&self) -> bool {
        self.owner.is_some()
    }

    /// Returns the indices of the limits of the team whose file is read.
    pub(super) fn of_team(&self) -> impl Iterator<Item = u32> {
        let is_own =
            |draft: &Draft| draft.limit.owner.is_some() && draft.limit.owner.as_deref() == self.owner.as_deref();
        (0..).zip(&self.drafts).filter(move |(_, draft)| is_own(draft)).map(|(place, _)| place)
    }

    pub(super) fn named_files(&self) -> &[NamedFile] {
        &self.named_files
    }

    /// Returns the index of a limit. Names match in their exact spelling.
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        let name = self.full_name(name);
        let index = *self.names.get(&name.to_ascii_lowercase())?;
        (self.drafts[index].limit.name == name).then_some(index)
    }

    /// Returns help for an unknown name.
    pub(super) fn suggest(&self, name: &str) -> String {
        let prefix = self.full_name("");
        let own = self.drafts.iter().filter_map(|draft| draft.limit.name.strip_prefix(&prefix));
        nearest(name, own).map_or_else(
            || "add it under `limits`; a limit without numbers applies only to its overrides".into(),
            |name| format!("did you mean `{name}`?"),
        )
    }

    /// Adds the limit of one entry of `limits`.
    pub(super) fn add(&mut self, key: Key, node: &Node, interner: &mut Interner) {
        let (Ok(()) | Err(ReportedError)) = check_name(&key);
        let name = self.full_name(&key.text);
        match self.names.entry(name.to_ascii_lowercase()) {
            Entry::Occupied(first) => {
                let first = &self.drafts[*first.get()].name;
                let line = first.place.line;
                let help = if first.text == key.text {
                    format!("the first one is on line {line}; keep one of them")
                } else {
                    format!("{} is on line {line}; names are case-insensitive", quoted(&first.text))
                };
                key.error(format!("duplicate limit name {}", quoted(&key.text)), help);
            }
            Entry::Vacant(entry) => {
                entry.insert(self.drafts.len());
            }
        }
        let mut draft = Draft::new(key);
        let owner = self.owner.as_deref();
        draft.limit = Limit { owner: owner.map(Into::into), ..Limit::new(&name) };
        let ignores = node.findings.ignores();
        ignores.enter(Some(self.drafts.len()));
        if node.is_null() {
            let help = "write `{}` for a limit that applies only to its overrides";
            draft.name.error(format!("{} is empty", quoted(&draft.name.text)), help);
        } else if let Ok(map) = Mapping::of(node, "a limit", &KEYS) {
            draft.read(&map, &self.named_files, interner);
            if let (Some(owner), Some(_)) = (owner, &draft.short) {
                draft.limit.short.insert_str(0, &prefix(owner));
            }
        }
        ignores.enter(None);
        self.drafts.push(draft);
    }

    /// Checks that no `short` of the limits since `first` is the name or `short` of another limit.
    pub(super) fn check_short_names(&self, first: usize) {
        let mut names = self.names.clone();
        for (index, draft) in self.drafts.iter().enumerate().skip(first) {
            let Some(node) = &draft.short else { continue };
            if let Some(other) =
                names.insert(draft.limit.short.to_ascii_lowercase(), index).filter(|other| *other != index)
            {
                let help = format!("it is the name or `short` of {}", quoted(&self.drafts[other].limit.name));
                node.error(format!("{} is already in use", quoted(&draft.limit.short)), help);
            }
        }
    }

    /// Reports mistakes that show once the overrides are read: limits that never apply, and regular expressions that are
    /// too large together.
    pub(super) fn finish(&mut self) {
        for (index, draft) in self.drafts.iter_mut().enumerate() {
            draft.name.findings.ignores().enter(Some(index));
            let limit = &mut draft.limit;
            let applies = limit.per_call || limit.allowance != Allowance::Disabled || !limit.overrides.is_empty();
            if draft.numbers_are_known && !applies {
                let message = format!("{} never applies: it has no numbers and no overrides", quoted(&limit.name));
                let numbers = draft.settings.as_ref().map_or("numbers", |settings| settings.number_keys());
                draft.name.warning(Lint::NoNumbers, message, format!("add {numbers}, or overrides"));
            }
            if let Err(error) = limit.overrides.finish() {
                let message = format!("the regular expressions for {} are too large", quoted(&limit.name));
                draft.name.error(message, error.to_string());
            }
            draft.name.findings.ignores().enter(None);
        }
    }

    /// Reports the limits of a file that do not work in memory.
    pub(super) fn report_needing_redis(&self, owner: Option<&str>, findings: &Findings) {
        for draft in self.drafts.iter().filter(|draft| draft.limit.owner.as_deref() == owner) {
            if let Some(place) = draft.needs_redis.filter(|_| draft.limit.mode != LimitMode::Off) {
                let message =
                    format!("{} needs Redis: queues and scripts do not work in memory", quoted(&draft.limit.name));
                findings.error(place, message, "start with `--store redis://...`, or remove the limit");
            }
        }
    }
}

fn check_name(key: &Key) -> ReadResult<()> {
    let name = &key.text;
    let help = match name.split_once(':') {
        _ if name.is_empty() => {
            return Err(key.error("the limit's name is empty", "use a name such as RequestsPerIPAddress"));
        }
        Some((limit, id)) if !limit.is_empty() && !id.is_empty() => "an override (`Name:id`) belongs under `overrides`",
        Some(_) => "use letters, digits, `_`, `.` and `-`",
        None if name.len() > LONGEST_NAME => {
            let help = format!("use at most {LONGEST_NAME} characters");
            return Err(key.error("the limit's name is too long", help));
        }
        None if is_limit_name(name) => return Ok(()),
        None => "start with a letter; use letters, digits, `_`, `.` and `-`",
    };
    Err(key.error(format!("invalid limit name {}", quoted(name)), help))
}

fn is_limit_name(text: &str) -> bool {
    is_name(text, LONGEST_NAME) && text.starts_with(|first: char| first.is_ascii_alphabetic())
}

impl Draft {
    /// Returns a limit of which nothing is known but its name.
    pub(super) fn new(name: Key) -> Self {
        Self {
            limit: Limit::new(&name.text),
            places: Places { name: name.place, ..Places::default() },
            name,
            by_is_known: false,
            regexes: 0,
            settings: None,
            numbers_are_known: false,
            needs_redis: None,
            short: None,
        }
    }

    fn read(&mut self, map: &Mapping<'_>, files: &[NamedFile], interner: &mut Interner) {
        if let Ok(Some(lints)) = map.read(ignores::KEY, ignores::read) {
            let ignores = map.node.findings.ignores();
            ignores.add(ignores.current(), lints);
        }
        self.places = places(map, &self.name);
        let limit = &mut self.limit;
        let mut conditions = Match::default();
        let paths_are_known = map.get("match").is_none_or(|(_, node)| matching::read(node, &mut conditions));
        let paths = paths_are_known.then_some(conditions.paths.as_slice());
        let by = map.read("by", |node| by::by(node, paths)).and_then(|by| {
            if let Some(by) = by {
                limit.by = by;
            }
            check_by_of_domain(map, &limit.by, &conditions, &self.name)
        });
        self.by_is_known = by.is_ok();
        let word = map.read("algorithm", algorithms::of_word).map(|word| word.unwrap_or_else(algorithms::default));
        let settings = word.and_then(|settings| {
            limit.algorithm = settings.algorithm();
            algorithms::settings(settings.as_ref(), map)
        });
        self.settings = settings.ok();
        if let Some(settings) = &mut self.settings {
            limit.algorithm = settings.algorithm();
            settings.read_limit(map, Context { paths, files }, limit);
        }
        let in_queue = limit.queue.iter_mut().flat_map(|queue| &mut queue.fields).map(|(_, part)| part);
        for part in limit.by.iter_mut().chain(in_queue) {
            part.path_reading = conditions.path_reading;
        }
        limit.conditions = conditions;
        let algorithm = self.settings.as_ref().map(|settings| settings.algorithm());
        let allowance = algorithms::allowance(self.settings.as_deref(), map, interner)
            .and_then(|plain| elevated::add(map, plain, algorithm, None, interner));
        self.numbers_are_known = allowance.is_ok() && self.settings.is_some() && !map.has_wrong_key;
        limit.allowance = allowance.unwrap_or(Allowance::Disabled);
        request_numbers::read(map, limit);
        self.short = map.get("short").map(|(_, node)| node.clone());
        options(map, files, limit);
        if let Some(settings) = &self.settings {
            settings.check(map, limit);
            candidate::read(map, settings.as_ref(), self.numbers_are_known, limit, interner);
            self.needs_redis = settings.needs_redis().then(|| map.value("algorithm").place);
        }
    }
}

fn places(map: &Mapping<'_>, name: &Key) -> Places {
    let place = |key: &Key| (key.text.clone(), map.value(&key.text).place);
    let items = |node: &Node| if let Value::List(items) = &node.value { items.clone() } else { vec![node.clone()] };
    let windows = map.get("rates").map(|(_, node)| items(node)).unwrap_or_default();
    let is_long = |node: &&Node| {
        let Value::Scalar { text, .. } = &node.value else { return false };
        let prefix = text.strip_prefix("ip/").and_then(|prefix| prefix.parse().ok());
        prefix.is_some_and(|prefix: u8| prefix > IPV6_CLIENT_PREFIX)
    };
    let long_prefix = map.get("by").and_then(|(_, node)| items(node).iter().find(is_long).map(|node| node.place));
    Places {
        name: name.place,
        values: map.keys().map(place).collect(),
        windows: windows.iter().map(|node| node.place).collect(),
        long_prefix,
    }
}

/// Rejects ids that requests of the rate limit service cannot have: they consist of descriptors.
fn check_by_of_domain(map: &Mapping<'_>, by: &[TypedPart], conditions: &Match, name: &Key) -> ReadResult<()> {
    let by_entry = |part: &TypedPart| matches!(part.part, Part::Descriptor(_));
    if conditions.domains.is_empty() || by.iter().all(by_entry) {
        return Ok(());
    }
    let help = "write `by: { descriptor: KEY }`, or `by: global` for one bucket";
    Err(if let Some((_, by)) = map.get("by") {
        by.error("with `domain`, an id can only consist of descriptor entries", help)
    } else {
        let why = "the rate limit service does not receive the client's address";
        name.error(format!("a limit with `domain` needs `by`: {why}"), help)
    })
}

/// Reads the keys that have defaults. One with a mistake keeps its default.
fn options(map: &Mapping<'_>, files: &[NamedFile], limit: &mut Limit) {
    let (Ok(_) | Err(ReportedError)) = map.read("cost", |node| cost::read(node, limit));
    map.set("mode", &mut limit.mode, one_of(&MODES));
    map.set("enforce_for", &mut limit.enforce_for, share);
    if let Some((key, _)) = map.get("enforce_for").filter(|_| limit.mode != LimitMode::Enforce) {
        key.warning(Lint::NoEffect, "`enforce_for` has no effect in this mode", "write `mode: enforce`");
    }
    map.set("missing", &mut limit.missing, one_of(&FALLBACKS));
    map.set("malformed", &mut limit.malformed, one_of(&FALLBACKS));
    map.set("on_store_error", &mut limit.on_store_error, one_of(&STORE_ERROR));
    map.set("deny_with", &mut limit.deny_with, |node| deny_with::read(node, files).map(|with| Some(with.into())));
    if map.get("headers").is_some_and(|(_, node)| deny_with::is_none(node)) {
        limit.visibility = Visibility::Hidden;
    }
    map.set("max_keys", &mut limit.max_keys, at_least_one);
    map.set("max_new_keys", &mut limit.max_new_keys, at_least_one);
    map.set("per_call", &mut limit.per_call, Node::truth);
    map.set("drain_over_limit", &mut limit.drain_over_limit, Node::truth);
    map.set("short", &mut limit.short, short);
    map.set("review_by", &mut limit.review_by, |node| review::read(node).map(Some));
    map.set("tag", &mut limit.tag, tag);
    ban::read(map, limit);
    warn_at::read(map, limit);
    let (Ok(()) | Err(ReportedError)) = response_cost::read(map, limit);
    warn_of_cost(map, limit);
}

fn warn_of_cost(map: &Mapping<'_>, limit: &Limit) {
    // `reserve` may be in `cost_from_response`.
    let Some((_, node)) = map.first(&["reserve", "cost", "cost_from_response"]) else { return };
    if limit.cost == Cost::Fixed(0) {
        let help = "remove `cost` to count each request as 1";
        node.warning(Lint::CountsNothing, "with a cost of 0, the limit never counts anything", help);
    } else if let Some(burst) = burst_below_cost(&limit.cost, &limit.allowance) {
        let message = format!("the cost exceeds the burst of {burst}: no request can pass");
        node.warning(Lint::CostAboveBurst, message, "raise `burst`, or write `deny: true` if this is intended");
    }
}

/// Returns the smallest burst, if the fixed cost exceeds it.
pub(super) fn burst_below_cost(cost: &Cost, allowance: &Allowance) -> Option<u64> {
    let (Cost::Fixed(cost), Some(windows)) = (cost, allowance.windows()) else { return None };
    let elevated = allowance.elevated().map_or(0, |elevated| elevated.numbers.burst());
    windows.iter().map(|numbers| numbers.burst().max(elevated)).min().filter(|burst| burst < cost)
}

fn at_least_one(node: &Node) -> ReadResult<Option<u64>> {
    node.positive("must be at least 1", "remove it to use the default").map(Some)
}

fn short(node: &Node) -> ReadResult<String> {
    let short = node.text()?;
    if is_name(short, LONGEST_SHORT) {
        return Ok(short.to_owned());
    }
    let help = format!("use 1 to {LONGEST_SHORT} letters, digits, `_`, `.` and `-`");
    Err(node.error(format!("invalid short name {}", quoted(short)), help))
}

fn tag(node: &Node) -> ReadResult<Tag> {
    let name = node.text()?;
    if is_limit_name(name) {
        return Ok(Tag::named(name));
    }
    let help = format!("start with a letter; use at most {LONGEST_NAME} letters, digits, `_`, `.` and `-`");
    Err(node.error(format!("invalid tag {}", quoted(name)), help))
}
