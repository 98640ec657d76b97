//! Several descriptors decided together: the charges that they make in one call to the store.

use smallvec::SmallVec;

use super::PerUnit;
use crate::engine::algorithms::charge::{Charge, Decision, Mode, NUMBERS_OF_THE_CALL};
use crate::engine::algorithms::numbers::{Micros, Numbers};
use crate::engine::rules::blocks::Blocks;
use crate::engine::rules::key::BucketKey;
use crate::engine::rules::plan::{ChargeOrigin, DenialReason, InvalidInput, LimitDenial, Plan};
use crate::engine::rules::request::{DescriptorEntry, Request};
use crate::engine::rules::rule_set::Rules;
use crate::message::headers::Headers;

/// What the rate limit service is asked.
#[derive(Clone, Copy, Debug)]
pub struct DescriptorRequest<'a> {
    /// The domain.
    pub domain: &'a str,
    /// The descriptors.
    pub descriptors: &'a [Descriptor<'a>],
    /// The effect on the buckets.
    pub purpose: DescriptorMode,
    /// The wall clock.
    pub now: Micros,
}

/// The purpose of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DescriptorMode {
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
    pub entries: &'a [DescriptorEntry<'a>],
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
pub struct JointPlan {
    /// Each bucket once, to be decided together.
    pub charges: Vec<Charge>,
    /// Charges of reports, taken after the others even if the request is denied.
    pub reported: Vec<Charge>,
    /// One for each descriptor, in their order.
    pub members: Vec<DescriptorPlan>,
    /// The charges that only look.
    probes: SmallVec<[Probe; 2]>,
    /// Whether a limit denies the request without asking the store. Then only what counts denied requests is charged, and
    /// the store is asked where the other buckets stand.
    pub is_denied: bool,
}

/// A charge that looks whether tokens are there.
#[derive(Clone, Copy, Debug)]
struct Probe {
    /// Its index in [`JointPlan::charges`].
    charge: u32,
    /// The tokens that must be there.
    wanted: u64,
    /// The index in [`JointPlan::reported`] of what is taken then.
    reported: Option<u32>,
}

/// What one descriptor asks.
#[derive(Debug, Default)]
pub struct DescriptorPlan {
    /// Its charges.
    pub charges: SmallVec<[DescriptorCharge; 2]>,
    /// Limits that refuse it without asking the store.
    pub denials: SmallVec<[LimitDenial; 1]>,
    /// Limits that let it pass without asking the store.
    pub unlimited: SmallVec<[u32; 1]>,
    /// Whether a quota covers it.
    pub is_quota: bool,
}

/// One charge of a descriptor.
#[derive(Clone, Copy, Debug)]
pub struct DescriptorCharge {
    /// The index of its bucket in [`JointPlan::charges`], which others of the request may share.
    pub charge: u32,
    /// The limit.
    pub origin: ChargeOrigin,
    /// The limit's numbers.
    pub numbers: Numbers,
    /// What this descriptor alone costs.
    pub cost: u64,
    /// The fingerprint of its bucket.
    pub fingerprint: u128,
}

impl DescriptorRequest<'_> {
    /// True if a descriptor can be denied. One that reports or gives back tells what has happened, and cannot.
    fn denies(&self, descriptor: &Descriptor<'_>) -> bool {
        self.purpose != DescriptorMode::Report && !matches!(descriptor.hits, Hits::GiveBack(_))
    }
}

impl Rules {
    /// What the descriptors of a question ask of the store where some ids are blocked.
    pub fn plan(&self, question: &DescriptorRequest<'_>, blocks: Option<&Blocks>) -> Result<JointPlan, InvalidInput> {
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
            plan.denials.push(LimitDenial { limit: place, enforced, reason: DenialReason::Deny });
            return plan;
        };
        let mut key = BucketKey::new(&limit.short, &self.fingerprinter());
        key.push(domain);
        key.push(carried.unit.name());
        for entry in descriptor.entries {
            key.push(entry.key);
            key.push(entry.value);
        }
        let fingerprint = key.fingerprint();
        let charge = Charge::new(key.bucket(fingerprint), numbers, 1, Mode::Spend);
        plan.charges.push(Charge { changed: NUMBERS_OF_THE_CALL, ..charge });
        plan.origins.push(ChargeOrigin { limit: place, window: 0, enforced });
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
            plan.denials.retain(|denial| stays(denial.limit));
            plan.unlimited.retain(|limit| stays(*limit));
        }
    }

    /// Puts the plans of all descriptors together.
    fn join(&self, question: &DescriptorRequest<'_>, found: SmallVec<[Plan; 2]>) -> JointPlan {
        let mut plans = JointPlan { members: Vec::with_capacity(found.len()), ..JointPlan::default() };
        // The charges that tell what was used.
        let mut reports: SmallVec<[u32; 2]> = SmallVec::new();
        for (plan, descriptor) in found.into_iter().zip(question.descriptors) {
            let is_quota = limits(&plan).any(|limit| self.is_quota(limit));
            let mut member = DescriptorPlan {
                is_quota,
                denials: if question.denies(descriptor) { plan.denials.into() } else { SmallVec::new() },
                unlimited: plan.unlimited.into(),
                ..DescriptorPlan::default()
            };
            for (mut charge, origin) in plan.charges.into_iter().zip(plan.origins) {
                let (Hits::Take(hits) | Hits::TakeOrDrain(hits) | Hits::GiveBack(hits)) = descriptor.hits;
                charge.cost = charge.cost.saturating_mul(hits);
                if matches!(descriptor.hits, Hits::GiveBack(_)) {
                    charge.mode = Mode::Refund;
                }
                let (numbers, cost, fingerprint) = (charge.numbers, charge.cost, charge.bucket.fingerprint);
                let charge = plans.add(charge);
                member.charges.push(DescriptorCharge { charge, origin, numbers, cost, fingerprint });
                let says_itself = matches!(descriptor.hits, Hits::TakeOrDrain(_));
                let drains = || self.limit(origin.limit).is_some_and(|limit| limit.drain_over_limit);
                if question.purpose == DescriptorMode::Report || says_itself && drains() {
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
        plans.is_denied = plans.members.iter().any(|member| {
            member.denials.iter().any(|denial| denial.enforced && (quotas < 2 || !self.is_quota(denial.limit)))
        });
        if plans.is_denied {
            let looks = |place: u32| plans.probes.iter().any(|look| look.charge == place);
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
    fn loosen_quotas(&self, plans: &mut JointPlan) {
        for asked in plans.members.iter().flat_map(|member| &member.charges) {
            if self.is_quota(asked.origin.limit)
                && let Some(charge) = plans.charges.get_mut(asked.charge as usize)
                && charge.mode == Mode::Spend
            {
                charge.mode = Mode::SpendOnly;
            }
        }
    }

    /// Whether a limit has `quota_mode`.
    pub fn is_quota(&self, limit: u32) -> bool {
        self.limit(limit).and_then(|limit| limit.rule.as_deref()).is_some_and(|rule| rule.is_quota)
    }
}

impl JointPlan {
    /// The limits that the store is asked about, some of them several times.
    pub fn asked_limits(&self) -> impl Iterator<Item = u32> {
        self.members.iter().flat_map(|member| &member.charges).map(|asked| asked.origin.limit)
    }
}

/// The limits of a plan.
fn limits(plan: &Plan) -> impl Iterator<Item = u32> {
    let denials = plan.denials.iter().map(|denial| denial.limit);
    plan.origins.iter().map(|origin| origin.limit).chain(denials).chain(plan.unlimited.iter().copied())
}

/// The request that a descriptor is for the rules: nothing is known of it but the domain and the entries.
fn request<'a>(question: &DescriptorRequest<'a>, descriptor: &Descriptor<'a>, headers: &'a Headers) -> Request<'a> {
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

impl JointPlan {
    /// Makes asks of 0 look whether anything is left, and reports look whether it is enough before they take it.
    fn look(&mut self, purpose: DescriptorMode, reports: &[u32]) {
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
            } else if takes && purpose == DescriptorMode::Check {
                charge.look();
            } else {
                continue;
            }
            self.probes.push(Probe { charge: place, wanted, reported });
        }
    }

    /// Has reports take from the buckets that their charges have by now.
    pub fn rebind(&mut self) {
        for look in &self.probes {
            let reported = look.reported.and_then(|place| self.reported.get_mut(place as usize));
            if let (Some(reported), Some(charge)) = (reported, self.charges.get(look.charge as usize)) {
                reported.bucket.clone_from(&charge.bucket);
            }
        }
    }

    /// The decisions of the charges, once what was reported has been taken: `decided` has one for each of
    /// [`Self::charges`] and `taken` one for each of [`Self::reported`], `None` where the store gave none.
    pub fn decisions(&self, mut decided: Vec<Option<Decision>>, taken: &[Option<Decision>]) -> Vec<Option<Decision>> {
        for look in &self.probes {
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
