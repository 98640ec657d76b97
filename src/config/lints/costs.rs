//! `chosen-cost`: costs that clients choose, without a correction by the response and without another limit that counts requests.

use super::super::problem::Place;
use super::Subject;
use super::bounds::bounds;
use crate::engine::limit::Cost;
use crate::engine::request::part::Part;

pub(super) fn find<'s>(
    subject: &Subject<'_>,
    mut others: impl Iterator<Item = &'s Subject<'s>>,
) -> Option<(Place, String)> {
    let limit = subject.limit;
    // What the body asks for is what the server does. A gateway that sets the part leaves no request without it.
    let Cost::Part(part @ (Part::Header(_) | Part::Query(_))) = &limit.cost else { return None };
    if !limit.is_enforced() || limit.response_cost.is_some() || limit.cost_fallback.denies_missing {
        return None;
    }
    let is_bounded = others.any(|other| bounds(other, limit));
    (!is_bounded).then(|| (subject.places.of("cost"), format!("clients choose the {part}, and what they pay with it")))
}
