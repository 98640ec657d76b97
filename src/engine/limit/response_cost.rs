//! `cost_from_response`, `spend_when` and `cost: { bytes: request }`: costs that are known when the response has come.

use std::fmt;

use http::header::HeaderName;

use crate::engine::algorithms::charge::Mode;
use crate::engine::request::body_cost::BodyCost;

/// The response's part in the cost of its request. At least one of the two is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResponseCost {
    /// `cost_from_response`: the source of the cost.
    pub source: Option<CostSource>,
    /// `spend_when`: the statuses for which the cost is charged; `None` for all.
    pub when: Option<Statuses>,
}

/// The part of a response that has the cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CostSource {
    /// A header or trailer.
    Header(HeaderName),
    Body(BodyCost),
    /// The bytes of the body.
    Bytes,
    /// The bytes of the request's body, which may go on while the response comes.
    RequestBytes,
}

/// Inclusive ranges of response statuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statuses(pub Vec<(u16, u16)>);

impl Statuses {
    pub fn contains(&self, status: u16) -> bool {
        self.0.iter().any(|(first, last)| (*first..=*last).contains(&status))
    }
}

impl fmt::Display for Statuses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (first, last)) in self.0.iter().enumerate() {
            let comma = if place == 0 { "" } else { ", " };
            if first == last {
                write!(f, "{comma}{first}")?;
            } else {
                write!(f, "{comma}{}xx", first / 100)?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for CostSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header {name}"),
            Self::Body(cost) => cost.fmt(f),
            Self::Bytes => f.write_str("bytes"),
            Self::RequestBytes => f.write_str("bytes of the request"),
        }
    }
}

impl ResponseCost {
    /// The source of the cost in the response's body.
    pub const fn in_body(&self) -> Option<&BodyCost> {
        match &self.source {
            Some(CostSource::Body(cost)) => Some(cost),
            _ => None,
        }
    }

    /// Returns true if the cost is that of the request's body.
    pub const fn is_of_request(&self) -> bool {
        matches!(self.source, Some(CostSource::RequestBytes))
    }

    /// The mode of the charge before the response, which takes nothing if the status says whether there is a cost.
    pub(crate) const fn before(&self, mode: Mode) -> Mode {
        if self.when.is_some() { Mode::Look } else { mode }
    }
}
