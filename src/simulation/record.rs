//! The charges of a limit as the log has them, to be decided again with other numbers.

use std::collections::HashSet;

use crate::engine::algorithms::charge::{Bucket, Charge, Input, Mode};
use crate::engine::algorithms::delay::Delay;
use crate::engine::algorithms::level::LevelChange;
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::numbers::Numbers;
use crate::engine::algorithms::state::{BucketState, decide, decide_level};
use crate::engine::limit::Limit;

/// The most charges that are kept for all limits together, 24 bytes each.
pub const MOST_CHARGES: usize = 10_000_000;

/// Denied requests by day of the week in UTC, Monday first.
pub type ByDay = [u64; 7];

/// The number that is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// With the present count.
    Burst,
    /// With the present burst.
    Count,
    /// Both are the same number.
    Both,
}

/// What is denied with other numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub denied: u64,
    pub ids_denied: u64,
    pub by_day: ByDay,
}

/// The most that may be denied.
#[derive(Clone, Copy)]
pub(super) struct Bound {
    pub(super) requests: u64,
    pub(super) ids: u64,
}

impl Bound {
    pub(super) const NONE: Self = Self { requests: u64::MAX, ids: u64::MAX };
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

/// The charges of one limit: one id after the other, each in the order of the log.
pub(super) struct Record {
    pub(super) numbers: Numbers,
    delay: Option<Micros>,
    charges: Vec<Recorded>,
    /// Requests that other numbers of the limit would not change, such as those of ids with overrides, and those of them that are denied.
    fixed_requests: u64,
    fixed_denied: ByDay,
    fixed_ids: HashSet<u32>,
    /// Why the charges cannot be decided again.
    refused: Option<&'static str>,
}

/// Returns why a limit has no record.
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
    /// `None` for limits whose numbers cannot be replaced.
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
            fixed_denied: ByDay::default(),
            fixed_ids: HashSet::new(),
            refused: None,
        })
    }

    /// Adds a request; `id` is the number of its id.
    pub(super) fn add(
        &mut self,
        at: Micros,
        charge: Option<&Charge>,
        id: Option<u32>,
        is_denied: bool,
        is_denied_by_others: bool,
        room: &mut usize,
    ) {
        let own = charge.filter(|charge| charge.numbers == self.numbers).zip(id);
        let Some((charge, id)) = own else {
            self.fixed_requests += 1;
            if is_denied {
                count_day(&mut self.fixed_denied, at);
                self.fixed_ids.extend(id);
            }
            return;
        };
        if *room == 0 {
            self.refused = Some("the log has too many requests to be decided again; give a part of it");
            return;
        }
        *room -= 1;
        let mark = if is_denied_by_others { TAKES_NOTHING } else { 0 };
        self.charges.push(Recorded { at, id, cost: charge.cost | mark });
    }

    /// Gives up, because a request charges the limit more than once.
    pub(super) const fn refuse_several(&mut self) {
        self.refused = Some("some calls charge it more than once");
    }

    /// Puts the charges into their order. The error says why they cannot be decided again.
    pub(super) fn complete(&mut self) -> Result<(), &'static str> {
        if let Some(why) = self.refused {
            return Err(why);
        }
        if self.charges.is_empty() {
            return Err("no request has its numbers");
        }
        self.charges.sort_by_key(|charge| charge.id);
        Ok(())
    }

    pub(super) const fn requests(&self) -> u64 {
        self.charges.len() as u64 + self.fixed_requests
    }

    /// The numbers that can be replaced.
    pub(super) fn axes(&self) -> &'static [Axis] {
        match (self.numbers.count() > 0, self.numbers.algorithm().keeps_level()) {
            // Nothing comes back.
            (false, _) => &[Axis::Burst],
            (true, false) => &[Axis::Both],
            (true, true) => &[Axis::Burst, Axis::Count, Axis::Both],
        }
    }

    /// The limit's numbers with another; `None` if there are no such numbers.
    pub(super) fn with(&self, axis: Axis, number: u64) -> Option<Numbers> {
        with_number(&self.numbers, axis, number)
    }

    /// The most that each id takes in one period, smallest first.
    pub(super) fn peaks(&self) -> Vec<u64> {
        let period = self.numbers.period() / 1_000;
        let of_id = |charges: &[Recorded]| {
            let in_period = charges.chunk_by(|one, other| {
                let number = |charge: &Recorded| charge.at.0.checked_div(period);
                number(one) == number(other)
            });
            let sum = |charges: &[Recorded]| {
                let costs = charges.iter().map(|charge| charge.cost & !TAKES_NOTHING);
                costs.fold(0, u64::saturating_add)
            };
            in_period.map(sum).max().unwrap_or_default()
        };
        let mut peaks: Vec<u64> = self.charges.chunk_by(|one, other| one.id == other.id).map(of_id).collect();
        peaks.sort_unstable();
        peaks
    }

    /// Decides the charges with other numbers; `None` if that denies more than the bound.
    pub(super) fn decide(&self, numbers: &Numbers, bound: Bound) -> Option<Outcome> {
        let mut charge = Charge::new(Bucket::new("", 0), numbers.clone(), 0, Mode::Spend);
        charge.input = self.delay.map(|most| Box::new(Input::Delay(Delay::new(most))));
        let mut outcome = Outcome {
            denied: self.fixed_denied.iter().sum(),
            ids_denied: self.fixed_ids.len() as u64,
            by_day: self.fixed_denied,
        };
        for of_id in self.charges.chunk_by(|one, other| one.id == other.id) {
            let before = outcome.denied;
            let mut state = None;
            for recorded in of_id {
                charge.cost = recorded.cost & !TAKES_NOTHING;
                charge.mode = if recorded.cost & TAKES_NOTHING == 0 { Mode::Spend } else { Mode::Check };
                if is_denied(&mut state, &charge, recorded.at) {
                    outcome.denied += 1;
                    count_day(&mut outcome.by_day, recorded.at);
                }
                if outcome.denied > bound.requests {
                    return None;
                }
            }
            let is_new = of_id.first().is_some_and(|first| !self.fixed_ids.contains(&first.id));
            outcome.ids_denied += u64::from(outcome.denied > before && is_new);
            if outcome.ids_denied > bound.ids {
                return None;
            }
        }
        Some(outcome)
    }
}

/// 1 January 1970 was a Thursday.
fn count_day(days: &mut ByDay, at: Micros) {
    let day = (at.0 / 86_400_000_000 + 3) % 7;
    if let Some(count) = usize::try_from(day).ok().and_then(|day| days.get_mut(day)) {
        *count += 1;
    }
}

/// Numbers with another burst or count; `None` if there are no such numbers.
pub fn with_number(of: &Numbers, axis: Axis, number: u64) -> Option<Numbers> {
    let (burst, count, period) = (of.burst(), of.count(), of.period());
    let numbers = match axis {
        _ if count == 0 => Numbers::fixed(number),
        Axis::Burst => Numbers::new(number, count, period),
        Axis::Count => Numbers::new(burst, number, period),
        Axis::Both => Numbers::new(number, number, period),
    };
    numbers.and_then(|numbers| of.algorithm().numbers(&numbers)).ok()
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
