//! Reservations: tokens that are held for a request under way, of GCRA or fixed windows, until they are settled or their time is over.
//!
//! A held token is missing from the capacity for everybody, and does not drain. To commit a reservation ends the hold and takes what was
//! really used. A hold that has ended by itself is remembered for a while, so that a late commit still counts, and no commit counts
//! twice. `lua/holds.lua` does the same.

use std::fmt;

use super::charge::Charge;
use super::decision::{Attempt, Outcome};
use super::level::{Level, LevelChange};
use super::micros::{EXACT, Micros};
use super::state::{BucketState, Edit, NeedsRedis, decide_level_beside, peek};

/// The longest time for which tokens are held, in microseconds.
pub const LONGEST_HOLD: Micros = Micros(3_600 * 1_000_000);

/// The time without another, in microseconds.
pub const DEFAULT_HOLD: Micros = Micros(60 * 1_000_000);

/// The time for which a hold is remembered after its end, in microseconds.
const LATE: Micros = Micros(600 * 1_000_000);

/// The most holds of a bucket. In Redis each takes about 60 bytes, and all are in one value.
pub const MOST_HOLDS: usize = 1_000;

/// The name of a reservation. Nobody guesses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReservationId(pub u128);

impl ReservationId {
    pub fn parse(text: &str) -> Option<Self> {
        let is_hexadecimal = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let id = (text.len() == 32 && is_hexadecimal).then(|| u128::from_str_radix(text, 16).ok());
        id.flatten().map(Self)
    }
}

impl fmt::Display for ReservationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The part of a charge that is about a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reservation {
    /// A spend: the cost is held for this long.
    Reserve(ReservationId, Micros),
    /// Takes what is left up to the cost, if there is a hold to end.
    Commit(ReservationId),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    id: ReservationId,
    end: Micros,
    /// 0 once it has ended.
    tokens: u64,
}

/// A bucket some of whose tokens are held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldLevel {
    /// It may be full.
    pub(super) level: Level,
    /// With those that ended a while ago.
    holds: Vec<Hold>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldEdit {
    now: Micros,
    level: Level,
    change: HoldChange,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HoldChange {
    Keep,
    Add(Hold),
    End(ReservationId),
}

impl Hold {
    fn runs(&self, now: Micros) -> bool {
        self.end > now && self.tokens > 0
    }

    fn has_ended(&self, now: Micros) -> bool {
        self.end <= now && self.tokens > 0
    }

    fn is_known(&self, now: Micros) -> bool {
        self.end.after(LATE) > now
    }
}

/// Decides a charge to a bucket with holds, or one that makes or ends a hold.
pub(super) fn decide(
    state: Option<&BucketState>,
    charge: &Charge,
    now: Micros,
    effective_from: Micros,
) -> Result<Attempt<Edit>, NeedsRedis> {
    let holds = if let Some(BucketState::Held(held)) = state { &held.holds[..] } else { &[] };
    let running = || holds.iter().filter(|hold| hold.runs(now));
    let mut held: u64 = running().map(|hold| hold.tokens).sum();
    let change = match charge.reservation() {
        None => HoldChange::Keep,
        Some(Reservation::Reserve(id, span)) => {
            if running().count() >= MOST_HOLDS {
                held = charge.numbers.burst();
            }
            HoldChange::Add(Hold { id, end: now.after(span).min(Micros(EXACT - 1)), tokens: charge.cost })
        }
        Some(Reservation::Commit(id)) => {
            let Some(own) = holds.iter().find(|hold| hold.id == id).filter(|hold| hold.is_known(now)) else {
                return Ok(Attempt::new(peek(state, charge, now, effective_from)?, None));
            };
            held -= if own.runs(now) { own.tokens } else { 0 };
            HoldChange::End(id)
        }
    };
    let level = state.and_then(BucketState::level);
    let (mut decision, level_change) = decide_level_beside(level.as_ref(), held, charge, now, effective_from);
    let first = running().map(|hold| hold.end).min().filter(|_| charge.cost <= charge.numbers.burst());
    if let Some(first) = first.filter(|_| decision.is_short()) {
        let wait = first.since(now);
        decision.retry_after = Some(decision.retry_after.map_or(wait, |known| known.min(wait)));
    }
    if matches!(change, HoldChange::End(_)) {
        decision.outcome = Outcome::Allowed;
    }
    let taken = level.map_or(now, |level| level.since.max(now));
    let level = match level_change {
        LevelChange::Keep => None,
        LevelChange::Write(level) => Some(level),
        LevelChange::Clear => Some(Level::full(&charge.numbers, now)),
    };
    let edit = level.map(|level| Edit::Held(HeldEdit { now, level, change }));
    Ok(Attempt::new(decision, edit).told(charge, taken))
}

impl HeldLevel {
    /// Returns the bucket after an edit; `None` if it is full.
    pub(super) fn edited(state: Option<BucketState>, edit: &HeldEdit) -> Option<BucketState> {
        let HeldEdit { now, level, change } = *edit;
        let mut holds = if let Some(BucketState::Held(held)) = state { held.holds } else { Vec::new() };
        if holds.iter().any(|hold| hold.has_ended(now)) || matches!(change, HoldChange::End(_)) {
            refresh(&mut holds, now);
        }
        match change {
            HoldChange::Keep => {}
            HoldChange::Add(hold) => {
                if holds.len() >= MOST_HOLDS {
                    holds.retain(|hold| hold.runs(now));
                }
                holds.push(hold);
            }
            HoldChange::End(id) => holds.retain(|hold| hold.id != id),
        }
        if holds.is_empty() {
            return (level.used > 0).then_some(BucketState::Level(level));
        }
        Some(BucketState::Held(Self { level, holds }))
    }

    pub(super) fn redate(&mut self, now: Micros) {
        self.level = self.level.redated(now).unwrap_or(self.level);
        // The clock may have stepped back.
        if self.holds.iter().any(|hold| hold.end > now.after(LONGEST_HOLD)) {
            refresh(&mut self.holds, now);
        }
    }

    pub(super) fn is_over(&self, now: Micros, changed: Micros) -> bool {
        !self.holds.iter().any(|hold| hold.is_known(now)) && self.level.is_over(now, changed)
    }

    pub(super) const fn len(&self) -> usize {
        self.holds.len()
    }
}

/// Forgets what ended long ago, and what is held by the others that have ended.
fn refresh(holds: &mut Vec<Hold>, now: Micros) {
    for hold in &mut *holds {
        hold.end = hold.end.min(now.after(LONGEST_HOLD));
        hold.tokens = if hold.runs(now) { hold.tokens } else { 0 };
    }
    holds.retain(|hold| hold.is_known(now));
}

#[cfg(test)]
mod tests {
    use super::super::charge::{Bucket, Input, Mode};
    use super::super::numbers::Numbers;
    use super::*;

    #[test]
    fn ids_are_read_as_they_are_written() {
        for id in [0, 1, u128::MAX, 0x0123_4567_89ab_cdef] {
            assert_eq!(ReservationId::parse(&ReservationId(id).to_string()), Some(ReservationId(id)));
        }
        for text in ["", "1", &"g".repeat(32), &"A".repeat(32), &"0".repeat(33), &format!("+{}", "0".repeat(31))] {
            assert_eq!(ReservationId::parse(text), None, "{text}");
        }
    }

    /// A request that is not made after all gives back what it holds, and not what others have used.
    #[test]
    fn what_is_undone_is_the_hold() {
        let id = ReservationId(7);
        let numbers = Numbers::fixed(10).unwrap();
        let charge = |mode, cost, reservation: Option<Reservation>| {
            let input = reservation.map(|reservation| Box::new(Input::Reservation(reservation)));
            Charge { input, ..Charge::new(Bucket::new("L:k", 1), numbers.clone(), cost, mode) }
        };
        let reserve = charge(Mode::Spend, 4, Some(Reservation::Reserve(id, Micros(1_000))));
        let mut state = None;
        let mut play = |charge: &Charge| {
            let attempt = super::super::state::decide(state.as_ref(), charge, None, Micros(1), Micros(0)).unwrap();
            state =
                attempt.edit.as_ref().map_or_else(|| state.clone(), |edit| BucketState::edited(state.clone(), edit));
            attempt.decision.remaining
        };
        assert_eq!(play(&charge(Mode::Spend, 5, None)), 5);
        assert_eq!(play(&reserve), 1);
        assert_eq!(play(&reserve.undo(None).unwrap()), 5);
        assert_eq!(charge(Mode::SpendUpTo, 4, Some(Reservation::Commit(id))).undo(None), None);
    }
}
