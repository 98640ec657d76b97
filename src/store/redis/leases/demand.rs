//! Counts the tokens that a worker is asked for, by id. It leases tokens only of busy ids, and no more than it uses.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::mem::take;

use crate::engine::algorithms::lease::{LEAST_REQUESTS, LeaseTerms, LeaseWish};
use crate::engine::algorithms::micros::{EXACT, Micros};

/// The most ids of one generation; there are two. An id that was not asked for in a generation is forgotten.
const GENERATION: usize = 4_096;

/// The demand for ids by their fingerprints.
#[derive(Debug, Default)]
pub(super) struct Demand {
    young: HashMap<u128, Rate>,
    old: HashMap<u128, Rate>,
}

/// The tokens asked for in a span as long as a lease, and in the one before.
#[derive(Clone, Copy, Debug)]
struct Rate {
    since: Micros,
    tokens: u64,
    before: u64,
    /// Until when a wish may be under way. A second one would lease more than is used.
    wished_until: Micros,
}

impl Demand {
    /// Counts a charge.
    pub(super) fn count(&mut self, id: u128, cost: u64, terms: LeaseTerms, now: Micros) {
        let span = u64::from(terms.span);
        let rate = self.rate(id, now);
        let passed = now.since(rate.since).0;
        if passed >= span {
            rate.before = if passed < 2 * span { rate.tokens } else { 0 };
            (rate.since, rate.tokens) = (now, 0);
        }
        rate.tokens = rate.tokens.saturating_add(cost);
    }

    /// Returns the lease that is worth asking for beside a charge that was counted, and notes that it is asked for. No other is
    /// before `until`, unless [`Self::answered`] comes first.
    pub(super) fn wish(
        &mut self,
        id: u128,
        cost: u64,
        terms: LeaseTerms,
        now: Micros,
        until: Micros,
    ) -> Option<LeaseWish> {
        let rate = self.rate(id, now);
        let demand = rate.tokens.max(rate.before).min(EXACT - 1);
        let is_worth_it = demand >= cost.saturating_mul(LEAST_REQUESTS) && u64::from(terms.tokens) >= cost;
        if rate.wished_until > now || !is_worth_it {
            return None;
        }
        rate.wished_until = until;
        Some(LeaseWish { terms, demand })
    }

    /// Notes that no wish is under way.
    pub(super) fn answered(&mut self, id: u128) {
        if let Some(rate) = self.young.get_mut(&id) {
            rate.wished_until = Micros(0);
        }
    }

    fn rate(&mut self, id: u128, now: Micros) -> &mut Rate {
        if self.young.len() >= GENERATION && !self.young.contains_key(&id) {
            self.old = take(&mut self.young);
        }
        match self.young.entry(id) {
            Entry::Occupied(rate) => rate.into_mut(),
            Entry::Vacant(place) => {
                let fresh = Rate { since: now, tokens: 0, before: 0, wished_until: Micros(0) };
                place.insert(self.old.remove(&id).unwrap_or(fresh))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: LeaseTerms = LeaseTerms { tokens: 50, span: 100_000 };

    fn wish(demand: &mut Demand, id: u128, now: u64) -> Option<u64> {
        let wish = demand.wish(id, 1, TERMS, Micros(now), Micros(now + 20_000));
        demand.answered(id);
        wish.map(|wish| wish.demand)
    }

    #[test]
    fn a_wish_tells_what_was_used_lately() {
        let mut demand = Demand::default();
        for (at, expected) in [(0, None), (1, None), (2, None), (3, Some(4)), (100_000, Some(4)), (299_999, None)] {
            demand.count(7, 1, TERMS, Micros(at));
            assert_eq!(wish(&mut demand, 7, at), expected, "at {at}");
        }
        for at in 0..90 {
            demand.count(8, 1, TERMS, Micros(at));
        }
        assert_eq!(wish(&mut demand, 8, 90), Some(90));
        assert_eq!(demand.wish(8, 23, TERMS, Micros(91), Micros(0)), None, "it serves three requests");
        demand.count(8, 510, TERMS, Micros(92));
        assert_eq!(demand.wish(8, 51, TERMS, Micros(92), Micros(0)), None, "no lease serves one request");
        assert_eq!(wish(&mut demand, 8, 92), Some(600));
    }

    #[test]
    fn one_wish_is_under_way_at_a_time() {
        let mut demand = Demand::default();
        demand.count(7, 9, TERMS, Micros(0));
        let mut wish = |now| demand.wish(7, 1, TERMS, Micros(now), Micros(now + 20)).is_some();
        assert_eq!([0, 1, 19, 20, 21].map(&mut wish), [true, false, false, true, false]);
        demand.answered(7);
        assert!(demand.wish(7, 1, TERMS, Micros(22), Micros(0)).is_some());
    }

    #[test]
    fn ids_that_were_not_asked_for_lately_are_forgotten() {
        let mut demand = Demand::default();
        for id in 0..100_000 {
            demand.count(id, 1, TERMS, Micros(0));
            demand.count(1_000_000, 1, TERMS, Micros(0));
        }
        assert!(demand.young.len() + demand.old.len() <= 2 * GENERATION);
        assert_eq!(wish(&mut demand, 1_000_000, 0), Some(100_000), "one that is used all the time stays");
    }
}
