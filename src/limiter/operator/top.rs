//! The ids that limits deny most.

use std::time::Instant;

use super::{Operator, OperatorError};
use crate::engine::text::quote::quoted;
use crate::telemetry::denials::IdFormat;
use crate::telemetry::most_denied::{DenialKind, DeniedId};

/// The ids that a limit has denied most, by kind of denial.
#[derive(Clone, Debug)]
pub struct TopIds {
    pub limit: String,
    pub kind: DenialKind,
    pub ids: Vec<TopId>,
}

#[derive(Clone, Debug)]
pub struct TopId {
    /// The id in the name of its bucket.
    pub id: String,
    /// The text in the log, unless ids are logged in clear.
    pub hash: String,
    /// At most `error` too high.
    pub denied: u64,
    pub error: u64,
}

impl Operator {
    /// Returns up to `most` ids for each limit and kind of denial, or for this limit. Lists without an id are left out.
    pub fn top(&self, limit: Option<&str>, most: usize) -> Result<Vec<TopIds>, OperatorError> {
        let (view, shared, now) = (self.limiter.view(), &self.limiter.shared, Instant::now());
        if shared.denial_log.ids == IdFormat::None {
            return Err(OperatorError::Unsupported("ids are not shown: Weir runs with `--log-ids none`".to_owned()));
        }
        let rules = view.rules();
        if let Some(limit) = limit.filter(|limit| !rules.names().any(|name| name == *limit)) {
            return Err(OperatorError::Unknown(format!("there is no limit {}", quoted(limit))));
        }
        let known = shared.most_denied.limits();
        let mut lists = Vec::new();
        for asked in rules.limits().iter().chain([rules.carried().1]) {
            let name = asked.name.as_str();
            if limit.is_some_and(|limit| limit != name) || !known.contains(name) {
                continue;
            }
            let shown = |DeniedId { hash, key, denied, error }| TopId {
                id: asked.id_in(&key),
                hash: format!("{hash:016x}"),
                denied,
                error,
            };
            for kind in DenialKind::ALL {
                let ids: Vec<TopId> = shared.most_denied.of(name, kind, most, now).into_iter().map(shown).collect();
                if !ids.is_empty() {
                    lists.push(TopIds { limit: name.to_owned(), kind, ids });
                }
            }
        }
        Ok(lists)
    }
}
