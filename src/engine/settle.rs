//! All or nothing: the charges of one request, decided together.

use super::charge::{Charge, Decision, Decisions, Outcome};
use super::terms::Detail;

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

/// Decides `charges` together. `decide` decides one of them, `standing` tells where its bucket is without it, and `write`
/// gets what is to be written of each.
///
/// If any charge denies, nothing is written but what counts denials, and each of the others reports where its bucket
/// stands without the charge.
pub fn settle<C, E>(
    charges: &[Charge],
    decide: impl Fn(usize, &Charge) -> Result<Tried<C>, E>,
    standing: impl Fn(usize, &Charge) -> Result<Decision, E>,
    mut write: impl FnMut(usize, C),
) -> Result<Decisions, E> {
    let mut changes = Vec::with_capacity(charges.len());
    let mut decisions = Decisions::with_capacity(charges.len());
    for (place, charge) in charges.iter().enumerate() {
        let tried = decide(place, charge)?;
        decisions.push(tried.decision);
        decisions.details.extend(tried.detail.map(|detail| (place, detail)));
        changes.push((tried.change, tried.counts_denied));
    }
    let denied = decisions.iter().any(Decision::is_denied);
    if denied {
        let allowed = |decision: &Decision| decision.outcome == Outcome::Allowed;
        let dropped: Vec<bool> = decisions.iter().map(allowed).collect();
        decisions.details.retain(|(place, _)| !dropped.get(*place).copied().unwrap_or(false));
        for (place, (decision, charge)) in decisions.as_mut_slice().iter_mut().zip(charges).enumerate() {
            if decision.outcome == Outcome::Allowed {
                *decision = standing(place, charge)?;
            }
        }
    }
    for (place, (change, counts_denied)) in changes.into_iter().enumerate() {
        if let Some(change) = change.filter(|_| !denied || counts_denied) {
            write(place, change);
        }
    }
    Ok(decisions)
}

/// Whether two charges of one request name the same bucket: a mistake, as neither could know of the other.
pub fn has_duplicate(charges: &[Charge]) -> bool {
    charges.iter().enumerate().any(|(place, charge)| {
        charges[..place].iter().any(|other| other.bucket.fingerprint == charge.bucket.fingerprint)
    })
}
