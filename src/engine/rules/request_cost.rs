//! The cost of a request, from the part of it that `cost` names.

use http::header::CONTENT_LENGTH;

use super::component::ComponentError;
use super::limit::{Cost, Limit};
use super::plan::InvalidInput;
use super::request::{AmbiguousValue, Duplicates, Request};
use crate::message::lossless::shown;

pub(super) fn cost(limit: &Limit, request: &Request<'_>) -> Result<u64, InvalidInput> {
    let (origin, given) = match &limit.cost {
        Cost::Fixed(cost) => return Ok(*cost),
        Cost::Claim(claim) => {
            // An object or a list is rejected, like text that is not a number.
            let found = claim.text(request.claims).or_else(|error| match error {
                ComponentError::Missing => Ok(None),
                ComponentError::Malformed => Err(AmbiguousValue),
            });
            (("claim", claim.path.as_str()), found)
        }
        Cost::Header(name) => (("header", name.as_str()), request.header(name.as_str(), Duplicates::Ambiguous)),
        Cost::Body(pointer) => (("body value", pointer.as_str()), request.body_value(pointer)),
        Cost::Query(name) => (("query parameter", name.as_str()), request.query(name, Duplicates::Ambiguous)),
        Cost::Bytes { .. } => {
            (("header", CONTENT_LENGTH.as_str()), request.header(CONTENT_LENGTH.as_str(), Duplicates::Ambiguous))
        }
    };
    let absent = if let Cost::Bytes { reserve } = limit.cost { reserve } else { 1 };
    let bad = |value: &str| InvalidInput {
        origin: format!("{} `{}`", origin.0, origin.1),
        wanted: "a whole number of tokens",
        value: shown(value).chars().take(40).collect(),
    };
    match given {
        Ok(None) => Ok(absent),
        Ok(Some(given)) => given.parse().map_err(|_| bad(&given)),
        Err(AmbiguousValue) if matches!(limit.cost, Cost::Claim(_)) => Err(bad("another type of value")),
        Err(AmbiguousValue) => Err(bad("several values")),
    }
}
