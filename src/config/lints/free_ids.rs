//! `free-id`: ids that clients choose, on a limit without a bound on their number and without another limit that clients
//! cannot choose an id of.

use super::super::problem::Place;
use super::Subject;
use crate::engine::limit::allowance::Allowance;
use crate::engine::limit::identity::Fallback;
use crate::engine::request::part::{Part, TypedPart};
use crate::engine::request::value_type::ValueType;
use crate::engine::telling::coverage::covers;

pub(super) fn find<'s>(
    subject: &Subject<'_>,
    mut others: impl Iterator<Item = &'s Subject<'s>>,
) -> Option<(Place, String)> {
    let limit = subject.limit;
    let has_numbers = limit.allowance.windows().is_some();
    if !has_numbers || !limit.is_enforced() || limit.max_keys.is_some() || limit.max_new_keys.is_some() {
        return None;
    }
    let part = limit.by.iter().find_map(chosen)?;
    // A header that no request lacks is one that the gateway sets.
    if limit.missing == Fallback::Deny && matches!(part, Part::Header(_)) {
        return None;
    }
    let bounds = |other: &Subject<'_>| {
        other.is_enforced_for_all()
            && matches!(other.limit.allowance, Allowance::Windows(_) | Allowance::Elevated(_) | Allowance::Deny)
            && other.limit.by.iter().all(|part| chosen(part).is_none())
            && covers(&other.limit.conditions, &limit.conditions)
    };
    if others.any(bounds) {
        return None;
    }
    Some((subject.places.of("by"), format!("clients can choose the {part}, and get a full bucket with each new value")))
}

/// Returns the part if clients can choose its value at will.
fn chosen(by: &TypedPart) -> Option<&Part> {
    let is_free = match by.part {
        Part::PathParameter { .. } => by.form == ValueType::Text,
        ref part => part.is_free(),
    };
    is_free.then_some(&by.part)
}
