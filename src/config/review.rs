//! Reads `review_by`, and warns of the limits whose date has passed.

use super::instant::parse_review_by;
use super::limit::Limits;
use super::lints::Lint;
use super::node::Node;
use super::problem::ReadResult;
use crate::engine::algorithms::micros::Micros;

pub(super) fn read(node: &Node) -> ReadResult<Micros> {
    parse_review_by(node.text()?).map_err(|(message, help)| node.error(message, help))
}

/// Warns of the limits that should have been reviewed before `now`.
pub(super) fn warn(limits: &Limits, now: Micros) {
    for (index, draft) in limits.drafts.iter().enumerate() {
        if draft.limit.review_by.is_some_and(|end| end <= now) {
            let findings = &draft.name.findings;
            findings.ignores().enter(Some(index));
            let message = "the review date of this limit has passed";
            let help = "review the limit, then move `review_by` or remove it";
            findings.warning(Lint::ReviewDue, draft.places.of("review_by"), message, help);
            findings.ignores().enter(None);
        }
    }
}
