//! Reads the limits of `limits`.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::algorithms::fixed_window::Windows;
use super::algorithms::{self, Settings, elevated, queue, script};
use super::mapping::Mapping;
use super::numbers::{self, Interner};
use super::problem::{Findings, Place, Reported, quoted};
use super::scalars::{one_of, positive, text, truth, whole};
use super::script_files::ScriptFile;
use super::suggest::nearest;
use super::yaml::{Key, Node, Value};
use super::{by, matching, response_cost};
use crate::engine::algorithms::algorithm::Algorithm;
use crate::engine::rules::allowance::Allowance;
use crate::engine::rules::component::{Component, ComponentSource};
use crate::engine::rules::identity::Fallback;
use crate::engine::rules::limit::{Cost, Limit, LimitMode, StoreErrorPolicy, WHOLE_SHARE};

/// The keys of all limits, whatever their algorithm, beyond those of [`numbers::KEYS`].
const COMMON_KEYS: [&str; 17] = [
    "match",
    "by",
    "cost",
    "cost_from_response",
    "reserve",
    "spend_when",
    "mode",
    "enforce_for",
    "missing",
    "malformed",
    "on_store_error",
    "max_keys",
    "max_new_keys",
    "per_call",
    "drain_over_limit",
    "short",
    "algorithm",
];

/// The keys of a limit.
pub(super) static KEYS: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let mut keys: Vec<_> = COMMON_KEYS.into_iter().chain(numbers::KEYS).chain(algorithms::keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
});

/// The keys of `cost` if the request carries it.
pub(super) const COST_KEYS: [&str; 2] = ["header", "query"];

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
    pub(super) scripts: Vec<ScriptFile>,
    /// Names in lower case and the drafts that have them.
    names: HashMap<String, usize>,
}

/// A limit that may have mistakes, which have been reported.
pub(super) struct Draft {
    pub(super) limit: Limit,
    /// The place of its name.
    pub(super) place: Place,
    /// Whether ids can be checked against its `by`.
    pub(super) by_is_known: bool,
    /// How many regular expressions its overrides have.
    pub(super) regexes: usize,
    /// The algorithm's settings, which its overrides inherit; `None` if they have a mistake.
    pub(super) settings: Option<Settings>,
    /// The place of `algorithm`, if it needs Redis.
    needs_redis: Option<Place>,
    /// Whether its numbers have no mistakes.
    pub(super) numbers_are_known: bool,
    short: Option<Place>,
}

impl Limits {
    /// No limits yet. `scripts` are the files that limits may name.
    pub(super) fn with(scripts: &[ScriptFile]) -> Self {
        Self { scripts: scripts.to_vec(), ..Self::default() }
    }

    /// Returns the index of a limit. Names match in their exact spelling.
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        let place = *self.names.get(&name.to_ascii_lowercase())?;
        (self.drafts[place].limit.name == name).then_some(place)
    }

    /// Returns help for an unknown name.
    pub(super) fn suggest(&self, name: &str) -> String {
        nearest(name, self.drafts.iter().map(|draft| draft.limit.name.as_str())).map_or_else(
            || "add it under `limits`; a limit without numbers applies only to its overrides".into(),
            |name| format!("did you mean `{name}`?"),
        )
    }

    /// Adds the limit of one entry of `limits`.
    pub(super) fn add(&mut self, key: &Key, node: &Node, interner: &mut Interner, findings: &mut Findings) {
        check_name(key, findings);
        match self.names.get(&key.text.to_ascii_lowercase()) {
            Some(first) => {
                let first = &self.drafts[*first];
                let message = format!("duplicate limit name {}", quoted(&key.text));
                let line = first.place.line;
                let help = if first.limit.name == key.text {
                    format!("the first one is on line {line}; keep one of them")
                } else {
                    format!("{} is on line {line}; names are case-insensitive", quoted(&first.limit.name))
                };
                findings.error(key.place, message, help);
            }
            None => {
                self.names.insert(key.text.to_ascii_lowercase(), self.drafts.len());
            }
        }
        self.drafts.push(Draft::of(key, node, &self.scripts, interner, findings));
    }

    /// Checks the limits against each other.
    pub(super) fn check(&self, findings: &mut Findings) {
        let mut shorts: HashMap<String, usize> = self.names.clone();
        for (place, draft) in self.drafts.iter().enumerate() {
            let Some(short_place) = draft.short else { continue };
            match shorts.insert(draft.limit.short.to_ascii_lowercase(), place) {
                Some(other) if other != place => {
                    let message = format!("{} is already in use", quoted(&draft.limit.short));
                    let help = format!("it is the name or `short` of {}", quoted(&self.drafts[other].limit.name));
                    findings.error(short_place, message, help);
                }
                _ => {}
            }
        }
    }

    /// Warns of limits that never apply. Needs the overrides.
    pub(super) fn warn_of_idle(&self, findings: &mut Findings) {
        for draft in &self.drafts {
            let limit = &draft.limit;
            let applies = limit.per_call || limit.allowance != Allowance::Disabled || !limit.overrides.is_empty();
            if draft.numbers_are_known && !applies {
                let message = format!("{} never applies: it has no numbers and no overrides", quoted(&limit.name));
                let numbers = draft.settings.as_ref().map_or("numbers", Settings::number_keys);
                findings.warning(draft.place, message, format!("add {numbers}, or overrides"));
            }
        }
    }

    /// Reports the limits that do not work in memory.
    pub(super) fn report_needing_redis(&self, findings: &mut Findings) {
        for draft in &self.drafts {
            if let Some(place) = draft.needs_redis.filter(|_| draft.limit.mode != LimitMode::Off) {
                let message =
                    format!("{} needs Redis: queues and scripts do not work in memory", quoted(&draft.limit.name));
                findings.error(place, message, "start with `--store redis://...`, or remove the limit");
            }
        }
    }
}

fn check_name(key: &Key, findings: &mut Findings) {
    let name = &key.text;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    if let Some((limit, id)) = name.split_once(':') {
        let message = format!("invalid limit name {}", quoted(name));
        let help = if limit.is_empty() || id.is_empty() {
            "use letters, digits, `_`, `.` and `-`"
        } else {
            "an override (`Name:id`) belongs under `overrides`"
        };
        findings.error(key.place, message, help);
    } else if name.is_empty() {
        findings.error(key.place, "the limit's name is empty", "use a name such as RequestsPerIPAddress");
    } else if name.len() > LONGEST_NAME {
        findings.error(key.place, "the limit's name is too long", format!("use at most {LONGEST_NAME} characters"));
    } else if !name.bytes().all(plain) || !name.starts_with(|first: char| first.is_ascii_alphabetic()) {
        let help = "start with a letter; use letters, digits, `_`, `.` and `-`";
        findings.error(key.place, format!("invalid limit name {}", quoted(name)), help);
    }
}

impl Draft {
    fn of(key: &Key, node: &Node, scripts: &[ScriptFile], interner: &mut Interner, findings: &mut Findings) -> Self {
        let mut draft = Self {
            limit: Limit::new(&key.text),
            place: key.place,
            by_is_known: false,
            regexes: 0,
            settings: None,
            needs_redis: None,
            numbers_are_known: false,
            short: None,
        };
        if node.is_null() {
            let help = "write `{}` for a limit that applies only to its overrides";
            findings.error(key.place, format!("{} is empty", quoted(&key.text)), help);
        } else if let Ok(map) = Mapping::of(node, "a limit", &KEYS, findings) {
            draft.read(&map, scripts, interner, findings);
        }
        draft
    }

    fn read(&mut self, map: &Mapping<'_>, scripts: &[ScriptFile], interner: &mut Interner, findings: &mut Findings) {
        let limit = &mut self.limit;
        let mut paths_are_known = true;
        if let Some((_, node)) = map.get("match") {
            let parsed = matching::parse(node, findings);
            (limit.conditions, paths_are_known) = (parsed.conditions, parsed.paths_are_known);
        }
        let paths = paths_are_known.then_some(limit.conditions.paths.as_slice());
        let by = map.read("by", findings, |node, findings| by::parse(node, paths, findings));
        self.by_is_known = by.is_ok();
        if let Ok(Some(by)) = by {
            limit.by = by;
        }
        if self.by_is_known && !limit.conditions.domains.is_empty() {
            self.by_is_known = check_by_of_domain(map, &limit.by, self.place, findings).is_ok();
        }
        let algorithm = map.read("algorithm", findings, Settings::of_word);
        self.settings = algorithm.and_then(|word| word.unwrap_or_default().read(map, findings)).ok();
        limit.algorithm = self.settings.as_ref().map_or_else(Algorithm::default, Settings::algorithm);
        match &mut self.settings {
            Some(Settings::Queue { .. }) => limit.queue = queue::queue(map, paths, findings).map(Box::new).ok(),
            Some(Settings::Script { arguments }) => {
                limit.script = script::script(map, scripts, findings).map(Box::new).ok();
                *arguments = Some(0);
            }
            _ => {}
        }
        let in_queue = limit.queue.iter_mut().flat_map(|queue| &mut queue.fields).map(|(_, component)| component);
        for component in limit.by.iter_mut().chain(in_queue) {
            component.path_reading = limit.conditions.path_reading;
        }
        // With an unknown algorithm, the numbers are checked like those of the one that accepts the most.
        let settings = self.settings.clone().unwrap_or_else(|| Settings::FixedWindow(Windows::default()));
        let allowance = settings
            .allowance(map, interner, findings)
            .and_then(|plain| elevated::of_limit(map, plain, self.settings.as_ref(), interner, findings));
        self.numbers_are_known = allowance.is_ok();
        limit.allowance = allowance.unwrap_or(Allowance::Disabled);
        self.short = map.get("short").map(|(_, node)| node.place);
        options(map, limit, findings);
        if let Some(settings) = &self.settings {
            settings.check(map, limit, findings);
            self.needs_redis = settings.needs_redis().then(|| map.value_place("algorithm"));
        }
    }
}

/// Rejects ids that requests of the rate limit service cannot have: they consist of descriptors.
fn check_by_of_domain(
    map: &Mapping<'_>,
    by: &[Component],
    name: Place,
    findings: &mut Findings,
) -> Result<(), Reported> {
    if by.iter().all(|component| matches!(component.source, ComponentSource::Descriptor(_))) {
        return Ok(());
    }
    let help = "write `by: { descriptor: KEY }`, or `by: global` for one bucket";
    Err(match map.get("by") {
        Some((_, by)) => findings.error(by.place, "with `domain`, an id can only consist of descriptor entries", help),
        None => findings.error(
            name,
            "a limit with `domain` needs `by`: the rate limit service does not receive the client's address",
            help,
        ),
    })
}

/// Reads the keys that have defaults. One with a mistake keeps its default.
fn options(map: &Mapping<'_>, limit: &mut Limit, findings: &mut Findings) {
    map.set("cost", &mut limit.cost, findings, cost);
    map.set("mode", &mut limit.mode, findings, one_of(&MODES));
    map.set("enforce_for", &mut limit.enforce_for, findings, share);
    if let Some((key, _)) = map.get("enforce_for").filter(|_| limit.mode != LimitMode::Enforce) {
        findings.warning(key.place, "`enforce_for` has no effect in this mode", "write `mode: enforce`");
    }
    map.set("missing", &mut limit.missing, findings, one_of(&FALLBACKS));
    map.set("malformed", &mut limit.malformed, findings, one_of(&FALLBACKS));
    map.set("on_store_error", &mut limit.on_store_error, findings, one_of(&STORE_ERROR));
    map.set("max_keys", &mut limit.max_keys, findings, at_least_one);
    map.set("max_new_keys", &mut limit.max_new_keys, findings, at_least_one);
    map.set("per_call", &mut limit.per_call, findings, truth);
    map.set("drain_over_limit", &mut limit.drain_over_limit, findings, truth);
    map.set("short", &mut limit.short, findings, short);
    response_cost::read(map, limit, findings);
    warn_of_cost(map, limit, findings);
}

fn cost(node: &Node, findings: &mut Findings) -> Result<Cost, Reported> {
    if !matches!(node.value, Value::Map(_)) {
        return whole(node, findings).map(Cost::Fixed);
    }
    let map = Mapping::of(node, "`cost`", &COST_KEYS, findings)?;
    match (map.get("header"), map.get("query")) {
        (Some((_, name)), None) => by::header_name(name, findings).map(Cost::Header),
        (None, Some((_, name))) => text(name, findings).map(|name| Cost::Query(name.to_owned())),
        _ => {
            let help = "write a number, `{ header: NAME }` or `{ query: NAME }`";
            Err(findings.error(node.place, "`cost` needs exactly one source", help))
        }
    }
}

fn warn_of_cost(map: &Mapping<'_>, limit: &Limit, findings: &mut Findings) {
    // `reserve` may be in `cost_from_response`.
    let Some((_, node)) = map.first(&["reserve", "cost", "cost_from_response"]) else { return };
    if limit.cost == Cost::Fixed(0) {
        let help = "remove `cost` to count each request as 1";
        findings.warning(node.place, "with a cost of 0, the limit never counts anything", help);
    } else if let Some(burst) = burst_below_cost(&limit.cost, &limit.allowance) {
        let message = format!("the cost exceeds the burst of {burst}: no request can pass");
        findings.warning(node.place, message, "raise `burst`, or write `deny: true` if this is intended");
    }
}

/// Returns the smallest burst, if the fixed cost exceeds it.
pub(super) fn burst_below_cost(cost: &Cost, allowance: &Allowance) -> Option<u64> {
    let (Cost::Fixed(cost), Some(windows)) = (cost, allowance.windows()) else { return None };
    let elevated = allowance.elevated().map_or(0, |elevated| elevated.numbers.burst());
    windows.iter().map(|numbers| numbers.burst().max(elevated)).min().filter(|burst| burst < cost)
}

fn at_least_one(node: &Node, findings: &mut Findings) -> Result<Option<u64>, Reported> {
    positive(node, "must be at least 1", "remove it to use the default", findings).map(Some)
}

/// Reads a percentage with up to four decimals, in parts of [`WHOLE_SHARE`].
fn share(node: &Node, findings: &mut Findings) -> Result<u32, Reported> {
    let given = text(node, findings)?;
    let parsed = given.strip_suffix('%').and_then(|number| {
        let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole) || !digits(fraction) || fraction.len() > 4 || whole.len() > 3 {
            return None;
        }
        let parts = whole.parse::<u32>().ok()? * 10_000 + format!("{fraction:0<4}").parse::<u32>().ok()?;
        (parts <= WHOLE_SHARE).then_some(parts)
    });
    parsed.ok_or_else(|| {
        let help = match given.parse::<f64>() {
            Ok(number) if (0.0..=100.0).contains(&number) => format!("write {given}%"),
            _ => "use 0% to 100% with up to four decimals, such as 0.5%".to_owned(),
        };
        findings.error(node.place, format!("invalid percentage {}", quoted(given)), help)
    })
}

fn short(node: &Node, findings: &mut Findings) -> Result<String, Reported> {
    let short = text(node, findings)?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    if short.is_empty() || short.len() > LONGEST_SHORT || !short.bytes().all(plain) {
        let help = format!("use 1 to {LONGEST_SHORT} letters, digits, `_`, `.` and `-`");
        return Err(findings.error(node.place, format!("invalid short name {}", quoted(short)), help));
    }
    Ok(short.to_owned())
}
