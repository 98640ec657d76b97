//! The ids that limits in shadow and candidates would deny.

use super::{Operator, OperatorError};
use crate::telemetry::most_denied::DenialKind;
use crate::telemetry::would_deny::WouldBeDeniedList;

/// The ids that a limit in shadow or a candidate would deny, since it began.
#[derive(Clone, Debug)]
pub struct WouldBeDeniedIds {
    pub limit: String,
    pub kind: DenialKind,
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
            for kind in DenialKind::ALL {
                let Some(known) = view.snapshot.would_deny.of(place, kind) else { continue };
                let list = known.list();
                let names = list.ids.iter().map(|id| limit.id_in(&id.key)).collect();
                lists.push(WouldBeDeniedIds { limit: limit.name.clone(), kind, list, names });
            }
        }
        Ok(lists)
    }
}
