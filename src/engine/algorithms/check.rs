//! Charges that look at a bucket and take nothing: asks of 0, and the first half of a report.

use super::charge::{Charge, Decision, Mode, Outcome};
use super::numbers::Micros;
use super::refill::{Kind, Windows};

impl Charge {
    /// True if its bucket holds tokens: slots, queues and scripts have nothing to ask for or to report.
    pub(crate) fn has_tokens(&self) -> bool {
        matches!(self.numbers.refill().kind(), Kind::Level | Kind::Log(_) | Kind::SlidingWindow(_))
    }

    /// Makes it look for its cost and take nothing. A charge that may not deny costs nothing then, and [`Self::looked`]
    /// finds out whether the cost would have fitted.
    pub(crate) fn look(&mut self) {
        match self.mode {
            Mode::Spend => self.mode = Mode::Check,
            Mode::SpendOnly => self.cost = 0,
            Mode::Check | Mode::SpendUpTo | Mode::Refund | Mode::Reset => {}
        }
    }

    /// Makes a charge of nothing look for one token. Returns whether it is such a charge.
    pub(crate) fn ask(&mut self) -> bool {
        let asks =
            self.cost == 0 && self.has_tokens() && matches!(self.mode, Mode::Spend | Mode::Check | Mode::SpendOnly);
        if asks {
            self.cost = 1;
            self.look();
        }
        asks
    }

    /// Corrects the decision of a charge that has only looked for `wanted` tokens: what is left is what was there.
    pub(crate) fn looked(&self, decision: &mut Decision, wanted: u64) {
        // In a request that is denied the decision is where the bucket stands, and its outcome says so.
        let stands = decision.outcome == Outcome::Unchanged && decision.retry_after == Some(Micros(0));
        if decision.outcome != Outcome::Allowed && !stands {
            return;
        }
        if !stands {
            // A check of this cost has subtracted it, one of 0 has not, and that is one that may not deny.
            decision.remaining += self.cost;
        }
        // A full bucket has nothing to wait for, unless its windows end all the same.
        let windows = self.numbers.refill().windows();
        let is_timed = matches!(windows, Some(Windows::Clock(_) | Windows::Calendar(_)));
        if decision.remaining == self.numbers.burst() && !is_timed {
            decision.reset_after = Some(Micros(0));
        }
        if decision.remaining < wanted && !self.mode.can_deny() {
            decision.outcome = Outcome::Unchanged;
            decision.retry_after = decision.reset_after.filter(|_| wanted <= self.numbers.burst());
        }
    }
}
