//! The rule of taking: which charges of a request take their cost.
//!
//! A limit fits if all its charges fit. The request is denied if an enforced limit does not fit. A limit takes its cost if it fits and
//! no other enforced limit fails to. So enforced limits take all together or not at all; a limit in shadow takes as if it were
//! enforced; and a candidate takes as if it stood in the place of its limit, whatever that and its other candidates say. What
//! [`Mode::SpendOnly`] charges is a limit in shadow of its own. Charges that count denied requests count in any case, and a strike only
//! if its limit does not fit. `lua/requests.lua` has the same rule.

use smallvec::SmallVec;

use super::charge::{Charge, Mode};
use super::decision::{Attempt, Decision, Decisions, Detail, Outcome};
use super::micros::Micros;
use super::state::{Edit, NeedsRedis};

/// A list with at most this many charges needs no allocation.
pub const FEW: usize = 4;

/// The edits of a request, by the index of the charge.
pub type Edits = SmallVec<[(usize, Edit); FEW]>;

/// The charges of a request that take their cost, given those that do not fit.
#[derive(Debug)]
pub struct Taking {
    /// The [groups](super::charge::ChargeOrigin::group) that deny the request.
    denying: SmallVec<[u32; FEW]>,
    /// The groups that do not fit and deny nothing, with the candidates whose charges they are.
    short: SmallVec<[(u32, Option<u8>); FEW]>,
}

impl Taking {
    /// `is_short` tells for each charge whether it did not fit.
    pub fn new(charges: &[Charge], mut is_short: impl FnMut(usize) -> bool) -> Self {
        let mut taking = Self { denying: SmallVec::new(), short: SmallVec::new() };
        for (_, charge) in charges.iter().enumerate().filter(|(index, _)| is_short(*index)) {
            let group = charge.origin.group;
            if charge.origin.is_strike() {
                continue;
            }
            if !charge.can_deny() {
                taking.short.push((group, charge.origin.role.candidate()));
            } else if !taking.denying.contains(&group) {
                taking.denying.push(group);
            }
        }
        taking
    }

    /// Returns true if an enforced limit denies the request.
    pub fn denies(&self) -> bool {
        !self.denying.is_empty()
    }

    /// Returns true if a charge takes its cost, if it fits.
    pub fn takes(&self, charge: &Charge) -> bool {
        let (group, candidate) = (charge.origin.group, charge.origin.role.candidate());
        if charge.origin.is_strike() {
            return self.denying.contains(&group) || self.short.contains(&(group, None));
        }
        // Refunds, resets and what takes what is left depend on nothing but a denial.
        let can_be_short = charge.mode.can_deny() || charge.mode == Mode::SpendOnly;
        let is_denied = match self.denying[..] {
            [] => false,
            [denier] => !(candidate.is_some() && can_be_short && denier == group),
            _ => true,
        };
        !is_denied && (charge.can_deny() || !can_be_short || !self.short.contains(&(group, candidate)))
    }
}

/// Decides `charges` together, and adds the edits to those given. `decide` decides the charge with this index, and `peek`
/// returns the state of its bucket without the charge.
///
/// The decisions on charges that fit and take nothing are the states of their buckets: without the charge, or with it if it counts
/// denied requests.
pub fn decide_all(
    charges: &[Charge],
    mut decide: impl FnMut(usize, &Charge) -> Result<Attempt<Edit>, NeedsRedis>,
    peek: impl Fn(usize, &Charge) -> Result<Decision, NeedsRedis>,
    edits: &mut Edits,
) -> Result<Decisions, NeedsRedis> {
    // The charges that count even if the request is denied.
    let mut counting = SmallVec::<[usize; FEW]>::new();
    let mut decisions = Decisions::with_capacity(charges.len());
    for (index, charge) in charges.iter().enumerate() {
        let attempt = decide(index, charge)?;
        decisions.push(attempt.decision);
        if let Some(detail) = attempt.detail {
            decisions.details.push((index, detail));
        }
        if let Some(edit) = attempt.edit {
            edits.push((index, edit));
        }
        if attempt.counts_denied {
            counting.push(index);
        }
    }
    if !decisions.iter().any(Decision::is_short) && !charges.iter().any(|charge| charge.origin.is_strike()) {
        return Ok(decisions);
    }
    let taking = Taking::new(charges, |index| decisions.get(index).is_some_and(Decision::is_short));
    let takes: SmallVec<[bool; FEW]> = charges.iter().map(|charge| taking.takes(charge)).collect();
    edits.retain(|(index, _)| counting.contains(index) || takes[*index]);
    let mut details = std::mem::take(&mut decisions.details);
    details.retain_mut(|(index, detail)| {
        let is_dropped = !takes[*index] && decisions.get(*index).is_some_and(Decision::is_allowed);
        !is_dropped || detail.undo()
    });
    for (index, (decision, charge)) in decisions.iter_mut().zip(charges).enumerate() {
        if takes[index] || !decision.is_allowed() {
            continue;
        }
        *decision = if counting.contains(&index) {
            let wait = decision.retry_after.filter(|wait| *wait > Micros(0));
            details.extend(wait.map(|wait| (index, Detail::Counted(wait))));
            Decision { outcome: Outcome::Unchanged, retry_after: Some(Micros(0)), ..*decision }
        } else {
            peek(index, charge)?
        };
    }
    details.sort_by_key(|(index, _)| *index);
    decisions.details = details;
    Ok(decisions)
}

/// Returns true if two charges of one request have the same bucket. This is an error, because neither would see the other.
pub fn has_duplicate(charges: &[Charge]) -> bool {
    charges.iter().enumerate().any(|(index, charge)| {
        charges[..index].iter().any(|other| other.bucket.fingerprint == charge.bucket.fingerprint)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    use super::super::activations::Activations;
    use super::super::charge::{Bucket, Dated, Elevated, Input, Mode};
    use super::super::decision::Elevation;
    use super::super::numbers::Numbers;
    use super::super::state;
    use std::sync::Arc;

    const SECOND: u64 = 1_000_000_000;

    fn charge(numbers: Numbers, cost: u64) -> Charge {
        Charge { dated: Dated::Reserved, ..Charge::new(Bucket::new("L:k", 1), numbers, cost, Mode::Spend) }
    }

    fn decided(charges: &[Charge]) -> (Decisions, Edits) {
        let (now, mut edits) = (Micros(1_000_000_000), Edits::new());
        let decisions = decide_all(
            charges,
            |_, charge| state::decide(None, charge, None::<Activations>, now, Micros(0)),
            |_, charge| state::peek(None, charge, now, Micros(0)),
            &mut edits,
        );
        (decisions.unwrap(), edits)
    }

    /// A log, a window that counts denied requests, a bucket that switches its elevated numbers on, and one that counts nothing.
    fn charges(cost_of_last: u64) -> [Charge; 5] {
        let gcra = |burst| Numbers::new(burst, burst, SECOND).unwrap();
        let elevated = Elevated { numbers: gcra(9), span: 1_000_000, activations_per_month: 1, quota: None };
        let window = |count| charge(Numbers::sliding_window(count, SECOND, true).unwrap(), 2);
        [
            charge(Numbers::sliding_log(5, SECOND).unwrap(), 2),
            window(5),
            window(3),
            Charge { input: Some(Box::new(Input::Elevated(Arc::new(elevated)))), ..charge(gcra(1), 2) },
            charge(gcra(5), cost_of_last),
        ]
    }

    fn indexes<T>(of: &[(usize, T)]) -> Vec<usize> {
        of.iter().map(|(index, _)| *index).collect()
    }

    #[test]
    fn charges_that_all_fit_are_all_taken() {
        let (decisions, edits) = decided(&charges(5));
        assert!(decisions.iter().all(|decision| decision.outcome == Outcome::Allowed));
        assert_eq!((indexes(&edits), indexes(&decisions.details)), (vec![0, 1, 2, 3, 4], vec![0, 1, 2, 3]));
        assert_eq!(decisions.iter().map(|decision| decision.remaining).collect::<Vec<_>>(), [3, 3, 1, 7, 0]);
    }

    #[test]
    fn beside_a_denied_charge_only_those_are_made_that_count_denied_requests() {
        let (decisions, edits) = decided(&charges(6));
        let outcomes: Vec<_> = decisions.iter().map(|decision| decision.outcome).collect();
        let unchanged = Outcome::Unchanged;
        assert_eq!(outcomes, [unchanged, unchanged, unchanged, unchanged, Outcome::Denied]);
        assert_eq!(indexes(&edits), [1, 2]);
        assert_eq!(decisions.iter().map(|decision| decision.remaining).collect::<Vec<_>>(), [5, 3, 1, 1, 5]);
        assert!(decisions[..4].iter().all(|decision| decision.retry_after == Some(Micros(0))));
        // Another 2 fit into the first window at once. The second reports how long it would deny them.
        let off = Elevation { triggered: false, active: false, activations_left: None };
        let [(2, Detail::Counted(wait)), (3, detail)] = &decisions.details[..] else {
            panic!("{:?}", decisions.details)
        };
        assert_eq!((detail, *wait > Micros(0)), (&Detail::Elevated(off), true));
    }

    #[test]
    fn two_charges_on_one_bucket_are_found() {
        let with = |fingerprint| Charge { bucket: Bucket::new("L:k", fingerprint), ..charges(1)[0].clone() };
        assert!(!has_duplicate(&[]) && !has_duplicate(&[with(1), with(2), with(3)]));
        assert!(has_duplicate(&[with(1), with(2), with(1)]) && has_duplicate(&[with(2), with(2)]));
    }
}
