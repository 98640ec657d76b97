//! `chosen-cost`: costs that clients choose, without a correction by the response and without another limit that counts requests.

use super::super::problem::Place;
use super::Subject;
use crate::engine::limit::Cost;
use crate::engine::limit::allowance::Allowance;
use crate::engine::request::part::Part;
use crate::engine::telling::coverage::covers;

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
    let counts_requests = |other: &Subject<'_>| {
        other.is_enforced_for_all()
            && matches!(other.limit.cost, Cost::Fixed(1..))
            && matches!(other.limit.allowance, Allowance::Windows(_) | Allowance::Elevated(_) | Allowance::Deny)
            && covers(&other.limit.conditions, &limit.conditions)
    };
    let is_bounded = others.any(counts_requests);
    (!is_bounded).then(|| (subject.places.of("cost"), format!("clients choose the {part}, and what they pay with it")))
}
