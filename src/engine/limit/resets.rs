//! Resets of all ids of a limit. A mark in the keys of the limit's buckets tells them from those before the reset, which are never
//! looked up again and expire.

use std::sync::Arc;

use crate::engine::algorithms::charge::Bucket;
use crate::engine::algorithms::micros::Micros;
use crate::engine::limit::Limit;
use crate::engine::limit::rules::Rules;

/// The last reset of all ids of a limit. It has no end: without its mark, buckets from before it would count again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitReset {
    /// The limit's name in keys.
    pub short: String,
    /// Greater than that of the reset before: milliseconds since the epoch, usually.
    pub generation: u64,
    /// The limit's name at that time.
    pub limit: String,
    /// The operator.
    pub by: String,
    pub at: Micros,
}

/// The marks of limits, by index.
pub(crate) type Marks = Arc<[Option<Box<str>>]>;

impl LimitReset {
    /// Follows the id in keys. Ids are percent-encoded and names have no `#`, so no other key has it.
    fn mark(&self) -> Box<str> {
        format!("#r{:x}", self.generation).into()
    }
}

impl Rules {
    /// Returns the same rules with these resets and no others.
    #[must_use]
    pub fn with_resets(mut self, resets: &[LimitReset]) -> Self {
        let of = |limit: &Limit| {
            // It may have had another algorithm at the time of the reset.
            let last = resets.iter().filter(|_| limit.algorithm.immutability().is_none());
            last.into_iter().find(|reset| reset.short == limit.short).map(LimitReset::mark)
        };
        let marks: Marks = self.limits.iter().map(of).collect();
        self.marks = marks.iter().any(Option::is_some).then_some(marks);
        self
    }

    /// Marks a bucket of the limit at this index, if the limit was reset.
    #[inline]
    pub(crate) fn mark_reset(&self, place: u32, bucket: &mut Bucket) {
        if let Some(mark) = self.marks.as_ref().and_then(|marks| marks.get(place as usize)?.as_deref()) {
            bucket.mark(mark);
        }
    }
}
