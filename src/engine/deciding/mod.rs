//! A decision without I/O: what a store is to decide about a plan, the verdict that follows from its answers or their absence, and
//! what is charged although nobody waits for it. The limiter drives it with a store that may fail, the simulation and scenarios with
//! clocks of their own.

mod begin;
pub mod candidate;
pub mod descriptors;
pub mod verdict;

pub use begin::{DecisionSubject, InvalidSubject, Notices};

use crate::engine::algorithms::charge::{Charge, ChargeOrigin, Mode};
use crate::engine::algorithms::decision::{Decision, Decisions, Outcome};
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::taking::Taking;
use crate::engine::charging::plan::Plan;
use crate::engine::deciding::descriptors::{DescriptorVerdict, DescriptorVerdicts};
use crate::engine::deciding::verdict::{Unanswered, Verdict};
use crate::engine::limit::StoreErrorPolicy;
use crate::engine::limit::ban::NewBan;
use crate::engine::limit::rules::Rules;

/// A decision on its way.
#[derive(Debug, Default)]
pub struct Deciding {
    pub plan: Plan,
    /// By charge, and then by report; empty until the store has answered.
    pub decisions: Decisions,
    /// Set if the store did not answer for all charges. Boxed because it is rare.
    failure: Option<Box<Failure>>,
}

/// The limits that decide where the store has not.
#[derive(Debug, Default)]
struct Failure {
    unanswered: Vec<Unanswered>,
    is_overload: bool,
    /// Charges and reports for the memory that replaces the store, and their places in [`Deciding::decisions`].
    round: [Vec<Charge>; 2],
    places: Vec<usize>,
    /// Charges that count the denied request in that memory, and refunds of tokens that the store took.
    due: Vec<Charge>,
}

/// A decision that has been made.
#[derive(Debug)]
pub struct Decided {
    pub verdict: Verdict,
    /// One for each descriptor, in their order.
    pub descriptors: Vec<DescriptorVerdict>,
    /// Charges of limits that count denied requests and were not part of a round, and refunds. Nobody waits for them, and they deny
    /// nothing.
    pub due: Vec<Charge>,
    /// The ids that have their last strike with this request. They have no blocks yet.
    pub bans: Vec<NewBan>,
    /// The limits that have denied an id whose strikes cannot be counted.
    pub uncounted: Vec<u32>,
}

impl Deciding {
    /// The decision of a plan that was made elsewhere.
    pub fn new(plan: Plan) -> Self {
        Self { plan, ..Self::default() }
    }

    /// Returns what the store is to decide: charges, all or nothing, and then reports, whatever becomes of the charges. `None` if the
    /// verdict needs no store.
    pub fn round(&self) -> Option<[&[Charge]; 2]> {
        if let Some(failure) = &self.failure {
            let [charges, reported] = &failure.round;
            return (!charges.is_empty()).then_some([charges, reported]);
        }
        let Plan { charges, joint, .. } = &self.plan;
        let reported = joint.as_ref().map_or(&[][..], |joint| &joint.reported);
        (!self.plan.is_denied() && !charges.is_empty()).then_some([charges, reported])
    }

    /// Takes the store's decisions on a round, or those of the memory that replaces it.
    pub fn answered(&mut self, decisions: Decisions) {
        let Self { plan, decisions: known, failure } = self;
        match failure {
            None => *known = decisions,
            Some(failure) => {
                known.replace(&failure.places, decisions);
                failure.round = [Vec::new(), Vec::new()];
                let taking = Taking::new(&plan.charges, |place| known.get(place).is_some_and(Decision::is_short));
                failure.due = given_back(plan, known, |charge| taking.takes(charge));
            }
        }
        self.plan.correct(&mut self.decisions);
    }

    /// Decides by each limit's `on_store_error` where the store has decided nothing, or denies if it `is_overloaded`. `decided` is what
    /// some of the store's servers have decided all the same, with the indices of the gaps: of charges first, and then of reports.
    /// Returns whether a store in memory is to decide another round: that of limits with `local`, unless another limit denies the
    /// request. What the servers took is given back if it does.
    pub fn unanswered(&mut self, rules: &Rules, decided: Option<(Decisions, Vec<usize>)>, is_overloaded: bool) -> bool {
        let Self { plan, decisions, failure } = self;
        let failure = failure.insert(Box::default());
        let reports = plan.joint.as_ref().map_or(0, |joint| joint.reported.len());
        let (given, gaps) = decided.unwrap_or_else(|| {
            let all = 0..plan.charges.len() + reports;
            (all.clone().map(|_| Decision::unknown(0)).collect(), all.collect())
        });
        *decisions = given;
        // With `on_store_error: allow`, a flood could switch limits off.
        failure.is_overload = is_overloaded && plan.charges.iter().any(|charge| charge.origin.is_enforced());
        let is_denied = decisions.iter().any(Decision::is_denied);
        let is_decided_elsewhere = plan.joint.as_ref().is_some_and(|joint| joint.is_denied);
        let mut counting = Vec::new();
        for place in gaps.iter().copied().filter(|_| !is_decided_elsewhere) {
            let Some(charge) = plan.charges.get_mut(place) else { continue };
            let policy = match rules.limit(charge.origin.limit) {
                _ if failure.is_overload => StoreErrorPolicy::Deny,
                Some(limit) => limit.on_store_error,
                None => StoreErrorPolicy::Allow,
            };
            charge.origin.is_local = policy == StoreErrorPolicy::Local;
            if charge.origin.is_local {
                charge.hold_nothing();
                counting.push(charge.clone());
            } else {
                failure.add(charge.origin, policy == StoreErrorPolicy::Deny && !is_denied);
            }
        }
        let is_denied = is_denied || is_decided_elsewhere || failure.denies();
        plan.retain_decided(decisions, &gaps, |charge| charge.origin.is_local && !is_denied);
        if is_denied {
            // A request that is denied anyway must not be charged locally.
            for charge in &counting {
                failure.add(charge.origin, false);
            }
            failure.due = given_back(plan, decisions, |_| !failure.denies());
            failure.due.extend(counting_denied(counting.iter()));
            return false;
        }
        (failure.round, failure.places) = plan.local_round();
        !failure.places.is_empty()
    }

    /// Lets limits pass that nothing could decide.
    pub fn undecided(&mut self) {
        let Self { plan, decisions, failure } = self;
        let failure = failure.get_or_insert_default();
        let local: Vec<usize> = std::mem::take(&mut failure.places);
        for charge in plan.charges.iter().filter(|charge| charge.origin.is_local) {
            failure.add(charge.origin, false);
        }
        failure.round = [Vec::new(), Vec::new()];
        plan.retain_decided(decisions, &local, |_| false);
    }

    /// Makes the verdict of what is decided.
    pub fn conclude(&mut self, rules: &Rules) -> Decided {
        let Self { plan, decisions, failure } = self;
        let (mut verdict, descriptors) = match &plan.joint {
            None => (Verdict::decided(plan, decisions), Vec::new()),
            Some(joint) => {
                let DescriptorVerdicts { whole, members } = DescriptorVerdicts::new(rules, plan, joint, decisions);
                (whole, members)
            }
        };
        let mut due = Vec::new();
        if let Some(failure) = failure {
            let unanswered = std::mem::take(&mut failure.unanswered);
            verdict = if failure.is_overload { verdict.overloaded(unanswered) } else { verdict.unanswered(unanswered) };
            due = std::mem::take(&mut failure.due);
        }
        if plan.is_denied() {
            due = counting_denied(plan.charges.iter());
        }
        let mut decided = Decided { verdict, descriptors, due, bans: Vec::new(), uncounted: Vec::new() };
        if plan.charges.iter().any(|charge| charge.origin.is_strike()) {
            decided.add_strikes(plan, decisions);
        }
        decided
    }
}

impl Decided {
    /// Notes what follows from the decisions on strikes.
    fn add_strikes(&mut self, plan: &Plan, decisions: &Decisions) {
        for (strike, decision) in
            plan.charges.iter().zip(decisions.iter()).filter(|(charge, _)| charge.origin.is_strike())
        {
            let all = plan.charges.iter().zip(decisions.iter());
            let own =
                all.filter(|(charge, _)| charge.origin.group == strike.origin.group && !charge.origin.is_beside());
            let (is_enforced, is_short) = own.fold((false, false), |(is_enforced, is_short), (charge, decision)| {
                (is_enforced || charge.origin.is_enforced(), is_short || decision.is_short())
            });
            self.bans.extend(NewBan::of(strike, decision, is_enforced));
            if is_short && decision.outcome == Outcome::Unchanged {
                self.uncounted.push(strike.origin.limit);
            }
        }
    }
}

impl Failure {
    fn add(&mut self, origin: ChargeOrigin, denies: bool) {
        let denies = origin.is_enforced() && denies;
        match self.unanswered.iter_mut().find(|known| known.limit == origin.limit) {
            Some(known) => known.denies |= denies,
            None => self.unanswered.push(Unanswered { limit: origin.limit, denies }),
        }
    }

    fn denies(&self) -> bool {
        self.unanswered.iter().any(|limit| limit.denies)
    }
}

/// Returns the charges that count a denied request, among these.
fn counting_denied<'c>(charges: impl Iterator<Item = &'c Charge>) -> Vec<Charge> {
    let counting = charges.filter(|charge| charge.counts_denied());
    counting.map(|charge| Charge { mode: Mode::SpendOnly, ..charge.clone() }).collect()
}

/// Returns the refunds of what was taken in the store by charges that take nothing after all, and notes so in the decisions.
fn given_back(plan: &Plan, decisions: &mut Decisions, takes: impl Fn(&Charge) -> bool) -> Vec<Charge> {
    let mut refunds = Vec::new();
    for (place, charge) in plan.charges.iter().enumerate() {
        let is_spend = matches!(charge.mode, Mode::Spend | Mode::SpendOnly) && charge.cost > 0;
        // Slots are given back by their holder.
        if !is_spend || charge.origin.is_local || charge.slot().is_some() || charge.counts_denied() || takes(charge) {
            continue;
        }
        let is_told = decisions.taken(place).is_some() || !charge.numbers.is_dated();
        let Some(refund) = charge.undo(decisions.detail(place)).filter(|_| is_told) else { continue };
        if let Some(decision) = decisions.get_mut(place).filter(|decision| decision.is_allowed()) {
            let remaining = decision.remaining.saturating_add(charge.cost).min(decision.limit);
            let retry_after = Some(Micros(0));
            *decision = Decision { outcome: Outcome::Unchanged, remaining, retry_after, ..*decision };
            refunds.push(refund);
        }
    }
    refunds
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::algorithms::charge::Bucket;
    use crate::engine::algorithms::decision::{Decision, Outcome};
    use crate::engine::algorithms::micros::Micros;
    use crate::engine::algorithms::numbers::Numbers;
    use crate::engine::charging::plan::{DenialReason, LimitDenial};
    use crate::engine::deciding::verdict::VerdictKind;
    use crate::engine::limit::Limit;
    use crate::engine::limit::fingerprint::Fingerprinter;
    use StoreErrorPolicy::{Allow, Deny, Local};

    /// Rules with a limit of each policy, and a plan with a charge of each, which counts denied requests.
    fn start(policies: &[StoreErrorPolicy]) -> (Rules, Deciding) {
        let limits = policies.iter().map(|policy| Limit { on_store_error: *policy, ..Limit::new("L") }).collect();
        let rules = Rules::new(limits, Fingerprinter::new((1, 2)), Micros(0), Vec::new());
        let numbers = Numbers::sliding_window(5, 60_000_000_000, true).unwrap();
        let charges = (0..).zip(policies).map(|(limit, _)| {
            let bucket = Bucket::new("L:k", u128::from(limit));
            let origin = ChargeOrigin::new(limit, true);
            Charge { origin, ..Charge::new(bucket, numbers.clone(), 1, Mode::Spend) }
        });
        (rules, Deciding::new(Plan { charges: charges.collect(), ..Plan::default() }))
    }

    fn limits(charges: &[Charge]) -> Vec<u32> {
        charges.iter().map(|charge| charge.origin.limit).collect()
    }

    #[test]
    fn each_limit_decides_without_the_store_by_its_own_policy() {
        let allowed = Decision { outcome: Outcome::Allowed, ..Decision::never() };
        for (policies, is_overloaded, local, kind, due) in [
            (&[Allow, Allow][..], false, &[][..], VerdictKind::Allowed, &[][..]),
            (&[Allow, Local], false, &[1], VerdictKind::Allowed, &[]),
            (&[Local, Local], false, &[0, 1], VerdictKind::Allowed, &[]),
            // Nothing is charged where another limit denies, but a count of denied requests.
            (&[Local, Deny, Allow], false, &[], VerdictKind::Unavailable, &[0]),
            (&[Deny], false, &[], VerdictKind::Unavailable, &[]),
            (&[Allow, Local], true, &[], VerdictKind::Overloaded, &[]),
        ] {
            let (rules, mut deciding) = start(policies);
            let has_round = deciding.unanswered(&rules, None, is_overloaded);
            let round = deciding.round().filter(|_| has_round).map(|[charges, _]| limits(charges));
            assert_eq!(round.unwrap_or_default(), local, "{policies:?}");
            if has_round {
                deciding.answered(local.iter().map(|_| allowed).collect());
            }
            let Decided { verdict, due: follows, .. } = deciding.conclude(&rules);
            let counted = limits(&follows);
            assert_eq!((verdict.kind, &counted[..]), (kind, due), "{policies:?}");
            assert_eq!(verdict.answers.len(), local.len(), "{policies:?}");
        }
    }

    /// The first charge is decided by its server, and the second is not.
    #[test]
    fn limits_whose_server_answers_are_decided_by_it_and_the_others_by_their_policy() {
        let decided = |outcome| Decision { outcome, limit: 5, remaining: 3, ..Decision::never() };
        let (allowed, denied) = (decided(Outcome::Allowed), decided(Outcome::Denied));
        let unavailable = VerdictKind::Unavailable;
        // The policy of the second, the answers of the server and of the memory, the verdict, and what follows: the limits whose
        // charges count the denied request in memory, and those whose tokens are given back.
        for (policy, first, local, kind, counted, given_back) in [
            (Allow, allowed, None, VerdictKind::Allowed, &[][..], &[][..]),
            (Deny, allowed, None, unavailable, &[], &[0]),
            (Local, allowed, Some(allowed), VerdictKind::Allowed, &[], &[]),
            (Local, allowed, Some(denied), VerdictKind::Denied, &[], &[0]),
            (Allow, denied, None, VerdictKind::Denied, &[], &[]),
            (Deny, denied, None, VerdictKind::Denied, &[], &[]),
            (Local, denied, None, VerdictKind::Denied, &[1], &[]),
        ] {
            let case = (policy, first.outcome, local.map(|local| local.outcome));
            let (rules, mut deciding) = start(&[Allow, policy]);
            deciding.plan.charges[0].numbers = Numbers::new(5, 5, 60_000_000_000).unwrap();
            let given = [first, Decision::unknown(5)].into_iter().collect();
            let has_round = deciding.unanswered(&rules, Some((given, vec![1])), false);
            assert_eq!(has_round, local.is_some(), "{case:?}");
            if let Some(local) = local {
                assert_eq!(limits(deciding.round().unwrap()[0]), [1], "{case:?}");
                deciding.answered([local].into_iter().collect());
            }
            let Decided { verdict, due, .. } = deciding.conclude(&rules);
            assert_eq!(verdict.kind, kind, "{case:?}");
            let of = |mode| due.iter().filter(move |charge| charge.mode == mode).cloned().collect::<Vec<_>>();
            assert_eq!(
                (&*limits(&of(Mode::SpendOnly)), &*limits(&of(Mode::Refund))),
                (counted, given_back),
                "{case:?}"
            );
            assert!(of(Mode::SpendOnly).iter().all(|charge| charge.origin.is_local), "{case:?}");
            assert!(of(Mode::Refund).iter().all(|charge| !charge.origin.is_local && charge.cost == 1), "{case:?}");
            let unanswered: Vec<u32> = verdict.unanswered.iter().map(|limit| limit.limit).collect();
            assert_eq!(unanswered, if local.is_some() { vec![] } else { vec![1] }, "{case:?}");
            let first = verdict.answers[0].decision;
            let is_given_back = !given_back.is_empty();
            assert_eq!(first.remaining, if is_given_back { 4 } else { 3 }, "{case:?}");
            assert_eq!(first.outcome == Outcome::Unchanged, is_given_back, "{case:?}");
        }
    }

    #[test]
    fn what_nothing_decides_passes_and_is_named() {
        let (rules, mut deciding) = start(&[Local, Allow]);
        assert!(deciding.unanswered(&rules, None, false));
        deciding.undecided();
        assert!(deciding.round().is_none());
        let Decided { verdict, due, .. } = deciding.conclude(&rules);
        let mut unanswered: Vec<u32> = verdict.unanswered.iter().map(|limit| limit.limit).collect();
        unanswered.sort_unstable();
        assert_eq!((verdict.kind, unanswered, due), (VerdictKind::Allowed, vec![0, 1], Vec::new()));
    }

    #[test]
    fn a_denial_without_the_store_asks_nothing_and_is_counted() {
        let (rules, mut deciding) = start(&[Allow, Allow]);
        let denial = LimitDenial { limit: 1, enforced: true, reason: DenialReason::Deny };
        deciding.plan.denials.push(denial);
        assert!(deciding.round().is_none());
        let Decided { verdict, due, .. } = deciding.conclude(&rules);
        assert_eq!((verdict.kind, limits(&due)), (VerdictKind::Denied, vec![0, 1]));
        assert!(due.iter().all(|charge| charge.mode == Mode::SpendOnly));
        // In shadow it denies nothing, so the store decides.
        let (_, mut deciding) = start(&[Allow]);
        deciding.plan.denials.push(LimitDenial { enforced: false, ..denial });
        assert!(deciding.round().is_some());
    }
}
