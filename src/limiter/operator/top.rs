//! The ids that limits deny most.

use std::time::Instant;

use super::{Operator, OperatorError, View};
use crate::engine::limit::Limit;
use crate::engine::text::quote::quoted;
use crate::telemetry::denials::IdFormat;
use crate::telemetry::most_denied::{DenialKind, DeniedId};

/// The ids that a limit or a candidate has denied most, by kind of denial.
#[derive(Clone, Debug)]
pub struct TopIds {
    /// With the name of the candidate, if it has one.
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
    /// Returns up to `most` ids for each limit, candidate and kind of denial, or for this limit. Lists without an id are left out.
    pub fn top(&self, limit: Option<&str>, most: usize) -> Result<Vec<TopIds>, OperatorError> {
        let (view, shared, now) = (self.limiter.view(), &self.limiter.shared, Instant::now());
        let asked = self.limits_with_ids(&view, limit)?;
        let known = shared.most_denied.limits();
        let mut lists = Vec::new();
        for (_, asked) in asked {
            let name = asked.name.as_str();
            let named = asked.candidates.iter().filter(|candidate| candidate.name.is_some());
            let labels = [name.into()].into_iter().chain(named.map(|candidate| candidate.label(name)));
            let shown = |DeniedId { hash, key, denied, error }| TopId {
                id: asked.id_in(&key),
                hash: format!("{hash:016x}"),
                denied,
                error,
            };
            for label in labels.filter(|label| known.contains(&**label)) {
                for kind in DenialKind::ALL {
                    let ids: Vec<TopId> =
                        shared.most_denied.of(&label, kind, most, now).into_iter().map(shown).collect();
                    if !ids.is_empty() {
                        lists.push(TopIds { limit: label.to_string(), kind, ids });
                    }
                }
            }
        }
        Ok(lists)
    }

    /// Returns all limits with their places in the rules, or this limit. Fails if ids are not shown.
    pub(super) fn limits_with_ids<'v>(
        &self,
        view: &'v View,
        name: Option<&str>,
    ) -> Result<Vec<(u32, &'v Limit)>, OperatorError> {
        if self.limiter.shared.denial_log.ids == IdFormat::None {
            return Err(OperatorError::Unsupported("ids are not shown: Weir runs with `--log-ids none`".to_owned()));
        }
        let limits = (0..).zip(view.rules().limits()).chain([view.rules().carried()]);
        let asked: Vec<_> = limits.filter(|(_, limit)| name.is_none_or(|name| name == limit.name)).collect();
        match name {
            Some(name) if asked.is_empty() => {
                Err(OperatorError::Unknown(format!("there is no limit {}", quoted(name))))
            }
            _ => Ok(asked),
        }
    }
}
