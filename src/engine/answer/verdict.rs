//! The answer for one request: all its decisions, the one that binds, allow or deny.

use crate::engine::algorithms::decision::{Decision, Decisions, Detail, Elevation, Outcome};
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::numbers::Numbers;
use crate::engine::rules::plan::{ChargeOrigin, DenialReason, LimitDenial, Plan};

/// The answer of one window of one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The index of the limit in the rules.
    pub limit: u32,
    /// Which of the limit's `rates`, counted from 0.
    pub window: u32,
    /// The numbers that held; `None` if the limit refused without asking the store.
    pub numbers: Option<Numbers>,
    /// What a request costs.
    pub cost: u64,
    /// What came out.
    pub decision: Decision,
    /// Whether the limit may refuse; if not, it is in shadow.
    pub enforced: bool,
    /// The fingerprint of the bucket, which tells ids apart and tells none; `None` if no bucket was asked.
    pub fingerprint: Option<u128>,
}

impl Answer {
    /// The numbers that held, unless only the user's script knows them.
    pub fn counted_numbers(&self) -> Option<&Numbers> {
        self.numbers.as_ref().filter(|numbers| !numbers.is_script())
    }

    pub fn is_script(&self) -> bool {
        self.numbers.as_ref().is_some_and(Numbers::is_script)
    }

    /// Whether the cost was not there, be it refused for that or not.
    pub fn is_short(&self) -> bool {
        let unspent = self.decision.outcome == Outcome::Unchanged && self.decision.retry_after != Some(Micros(0));
        unspent || self.decision.is_denied()
    }

    /// Whether a limit in shadow would have refused the request.
    pub fn would_deny(&self) -> bool {
        !self.enforced && self.is_short()
    }
}

/// What becomes of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It passes.
    Allowed,
    /// A limit refuses it: 429.
    Denied,
    /// The store gave no answer and a limit fails closed: 503.
    Unavailable,
    /// Rejected because too many requests are waiting for the store: 503, whatever `on_store_error` says.
    Overloaded,
}

/// The answer for one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What becomes of it.
    pub standing: Standing,
    /// What each limit says, in the order of the rules.
    pub answers: Vec<Answer>,
    /// The index of the answer that binds, among the enforced ones.
    pub binding: Option<usize>,
    /// Limits that the store gave no answer for, and what became of the request by each.
    pub unanswered: Vec<Unanswered>,
    /// What some limits say beside their answers, by the index of the limit.
    pub details: Vec<(u32, Detail)>,
}

/// A limit that the store gave no answer for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unanswered {
    /// The index of the limit in the rules.
    pub limit: u32,
    /// Whether the request is refused for it.
    pub refuses: bool,
}

impl Verdict {
    /// The verdict when the store decided the charges of a plan.
    pub fn decided(plan: &Plan, decisions: &Decisions) -> Self {
        let limit = |place: usize| plan.origins.get(place).map(|origin| origin.limit);
        let details = decisions.details.iter().filter_map(|(place, detail)| Some((limit(*place)?, detail.clone())));
        let details = details.collect();
        let charged = (0..).zip(plan.origins.iter().zip(&plan.charges)).zip(decisions);
        let answers = charged.map(|((place, (origin, charge)), decision)| {
            let ChargeOrigin { limit, window, enforced } = *origin;
            let numbers = Some(charge.numbers_by(decisions.detail(place)).clone());
            let fingerprint = Some(charge.bucket.fingerprint);
            Answer { limit, window, numbers, cost: charge.cost, decision: *decision, enforced, fingerprint }
        });
        Self { details, ..Self::of(&plan.denials, answers.collect()) }
    }

    /// The verdict when a limit of the plan refuses without asking the store: nothing is charged.
    pub fn refused(plan: &Plan) -> Self {
        Self::of(&plan.denials, Vec::new())
    }

    /// The verdict when the store gave no answer for some limits; the others were decided elsewhere.
    #[must_use]
    pub fn unanswered(mut self, unanswered: Vec<Unanswered>) -> Self {
        if unanswered.iter().any(|limit| limit.refuses) {
            self.standing = Standing::Unavailable;
        }
        self.unanswered = unanswered;
        self
    }

    /// The verdict when too many requests are waiting for the store; `unanswered` are the limits it was not asked about.
    #[must_use]
    pub fn overloaded(self, unanswered: Vec<Unanswered>) -> Self {
        Self { standing: Standing::Overloaded, unanswered, ..self }
    }

    /// The verdict of these answers, and of limits that refuse without asking the store.
    pub(crate) fn of(refused: &[LimitDenial], mut answers: Vec<Answer>) -> Self {
        answers.extend(refused.iter().map(|refused| Answer {
            limit: refused.limit,
            window: 0,
            numbers: None,
            cost: 1,
            decision: refused.reason.decision(),
            enforced: refused.enforced,
            fingerprint: None,
        }));
        answers.sort_by_key(|answer| (answer.limit, answer.window));
        let enforced = answers.iter().enumerate().filter(|(_, answer)| answer.enforced);
        let binding = enforced.max_by(|(_, a), (_, b)| a.decision.strictness(&b.decision)).map(|(place, _)| place);
        let denied = binding.and_then(|place| answers.get(place)).is_some_and(|answer| answer.decision.is_denied());
        let standing = if denied { Standing::Denied } else { Standing::Allowed };
        Self { standing, answers, binding, unanswered: Vec::new(), details: Vec::new() }
    }

    /// How a limit with `elevated` stands.
    pub fn elevation(&self, limit: u32) -> Option<Elevation> {
        self.details.iter().filter(|(of, _)| *of == limit).find_map(|(_, detail)| detail.elevation())
    }

    /// Whether the request passes.
    pub fn is_allowed(&self) -> bool {
        self.standing == Standing::Allowed
    }

    /// The decision on a charge of the plan.
    pub fn decision(&self, origin: ChargeOrigin) -> Option<Decision> {
        let of_charge = |answer: &&Answer| (answer.limit, answer.window) == (origin.limit, origin.window);
        self.answers.iter().find(of_charge).map(|answer| answer.decision)
    }

    /// The answer that binds.
    pub fn binding(&self) -> Option<&Answer> {
        self.answers.get(self.binding?)
    }

    /// The enforced answers that refuse the request.
    pub fn violated(&self) -> impl Iterator<Item = &Answer> {
        self.answers.iter().filter(|answer| answer.enforced && answer.decision.is_denied())
    }
}

impl DenialReason {
    /// What it comes to.
    pub const fn decision(self) -> Decision {
        match self {
            Self::Deny | Self::Missing | Self::Malformed => Decision::never(),
            Self::Blocked(left) => Decision::later(left),
        }
    }
}

impl Plan {
    /// Whether a limit refuses the request without asking the store.
    pub fn is_denied(&self) -> bool {
        self.denials.iter().any(|denial| denial.enforced)
    }

    /// Why a limit refused without asking the store.
    pub fn reason(&self, limit: u32) -> Option<DenialReason> {
        self.denials.iter().find(|denial| denial.limit == limit).map(|denial| denial.reason)
    }
}
