//! `free-id`: ids that clients choose, on a limit without a bound on their number and without another limit that clients
//! cannot choose an id of.

use super::super::problem::Place;
use super::Subject;
use super::bounds::{bounds, chosen};
use crate::engine::limit::identity::Fallback;
use crate::engine::request::part::Part;

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
    if others.any(|other| bounds(other, limit)) {
        return None;
    }
    Some((subject.places.of("by"), format!("clients can choose the {part}, and get a full bucket with each new value")))
}
