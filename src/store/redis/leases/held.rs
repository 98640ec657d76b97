//! A lease that a worker holds, and the decisions that it makes from it.

use crate::engine::algorithms::charge::Charge;
use crate::engine::algorithms::decision::{Decision, Outcome};
use crate::engine::algorithms::lease::{EndedLease, LeaseGrant};
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::numbers::Numbers;
use crate::engine::algorithms::windows::Windows;

/// The tokens of one lease that are left.
#[derive(Debug)]
pub(super) struct HeldLease {
    /// Tells it from other leases of the table.
    pub(super) number: u64,
    grant: LeaseGrant,
    left: u64,
    /// The end by the worker's clock, counted from before the lease was asked for: it comes before the end in the store.
    ends: Micros,
    /// The charge that it was granted to; a lease serves only charges of the same bucket under the same numbers.
    charge: Charge,
    effective_from: Micros,
    picture: Picture,
    /// The tokens left when the lease was looked at last.
    seen: u64,
    /// The time of the next look.
    pub(super) look: Micros,
}

/// The bucket as this worker knows it: the store's last answer, and the tokens taken since. What other workers take shows with
/// the next answer.
#[derive(Clone, Copy, Debug)]
struct Picture {
    at: Micros,
    /// Levels used at `at`; tokens for a bucket with windows.
    used: u64,
    /// The end of the window by the worker's clock; `None` if the bucket has no windows.
    window_end: Option<Micros>,
}

impl HeldLease {
    /// A lease that was granted beside `charge`, which the store has answered with `decision`. Both are of `asked` or later.
    pub(super) fn new(
        number: u64,
        charge: &Charge,
        effective_from: Micros,
        grant: LeaseGrant,
        decision: &Decision,
        asked: Micros,
    ) -> Self {
        let charge = Charge { input: None, ..charge.clone() };
        let picture = Picture::new(&charge.numbers, decision, asked);
        let ends = asked.after(grant.span);
        Self {
            number,
            grant,
            left: grant.tokens,
            ends,
            charge,
            effective_from,
            picture,
            seen: grant.tokens,
            look: asked,
        }
    }

    pub(super) const fn left(&self) -> u64 {
        self.left
    }

    pub(super) const fn granted_at(&self) -> Micros {
        self.grant.at()
    }

    pub(super) const fn effective_from(&self) -> Micros {
        self.effective_from
    }

    /// Returns true if the lease serves charges like this one.
    pub(super) fn serves(&self, charge: &Charge, effective_from: Micros, now: Micros) -> bool {
        let own = &self.charge;
        now < self.ends
            && (own.changed, self.effective_from) == (charge.changed, effective_from)
            && own.numbers == charge.numbers
    }

    /// Takes tokens; `None` if fewer are left.
    pub(super) fn take(&mut self, cost: u64, now: Micros) -> Option<Decision> {
        self.left = self.left.checked_sub(cost)?;
        let numbers = &self.charge.numbers;
        self.picture.advance(numbers, now);
        self.picture.used = self.picture.used.saturating_add(cost.saturating_mul(numbers.token()));
        Some(self.picture.decision(numbers, cost))
    }

    /// Puts tokens back that were taken for a request that another limit has denied. Returns the state of the bucket.
    pub(super) fn put_back(&mut self, cost: u64) -> Decision {
        let numbers = &self.charge.numbers;
        self.left = self.left.saturating_add(cost).min(self.grant.tokens);
        self.picture.used = self.picture.used.saturating_sub(cost.saturating_mul(numbers.token()));
        let decision = self.picture.decision(numbers, 0);
        Decision { outcome: Outcome::Unchanged, retry_after: Some(Micros(0)), ..decision }
    }

    /// Returns the time of the next look after `now`: half the lease's length later, but no later than a quarter of it before
    /// the end, so that the remaining tokens arrive in time.
    pub(super) fn next_look(&self, now: Micros) -> Micros {
        let last = Micros(self.ends.0.saturating_sub(self.grant.span.0 / 4));
        now.after(Micros(self.grant.span.0 / 2)).min(last)
    }

    /// Returns true if the lease should end: soon it will, or nothing was taken since the last look.
    pub(super) fn is_over(&mut self, now: Micros) -> bool {
        let is_idle = std::mem::replace(&mut self.seen, self.left) == self.left;
        is_idle || now.after(Micros(self.grant.span.0 / 4)) >= self.ends
    }

    pub(super) const fn ended(&self) -> EndedLease {
        EndedLease { granted: self.grant.tokens, left: self.left, until: self.grant.until }
    }

    pub(super) fn into_charge(self) -> Charge {
        self.charge
    }
}

impl Picture {
    fn new(numbers: &Numbers, decision: &Decision, asked: Micros) -> Self {
        let tokens = numbers.burst().saturating_sub(decision.remaining);
        if numbers.windows().is_some() {
            let window_end = decision.reset_after.map(|reset| asked.after(reset));
            return Self { at: asked, used: tokens, window_end };
        }
        let by_tokens = tokens.saturating_mul(numbers.token());
        // The reset knows parts of a token.
        let by_reset = decision.reset_after.map(|reset| reset.0.saturating_mul(numbers.drain()));
        let used = by_reset.map_or(by_tokens, |levels| levels.min(by_tokens));
        Self { at: asked, used, window_end: None }
    }

    fn advance(&mut self, numbers: &Numbers, now: Micros) {
        self.used = self.used.saturating_sub(now.since(self.at).0.saturating_mul(numbers.drain()));
        self.at = self.at.max(now);
    }

    /// Returns the decision on a charge of `cost` that was taken.
    fn decision(&self, numbers: &Numbers, cost: u64) -> Decision {
        let capacity = numbers.capacity();
        let missing = self.used.saturating_add(cost.saturating_mul(numbers.token())).saturating_sub(capacity);
        let (retry_after, reset_after) = match self.window_end {
            None => (numbers.time_for(missing), numbers.time_for(self.used)),
            Some(end) => {
                let reset = end.since(self.at);
                (Some(if missing == 0 { Micros(0) } else { until_window(numbers, reset, missing) }), Some(reset))
            }
        };
        let remaining = capacity.saturating_sub(self.used) / numbers.token();
        Decision { outcome: Outcome::Allowed, delay: 0, limit: numbers.burst(), remaining, retry_after, reset_after }
    }
}

/// Returns the time until as many windows have begun as give `missing` tokens; the first begins after `reset`. Months count as
/// one.
fn until_window(numbers: &Numbers, reset: Micros, missing: u64) -> Micros {
    let more = missing.div_ceil(numbers.count().max(1)) - 1;
    match numbers.windows() {
        Some(Windows::First(period) | Windows::Clock(period)) => reset.after(Micros(period.saturating_mul(more))),
        _ => reset,
    }
}
