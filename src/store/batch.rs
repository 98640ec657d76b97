//! The charges that a store decides in one call.

use crate::engine::algorithms::charge::Charge;
use crate::engine::algorithms::micros::Micros;

/// The charges of one request.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// Decided together, all or nothing. No two may have the same bucket.
    pub charges: &'a [Charge],
    /// The time at which the rules took effect; see [`crate::engine::algorithms::state::decide_level`].
    pub effective_from: Micros,
    /// The time on this machine. A Redis store decides by its server's clock.
    pub now: Micros,
}
