//! The cost of a request, from the part of it that `cost` names.

use std::borrow::Cow;

use http::header::CONTENT_LENGTH;

use crate::engine::limit::{Cost, CostFallback, Limit};
use crate::engine::request::component::ComponentError;
use crate::engine::request::value_type::{ValueType, lenient};
use crate::engine::request::{AmbiguousValue, Duplicates, Request};

/// Returns the cost of `request`. The error is why the limit denies it.
pub(crate) fn cost(limit: &Limit, request: &Request<'_>) -> Result<u64, ComponentError> {
    let CostFallback { default, denies_missing, denies_malformed } = limit.cost_fallback;
    let default = if let Cost::Bytes { reserve } = limit.cost { reserve } else { default };
    let is_denied = |error: ComponentError| match error {
        ComponentError::Missing => denies_missing,
        ComponentError::Malformed => denies_malformed,
    };
    match given(&limit.cost, request) {
        Err(error) if is_denied(error) => Err(error),
        Err(_) => Ok(default),
        Ok(cost) => Ok(cost),
    }
}

fn given(cost: &Cost, request: &Request<'_>) -> Result<u64, ComponentError> {
    let found: Result<Option<Cow<'_, str>>, AmbiguousValue> = match cost {
        Cost::Fixed(cost) => return Ok(*cost),
        Cost::Claim(claim) => claim.text(request.claims).map_err(|_| AmbiguousValue),
        Cost::Header(name) => request.header(name.as_str(), Duplicates::Ambiguous),
        Cost::Body(pointer) => request.body_value(pointer),
        Cost::Query(name) => request.query(name, Duplicates::Ambiguous),
        Cost::Bytes { .. } => request.header(CONTENT_LENGTH.as_str(), Duplicates::Ambiguous),
    };
    let text = found?.filter(|text| !text.is_empty()).ok_or(ComponentError::Missing)?;
    let number = lenient(ValueType::Integer, &text).and_then(|number| number.parse().ok());
    number.ok_or(ComponentError::Malformed)
}
