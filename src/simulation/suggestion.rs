//! The smallest numbers that deny no more than a share of the log, found by deciding the log again with other numbers.

use crate::engine::algorithms::charge::{Bucket, Charge, Input, Mode};
use crate::engine::algorithms::delay::Delay;
use crate::engine::algorithms::level::LevelChange;
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::numbers::Numbers;
use crate::engine::algorithms::state::{BucketState, decide, decide_level};
use crate::engine::limit::Limit;

/// The most charges that are kept for all limits together, 24 bytes each.
pub const MOST_CHARGES: usize = 10_000_000;

/// The shares that may be denied, in millionths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Goal {
    pub requests: Option<u64>,
    pub ids: Option<u64>,
}

/// The smallest numbers that keep a goal. The period stays, and the other limits decide as they do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suggestion {
    /// With the present count. `None` if the algorithm has no burst of its own, or none keeps the goal.
    pub burst: Option<Found>,
    /// With a count that equals the burst.
    pub both: Option<Found>,
}

/// A number, and what is denied with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    pub number: u64,
    pub denied: u64,
    pub ids_denied: u64,
}

/// The number that is searched for.
#[derive(Clone, Copy)]
enum Sought {
    Burst,
    Both,
}

/// A charge of the log.
#[derive(Clone, Copy)]
struct Recorded {
    at: Micros,
    id: u32,
    cost: u64,
}

/// Marks the cost of a charge that another limit denies: it takes nothing.
const TAKES_NOTHING: u64 = 1 << 63;

/// The charges of one limit in the order of the log.
pub(super) struct Record {
    numbers: Numbers,
    delay: Option<Micros>,
    charges: Vec<Recorded>,
    /// Requests that other numbers of the limit would not change, such as those of ids with overrides.
    fixed_requests: u64,
    fixed_denied: u64,
    is_full: bool,
}

/// Returns why there is no suggestion for a limit.
pub(super) fn why_none(limit: &Limit) -> &'static str {
    match limit.allowance.windows() {
        _ if limit.response_cost.is_some() => "its costs depend on responses",
        _ if limit.counts_in_flight() => "it counts requests in flight",
        _ if limit.allowance.elevated().is_some() => "it has elevated numbers",
        Some(windows) if windows.len() > 1 => "it has several windows",
        Some(_) => "its period is that of the calendar",
        None => "it has no numbers",
    }
}

impl Record {
    /// `None` for limits whose numbers cannot be searched.
    pub(super) fn of(limit: &Limit) -> Option<Self> {
        let windows = limit.allowance.windows().filter(|_| limit.allowance.elevated().is_none())?;
        let [numbers] = &windows[..] else { return None };
        let is_searchable =
            limit.response_cost.is_none() && !numbers.is_slots() && !numbers.is_script() && !numbers.is_calendar();
        is_searchable.then(|| Self {
            numbers: numbers.clone(),
            delay: limit.delay,
            charges: Vec::new(),
            fixed_requests: 0,
            fixed_denied: 0,
            is_full: false,
        })
    }

    /// Adds a request; `charge` is its charge and the number of its id.
    pub(super) fn add(
        &mut self,
        at: Micros,
        charge: Option<(&Charge, u32)>,
        is_denied: bool,
        is_denied_by_others: bool,
        room: &mut usize,
    ) {
        let own = charge.filter(|(charge, _)| charge.numbers == self.numbers);
        let Some((charge, id)) = own else {
            self.fixed_requests += 1;
            self.fixed_denied += u64::from(is_denied);
            return;
        };
        if *room == 0 {
            self.is_full = true;
            return;
        }
        *room -= 1;
        let mark = if is_denied_by_others { TAKES_NOTHING } else { 0 };
        self.charges.push(Recorded { at, id, cost: charge.cost | mark });
    }

    /// Searches the smallest numbers that keep the goal. The error says why that is not possible.
    pub(super) fn suggest(mut self, goal: &Goal, ids: u64) -> Result<Suggestion, &'static str> {
        if self.is_full {
            return Err("the log has too many requests to be decided again; give a part of it");
        }
        if self.charges.is_empty() {
            return Err("no request has its numbers");
        }
        // One id after the other, each in the order of the log.
        self.charges.sort_by_key(|charge| charge.id);
        let requests = self.charges.len() as u64 + self.fixed_requests;
        let bound = Bound {
            requests: goal.requests.map_or(u64::MAX, |share| share_of(requests, share)),
            ids: goal.ids.map_or(u64::MAX, |share| share_of(ids, share)),
        };
        let is_one_number = self.numbers.count() == 0 || !self.numbers.algorithm().keeps_level();
        let burst = if is_one_number && self.numbers.count() > 0 { None } else { self.search(Sought::Burst, bound) };
        let both = if self.numbers.count() == 0 { None } else { self.search(Sought::Both, bound) };
        Ok(Suggestion { burst, both })
    }

    /// Finds the smallest number with which the goal is kept, if a larger one never denies more.
    fn search(&self, sought: Sought, bound: Bound) -> Option<Found> {
        let decide = |number: u64| self.decide(&self.with(sought, number)?, number, bound);
        let (mut too_small, mut found) = (0, None);
        let mut number = 1;
        while found.is_none() {
            found = decide(number);
            if found.is_none() {
                self.with(sought, number)?;
                too_small = number;
                number = number.checked_mul(2)?;
            }
        }
        let mut found = found?;
        while found.number - too_small > 1 {
            let middle = too_small + (found.number - too_small) / 2;
            match decide(middle) {
                Some(fewer) => found = fewer,
                None => too_small = middle,
            }
        }
        Some(found)
    }

    fn with(&self, sought: Sought, number: u64) -> Option<Numbers> {
        let (count, period) = (self.numbers.count(), self.numbers.period());
        let numbers = match sought {
            _ if count == 0 => Numbers::fixed(number),
            Sought::Burst => Numbers::new(number, count, period),
            Sought::Both => Numbers::new(number, number, period),
        };
        numbers.and_then(|numbers| self.numbers.algorithm().numbers(&numbers)).ok()
    }

    /// Decides the charges with other numbers; `None` if that denies more than the bound.
    fn decide(&self, numbers: &Numbers, number: u64, bound: Bound) -> Option<Found> {
        let mut charge = Charge::new(Bucket::new("", 0), numbers.clone(), 0, Mode::Spend);
        charge.input = self.delay.map(|most| Box::new(Input::Delay(Delay::new(most))));
        let mut found = Found { number, denied: self.fixed_denied, ids_denied: 0 };
        for of_id in self.charges.chunk_by(|one, other| one.id == other.id) {
            let before = found.denied;
            let mut state = None;
            for recorded in of_id {
                charge.cost = recorded.cost & !TAKES_NOTHING;
                charge.mode = if recorded.cost & TAKES_NOTHING == 0 { Mode::Spend } else { Mode::Check };
                found.denied += u64::from(is_denied(&mut state, &charge, recorded.at));
                if found.denied > bound.requests {
                    return None;
                }
            }
            found.ids_denied += u64::from(found.denied > before);
            if found.ids_denied > bound.ids {
                return None;
            }
        }
        Some(found)
    }
}

/// The most that may be denied.
#[derive(Clone, Copy)]
struct Bound {
    requests: u64,
    ids: u64,
}

fn share_of(all: u64, millionths: u64) -> u64 {
    u64::try_from(u128::from(all) * u128::from(millionths) / 1_000_000).unwrap_or(u64::MAX)
}

/// Decides one charge of a bucket that no other request charges.
fn is_denied(state: &mut Option<BucketState>, charge: &Charge, now: Micros) -> bool {
    if charge.keeps_level() {
        let level = state.as_ref().and_then(BucketState::level);
        let (decision, change) = decide_level(level.as_ref(), charge, now, Micros(0));
        match change {
            LevelChange::Keep => {}
            LevelChange::Write(level) => *state = Some(BucketState::Level(level)),
            LevelChange::Clear => *state = None,
        }
        return decision.is_denied();
    }
    let Ok(attempt) = decide(state.as_ref(), charge, None, now, Micros(0)) else { return false };
    let is_denied = attempt.decision.is_denied();
    if let Some(edit) = attempt.edit.filter(|_| !is_denied || attempt.counts_denied) {
        *state = BucketState::edited(state.take(), &edit);
    }
    is_denied
}
