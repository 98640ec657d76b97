//! Terms: the numbers and conditions that a limit has for one id at the moment. All code that charges, inspects, settles or explains a
//! bucket gets its terms here, and its charges from them.

use std::sync::Arc;

use crate::engine::algorithms::charge::{Bucket, Charge, ChargeOrigin, Elevated, Input, Mode, NUMBERS_OF_THE_CALL};
use crate::engine::algorithms::delay::Delay;
use crate::engine::algorithms::lease::LeaseTerms;
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::numbers::Numbers;
use crate::engine::charging::call_numbers::CallNumbers;
use crate::engine::charging::plan::{DenialReason, Plan};
use crate::engine::limit::allowance::Allowance;
use crate::engine::limit::blocks::Blocks;
use crate::engine::limit::candidate::CandidateSet;
use crate::engine::limit::identity::{IdError, Identity, describe, readable};
use crate::engine::limit::overrides::{Override, OverrideLookup};
use crate::engine::limit::request_numbers::RequestNumbersResult;
use crate::engine::limit::rules::Rules;
use crate::engine::limit::{Limit, LimitMode};
use crate::engine::request::Request;

/// The numbers and conditions that a limit has for one id at the moment.
pub(crate) struct Terms<'r> {
    /// The index of the limit.
    pub(crate) place: u32,
    pub(crate) limit: &'r Limit,
    pub(crate) allowance: &'r Allowance,
    /// The override that gives the allowance.
    pub(crate) given: Option<&'r Override>,
    pub(crate) candidates: CandidateSet<'r>,
    /// True if the limit can deny the id.
    pub(crate) enforced: bool,
    /// The time for which the id is blocked from now on, by an operator or a ban.
    pub(crate) blocked: Option<Micros>,
    bucket: Bucket,
    /// See [`Charge::changed`].
    changed: Micros,
    lease: Option<LeaseTerms>,
    /// In place of those of the allowance.
    numbers: Option<Numbers>,
}

/// The effect that the caller of a decision wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intent {
    pub mode: Mode,
    /// The cost for each limit, if it is not the limit's own.
    pub cost: Option<u64>,
    /// For limits with `drain_over_limit`: a cost of 0 asks whether anything is left.
    pub can_probe: bool,
}

impl Intent {
    /// Spends what the limits cost.
    pub const SPEND: Self = Self { mode: Mode::Spend, cost: None, can_probe: false };
}

impl<'r> Terms<'r> {
    /// The terms of the id with this bucket for the limit at `place`.
    #[inline]
    pub(crate) fn of(
        rules: &'r Rules,
        place: u32,
        limit: &'r Limit,
        mut bucket: Bucket,
        id: &OverrideLookup<'_>,
        blocks: Option<&Blocks>,
    ) -> Self {
        let blocked = blocks.and_then(|blocks| blocks.left(bucket.fingerprint, id.prefixes, id.now));
        let (given, changed) = rules.find_override(place, limit, id);
        let (allowance, candidates) = limit.allowance_for(given, &bucket.key);
        let enforced = limit.is_enforced_for(&bucket.key);
        rules.mark_reset(place, &mut bucket);
        let lease = limit.lease;
        Self { place, limit, allowance, given, candidates, enforced, blocked, bucket, changed, lease, numbers: None }
    }

    /// The terms of the id of a request. The error says which part the request lacks.
    #[inline]
    pub(crate) fn of_request(
        rules: &'r Rules,
        place: u32,
        limit: &'r Limit,
        request: &Request<'_>,
        blocks: Option<&Blocks>,
    ) -> Result<Self, IdError> {
        let Identity { bucket, prefixes } =
            rules.identify(limit, request, blocks.is_some() || rules.has_overrides(place, limit))?;
        let text = || readable(&describe(&limit.by, request));
        let id = OverrideLookup { prefixes: &prefixes, client: request.client, text: &text, now: request.now };
        Ok(Self::of(rules, place, limit, bucket, &id, blocks))
    }

    /// The terms of a limit that a request carries. The request gives the numbers.
    pub(crate) fn carried(place: u32, limit: &'r Limit, bucket: Bucket) -> Self {
        Self {
            place,
            limit,
            allowance: &limit.allowance,
            given: None,
            candidates: CandidateSet::default(),
            enforced: limit.is_enforced(),
            blocked: None,
            bucket,
            changed: NUMBERS_OF_THE_CALL,
            lease: None,
            numbers: None,
        }
    }

    /// Puts another bucket in the place of the id's.
    pub(crate) fn with_bucket(self, bucket: Bucket) -> Self {
        Self { bucket, ..self }
    }

    /// The allowance for a request, which may bring its numbers.
    pub(crate) fn allowance_of(&self, request: &Request<'_>) -> Allowance {
        let numbers = self.request_numbers(request).and_then(|(numbers, _)| numbers);
        numbers.map_or_else(|| self.allowance.clone(), |numbers| Allowance::Windows([numbers].into()))
    }

    /// The numbers that a request brings, if the limit has such. An override of the id precedes them.
    pub(crate) fn request_numbers(&self, request: &Request<'_>) -> Option<(Option<Numbers>, RequestNumbersResult)> {
        let given = self.limit.request_numbers.as_deref().filter(|_| self.given.is_none())?;
        Some(given.read(self.allowance.windows()?.first()?, request))
    }

    /// Puts numbers that the request brings in the place of the limit's. They have no candidates.
    pub(crate) fn with_numbers(self, numbers: Option<Numbers>) -> Self {
        if numbers.is_none() {
            return self;
        }
        Self { numbers, changed: NUMBERS_OF_THE_CALL, candidates: CandidateSet::default(), ..self }
    }

    /// The mode of a charge for a caller's mode: a report may take what is left.
    pub(crate) fn mode(&self, mode: Mode) -> Mode {
        if mode == Mode::SpendOnly && self.limit.drain_over_limit { Mode::SpendUpTo } else { mode }
    }

    /// Adds a charge for each window of the allowance, and for each of the candidates. A check decides no candidate.
    pub(crate) fn charge(mut self, plan: &mut Plan, cost: u64, mode: Mode) {
        if mode == Mode::Check {
            self.candidates = CandidateSet::default();
        }
        self.charge_all(plan, cost, mode);
    }

    /// Adds a check of cost 0, which asks for the state of the bucket, for each window of the allowance and of the candidates.
    pub(crate) fn inspect(self, plan: &mut Plan) {
        self.charge_all(plan, 0, Mode::Check);
    }

    /// The charges that forget the id's strikes and bans, if the limit bans.
    pub(crate) fn forget_bans(&self) -> Vec<Charge> {
        self.limit.ban.as_deref().map(|ban| ban.forget(&self.bucket)).unwrap_or_default()
    }

    fn charge_all(mut self, plan: &mut Plan, cost: u64, mode: Mode) {
        if let Some(numbers) = self.numbers.take() {
            self.add_charges(plan, &[numbers], None, cost, mode);
            return;
        }
        let allowance = self.allowance;
        if let Some(windows) = allowance.windows() {
            self.add_charges(plan, windows, allowance.elevated(), cost, mode);
        }
    }

    /// Adds a charge for each window of the numbers that a call brings. They have no candidates, and no gateway leases them.
    pub(crate) fn charge_by_call(
        self,
        plan: &mut Plan,
        numbers: &CallNumbers,
        cost: u64,
        mode: Mode,
    ) -> Result<(), String> {
        let windows = numbers.windows(self.limit, self.allowance)?;
        let elevated = numbers.elevated(self.allowance);
        let terms = Self { changed: NUMBERS_OF_THE_CALL, candidates: CandidateSet::default(), lease: None, ..self };
        terms.add_charges(plan, &windows, elevated, cost, mode);
        Ok(())
    }

    /// Adds a charge for each of these windows, for each of the candidates, and for the strike of a denial.
    pub(crate) fn add_charges(
        self,
        plan: &mut Plan,
        windows: &[Numbers],
        elevated: Option<&Arc<Elevated>>,
        cost: u64,
        mode: Mode,
    ) {
        let first = plan.charges.len();
        let mut origin = ChargeOrigin::new(self.place, self.enforced);
        if mode == Mode::SpendOnly {
            origin.group = u32::MAX - u32::try_from(first).unwrap_or_default();
        }
        // A check changes nothing.
        let ban = self.limit.ban.as_deref().filter(|_| mode.can_deny() && mode != Mode::Check);
        let beside = (ban.is_some() || !self.candidates.is_empty()).then(|| self.bucket.clone());
        plan.add_windows(windows, self.bucket, cost, mode, origin);
        if let (Some(elevated), Some(charge)) = (elevated, plan.charges.get_mut(first)) {
            charge.input = Some(Box::new(Input::Elevated(elevated.clone())));
        }
        if let Some(bucket) = &beside {
            plan.add_candidates(self.candidates, bucket, cost, mode, origin);
        }
        let delay = self.limit.delay.map(Delay::new);
        for charge in plan.charges.iter_mut().skip(first) {
            charge.changed = self.changed;
            // Elevated numbers have neither.
            if charge.input.is_none() {
                charge.lease = self.lease;
                charge.input = delay.map(|delay| Box::new(Input::Delay(delay)));
            }
        }
        if let (Some(ban), Some(bucket)) = (ban, beside) {
            plan.charges.push(ban.strike(bucket, origin));
        }
    }
}

impl Rules {
    /// The terms of the limits with `scope: all` that do not cover a request, but know its id. An exempt request has none.
    pub(crate) fn terms_elsewhere<'a>(
        &'a self,
        request: &'a Request<'_>,
        blocks: Option<&'a Blocks>,
    ) -> impl Iterator<Item = Terms<'a>> {
        let limits =
            (0..).zip(self.limits()).filter(|(_, limit)| limit.bans_from_all() && limit.mode != LimitMode::Off);
        let others = limits
            .filter(|(place, limit)| limit.conditions.check(request).is_err() && !self.is_exempt(*place, request));
        others.filter_map(move |(place, limit)| Terms::of_request(self, place, limit, request, blocks).ok())
    }

    /// Those limits that deny the request for a ban or a block of its id, and the time left of it.
    pub(crate) fn bans_elsewhere(&self, request: &Request<'_>, blocks: &Blocks) -> Vec<(u32, Micros)> {
        if !self.has_bans_from_all {
            return Vec::new();
        }
        let enforced = self.terms_elsewhere(request, Some(blocks)).filter(|terms| terms.enforced);
        enforced.filter_map(|terms| terms.blocked.map(|left| (terms.place, left))).collect()
    }

    /// Those limits, and the fingerprints of the id's strikes there.
    pub fn strikes_elsewhere(&self, request: &Request<'_>) -> Vec<(u32, u128)> {
        if !self.has_bans_from_all {
            return Vec::new();
        }
        let strikes = |terms: Terms<'_>| {
            let ban = terms.limit.ban.as_deref()?;
            let origin = ChargeOrigin::new(terms.place, terms.enforced);
            Some((terms.place, ban.strike(terms.bucket, origin).bucket.fingerprint))
        };
        self.terms_elsewhere(request, None).filter(|terms| terms.enforced).filter_map(strikes).collect()
    }
}

impl Plan {
    /// Lets the charges of `limit`, which begin at `first`, ask whether anything is left if they cost nothing and usage is
    /// reported to the limit afterwards.
    pub fn ask(&mut self, first: usize, limit: &Limit) {
        // The settlement takes what a response costs, and the check before it has a cost.
        if limit.drain_over_limit && limit.response_cost.is_none() {
            self.charges.iter_mut().skip(first).for_each(Charge::look_for_one);
        }
    }

    /// Notes what is decided without the store. Returns whether there is something to charge.
    pub(crate) fn admit(&mut self, terms: &Terms<'_>, mode: Mode) -> bool {
        let mut deny = |reason| {
            if mode.can_deny() {
                self.deny(terms.place, terms.enforced, reason);
            }
            false
        };
        match terms.allowance {
            _ if terms.blocked.is_some() => deny(DenialReason::Blocked(terms.blocked.unwrap_or_default())),
            Allowance::Deny => deny(DenialReason::Deny),
            Allowance::Unlimited => {
                self.unlimited.push(terms.place);
                false
            }
            // Workers process every entry, so a limit in shadow must not add any.
            Allowance::Windows(_) if terms.limit.queue.is_some() => terms.enforced,
            Allowance::Disabled | Allowance::Windows(_) | Allowance::Elevated(_) => true,
        }
    }
}
