//! Overrides that are new, gone or changed.

use std::collections::HashMap;

use super::settings::allowance;
use super::shares;
use super::source::Rulebook;
use crate::engine::algorithms::micros::Micros;
use crate::engine::limit::Limit;
use crate::engine::limit::overrides::{Override, OverrideSubject};
use crate::engine::telling::order::{self, Effect};

/// A changed override. Without one, the limit's own numbers hold.
#[derive(Debug)]
pub(super) struct OverrideChange {
    /// The id, network or regular expression, with its place.
    pub(super) label: String,
    /// `None` if it is new.
    pub(super) from: Option<String>,
    /// `None` if it is gone.
    pub(super) to: Option<String>,
    pub(super) effect: Effect,
}

/// Compares the overrides of a limit, in the order of the new files; those that are gone come last.
pub(super) fn compare(
    (old_rules, old): (&Rulebook, &Limit),
    (new_rules, new): (&Rulebook, &Limit),
) -> Vec<OverrideChange> {
    // Ids are known by their fingerprints, which include the name in keys.
    let by_text = old.short != new.short;
    let key = |rules: &Rulebook, limit: &Limit, subject: OverrideSubject, given: &Override| match subject {
        OverrideSubject::Id(..) if by_text => OverrideSubject::Regex(rules.label(limit, given).0),
        subject => subject,
    };
    let mut before: HashMap<OverrideSubject, (usize, &Override)> = HashMap::new();
    for (place, (subject, given)) in old.overrides.entries().enumerate() {
        before.insert(key(old_rules, old, subject, given), (place, given));
    }
    let mut found = Vec::new();
    for (subject, given) in new.overrides.entries() {
        let was = before.remove(&key(new_rules, new, subject, given)).map(|(_, given)| given);
        let effect = match was {
            Some(was) => order::compare(&was.allowance, &given.allowance) | of_end(was, given, new),
            None => shares::of_override(old, &given.allowance),
        };
        if was.is_none_or(|was| was.allowance != given.allowance || was.until != given.until) {
            let (id, place) = new_rules.label(new, given);
            let label = format!("{id} ({place})");
            found.push(OverrideChange { label, from: was.map(shown), to: Some(shown(given)), effect });
        }
    }
    let mut gone: Vec<_> = before.into_values().collect();
    gone.sort_by_key(|(place, _)| *place);
    found.extend(gone.into_iter().map(|(_, given)| {
        let (id, place) = old_rules.label(old, given);
        let effect = shares::of_override(new, &given.allowance).reversed();
        OverrideChange { label: format!("{id} ({place})"), from: Some(shown(given)), to: None, effect }
    }));
    found
}

/// The effect of another `until`, from which on the limit's numbers hold.
fn of_end(old: &Override, new: &Override, limit: &Limit) -> Effect {
    let end = |given: &Override| given.until.map_or(u64::MAX, |Micros(until)| until);
    let ended = shares::of_override(limit, &new.allowance).reversed();
    match end(new).cmp(&end(old)) {
        std::cmp::Ordering::Less => ended,
        std::cmp::Ordering::Equal => Effect::NONE,
        std::cmp::Ordering::Greater => ended.reversed(),
    }
}

fn shown(given: &Override) -> String {
    let numbers = allowance(&given.allowance);
    let until =
        given.until.and_then(|Micros(until)| jiff::Timestamp::from_microsecond(i64::try_from(until).ok()?).ok());
    until.map_or(numbers.clone(), |until| format!("{numbers}, until {until}"))
}
