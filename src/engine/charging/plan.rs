//! The plan of a request: its charges, and the limits that decide without the store.

use std::fmt::Write;

use smallvec::SmallVec;

use crate::engine::algorithms::charge::{Bucket, Charge, ChargeOrigin, Input, Mode, Role};
use crate::engine::algorithms::delay::Delay;
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::numbers::Numbers;
use crate::engine::charging::joint_plan::JointPlan;
use crate::engine::limit::candidate::CandidateSet;
use crate::engine::limit::request_numbers::RequestNumbersResult;
use crate::engine::request::part::PartError;

/// The charges of a request, and the limits that decide without the store.
#[derive(Debug, Default)]
pub struct Plan {
    /// Decided together. Most requests have one charge, which needs no allocation.
    pub charges: SmallVec<[Charge; 1]>,
    /// Limits that deny without asking the store, in the order of the rules.
    pub denials: Vec<LimitDenial>,
    /// Limits that allow without asking the store.
    pub unlimited: Vec<u32>,
    /// Limits that cover the request, and that it is exempt from.
    pub exempt: Vec<u32>,
    /// Limits whose cost the response reports. Until then their charges take a reserve, or look for it.
    pub unsettled: Vec<u32>,
    /// The limits whose numbers a request may bring, and whether it did.
    pub request_numbers: Vec<(u32, RequestNumbersResult)>,
    /// The descriptors, if the plan is for several.
    pub joint: Option<Box<JointPlan>>,
}

/// A denial by a limit that does not need the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitDenial {
    /// The index of the limit.
    pub limit: u32,
    /// True if the request is denied. Otherwise the limit or the id is in shadow.
    pub enforced: bool,
    pub reason: DenialReason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenialReason {
    /// `deny: true` of the limit or an override.
    Deny,
    /// A part or the cost is missing, with `missing: deny`.
    Missing,
    /// A part, a claim or the cost is malformed, with `malformed: deny`.
    Malformed,
    /// An operator has blocked the id, for this long from now.
    Blocked(Micros),
}

impl From<PartError> for DenialReason {
    fn from(reason: PartError) -> Self {
        match reason {
            PartError::Missing => Self::Missing,
            PartError::Malformed => Self::Malformed,
        }
    }
}

/// Sets the fingerprints of a limit's windows apart in all their bits (2^128 divided by the golden ratio; it is odd, so
/// that no two buckets become one).
const WINDOW_STRIDE: u128 = 0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835;

impl Bucket {
    /// Appends a mark to the key: another bucket of the same id.
    pub(crate) fn mark(&mut self, mark: &str) {
        self.key.push_str(mark);
        let add = |sum: u128, byte: u8| (sum ^ u128::from(byte)).wrapping_mul(WINDOW_STRIDE);
        self.fingerprint = mark.bytes().fold(self.fingerprint, add);
    }
}

/// Follows the id in the key of a candidate's bucket, before its name. Ids are percent-encoded and names have no `#`, so no other bucket
/// has this key.
const KEY_MARK: &str = "#candidate";

impl Plan {
    /// Adds the charges of candidates whose numbers the id does not have. `bucket` and `origin` are those of their limit.
    pub(crate) fn add_candidates(
        &mut self,
        candidates: CandidateSet<'_>,
        bucket: &Bucket,
        cost: u64,
        mode: Mode,
        origin: ChargeOrigin,
    ) {
        for (place, candidate, _) in candidates.each().filter(|(_, _, is_in_force)| !is_in_force) {
            let mut bucket = bucket.clone();
            bucket.mark(KEY_MARK);
            if let Some(name) = &candidate.name {
                bucket.mark(":");
                bucket.mark(name);
            }
            let origin = ChargeOrigin { role: Role::Candidate(place), ..origin };
            if let Some(windows) = candidate.allowance.windows() {
                self.add_windows(windows, bucket, cost, mode, origin);
            }
        }
    }

    /// Adds one charge for each window. Every window has its own bucket. The first keeps the plain key, so that a limit
    /// which gains a second window keeps what its buckets have used.
    pub(crate) fn add_windows(
        &mut self,
        windows: &[Numbers],
        mut bucket: Bucket,
        cost: u64,
        mode: Mode,
        origin: ChargeOrigin,
    ) {
        let Some((first, others)) = windows.split_first() else { return };
        bucket.mark(first.algorithm().key_suffix());
        let plain = (!others.is_empty()).then(|| bucket.clone());
        self.charges.push(Charge { origin, ..Charge::new(bucket, first.clone(), cost, mode) });
        let Some(plain) = plain else { return };
        for (window, numbers) in (1..).zip(others) {
            let mut bucket = plain.clone();
            let _ = write!(bucket.key, "#{window}");
            bucket.fingerprint = bucket.fingerprint.wrapping_add(u128::from(window).wrapping_mul(WINDOW_STRIDE));
            let origin = ChargeOrigin { window, ..origin };
            self.charges.push(Charge { origin, ..Charge::new(bucket, numbers.clone(), cost, mode) });
        }
    }

    /// Sets how long the caller of each charge can wait at most.
    pub(crate) fn bound_delays(&mut self, patience: impl Fn(&Charge) -> Micros) {
        for charge in &mut self.charges {
            if let Some(delay) = charge.delay() {
                let patience = delay.patience.min(patience(charge));
                charge.input = Some(Box::new(Input::Delay(Delay { patience, ..*delay })));
            }
        }
    }

    /// Notes that the tokens of the charges from `first` on may have to be given back.
    pub(crate) fn reserve(&mut self, first: usize) {
        self.charges.iter_mut().skip(first).for_each(Charge::reserve);
    }
}
