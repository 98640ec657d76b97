//! Decides requests as the limiter does, with the memory store and the log's clock.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use smallvec::SmallVec;

use super::requests::{Asked, Side};
use super::slots::Slots;
use crate::engine::algorithms::charge::Charge;
use crate::engine::algorithms::decision::{Decision, Decisions};
use crate::engine::algorithms::micros::Micros;
use crate::engine::deciding::verdict::{Standing, Verdict};
use crate::engine::deciding::{Decided, Deciding};
use crate::engine::limit::rules::Rules;
use crate::store::Batch;
use crate::store::memory::{LimitKeys, MemoryStore};

/// The outcome of a request at one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LimitOutcome {
    pub(super) limit: u32,
    /// The fingerprint of the id; `None` if the request has none.
    pub(super) id: Option<u128>,
    /// It denies the request, or would if it were enforced.
    pub(super) is_denied: bool,
    pub(super) is_enforced: bool,
    /// The index of its first charge.
    pub(super) charge: Option<usize>,
    /// Whether the candidate of the limit would deny the request; `None` if it was not decided beside the limit's numbers.
    pub(super) candidate_denies: Option<bool>,
    /// The time that the request waits for the limit, or would if it were enforced; 0 if it is denied.
    pub(super) delay: Micros,
}

/// Decides the requests of one side in the order of arrival.
pub(super) struct Replay {
    store: MemoryStore,
    effective_from: Micros,
    slots: Slots,
    /// The outcomes of the last request, in the order of the plan.
    pub(super) outcomes: SmallVec<[LimitOutcome; 4]>,
    /// Two limits have the same bucket.
    pub(super) undecided: u64,
}

impl Replay {
    pub(super) fn new(side: &Side, max_keys: usize) -> Self {
        let (store, effective_from) = (MemoryStore::new(max_keys), side.rules.effective_from);
        store.set_limits(&LimitKeys::of(&side.rules, |_| Arc::<AtomicU64>::default()), effective_from);
        Self { store, effective_from, slots: Slots::default(), outcomes: SmallVec::new(), undecided: 0 }
    }

    /// Decides a request. Returns true if it is denied.
    pub(super) fn decide(&mut self, rules: &Rules, now: Micros, ends: Option<Micros>, asked: &mut Asked) -> bool {
        self.slots.advance(&self.store, self.effective_from, now);
        let mut deciding = Deciding::new(std::mem::take(&mut asked.plan));
        if deciding.round().is_some() {
            self.slots.name(&mut deciding.plan.charges);
        }
        if let Some([charges, reported]) = deciding.round() {
            let batch = |charges| Batch { charges, effective_from: self.effective_from, now };
            // Most requests report nothing.
            let decided = match reported {
                [] => self.store.decide(&batch(charges)),
                reported => self.store.decide_in_turn(&[batch(charges), batch(reported)]).map(Decisions::joined),
            };
            match decided {
                Ok(decisions) => deciding.answered(decisions),
                Err(_) => self.undecided += 1,
            }
        }
        self.outcomes.clear();
        let plan = &deciding.plan;
        let has_candidates = plan.charges.iter().any(|charge| charge.origin.is_candidate());
        let is_call = plan.joint.is_some();
        // Most requests need no verdict, only the outcomes of their limits.
        let needs_verdict = is_call || has_candidates || plan.is_denied();
        let decided = needs_verdict.then(|| deciding.conclude(rules));
        asked.plan = deciding.plan;
        let is_denied = match &decided {
            Some(decided) if is_call => self.sum_up_call(asked, &decided.verdict),
            _ => self.sum_up(asked, &deciding.decisions),
        };
        let (plan, decisions) = (&asked.plan, &deciding.decisions);
        if let (false, Some(ends)) = (is_denied, ends) {
            match if rules.has_delays() { self.wait() } else { Micros(0) } {
                Micros(0) => self.slots.hold(&plan.charges, decisions, now, ends),
                wait => {
                    let times = [self.effective_from, now, now.after(wait), ends.after(wait)];
                    self.slots.hold_later(&plan.charges, decisions, &self.store, times);
                }
            }
        }
        if let Some(Decided { verdict, due, .. }) = decided {
            for (limit, is_denied) in verdict.candidate_decisions() {
                let outcomes = self.outcomes.iter_mut().filter(|outcome| outcome.limit == limit);
                outcomes.for_each(|outcome| outcome.candidate_denies = Some(is_denied));
            }
            if !due.is_empty() {
                // The call cannot fail: its buckets were in the plan.
                let _ = self.store.decide(&Batch { charges: &due, effective_from: self.effective_from, now });
            }
        }
        is_denied
    }

    /// Returns how long the last request waits if it is not denied.
    pub(super) fn wait(&self) -> Micros {
        let enforced = self.outcomes.iter().filter(|outcome| outcome.is_enforced);
        enforced.map(|outcome| outcome.delay).max().unwrap_or_default()
    }

    /// Buckets that were charged beyond the bound on their number.
    pub(super) fn overflowed(&self) -> u64 {
        self.store.usage().overflowed
    }

    fn sum_up(&mut self, asked: &Asked, decisions: &Decisions) -> bool {
        let mut is_denied = false;
        let charges = asked.plan.charges.iter().enumerate();
        for (place, charge) in charges.filter(|(_, charge)| !charge.origin.is_candidate()) {
            let origin = charge.origin;
            let decision = decisions.get(place);
            let denies = decision.is_some_and(Decision::is_short);
            is_denied |= denies && origin.is_enforced();
            let delay = decision.map(Decision::delay).unwrap_or_default();
            match self.outcomes.last_mut().filter(|last| last.limit == origin.limit) {
                Some(last) => {
                    last.is_denied |= denies;
                    last.delay = last.delay.max(delay);
                }
                None => self.outcomes.push(LimitOutcome {
                    limit: origin.limit,
                    id: Some(charge.bucket.fingerprint),
                    is_denied: denies,
                    is_enforced: origin.is_enforced(),
                    charge: Some(place),
                    candidate_denies: None,
                    delay,
                }),
            }
        }
        let id = |limit| asked.uncharged_id(limit);
        let without = |limit, is_denied, is_enforced| LimitOutcome {
            limit,
            id: id(limit),
            is_denied,
            is_enforced,
            charge: None,
            candidate_denies: None,
            delay: Micros(0),
        };
        for denial in &asked.plan.denials {
            is_denied |= denial.enforced;
            self.outcomes.push(without(denial.limit, true, denial.enforced));
        }
        self.outcomes.extend(asked.plan.unlimited.iter().map(|limit| without(*limit, false, true)));
        is_denied
    }

    /// The outcomes of a call with several descriptors. A limit has that of its strictest charge.
    fn sum_up_call(&mut self, asked: &Asked, verdict: &Verdict) -> bool {
        for answer in &verdict.answers {
            let is_denied = answer.is_short();
            let delay = answer.decision.delay();
            if let Some(last) = self.outcomes.last_mut().filter(|last| last.limit == answer.limit) {
                last.is_denied |= is_denied;
                last.delay = last.delay.max(delay);
                continue;
            }
            let is_own = |charge: &Charge| charge.origin.limit == answer.limit && !charge.origin.is_candidate();
            self.outcomes.push(LimitOutcome {
                limit: answer.limit,
                id: answer.fingerprint.or_else(|| asked.uncharged_id(answer.limit)),
                is_denied,
                is_enforced: answer.enforced,
                charge: asked.plan.charges.iter().position(is_own),
                candidate_denies: None,
                delay,
            });
        }
        for limit in &asked.plan.unlimited {
            self.outcomes.push(LimitOutcome {
                limit: *limit,
                id: asked.uncharged_id(*limit),
                is_denied: false,
                is_enforced: true,
                charge: None,
                candidate_denies: None,
                delay: Micros(0),
            });
        }
        verdict.standing == Standing::Denied
    }
}
