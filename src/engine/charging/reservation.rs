//! Reservations: the charges of a plan that hold tokens, or settle what is held.

use crate::engine::algorithms::charge::{Charge, Input, Mode};
use crate::engine::algorithms::decision::Decisions;
use crate::engine::algorithms::reservation::Reservation;
use crate::engine::charging::algorithm_input::UnsupportedOperation;
use crate::engine::charging::plan::Plan;
use crate::engine::limit::rules::Rules;

impl Charge {
    /// Makes what would reserve tokens ask whether they are there: without an id nobody could end the hold.
    pub(crate) fn hold_nothing(&mut self) {
        if matches!(self.reservation(), Some(Reservation::Reserve(..))) {
            self.input = None;
            self.take_nothing();
        }
    }
}

impl Plan {
    /// Makes all charges part of a reservation.
    pub(crate) fn add_reservation(
        &mut self,
        rules: &Rules,
        reservation: Reservation,
    ) -> Result<(), UnsupportedOperation> {
        for charge in self.charges.iter_mut().filter(|charge| !charge.origin.is_strike()) {
            if !charge.keeps_level() {
                return Err(UnsupportedOperation::Reservation(rules.name(charge.origin.limit).to_owned()));
            }
            charge.lease = None;
            charge.input = Some(Box::new(Input::Reservation(reservation)));
            if matches!(reservation, Reservation::Commit(_)) {
                // A larger cost has the same effect, and Redis counts this one exactly.
                (charge.mode, charge.cost) = (Mode::SpendUpTo, charge.cost.min(charge.numbers.burst()));
            }
        }
        Ok(())
    }

    /// Returns whether a bucket holds tokens for the plan's reservation now, or has ended its hold. `decisions` are the store's.
    pub(crate) fn has_hold(&self, decisions: &Decisions) -> bool {
        self.charges.iter().zip(decisions.iter()).any(|(charge, decision)| {
            let is_held = charge.cost > 0 && matches!(charge.mode, Mode::Spend | Mode::SpendOnly);
            let is_part = charge.reservation().is_some_and(|it| matches!(it, Reservation::Commit(_)) || is_held);
            is_part && decision.is_allowed()
        })
    }
}
