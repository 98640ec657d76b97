//! Resets all ids of a limit.

use serde_json::{Value, json};

use super::noticeboard::Notice;
use super::{Operator, OperatorError};
use crate::engine::algorithms::micros::Micros;
use crate::engine::limit::resets::LimitReset;
use crate::limiter::Shared;
use crate::store::Note;
use crate::telemetry::metrics::SharedNote;

impl Notice for LimitReset {
    const KIND: SharedNote = SharedNote::Reset;
    const NOTES: &'static str = "resets";
    const PLURAL: &'static str = "resets";

    fn key(&self) -> &str {
        &self.short
    }

    fn until(&self) -> Micros {
        Note::NEVER
    }

    fn text(&self) -> Value {
        json!({ "generation": self.generation, "limit": self.limit, "by": self.by, "at": self.at.0 })
    }

    fn read(key: &str, _until: Micros, text: &Value) -> Option<Self> {
        let member = |name: &str| text[name].as_str().map(str::to_owned);
        Some(Self {
            generation: text["generation"].as_u64()?,
            limit: member("limit").unwrap_or_else(|| key.to_owned()),
            by: member("by").unwrap_or_default(),
            at: Micros(text["at"].as_u64().unwrap_or(0)),
            short: key.to_owned(),
        })
    }

    fn posted(shared: &Shared) -> Vec<Self> {
        shared.live.lock().resets.clone()
    }

    fn apply(shared: &Shared, list: Vec<Self>, _since: Micros) {
        let mut live = shared.live.lock();
        // Frees the room of buckets that nothing looks up any more.
        for reset in list.iter().filter(|reset| !live.resets.contains(reset)) {
            for table in shared.bounds.memory.as_deref().into_iter().chain([&shared.local]) {
                table.remove_limit(&reset.short);
            }
        }
        live.resets = list;
        let rules = shared.snapshot.load().rules.clone();
        shared.put(rules.with_resets(&live.resets));
    }
}

impl Operator {
    /// Makes all buckets of a limit full: here at once, in other gateways at one store when they look for resets next. `by` is the
    /// operator's name.
    pub async fn reset_all(&self, name: &str, by: String) -> Result<LimitReset, OperatorError> {
        let view = self.limiter.view();
        let (_, limit) = view.rules().find(name).map_err(OperatorError::Unknown)?;
        if let Some(reason) = limit.algorithm.immutability() {
            return Err(OperatorError::Unsupported(format!("{} {reason}", limit.name)));
        }
        let (board, at) = (self.board.open::<LimitReset>().await?, self.clock.now());
        let last = board.list.iter().find(|reset| reset.short == limit.short).map_or(0, |reset| reset.generation);
        let generation = (at.0 / 1_000).max(last + 1);
        let reset = LimitReset { short: limit.short.clone(), generation, limit: limit.name.clone(), by, at };
        board.post(std::slice::from_ref(&reset)).await?;
        Ok(reset)
    }
}
