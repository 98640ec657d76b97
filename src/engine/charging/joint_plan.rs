//! The plan of several descriptors that are decided together: each bucket is charged once.

use smallvec::SmallVec;

use crate::engine::algorithms::charge::{Charge, ChargeOrigin, Mode};
use crate::engine::algorithms::decision::{Decision, Decisions};
use crate::engine::algorithms::numbers::Numbers;
use crate::engine::charging::plan::{LimitDenial, Plan};

/// The descriptors behind the charges of a [`Plan`].
#[derive(Debug, Default)]
pub struct JointPlan {
    /// Charges of reports, made after the plan's even if the request is denied.
    pub reported: Vec<Charge>,
    /// One for each descriptor, in order.
    pub members: Vec<DescriptorPlan>,
    /// For each of `reported`, the index of its bucket in [`Plan::charges`].
    reports: SmallVec<[u32; 2]>,
    /// True if a limit denies the request without the store. Only limits with `count_denied` take their cost then.
    pub is_denied: bool,
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
    /// Keeps these charges.
    pub fn retain(&mut self, stays: impl Fn(&Charge) -> bool) {
        let kept: SmallVec<[bool; 4]> = self.charges.iter().map(stays).collect();
        self.keep(&kept);
    }

    /// Keeps the charges at these places only if they `stay`, with their reports and the decisions on both: charges first, and then
    /// reports. The places may be those of reports, too, whose decisions then say nothing.
    pub(crate) fn retain_decided(
        &mut self,
        decisions: &mut Decisions,
        places: &[usize],
        stay: impl Fn(&Charge) -> bool,
    ) {
        let is_listed = |place: usize| places.binary_search(&place).is_ok();
        let charges = self.charges.iter().enumerate();
        let mut kept: SmallVec<[bool; 4]> = charges.map(|(place, charge)| !is_listed(place) || stay(charge)).collect();
        let reports = self.joint.as_ref().map_or(&[][..], |joint| &joint.reports);
        for (report, of) in (kept.len()..).zip(reports.iter().map(|place| *place as usize)) {
            let decided = decisions.get(of).copied();
            if let (Some(decided), Some(decision)) = (decided, decisions.get_mut(report))
                && is_listed(report)
                && !is_listed(of)
            {
                *decision = decided;
            }
        }
        let is_kept = |place: &u32| kept.get(*place as usize).copied().unwrap_or(false);
        let kept_reports: SmallVec<[bool; 4]> = reports.iter().map(is_kept).collect();
        self.keep(&kept);
        kept.extend(kept_reports);
        decisions.retain(&kept);
    }

    fn keep(&mut self, kept: &[bool]) {
        let is_kept = |place: usize| kept.get(place).copied().unwrap_or(false);
        if let Some(joint) = &mut self.joint {
            joint.retain(|place| {
                let before = kept.iter().take(place as usize).filter(|kept| **kept).count();
                is_kept(place as usize).then(|| u32::try_from(before).unwrap_or(u32::MAX))
            });
        }
        let mut places = 0..;
        self.charges.retain(|_| places.next().is_some_and(is_kept));
    }

    /// Returns the charges and reports that the memory is to decide that replaces the store, and the places of their decisions.
    pub(crate) fn local_round(&mut self) -> ([Vec<Charge>; 2], Vec<usize>) {
        if let Some(JointPlan { reported, reports, .. }) = self.joint.as_deref_mut() {
            for (report, place) in reported.iter_mut().zip(reports) {
                let charge = self.charges.get(*place as usize);
                report.origin.is_local = charge.is_some_and(|charge| charge.origin.is_local);
            }
        }
        let reported = self.joint.as_ref().map_or(&[][..], |joint| &joint.reported);
        let places = self.charges.iter().chain(reported).enumerate();
        let places = places.filter(|(_, charge)| charge.origin.is_local).map(|(place, _)| place).collect();
        let local = |charges: &[Charge]| charges.iter().filter(|charge| charge.origin.is_local).cloned().collect();
        ([local(&self.charges), local(reported)], places)
    }

    /// Lets reports take from the buckets that their charges have now.
    pub fn rebind(&mut self) {
        let Some(joint) = &mut self.joint else { return };
        for (place, reported) in joint.reports.iter().zip(&mut joint.reported) {
            if let Some(charge) = self.charges.get(*place as usize) {
                reported.bucket.clone_from(&charge.bucket);
            }
        }
    }

    /// Sets what is left of the buckets of reports to what the reports have left.
    pub fn correct(&self, decisions: &mut [Decision]) {
        if let Some(joint) = &self.joint {
            joint.correct(self.charges.len(), decisions);
        }
    }

    /// Returns the charges of a descriptor without strikes. These are added to the plan if the descriptor `can_be_denied`, one for
    /// each id, whatever the cost.
    pub(crate) fn without_strikes(
        &mut self,
        mut charges: SmallVec<[Charge; 1]>,
        can_be_denied: bool,
    ) -> SmallVec<[Charge; 1]> {
        let is_known = |known: &[Charge], strike: &Charge| known.iter().any(|other| other.bucket == strike.bucket);
        for strike in charges.iter().filter(|charge| can_be_denied && charge.origin.is_strike()) {
            if !is_known(&self.charges, strike) {
                self.charges.push(strike.clone());
            }
        }
        charges.retain(|charge| !charge.origin.is_strike());
        charges
    }

    /// Adds a charge, or adds it to one of the same bucket. Returns its index.
    pub(crate) fn merge(&mut self, charge: Charge) -> u32 {
        let same = |known: &Charge| known.bucket.fingerprint == charge.bucket.fingerprint;
        let place = self.charges.iter().position(same).unwrap_or(self.charges.len());
        if let Some(known) = self.charges.get_mut(place) {
            combine(known, &charge);
        } else {
            self.charges.push(charge);
        }
        u32::try_from(place).unwrap_or(u32::MAX)
    }
}

impl JointPlan {
    pub(crate) fn with_capacity(descriptors: usize) -> Self {
        Self { members: Vec::with_capacity(descriptors), ..Self::default() }
    }

    /// Lets the charges at these places look whether their cost fits, and reports take it afterwards.
    pub(crate) fn report(&mut self, charges: &mut [Charge], places: &[u32]) {
        for (place, charge) in (0..).zip(charges).filter(|(place, _)| places.contains(place)) {
            let takes = matches!(charge.mode, Mode::Spend | Mode::SpendOnly) && charge.numbers.algorithm().has_tokens();
            if charge.cost > 0 && takes {
                // A larger cost has the same effect, and Redis counts this one exactly.
                let most = charge.elevated().map_or(0, |elevated| elevated.numbers.burst()).max(charge.numbers.burst());
                self.reported.push(Charge { mode: Mode::SpendUpTo, cost: charge.cost.min(most), ..charge.clone() });
                self.reports.push(place);
                charge.look();
            }
        }
    }

    /// Follows charges to their new places, and drops those that have none.
    fn retain(&mut self, moved: impl Fn(u32) -> Option<u32>) {
        let follow = |place: &mut u32| moved(*place).map(|moved| *place = moved).is_some();
        for member in &mut self.members {
            member.charges.retain(|charge| follow(&mut charge.charge));
        }
        let mut stays = self.reports.iter().map(|place| moved(*place).is_some());
        self.reported.retain(|_| stays.next().unwrap_or(false));
        self.reports.retain(follow);
    }

    /// The decisions of reports follow those of the plan's charges.
    fn correct(&self, charges: usize, decisions: &mut [Decision]) {
        let (decided, reported) = decisions.split_at_mut(charges.min(decisions.len()));
        for (place, taken) in self.reports.iter().zip(reported) {
            if let Some(decision) = decided.get_mut(*place as usize) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::algorithms::charge::Bucket;

    #[test]
    fn reports_are_decided_where_their_charges_are() {
        let charge = |number: u32, mode| {
            let bucket = Bucket::new(format!("L:{number}"), number.into());
            Charge {
                origin: ChargeOrigin::new(number, true),
                ..Charge::new(bucket, Numbers::fixed(5).unwrap(), 1, mode)
            }
        };
        let joint = JointPlan {
            reported: [0, 1, 2].map(|number| charge(number, Mode::SpendUpTo)).into(),
            reports: [0, 1, 2].into_iter().collect(),
            ..JointPlan::default()
        };
        let charges = [0, 1, 2].map(|number| charge(number, Mode::Look));
        let mut plan = Plan { charges: charges.into_iter().collect(), joint: Some(Box::new(joint)), ..Plan::default() };
        // A server has decided the first charge, but not its report. The second is for the memory, and the third is dropped.
        plan.charges[1].origin.is_local = true;
        let remaining = |remaining| Decision { remaining, ..Decision::unknown(5) };
        let mut decisions: Decisions = [4, 0, 0, 0, 0, 0].map(remaining).into_iter().collect();
        plan.retain_decided(&mut decisions, &[1, 2, 3, 4, 5], |charge| charge.origin.is_local);
        let ([charges, reported], places) = plan.local_round();
        let limits = |charges: &[Charge]| charges.iter().map(|charge| charge.origin.limit).collect::<Vec<_>>();
        assert_eq!((limits(&charges), limits(&reported), places), (vec![1], vec![1], vec![1, 3]));
        // What nobody decided leaves the state of its bucket as it is.
        assert_eq!(decisions.iter().map(|decision| decision.remaining).collect::<Vec<_>>(), [4, 0, 4, 0]);
    }
}
