//! Changes of `match` and `by`: which requests a limit covers, and which of them share a bucket.

use std::fmt::Debug;

use ipnet::IpNet;

use super::limits::Change;
use crate::engine::limit::Limit;
use crate::engine::limit::identity::Fallback;
use crate::engine::limit::matching::{Match, PartMatch};
use crate::engine::request::part::TypedPart;
use crate::engine::telling::coverage::{
    all_within, host_is_within, networks_are_within, parts_are_within, path_is_within, within,
};
use crate::engine::telling::order::Effect;
use crate::engine::text::quote::joined;

/// The effect of covering more requests, which then count as well, or fewer.
pub(super) fn of_match(old: &Limit, new: &Limit) -> Option<Change> {
    let (before, after) = (&old.conditions, &new.conditions);
    let parts = [
        ("methods", one_is_enough(&before.methods, &after.methods, String::eq)),
        ("hosts", one_is_enough(&before.hosts, &after.hosts, host_is_within)),
        ("paths", one_is_enough(&before.paths, &after.paths, path_is_within)),
        ("networks", networks(&before.networks, &after.networks)),
        ("domains", one_is_enough(&before.domains, &after.domains, String::eq)),
        ("excluded hosts", none_must_hold(&before.other_hosts, &after.other_hosts, host_is_within)),
        ("excluded paths", none_must_hold(&before.other_paths, &after.other_paths, path_is_within)),
        ("excluded networks", other_networks(&before.other_networks, &after.other_networks)),
        ("headers", each_must_hold(&on("header", before), &on("header", after))),
        ("claims", each_must_hold(&on("claim", before), &on("claim", after))),
        ("descriptor", descriptor(before, after)),
        ("reading of paths", unless_same(&before.path_reading, &after.path_reading)),
    ];
    let changed: Vec<_> = parts.into_iter().filter(|(_, effect)| *effect != Effect::NONE).collect();
    if changed.is_empty() {
        return None;
    }
    let effect = changed.iter().fold(Effect::NONE, |all, (_, effect)| all | *effect);
    let names: Vec<&str> = changed.iter().map(|(name, _)| *name).collect();
    let covers = match effect {
        Effect::STRICTER => "covers more requests",
        Effect::LOOSER => "covers fewer requests",
        _ => "covers other requests",
    };
    let [from, to] = [before, after].map(shown);
    Some(Change { what: "match".into(), from, to, effect, note: format!("{covers}: {}", names.join(", ")) })
}

/// The conditions on the parts with this word.
fn on<'m>(word: &str, conditions: &'m Match) -> Vec<&'m PartMatch> {
    conditions.parts.iter().filter(|wanted| wanted.part.word() == word).collect()
}

/// The conditions, for people.
pub(super) fn shown(conditions: &Match) -> String {
    let lists = [
        list(&conditions.methods),
        list(&conditions.hosts),
        list(&conditions.paths),
        list(&conditions.networks),
        list(&conditions.domains),
    ];
    let mut text = lists.into_iter().flatten().collect::<Vec<_>>().join(" ");
    let more = conditions.parts.len()
        + conditions.other_hosts.len()
        + conditions.other_paths.len()
        + conditions.other_networks.len();
    if more > 0 {
        text.push_str(if text.is_empty() {
            "conditions on headers, claims, entries or exclusions"
        } else {
            " and more"
        });
    }
    if text.is_empty() { "all requests".to_owned() } else { text }
}

fn list<T: ToString>(items: &[T]) -> Option<String> {
    (!items.is_empty()).then(|| items.iter().map(T::to_string).collect::<Vec<_>>().join(","))
}

/// The effect of changing a list of which one item is enough, and that matches everything if it is empty.
fn one_is_enough<T>(old: &[T], new: &[T], is_within: impl Fn(&T, &T) -> bool) -> Effect {
    Effect { stricter: !within(new, old, &is_within), looser: !within(old, new, &is_within) }
}

/// The effect of changing a list of exclusions.
fn none_must_hold<T>(old: &[T], new: &[T], is_within: impl Fn(&T, &T) -> bool) -> Effect {
    Effect { stricter: !all_within(old, new, &is_within), looser: !all_within(new, old, &is_within) }
}

fn networks(old: &[IpNet], new: &[IpNet]) -> Effect {
    Effect { stricter: !networks_are_within(new, old), looser: !networks_are_within(old, new) }
}

fn other_networks(old: &[IpNet], new: &[IpNet]) -> Effect {
    let excludes = |all: &[IpNet], few: &[IpNet]| few.is_empty() || !all.is_empty() && networks_are_within(few, all);
    Effect { stricter: !excludes(new, old), looser: !excludes(old, new) }
}

/// The effect of changing a list of conditions that must all hold: an added one covers fewer requests.
fn each_must_hold(old: &[&PartMatch], new: &[&PartMatch]) -> Effect {
    Effect { stricter: !parts_are_within(new, old), looser: !parts_are_within(old, new) }
}

fn descriptor(before: &Match, after: &Match) -> Effect {
    let [old, new] = [before, after].map(|conditions| on("descriptor", conditions));
    // A whole descriptor has no other entries.
    if before.is_whole || after.is_whole { unless_same(&old, &new) } else { each_must_hold(&old, &new) }
}

fn unless_same<T: Debug>(old: &T, new: &T) -> Effect {
    if format!("{old:?}") == format!("{new:?}") { Effect::NONE } else { Effect::BOTH }
}

/// The effect of ids that more requests share, or fewer.
pub(super) fn of_by(old: &Limit, new: &Limit) -> Option<Change> {
    if old.by == new.by {
        return None;
    }
    let [from, to] = [old, new].map(|limit| by(&limit.by));
    let denies = |limit: &Limit| Fallback::Deny == limit.missing || Fallback::Deny == limit.malformed;
    let finer = splits(&old.by, &new.by);
    let coarser = splits(&new.by, &old.by);
    let (effect, note) = match (finer, coarser) {
        (true, true) => (Effect::NONE, "the same ids in another order"),
        // A request that lacks an added part is denied.
        (true, false) if denies(new) => {
            (Effect::BOTH, "fewer requests share a bucket, and those without an id are denied")
        }
        (true, false) => (Effect::LOOSER, "fewer requests share a bucket"),
        (false, true) if denies(old) => (Effect::BOTH, "more requests share a bucket, and fewer need an id"),
        (false, true) => (Effect::STRICTER, "more requests share a bucket"),
        (false, false) => (Effect::BOTH, "other requests share a bucket"),
    };
    Some(Change { what: "by".into(), from, to, effect, note: note.to_owned() })
}

/// Returns true if requests that share a bucket by `new` share one by `old`.
fn splits(old: &[TypedPart], new: &[TypedPart]) -> bool {
    old.iter().all(|old| new.iter().any(|new| old == new || old.is_wider_address(new)))
}

/// The parts, for people.
pub(super) fn by(parts: &[TypedPart]) -> String {
    if parts.is_empty() { "global".to_owned() } else { joined(parts, " and ") }
}
