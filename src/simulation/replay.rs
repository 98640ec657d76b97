//! Decides requests as the limiter does, with the memory store and the log's clock.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use smallvec::SmallVec;

use super::requests::{Asked, Side};
use super::settlements::{LoggedResponse, Settlements};
use super::slots::Slots;
use crate::engine::algorithms::charge::Charge;
use crate::engine::algorithms::decision::{Decision, Decisions};
use crate::engine::algorithms::micros::Micros;
use crate::engine::charging::plan::{DenialReason, LimitDenial, Plan};
use crate::engine::deciding::candidate::CandidateDecision;
use crate::engine::deciding::verdict::{Verdict, VerdictKind};
use crate::engine::deciding::{Decided, Deciding};
use crate::engine::limit::ban::NewBan;
use crate::engine::limit::candidate::MOST_CANDIDATES;
use crate::engine::limit::rules::Rules;
use crate::engine::limit::warning::is_first;
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
    /// By candidate of the limit: true if it would deny the request; `None` if it was not decided beside the id's numbers.
    pub(super) candidates_deny: [Option<bool>; MOST_CANDIDATES],
    /// The time that the request waits for the limit, or would if it were enforced; 0 if it is denied.
    pub(super) delay: Micros,
}

/// Decides the requests of one side in the order of arrival.
pub(super) struct Replay {
    store: MemoryStore,
    effective_from: Micros,
    slots: Slots,
    settlements: Settlements,
    /// The ends of bans, by the fingerprint of the id's strikes.
    banned: HashMap<u128, Micros>,
    /// The limits that the last request gave a reason to ban or to warn: one entry for each ban, also in shadow, and each warning.
    pub(super) bans: SmallVec<[u32; 1]>,
    pub(super) warnings: SmallVec<[u32; 1]>,
    /// The outcomes of the last request, in the order of the plan.
    pub(super) outcomes: SmallVec<[LimitOutcome; 4]>,
    /// Two limits have the same bucket.
    pub(super) undecided: u64,
}

impl Replay {
    pub(super) fn new(side: &Side, max_keys: usize) -> Self {
        let (store, effective_from) = (MemoryStore::new(max_keys), side.rules.effective_from);
        store.set_limits(&LimitKeys::of(&side.rules, |_| Arc::<AtomicU64>::default()), effective_from);
        Self {
            store,
            effective_from,
            slots: Slots::default(),
            settlements: Settlements::new(max_keys),
            banned: HashMap::new(),
            bans: SmallVec::new(),
            warnings: SmallVec::new(),
            outcomes: SmallVec::new(),
            undecided: 0,
        }
    }

    /// Decides a request. Returns true if it is denied.
    pub(super) fn decide(
        &mut self,
        rules: &Rules,
        now: Micros,
        (ends, response): (Option<Micros>, LoggedResponse),
        asked: &mut Asked,
    ) -> bool {
        self.slots.advance(&self.store, self.effective_from, now);
        self.undecided += self.settlements.advance(&self.store, self.effective_from, now);
        self.deny_banned(asked, now);
        let deciding = &mut asked.deciding;
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
        self.bans.clear();
        self.warnings.clear();
        let plan = &deciding.plan;
        let has_more = plan.charges.iter().any(|charge| charge.origin.is_beside());
        let is_call = plan.joint.is_some();
        // Most requests need no verdict, only the outcomes of their limits.
        let needs_verdict = is_call || has_more || plan.is_denied() || !plan.unsettled.is_empty() || rules.has_warnings;
        let decided = needs_verdict.then(|| deciding.conclude(rules));
        let is_denied = match &decided {
            Some(decided) if is_call => self.sum_up_verdict(asked, &decided.verdict),
            _ => self.sum_up(asked),
        };
        let Deciding { plan, decisions, .. } = &asked.deciding;
        if let (false, Some(ends)) = (is_denied, ends) {
            match if rules.has_delays() { self.wait() } else { Micros(0) } {
                Micros(0) => self.slots.hold(&plan.charges, decisions, now, ends),
                wait => {
                    let times = [self.effective_from, now, now.after(wait), ends.after(wait)];
                    self.slots.hold_later(&plan.charges, decisions, &self.store, times);
                }
            }
        }
        if let Some(Decided { verdict, due, bans, .. }) = decided {
            self.ban(rules, &bans, now);
            if rules.has_warnings {
                self.warn(rules, &asked.deciding.plan, &verdict, now);
            }
            if !is_denied && !asked.deciding.plan.unsettled.is_empty() {
                let Deciding { plan, decisions, .. } = &asked.deciding;
                let owed = plan.pending_settlements(rules, decisions, |origin| verdict.decision(origin));
                let ends = ends.unwrap_or(now).after(self.wait());
                self.settlements.add(&owed, response, ends, now);
            }
            self.note_candidates(&verdict);
            if !due.is_empty() {
                let batch = Batch { charges: &due, effective_from: self.effective_from, now };
                self.undecided += u64::from(self.store.decide(&batch).is_err());
            }
        }
        is_denied
    }

    fn note_candidates(&mut self, verdict: &Verdict) {
        for CandidateDecision { limit, candidate, is_denied, .. } in verdict.candidate_decisions() {
            for outcome in self.outcomes.iter_mut().filter(|outcome| outcome.limit == limit) {
                if let Some(denies) = outcome.candidates_deny.get_mut(usize::from(candidate)) {
                    *denies = Some(is_denied);
                }
            }
        }
    }

    /// Notes bans, whose lengths depend on earlier ones.
    fn ban(&mut self, rules: &Rules, bans: &[NewBan], now: Micros) {
        for ban in bans {
            let batch = |charges| Batch { charges, effective_from: self.effective_from, now };
            let claim = ban.claim(rules);
            let claimed = self.store.decide(&batch(&claim)).unwrap_or_default();
            let Some((block, counting)) = ban.block(rules, &claimed, now) else { continue };
            for charge in &counting {
                let _ = self.store.decide(&batch(std::slice::from_ref(charge)));
            }
            self.bans.push(ban.limit);
            if ban.is_enforced {
                if self.banned.len() == self.banned.capacity() {
                    self.banned.retain(|_, until| *until > now);
                }
                self.banned.insert(ban.fingerprint(), block.until);
            }
        }
    }

    /// Notes the warnings that no earlier request of the id has brought.
    fn warn(&mut self, rules: &Rules, plan: &Plan, verdict: &Verdict, now: Micros) {
        for answer in &verdict.answers {
            let Some(limit) = rules.limit(answer.limit) else { continue };
            let Some(claims) = answer.warning(limit, plan) else { continue };
            let batch = Batch { charges: &claims, effective_from: self.effective_from, now };
            if self.store.decide(&batch).is_ok_and(|decided| is_first(&decided)) {
                self.warnings.push(answer.limit);
            }
        }
    }

    /// Lets limits that have banned the request's id deny it, as they do live without asking the store.
    fn deny_banned(&self, asked: &mut Asked, now: Micros) {
        if self.banned.is_empty() {
            return;
        }
        let plan = &mut asked.deciding.plan;
        let left = |id: u128| self.banned.get(&id).filter(|until| **until > now).map(|until| until.since(now));
        let strikes = plan.charges.iter().filter(|charge| charge.origin.is_strike());
        let covered = strikes.map(|strike| (strike.origin.limit, strike.bucket.fingerprint));
        let denial =
            |(limit, id)| Some(LimitDenial { limit, enforced: true, reason: DenialReason::Blocked(left(id)?) });
        let banned: SmallVec<[LimitDenial; 1]> =
            covered.chain(asked.bannable.iter().copied()).filter_map(denial).collect();
        plan.retain(|charge| banned.iter().all(|denial| denial.limit != charge.origin.limit));
        plan.denials.extend(banned);
    }

    /// Returns how long the last request waits if it is not denied.
    pub(super) fn wait(&self) -> Micros {
        let enforced = self.outcomes.iter().filter(|outcome| outcome.is_enforced);
        enforced.map(|outcome| outcome.delay).max().unwrap_or_default()
    }

    /// Costs that were settled before their responses ended.
    pub(super) const fn settled_early(&self) -> u64 {
        self.settlements.early
    }

    /// Buckets that were charged beyond the bound on their number.
    pub(super) fn overflowed(&self) -> u64 {
        self.store.usage().overflowed
    }

    /// The same as [`Self::sum_up_verdict`] for a single request, without a verdict, which would take a tenth of the time.
    fn sum_up(&mut self, asked: &Asked) -> bool {
        let Deciding { plan, decisions, .. } = &asked.deciding;
        let mut is_denied = false;
        let charges = plan.charges.iter().enumerate();
        for (place, charge) in charges.filter(|(_, charge)| !charge.origin.is_beside()) {
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
                    candidates_deny: [None; MOST_CANDIDATES],
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
            candidates_deny: [None; MOST_CANDIDATES],
            delay: Micros(0),
        };
        for denial in &plan.denials {
            is_denied |= denial.enforced;
            self.outcomes.push(without(denial.limit, true, denial.enforced));
        }
        self.outcomes.extend(plan.unlimited.iter().map(|limit| without(*limit, false, true)));
        is_denied
    }

    /// The outcomes by a verdict. A limit has that of its strictest charge.
    fn sum_up_verdict(&mut self, asked: &Asked, verdict: &Verdict) -> bool {
        for answer in &verdict.answers {
            let is_denied = answer.is_short();
            let delay = answer.decision.delay();
            if let Some(last) = self.outcomes.last_mut().filter(|last| last.limit == answer.limit) {
                last.is_denied |= is_denied;
                last.delay = last.delay.max(delay);
                continue;
            }
            let is_own = |charge: &Charge| charge.origin.limit == answer.limit && !charge.origin.is_beside();
            self.outcomes.push(LimitOutcome {
                limit: answer.limit,
                id: answer.fingerprint.or_else(|| asked.uncharged_id(answer.limit)),
                is_denied,
                is_enforced: answer.is_enforced(),
                charge: asked.deciding.plan.charges.iter().position(is_own),
                candidates_deny: [None; MOST_CANDIDATES],
                delay,
            });
        }
        for limit in &asked.deciding.plan.unlimited {
            self.outcomes.push(LimitOutcome {
                limit: *limit,
                id: asked.uncharged_id(*limit),
                is_denied: false,
                is_enforced: true,
                charge: None,
                candidates_deny: [None; MOST_CANDIDATES],
                delay: Micros(0),
            });
        }
        verdict.kind == VerdictKind::Denied
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::subsequence;

    use super::*;
    use crate::engine::algorithms::numbers::Numbers;
    use crate::engine::charging::descriptors::ChargedAfterwards;
    use crate::engine::charging::terms::Intent;
    use crate::engine::deciding::{DecisionSubject, Notices};
    use crate::engine::limit::allowance::Allowance;
    use crate::engine::limit::ban::{Ban, BanScope};
    use crate::engine::limit::candidate::Candidate;
    use crate::engine::limit::fingerprint::Fingerprinter;
    use crate::engine::limit::matching::Match;
    use crate::engine::limit::{Cost, Limit, LimitMode};
    use crate::engine::request::{Request, sample};
    use crate::message::headers::Headers;

    /// A limit of each kind that outcomes tell apart.
    fn limit(name: &str) -> Limit {
        let even = |burst| Numbers::new(burst, burst, 5_000_000_000).unwrap();
        let windows = |bursts: &[u64]| Allowance::Windows(bursts.iter().copied().map(even).collect());
        let puts = || Match { methods: vec!["PUT".to_owned()], ..Match::default() };
        let counting = || Allowance::Windows([Numbers::sliding_window(4, 5_000_000_000, true).unwrap()].into());
        let limit = Limit { by: Vec::new(), allowance: windows(&[5]), ..Limit::new(name) };
        match name {
            "Rates" => Limit { allowance: windows(&[3, 6]), cost: Cost::Fixed(2), ..limit },
            "Shadow" => Limit { allowance: windows(&[2, 4]), mode: LimitMode::Shadow, ..limit },
            "Delayed" => Limit { allowance: windows(&[3]), delay: Some(Micros(4_000_000)), ..limit },
            "Counting" => Limit { allowance: counting(), ..limit },
            "Free" => Limit { allowance: Allowance::Unlimited, ..limit },
            "Shut" => Limit { conditions: puts(), allowance: Allowance::Deny, ..limit },
            "Closing" => Limit { conditions: puts(), allowance: Allowance::Deny, mode: LimitMode::Shadow, ..limit },
            "Banning" | "Barring" => {
                let strikes = Numbers::sliding_log(2, 3_000_000_000).unwrap();
                let scope = if name == "Banning" { BanScope::Limit } else { BanScope::All };
                let ban = Ban::new(strikes, Micros(2_000_000), None, scope).unwrap();
                Limit { conditions: puts(), allowance: windows(&[2]), ban: Some(Box::new(ban)), ..limit }
            }
            "Tried" => {
                Limit { candidates: vec![Candidate { name: None, allowance: windows(&[2]), enforce_for: 0 }], ..limit }
            }
            _ => limit,
        }
    }

    proptest! {
        #[test]
        fn outcomes_without_a_verdict_are_those_of_the_verdict(
            names in subsequence(
                vec!["Plain", "Rates", "Shadow", "Delayed", "Counting", "Free", "Shut", "Closing", "Tried", "Banning", "Barring"], 1..=11,
            ).prop_shuffle(),
            asks in vec((0..2_000_000u64, any::<bool>()), 1..30),
        ) {
            let limits = names.iter().map(|name| limit(name)).collect();
            let rules = Rules::new(limits, Fingerprinter::new((1, 2)), Micros(0), Vec::new());
            let afterwards = ChargedAfterwards::new(&rules);
            let mut replay = Replay {
                store: MemoryStore::new(100),
                effective_from: Micros(0),
                slots: Slots::default(),
                settlements: Settlements::new(100),
                banned: HashMap::new(),
                bans: SmallVec::new(),
                warnings: SmallVec::new(),
                outcomes: SmallVec::new(),
                undecided: 0,
            };
            let (mut now, headers) = (Micros(1_000_000_000_000), Headers::new());
            for (later, is_put) in asks {
                now = now.after(Micros(later));
                let request = Request { method: if is_put { "PUT" } else { "GET" }, now, ..sample(&headers) };
                let notices = Notices { blocks: None, afterwards: &afterwards, can_accept: true };
                let mut asked = Asked::default();
                asked.deciding.begin(&rules, &DecisionSubject::Request(&request), &Intent::SPEND, &notices).unwrap();
                replay.decide(&rules, now, (None, LoggedResponse::default()), &mut asked);
                let verdict = asked.deciding.conclude(&rules).verdict;
                let mut sums = [false, true].map(|by_verdict| {
                    replay.outcomes.clear();
                    let is_denied =
                        if by_verdict { replay.sum_up_verdict(&asked, &verdict) } else { replay.sum_up(&asked) };
                    (is_denied, std::mem::take(&mut replay.outcomes))
                });
                // A request that is denied without the store charges no other limit, which has no say in the verdict.
                if asked.deciding.plan.is_denied() {
                    let (_, outcomes) = &mut sums[0];
                    prop_assert!(outcomes.iter().all(|outcome| outcome.charge.is_none() || !outcome.is_denied));
                    outcomes.retain(|outcome| outcome.charge.is_none());
                }
                for (_, outcomes) in &mut sums {
                    outcomes.sort_by_key(|outcome| outcome.limit);
                }
                prop_assert_eq!(&sums[0], &sums[1]);
            }
        }
    }
}
