//! Predicts whether the buckets of a limit carry over or start full when its rules change.
//!
//! A bucket is found by its key: the limit's name in keys, the parts of the id, and a suffix for what the algorithm keeps.
//! If the key stays the same, the tokens used carry over to other numbers.

use super::conditions::by;
use super::shares;
use crate::engine::algorithms::numbers::Numbers;
use crate::engine::limit::{Limit, LimitMode};
use crate::engine::request::part::Part;

/// The fate of the buckets, as text after the word "buckets".
pub(super) fn after(old: &Limit, new: &Limit) -> String {
    let has_none = |limit: &Limit| {
        limit.mode == LimitMode::Off
            || limit.allowance.windows().is_none()
                && !limit.per_call
                && limit.overrides.entries().all(|(_, given)| given.allowance.windows().is_none())
    };
    match (has_none(old), has_none(new)) {
        (true, true) => return "are not used".to_owned(),
        (true, false) => return "start full: the limit kept none".to_owned(),
        (false, true) => return "are no longer used and expire".to_owned(),
        (false, false) => {}
    }
    if old.short != new.short {
        let begins = format!("start full: their keys begin with `{}` instead of `{}`", new.short, old.short);
        // A `short` of a team's file begins with the team's name.
        if old.owner != new.owner {
            return begins;
        }
        return format!("{begins}; `short: {}` would keep them", old.own_short());
    }
    if old.by.len() != new.by.len() {
        return format!("start full: their keys have the id `{}` instead of `{}`", by(&new.by), by(&old.by));
    }
    let (first, last) = (family(old), family(new));
    if first != last {
        return format!("start full: {last} cannot read what {first} has kept");
    }
    let fate = if shares::change_numbers(old, new) { "carry over what was used" } else { "stay as they are" };
    let mut text = fate.to_owned();
    if old.by != new.by {
        text.push_str(" where the id's text stays the same");
        let prefix = |limit: &Limit| {
            limit.by.iter().find_map(|part| match part.part {
                Part::Ip { ipv6_prefix } => Some(ipv6_prefix),
                _ => None,
            })
        };
        if prefix(old) != prefix(new) && prefix(old).is_some() && prefix(new).is_some() {
            text.push_str("; IPv6 networks start full, as their text has their length");
        }
    }
    let windows = |limit: &Limit| limit.allowance.windows().map_or(0, |windows| windows.len());
    match (windows(old), windows(new)) {
        (before, after) if before < after && before > 0 => text.push_str("; those of added windows start full"),
        (before, after) if before > after && after > 0 => text.push_str("; those of removed windows expire"),
        _ => {}
    }
    if old.tag != new.tag {
        text.push_str("; in a Redis Cluster they start full, because their hash tag changes");
    }
    text
}

/// The algorithms whose buckets each other's can read, by a name.
fn family(limit: &Limit) -> &'static str {
    let numbers = limit.allowance.windows().and_then(|windows| windows.first());
    let algorithm = numbers.map_or(limit.algorithm, Numbers::algorithm);
    if algorithm.keeps_level() { "gcra or fixed_window" } else { algorithm.name() }
}
