//! The plan of several descriptors that are decided together: each bucket is charged once.

use smallvec::SmallVec;

use super::plan::{ChargeOrigin, LimitDenial, Plan};
use crate::engine::algorithms::charge::{Charge, Mode};
use crate::engine::algorithms::decision::Decision;
use crate::engine::algorithms::numbers::Numbers;

/// The descriptors behind the charges of a [`Plan`].
#[derive(Debug, Default)]
pub struct JointPlan {
    /// Charges of reports, made after the plan's even if the request is denied.
    pub reported: Vec<Charge>,
    /// One for each descriptor, in order.
    pub members: Vec<DescriptorPlan>,
    probes: SmallVec<[Probe; 2]>,
    /// True if a limit denies the request without the store. The plan then charges only limits with `count_denied`, and reads
    /// the state of the other buckets.
    pub is_denied: bool,
}

/// A charge that takes nothing and looks whether tokens are there.
#[derive(Clone, Copy, Debug)]
struct Probe {
    /// Its index in [`Plan::charges`].
    charge: u32,
    /// The tokens that must be there.
    wanted: u64,
    /// True if the next of [`JointPlan::reported`] takes them.
    is_report: bool,
}

/// The plan of one descriptor.
#[derive(Debug, Default)]
pub struct DescriptorPlan {
    pub charges: SmallVec<[DescriptorCharge; 2]>,
    /// Limits that deny it without the store.
    pub denials: SmallVec<[LimitDenial; 1]>,
    /// Limits that let it pass without the store.
    pub unlimited: SmallVec<[u32; 1]>,
    /// True if a quota covers it.
    pub is_quota: bool,
}

/// One charge of a descriptor.
#[derive(Clone, Debug)]
pub struct DescriptorCharge {
    /// The index of its bucket in [`Plan::charges`], which descriptors may share.
    pub charge: u32,
    pub origin: ChargeOrigin,
    pub numbers: Numbers,
    /// The cost of this descriptor alone.
    pub cost: u64,
    /// The fingerprint of its bucket.
    pub fingerprint: u128,
}

impl Plan {
    /// Keeps the charges of these origins.
    pub fn retain(&mut self, stays: impl Fn(&ChargeOrigin) -> bool) {
        let kept: SmallVec<[bool; 4]> = self.origins.iter().map(stays).collect();
        let is_kept = |place: usize| kept.get(place).copied().unwrap_or(false);
        if let Some(joint) = &mut self.joint {
            joint.retain(|place| {
                let before = kept.iter().take(place as usize).filter(|kept| **kept).count();
                is_kept(place as usize).then(|| u32::try_from(before).unwrap_or(u32::MAX))
            });
        }
        let mut places = 0..;
        self.charges.retain(|_| places.next().is_some_and(is_kept));
        let mut places = 0..;
        self.origins.retain(|_| places.next().is_some_and(is_kept));
    }

    /// Lets reports take from the buckets that their charges have now.
    pub fn rebind(&mut self) {
        let Some(joint) = &mut self.joint else { return };
        let reports = joint.probes.iter().filter(|probe| probe.is_report);
        for (probe, reported) in reports.zip(&mut joint.reported) {
            if let Some(charge) = self.charges.get(probe.charge as usize) {
                reported.bucket.clone_from(&charge.bucket);
            }
        }
    }

    /// Adds a charge, or adds it to one of the same bucket. Returns its index.
    pub(super) fn merge(&mut self, charge: Charge, origin: ChargeOrigin) -> u32 {
        let same = |known: &Charge| known.bucket.fingerprint == charge.bucket.fingerprint;
        let place = self.charges.iter().position(same).unwrap_or(self.charges.len());
        if let Some(known) = self.charges.get_mut(place) {
            combine(known, &charge);
        } else {
            self.charges.push(charge);
            self.origins.push(origin);
        }
        u32::try_from(place).unwrap_or(u32::MAX)
    }
}

impl JointPlan {
    pub(super) fn with_capacity(descriptors: usize) -> Self {
        Self { members: Vec::with_capacity(descriptors), ..Self::default() }
    }

    /// Makes charges of 0 look whether anything is left, reports look whether their cost is there before they take it, and
    /// all charges look if `only_checks`.
    pub(super) fn add_probes(&mut self, charges: &mut [Charge], only_checks: bool, reports: &[u32]) {
        for (place, charge) in (0..).zip(charges) {
            let takes = matches!(charge.mode, Mode::Spend | Mode::SpendOnly) && charge.numbers.algorithm().has_tokens();
            let mut wanted = charge.cost;
            let mut is_report = false;
            if charge.check_for_one() {
                wanted = 1;
            } else if takes && reports.contains(&place) {
                // A larger cost has the same effect, and Redis counts this one exactly.
                let most = charge.elevated().map_or(0, |elevated| elevated.numbers.burst()).max(charge.numbers.burst());
                self.reported.push(Charge { mode: Mode::SpendUpTo, cost: wanted.min(most), ..charge.clone() });
                is_report = true;
                charge.make_check();
            } else if takes && only_checks {
                charge.make_check();
            } else {
                continue;
            }
            self.probes.push(Probe { charge: place, wanted, is_report });
        }
    }

    /// Makes charges ask for the state of their bucket, except those with `count_denied`.
    pub(super) fn charge_nothing(&self, charges: &mut [Charge]) {
        for (place, charge) in (0..).zip(charges) {
            if charge.counts_denied() && self.probes.iter().all(|probe| probe.charge != place) {
                charge.mode = Mode::SpendOnly;
            } else {
                (charge.cost, charge.mode) = (0, Mode::Check);
            }
        }
    }

    /// Follows charges to their new places, and drops those that have none.
    fn retain(&mut self, moved: impl Fn(u32) -> Option<u32>) {
        let follow = |place: &mut u32| moved(*place).map(|moved| *place = moved).is_some();
        for member in &mut self.members {
            member.charges.retain(|charge| follow(&mut charge.charge));
        }
        let reports = self.probes.iter().filter(|probe| probe.is_report);
        let mut stays = reports.map(|probe| moved(probe.charge).is_some());
        self.reported.retain(|_| stays.next().unwrap_or(false));
        self.probes.retain(|probe| follow(&mut probe.charge));
    }

    /// Corrects the decisions of probes. Those of [`Self::reported`] follow the plan's.
    pub(super) fn correct(&self, charges: &[Charge], decisions: &mut [Decision]) {
        let (decided, reported) = decisions.split_at_mut(charges.len().min(decisions.len()));
        let mut reported = reported.iter();
        for probe in &self.probes {
            let place = probe.charge as usize;
            let taken = if probe.is_report { reported.next() } else { None };
            let (Some(charge), Some(decision)) = (charges.get(place), decided.get_mut(place)) else { continue };
            charge.correct_check(decision, probe.wanted);
            if let Some(taken) = taken {
                (decision.remaining, decision.reset_after) = (taken.remaining, taken.reset_after);
            }
        }
    }
}

/// Combines two charges of the same bucket.
fn combine(charge: &mut Charge, other: &Charge) {
    // Carried limits may have different numbers; the stricter ones apply to both.
    if other.numbers.burst() < charge.numbers.burst() {
        charge.numbers = other.numbers.clone();
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
