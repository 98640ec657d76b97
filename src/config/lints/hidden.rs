//! `hidden-limit`: a limit that can never deny first, because a stricter one denies before it.

use super::super::problem::{Place, quoted};
use super::Subject;
use crate::engine::limit::allowance::Allowance;
use crate::engine::limit::identity::Fallback;
use crate::engine::limit::{Cost, Limit};
use crate::engine::request::part::{Part, TypedPart};
use crate::engine::request::value_type::ValueType;
use crate::engine::telling::coverage::{covers, is_coarser};
use crate::engine::telling::order::{self, Counted};

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
        return vec![(
            subject.places.name,
            format!("{hidden} can never be the one that denies: {other} is at least as strict"),
        )];
    }
    let Allowance::Windows(windows) = &limit.allowance else { return Vec::new() };
    let mut found = Vec::new();
    for (place, window) in windows.iter().enumerate() {
        let hiding = windows.iter().enumerate().find(|(other_place, other)| {
            let is_within = |strict, loose| order::numbers_are_within(strict, loose, Counted::Same);
            let is_first = *other_place < place || !is_within(window, other);
            *other_place != place && is_first && is_within(other, window)
        });
        if let Some((_, other)) = hiding {
            let at = subject.places.windows.get(place).copied().unwrap_or(subject.places.name);
            found.push((
                at,
                format!("the window of {window} can never be the one that denies: {other} is at least as strict"),
            ));
        }
    }
    found
}

/// Returns whether `other` denies every request that the subject denies.
fn hides(other: &Subject<'_>, subject: &Subject<'_>) -> bool {
    let (strict, loose) = (other.limit, subject.limit);
    if !other.is_enforced_for_all()
        || other.has_exemptions
        || !subject.limit.is_enforced()
        || !is_plain(strict)
        || !is_plain(loose)
    {
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
    // A bucket that requests without an id share holds clients that coarser limits tell apart.
    let has_no_shared_bucket = loose.missing == Fallback::Skip && has_an_id_always(loose);
    let ids_share_buckets = has_same_ids || is_coarser(&strict.by, &loose.by) && has_no_shared_bucket;
    if !ids_share_buckets {
        return false;
    }
    let is_same = has_same_ids && covers(&loose.conditions, &strict.conditions);
    let counted = if is_same { Counted::Same } else { Counted::More };
    loose.allowance.can_deny() && order::is_within(&strict.allowance, &loose.allowance, counted)
}

/// Returns whether a limit has the same numbers for all its ids, and each request costs the same.
fn is_plain(limit: &Limit) -> bool {
    limit.overrides.is_empty()
        && limit.candidates.is_empty()
        && !limit.per_call
        && limit.response_cost.is_none()
        && limit.lease.is_none()
        && limit.delay.is_none()
        && limit.cost == Cost::Fixed(1)
        && !limit.algorithm.is_final()
}

/// Returns whether every request from a client has an id.
pub(super) fn has_an_id_always(limit: &Limit) -> bool {
    let is_well_formed = |part: &TypedPart| match part.part {
        Part::Ip { .. } => true,
        Part::Host | Part::Method | Part::Path | Part::PathParameter { .. } => part.form == ValueType::Text,
        _ => false,
    };
    limit.by.iter().all(is_well_formed)
}
