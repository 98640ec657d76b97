//! Limits that bound a client whatever it sends, beside which other limits need not.

use super::Subject;
use crate::engine::limit::allowance::Allowance;
use crate::engine::limit::{Cost, Limit};
use crate::engine::request::part::{Part, TypedPart};
use crate::engine::request::value_type::ValueType;
use crate::engine::telling::coverage::covers;

/// Returns whether `other` counts each request that the limit covers, by ids and costs that clients cannot choose.
pub(super) fn bounds(other: &Subject<'_>, limit: &Limit) -> bool {
    let other_limit = other.limit;
    other.is_enforced_for_all()
        && counts_requests(other_limit)
        && other_limit.by.iter().all(|part| chosen(part).is_none())
        && covers(&other_limit.conditions, &limit.conditions)
}

/// Returns whether it counts what clients do, at a cost that they cannot choose.
fn counts_requests(limit: &Limit) -> bool {
    let is_settled = limit.response_cost.is_some();
    limit.allowance == Allowance::Deny
        || limit.allowance.windows().is_some()
            && !counts_some_responses(limit)
            && (is_settled || matches!(limit.cost, Cost::Fixed(1..)))
}

/// Returns whether only some responses count, such as those of failed logins.
pub(super) fn counts_some_responses(limit: &Limit) -> bool {
    limit.response_cost.as_ref().is_some_and(|cost| cost.when.is_some())
}

/// Returns the part if clients can choose its value at will.
pub(super) fn chosen(by: &TypedPart) -> Option<&Part> {
    let is_free = match by.part {
        Part::PathParameter { .. } => by.form == ValueType::Text,
        ref part => part.is_free(),
    };
    is_free.then_some(&by.part)
}
