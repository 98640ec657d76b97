//! Names the limits that one request may charge in different hash slots of a cluster.

use crate::commands::print::joined;
use crate::engine::limit::Limit;
use crate::engine::limit::rules::Rules;
use crate::engine::telling::tag_groups::tag_groups;

/// The most limits that a note names.
const MOST_NAMES: usize = 8;

/// Returns a line for each group of limits.
pub(super) fn notes(rules: &Rules) -> String {
    tag_groups(rules).iter().map(|group| note(group)).collect()
}

fn note(group: &[&Limit]) -> String {
    let all = if group.len() == 2 { "both" } else { "all" };
    format!(
        "note: {} may be charged in different hash slots of the cluster: a request then takes two round trips, and may briefly \
         deny a concurrent request that would fit; `tag: NAME` on {all} puts them together\n",
        names(group)
    )
}

fn names(group: &[&Limit]) -> String {
    let names = |limits: &[&Limit]| joined(limits.iter().map(|limit| &limit.name), ", ");
    match group {
        [] => String::new(),
        _ if group.len() > MOST_NAMES => {
            format!("{} and {} others", names(&group[..MOST_NAMES - 1]), group.len() + 1 - MOST_NAMES)
        }
        [others @ .., last] if !others.is_empty() => format!("{} and {}", names(others), last.name),
        [only, ..] => only.name.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::algorithms::micros::Micros;
    use crate::engine::algorithms::numbers::Numbers;
    use crate::engine::limit::allowance::Allowance;
    use crate::engine::limit::fingerprint::Fingerprinter;

    #[track_caller]
    fn check(global: usize, expected: &str) {
        let allowance = || Allowance::Windows([Numbers::fixed(1).unwrap()].into());
        let limit = |number| Limit { by: Vec::new(), allowance: allowance(), ..Limit::new(&format!("L{number}")) };
        let rules = Rules::new((1..=global).map(limit).collect(), Fingerprinter::new((1, 2)), Micros(0), Vec::new());
        let notes = notes(&rules);
        assert!(notes.contains(expected) && notes.lines().count() <= 1, "{expected} is not in\n{notes}");
    }

    #[test]
    fn a_note_names_the_limits_up_to_a_bound() {
        check(1, "");
        check(2, "note: L1 and L2 may be charged in different hash slots of the cluster: ");
        check(2, "; `tag: NAME` on both puts them together\n");
        check(3, "note: L1, L2 and L3 may");
        check(3, "on all puts");
        check(9, "note: L1, L2, L3, L4, L5, L6, L7 and 2 others may");
    }
}
