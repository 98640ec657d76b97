//! The answer for one request: all its decisions, the one that binds, allow or deny.

use crate::engine::algorithms::charge::{Bucket, Charge, ChargeOrigin, Role};
use crate::engine::algorithms::decision::{Decision, Decisions, Detail, Elevation};
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::numbers::Numbers;
use crate::engine::charging::plan::{DenialReason, LimitDenial, Plan};
use crate::engine::deciding::candidate::take_candidates;
use crate::engine::limit::Limit;
use crate::engine::limit::warning::claims;

/// The decision of one window of one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitDecision {
    /// The index of the limit in the rules.
    pub limit: u32,
    /// The index in the limit's `rates`.
    pub window: u32,
    /// The numbers that held; `None` if the limit denied without asking the store.
    pub numbers: Option<Numbers>,
    pub cost: u64,
    pub decision: Decision,
    pub role: Role,
    /// The bucket's fingerprint, which distinguishes ids without showing them; `None` if no bucket was charged.
    pub fingerprint: Option<u128>,
}

impl LimitDecision {
    /// Returns the numbers that held, unless only the user's script knows them.
    pub fn counted_numbers(&self) -> Option<&Numbers> {
        self.numbers.as_ref().filter(|numbers| !numbers.is_script())
    }

    pub fn is_script(&self) -> bool {
        self.numbers.as_ref().is_some_and(Numbers::is_script)
    }

    /// Returns false for a limit or an id in shadow, and for a candidate, which cannot deny.
    pub fn is_enforced(&self) -> bool {
        self.role == Role::Enforced
    }

    /// Returns true if the cost did not fit, whether or not the limit denied the request.
    pub fn is_short(&self) -> bool {
        self.decision.is_short()
    }

    /// The bucket that was charged.
    pub fn bucket<'p>(&self, plan: &'p Plan) -> Option<&'p Bucket> {
        let is_own = |charge: &&Charge| {
            let ChargeOrigin { limit, window, role, .. } = charge.origin;
            (limit, window, role) == (self.limit, self.window, self.role)
                && Some(charge.bucket.fingerprint) == self.fingerprint
        };
        plan.charges.iter().find(is_own).map(|charge| &charge.bucket)
    }

    /// The charges that claim the warning of the id, if it has reached a share of the limit's `warn_at`.
    pub fn warning(&self, limit: &Limit, plan: &Plan) -> Option<Vec<Charge>> {
        let reached = limit.warn_at.as_ref()?.reached(&self.decision);
        if reached.is_empty() {
            return None;
        }
        claims(reached, self.bucket(plan)?, self.numbers.as_ref()?)
    }

    /// Returns true if the limit is in shadow and would have denied the request.
    pub fn would_deny(&self) -> bool {
        !self.is_enforced() && self.is_short()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerdictKind {
    Allowed,
    /// A limit denies the request: 429.
    Denied,
    /// The store did not answer, and a limit has `on_store_error: deny`: 503.
    Unavailable,
    /// Rejected because too many requests are waiting for the store: 503, whatever `on_store_error` says.
    Overloaded,
}

/// The answer for one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub kind: VerdictKind,
    /// In the order of the rules.
    pub answers: Vec<LimitDecision>,
    /// The answers of candidates, which nothing but counts depends on. In the order of the rules.
    pub candidates: Vec<LimitDecision>,
    /// The index of the answer that binds, among the enforced ones.
    pub binding: Option<usize>,
    /// The limits that the store did not answer for.
    pub unanswered: Vec<Unanswered>,
    /// By the index of the limit.
    pub details: Vec<(u32, Detail)>,
}

/// A limit that the store did not answer for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unanswered {
    /// The index of the limit in the rules.
    pub limit: u32,
    /// True if it denies the request.
    pub denies: bool,
}

impl Verdict {
    /// The verdict when the store has decided the charges of a plan.
    pub fn decided(plan: &Plan, decisions: &Decisions) -> Self {
        let details = Self::details_of(plan, decisions).collect();
        let charged = (0..).zip(&plan.charges).zip(decisions.iter());
        let charged = charged.filter(|((_, charge), _)| !charge.origin.is_strike());
        let answers = charged.map(|((place, charge), decision)| {
            let ChargeOrigin { limit, window, role, .. } = charge.origin;
            let numbers = Some(charge.numbers_by(decisions.detail(place)).clone());
            let fingerprint = Some(charge.bucket.fingerprint);
            LimitDecision { limit, window, numbers, cost: charge.cost, decision: *decision, role, fingerprint }
        });
        // Few charges are strikes, so one allocation has room for the rest.
        let mut all: Vec<LimitDecision> = Vec::with_capacity(plan.charges.len());
        all.extend(answers);
        let mut answers = all;
        let candidates = take_candidates(&plan.charges, &mut answers);
        Self { details, ..Self::of(&plan.denials, answers) }.with_candidates(candidates)
    }

    /// The details of the store's decisions, by the index of the limit.
    pub(crate) fn details_of(plan: &Plan, decisions: &Decisions) -> impl Iterator<Item = (u32, Detail)> {
        decisions.details.iter().filter_map(|(place, detail)| {
            let origin = plan.charges.get(*place)?.origin;
            let is_told = match detail {
                Detail::Taken(_) => false,
                Detail::Counted(_) => origin.is_enforced(),
                _ => true,
            };
            is_told.then(|| (origin.limit, detail.clone()))
        })
    }

    /// The verdict when the store did not answer for some limits; the others were decided elsewhere.
    #[must_use]
    pub fn unanswered(mut self, unanswered: Vec<Unanswered>) -> Self {
        if self.is_allowed() && unanswered.iter().any(|limit| limit.denies) {
            self.kind = VerdictKind::Unavailable;
        }
        self.unanswered = unanswered;
        self
    }

    /// The verdict when too many requests are waiting for the store, which was not asked about `unanswered`.
    #[must_use]
    pub fn overloaded(self, unanswered: Vec<Unanswered>) -> Self {
        Self { kind: VerdictKind::Overloaded, unanswered, ..self }
    }

    /// The verdict of these answers, and of limits that deny without the store.
    pub(crate) fn of(denials: &[LimitDenial], mut answers: Vec<LimitDecision>) -> Self {
        answers.extend(denials.iter().map(|denial| LimitDecision {
            limit: denial.limit,
            window: 0,
            numbers: None,
            cost: 1,
            decision: denial.reason.decision(),
            role: if denial.enforced { Role::Enforced } else { Role::Shadow },
            fingerprint: None,
        }));
        answers.sort_by_key(|answer| (answer.limit, answer.window));
        let enforced = answers.iter().enumerate().filter(|(_, answer)| answer.is_enforced());
        let binding = enforced.max_by(|(_, a), (_, b)| a.decision.strictness(&b.decision)).map(|(place, _)| place);
        let denied = binding.and_then(|place| answers.get(place)).is_some_and(|answer| answer.decision.is_denied());
        let kind = if denied { VerdictKind::Denied } else { VerdictKind::Allowed };
        Self { kind, answers, candidates: Vec::new(), binding, unanswered: Vec::new(), details: Vec::new() }
    }

    /// Adds the answers of candidates.
    #[must_use]
    pub(crate) fn with_candidates(mut self, mut candidates: Vec<LimitDecision>) -> Self {
        candidates.sort_by_key(|answer| (answer.limit, answer.role, answer.window));
        self.candidates = candidates;
        self
    }

    /// Returns the state of a limit's elevated numbers.
    pub fn elevation(&self, limit: u32) -> Option<Elevation> {
        self.details.iter().filter(|(of, _)| *of == limit).find_map(|(_, detail)| detail.elevation())
    }

    pub fn is_allowed(&self) -> bool {
        self.kind == VerdictKind::Allowed
    }

    /// Returns how long an allowed request has to wait: as long as the limit that takes longest.
    pub fn delay(&self) -> Micros {
        self.enforced().map(|answer| answer.decision.delay()).max().filter(|_| self.is_allowed()).unwrap_or_default()
    }

    /// Returns the decision on a charge of the plan.
    pub fn decision(&self, origin: ChargeOrigin) -> Option<Decision> {
        let wanted = (origin.limit, origin.role.candidate(), origin.window);
        let of_charge = |answer: &&LimitDecision| (answer.limit, answer.role.candidate(), answer.window) == wanted;
        let answers = if origin.is_candidate() { &self.candidates } else { &self.answers };
        answers.iter().find(of_charge).map(|answer| answer.decision)
    }

    /// Returns how long a denied request has to wait: as long as the limit that denies longest, or as one that has counted the
    /// denied request and now denies for longer. `None` if waiting does not help.
    pub fn wait(&self) -> Option<Micros> {
        let counted = self.details.iter().filter_map(|(_, detail)| match detail {
            Detail::Counted(wait) => Some(*wait),
            _ => None,
        });
        let binding = self.binding().filter(|_| self.kind == VerdictKind::Denied)?.decision.retry_after?;
        Some(counted.fold(binding, Micros::max))
    }

    /// Returns how long the request has to wait because of this answer. For the one that binds a denied request, that is [`Self::wait`].
    pub fn wait_by(&self, answer: &LimitDecision) -> Option<Micros> {
        let window = |answer: &LimitDecision| (answer.limit, answer.window);
        let binds = self.binding().is_some_and(|binding| window(binding) == window(answer));
        if binds && self.kind == VerdictKind::Denied { self.wait() } else { answer.decision.retry_after }
    }

    /// Returns the answer that binds.
    pub fn binding(&self) -> Option<&LimitDecision> {
        self.answers.get(self.binding?)
    }

    /// Returns the answers of limits that are not in shadow.
    pub fn enforced(&self) -> impl Iterator<Item = &LimitDecision> {
        self.answers.iter().filter(|answer| answer.is_enforced())
    }
}

impl DenialReason {
    pub const fn decision(self) -> Decision {
        match self {
            Self::Deny | Self::Missing | Self::Malformed => Decision::never(),
            Self::Blocked(left) => Decision::later(left),
        }
    }
}

impl Plan {
    /// Returns true if a limit denies the request without the store.
    pub fn is_denied(&self) -> bool {
        self.denials.iter().any(|denial| denial.enforced)
    }
}
