//! All or nothing: the charges of one request, decided together.

use super::charge::{Charge, Decision, Outcome};
use super::meter::{Change, Meter, decide, standing};
use super::numbers::Micros;

/// Decides `charges` against the buckets that `meter` reads, and hands what is to be written to `write`.
///
/// If any charge denies, nothing is written for any of them, and each of the others reports where its bucket stands
/// without the charge. `decisions` gets one decision a charge, in their order.
pub fn settle(
    charges: &[Charge],
    now: Micros,
    effective_from: Micros,
    meter: impl Fn(usize, &Charge) -> Option<Meter>,
    mut write: impl FnMut(usize, Change),
) -> Vec<Decision> {
    let mut changes = Vec::with_capacity(charges.len());
    let mut decisions = Vec::with_capacity(charges.len());
    for (place, charge) in charges.iter().enumerate() {
        let (decision, change) = decide(meter(place, charge).as_ref(), charge, now, effective_from);
        decisions.push(decision);
        changes.push(change);
    }
    if decisions.iter().any(Decision::is_denied) {
        for (place, (decision, charge)) in decisions.iter_mut().zip(charges).enumerate() {
            if decision.outcome == Outcome::Allowed {
                *decision = standing(meter(place, charge).as_ref(), charge, now, effective_from);
            }
        }
        return decisions;
    }
    for (place, change) in changes.into_iter().enumerate() {
        if change != Change::Keep {
            write(place, change);
        }
    }
    decisions
}

/// Whether two charges of one request name the same bucket: a mistake, as neither could know of the other.
pub fn has_duplicate(charges: &[Charge]) -> bool {
    charges.iter().enumerate().any(|(place, charge)| {
        charges[..place].iter().any(|other| other.bucket.fingerprint == charge.bucket.fingerprint)
    })
}
