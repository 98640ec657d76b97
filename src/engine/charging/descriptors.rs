//! Several descriptors decided together: the charges that they make in one call to the store.

use std::sync::atomic::{AtomicBool, Ordering};

use smallvec::SmallVec;

use crate::engine::algorithms::charge::{Charge, Mode};
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::tag::{Tag, of_part};
use crate::engine::charging::joint_plan::{DescriptorCharge, DescriptorPlan, JointPlan};
use crate::engine::charging::plan::{DenialReason, LimitDenial, Plan};
use crate::engine::charging::terms::Terms;
use crate::engine::limit::blocks::Blocks;
use crate::engine::limit::descriptors::PerUnit;
use crate::engine::limit::key::{BucketKey, encoded};
use crate::engine::limit::queue::InvalidInput;
use crate::engine::limit::rules::Rules;
use crate::engine::request::{DescriptorEntry, Request};
use crate::message::headers::Headers;

/// A request to the rate limit service.
#[derive(Clone, Copy, Debug)]
pub struct DescriptorRequest<'a> {
    pub domain: &'a str,
    pub descriptors: &'a [Descriptor<'a>],
    pub purpose: DescriptorMode,
    pub now: Micros,
}

/// The effect on the buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DescriptorMode {
    /// Decides a request and charges it.
    Decide,
    /// Decides a request and takes nothing.
    Check,
    /// Takes what a request has used, or what is left if that is less. Never denies.
    Report,
    /// Takes tokens ahead of the requests of a gateway that counts by itself. Nothing is decided about a request.
    Lease,
    /// Settles a reservation. Never denies.
    Commit,
}

impl DescriptorMode {
    /// Returns true if the request has passed already.
    pub const fn is_afterwards(self) -> bool {
        matches!(self, Self::Report | Self::Commit)
    }
}

/// A descriptor and its hits.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor<'a> {
    pub entries: &'a [DescriptorEntry<'a>],
    pub hits: Hits,
    /// A limit that replaces those of the rules, if the rules know the domain.
    pub carried: Option<PerUnit>,
}

/// The hits of a descriptor, in units of its limits' cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hits {
    /// Takes this much; 0 checks whether anything is left.
    Take(u64),
    /// The same, from `hits_addend` of the descriptor: it may report past usage, so a limit with `drain_over_limit` or in
    /// [`ChargedAfterwards`] takes what is left if that is less.
    TakeOrDrain(u64),
    GiveBack(u64),
}

/// The limits whose budgets are charged afterwards. A gateway that asks one with an addend of 0 has charged nothing yet, so it
/// reports the cost later. Such a report takes what is left, like that to a limit with `drain_over_limit`: else the last ones,
/// which do not fit, would never use the budget up.
#[derive(Debug)]
pub struct ChargedAfterwards(Box<[AtomicBool]>);

impl ChargedAfterwards {
    /// None of the limits of these rules yet.
    pub fn new(rules: &Rules) -> Self {
        Self(rules.limits.iter().map(|_| AtomicBool::new(false)).collect())
    }

    fn note(&self, limit: u32) {
        if let Some(is_charged) = self.0.get(limit as usize).filter(|is_charged| !is_charged.load(Ordering::Relaxed)) {
            is_charged.store(true, Ordering::Relaxed);
        }
    }

    fn contains(&self, limit: u32) -> bool {
        self.0.get(limit as usize).is_some_and(|is_charged| is_charged.load(Ordering::Relaxed))
    }
}

impl<'a> DescriptorRequest<'a> {
    /// The view of a descriptor as a request: it has only the domain and the entries.
    pub fn request(&self, descriptor: &Descriptor<'a>, headers: &'a Headers) -> Request<'a> {
        let (domain, descriptor) = (Some(self.domain), descriptor.entries);
        Request { domain, descriptor, now: self.now, ..Request::empty(headers) }
    }

    /// Returns true if a descriptor can be denied. Reports and refunds cannot.
    fn denies(&self, descriptor: &Descriptor<'_>) -> bool {
        !self.purpose.is_afterwards() && !matches!(descriptor.hits, Hits::GiveBack(_))
    }

    /// Returns true if a denial of a descriptor counts for `ban`.
    fn has_strikes(&self, descriptor: &Descriptor<'_>) -> bool {
        self.purpose != DescriptorMode::Lease && self.denies(descriptor)
    }
}

impl Plan {
    /// Returns the plan for all descriptors of a request.
    pub fn of_descriptors(
        rules: &Rules,
        question: &DescriptorRequest<'_>,
        blocks: Option<&Blocks>,
        afterwards: &ChargedAfterwards,
    ) -> Result<Self, InvalidInput> {
        let headers = Headers::new();
        let mut found: SmallVec<[Self; 2]> = SmallVec::with_capacity(question.descriptors.len());
        for descriptor in question.descriptors {
            let request = question.request(descriptor, &headers);
            let is_charged = || rules.knows_domain(question.domain) && !rules.is_exempt(rules.carried().0, &request);
            found.push(match descriptor.carried.filter(|_| is_charged()) {
                Some(carried) => Self::of_carried(rules, question.domain, descriptor, carried),
                None => Self::of_request(rules, &request, blocks.filter(|_| question.denies(descriptor)))?,
            });
        }
        drop_replaced(rules, &mut found);
        let exempt = found.iter().flat_map(|plan| &plan.exempt).copied().collect();
        Ok(Self { exempt, ..Self::join(rules, question, found, afterwards) })
    }

    /// The plan for the limit that a descriptor carries, with a bucket for its entries and unit.
    fn of_carried(rules: &Rules, domain: &str, descriptor: &Descriptor<'_>, carried: PerUnit) -> Self {
        let (place, limit) = rules.carried();
        let mut plan = Self::default();
        let enforced = limit.is_enforced();
        let Ok(numbers) = carried.numbers() else {
            // A limit of 0.
            plan.denials.push(LimitDenial { limit: place, enforced, reason: DenialReason::Deny });
            return plan;
        };
        let mut key = BucketKey::new(&limit.short, &rules.fingerprinter);
        key.push(domain);
        key.push(carried.unit.name());
        for entry in descriptor.entries {
            key.push(entry.key);
            key.push(entry.value);
        }
        // The first part is the domain, which all ids share. The first value distinguishes clients.
        let tag = descriptor.entries.first().map_or(Tag::OfId, |entry| Tag::Fixed(of_part(&encoded(entry.value))));
        let terms = Terms::carried(place, limit, key.into_bucket(tag));
        let mode = terms.mode(Mode::Spend);
        terms.add_charges(&mut plan, &[numbers], None, 1, mode);
        plan
    }

    /// Joins the plans of all descriptors.
    fn join(
        rules: &Rules,
        question: &DescriptorRequest<'_>,
        found: SmallVec<[Self; 2]>,
        afterwards: &ChargedAfterwards,
    ) -> Self {
        let mut plan = Self::default();
        let mut joint = JointPlan::with_capacity(found.len());
        // The charges that report usage.
        let mut reports: SmallVec<[u32; 2]> = SmallVec::new();
        for (own, descriptor) in found.into_iter().zip(question.descriptors) {
            let is_quota = limits(&own).any(|limit| rules.is_quota(limit));
            plan.unlimited.extend_from_slice(&own.unlimited);
            let mut member = DescriptorPlan {
                is_quota,
                denials: if question.denies(descriptor) { own.denials.into() } else { SmallVec::new() },
                unlimited: own.unlimited.into(),
                ..DescriptorPlan::default()
            };
            for mut charge in plan.without_strikes(own.charges, question.has_strikes(descriptor)) {
                let origin = charge.origin;
                let (Hits::Take(hits) | Hits::TakeOrDrain(hits) | Hits::GiveBack(hits)) = descriptor.hits;
                charge.cost = charge.cost.saturating_mul(hits);
                if matches!(descriptor.hits, Hits::GiveBack(_)) {
                    charge.mode = Mode::Refund;
                }
                let (numbers, cost, fingerprint) = (charge.numbers.clone(), charge.cost, charge.bucket.fingerprint);
                let charge = plan.merge(charge);
                member.charges.push(DescriptorCharge { charge, origin, numbers, cost, fingerprint });
                if descriptor.hits == Hits::Take(0) {
                    afterwards.note(origin.limit);
                }
                let drains = || {
                    let is_said = rules.limit(origin.limit).is_some_and(|limit| limit.drain_over_limit);
                    is_said || afterwards.contains(origin.limit)
                };
                let is_report = match question.purpose {
                    DescriptorMode::Decide => matches!(descriptor.hits, Hits::TakeOrDrain(_)) && drains(),
                    DescriptorMode::Check | DescriptorMode::Lease | DescriptorMode::Commit => false,
                    DescriptorMode::Report => true,
                };
                if is_report {
                    reports.push(charge);
                }
            }
            joint.members.push(member);
        }
        let quotas = joint.members.iter().filter(|member| member.is_quota).count();
        if quotas > 1 {
            plan.loosen_quotas(rules);
        }
        joint.report(&mut plan.charges, &reports);
        joint.is_denied = joint.members.iter().any(|member| {
            member.denials.iter().any(|denial| denial.enforced && (quotas < 2 || !rules.is_quota(denial.limit)))
        });
        let (is_check, is_denied) = (question.purpose == DescriptorMode::Check, joint.is_denied);
        let may_look = question.purpose != DescriptorMode::Commit;
        plan.charges.iter_mut().filter(|_| may_look).for_each(Charge::look_for_one);
        for charge in &mut plan.charges {
            if is_check && !charge.numbers.is_script() || is_denied && !charge.counts_denied() {
                charge.take_nothing();
            }
        }
        plan.joint = Some(Box::new(joint));
        if is_denied {
            // A script runs only if no other limit denies.
            plan.retain(|charge| !charge.numbers.is_script());
        }
        plan
    }

    /// Lets several quotas be charged even if one of them is exceeded: alone, it does not deny. Which of them are exceeded is
    /// known only when the store has answered. A single quota denies like any other limit.
    fn loosen_quotas(&mut self, rules: &Rules) {
        for charge in &mut self.charges {
            if charge.mode == Mode::Spend && rules.is_quota(charge.origin.limit) {
                charge.mode = Mode::SpendOnly;
            }
        }
    }
}

/// Drops the limits that a limit of the request replaces, for all descriptors.
fn drop_replaced(rules: &Rules, plans: &mut [Plan]) {
    let of = |limit: u32| rules.limit(limit).and_then(|limit| limit.rule.as_deref());
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
        plan.retain(|charge| stays(charge.origin.limit));
        plan.denials.retain(|denial| stays(denial.limit));
        plan.unlimited.retain(|limit| stays(*limit));
    }
}

/// All limits of a plan.
fn limits(plan: &Plan) -> impl Iterator<Item = u32> {
    let denials = plan.denials.iter().map(|denial| denial.limit);
    plan.charges.iter().map(|charge| charge.origin.limit).chain(denials).chain(plan.unlimited.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::algorithms::numbers::Numbers;
    use crate::engine::limit::Limit;
    use crate::engine::limit::allowance::Allowance;
    use crate::engine::limit::fingerprint::Fingerprinter;

    const SECOND: u64 = 1_000_000_000;

    /// The charges of two hits: the bursts, the costs and the modes, and those of reports.
    #[track_caller]
    fn check(closed: bool, purpose: DescriptorMode, hits: Hits, expected: &[(u64, u64, Mode)], reported: usize) {
        let numbers = [
            Numbers::new(5, 5, SECOND).unwrap(),
            Numbers::sliding_window(6, SECOND, true).unwrap(),
            Numbers::concurrency(7, SECOND).unwrap(),
            Numbers::script(0),
        ];
        let limit =
            |allowance| Limit { by: Vec::new(), drain_over_limit: true, ..Limit { allowance, ..Limit::new("L") } };
        let mut limits: Vec<Limit> =
            numbers.into_iter().map(|numbers| limit(Allowance::Windows([numbers].into_iter().collect()))).collect();
        if closed {
            limits.push(limit(Allowance::Deny));
        }
        for (number, limit) in limits.iter_mut().enumerate() {
            limit.short = format!("L{number}");
            limit.conditions.domains = vec!["d".to_owned()];
        }
        let rules = Rules::new(limits, Fingerprinter::new((1, 2)), Micros(0), Vec::new());
        let descriptors = [Descriptor { entries: &[], hits, carried: None }];
        let question = DescriptorRequest { domain: "d", descriptors: &descriptors, purpose, now: Micros(0) };
        let plan = Plan::of_descriptors(&rules, &question, None, &ChargedAfterwards::new(&rules)).unwrap();
        let found: Vec<_> =
            plan.charges.iter().map(|charge| (charge.numbers.burst(), charge.cost, charge.mode)).collect();
        let joint = plan.joint.unwrap();
        assert_eq!((&found[..], joint.reported.len()), (expected, reported), "{purpose:?} {hits:?}");
        let places: Vec<u32> = joint.members[0].charges.iter().map(|charge| charge.charge).collect();
        assert_eq!(places, (0..).take(found.len()).collect::<Vec<u32>>());
    }

    #[test]
    fn a_charge_takes_what_its_call_lets_it_take() {
        use DescriptorMode::{Check, Decide, Lease, Report};
        use Mode::{Look, Spend};
        let script = Numbers::script(0).burst();
        let checked = [(5, 2, Look), (6, 2, Look), (7, 0, Mode::Check), (script, 2, Spend)];
        let reported = [(5, 2, Look), (6, 2, Look), (7, 2, Spend), (script, 2, Spend)];
        check(false, Decide, Hits::Take(2), &[(5, 2, Spend), (6, 2, Spend), (7, 2, Spend), (script, 2, Spend)], 0);
        check(false, Lease, Hits::Take(2), &[(5, 2, Spend), (6, 2, Spend), (7, 2, Spend), (script, 2, Spend)], 0);
        check(false, Decide, Hits::TakeOrDrain(2), &reported, 2);
        check(false, Report, Hits::TakeOrDrain(2), &reported, 2);
        for hits in [Hits::Take(2), Hits::TakeOrDrain(2)] {
            check(false, Check, hits, &checked, 0);
        }
        let states = [(5, 0, Mode::Check), (6, 0, Mode::Check), (7, 0, Mode::Check)];
        check(false, Check, Hits::GiveBack(2), &[&states[..], &[(script, 2, Mode::Refund)]].concat(), 0);
        // A limit that denies without the store: the script does not run, and what counts denied requests takes its cost.
        check(true, Decide, Hits::Take(2), &[(5, 2, Look), (6, 2, Spend), (7, 0, Mode::Check)], 0);
        check(true, Decide, Hits::TakeOrDrain(2), &[(5, 2, Look), (6, 2, Look), (7, 0, Mode::Check)], 2);
        check(true, Check, Hits::Take(2), &[(5, 2, Look), (6, 2, Look), (7, 0, Mode::Check)], 0);
    }
}
