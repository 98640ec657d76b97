//! All or nothing: the charges of one request, decided together.

use smallvec::SmallVec;

use super::charge::{Charge, Decision, Decisions, Outcome};
use super::details::Detail;
use super::numbers::Micros;

/// As many as most requests with several charges have: their lists need no allocation.
pub const FEW: usize = 4;

/// A charge, decided against its bucket.
pub struct Tried<C> {
    /// How it came out.
    pub decision: Decision,
    /// What the algorithm says beside that.
    pub detail: Option<Detail>,
    /// What is to be written; `None` for nothing.
    pub change: Option<C>,
    /// Whether that is written even if the request is denied.
    pub counts_denied: bool,
}

/// Charges, decided together.
pub struct Settled<C> {
    /// One a charge, in their order.
    pub decisions: Decisions,
    /// What is to be written, by the place of the charge.
    pub changes: SmallVec<[(usize, C); FEW]>,
}

/// Decides `charges` together. `decide` decides one of them, and `standing` tells where its bucket is without it.
///
/// If any charge denies, nothing is written but what counts denials, and each of the others reports where its bucket
/// stands without the charge, or with it where it counts.
pub fn settle<C, E>(
    charges: &[Charge],
    decide: impl Fn(usize, &Charge) -> Result<Tried<C>, E>,
    standing: impl Fn(usize, &Charge) -> Result<Decision, E>,
) -> Result<Settled<C>, E> {
    let mut changes = SmallVec::new();
    // Changes that are written even if the request is denied.
    let mut counting = SmallVec::<[usize; FEW]>::new();
    let mut decisions = Decisions::with_capacity(charges.len());
    for (place, charge) in charges.iter().enumerate() {
        let tried = decide(place, charge)?;
        decisions.push(tried.decision);
        decisions.details.extend(tried.detail.map(|detail| (place, detail)));
        changes.extend(tried.change.map(|change| (place, change)));
        counting.extend(tried.counts_denied.then_some(place));
    }
    if decisions.iter().any(Decision::is_denied) {
        changes.retain(|(place, _)| counting.contains(place));
        let mut details = std::mem::take(&mut decisions.details);
        details.retain_mut(|(place, detail)| {
            let is_dropped = decisions.get(*place).is_some_and(|decision| decision.outcome == Outcome::Allowed);
            !is_dropped || detail.undo()
        });
        decisions.details = details;
        for (place, (decision, charge)) in decisions.as_mut_slice().iter_mut().zip(charges).enumerate() {
            if decision.outcome == Outcome::Allowed {
                *decision = if counting.contains(&place) {
                    Decision { outcome: Outcome::Unchanged, retry_after: Some(Micros(0)), ..*decision }
                } else {
                    standing(place, charge)?
                };
            }
        }
    }
    Ok(Settled { decisions, changes })
}

/// Whether two charges of one request name the same bucket: a mistake, as neither could know of the other.
pub fn has_duplicate(charges: &[Charge]) -> bool {
    charges.iter().enumerate().any(|(place, charge)| {
        charges[..place].iter().any(|other| other.bucket.fingerprint == charge.bucket.fingerprint)
    })
}
