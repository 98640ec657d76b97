//! The cost of a request, from the part of it that `cost` names.

use crate::engine::limit::{Cost, CostFallback, Limit};
use crate::engine::request::part::PartError;
use crate::engine::request::path_pattern::PathReading;
use crate::engine::request::value_type::{ValueType, lenient};
use crate::engine::request::{Duplicates, Request};

/// Returns the cost of `request`. The error is why the limit denies it.
pub(crate) fn cost(limit: &Limit, request: &Request<'_>) -> Result<u64, PartError> {
    let CostFallback { default, denies_missing, denies_malformed } = limit.cost_fallback;
    let default = if let Cost::Bytes { reserve } = limit.cost { reserve } else { default };
    let is_denied = |error: PartError| match error {
        PartError::Missing => denies_missing,
        PartError::Malformed => denies_malformed,
    };
    match given(&limit.cost, request) {
        Err(error) if is_denied(error) => Err(error),
        Err(_) => Ok(default),
        Ok(cost) => Ok(cost),
    }
}

fn given(cost: &Cost, request: &Request<'_>) -> Result<u64, PartError> {
    if let Cost::Fixed(cost) = cost {
        return Ok(*cost);
    }
    let part = cost.part().ok_or(PartError::Missing)?;
    let text = part.text(request, Duplicates::Ambiguous, PathReading::default())?;
    lenient(ValueType::Integer, &text).and_then(|number| number.parse().ok()).ok_or(PartError::Malformed)
}
