//! `idle-lease`: leases of tokens that serve no requests.

use super::super::problem::Place;
use super::Subject;
use crate::engine::algorithms::describe::Span;
use crate::engine::algorithms::lease::{LEAST_REQUESTS, LeaseTerms, MOST_LEASED};
use crate::engine::algorithms::numbers::Numbers;
use crate::engine::limit::Cost;

/// A bucket that takes this long to fill, or longer, is a budget, which ids may spend at a higher rate. In nanoseconds.
const SHORTEST_BUDGET: u128 = 60 * 1_000_000_000;

pub(super) fn find(subject: &Subject<'_>) -> Option<(Place, String)> {
    let limit = subject.limit;
    let terms = limit.lease?;
    let cost = if let Cost::Fixed(cost) = limit.cost { cost } else { 1 };
    if cost > u64::from(terms.tokens) {
        let message = format!("a request costs {cost} tokens, and a lease has {} at most", terms.tokens);
        return Some((subject.places.of("lease"), message));
    }
    // Ids with other numbers lease by the same terms.
    let windows = limit.allowance.windows().filter(|_| limit.overrides.is_empty())?;
    let mut reasons = windows.iter().map(|numbers| reason(numbers, terms, cost));
    let first = reasons.next()??;
    reasons.all(|reason| reason.is_some()).then(|| (subject.places.of("lease"), first))
}

/// Returns why no id that stays within these numbers gets a lease that saves a call.
fn reason(numbers: &Numbers, terms: LeaseTerms, cost: u64) -> Option<String> {
    let [burst, count, period] = [numbers.burst(), numbers.count(), numbers.period()].map(u128::from);
    if numbers.burst() / MOST_LEASED < cost.saturating_mul(2) {
        return Some(format!(
            "a lease has at most a quarter of the burst, which is {} here",
            numbers.burst() / MOST_LEASED
        ));
    }
    let is_budget = burst * period >= SHORTEST_BUDGET * count;
    let spent = count * u128::from(terms.span) * 1_000 / period.max(1);
    (!is_budget && spent < u128::from(cost) * u128::from(LEAST_REQUESTS)).then(|| {
        let span = Span(u64::from(terms.span) * 1_000);
        format!("an id at its limit spends {spent} in {span}, and a worker leases from {LEAST_REQUESTS} requests on")
    })
}
