//! Answers that nobody takes: the client has left, or waited no longer. The request goes no further, so what it has reserved, and
//! the tokens that it has leased, are given back.

use super::super::Batch;
use crate::engine::algorithms::charge::{Charge, Input};
use crate::engine::algorithms::decision::{Decision, Decisions, Detail, Outcome};
use crate::engine::algorithms::lease::{EndedLease, LeaseAsk};
use crate::engine::algorithms::micros::Micros;

/// The charges of a request, for the case that nobody takes the answer.
pub(super) struct Unclaimed {
    charges: Vec<Charge>,
    effective_from: Micros,
    now: Micros,
}

impl Unclaimed {
    /// Returns `None` if the request would give nothing back.
    pub(super) fn of(batch: &Batch<'_>) -> Option<Box<Self>> {
        let leases = |charge: &Charge| charge.lease_ask().is_some_and(|ask| ask.wish.is_some());
        let is_due =
            batch.charges.iter().any(|charge| charge.is_reserved() || leases(charge) || charge.reservation().is_some());
        is_due.then(|| {
            let Batch { charges, effective_from, now } = *batch;
            Box::new(Self { charges: charges.to_vec(), effective_from, now })
        })
    }

    /// Returns the charges that give back what the answer says was taken.
    pub(super) fn refunds(&self, decisions: &Decisions) -> Vec<Charge> {
        if decisions.iter().any(Decision::is_denied) {
            return Vec::new();
        }
        let decided = self.charges.iter().zip(decisions.iter()).enumerate();
        let allowed = decided.filter(|(_, (_, decision))| decision.outcome == Outcome::Allowed);
        allowed.filter_map(|(place, (charge, _))| refund(charge, decisions, place)).collect()
    }

    /// Returns the call that makes these charges.
    pub(super) fn batch<'c>(&self, charges: &'c [Charge]) -> Batch<'c> {
        Batch { charges, effective_from: self.effective_from, now: self.now }
    }
}

fn refund(charge: &Charge, decisions: &Decisions, place: usize) -> Option<Charge> {
    if charge.reservation().is_some() {
        return charge.undo(None);
    }
    let ended = match decisions.detail(place) {
        Some(Detail::Leased(grant)) => {
            Some(EndedLease { granted: grant.tokens, left: grant.tokens, until: grant.until })
        }
        _ => None,
    };
    let cost = if charge.is_reserved() { charge.cost } else { 0 };
    if cost == 0 && ended.is_none() {
        return None;
    }
    let mut refund = Charge { lease: None, ..charge.refund(cost, decisions.taken(place)) };
    if let Some(Input::Lease(_)) | None = refund.input.as_deref() {
        refund.input = ended.map(|ended| Box::new(Input::Lease(LeaseAsk { wish: None, ended: Some(ended) })));
    }
    Some(refund)
}
