//! Reservations in random traces, and what a bucket holds as naively as possible.

use proptest::collection::vec;
use proptest::prelude::*;
use weir::engine::algorithms::algorithm::Aligned;
use weir::engine::algorithms::charge::{Bucket, Charge, Input, Mode, Role};
use weir::engine::algorithms::decision::Outcome;
use weir::engine::algorithms::micros::{EXACT, Micros};
use weir::engine::algorithms::numbers::Numbers;
use weir::engine::algorithms::reservation::{LONGEST_HOLD, MOST_HOLDS, Reservation, ReservationId};

use super::reference::{Again, Outlook, What};
use super::traces::{Request, START, Trace, traces};

/// A trace, and which of its charges make and settle reservations: an id, and for how many microseconds.
#[derive(Clone, Debug)]
pub(super) struct HeldTrace {
    pub(super) trace: Trace,
    marks: Vec<Option<(u128, Option<u64>)>>,
}

/// The time after its end in which a hold can still be settled.
const LATE: u64 = 600_000_000;

/// The holds of a bucket: their ids, ends and tokens, which are 0 from the first write after the end.
#[derive(Clone, Default)]
pub(super) struct Holds(Vec<(ReservationId, u64, u64)>);

impl Holds {
    /// The tokens that are held now.
    pub(super) fn held(&self, now: u64) -> u64 {
        self.0.iter().filter(|(_, end, _)| *end > now).map(|(.., tokens)| tokens).sum()
    }

    /// The tokens that others hold than the reservation that a charge settles.
    pub(super) fn held_beside(&self, charge: &Charge, now: u64) -> u64 {
        let own = self.own(charge, now).filter(|(_, end, _)| *end > now);
        self.held(now) - own.map_or(0, |(.., tokens)| tokens)
    }

    /// The end of the first hold.
    pub(super) fn first(&self, now: u64) -> Option<u64> {
        self.0.iter().filter(|(_, end, tokens)| *end > now && *tokens > 0).map(|(_, end, _)| *end).min()
    }

    /// The hold that a charge settles, if it is known.
    fn own(&self, charge: &Charge, now: u64) -> Option<(ReservationId, u64, u64)> {
        let Some(Reservation::Commit(id)) = charge.reservation() else { return None };
        self.0.iter().copied().find(|(other, ..)| *other == id).filter(|(_, end, _)| end + LATE > now)
    }

    /// The result of a charge that settles a reservation. It never denies, and does nothing to one that is unknown.
    pub(super) fn settled(&self, charge: &Charge, now: u64) -> Option<Outlook> {
        let Some(Reservation::Commit(_)) = charge.reservation() else { return None };
        let is_known = self.own(charge, now).is_some();
        let (outcome, what) =
            if is_known { (Outcome::Allowed, What::Settled(charge.cost)) } else { (Outcome::Unchanged, What::Nothing) };
        Some(Outlook { outcome, what, is_written: is_known, again: Again::AtOnce })
    }

    /// No hold is longer than an hour, also after the clock has stepped back.
    pub(super) fn redate(&mut self, now: u64) {
        if self.0.iter().any(|(_, end, _)| *end > now + LONGEST_HOLD.0) {
            self.refresh(now);
        }
    }

    fn refresh(&mut self, now: u64) {
        self.0.retain(|(_, end, _)| end + LATE > now);
        for (_, end, tokens) in &mut self.0 {
            *end = (*end).min(now + LONGEST_HOLD.0);
            *tokens = if *end > now { *tokens } else { 0 };
        }
    }

    /// The bucket is written with a charge.
    pub(super) fn write(&mut self, charge: &Charge, now: u64) {
        let reservation = charge.reservation();
        let has_ended = self.0.iter().any(|(_, end, tokens)| *end <= now && *tokens > 0);
        if has_ended || matches!(reservation, Some(Reservation::Commit(_))) {
            self.refresh(now);
        }
        match reservation {
            // Elevated numbers know no holds.
            None if !charge.keeps_level() => self.0.clear(),
            None => {}
            Some(Reservation::Reserve(id, span)) => self.0.push((id, (now + span.0).min(EXACT - 1), charge.cost)),
            Some(Reservation::Commit(id)) => self.0.retain(|(other, ..)| *other != id),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

pub(super) fn held_traces() -> impl Strategy<Value = HeldTrace> {
    let span = prop_oneof![Just(1u64), 0..100_000_000u64, Just(LONGEST_HOLD.0)];
    let mark = proptest::option::weighted(0.6, (1..6u128, proptest::option::weighted(0.6, span)));
    (traces(), vec(mark, 50)).prop_map(|(trace, marks)| HeldTrace { trace, marks })
}

impl HeldTrace {
    /// The trace's requests, and how many of their charges are part of reservations.
    pub(super) fn requests(&self, number: u64) -> (Vec<Request>, usize) {
        let mut requests = self.trace.requests(number);
        let charges = requests.iter_mut().flat_map(|request| &mut request.charges);
        let can_hold = |charge: &&mut Charge| charge.keeps_level() && charge.origin.role != Role::Strike;
        let mut held = 0;
        for (charge, mark) in charges.filter(can_hold).zip(self.marks.iter().cycle()) {
            let Some((id, span)) = mark else { continue };
            let id = ReservationId(*id);
            let (mode, reservation) = match span {
                Some(span) => (Mode::Spend, Reservation::Reserve(id, Micros(*span))),
                None => (Mode::SpendUpTo, Reservation::Commit(id)),
            };
            (charge.mode, charge.cost) = (mode, charge.cost.min(charge.numbers.burst()));
            charge.input = Some(Box::new(Input::Reservation(reservation)));
            held += 1;
        }
        (requests, held)
    }
}

/// Reserves a token of a bucket a thousand times, once more, once more when the first hold has ended, and once more.
pub(super) fn many_reservations() -> Vec<Request> {
    let numbers = Numbers::fixed(5_000).unwrap();
    let reserve = |number: u64| {
        let late = number > MOST_HOLDS as u64;
        let (now, span) = (START + u64::from(late) * 2_000_000, if number == 0 { 1_000_000 } else { 60_000_000 });
        let reservation = Reservation::Reserve(ReservationId(number.into()), Micros(span));
        let input = Some(Box::new(Input::Reservation(reservation)));
        let charge = Charge::new(Bucket::new("many:reservations", 7), numbers.clone(), 1, Mode::Spend);
        Request { charges: vec![Charge { input, ..charge }], effective_from: START, now }
    };
    (0..MOST_HOLDS as u64 + 3).map(reserve).collect()
}

/// Holds four of ten tokens and uses six, and lowers the limit to three. Then the hold ends, and four tokens are given back.
pub(super) fn under_lowered_numbers() -> Vec<Request> {
    let id = ReservationId(1);
    let steps = [
        (10, 4, Mode::Spend, Some(Reservation::Reserve(id, LONGEST_HOLD))),
        (10, 6, Mode::Spend, None),
        (3, 2, Mode::SpendUpTo, Some(Reservation::Commit(id))),
        (3, 4, Mode::Refund, None),
    ];
    let request = |(burst, cost, mode, reservation): (u64, u64, Mode, Option<Reservation>)| {
        let numbers = Numbers::fixed_window(burst, burst, 60_000_000_000, Aligned::First).unwrap();
        let input = reservation.map(|reservation| Box::new(Input::Reservation(reservation)));
        let charge = Charge { input, ..Charge::new(Bucket::new("lowered:numbers", 7), numbers, cost, mode) };
        Request { charges: vec![charge], effective_from: START, now: START }
    };
    steps.map(request).into()
}
