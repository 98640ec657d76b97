//! Reservations in random traces: memory and the scripts agree.

use proptest::collection::vec;
use proptest::prelude::*;
use weir::engine::algorithms::algorithm::Aligned;
use weir::engine::algorithms::charge::{Bucket, Charge, Input, Mode, Role};
use weir::engine::algorithms::micros::Micros;
use weir::engine::algorithms::numbers::Numbers;
use weir::engine::algorithms::reservation::{LONGEST_HOLD, MOST_HOLDS, Reservation, ReservationId};

use super::traces::{Request, START, Trace, traces};

/// A trace, and which of its charges make and settle reservations: an id, and for how many microseconds.
#[derive(Clone, Debug)]
pub(super) struct HeldTrace {
    pub(super) trace: Trace,
    marks: Vec<Option<(u128, Option<u64>)>>,
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
