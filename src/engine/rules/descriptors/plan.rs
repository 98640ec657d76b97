//! Several descriptors, decided together: what they ask of the store in one call, and what each of them is told.

use smallvec::SmallVec;

use super::super::blocks::Blocks;
use super::super::key::Key;
use crate::engine::algorithms::charge::{Charge, Decision, Mode, NUMBERS_OF_THE_CALL, Outcome};
use crate::message::headers::Headers;

use super::super::request::{Entry, Request};
use super::PerUnit;
use crate::engine::algorithms::numbers::{Micros, Numbers};
use crate::engine::answer::verdict::{Answer, Unanswered, Verdict};
use crate::engine::rules::rule_set::{BadCost, Plan, Planned, Refused, RefusedReason, Rules};

/// What the rate limit service is asked.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The domain.
    pub domain: &'a str,
    /// The descriptors.
    pub descriptors: &'a [Descriptor<'a>],
    /// The effect on the buckets.
    pub purpose: Purpose,
    /// The wall clock.
    pub now: Micros,
}

/// The purpose of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Decides a request and charges it.
    Decide,
    /// Decides a request and takes nothing.
    Check,
    /// Takes what a request has used, or what is left if that is less. Nobody is denied.
    Report,
}

/// A descriptor, and what it asks for.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor<'a> {
    /// Its entries, in the order of the gateway's configuration.
    pub entries: &'a [Entry<'a>],
    /// How much.
    pub hits: Hits,
    /// A limit that holds instead of those of the rules, if the rules know the domain.
    pub carried: Option<PerUnit>,
}

/// How much a descriptor asks for, in units of its limits' cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hits {
    /// To take this much; 0 asks whether anything is left.
    Take(u64),
    /// The same, said by the descriptor for itself: it may tell what was used already. A limit with `drain_over_limit`
    /// takes what is left if that is less.
    TakeOrDrain(u64),
    /// To give this much back.
    GiveBack(u64),
}

/// What all descriptors ask of the store, and who asked what.
#[derive(Debug, Default)]
pub struct Plans {
    /// Each bucket once, to be decided together.
    pub charges: Vec<Charge>,
    /// Charges of reports, taken after the others even if the request is denied.
    pub reported: Vec<Charge>,
    /// One for each descriptor, in their order.
    pub members: Vec<Member>,
    /// The charges that only look.
    looks: SmallVec<[Look; 2]>,
    /// Whether a limit denies the request without asking the store. Then only what counts denied requests is charged, and
    /// the store is asked where the other buckets stand.
    pub is_refused: bool,
}

/// A charge that looks whether tokens are there.
#[derive(Clone, Copy, Debug)]
struct Look {
    /// Its index in [`Plans::charges`].
    charge: u32,
    /// The tokens that must be there.
    wanted: u64,
    /// The index in [`Plans::reported`] of what is taken then.
    reported: Option<u32>,
}

/// What one descriptor asks.
#[derive(Debug, Default)]
pub struct Member {
    /// Its charges.
    pub asked: SmallVec<[Asked; 2]>,
    /// Limits that refuse it without asking the store.
    pub refused: SmallVec<[Refused; 1]>,
    /// Limits that let it pass without asking the store.
    pub unlimited: SmallVec<[u32; 1]>,
    /// Whether a quota covers it.
    is_quota: bool,
}

/// One charge of a descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// The index of its bucket in [`Plans::charges`], which others of the request may share.
    pub charge: u32,
    /// The limit.
    pub origin: Planned,
    /// The limit's numbers.
    pub numbers: Numbers,
    /// What this descriptor alone costs.
    pub cost: u64,
    /// The fingerprint of its bucket.
    pub fingerprint: u128,
}

/// What becomes of the request, and what each descriptor is told.
#[derive(Debug)]
pub struct Verdicts {
    /// Of all descriptors together; of a limit's several buckets only the strictest answer is in it.
    pub whole: Verdict,
    /// One for each descriptor, in their order.
    pub members: Vec<Verdict>,
}

impl Question<'_> {
    /// True if a descriptor can be denied. One that reports or gives back tells what has happened, and cannot.
    fn denies(&self, descriptor: &Descriptor<'_>) -> bool {
        self.purpose != Purpose::Report && !matches!(descriptor.hits, Hits::GiveBack(_))
    }
}

impl Rules {
    /// What the descriptors of a question ask of the store where some ids are blocked.
    pub fn plan(&self, question: &Question<'_>, blocks: Option<&Blocks>) -> Result<Plans, BadCost> {
        let headers = Headers::new();
        let mut found: SmallVec<[Plan; 2]> = SmallVec::with_capacity(question.descriptors.len());
        for descriptor in question.descriptors {
            let request = request(question, descriptor, &headers);
            found.push(match descriptor.carried.filter(|_| self.knows_domain(question.domain)) {
                Some(carried) => self.plan_carried(question.domain, descriptor, carried),
                None => self.charges_but(&request, blocks.filter(|_| question.denies(descriptor)))?,
            });
        }
        self.drop_replaced(&mut found);
        Ok(self.join(question, found))
    }

    /// The plan of a limit that the descriptor carries: a bucket for its entries and its unit.
    fn plan_carried(&self, domain: &str, descriptor: &Descriptor<'_>, carried: PerUnit) -> Plan {
        let (place, limit) = self.carried();
        let mut plan = Plan::default();
        let enforced = limit.is_enforced();
        let Ok(numbers) = carried.numbers() else {
            // A limit of 0.
            plan.refused.push(Refused { limit: place, enforced, reason: RefusedReason::Deny });
            return plan;
        };
        let mut key = Key::new(&limit.short, &self.fingerprinter());
        key.push(domain);
        key.push(carried.unit.name());
        for entry in descriptor.entries {
            key.push(entry.key);
            key.push(entry.value);
        }
        let fingerprint = key.fingerprint();
        let charge = Charge::new(key.bucket(fingerprint), numbers, 1, Mode::Spend);
        plan.charges.push(Charge { changed: NUMBERS_OF_THE_CALL, ..charge });
        plan.origins.push(Planned { limit: place, window: 0, enforced });
        plan
    }

    /// Drops the limits that a limit of the request replaces, whichever descriptor it covers.
    fn drop_replaced(&self, plans: &mut [Plan]) {
        let of = |limit: u32| self.limit(limit).and_then(|limit| limit.rule.as_deref());
        let mut replaced: SmallVec<[&str; 4]> = SmallVec::new();
        for plan in &*plans {
            for limit in limits(plan) {
                replaced.extend(of(limit).into_iter().flat_map(|rule| &rule.replaces).map(String::as_str));
            }
        }
        if replaced.is_empty() {
            return;
        }
        let stays = |limit: u32| of(limit).is_none_or(|rule| !replaced.contains(&rule.name.as_str()));
        for plan in plans {
            let mut kept = plan.origins.iter().map(|origin| stays(origin.limit));
            plan.charges.retain(|_| kept.next().unwrap_or(false));
            plan.origins.retain(|origin| stays(origin.limit));
            plan.refused.retain(|refused| stays(refused.limit));
            plan.unlimited.retain(|limit| stays(*limit));
        }
    }

    /// Puts the plans of all descriptors together.
    fn join(&self, question: &Question<'_>, found: SmallVec<[Plan; 2]>) -> Plans {
        let mut plans = Plans { members: Vec::with_capacity(found.len()), ..Plans::default() };
        // The charges that tell what was used.
        let mut reports: SmallVec<[u32; 2]> = SmallVec::new();
        for (plan, descriptor) in found.into_iter().zip(question.descriptors) {
            let is_quota = limits(&plan).any(|limit| self.is_quota(limit));
            let mut member = Member {
                is_quota,
                refused: if question.denies(descriptor) { plan.refused.into() } else { SmallVec::new() },
                unlimited: plan.unlimited.into(),
                ..Member::default()
            };
            for (mut charge, origin) in plan.charges.into_iter().zip(plan.origins) {
                let (Hits::Take(hits) | Hits::TakeOrDrain(hits) | Hits::GiveBack(hits)) = descriptor.hits;
                charge.cost = charge.cost.saturating_mul(hits);
                if matches!(descriptor.hits, Hits::GiveBack(_)) {
                    charge.mode = Mode::Refund;
                }
                let (numbers, cost, fingerprint) = (charge.numbers, charge.cost, charge.bucket.fingerprint);
                let charge = plans.add(charge);
                member.asked.push(Asked { charge, origin, numbers, cost, fingerprint });
                let says_itself = matches!(descriptor.hits, Hits::TakeOrDrain(_));
                let drains = || self.limit(origin.limit).is_some_and(|limit| limit.drain_over_limit);
                if question.purpose == Purpose::Report || says_itself && drains() {
                    reports.push(charge);
                }
            }
            plans.members.push(member);
        }
        let quotas = plans.members.iter().filter(|member| member.is_quota).count();
        if quotas > 1 {
            self.loosen_quotas(&mut plans);
        }
        plans.look(question.purpose, &reports);
        plans.is_refused = plans.members.iter().any(|member| {
            member.refused.iter().any(|refused| refused.enforced && (quotas < 2 || !self.is_quota(refused.limit)))
        });
        if plans.is_refused {
            let looks = |place: u32| plans.looks.iter().any(|look| look.charge == place);
            for (place, charge) in (0..).zip(&mut plans.charges) {
                if charge.counts_denied() && !looks(place) {
                    charge.mode = Mode::SpendOnly;
                } else {
                    (charge.cost, charge.mode) = (0, Mode::Check);
                }
            }
        }
        plans
    }

    /// Of several quotas one that is over refuses nothing, and the others are charged all the same: which of them are
    /// over is known only when the store has answered. A single quota is like any limit, and this is not for it.
    fn loosen_quotas(&self, plans: &mut Plans) {
        for asked in plans.members.iter().flat_map(|member| &member.asked) {
            if self.is_quota(asked.origin.limit)
                && let Some(charge) = plans.charges.get_mut(asked.charge as usize)
                && charge.mode == Mode::Spend
            {
                charge.mode = Mode::SpendOnly;
            }
        }
    }

    fn is_quota(&self, limit: u32) -> bool {
        self.limit(limit).and_then(|limit| limit.rule.as_deref()).is_some_and(|rule| rule.is_quota)
    }

    /// What becomes of the request. `decisions` has one for each charge, `None` where the store gave none, for limits
    /// that `unanswered` names.
    pub fn verdicts(&self, plans: &Plans, decisions: &[Option<Decision>], unanswered: Vec<Unanswered>) -> Verdicts {
        let mut members: Vec<Verdict> =
            plans.members.iter().map(|member| member.verdict(&plans.charges, decisions)).collect();
        self.settle_quotas(plans, &mut members);
        let mut answers: Vec<Answer> = members.iter().flat_map(|verdict| &verdict.answers).copied().collect();
        // Of each window the strictest answer stays.
        answers.sort_by(|a, b| {
            (a.limit, a.window).cmp(&(b.limit, b.window)).then_with(|| b.decision.strictness(&a.decision))
        });
        answers.dedup_by_key(|answer| (answer.limit, answer.window));
        Verdicts { whole: Verdict::of(&[], answers).unanswered(unanswered), members }
    }

    /// Makes the quotas that are over refuse if all are, and lets them pass if one is not.
    fn settle_quotas(&self, plans: &Plans, members: &mut [Verdict]) {
        let is_quota = |answer: &Answer| self.is_quota(answer.limit);
        let mut quotas = plans.members.iter().zip(&*members).filter(|(member, _)| member.is_quota);
        let all_over =
            quotas.all(|(_, verdict)| verdict.answers.iter().any(|answer| is_quota(answer) && answer.is_short()));
        for verdict in members {
            let mut is_changed = false;
            for answer in verdict.answers.iter_mut().filter(|answer| is_quota(answer) && answer.is_short()) {
                is_changed = true;
                if all_over {
                    answer.decision.outcome = Outcome::Denied;
                } else {
                    answer.enforced = false;
                }
            }
            if is_changed {
                *verdict = Verdict::of(&[], std::mem::take(&mut verdict.answers));
            }
        }
    }
}

impl Plans {
    /// The limits that the store is asked about, some of them several times.
    pub fn asked_limits(&self) -> impl Iterator<Item = u32> {
        self.members.iter().flat_map(|member| &member.asked).map(|asked| asked.origin.limit)
    }
}

/// The limits of a plan.
fn limits(plan: &Plan) -> impl Iterator<Item = u32> {
    let refused = plan.refused.iter().map(|refused| refused.limit);
    plan.origins.iter().map(|origin| origin.limit).chain(refused).chain(plan.unlimited.iter().copied())
}

/// The request that a descriptor is for the rules: nothing is known of it but the domain and the entries.
fn request<'a>(question: &Question<'a>, descriptor: &Descriptor<'a>, headers: &'a Headers) -> Request<'a> {
    Request {
        method: "",
        host: "",
        path: "",
        query: None,
        headers,
        client: None,
        tls_subject: None,
        domain: Some(question.domain),
        descriptor: descriptor.entries,
        now: question.now,
    }
}

impl Plans {
    /// Makes asks of 0 look whether anything is left, and reports look whether it is enough before they take it.
    fn look(&mut self, purpose: Purpose, reports: &[u32]) {
        for (place, charge) in (0..).zip(&mut self.charges) {
            let takes = matches!(charge.mode, Mode::Spend | Mode::SpendOnly) && charge.has_tokens();
            let mut wanted = charge.cost;
            let mut reported = None;
            if charge.ask() {
                wanted = 1;
            } else if takes && reports.contains(&place) {
                // More than a bucket holds changes it no further, and this much is counted exactly in Redis too.
                let most = charge.elevated().map_or(0, |elevated| elevated.numbers.burst()).max(charge.numbers.burst());
                let taken = Charge { mode: Mode::SpendUpTo, cost: wanted.min(most), ..charge.clone() };
                reported = Some(u32::try_from(self.reported.len()).unwrap_or(u32::MAX));
                self.reported.push(taken);
                charge.look();
            } else if takes && purpose == Purpose::Check {
                charge.look();
            } else {
                continue;
            }
            self.looks.push(Look { charge: place, wanted, reported });
        }
    }

    /// Has reports take from the buckets that their charges have by now.
    pub fn rebind(&mut self) {
        for look in &self.looks {
            let reported = look.reported.and_then(|place| self.reported.get_mut(place as usize));
            if let (Some(reported), Some(charge)) = (reported, self.charges.get(look.charge as usize)) {
                reported.bucket.clone_from(&charge.bucket);
            }
        }
    }

    /// The decisions of the charges, once what was reported has been taken: `decided` has one for each of
    /// [`Self::charges`] and `taken` one for each of [`Self::reported`], `None` where the store gave none.
    pub fn decisions(&self, mut decided: Vec<Option<Decision>>, taken: &[Option<Decision>]) -> Vec<Option<Decision>> {
        for look in &self.looks {
            let Some(charge) = self.charges.get(look.charge as usize) else { continue };
            let Some(Some(decision)) = decided.get_mut(look.charge as usize) else { continue };
            charge.looked(decision, look.wanted);
            if let Some(Some(taken)) = look.reported.and_then(|place| taken.get(place as usize)) {
                (decision.remaining, decision.reset_after) = (taken.remaining, taken.reset_after);
            }
        }
        decided
    }

    /// Adds a charge, or what it asks to one of the same bucket, and gives its index: a store decides each bucket once.
    fn add(&mut self, charge: Charge) -> u32 {
        let same = |known: &Charge| known.bucket.fingerprint == charge.bucket.fingerprint;
        let place = self.charges.iter().position(same).unwrap_or(self.charges.len());
        match self.charges.get_mut(place) {
            Some(known) => combine(known, &charge),
            None => self.charges.push(charge),
        }
        u32::try_from(place).unwrap_or(u32::MAX)
    }
}

/// Adds what `other` asks of a bucket to what `charge` asks of it.
fn combine(charge: &mut Charge, other: &Charge) {
    // Carried limits may differ in their numbers; the stricter ones hold for both.
    if other.numbers.burst() < charge.numbers.burst() {
        charge.numbers = other.numbers;
    }
    let takes = |charge: &Charge| charge.mode != Mode::Refund;
    (charge.cost, charge.mode) = match (takes(charge), takes(other)) {
        (true, true) | (false, false) => (charge.cost.saturating_add(other.cost), charge.mode),
        (true, false) if charge.cost < other.cost => (other.cost - charge.cost, other.mode),
        (true, false) => (charge.cost - other.cost, charge.mode),
        (false, true) if other.cost < charge.cost => (charge.cost - other.cost, charge.mode),
        (false, true) => (other.cost - charge.cost, other.mode),
    };
}

impl Member {
    fn verdict(&self, charges: &[Charge], decisions: &[Option<Decision>]) -> Verdict {
        let answer = |asked: &Asked| {
            let decision = *decisions.get(asked.charge as usize)?.as_ref()?;
            let Planned { limit, window, enforced } = asked.origin;
            // The burst that a decision tells says which numbers have held.
            let elevated = charges.get(asked.charge as usize).and_then(Charge::elevated);
            let elevated = elevated.filter(|_| decision.limit != asked.numbers.burst());
            let numbers = Some(elevated.map_or(asked.numbers, |elevated| elevated.numbers));
            let fingerprint = Some(asked.fingerprint);
            Some(Answer { limit, window, numbers, cost: asked.cost, decision, enforced, fingerprint })
        };
        Verdict::of(&self.refused, self.asked.iter().filter_map(answer).collect())
    }
}
