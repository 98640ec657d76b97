//! Changes to a plan for callers that check, refund or give the cost.

use super::limit::Limit;
use super::plan::Plan;
use super::rule_set::Rules;
use crate::engine::algorithms::charge::Mode;

impl Plan {
    /// Changes the mode of all charges, and their cost if one is given.
    pub fn adjust(&mut self, rules: &Rules, mode: Mode, cost: Option<u64>) {
        if mode == Mode::Check {
            // A check counts nothing, and a candidate must not deny it.
            self.retain(|origin| !origin.is_candidate);
        }
        for (charge, origin) in self.charges.iter_mut().zip(&self.origins) {
            if mode != Mode::Spend {
                charge.mode = rules.limit(origin.limit).map_or(mode, |limit| limit.reporting(mode));
            }
            charge.cost = cost.unwrap_or(charge.cost);
            charge.bound_cost();
        }
        self.adjust_reservations(mode, cost);
        for place in 0..self.charges.len() {
            if let Some(limit) = self.origins.get(place).and_then(|origin| rules.limit(origin.limit)) {
                self.ask_one(place, limit);
            }
        }
        if !mode.can_deny() {
            // A refund is never denied.
            self.denials.clear();
        }
    }

    /// Adjusts limits whose cost the response reports. A caller that does not spend reports what has happened, so nothing is
    /// left to settle.
    fn adjust_reservations(&mut self, mode: Mode, cost: Option<u64>) {
        for reservation in &mut self.reservations {
            reservation.reserve = cost.unwrap_or(reservation.reserve);
            let charges = self.origins.iter().zip(&mut self.charges);
            for (_, charge) in charges.filter(|(origin, _)| origin.limit == reservation.limit) {
                charge.cost = reservation.reserve;
            }
        }
        if mode != Mode::Spend {
            self.reservations.clear();
        }
    }

    /// Lets the charges of `limit`, which begin at `first`, ask whether anything is left if they cost nothing and usage is
    /// reported to the limit afterwards.
    pub fn ask(&mut self, first: usize, limit: &Limit) {
        for place in first..self.charges.len() {
            self.ask_one(place, limit);
        }
    }

    fn ask_one(&mut self, place: usize, limit: &Limit) {
        // The settlement takes what a response costs, and the check before it has a cost.
        if limit.drain_over_limit
            && limit.response_cost.is_none()
            && let Some(charge) = self.charges.get_mut(place)
        {
            charge.look_for_one();
        }
    }
}

impl Limit {
    /// The mode of a charge for a caller's mode: a report may take what is left.
    pub const fn reporting(&self, mode: Mode) -> Mode {
        match mode {
            Mode::SpendOnly if self.drain_over_limit => Mode::SpendUpTo,
            mode => mode,
        }
    }
}
