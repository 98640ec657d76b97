//! A decision without I/O: what a store is to decide about a plan, the verdict that follows from its answers or their absence, and
//! what is charged although nobody waits for it. The limiter drives it with a store that may fail, the simulation and scenarios with
//! clocks of their own.

mod begin;
mod candidate;
pub mod descriptors;
pub mod verdict;

pub use begin::{DecisionSubject, InvalidSubject, Notices};

use crate::engine::algorithms::charge::{Charge, ChargeOrigin, Mode};
use crate::engine::algorithms::decision::Decisions;
use crate::engine::charging::plan::Plan;
use crate::engine::deciding::descriptors::{DescriptorVerdict, DescriptorVerdicts};
use crate::engine::deciding::verdict::{Unanswered, Verdict};
use crate::engine::limit::StoreErrorPolicy;
use crate::engine::limit::rules::Rules;

/// A decision on its way.
#[derive(Debug, Default)]
pub struct Deciding {
    pub plan: Plan,
    /// By charge, and then by report; empty until the store has answered.
    pub decisions: Decisions,
    /// Set if the store did not answer. Boxed because it is rare.
    failure: Option<Box<Failure>>,
}

/// The limits that decide without an answer of the store.
#[derive(Debug, Default)]
struct Failure {
    unanswered: Vec<Unanswered>,
    is_overload: bool,
    /// The charges that count the denied request in the memory that replaces the store.
    counting: Vec<Charge>,
}

/// A decision that has been made.
#[derive(Debug)]
pub struct Decided {
    pub verdict: Verdict,
    /// One for each descriptor, in their order.
    pub descriptors: Vec<DescriptorVerdict>,
    /// Charges of limits that count denied requests and were not part of a round. Nobody waits for them, and they deny nothing.
    pub due: Vec<Charge>,
}

impl Deciding {
    /// The decision of a plan that was made elsewhere.
    pub fn new(plan: Plan) -> Self {
        Self { plan, ..Self::default() }
    }

    /// Returns what the store is to decide: charges, all or nothing, and then reports, whatever becomes of the charges. `None` if the
    /// verdict needs no store.
    pub fn round(&self) -> Option<[&[Charge]; 2]> {
        let Plan { charges, joint, .. } = &self.plan;
        let reported = joint.as_ref().map_or(&[][..], |joint| &joint.reported);
        (!self.plan.is_denied() && !charges.is_empty()).then_some([charges, reported])
    }

    /// Takes the store's decisions on a round.
    pub fn answered(&mut self, decisions: Decisions) {
        self.decisions = decisions;
        self.plan.correct(&mut self.decisions);
    }

    /// Decides by each limit's `on_store_error`, or denies if the store `is_overloaded`. Returns whether a store in memory is to decide
    /// another round: that of limits with `local`, which alone stay in the plan, unless another limit denies the request.
    pub fn unanswered(&mut self, rules: &Rules, is_overloaded: bool) -> bool {
        let Self { plan, failure, .. } = self;
        let failure = failure.insert(Box::default());
        if plan.joint.as_ref().is_some_and(|joint| joint.is_denied) {
            // A limit denies the request without the store, and nothing was to be charged.
            return false;
        }
        // With `on_store_error: allow`, a flood could switch limits off.
        let is_overload = is_overloaded && plan.charges.iter().any(|charge| charge.origin.is_enforced());
        failure.is_overload = is_overload;
        let policy = |origin: ChargeOrigin| match rules.limit(origin.limit) {
            _ if is_overload => StoreErrorPolicy::Deny,
            Some(limit) => limit.on_store_error,
            None => StoreErrorPolicy::Allow,
        };
        let is_local = |charge: &Charge| policy(charge.origin) == StoreErrorPolicy::Local;
        for charge in plan.charges.iter().filter(|charge| !is_local(charge)) {
            failure.add(charge.origin, policy(charge.origin));
        }
        if failure.denies() {
            // A request that is denied anyway must not be charged locally.
            failure.counting = counting(plan.charges.iter().filter(|charge| is_local(charge)));
            return false;
        }
        plan.retain(is_local);
        true
    }

    /// Lets limits pass that nothing could decide.
    pub fn undecided(&mut self) {
        let failure = self.failure.get_or_insert_default();
        self.plan.charges.iter().for_each(|charge| failure.add(charge.origin, StoreErrorPolicy::Allow));
        self.plan.retain(|_| false);
    }

    /// Returns true if the store did not answer: what is charged then is in the memory that replaces it.
    pub const fn is_local(&self) -> bool {
        self.failure.is_some()
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
            due = std::mem::take(&mut failure.counting);
        }
        if plan.is_denied() {
            due = counting(plan.charges.iter());
        }
        Decided { verdict, descriptors, due }
    }
}

impl Failure {
    fn add(&mut self, origin: ChargeOrigin, policy: StoreErrorPolicy) {
        let denies = origin.is_enforced() && policy == StoreErrorPolicy::Deny;
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
fn counting<'c>(charges: impl Iterator<Item = &'c Charge>) -> Vec<Charge> {
    let counting = charges.filter(|charge| charge.counts_denied());
    counting.map(|charge| Charge { mode: Mode::SpendOnly, ..charge.clone() }).collect()
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
            assert!(!deciding.is_local());
            let has_round = deciding.unanswered(&rules, is_overloaded);
            let round = deciding.round().filter(|_| has_round).map(|[charges, _]| limits(charges));
            assert_eq!(round.unwrap_or_default(), local, "{policies:?}");
            if has_round {
                deciding.answered(local.iter().map(|_| allowed).collect());
            }
            let Decided { verdict, due: follows, .. } = deciding.conclude(&rules);
            let counted = limits(&follows);
            assert_eq!((verdict.kind, &counted[..]), (kind, due), "{policies:?}");
            assert_eq!(verdict.answers.len(), local.len(), "{policies:?}");
            assert!(deciding.is_local());
        }
    }

    #[test]
    fn what_nothing_decides_passes_and_is_named() {
        let (rules, mut deciding) = start(&[Local, Allow]);
        assert!(deciding.unanswered(&rules, false));
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
