//! One limit of `limits`.

use std::collections::HashMap;

use super::algorithm::{Style, WindowStyle, algorithm};
use super::by;
use super::elevated;
use super::fields::{Fields, choice, text, truth, whole};
use super::matching;
use super::numbers::{self, Interner};
use super::problem::{Findings, Place, Reported, quoted};
use super::response_cost;
use super::script::ScriptFile;
use super::suggest::nearest;
use super::yaml::{Key, Node, Value};
use super::{queue, script, server_only};
use crate::engine::algorithms::numbers::Allowance;
use crate::engine::rules::by::{Component, Source};
use crate::engine::rules::limit::{Algorithm, Cost, Fallback, Limit, LimitMode, StoreErrorPolicy, WHOLE_SHARE};

/// The fields of a limit.
pub(super) const KEYS: &[&str] = &[
    "match",
    "by",
    "burst",
    "count",
    "period",
    "rates",
    "unlimited",
    "deny",
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
    "aligned",
    "timezone",
    "resets_on",
    "count_denied",
    "capacity",
    "lease",
    "max_age",
    "kind",
    "fields",
    "then",
    "file",
    "args",
    "headers",
    "elevated",
];

/// The fields of a `cost` that the request says itself.
pub(super) const COST_KEYS: [&str; 2] = ["header", "query"];

/// The words of `mode`.
pub(super) const MODES: [(&str, LimitMode); 3] =
    [("enforce", LimitMode::Enforce), ("shadow", LimitMode::Shadow), ("off", LimitMode::Off)];

/// The words of `missing` and `malformed`.
pub(super) const FALLBACKS: [(&str, Fallback); 3] =
    [("skip", Fallback::Skip), ("deny", Fallback::Deny), ("shared", Fallback::Shared)];

/// The words of `on_store_error`.
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
    /// Where its name stands.
    pub(super) place: Place,
    /// Whether ids can be checked against its `by`.
    pub(super) by_is_known: bool,
    /// How many regular expressions its overrides have.
    pub(super) regexes: usize,
    /// How its tokens come back, and those of its overrides; `None` if that has a mistake.
    pub(super) style: Option<Style>,
    /// Where it says that it is kept in Redis and nowhere else, if it is.
    pub(super) needs_redis: Option<Place>,
    /// Whether what it allows is what the file says.
    pub(super) numbers_are_known: bool,
    short: Option<Place>,
}

impl Limits {
    /// No limits yet; these are the files that they may name.
    pub(super) fn with(scripts: &[ScriptFile]) -> Self {
        Self { scripts: scripts.to_vec(), ..Self::default() }
    }

    /// The draft of this name, in its own spelling.
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        let place = *self.names.get(&name.to_ascii_lowercase())?;
        (self.drafts[place].limit.name == name).then_some(place)
    }

    /// Help for a name that no limit has.
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
        self.drafts.push(draft(key, node, &self.scripts, interner, findings));
    }

    /// Checks what concerns all limits together, once they are read.
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

    /// Warns of limits that cannot apply, once the overrides are read.
    pub(super) fn warn_of_idle(&self, findings: &mut Findings) {
        for draft in &self.drafts {
            let limit = &draft.limit;
            let applies = limit.per_call || limit.allowance != Allowance::Disabled || !limit.overrides.is_empty();
            if draft.numbers_are_known && !applies {
                let message = format!("{} never applies: it has no numbers and no overrides", quoted(&limit.name));
                let in_flight = limit.algorithm == Algorithm::Concurrency;
                let numbers = if in_flight { "`capacity`" } else { "`count` and `period`" };
                findings.warning(draft.place, message, format!("add {numbers}, or overrides"));
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

fn draft(key: &Key, node: &Node, scripts: &[ScriptFile], interner: &mut Interner, findings: &mut Findings) -> Draft {
    let mut limit = Limit::new(&key.text);
    let mut draft = Draft {
        limit: Limit::new(""),
        place: key.place,
        by_is_known: false,
        regexes: 0,
        style: None,
        needs_redis: None,
        numbers_are_known: false,
        short: None,
    };
    if node.is_null() {
        let help = "write `{}` for a limit that applies only to its overrides";
        findings.error(key.place, format!("{} is empty", quoted(&key.text)), help);
    } else if let Ok(fields) = Fields::of(node, "a limit", KEYS, findings) {
        let mut paths_are_known = true;
        if let Some((_, node)) = fields.get("match") {
            let parsed = matching::parse(node, findings);
            (limit.conditions, paths_are_known) = (parsed.conditions, parsed.paths_are_known);
        }
        let paths = paths_are_known.then_some(limit.conditions.paths.as_slice());
        let by = fields.read("by", findings, |node, findings| by::parse(node, paths, findings));
        draft.by_is_known = by.is_ok();
        limit.by = by.ok().flatten().unwrap_or(limit.by);
        for component in &mut limit.by {
            component.path_reading = limit.conditions.path_reading;
        }
        if draft.by_is_known && !limit.conditions.domains.is_empty() {
            draft.by_is_known = check_by_of_domain(&fields, &limit.by, key.place, findings).is_ok();
        }
        let style = fields.read("algorithm", findings, algorithm);
        draft.style = style.and_then(|style| Style::of(&fields, &style.unwrap_or_default(), findings)).ok();
        // With the algorithm in doubt the numbers are checked as those that may say the most.
        limit.algorithm = draft.style.as_ref().map_or_else(Algorithm::default, Style::algorithm);
        match &mut draft.style {
            Some(Style::Queue(_)) => {
                limit.queue = queue::queue(&fields, paths, findings).map(Box::new).ok();
                for (_, component) in limit.queue.iter_mut().flat_map(|queue| &mut queue.fields) {
                    component.path_reading = limit.conditions.path_reading;
                }
            }
            Some(Style::Script(arguments)) => {
                limit.script = script::script(&fields, scripts, findings).map(Box::new).ok();
                *arguments = Some(0);
            }
            _ => {}
        }
        let style = draft.style.clone().unwrap_or_else(|| Style::FixedWindow(WindowStyle::default()));
        let allowance = numbers::allowance(&fields, &style, interner, findings);
        let allowance =
            allowance.and_then(|plain| elevated::of_limit(&fields, plain, draft.style.as_ref(), interner, findings));
        draft.numbers_are_known = allowance.is_ok();
        limit.allowance = allowance.unwrap_or(Allowance::Disabled);
        draft.short = fields.get("short").map(|(_, node)| node.place);
        options(&fields, &mut limit, findings);
        if limit.algorithm == Algorithm::Concurrency {
            in_flight(&fields, &limit, findings);
        }
        if matches!(limit.algorithm, Algorithm::Queue | Algorithm::Script) {
            draft.needs_redis = fields.get("algorithm").map(|(_, node)| node.place);
            server_only::check(&fields, &mut limit, findings);
        }
    }
    draft.limit = limit;
    draft
}

/// Refuses ids that no request of the rate limit service can have: all that it tells is in the descriptor.
fn check_by_of_domain(
    fields: &Fields<'_>,
    by: &[Component],
    name: Place,
    findings: &mut Findings,
) -> Result<(), Reported> {
    if by.iter().all(|component| matches!(component.source, Source::Descriptor(_))) {
        return Ok(());
    }
    let help = "write `by: { descriptor: KEY }`, or `by: global` for one bucket";
    Err(match fields.get("by") {
        Some((_, by)) => findings.error(by.place, "with `domain`, an id can only consist of descriptor entries", help),
        None => findings.error(
            name,
            "a limit with `domain` needs `by`: the rate limit service does not receive the client's address",
            help,
        ),
    })
}

/// Refuses what means nothing for requests in flight, and limits whose requests nobody sees end.
fn in_flight(fields: &Fields<'_>, limit: &Limit, findings: &mut Findings) {
    if let Some((key, _)) = fields.get("cost").filter(|_| limit.cost != Cost::Fixed(1)) {
        let message = "`cost` does not apply to `algorithm: concurrency`: a request takes one slot";
        findings.error(key.place, message, "remove `cost`, or use another algorithm");
    }
    if let Some((key, _)) = fields.get("per_call").filter(|_| limit.per_call) {
        let message = "`per_call` does not apply to `algorithm: concurrency`: Weir cannot see such a request end";
        findings.error(key.place, message, "remove `per_call`");
    }
    if let Some((key, _)) = fields.get("drain_over_limit").filter(|_| limit.drain_over_limit) {
        findings.error(
            key.place,
            "`drain_over_limit` does not apply to `algorithm: concurrency`",
            "remove `drain_over_limit`",
        );
    }
    let descriptor = |component: &Component| matches!(component.source, Source::Descriptor(_));
    let place = match (fields.get("match"), fields.get("by")) {
        (Some((key, _)), _) if limit.conditions.needs_descriptor() => key.place,
        (_, Some((key, _))) if limit.missing == Fallback::Skip && limit.by.iter().any(descriptor) => key.place,
        _ => return,
    };
    let message = "only decision services receive descriptors, and they do not see requests end";
    findings.error(place, message, "the proxy counts requests in flight; use a `match` and `by` that it can evaluate");
}

/// Reads the fields that have defaults; one that is wrong keeps its default and has been reported.
fn options(fields: &Fields<'_>, limit: &mut Limit, findings: &mut Findings) {
    if let Ok(Some(cost)) = fields.read("cost", findings, cost) {
        limit.cost = cost;
    }
    if let Ok(Some(mode)) = fields.read("mode", findings, |node, findings| choice(node, &MODES, findings)) {
        limit.mode = mode;
    }
    if let Ok(Some(share)) = fields.read("enforce_for", findings, share) {
        limit.enforce_for = share;
        if let (Some((key, _)), false) = (fields.get("enforce_for"), limit.mode == LimitMode::Enforce) {
            findings.warning(key.place, "`enforce_for` has no effect in this mode", "write `mode: enforce`");
        }
    }
    let mut fallback = |name| fields.read(name, findings, |node, findings| choice(node, &FALLBACKS, findings));
    if let Ok(Some(missing)) = fallback("missing") {
        limit.missing = missing;
    }
    if let Ok(Some(malformed)) = fallback("malformed") {
        limit.malformed = malformed;
    }
    let policy = fields.read("on_store_error", findings, |node, findings| choice(node, &STORE_ERROR, findings));
    if let Ok(Some(policy)) = policy {
        limit.on_store_error = policy;
    }
    if let Ok(most) = fields.read("max_keys", findings, at_least_one) {
        limit.max_keys = most;
    }
    if let Ok(most) = fields.read("max_new_keys", findings, at_least_one) {
        limit.max_new_keys = most;
    }
    if let Ok(Some(per_call)) = fields.read("per_call", findings, truth) {
        limit.per_call = per_call;
    }
    if let Ok(Some(drains)) = fields.read("drain_over_limit", findings, truth) {
        limit.drain_over_limit = drains;
    }
    if let Ok(Some(short)) = fields.read("short", findings, short) {
        limit.short = short;
    }
    response_cost::read(fields, limit, findings);
    warn_of_cost(fields, limit, findings);
}

fn cost(node: &Node, findings: &mut Findings) -> Result<Cost, Reported> {
    if !matches!(node.value, Value::Map(_)) {
        return whole(node, findings).map(Cost::Fixed);
    }
    let fields = Fields::of(node, "`cost`", &COST_KEYS, findings)?;
    match (fields.get("header"), fields.get("query")) {
        (Some((_, name)), None) => by::header_name(name, findings).map(Cost::Header),
        (None, Some((_, name))) => text(name, findings).map(|name| Cost::Query(name.to_owned())),
        _ => {
            let help = "write a number, `{ header: NAME }` or `{ query: NAME }`";
            Err(findings.error(node.place, "`cost` needs exactly one source", help))
        }
    }
}

fn warn_of_cost(fields: &Fields<'_>, limit: &Limit, findings: &mut Findings) {
    // `reserve` may stand in `cost_from_response` as well.
    let given = ["reserve", "cost", "cost_from_response"].iter().find_map(|name| fields.get(name));
    let Some((_, node)) = given else { return };
    if limit.cost == Cost::Fixed(0) {
        let help = "remove `cost` to count each request as 1";
        findings.warning(node.place, "with a cost of 0, the limit never counts anything", help);
    } else if let Some(burst) = burst_below_cost(&limit.cost, &limit.allowance) {
        let message = format!("the cost exceeds the burst of {burst}: no request can pass");
        findings.warning(node.place, message, "raise `burst`, or write `deny: true` if this is intended");
    }
}

/// The smallest burst, if a request of the limit's fixed cost can never fit into it.
pub(super) fn burst_below_cost(cost: &Cost, allowance: &Allowance) -> Option<u64> {
    let (Cost::Fixed(cost), Some(windows)) = (cost, allowance.windows()) else { return None };
    let elevated = allowance.elevated().map_or(0, |elevated| elevated.numbers.burst());
    windows.iter().map(|numbers| numbers.burst().max(elevated)).min().filter(|burst| burst < cost)
}

fn at_least_one(node: &Node, findings: &mut Findings) -> Result<u64, Reported> {
    match whole(node, findings)? {
        0 => Err(findings.error(node.place, "must be at least 1", "remove it to use the default")),
        number => Ok(number),
    }
}

/// A percentage, in parts of [`WHOLE_SHARE`]; four digits after the point.
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
