//! `hidden-limit`: a limit that can never deny first, because a stricter one denies before it.

use super::super::problem::{Place, quoted};
use super::Subject;
use super::coverage::{covers, is_coarser};
use crate::engine::algorithms::algorithm::{Algorithm, Aligned};
use crate::engine::algorithms::numbers::Numbers;
use crate::engine::limit::allowance::Allowance;
use crate::engine::limit::identity::Fallback;
use crate::engine::limit::{Cost, Limit};
use crate::engine::request::part::{Part, TypedPart};
use crate::engine::request::value_type::ValueType;

/// Returns the findings about a limit: the other limit that hides it, or the windows of its own that hide others.
pub(super) fn find<'s>(
    subject: &Subject<'_>,
    index: usize,
    mut others: impl Iterator<Item = (usize, &'s Subject<'s>)>,
) -> Vec<(Place, String)> {
    let limit = subject.limit;
    // Of two limits that hide each other, the later one is reported.
    let hiding = others.find(|(place, other)| hides(other, subject) && (*place < index || !hides(subject, other)));
    if let Some((_, other)) = hiding {
        let (hidden, other) = (quoted(&limit.name), quoted(&other.limit.name));
        return vec![(subject.places.name, format!("{hidden} never denies first: {other} is at least as strict"))];
    }
    let Allowance::Windows(windows) = &limit.allowance else { return Vec::new() };
    let mut found = Vec::new();
    for (place, window) in windows.iter().enumerate() {
        let hiding = windows.iter().enumerate().find(|(other_place, other)| {
            let is_first = *other_place < place || !is_stricter(window, other, true);
            *other_place != place && is_first && is_stricter(other, window, true)
        });
        if let Some((_, other)) = hiding {
            let at = subject.places.windows.get(place).copied().unwrap_or(subject.places.name);
            found.push((at, format!("the window of {window} never denies first: {other} is at least as strict")));
        }
    }
    found
}

/// Returns whether `other` denies every request that the subject denies.
fn hides(other: &Subject<'_>, subject: &Subject<'_>) -> bool {
    let (strict, loose) = (other.limit, subject.limit);
    if !other.is_enforced_for_all() || !subject.limit.is_enforced() || !is_plain(strict) || !is_plain(loose) {
        return false;
    }
    if strict.missing != loose.missing
        || strict.malformed != loose.malformed
        || strict.on_store_error != loose.on_store_error
        || loose.max_keys.is_some()
        || loose.max_new_keys.is_some()
        || !covers(&strict.conditions, &loose.conditions)
    {
        return false;
    }
    let has_same_ids = strict.by == loose.by;
    let ids_share_buckets = has_same_ids || is_coarser(&strict.by, &loose.by) && has_an_id_always(loose);
    if !ids_share_buckets {
        return false;
    }
    match (&strict.allowance, &loose.allowance) {
        (Allowance::Deny, Allowance::Deny | Allowance::Windows(_)) => true,
        (Allowance::Windows(strict), Allowance::Windows(loose)) => {
            let counts_the_same = has_same_ids && covers(&subject.limit.conditions, &other.limit.conditions);
            loose.iter().all(|loose| strict.iter().any(|strict| is_stricter(strict, loose, counts_the_same)))
        }
        _ => false,
    }
}

/// Returns whether a limit has the same numbers for all its ids, and each request costs the same.
fn is_plain(limit: &Limit) -> bool {
    limit.overrides.is_empty()
        && limit.candidate.is_none()
        && !limit.per_call
        && limit.response_cost.is_none()
        && limit.cost == Cost::Fixed(1)
        && !matches!(limit.algorithm, Algorithm::Queue | Algorithm::Script)
}

/// Returns whether no request goes to a bucket that ids share, where coarser limits would tell clients apart.
fn has_an_id_always(limit: &Limit) -> bool {
    let is_well_formed = |part: &TypedPart| match part.part {
        Part::Ip { .. } => true,
        Part::Host | Part::Method | Part::Path | Part::PathParameter { .. } => part.form == ValueType::Text,
        _ => false,
    };
    limit.missing == Fallback::Skip && limit.by.iter().all(is_well_formed)
}

/// Returns whether one window denies whatever the other denies. `counts_the_same` is true if both see the same requests by the
/// same ids.
fn is_stricter(strict: &Numbers, loose: &Numbers, counts_the_same: bool) -> bool {
    if strict.algorithm() != loose.algorithm() {
        return false;
    }
    let is_smaller = strict.burst() <= loose.burst() && strict.count() <= loose.count();
    match strict.algorithm() {
        Algorithm::Gcra => {
            let rate = |one: &Numbers, other: &Numbers| u128::from(one.count()) * u128::from(other.period().max(1));
            let is_slower = strict.count() == 0 || rate(strict, loose) <= rate(loose, strict);
            strict.burst() <= loose.burst() && is_slower
        }
        Algorithm::Concurrency => strict.burst() <= loose.burst(),
        _ if strict.is_calendar() || loose.is_calendar() => counts_the_same && strict == loose,
        Algorithm::SlidingLog | Algorithm::FixedWindow(Aligned::Clock) => {
            is_smaller && strict.period() == loose.period()
        }
        // Their windows begin with a bucket's first request.
        Algorithm::FixedWindow(Aligned::First) | Algorithm::SlidingWindow { .. } => {
            is_smaller && strict.period() == loose.period() && counts_the_same
        }
        Algorithm::Queue | Algorithm::Script => false,
    }
}
