//! Leases: tokens that a worker takes from Redis ahead of use, for ids that are used much. Requests that a lease serves do not
//! ask Redis.
//!
//! A request takes tokens from the leases that serve its charges, and sends the other charges. Where those prevent that a charge
//! takes its cost, or fail, it puts the tokens back. A charge that is sent may end its bucket's last lease and ask for another.
//!
//! The worker counts a lease from before it asked for it. So its lease ends before the server's, which then counts the tokens as
//! used. The worker gives unused tokens back before that, and when it stops. The tokens of a worker that dies stay used.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::Notify;

use self::table::{LeaseTable, Taken};
use crate::engine::algorithms::charge::{Charge, Input};
use crate::engine::algorithms::decision::{Decision, Decisions, Detail, Outcome};
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::taking::{FEW, Taking};
use crate::store::{Batch, StoreError};

mod demand;
mod held;
pub mod table;

/// The leases of a worker.
pub(super) struct Leases {
    pub(super) table: Mutex<LeaseTable>,
    /// The origin of the table's times.
    start: Instant,
    /// Wakes the task that gives leases back, if a lease needs an earlier look.
    pub(super) earlier: Notify,
}

/// A charge of a request: decided from a lease, or sent.
pub(super) enum Part {
    Taken(Decision, Taken),
    Sent,
}

impl Leases {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { table: Mutex::default(), start: Instant::now(), earlier: Notify::new() })
    }

    pub(super) fn now(&self) -> Micros {
        Micros(u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    /// Returns the decisions made from leases so far, and the tokens left in all of them.
    pub(super) fn usage(&self) -> (u64, u64) {
        let table = self.table.lock();
        (table.decisions(), table.tokens())
    }

    /// Takes tokens for the charges that leases serve.
    pub(super) fn take(&self, batch: &Batch<'_>, now: Micros) -> SmallVec<[Part; FEW]> {
        let mut table = self.table.lock();
        let take = |charge| match table.take(charge, batch.effective_from, now) {
            Some((decision, taken)) => Part::Taken(decision, taken),
            None => Part::Sent,
        };
        batch.charges.iter().map(take).collect()
    }

    /// Returns the charges that no lease serves, each with its part about leases.
    pub(super) fn sent(
        &self,
        batch: &Batch<'_>,
        parts: &[Part],
        now: Micros,
        timeout: Duration,
    ) -> SmallVec<[Charge; FEW]> {
        let until = now.after(Micros(u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX)));
        let mut table = self.table.lock();
        let sent = batch.charges.iter().zip(parts).filter(|(_, part)| matches!(part, Part::Sent));
        sent.map(|(charge, _)| match table.ask(charge, now, until) {
            Some(ask) => Charge { input: Some(Box::new(Input::Lease(ask))), ..charge.clone() },
            None => charge.clone(),
        })
        .collect()
    }

    /// Notes the answers to the charges that were sent at `asked`, with the leases in them.
    pub(super) fn note(
        &self,
        sent: &[Charge],
        effective_from: Micros,
        asked: Micros,
        answer: &mut Result<Decisions, StoreError>,
    ) {
        let mut table = self.table.lock();
        let before = table.next_look();
        for (place, charge) in sent.iter().enumerate().filter(|(_, charge)| asks_for_lease(charge)) {
            let granted = answer.as_ref().ok().and_then(|decisions| {
                let Some(Detail::Leased(grant)) = decisions.detail(place) else { return None };
                Some((*grant, decisions.get(place)?))
            });
            table.answered(charge, effective_from, asked, granted);
        }
        if let Ok(decisions) = answer {
            for (place, detail) in &mut decisions.details {
                if let (Detail::Leased(grant), Some(charge)) = (&*detail, sent.get(*place))
                    && charge.is_told()
                {
                    *detail = Detail::Taken(grant.at());
                }
            }
            decisions.details.retain(|(_, detail)| !matches!(detail, Detail::Leased(_)));
        }
        if table.next_look().is_some_and(|next| before.is_none_or(|before| next < before)) {
            self.earlier.notify_one();
        }
    }

    /// Lets later requests ask for the leases that these charges have asked for: nobody waits for the answer, so a lease in it is
    /// given back.
    pub(super) fn forget_wishes(&self, sent: &[Charge]) {
        let mut table = self.table.lock();
        sent.iter().filter(|charge| asks_for_lease(charge)).for_each(|charge| table.forget_wish(charge));
    }

    /// Puts back what was taken for charges that take nothing, or for all if their request was not `decided`. Returns refunds of
    /// tokens whose lease another request has ended: the store counts them as used.
    #[must_use]
    pub(super) fn put_back(
        &self,
        charges: &[Charge],
        parts: &mut [Part],
        decided: Option<&Decisions>,
    ) -> SmallVec<[Charge; FEW]> {
        let is_short = |index: usize| decided.and_then(|it| it.get(index)).is_some_and(Decision::is_short);
        let taking = Taking::new(charges, is_short);
        let mut table = self.table.lock();
        let mut refunds = SmallVec::new();
        for (part, charge) in parts.iter_mut().zip(charges) {
            let Part::Taken(decision, taken) = part else { continue };
            if decided.is_some() && taking.takes(charge) {
                continue;
            }
            *decision = table.put_back(*taken).unwrap_or_else(|| {
                refunds.push(charge.refund(charge.cost, charge.numbers.is_dated().then_some(taken.at)));
                let remaining = decision.remaining.saturating_add(charge.cost).min(decision.limit);
                Decision { outcome: Outcome::Unchanged, remaining, retry_after: Some(Micros(0)), ..*decision }
            });
        }
        refunds
    }
}

fn asks_for_lease(charge: &Charge) -> bool {
    charge.lease_ask().is_some_and(|ask| ask.wish.is_some())
}

/// Joins the decisions of a request's charges.
pub(super) fn joined(parts: &[Part], sent: &Decisions) -> Decisions {
    let mut joined = Decisions::with_capacity(parts.len());
    let mut details = sent.details.iter().peekable();
    let mut answers = sent.iter().enumerate();
    for (place, part) in parts.iter().enumerate() {
        match part {
            Part::Taken(decision, taken) => {
                joined.push(*decision);
                joined.details.extend(taken.is_told.then_some((place, Detail::Taken(taken.at))));
            }
            Part::Sent => {
                let Some((own, decision)) = answers.next() else { continue };
                joined.push(*decision);
                while let Some((_, detail)) = details.next_if(|(of, _)| *of == own) {
                    joined.details.push((place, detail.clone()));
                }
            }
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::algorithms::charge::{Bucket, ChargeOrigin, Mode};
    use crate::engine::algorithms::lease::{LeaseGrant, LeaseTerms};
    use crate::engine::algorithms::numbers::Numbers;

    /// Tokens go back to their lease, or to the store if another request has ended the lease in the meantime.
    #[test]
    fn tokens_of_a_denied_request_go_back_even_if_their_lease_has_ended() {
        let numbers = Numbers::new(100, 1, 1_000_000_000_000).unwrap();
        let terms = LeaseTerms { tokens: 5, span: 1_000_000 };
        let charge = |limit: u32, lease, cost| {
            let bucket = Bucket::new(format!("L{limit}:k"), limit.into());
            let origin = ChargeOrigin::new(limit, true);
            Charge { origin, lease, ..Charge::new(bucket, numbers.clone(), cost, Mode::Spend) }
        };
        let decision = Decision { outcome: Outcome::Allowed, limit: 100, remaining: 90, ..Decision::never() };
        for (is_ended, expected) in [(false, None), (true, Some((Mode::Refund, 2)))] {
            let (leases, now, effective_from) = (Leases::new(), Micros(1_000), Micros(1));
            let grant = LeaseGrant { tokens: 5, span: Micros(1_000_000), until: Micros(2_000_000) };
            let leased = charge(1, Some(terms), 2);
            leases.table.lock().take(&leased, effective_from, now);
            leases.table.lock().answered(&leased, effective_from, now, Some((grant, &decision)));
            let charges = [leased, charge(2, None, 1)];
            let batch = Batch { charges: &charges, effective_from, now };
            let mut parts = leases.take(&batch, now);
            assert!(matches!(parts[..], [Part::Taken(..), Part::Sent]));
            if is_ended {
                let ended = leases.table.lock().ask(&charge(1, Some(terms), 9), now, now).and_then(|ask| ask.ended);
                assert_eq!(ended.map(|ended| ended.left), Some(3));
            }
            let denied = Decision { outcome: Outcome::Denied, ..decision };
            let decided = joined(&parts, &Decisions::from_iter([denied]));
            let refunds = leases.put_back(&charges, &mut parts, Some(&decided));
            assert_eq!(refunds.first().map(|refund| (refund.mode, refund.cost)), expected, "{is_ended}");
            let Part::Taken(told, _) = &parts[0] else { panic!("it was taken from a lease") };
            assert_eq!(told.outcome, Outcome::Unchanged);
            assert_eq!(leases.usage().1, if is_ended { 0 } else { 5 }, "tokens in leases");
        }
    }
}
