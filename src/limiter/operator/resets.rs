//! Resets all ids of a limit, and keeps this process's resets in step with those that gateways at one store share.

use std::time::Duration;

use super::blocks::{FIRST_INTERVAL, INTERVAL, KnownVersion};
use super::{Operator, OperatorError};
use crate::engine::limit::resets::{LimitReset, MOST_RESETS, obstacle};
use crate::engine::text::quote::quoted;
use crate::engine::text::suggest::nearest;
use crate::store::StoreError;
use crate::telemetry::metrics::SharedNote;

impl Operator {
    /// Makes all buckets of a limit full: here at once, in other gateways at one store when they look for resets next. `by` is the
    /// operator's name.
    pub async fn reset_all(&self, name: &str, by: String) -> Result<LimitReset, OperatorError> {
        let (view, now) = (self.limiter.view(), self.clock.now());
        let limits = view.rules().limits();
        let Some(limit) = limits.iter().find(|limit| limit.name == name) else {
            let help = nearest(name, limits.iter().map(|limit| limit.name.as_str()));
            let help = help.map_or_else(String::new, |known| format!("; did you mean `{known}`?"));
            return Err(OperatorError::Unknown(format!("there is no limit {}{help}", quoted(name))));
        };
        if let Some(reason) = obstacle(limit.algorithm) {
            return Err(OperatorError::Unsupported(format!("{} {reason}", limit.name)));
        }
        let mut known = self.known_resets.lock().await;
        self.catch_up_on_resets(&mut known).await?;
        let mut list = self.limiter.shared.resets();
        let last = list.iter().find(|reset| reset.short == limit.short).map_or(0, |reset| reset.generation);
        let reset = LimitReset {
            short: limit.short.clone(),
            generation: (now.0 / 1_000).max(last + 1),
            limit: limit.name.clone(),
            by,
            at: now,
        };
        list.retain(|other| other.short != reset.short);
        let is_added = match self.limiter.store.shared_resets() {
            Some(shared) => shared.put(&reset, known.version.unwrap_or(0), now).await?,
            None => list.len() < MOST_RESETS,
        };
        if !is_added {
            let reason = format!("{MOST_RESETS} limits were reset, which is the maximum");
            return Err(OperatorError::Unsupported(reason));
        }
        // Frees the room of buckets that nothing looks up any more. It holds here at once, even if the store cannot be asked again.
        self.limiter.shared.drop_buckets(&reset.short);
        list.push(reset.clone());
        self.limiter.shared.apply_resets(list);
        let _ = self.catch_up_on_resets(&mut known).await;
        Ok(reset)
    }

    /// Learns other gateways' resets. Returns how long to wait until the next call.
    pub(super) async fn keep_up_with_resets(&self) -> Duration {
        let mut known = self.known_resets.lock().await;
        match self.catch_up_on_resets(&mut known).await {
            Ok(()) => known.is_logged = false,
            // The connection's own task logs that it is lost.
            Err(StoreError::Down) if known.version.is_none() => return FIRST_INTERVAL,
            Err(StoreError::Down) => {}
            Err(error) => {
                if !std::mem::replace(&mut known.is_logged, true) {
                    tracing::warn!("cannot read the resets from the store: {error}; the known ones stay in force");
                }
            }
        }
        INTERVAL
    }

    /// Applies the store's resets, if gateways share them and their version has changed. A store with an older version has lost them,
    /// for example by a restart without persistence; then they are written back.
    async fn catch_up_on_resets(&self, known: &mut KnownVersion) -> Result<(), StoreError> {
        let Some(shared) = self.limiter.store.shared_resets() else { return Ok(()) };
        let Some(mut stored) = shared.read(known.version, &self.clock).await? else { return Ok(()) };
        let ours = self.limiter.shared.resets();
        if let Some(version) = known.version.filter(|known| *known > stored.version)
            && !ours.is_empty()
        {
            if shared.restore(version, &ours, self.clock.now()).await? {
                tracing::warn!(resets = ours.len(), "the store lost its resets; they were written back");
                return Ok(());
            }
            // Another gateway was faster.
            stored = shared.read(None, &self.clock).await?.unwrap_or(stored);
        }
        self.tell_unread(SharedNote::Reset, &stored.unread);
        let (version, list) = (stored.version, stored.list);
        for reset in &list {
            if !ours.contains(reset) {
                self.limiter.shared.drop_buckets(&reset.short);
            }
        }
        if ours != list {
            self.limiter.shared.apply_resets(list);
        }
        known.version = Some(version);
        Ok(())
    }
}
