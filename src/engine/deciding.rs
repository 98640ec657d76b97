//! A decision without I/O: what a store is to decide about a plan, the verdict that follows from its answers or their absence, and
//! what is charged although nobody waits for it. The limiter drives it with a store that may fail, the simulation and scenarios with
//! clocks of their own.

use crate::engine::algorithms::charge::{Charge, ChargeOrigin, Mode};
use crate::engine::algorithms::decision::Decisions;
use crate::engine::answer::descriptors::{DescriptorVerdict, DescriptorVerdicts};
use crate::engine::answer::verdict::{Standing, Unanswered, Verdict};
use crate::engine::rules::limit::StoreErrorPolicy;
use crate::engine::rules::plan::Plan;
use crate::engine::rules::rule_set::Rules;

/// A decision on its way.
#[derive(Debug, Default)]
pub struct Deciding {
    pub plan: Plan,
    /// By charge, and then by report; empty until the store has answered.
    pub decisions: Decisions,
    /// Set if the store did not answer.
    failure: Option<Failure>,
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
    pub due: Option<Due>,
}

/// Charges that follow from a verdict. Nobody waits for them, and they deny nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Due {
    /// Those of limits that count denied requests.
    Denied(Vec<Charge>),
    /// Those of candidates that would have allowed the request.
    Candidate(Vec<Charge>),
}

impl Deciding {
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
        let failure = failure.insert(Failure::default());
        if plan.joint.as_ref().is_some_and(|joint| joint.is_denied) {
            // A limit denies the request without the store, and nothing was to be charged.
            return false;
        }
        // With `on_store_error: allow`, a flood could switch limits off.
        let is_overload = is_overloaded && plan.charges.iter().any(|charge| charge.origin.enforced);
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
        if let Some(Failure { unanswered, is_overload, counting }) = failure {
            let unanswered = std::mem::take(unanswered);
            verdict = if *is_overload { verdict.overloaded(unanswered) } else { verdict.unanswered(unanswered) };
            due = std::mem::take(counting);
        }
        if plan.is_denied() {
            due = counting(plan.charges.iter());
        }
        let mut due = Due::Denied(due);
        if verdict.standing == Standing::Denied && !verdict.candidates.is_empty() {
            due = Due::Candidate(verdict.candidate_charges(plan));
        }
        let due = Some(due).filter(|due| !due.charges().is_empty());
        Decided { verdict, descriptors, due }
    }
}

impl Failure {
    fn add(&mut self, origin: ChargeOrigin, policy: StoreErrorPolicy) {
        let denies = origin.enforced && policy == StoreErrorPolicy::Deny;
        match self.unanswered.iter_mut().find(|known| known.limit == origin.limit) {
            Some(known) => known.denies |= denies,
            None => self.unanswered.push(Unanswered { limit: origin.limit, denies }),
        }
    }

    fn denies(&self) -> bool {
        self.unanswered.iter().any(|limit| limit.denies)
    }
}

impl Due {
    pub fn charges(&self) -> &[Charge] {
        match self {
            Self::Denied(charges) | Self::Candidate(charges) => charges,
        }
    }
}

/// Returns the charges that count a denied request, among these.
fn counting<'c>(charges: impl Iterator<Item = &'c Charge>) -> Vec<Charge> {
    let counting = charges.filter(|charge| charge.counts_denied());
    counting.map(|charge| Charge { mode: Mode::SpendOnly, ..charge.clone() }).collect()
}
