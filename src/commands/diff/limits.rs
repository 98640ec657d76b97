//! The limits of two sets of rules in pairs, and what changes about each.

use std::borrow::Cow;

use super::buckets;
use super::exemptions;
use super::overrides::{self, OverrideChange};
use super::settings;
use super::shares;
use super::source::Rulebook;
use super::tokens;
use crate::engine::limit::Limit;
use crate::engine::telling::order::Effect;

/// One changed setting.
#[derive(Clone, Debug)]
pub(super) struct Change {
    /// The key in the rules file, or what it is about.
    pub(super) what: Cow<'static, str>,
    pub(super) from: String,
    pub(super) to: String,
    pub(super) effect: Effect,
    /// The consequence; may be empty.
    pub(super) note: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    New,
    Gone,
    Both,
}

/// The changes to a limit.
#[derive(Debug)]
pub(super) struct LimitDiff {
    pub(super) name: String,
    pub(super) renamed_from: Option<String>,
    pub(super) presence: Presence,
    pub(super) effect: Effect,
    pub(super) changes: Vec<Change>,
    pub(super) overrides: Vec<OverrideChange>,
    /// The fate of its buckets.
    pub(super) buckets: String,
}

impl LimitDiff {
    /// Returns true if anything is different.
    pub(super) fn is_changed(&self) -> bool {
        self.presence != Presence::Both
            || self.renamed_from.is_some()
            || !self.changes.is_empty()
            || !self.overrides.is_empty()
    }

    /// The kind of change in a word or two.
    pub(super) fn verdict(&self) -> &'static str {
        match (self.presence, self.effect) {
            (Presence::New, Effect { stricter: true, .. }) => "new",
            (Presence::New, _) => "new, denies nothing",
            (Presence::Gone, _) => "gone",
            (Presence::Both, _) if !self.is_changed() => "unchanged",
            (Presence::Both, Effect::NONE) if self.renamed_from.is_some() && self.changes.is_empty() => "renamed",
            (Presence::Both, effect) => effect.word(),
        }
    }
}

/// Compares all limits, in the order of the new file; those that are gone come last.
pub(super) fn compare(old: &Rulebook, new: &Rulebook) -> Vec<LimitDiff> {
    let (before, after) = (old.rules.limits(), new.rules.limits());
    let mut partners: Vec<Option<usize>> =
        after.iter().map(|limit| before.iter().position(|other| other.name == limit.name)).collect();
    for same in [is_same_in_keys, is_same_but_for_its_name] {
        for (place, limit) in after.iter().enumerate() {
            if partners[place].is_none() {
                let is_free = |other: usize| !partners.contains(&Some(other));
                let found = before.iter().enumerate().find(|(other, old)| is_free(*other) && same(old, limit));
                partners[place] = found.map(|(other, _)| other);
            }
        }
    }
    let mut all: Vec<LimitDiff> = Vec::with_capacity(after.len());
    for (limit, partner) in after.iter().zip(&partners) {
        all.push(match partner.and_then(|place| before.get(place)) {
            Some(partner) => pair((old, partner), (new, limit)),
            None => added(limit),
        });
    }
    let gone = before.iter().enumerate().filter(|(place, _)| !partners.contains(&Some(*place)));
    all.extend(gone.map(|(_, limit)| removed(limit)));
    all
}

/// Returns true if two limits have the same buckets under different names.
fn is_same_in_keys(old: &Limit, new: &Limit) -> bool {
    old.short.eq_ignore_ascii_case(&new.short)
}

fn is_same_but_for_its_name(old: &Limit, new: &Limit) -> bool {
    let has_same_numbers = old.allowance == new.allowance && old.candidates == new.candidates;
    has_same_numbers && old.enforce_for == new.enforce_for && settings::all(old, new).is_empty()
}

/// Returns true if it can deny a request.
fn can_deny(limit: &Limit) -> bool {
    let given = || limit.overrides.entries().any(|(_, given)| given.allowance.can_deny());
    limit.is_enforced() && limit.enforce_for > 0 && (limit.per_call || limit.allowance.can_deny() || given())
}

fn pair((old_rules, old): (&Rulebook, &Limit), (new_rules, new): (&Rulebook, &Limit)) -> LimitDiff {
    let mut changes = shares::changes(old, new);
    changes.extend(settings::all(old, new));
    changes.extend(tokens::of_issuers((old_rules, old), (new_rules, new)));
    changes.extend(exemptions::of_exemptions((old_rules, old), (new_rules, new)));
    let overrides = overrides::compare((old_rules, old), (new_rules, new));
    let of_changes = changes.iter().map(|change| change.effect);
    let all = of_changes.chain(overrides.iter().map(|change| change.effect)).fold(Effect::NONE, |all, one| all | one);
    // Only a limit that denies can be stricter or looser.
    let effect = match (can_deny(old), can_deny(new)) {
        (false, false) => Effect::NONE,
        (false, true) => Effect::STRICTER,
        (true, false) => Effect::LOOSER,
        (true, true) => all,
    };
    LimitDiff {
        name: new.name.clone(),
        renamed_from: (old.name != new.name).then(|| old.name.clone()),
        presence: Presence::Both,
        effect,
        buckets: buckets::after(old, new),
        changes,
        overrides,
    }
}

fn added(limit: &Limit) -> LimitDiff {
    let effect = if can_deny(limit) { Effect::STRICTER } else { Effect::NONE };
    alone(limit, Presence::New, effect, "start full")
}

fn removed(limit: &Limit) -> LimitDiff {
    let effect = if can_deny(limit) { Effect::LOOSER } else { Effect::NONE };
    alone(limit, Presence::Gone, effect, "are no longer used and expire")
}

fn alone(limit: &Limit, presence: Presence, effect: Effect, buckets: &str) -> LimitDiff {
    let shown = settings::allowance(&limit.allowance);
    let none = || "none".to_owned();
    let (from, to) = if presence == Presence::New { (none(), shown) } else { (shown, none()) };
    LimitDiff {
        name: limit.name.clone(),
        renamed_from: None,
        presence,
        effect,
        changes: vec![Change { what: "numbers".into(), from, to, effect, note: String::new() }],
        overrides: Vec::new(),
        buckets: buckets.to_owned(),
    }
}
