//! Changes of a limit's settings beside its numbers, shares and overrides.

use std::fmt::Write;

use super::conditions::{of_by, of_match};
use super::limits::Change;
use crate::engine::algorithms::describe::Span;
use crate::engine::limit::allowance::Allowance;
use crate::engine::limit::deny_with::Visibility;
use crate::engine::limit::identity::Fallback;
use crate::engine::limit::response_cost::{CostSource, ResponseCost};
use crate::engine::limit::{Cost, Limit, LimitMode, StoreErrorPolicy};
use crate::engine::telling::order::Effect;

/// The changed settings.
pub(super) fn all(old: &Limit, new: &Limit) -> Vec<Change> {
    let found = [
        of_match(old, new),
        of_by(old, new),
        mode(old, new),
        cost(old, new),
        response_cost(old, new),
        fallback("missing", old.missing, new.missing, "without an id"),
        fallback("malformed", old.malformed, new.malformed, "with a malformed id"),
        store_error(old, new),
        keys("max_keys", old.max_keys, new.max_keys),
        keys("max_new_keys", old.max_new_keys, new.max_new_keys),
        per_call(old, new),
        drain(old, new),
        unless_same("deny_with", &old.deny_with, &new.deny_with, Effect::NONE, "denied clients get another response"),
        headers(old, new),
        unless_same(
            "numbers of requests",
            &old.request_numbers,
            &new.request_numbers,
            Effect::BOTH,
            "requests bring other numbers",
        ),
        delay(old, new),
        ban(old, new),
        warn_at(old, new),
        unless_same("lease", &old.lease, &new.lease, Effect::BOTH, "gateways take tokens ahead of use"),
        unless_same("queue", &old.queue, &new.queue, Effect::NONE, "entries have other fields"),
        script(old, new),
        short(old, new),
        tag(old, new),
    ];
    found.into_iter().flatten().chain(cost_fallback(old, new)).collect()
}

fn delay(old: &Limit, new: &Limit) -> Option<Change> {
    let shown = |limit: &Limit| limit.delay.map_or("none".to_owned(), |delay| Span(delay.0 * 1_000).to_string());
    let effect = Effect::of_rank(&old.delay, &new.delay).reversed();
    let note = "requests may wait this long until they fit";
    (old.delay != new.delay).then(|| change("delay", shown(old), shown(new), effect, note))
}

fn ban(old: &Limit, new: &Limit) -> Option<Change> {
    let shown = |limit: &Limit| limit.ban.as_ref().map_or("none".to_owned(), ToString::to_string);
    let effect = Effect::of_rank(&old.ban.is_some(), &new.ban.is_some());
    let effect = if old.ban.is_some() && new.ban.is_some() { Effect::BOTH } else { effect };
    (old.ban != new.ban)
        .then(|| change("ban", shown(old), shown(new), effect, "ids that are denied too often are blocked"))
}

fn warn_at(old: &Limit, new: &Limit) -> Option<Change> {
    let shown = |limit: &Limit| limit.warn_at.as_ref().map_or("none".to_owned(), ToString::to_string);
    (old.warn_at != new.warn_at)
        .then(|| change("warn_at", shown(old), shown(new), Effect::NONE, "other ids are warned of"))
}

/// The numbers, for people.
pub(super) fn allowance(allowance: &Allowance) -> String {
    let Some(windows) = allowance.windows() else {
        return match allowance {
            Allowance::Unlimited => "unlimited",
            Allowance::Deny => "deny",
            _ => "no numbers",
        }
        .to_owned();
    };
    let mut names = Vec::new();
    for numbers in windows.iter() {
        let algorithm = numbers.algorithm().name();
        names.push(if algorithm == "gcra" { numbers.to_string() } else { format!("{algorithm} {numbers}") });
    }
    let mut text = names.join(" and ");
    if let Some(elevated) = allowance.elevated() {
        let _ = write!(text, ", elevated {elevated}");
    }
    text
}

fn change(what: &'static str, from: impl Into<String>, to: impl Into<String>, effect: Effect, note: &str) -> Change {
    Change { what: what.into(), from: from.into(), to: to.into(), effect, note: note.to_owned() }
}

fn mode(old: &Limit, new: &Limit) -> Option<Change> {
    let rank = |limit: &Limit| limit.mode == LimitMode::Enforce;
    let word = |limit: &Limit| match limit.mode {
        LimitMode::Enforce => "enforce",
        LimitMode::Shadow => "shadow",
        LimitMode::Off => "off",
    };
    let note = match new.mode {
        LimitMode::Enforce => "it denies from now on",
        LimitMode::Shadow => "it counts and reports, and denies nothing",
        LimitMode::Off => "it counts nothing",
    };
    let effect = Effect::of_rank(&rank(old), &rank(new));
    (old.mode != new.mode).then(|| change("mode", word(old), word(new), effect, note))
}

fn cost(old: &Limit, new: &Limit) -> Option<Change> {
    let shown = |cost: &Cost| match cost {
        Cost::Fixed(cost) => cost.to_string(),
        Cost::Part(part) => format!("{} {}", part.word(), part.name().unwrap_or_default()),
        Cost::Bytes { reserve } => format!("bytes of the request, {reserve} before its length is known"),
    };
    let effect = match (&old.cost, &new.cost) {
        (Cost::Fixed(old), Cost::Fixed(new)) => Effect::of_rank(old, new),
        _ => Effect::BOTH,
    };
    (old.cost != new.cost).then(|| change("cost", shown(&old.cost), shown(&new.cost), effect, ""))
}

/// The changes of what requests without a usable cost cost. They have no effect on fixed costs.
fn cost_fallback(old: &Limit, new: &Limit) -> Vec<Change> {
    if [old, new].iter().any(|limit| matches!(limit.cost, Cost::Fixed(_) | Cost::Bytes { .. })) {
        return Vec::new();
    }
    let word = |denies: bool| if denies { "deny" } else { "default" };
    let (old, new) = (old.cost_fallback, new.cost_fallback);
    let rank = |key, old: bool, new: bool| {
        (old != new).then(|| change(key, word(old), word(new), Effect::of_rank(&old, &new), ""))
    };
    let default = (old.default != new.default).then(|| {
        let effect = Effect::of_rank(&old.default, &new.default);
        change("the default cost", old.default.to_string(), new.default.to_string(), effect, "")
    });
    let missing = rank("`missing` of the cost", old.denies_missing, new.denies_missing);
    let malformed = rank("`malformed` of the cost", old.denies_malformed, new.denies_malformed);
    [default, missing, malformed].into_iter().flatten().collect()
}

fn response_cost(old: &Limit, new: &Limit) -> Option<Change> {
    let shown = |cost: Option<&ResponseCost>| match cost {
        Some(ResponseCost { source: Some(CostSource::RequestBytes), when: Some(when) }) => {
            format!("only if the response is {when}")
        }
        None => "the request's cost".to_owned(),
        Some(ResponseCost { source: Some(source), .. }) => format!("response {source}"),
        Some(ResponseCost { when: Some(when), .. }) => format!("only if the response is {when}"),
        Some(_) => "the response".to_owned(),
    };
    // What is told of `cost` is not told again.
    let cost = |limit: &Limit| limit.response_cost.clone().filter(|cost| !cost.is_of_request() || cost.when.is_some());
    let [from, to] = [old, new].map(|limit| shown(cost(limit).as_deref()));
    let is_same = cost(old) == cost(new);
    (!is_same).then(|| change("cost of the response", from, to, Effect::BOTH, "requests settle another cost"))
}

fn fallback(what: &'static str, old: Fallback, new: Fallback, which: &str) -> Option<Change> {
    let rank = |fallback| match fallback {
        Fallback::Skip => (0, "skip", "are not charged"),
        Fallback::Shared => (1, "shared", "share one bucket"),
        Fallback::Deny => (2, "deny", "are denied"),
    };
    let ((before, from, _), (after, to, now)) = (rank(old), rank(new));
    let note = format!("requests {which} {now}");
    (old != new).then(|| change(what, from, to, Effect::of_rank(&before, &after), &note))
}

fn store_error(old: &Limit, new: &Limit) -> Option<Change> {
    let rank = |limit: &Limit| match limit.on_store_error {
        StoreErrorPolicy::Allow => (0, "allow"),
        StoreErrorPolicy::Local => (1, "local"),
        StoreErrorPolicy::Deny => (2, "deny"),
    };
    let ((before, from), (after, to)) = (rank(old), rank(new));
    let note = match new.on_store_error {
        StoreErrorPolicy::Allow => "requests pass while the store is down",
        StoreErrorPolicy::Local => "each gateway counts by itself while the store is down",
        StoreErrorPolicy::Deny => "requests get 503 while the store is down",
    };
    (before != after).then(|| change("on_store_error", from, to, Effect::of_rank(&before, &after), note))
}

fn keys(what: &'static str, old: Option<u64>, new: Option<u64>) -> Option<Change> {
    let shown = |keys: Option<u64>| keys.map_or("default".to_owned(), |keys| keys.to_string());
    let effect = match (old, new) {
        (Some(old), Some(new)) => Effect::of_rank(&new, &old),
        _ => Effect::BOTH,
    };
    (old != new).then(|| change(what, shown(old), shown(new), effect, "ids beyond it share one bucket"))
}

fn per_call(old: &Limit, new: &Limit) -> Option<Change> {
    let note = if new.per_call { "calls may give their own numbers" } else { "calls must not give numbers" };
    let [from, to] = [old, new].map(|limit| limit.per_call.to_string());
    (old.per_call != new.per_call).then(|| change("per_call", from, to, Effect::BOTH, note))
}

fn drain(old: &Limit, new: &Limit) -> Option<Change> {
    let effect = Effect::of_rank(&old.drain_over_limit, &new.drain_over_limit);
    let [from, to] = [old, new].map(|limit| limit.drain_over_limit.to_string());
    (effect != Effect::NONE).then(|| change("drain_over_limit", from, to, effect, ""))
}

fn headers(old: &Limit, new: &Limit) -> Option<Change> {
    let word = |limit: &Limit| if limit.visibility == Visibility::Hidden { "none" } else { "all" };
    let note =
        if new.visibility == Visibility::Hidden { "clients are not told of it" } else { "clients are told of it" };
    (old.visibility != new.visibility).then(|| change("headers", word(old), word(new), Effect::NONE, note))
}

fn script(old: &Limit, new: &Limit) -> Option<Change> {
    let is_same = format!("{:?}", old.script) == format!("{:?}", new.script);
    (!is_same).then(|| change("script", "one script", "another", Effect::BOTH, "only the script knows what it denies"))
}

/// The change of what the keys of its buckets begin with. A limit with another name may keep it. Another line says that the buckets
/// start full.
fn short(old: &Limit, new: &Limit) -> Option<Change> {
    let is_changed = old.name == new.name && old.short != new.short;
    is_changed.then(|| change("short", &*old.short, &*new.short, Effect::NONE, ""))
}

/// The change of a hash tag that is set. A default tag that changes with `by` or `short` is shown with these.
fn tag(old: &Limit, new: &Limit) -> Option<Change> {
    let is_set = |limit: &Limit| limit.tag != limit.default_tag();
    let is_changed = old.tag != new.tag && (is_set(old) || is_set(new));
    let word = |limit: &Limit| if is_set(limit) { "set" } else { "default" };
    is_changed.then(|| change("tag", word(old), word(new), Effect::NONE, ""))
}

fn unless_same<T: std::fmt::Debug>(what: &'static str, old: &T, new: &T, effect: Effect, note: &str) -> Option<Change> {
    let is_same = format!("{old:?}") == format!("{new:?}");
    (!is_same).then(|| change(what, "old", "new", effect, note))
}
