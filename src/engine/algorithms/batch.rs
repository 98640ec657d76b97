//! Decides the charges of one request together: all or nothing.

use smallvec::SmallVec;

use super::charge::Charge;
use super::decision::{Attempt, Decision, Decisions, Detail, Outcome};
use super::micros::Micros;
use super::state::{Edit, NeedsRedis};

/// A list with at most this many charges needs no allocation.
pub const FEW: usize = 4;

/// The edits of a request, by the index of the charge.
pub type Edits = SmallVec<[(usize, Edit); FEW]>;

/// Decides `charges` together, and adds the edits to those given. `decide` decides the charge with this index, and `peek`
/// returns the state of its bucket without the charge.
///
/// If any charge is denied, only edits that count denied requests are made. The decisions on the other charges are then the
/// states of their buckets: without the charge, or with it if it counts.
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
    if decisions.iter().any(Decision::is_denied) {
        edits.retain(|(index, _)| counting.contains(index));
        let mut details = std::mem::take(&mut decisions.details);
        details.retain_mut(|(index, detail)| {
            let is_dropped = decisions.get(*index).is_some_and(|decision| decision.outcome == Outcome::Allowed);
            !is_dropped || detail.undo()
        });
        for (index, (decision, charge)) in decisions.iter_mut().zip(charges).enumerate() {
            if decision.outcome == Outcome::Allowed {
                *decision = if counting.contains(&index) {
                    let wait = decision.retry_after.filter(|wait| *wait > Micros(0));
                    details.extend(wait.map(|wait| (index, Detail::Counted(wait))));
                    Decision { outcome: Outcome::Unchanged, retry_after: Some(Micros(0)), ..*decision }
                } else {
                    peek(index, charge)?
                };
            }
        }
        details.sort_by_key(|(index, _)| *index);
        decisions.details = details;
    }
    Ok(decisions)
}

/// Returns true if two charges of one request have the same bucket. This is an error, because neither would see the other.
pub fn has_duplicate(charges: &[Charge]) -> bool {
    charges.iter().enumerate().any(|(index, charge)| {
        charges[..index].iter().any(|other| other.bucket.fingerprint == charge.bucket.fingerprint)
    })
}
