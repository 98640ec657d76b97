//! The ids that limits in shadow and candidates would deny.

use std::sync::Arc;

use super::{Operator, OperatorError};
use crate::engine::limit::candidate::Candidate;
use crate::telemetry::most_denied::DenialKind;
use crate::telemetry::would_deny::WouldBeDeniedList;

/// The ids that a limit in shadow or a candidate would deny, since it began.
#[derive(Clone, Debug)]
pub struct WouldBeDeniedIds {
    pub limit: String,
    pub kind: DenialKind,
    /// The name of the candidate, if it has one.
    pub candidate: Option<Arc<str>>,
    pub list: WouldBeDeniedList,
    /// The ids of the list in the names of their buckets.
    pub names: Vec<String>,
}

impl Operator {
    /// Returns the list of each limit in shadow and each candidate, or of this limit.
    pub fn would_deny(&self, limit: Option<&str>) -> Result<Vec<WouldBeDeniedIds>, OperatorError> {
        let view = self.limiter.view();
        let asked = self.limits_with_ids(&view, limit)?;
        let mut lists = Vec::new();
        for (place, limit) in asked {
            let mut add = |kind, place_of_candidate, candidate: Option<&Candidate>| {
                let Some(known) = view.snapshot.would_deny.of(place, kind, place_of_candidate) else { return };
                let (limit_name, candidate) = (limit.name.clone(), candidate.and_then(|one| one.name.clone()));
                let list = known.list();
                let names = list.ids.iter().map(|id| limit.id_in(&id.key)).collect();
                lists.push(WouldBeDeniedIds { limit: limit_name, kind, candidate, list, names });
            };
            add(DenialKind::Shadow, None, None);
            for (place, candidate) in (0..).zip(&limit.candidates) {
                add(DenialKind::Candidate, Some(place), Some(candidate));
            }
        }
        Ok(lists)
    }
}
