//! What a caller means to do with a request, and why nothing may come of it.

use crate::engine::algorithms::charge::Mode;
use crate::engine::rules::algorithm_input::UnsupportedOperation;
use crate::engine::rules::plan::InvalidInput;

/// What a caller means to do.
#[derive(Clone, Copy, Debug)]
pub struct Purpose {
    /// What becomes of the buckets.
    pub mode: Mode,
    /// What the request costs every limit, if that is not what the limits say.
    pub cost: Option<u64>,
    /// Whether the caller can answer a request whose entry a queue has taken, rather than let it pass.
    pub can_accept: bool,
}

/// Why a request is not judged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Objection {
    /// The request is to blame.
    #[error(transparent)]
    Cost(#[from] InvalidInput),
    /// What is asked makes no sense for one of its limits.
    #[error(transparent)]
    Senseless(#[from] UnsupportedOperation),
    /// A limit answers 202, and the caller cannot.
    #[error("{0} says `then: accept`, and this gateway would let a 202 pass to the upstream: write `then: forward`")]
    Accepts(String),
}
