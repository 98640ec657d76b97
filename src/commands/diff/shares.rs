//! Which ids have which numbers, where a limit or its candidate is enforced for a share of them.
//!
//! Each id has a place among all, and is in a share that reaches beyond it. So ids between two shares' ends are alike.

use super::limits::Change;
use super::settings::allowance;
use crate::engine::limit::allowance::Allowance;
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

/// Changes of the limit's own numbers, of its share, and of its candidate.
pub(super) fn changes(old: &Limit, new: &Limit) -> Vec<Change> {
    let pairs = pairs(old, new);
    [own_numbers(old, new, &pairs), share(old, new, &pairs), candidate(old, new, &pairs)]
        .into_iter()
        .flatten()
        .collect()
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
    let of_candidate = limit.candidate.as_ref().map_or(0, |candidate| candidate.enforce_for);
    let mut ends = vec![0, limit.enforce_for, of_candidate];
    ends.retain(|place| *place < WHOLE_SHARE);
    ends
}

/// The part of ids at a place.
fn part(limit: &Limit, place: u32) -> Part<'_> {
    let candidate = limit.candidate.as_ref().filter(|candidate| place < candidate.enforce_for);
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
    (old.allowance != new.allowance).then(|| Change { what: "numbers", from, to, effect, note: String::new() })
}

fn share(old: &Limit, new: &Limit, pairs: &[Pair<'_>]) -> Option<Change> {
    let [from, to] = [old, new].map(|limit| percent(limit.enforce_for));
    let effect = effect(pairs, |old, new| Effect::of_rank(&old.is_enforced, &new.is_enforced));
    let keeps = keep_places(old, new);
    let note = if keeps { "a larger share includes the ids of a smaller one" } else { "other ids are in the share" };
    let is_changed = old.enforce_for != new.enforce_for || effect != Effect::NONE;
    is_changed.then(|| Change { what: "enforce_for", from, to, effect, note: note.to_owned() })
}

fn candidate(old: &Limit, new: &Limit, pairs: &[Pair<'_>]) -> Option<Change> {
    let shown = |limit: &Limit| {
        limit.candidate.as_ref().map_or("none".to_owned(), |candidate| match candidate.enforce_for {
            0 => allowance(&candidate.allowance),
            share => format!("{}, enforced for {}", allowance(&candidate.allowance), percent(share)),
        })
    };
    let share = |limit: &Limit| limit.candidate.as_ref().map_or(0, |candidate| candidate.enforce_for);
    let effect = of_numbers(pairs, true);
    let note = match (share(old), share(new)) {
        (0, 0) => "it is counted, and never denies",
        (_, 0) => "the ids in its share have the limit's numbers",
        _ if old.candidate == new.candidate => "other ids are in its share",
        _ => "the ids in its share have its numbers in place of the limit's",
    };
    let is_changed = old.candidate != new.candidate || effect != Effect::NONE && !keep_places(old, new);
    let [from, to] = [old, new].map(shown);
    is_changed.then(|| Change { what: "candidate", from, to, effect, note: note.to_owned() })
}

fn percent(share: u32) -> String {
    format!("{}%", f64::from(share) / 10_000.0)
}
