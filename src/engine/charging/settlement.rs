//! Settlement of limits whose cost the response reports.
//!
//! The plan takes a reserve or looks for it before the request passes ([`Plan::unsettled`]). What remains to be charged or refunded
//! ([`PendingSettlement`]) is worked out when the response has come, or when it never will.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::engine::algorithms::charge::{Charge, ChargeOrigin, Dated, Mode};
use crate::engine::algorithms::decision::{Decision, Decisions, Outcome};
use crate::engine::algorithms::micros::{EXACT, Micros};
use crate::engine::charging::plan::Plan;
use crate::engine::limit::response_cost::ResponseCost;
use crate::engine::limit::rules::Rules;

/// The outcome of a request at the upstream, as far as its cost depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseReport<'a> {
    /// The status of the response, and the cost if it has one.
    Response(u16, Option<&'a [u8]>),
    /// The request was never sent.
    Unsent,
    /// The request was sent, but no readable response came. The cost, if the request has it.
    Nothing(Option<u64>),
}

label! {
    /// The effect of a settlement on the reserve: the label `result` of `weir_settlements_total`.
    pub enum SettlementOutcome {
        /// More was charged.
        Charged = "charged",
        /// Some or all of it was refunded.
        Refunded = "refunded",
        /// The reserve was the cost, or nothing was to be charged.
        Unchanged = "unchanged",
        /// The reserve is charged: the response has no cost.
        Absent = "absent",
        /// The reserve is charged: the cost is not a whole number below 2^53.
        Unreadable = "unreadable",
        /// The reserve is charged: no response came.
        Unanswered = "unanswered",
        /// The store did not make the charge or refund.
        Failed = "failed",
    }
}

/// The unsettled cost of a request that passed, for one limit.
#[derive(Clone, Debug)]
pub struct PendingSettlement {
    /// The index of the limit.
    pub limit: u32,
    pub cost: Arc<ResponseCost>,
    /// The cost if the response has none.
    reserve: u64,
    /// One for each window.
    charges: SmallVec<[ReservedCharge; 1]>,
}

/// A decided charge, and when it took its tokens, if a refund must know.
#[derive(Clone, Debug)]
struct ReservedCharge {
    charge: Charge,
    taken: Option<Micros>,
}

impl PendingSettlement {
    /// Returns the outcome and the charges that settle it; `None` while the cost may still come in the body or as a trailer.
    pub fn settle(&self, heard: ResponseReport<'_>, may_come: bool) -> Option<(SettlementOutcome, Vec<Charge>)> {
        let (cost, result) = match heard {
            ResponseReport::Unsent => (0, None),
            ResponseReport::Nothing(Some(cost)) => (cost, None),
            ResponseReport::Nothing(None) => (self.reserve, Some(SettlementOutcome::Unanswered)),
            ResponseReport::Response(status, _)
                if self.cost.when.as_ref().is_some_and(|when| !when.contains(status)) =>
            {
                (0, None)
            }
            ResponseReport::Response(_, None) if self.cost.source.is_none() => (self.reserve, None),
            ResponseReport::Response(_, None) if may_come => return None,
            ResponseReport::Response(_, None) => (self.reserve, Some(SettlementOutcome::Absent)),
            ResponseReport::Response(_, Some(value)) => match whole(value) {
                Some(cost) => (cost, None),
                None => (self.reserve, Some(SettlementOutcome::Unreadable)),
            },
        };
        let looks = |held: &ReservedCharge| held.charge.mode == Mode::Look;
        let taken = if self.charges.iter().all(looks) { 0 } else { self.reserve };
        let changes: Vec<Charge> = match cost.checked_sub(taken) {
            Some(0) => Vec::new(),
            Some(more) => {
                let charge = |held: &ReservedCharge| {
                    let charge = held.charge.clone();
                    Charge { cost: more, mode: Mode::SpendUpTo, dated: Dated::No, ..charge }
                };
                self.charges.iter().map(charge).collect()
            }
            None => self.charges.iter().filter_map(|held| held.refund(taken - cost)).collect(),
        };
        let result = result.unwrap_or(match changes.first().map(|charge| charge.mode) {
            None => SettlementOutcome::Unchanged,
            Some(Mode::Refund) => SettlementOutcome::Refunded,
            Some(_) => SettlementOutcome::Charged,
        });
        Some((result, changes))
    }
}

impl ReservedCharge {
    /// Returns `None` if the store has not told when the tokens were taken: a refund would give back others.
    fn refund(&self, cost: u64) -> Option<Charge> {
        let is_known = self.taken.is_some() || !self.charge.numbers.is_dated();
        is_known.then(|| self.charge.refund(cost, self.taken))
    }
}

/// Parses a whole number that can be counted exactly.
fn whole(value: &[u8]) -> Option<u64> {
    let is_number = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    let number = std::str::from_utf8(value).ok().filter(|_| is_number)?.parse().ok()?;
    (number < EXACT).then_some(number)
}

impl Plan {
    /// Returns the settlements to make once the response to a request that passes has come. `decision` returns what was made of the
    /// store's decision on a charge, and `decisions` are the store's.
    pub fn pending_settlements(
        &self,
        rules: &Rules,
        decisions: &Decisions,
        decision: impl Fn(ChargeOrigin) -> Option<Decision>,
    ) -> Vec<PendingSettlement> {
        let pending = self.unsettled.iter().filter_map(|limit| {
            let cost = rules.limit(*limit)?.response_cost.as_ref()?;
            let own = self.charges.iter().enumerate();
            let charges: SmallVec<[ReservedCharge; 1]> = own
                .filter(|(_, charge)| charge.origin.limit == *limit && !charge.origin.is_strike())
                .filter_map(|(place, charge)| {
                    // In shadow what did not fit was not taken, and the request would not have passed.
                    let passed = decision(charge.origin)?.outcome == Outcome::Allowed;
                    passed.then(|| ReservedCharge { charge: charge.clone(), taken: decisions.taken(place) })
                })
                .collect();
            let reserve = charges.first()?.charge.cost;
            Some(PendingSettlement { limit: *limit, cost: cost.clone(), reserve, charges })
        });
        pending.collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use http::header::HeaderName;

    use super::*;
    use crate::engine::algorithms::algorithm::Aligned;
    use crate::engine::algorithms::charge::Bucket;
    use crate::engine::algorithms::level::{Level, LevelChange};
    use crate::engine::algorithms::numbers::Numbers;
    use crate::engine::algorithms::state::decide_level;
    use crate::engine::charging::terms::Intent;
    use crate::engine::limit::allowance::Allowance;
    use crate::engine::limit::fingerprint::Fingerprinter;
    use crate::engine::limit::response_cost::CostSource;
    use crate::engine::limit::response_cost::Statuses;
    use crate::engine::limit::{Cost, Limit, LimitMode};
    use crate::engine::request::sample;
    use crate::message::headers::Headers;

    const MINUTE: u64 = 60_000_000_000;

    fn owed(cost: ResponseCost, reserve: u64, numbers: Numbers, taken: Option<Micros>) -> PendingSettlement {
        let bucket = Bucket::new("L:k", 1);
        let mode = cost.before(Mode::Spend);
        let charges = [ReservedCharge { charge: Charge::new(bucket, numbers, reserve, mode), taken }];
        PendingSettlement { limit: 0, cost: Arc::new(cost), reserve, charges: charges.into_iter().collect() }
    }

    fn by_field() -> ResponseCost {
        ResponseCost { source: Some(CostSource::Header(HeaderName::from_static("x-tokens-used"))), when: None }
    }

    fn on(statuses: &[(u16, u16)]) -> ResponseCost {
        ResponseCost { source: None, when: Some(Statuses(statuses.to_vec())) }
    }

    fn hundred() -> Numbers {
        Numbers::new(100, 100, MINUTE).unwrap()
    }

    /// The settlement of a reserve of 10, as text: the result, and the change if there is one.
    #[track_caller]
    fn check(cost: ResponseCost, heard: ResponseReport<'_>, expected: &str) {
        let (result, changes) = owed(cost, 10, hundred(), None).settle(heard, false).unwrap();
        let mut said = format!("{result:?}").to_lowercase();
        for change in changes {
            let _ = write!(said, " {:?} {}", change.mode, change.cost);
        }
        assert_eq!(said, expected, "{heard:?}");
    }

    fn said(value: &str) -> ResponseReport<'_> {
        ResponseReport::Response(200, Some(value.as_bytes()))
    }

    #[test]
    fn the_difference_to_the_reserve_is_charged_or_refunded() {
        check(by_field(), said("25"), "charged SpendUpTo 15");
        check(by_field(), said("4"), "refunded Refund 6");
        check(by_field(), said("0"), "refunded Refund 10");
        check(by_field(), said("10"), "unchanged");
        check(by_field(), said("0010"), "unchanged");
    }

    #[test]
    fn how_much_of_a_cost_fits_is_for_the_bucket_to_say() {
        check(by_field(), said("9007199254740991"), "charged SpendUpTo 9007199254740981");
    }

    #[test]
    fn what_is_no_number_leaves_the_reserve() {
        for value in ["", "-1", "+1", "1.5", "1e3", "ten", "1, 1", "9007199254740992", "99999999999999999999999"] {
            check(by_field(), said(value), "unreadable");
        }
        check(by_field(), ResponseReport::Response(200, Some(b"\xff")), "unreadable");
        check(by_field(), ResponseReport::Response(200, None), "absent");
    }

    #[test]
    fn without_a_response_what_was_sent_costs_the_reserve() {
        check(by_field(), ResponseReport::Nothing(None), "unanswered");
        check(by_field(), ResponseReport::Unsent, "refunded Refund 10");
        check(on(&[(401, 401)]), ResponseReport::Nothing(None), "unanswered SpendUpTo 10");
        check(on(&[(401, 401)]), ResponseReport::Unsent, "unchanged");
    }

    #[test]
    fn some_answers_are_charged_and_others_are_free() {
        let failures = || on(&[(401, 401), (500, 599)]);
        check(failures(), ResponseReport::Response(401, None), "charged SpendUpTo 10");
        check(failures(), ResponseReport::Response(503, None), "charged SpendUpTo 10");
        check(failures(), ResponseReport::Response(400, None), "unchanged");
        check(failures(), ResponseReport::Response(600, None), "unchanged");
        assert_eq!(Statuses(vec![(401, 401), (500, 599)]).to_string(), "401, 5xx");
    }

    #[test]
    fn on_some_answers_the_field_says_what_they_cost() {
        let both = || ResponseCost { when: Some(Statuses(vec![(200, 299)])), ..by_field() };
        check(both(), said("25"), "charged SpendUpTo 25");
        check(both(), said("0"), "unchanged");
        check(both(), ResponseReport::Response(200, None), "absent SpendUpTo 10");
        check(both(), ResponseReport::Response(500, Some(b"25")), "unchanged");
    }

    #[test]
    fn a_field_that_may_still_come_is_waited_for() {
        let settle = |cost, heard| owed(cost, 10, hundred(), None).settle(heard, true).is_some();
        assert!(!settle(by_field(), ResponseReport::Response(200, None)));
        assert!(settle(by_field(), said("x")));
        assert!(settle(on(&[(401, 401)]), ResponseReport::Response(401, None)));
        let both = ResponseCost { when: Some(Statuses(vec![(200, 299)])), ..by_field() };
        assert!(settle(both, ResponseReport::Response(404, None)));
    }

    #[test]
    fn a_refund_names_the_instant_at_which_its_tokens_were_taken() {
        let taken = Some(Micros(7));
        for (numbers, taken, expected) in [
            (Numbers::fixed_window(100, 100, MINUTE, Aligned::Clock), taken, Some(Dated::At(Micros(7)))),
            (Numbers::sliding_log(100, MINUTE), taken, Some(Dated::At(Micros(7)))),
            (Numbers::sliding_window(100, MINUTE, false), taken, Some(Dated::At(Micros(7)))),
            (Numbers::sliding_log(100, MINUTE), None, None),
            (Numbers::fixed_window(300, 100, MINUTE, Aligned::Clock), None, Some(Dated::No)),
            (Numbers::new(100, 100, MINUTE), None, Some(Dated::No)),
            (Numbers::fixed(100), None, Some(Dated::No)),
        ] {
            let numbers = numbers.unwrap();
            let mut spend = Charge::new(Bucket::new("L:k", 1), numbers.clone(), 10, Mode::Spend);
            spend.reserve();
            assert_eq!(spend.is_told(), expected != Some(Dated::No), "{numbers}");
            let (_, changes) = owed(by_field(), 10, numbers.clone(), taken).settle(said("1"), false).unwrap();
            assert_eq!(changes.first().map(|change| change.dated), expected, "{numbers}");
        }
    }

    /// Reserves, and then settles by what the response says, against one bucket; what is left after each step.
    #[test]
    fn what_is_settled_is_what_a_charge_of_the_real_cost_would_have_left() {
        for (reserve, cost) in [(10, 25), (10, 3), (10, 0), (1, 99), (100, 100), (60, 200)] {
            let mut level: Option<Level> = None;
            let mut apply = |charge: &Charge| -> Decision {
                let (decision, change) = decide_level(level.as_ref(), charge, Micros(1), Micros(0));
                match change {
                    LevelChange::Keep => {}
                    LevelChange::Write(written) => level = Some(written),
                    LevelChange::Clear => level = None,
                }
                decision
            };
            let owed = owed(by_field(), reserve, hundred(), None);
            apply(&owed.charges[0].charge);
            let text = cost.to_string();
            let (_, changes) = owed.settle(said(&text), false).unwrap();
            for change in &changes {
                assert!(!apply(change).is_denied());
            }
            let look = Charge { cost: 0, mode: Mode::Check, ..owed.charges[0].charge.clone() };
            assert_eq!(apply(&look).remaining, 100 - cost.min(100), "{reserve} for {cost}");
        }
    }

    /// The plan of a request to a limit of 5 that costs 2 on some answers, and that refuses or not.
    fn plan(mode: LimitMode, intent: &Intent) -> Plan {
        let limit = Limit {
            by: Vec::new(),
            allowance: Allowance::Windows([Numbers::fixed(5).unwrap()].into()),
            cost: Cost::Fixed(2),
            response_cost: Some(Arc::new(on(&[(401, 401)]))),
            mode,
            ..Limit::new("L")
        };
        let rules = Rules::new(vec![limit], Fingerprinter::new((1, 2)), Micros(0), Vec::new());
        let mut plan = Plan::default();
        plan.charge_request(&rules, &sample(&Headers::new()), intent, None).unwrap();
        plan
    }

    #[test]
    fn who_only_checks_takes_nothing_and_tells_what_is_there() {
        // What a bucket with 3 left, and one with 1 left, say to a check of 2 or to a look.
        for (mode, outcomes) in [
            (LimitMode::Enforce, [(Outcome::Allowed, 3), (Outcome::Denied, 1)]),
            (LimitMode::Shadow, [(Outcome::Allowed, 3), (Outcome::Short, 1)]),
        ] {
            let plan = plan(mode, &Intent::SPEND);
            assert_eq!((plan.charges[0].mode, plan.charges[0].cost), (Mode::Look, 2));
            let (decision, _) = decide_level(None, &plan.charges[0], Micros(0), Micros(0));
            assert_eq!((decision.outcome, decision.remaining), (Outcome::Allowed, 5));
            assert_eq!(decision.reset_after, Some(Micros(0)), "nothing of it comes back");
            for (left, expected) in [3, 1].into_iter().zip(outcomes) {
                let level = Level {
                    since: Micros(0),
                    used: 5 - left,
                    weight: 1,
                    refill: crate::engine::algorithms::windows::Refill::evenly(0),
                };
                let (decision, change) = decide_level(Some(&level), &plan.charges[0], Micros(0), Micros(0));
                assert_eq!(change, LevelChange::Keep);
                assert_eq!((decision.outcome, decision.remaining), expected, "{mode:?} with {left} left");
            }
        }
    }

    #[test]
    fn a_caller_that_says_what_to_do_is_not_settled_behind_its_back() {
        for (limit, mode, cost, expected) in [
            (LimitMode::Enforce, Mode::Spend, None, (Mode::Look, 2, 1)),
            (LimitMode::Enforce, Mode::Spend, Some(4), (Mode::Look, 4, 1)),
            (LimitMode::Enforce, Mode::SpendOnly, None, (Mode::SpendOnly, 2, 0)),
            (LimitMode::Shadow, Mode::Spend, Some(4), (Mode::Look, 4, 1)),
            (LimitMode::Shadow, Mode::SpendOnly, None, (Mode::SpendOnly, 2, 0)),
            (LimitMode::Shadow, Mode::Refund, Some(1), (Mode::Refund, 1, 0)),
        ] {
            let plan = plan(limit, &Intent { mode, cost, can_probe: false });
            let charge = &plan.charges[0];
            assert_eq!((charge.mode, charge.cost, plan.unsettled.len()), expected, "{limit:?} {mode:?} {cost:?}");
        }
    }
}
