//! The ids that a limit denies most.

use std::cmp::Reverse;

use crate::engine::frequent_ids::FrequentIds;

/// Denials by id, with the parts of the id as text, or empty for `by: global`. They are exact if fewer than 1,792 ids are denied.
pub(super) type MostDenied = FrequentIds<u128, String, 1_024>;

/// An id and its denials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeniedId {
    pub id: String,
    pub denied: u64,
}

/// Returns the ids with the most denials, the most denied first.
pub(super) fn top(ids: MostDenied, most: usize) -> Vec<DeniedId> {
    let mut all: Vec<DeniedId> =
        ids.into_counters().map(|counter| DeniedId { id: counter.text, denied: counter.count }).collect();
    all.sort_by(|a, b| (Reverse(a.denied), &a.id).cmp(&(Reverse(b.denied), &b.id)));
    all.truncate(most);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_denied_most_are_found_among_many_that_are_denied_once() {
        let mut ids = MostDenied::default();
        for number in 0..50_000_u128 {
            ids.add(number, || number.to_string());
            for often in 0..number % 5 {
                ids.add(100_000 + often, || format!("often {often}"));
            }
        }
        let top: Vec<String> = top(ids, 4).into_iter().map(|id| id.id).collect();
        assert_eq!(top, ["often 0", "often 1", "often 2", "often 3"]);
    }
}
