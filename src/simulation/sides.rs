//! Decides each request by one rules file or by two, and counts what their limits do.

use super::against::{Comparing, SideOutcome};
use super::impact::{self, DeniedSink, Impact};
use super::pipeline::Options;
use super::record::MOST_CHARGES;
use super::replay::Replay;
use super::report::LimitLeftOut;
use super::requests::{Arrival, Side};
use super::tally::{Tally, TallyOptions};
use crate::engine::algorithms::micros::Micros;

pub(super) struct BothSides<'s> {
    pub(super) here: OneSide<'s>,
    pub(super) impact: Option<Impact>,
    pub(super) there: Option<(OneSide<'s>, Comparing)>,
    /// The arrival of the first request, and that of the last one decided.
    pub(super) span: Option<(Micros, Micros)>,
    pub(super) requests: u64,
    pub(super) late: u64,
}

pub(super) struct OneSide<'s> {
    pub(super) side: &'s Side,
    pub(super) replay: Replay,
    pub(super) tally: Tally,
}

impl<'s> OneSide<'s> {
    pub(super) fn new(side: &'s Side, options: &Options<'_>) -> Self {
        let keeps_record = options.goal.is_given() || options.has_curves;
        let of_tally = TallyOptions { max_ids: options.max_keys, max_charges: MOST_CHARGES, keeps_record };
        Self { side, replay: Replay::new(side, options.max_keys), tally: Tally::new(side, &of_tally) }
    }
}

impl BothSides<'_> {
    pub(super) fn leave_out(&mut self, is_other: bool, limit: u32, more: LimitLeftOut) {
        let there = self.there.as_mut().filter(|_| is_other).map(|(there, _)| &mut there.tally);
        there.unwrap_or(&mut self.here.tally).leave_out(limit, more);
    }

    pub(super) fn decide(&mut self, mut arrival: Arrival, denied: &mut Option<&mut DeniedSink<'_>>) {
        let (first, last) = *self.span.get_or_insert((arrival.at, arrival.at));
        self.late += u64::from(arrival.at < last);
        let now = arrival.at.max(last);
        self.span = Some((first.min(arrival.at), now));
        self.requests += 1;
        let Self { here, impact, there, .. } = self;
        let is_denied = here.replay.decide(&here.side.rules, now, (arrival.ends, arrival.response), &mut arrival.asked);
        here.tally.count(here.side, now, is_denied, &arrival.asked, &here.replay);
        if let Some(seen) = &arrival.seen {
            let outcomes = &here.replay.outcomes;
            if let Some(impact) = impact {
                impact.count(here.side, now, &arrival.asked, outcomes, seen);
            }
            if let Some(denied) = denied {
                impact::tell(denied, here.side, now, &arrival.asked, outcomes, seen);
            }
        }
        if let (Some((there, comparing)), Some(mut asked)) = (there, arrival.other) {
            let is_denied_there =
                there.replay.decide(&there.side.rules, now, (arrival.ends, arrival.response), &mut asked);
            there.tally.count(there.side, now, is_denied_there, &asked, &there.replay);
            let here =
                SideOutcome { side: here.side, asked: &arrival.asked, is_denied, outcomes: &here.replay.outcomes };
            let there = SideOutcome {
                side: there.side,
                asked: &asked,
                is_denied: is_denied_there,
                outcomes: &there.replay.outcomes,
            };
            comparing.compare(here, there);
        }
    }
}
