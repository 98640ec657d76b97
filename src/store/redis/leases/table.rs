//! The leases of a worker. Pure: times are arguments, by a clock that never steps.

use std::collections::{BTreeSet, HashMap};

use super::demand::Demand;
use super::held::HeldLease;
use crate::engine::algorithms::charge::{Charge, Dated, Input, Mode};
use crate::engine::algorithms::decision::Decision;
use crate::engine::algorithms::lease::{LeaseAsk, LeaseGrant};
use crate::engine::algorithms::micros::Micros;

/// The most leases of a worker. With more hot ids than this, the others ask Redis each time.
pub const MOST_LEASES: usize = 1_024;

/// The leases of a worker by the fingerprints of their buckets, and the demand for ids that may be leased.
#[derive(Debug, Default)]
pub struct LeaseTable {
    held: HashMap<u128, HeldLease>,
    /// The times of their next looks, at which unused tokens are given back.
    looks: BTreeSet<(Micros, u128)>,
    demand: Demand,
    /// The time at which the latest rules took effect. Leases under other rules are dropped.
    effective_from: Micros,
    /// Decisions made from leases.
    decisions: u64,
    /// Tokens left in all leases.
    tokens: u64,
    /// The number of leases so far.
    leases: u64,
}

/// Tokens that were taken from a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    id: u128,
    cost: u64,
    /// The lease's number: leases of an id that follow each other may end at the same instant.
    lease: u64,
    /// The instant at which they were leased, by the clock of the store.
    pub(super) at: Micros,
    /// The charge asks for that instant.
    pub(super) is_told: bool,
}

/// A lease that has ended, for the store.
#[derive(Debug, PartialEq, Eq)]
pub struct Return {
    /// Gives back what is left.
    pub charge: Charge,
    pub effective_from: Micros,
}

impl LeaseTable {
    /// Decides a charge from a lease, if enough is left in one. A lease never denies.
    pub fn take(&mut self, charge: &Charge, effective_from: Micros, now: Micros) -> Option<(Decision, Taken)> {
        let (id, cost) = (charge.bucket.fingerprint, charge.cost);
        let terms = charge.lease.filter(|_| can_be_leased(charge))?;
        self.effective_from = effective_from;
        self.demand.count(id, cost, terms, now);
        let lease = self.held.get_mut(&id).filter(|lease| lease.serves(charge, effective_from, now))?;
        let decision = lease.take(cost, now)?;
        self.decisions += 1;
        self.tokens -= cost;
        let (lease, at, is_told) = (lease.number, lease.granted_at(), charge.is_told());
        Some((decision, Taken { id, cost, lease, at, is_told }))
    }

    /// Puts tokens back, since their request is denied or has failed. Returns the state of the bucket, unless the lease is over.
    pub fn put_back(&mut self, taken: Taken) -> Option<Decision> {
        self.decisions = self.decisions.saturating_sub(1);
        let lease = self.held.get_mut(&taken.id).filter(|lease| lease.number == taken.lease)?;
        self.tokens -= lease.left();
        let decision = lease.put_back(taken.cost);
        self.tokens += lease.left();
        Some(decision)
    }

    /// Returns the part about leases of a charge that no lease serves: the end of the last lease, and a wish if the id is busy.
    /// The answer to the wish comes before `until`, or never.
    pub fn ask(&mut self, charge: &Charge, now: Micros, until: Micros) -> Option<LeaseAsk> {
        let id = charge.bucket.fingerprint;
        let terms = charge.lease.filter(|_| can_be_leased(charge))?;
        let ended =
            self.end(id).filter(|lease| lease.serves(charge, self.effective_from, now)).map(|lease| lease.ended());
        let wish =
            if self.held.len() < MOST_LEASES { self.demand.wish(id, charge.cost, terms, now, until) } else { None };
        (wish.is_some() || ended.is_some()).then_some(LeaseAsk { wish, ended })
    }

    /// Notes the answer to a charge with a wish, which was sent at `asked` or later, and the lease that was granted, if any.
    pub fn answered(
        &mut self,
        charge: &Charge,
        effective_from: Micros,
        asked: Micros,
        granted: Option<(LeaseGrant, &Decision)>,
    ) {
        let id = charge.bucket.fingerprint;
        self.demand.answered(id);
        let Some((grant, decision)) = granted.filter(|_| self.held.len() < MOST_LEASES) else { return };
        self.end(id);
        self.leases += 1;
        let lease = HeldLease::new(self.leases, charge, effective_from, grant, decision, asked);
        let look = lease.next_look(asked);
        self.tokens += lease.left();
        self.held.insert(id, lease);
        self.look_at(id, look);
    }

    /// Notes that nobody waits for the answer to a charge with a wish.
    pub fn forget_wish(&mut self, charge: &Charge) {
        self.demand.answered(charge.bucket.fingerprint);
    }

    /// The time of the next call of [`Self::returns`].
    pub fn next_look(&self) -> Option<Micros> {
        self.looks.first().map(|(at, _)| *at)
    }

    /// Ends the leases that are idle or end soon. Returns those with tokens left.
    pub fn returns(&mut self, now: Micros) -> Vec<Return> {
        let mut returns = Vec::new();
        while let Some((_, id)) = self.looks.first().copied().filter(|(at, _)| *at <= now) {
            let Some(lease) = self.held.get_mut(&id) else {
                self.looks.pop_first();
                continue;
            };
            if lease.is_over(now) {
                returns.extend(self.end(id).and_then(|lease| self.given_back(lease)));
            } else {
                let again = lease.next_look(now);
                self.look_at(id, again);
            }
        }
        returns
    }

    /// Ends all leases. Returns those with tokens left.
    pub fn end_all(&mut self) -> Vec<Return> {
        self.looks.clear();
        self.tokens = 0;
        let all = std::mem::take(&mut self.held);
        all.into_values().filter_map(|lease| self.given_back(lease)).collect()
    }

    /// Decisions made from leases so far.
    pub const fn decisions(&self) -> u64 {
        self.decisions
    }

    /// Tokens left in all leases.
    pub const fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Sets when to look at a lease.
    fn look_at(&mut self, id: u128, at: Micros) {
        if let Some(lease) = self.held.get_mut(&id) {
            self.looks.remove(&(lease.look, id));
            lease.look = at;
            self.looks.insert((at, id));
        }
    }

    /// Removes a lease.
    fn end(&mut self, id: u128) -> Option<HeldLease> {
        let lease = self.held.remove(&id)?;
        self.looks.remove(&(lease.look, id));
        self.tokens -= lease.left();
        Some(lease)
    }

    /// Returns what gives back the rest of a lease; `None` if nothing is left, or if it belongs to rules that no longer apply.
    fn given_back(&self, lease: HeldLease) -> Option<Return> {
        let (effective_from, ended) = (lease.effective_from(), lease.ended());
        let is_current = effective_from == self.effective_from;
        (is_current && ended.left > 0).then(|| {
            let ask = LeaseAsk { wish: None, ended: Some(ended) };
            let input = Some(Box::new(Input::Lease(ask)));
            let charge =
                Charge { mode: Mode::Refund, cost: 0, lease: None, dated: Dated::No, input, ..lease.into_charge() };
            Return { charge, effective_from }
        })
    }
}

/// Returns true if a lease may serve the charge.
fn can_be_leased(charge: &Charge) -> bool {
    matches!(charge.mode, Mode::Spend | Mode::SpendOnly) && charge.cost > 0 && charge.input.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::algorithms::algorithm::Aligned;
    use crate::engine::algorithms::charge::Bucket;
    use crate::engine::algorithms::decision::Outcome;
    use crate::engine::algorithms::lease::{EndedLease, LeaseTerms, LeaseWish};
    use crate::engine::algorithms::numbers::Numbers;
    use crate::engine::algorithms::tag::Tag;

    const TERMS: LeaseTerms = LeaseTerms { tokens: 50, span: 100_000 };
    const SECOND: u64 = 1_000_000_000;

    fn charge(id: u128, numbers: &Numbers, cost: u64) -> Charge {
        let bucket = Bucket { key: format!("L:{id}"), fingerprint: id, tag: Tag::OfId };
        Charge { lease: Some(TERMS), ..Charge::new(bucket, numbers.clone(), cost, Mode::Spend) }
    }

    fn hundred() -> Numbers {
        Numbers::new(100, 100, SECOND).unwrap()
    }

    /// A table with a lease of `tokens`, granted at 0 beside a charge that left 40 of 100.
    fn leased(numbers: &Numbers, tokens: u64) -> LeaseTable {
        let mut table = LeaseTable::default();
        let charge = charge(7, numbers, 1);
        assert_eq!(table.take(&charge, Micros(1), Micros(0)), None);
        let grant = LeaseGrant { tokens, span: Micros(100_000), until: Micros(5_000_000) };
        let decision = Decision {
            outcome: Outcome::Allowed,
            delay: 0,
            limit: 100,
            remaining: 40,
            retry_after: Some(Micros(0)),
            reset_after: Some(Micros(600_000)),
        };
        table.answered(&charge, Micros(1), Micros(0), Some((grant, &decision)));
        table
    }

    /// Takes at an instant: what remains, the wait and the reset; or nothing.
    fn take(table: &mut LeaseTable, numbers: &Numbers, cost: u64, at: u64) -> Option<(u64, u64, u64)> {
        let (decision, _) = table.take(&charge(7, numbers, cost), Micros(1), Micros(at))?;
        assert_eq!((decision.outcome, decision.limit), (Outcome::Allowed, 100));
        Some((decision.remaining, decision.retry_after.unwrap().0, decision.reset_after.unwrap().0))
    }

    #[test]
    fn a_lease_answers_until_it_is_empty_or_over() {
        let (mut table, numbers) = (leased(&hundred(), 5), hundred());
        assert_eq!(take(&mut table, &numbers, 1, 0), Some((39, 0, 610_000)));
        assert_eq!(
            take(&mut table, &numbers, 2, 20_000),
            Some((39, 0, 610_000)),
            "two have come back, and two are taken"
        );
        assert_eq!((take(&mut table, &numbers, 3, 20_000), table.tokens()), (None, 2));
        assert_eq!(take(&mut table, &numbers, 1, 99_999).map(|(remaining, ..)| remaining), Some(45));
        assert_eq!((take(&mut table, &numbers, 1, 100_000), table.tokens(), table.decisions()), (None, 1, 3));
    }

    #[test]
    fn a_lease_of_a_window_tells_of_the_window() {
        let numbers = Numbers::fixed_window(100, 100, SECOND, Aligned::Clock).unwrap();
        let mut table = leased(&numbers, 40);
        assert_eq!(take(&mut table, &numbers, 30, 50_000), Some((10, 550_000, 550_000)), "30 more do not fit");
        assert_eq!(take(&mut table, &numbers, 1, 50_001), Some((9, 0, 549_999)));
    }

    #[test]
    fn only_charges_that_spend_by_the_same_numbers_are_served() {
        let numbers = hundred();
        let mut table = leased(&numbers, 50);
        let plain = charge(7, &numbers, 1);
        let others = [
            Charge { mode: Mode::Check, ..plain.clone() },
            Charge { mode: Mode::Refund, ..plain.clone() },
            Charge { mode: Mode::SpendUpTo, ..plain.clone() },
            Charge { cost: 0, ..plain.clone() },
            Charge { lease: None, ..plain.clone() },
            Charge { changed: Micros(9), ..plain.clone() },
            charge(7, &Numbers::new(100, 101, SECOND).unwrap(), 1),
            charge(8, &numbers, 1),
        ];
        for other in others {
            assert_eq!(table.take(&other, Micros(1), Micros(0)), None, "{other:?}");
        }
        assert_eq!(table.take(&plain, Micros(2), Micros(0)), None, "other rules");
        assert!(table.take(&Charge { mode: Mode::SpendOnly, ..plain }, Micros(1), Micros(0)).is_some());
    }

    #[test]
    fn an_empty_lease_ends_with_the_next_question() {
        let (mut table, numbers) = (leased(&hundred(), 5), hundred());
        take(&mut table, &numbers, 5, 10).unwrap();
        assert_eq!(take(&mut table, &numbers, 1, 20), None);
        let ask = table.ask(&charge(7, &numbers, 1), Micros(20), Micros(30)).unwrap();
        let ended = EndedLease { granted: 5, left: 0, until: Micros(5_000_000) };
        assert_eq!(ask, LeaseAsk { wish: Some(LeaseWish { terms: TERMS, demand: 7 }), ended: Some(ended) });
        assert_eq!(table.ask(&charge(7, &numbers, 1), Micros(21), Micros(30)), None, "one wish at a time");
        assert_eq!((table.next_look(), table.returns(Micros(1_000_000)).len()), (None, 0));
    }

    #[test]
    fn what_is_put_back_can_be_taken_again() {
        let (mut table, numbers) = (leased(&hundred(), 5), hundred());
        let (_, taken) = table.take(&charge(7, &numbers, 4), Micros(1), Micros(0)).unwrap();
        let state = table.put_back(taken).unwrap();
        assert_eq!((state.outcome, state.remaining, table.tokens()), (Outcome::Unchanged, 40, 5));
        assert!(take(&mut table, &numbers, 5, 0).is_some());
        table.end_all();
        assert_eq!((table.put_back(taken), table.tokens()), (None, 0));
    }

    /// The next lease may end at the same instant. Tokens that come back to it have drained since they were counted.
    #[test]
    fn tokens_of_a_lease_are_not_put_back_into_the_next_one() {
        let (mut table, numbers) = (leased(&hundred(), 5), hundred());
        let (_, taken) = table.take(&charge(7, &numbers, 4), Micros(1), Micros(0)).unwrap();
        let grant = LeaseGrant { tokens: 3, span: Micros(50_000), until: Micros(5_000_000) };
        table.answered(&charge(7, &numbers, 9), Micros(1), Micros(50_000), Some((grant, &Decision::never())));
        table.take(&charge(7, &numbers, 3), Micros(1), Micros(50_000)).unwrap();
        assert_eq!((table.put_back(taken), table.tokens()), (None, 0));
    }

    #[test]
    fn leases_are_given_back_before_they_end_or_when_idle() {
        // Looked at after half its length; given back if nothing was taken, or a quarter before its end.
        for (taken_at, given_back_at) in [(None, 50_000), (Some(40_000), 75_000)] {
            let (mut table, numbers) = (leased(&hundred(), 5), hundred());
            if let Some(at) = taken_at {
                take(&mut table, &numbers, 1, at).unwrap();
            }
            let mut given_back = Vec::new();
            while let Some(Micros(at)) = table.next_look() {
                assert!(table.returns(Micros(at - 1)).is_empty());
                given_back = table.returns(Micros(at)).into_iter().map(|back| (at, back)).collect();
            }
            let (at, Return { charge, effective_from }) = given_back.pop().unwrap();
            let left = if taken_at.is_some() { 4 } else { 5 };
            let ended = EndedLease { granted: 5, left, until: Micros(5_000_000) };
            let ask = LeaseAsk { wish: None, ended: Some(ended) };
            assert_eq!((at, charge.mode, charge.cost, effective_from), (given_back_at, Mode::Refund, 0, Micros(1)));
            assert_eq!(charge.lease_ask(), Some(&ask));
        }
    }

    #[test]
    fn leases_of_other_rules_are_dropped() {
        let mut table = leased(&hundred(), 5);
        table.take(&charge(8, &hundred(), 1), Micros(2), Micros(0));
        assert_eq!((table.end_all(), table.tokens()), (Vec::new(), 0));
    }

    #[test]
    fn no_more_leases_are_held_than_there_may_be() {
        let mut table = LeaseTable::default();
        let grant = LeaseGrant { tokens: 2, span: Micros(100_000), until: Micros(5_000_000) };
        for id in 0..2 * MOST_LEASES as u128 {
            let charge = charge(id, &hundred(), 1);
            for _ in 0..9 {
                table.take(&charge, Micros(1), Micros(0));
            }
            let wish = table.ask(&charge, Micros(0), Micros(9)).and_then(|ask| ask.wish);
            assert_eq!(wish.is_some(), id < MOST_LEASES as u128);
            table.answered(&charge, Micros(1), Micros(0), Some((grant, &Decision::never())));
        }
        assert_eq!(
            (table.held.len(), table.looks.len(), table.tokens()),
            (MOST_LEASES, MOST_LEASES, 2 * MOST_LEASES as u64)
        );
    }
}
