//! The ids that a limit denies most, in bounded memory.

use crate::engine::algorithms::by_fingerprint::ByFingerprint;

/// The ids that are kept when their number has doubled.
const KEPT: usize = 1_024;

/// Counts denials by id. A count is exact if no more than `2 * KEPT` ids are denied; otherwise it may be too high, by no more
/// than `floor` (as in Space-Saving by Metwally and others).
#[derive(Debug, Default)]
pub(super) struct MostDenied {
    counts: ByFingerprint<u128, (u64, String)>,
    /// The most that a forgotten id may have had.
    floor: u64,
}

/// An id and its denials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeniedId {
    /// The components of the id as text, or empty for `by: global`.
    pub id: String,
    pub denied: u64,
}

impl MostDenied {
    pub(super) fn count(&mut self, fingerprint: u128, id: impl FnOnce() -> String) {
        let floor = self.floor;
        self.counts.entry(fingerprint).or_insert_with(|| (floor, id())).0 += 1;
        if self.counts.len() >= 2 * KEPT {
            self.forget();
        }
    }

    /// Returns the ids with the most denials, the most denied first.
    pub(super) fn top(self, most: usize) -> Vec<DeniedId> {
        let all = self.counts.into_values().map(|(denied, id)| DeniedId { id, denied });
        let mut all: Vec<DeniedId> = all.collect();
        all.sort_by(|a, b| b.denied.cmp(&a.denied).then_with(|| a.id.cmp(&b.id)));
        all.truncate(most);
        all
    }

    fn forget(&mut self) {
        let mut counts: Vec<u64> = self.counts.values().map(|(count, _)| *count).collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let floor = counts.get(KEPT).copied().unwrap_or_default();
        self.counts.retain(|_, (count, _)| *count > floor);
        self.floor = self.floor.max(floor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_denied_most_are_found_among_many_that_are_denied_once() {
        let mut ids = MostDenied::default();
        for number in 0..50_000_u128 {
            ids.count(number, || number.to_string());
            for often in 0..number % 5 {
                ids.count(100_000 + often, || format!("often {often}"));
            }
        }
        let top: Vec<String> = ids.top(4).into_iter().map(|id| id.id).collect();
        assert_eq!(top, ["often 0", "often 1", "often 2", "often 3"]);
    }
}
