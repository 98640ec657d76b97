//! Requests whose charges are their own: those that wait, and those that are decided in several calls.

use crate::engine::algorithms::charge::Charge;
use crate::engine::algorithms::micros::Micros;
use crate::store::Batch;

#[derive(Clone)]
pub(super) struct Request {
    pub(super) charges: Vec<Charge>,
    effective_from: Micros,
    now: Micros,
    /// The time to decide by; `None` for the servers'.
    pub(super) set_now: Option<Micros>,
}

impl Request {
    pub(super) fn new(batch: &Batch<'_>, set_now: Option<Micros>) -> Self {
        Self { charges: batch.charges.to_vec(), effective_from: batch.effective_from, now: batch.now, set_now }
    }

    pub(super) fn with(&self, charges: Vec<Charge>) -> Self {
        Self { charges, ..*self }
    }

    pub(super) fn batch(&self) -> Batch<'_> {
        Batch { charges: &self.charges, effective_from: self.effective_from, now: self.now }
    }
}
