//! The changes of a bucket, and the buckets that they do not apply to.

use super::OperatorError;
use crate::engine::algorithms::numbers::Numbers;
use crate::engine::limit::allowance::Allowance;
use crate::engine::telling::bucket_info::BucketInfo;

/// A change of a bucket, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BucketChange {
    /// Makes it full.
    Reset,
    /// Gives this much back, up to a full bucket.
    Refund(u64),
    /// Leaves this much in each window, or all that a window holds if that is less.
    Set(u64),
}

impl BucketChange {
    pub(super) fn check(self, found: &BucketInfo<'_>) -> Result<(), OperatorError> {
        let name = found.name();
        let no_bucket = |reason: &str| Err(OperatorError::Unsupported(format!("{name} has no bucket: {reason}")));
        if found.missing > 0 {
            let wanted = found.limit.by.len();
            let given = wanted - found.missing;
            return Err(OperatorError::Invalid(format!("{name} has {given} of {wanted} id components")));
        }
        match found.allowance {
            Allowance::Unlimited => return no_bucket("it is unlimited"),
            Allowance::Deny => return no_bucket("`deny: true` denies it"),
            Allowance::Disabled => return no_bucket("the limit has no numbers for this id"),
            Allowance::Windows(_) | Allowance::Elevated(_) => {}
        }
        let numbers = found.allowance.windows().into_iter().flat_map(|windows| windows.iter());
        let is_possible = |numbers: &Numbers| self == Self::Reset && numbers.is_slots();
        let immutable = numbers.clone().filter(|numbers| !is_possible(numbers));
        if let Some(reason) = immutable.into_iter().find_map(|numbers| numbers.algorithm().immutability()) {
            return Err(OperatorError::Unsupported(format!("{name} {reason}")));
        }
        let elevated = found.allowance.elevated().map(|elevated| &elevated.numbers);
        let capacity = numbers.chain(elevated).map(Numbers::burst).max().unwrap_or(0);
        match self {
            Self::Refund(0) => Err(OperatorError::Invalid("`cost` must be at least 1".to_owned())),
            Self::Set(remaining) if remaining > capacity => Err(OperatorError::Invalid(format!(
                "`remaining` must be at most {capacity}, which is all that {name} holds"
            ))),
            Self::Reset | Self::Refund(_) | Self::Set(_) => Ok(()),
        }
    }
}
