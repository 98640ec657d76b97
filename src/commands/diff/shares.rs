//! Which ids have which numbers, where a limit or its candidate is enforced for a share of them.
//!
//! Each id has a place among all, and is in a share that reaches beyond it. So ids between two shares' ends are alike.

use super::limits::Change;
use super::settings::allowance;
use crate::engine::limit::allowance::Allowance;
use crate::engine::limit::candidate::Candidate;
use crate::engine::limit::{Limit, WHOLE_SHARE};
use crate::engine::telling::order::{self, Effect};

/// What a limit is for some of its ids, unless they have overrides.
#[derive(Clone, Copy)]
struct Part<'l> {
    is_enforced: bool,
    of_candidate: bool,
    allowance: &'l Allowance,
}

/// The parts of two limits that the same ids have.
type Pair<'l> = (Part<'l>, Part<'l>);

/// Changes of the limit's own numbers, of its share, and of its candidates.
pub(super) fn changes(old: &Limit, new: &Limit) -> Vec<Change> {
    let pairs = pairs(old, new);
    let of_limit = [own_numbers(old, new, &pairs), share(old, new, &pairs)].into_iter().flatten();
    of_limit.chain(candidates(old, new, &pairs)).collect()
}

/// Returns true if some id has other numbers, though its override stayed.
pub(super) fn change_numbers(old: &Limit, new: &Limit) -> bool {
    pairs(old, new).iter().any(|(old, new)| old.allowance != new.allowance)
}

/// The effect on an id of the limit that gets this allowance as its override, over all that it may have now.
pub(super) fn of_override(limit: &Limit, given: &Allowance) -> Effect {
    let parts = ends(limit).into_iter().map(|place| part(limit, place)).filter(|part| part.is_enforced);
    parts.map(|part| order::compare(part.allowance, given)).fold(Effect::NONE, |all, one| all | one)
}

/// The places from which on ids may have another part.
fn ends(limit: &Limit) -> Vec<u32> {
    let of_candidates = limit.candidates.iter().map(|candidate| candidate.enforce_for);
    let mut ends: Vec<u32> = [0, limit.enforce_for].into_iter().chain(of_candidates).collect();
    ends.retain(|place| *place < WHOLE_SHARE);
    ends
}

/// The part of ids at a place.
fn part(limit: &Limit, place: u32) -> Part<'_> {
    let candidate = limit.candidates.iter().find(|candidate| place < candidate.enforce_for);
    Part {
        is_enforced: place < limit.enforce_for,
        of_candidate: candidate.is_some(),
        allowance: candidate.map_or(&limit.allowance, |candidate| &candidate.allowance),
    }
}

fn pairs<'l>(old: &'l Limit, new: &'l Limit) -> Vec<Pair<'l>> {
    let (before, after) = (ends(old), ends(new));
    if keep_places(old, new) {
        return before.into_iter().chain(after).map(|place| (part(old, place), part(new, place))).collect();
    }
    let all = before.iter().flat_map(|before| after.iter().map(move |after| (*before, *after)));
    all.map(|(before, after)| (part(old, before), part(new, after))).collect()
}

/// Returns true if ids keep their places, which are those of their keys.
fn keep_places(old: &Limit, new: &Limit) -> bool {
    old.short == new.short && old.by == new.by
}

fn effect<'p, 'l: 'p>(pairs: &'p [Pair<'l>], of: impl Fn(&Part<'l>, &Part<'l>) -> Effect) -> Effect {
    pairs.iter().map(|(old, new)| of(old, new)).fold(Effect::NONE, |all, one| all | one)
}

/// The effect where both sides are enforced and the numbers are the limit's own, or, on one side at least, the candidate's.
fn of_numbers(pairs: &[Pair<'_>], of_candidate: bool) -> Effect {
    effect(pairs, |old, new| {
        let is_meant = (old.of_candidate || new.of_candidate) == of_candidate;
        if is_meant && old.is_enforced && new.is_enforced {
            order::compare(old.allowance, new.allowance)
        } else {
            Effect::NONE
        }
    })
}

fn own_numbers(old: &Limit, new: &Limit, pairs: &[Pair<'_>]) -> Option<Change> {
    let [from, to] = [old, new].map(|limit| allowance(&limit.allowance));
    let effect = of_numbers(pairs, false);
    (old.allowance != new.allowance).then(|| Change { what: "numbers".into(), from, to, effect, note: String::new() })
}

fn share(old: &Limit, new: &Limit, pairs: &[Pair<'_>]) -> Option<Change> {
    let [from, to] = [old, new].map(|limit| percent(limit.enforce_for));
    let effect = effect(pairs, |old, new| Effect::of_rank(&old.is_enforced, &new.is_enforced));
    let keeps = keep_places(old, new);
    let note = if keeps { "a larger share includes the ids of a smaller one" } else { "other ids are in the share" };
    let is_changed = old.enforce_for != new.enforce_for || effect != Effect::NONE;
    is_changed.then(|| Change { what: "enforce_for".into(), from, to, effect, note: note.to_owned() })
}

/// Changes of candidates, by name.
fn candidates(old: &Limit, new: &Limit, pairs: &[Pair<'_>]) -> Vec<Change> {
    let removed = old.candidates.iter().filter(|gone| named(new, gone.name.as_deref()).is_none());
    let names = new.candidates.iter().chain(removed).map(|candidate| candidate.name.as_deref());
    names.filter_map(|name| candidate(old, new, pairs, name)).collect()
}

fn named<'l>(limit: &'l Limit, name: Option<&str>) -> Option<&'l Candidate> {
    limit.candidates.iter().find(|candidate| candidate.name.as_deref() == name)
}

fn candidate(old: &Limit, new: &Limit, pairs: &[Pair<'_>], name: Option<&str>) -> Option<Change> {
    let shown = |candidate: Option<&Candidate>| {
        candidate.map_or("none".to_owned(), |candidate| match candidate.enforce_for {
            0 => allowance(&candidate.allowance),
            share => format!("{}, enforced for {}", allowance(&candidate.allowance), percent(share)),
        })
    };
    let is_enforced = |limit: &Limit, name| named(limit, name).is_some_and(|candidate| candidate.enforce_for > 0);
    let other =
        |limit: &Limit| limit.candidates.iter().any(|other| other.enforce_for > 0 && other.name.as_deref() != name);
    let (was, is) = (is_enforced(old, name), is_enforced(new, name));
    // Of two that are enforced in turn, the change of the second has the effect.
    let effect = if is || was && !other(new) { of_numbers(pairs, true) } else { Effect::NONE };
    let (before, after) = (named(old, name), named(new, name));
    let note = match (was, is) {
        (false, false) => "it is counted, and never denies",
        (true, false) if other(new) => "another candidate is enforced in its place",
        (true, false) => "the ids in its share have the limit's numbers",
        (_, true) if before == after => "other ids are in its share",
        (_, true) => "the ids in its share have its numbers in place of the limit's",
    };
    let is_changed = before != after || effect != Effect::NONE && !keep_places(old, new);
    let what = name.map_or("candidate".into(), |name| format!("candidate {name}").into());
    is_changed.then(|| Change { what, from: shown(before), to: shown(after), effect, note: note.to_owned() })
}

fn percent(share: u32) -> String {
    format!("{}%", f64::from(share) / 10_000.0)
}
