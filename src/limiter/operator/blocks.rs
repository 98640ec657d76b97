//! Blocks ids, and keeps this process's blocks in step with those that gateways at one store share.

use std::sync::Arc;
use std::time::Duration;

use super::{BucketReport, Operator, OperatorError};
use crate::engine::algorithms::micros::Micros;
use crate::engine::limit::LimitMode;
use crate::engine::limit::blocks::{Block, Blocks, MOST_BLOCKS};
use crate::engine::text::quote::quoted;
use crate::store::StoreError;
use crate::telemetry::metrics::SharedNote;

/// The interval at which the store is asked for other gateways' blocks, so that they hold everywhere within a second.
pub(super) const INTERVAL: Duration = Duration::from_millis(500);

/// The same until the first success: the connection is still being made.
pub(super) const FIRST_INTERVAL: Duration = Duration::from_millis(20);

/// This process's copy of what the store has.
#[derive(Debug, Default)]
pub(super) struct KnownVersion {
    pub(super) version: Option<u64>,
    /// True once an unreadable copy was logged.
    pub(super) is_logged: bool,
}

impl Operator {
    /// Blocks an id, or all ids that begin with it, for a time from now on. Replaces an earlier block of the id. `by` is the
    /// operator's name.
    pub async fn block(
        &self,
        bucket: &str,
        span: Micros,
        reason: Option<String>,
        by: String,
    ) -> Result<BucketReport, OperatorError> {
        let (view, now) = (self.limiter.view(), self.clock.now());
        let found = view.rules().inspect(bucket, now)?;
        if !found.is_in_use() {
            let reason = if found.limit.mode == LimitMode::Off { "it is `mode: off`" } else { "it has no numbers" };
            let name = &found.limit.name;
            return Err(OperatorError::Unsupported(format!("{name} applies to no request: {reason}")));
        }
        let until = Micros(now.0.saturating_add(span.0));
        let block = Block { key: found.key.clone(), until, bucket: found.name(), reason, by };
        let mut known = self.known.lock().await;
        self.catch_up(&mut known).await?;
        let mut list = self.others(&found.key, now);
        let is_added = match self.limiter.store.shared_blocks() {
            Some(shared) => shared.block(&block, known.version.unwrap_or(0), now).await?,
            None => list.len() < MOST_BLOCKS,
        };
        if !is_added {
            let reason = format!("{MOST_BLOCKS} ids are blocked, which is the maximum");
            return Err(OperatorError::Unsupported(reason));
        }
        // It holds here at once, even if the store cannot be asked again.
        list.push(block);
        self.apply(list);
        let _ = self.catch_up(&mut known).await;
        drop(known);
        self.state(&found, None, now).await
    }

    /// Ends the block of exactly this id or beginning, not one that covers more.
    pub async fn unblock(&self, bucket: &str) -> Result<BucketReport, OperatorError> {
        let (view, now) = (self.limiter.view(), self.clock.now());
        let found = view.rules().inspect(bucket, now)?;
        let mut known = self.known.lock().await;
        let mut was_blocked = self.in_force(now).iter().any(|block| block.key == found.key);
        self.catch_up(&mut known).await?;
        if let Some(shared) = self.limiter.store.shared_blocks() {
            was_blocked |= shared.unblock(&found.key, known.version.unwrap_or(0)).await?;
        }
        self.apply(self.others(&found.key, now));
        let _ = self.catch_up(&mut known).await;
        drop(known);
        if !was_blocked {
            let name = found.name();
            let covering = self.blocks().covering(&found.key, now).map(|block| block.bucket.clone());
            let help = covering.map_or_else(String::new, |by| format!("; the block of {by} covers it"));
            return Err(OperatorError::Unknown(format!("{name} is not blocked{help}")));
        }
        self.state(&found, None, now).await
    }

    /// The blocks in force, each with the time left, the longest last.
    pub fn blocked(&self) -> Vec<(Block, Micros)> {
        let now = self.clock.now();
        let mut list = self.in_force(now);
        list.sort_by(|a, b| (a.until, &a.key).cmp(&(b.until, &b.key)));
        let with_time_left = |block: Block| {
            let left = block.until.since(now);
            (block, left)
        };
        list.into_iter().map(with_time_left).collect()
    }

    /// Learns other gateways' blocks, resets and live overrides, and drops those that have ended. Returns how long to wait until the next
    /// call.
    pub async fn keep_up(&self) -> Duration {
        let next = self.keep_up_with_blocks().await.min(self.keep_up_with_overrides().await);
        next.min(self.keep_up_with_resets().await)
    }

    async fn keep_up_with_blocks(&self) -> Duration {
        let mut known = self.known.lock().await;
        let read = self.catch_up(&mut known).await;
        let list = self.in_force(self.clock.now());
        if list.len() < self.blocks().list().len() {
            self.apply(list);
        }
        match read {
            Ok(()) => known.is_logged = false,
            // The connection's own task logs that it is lost.
            Err(StoreError::Down) if known.version.is_none() => return FIRST_INTERVAL,
            Err(StoreError::Down) => {}
            Err(error) => {
                if !std::mem::replace(&mut known.is_logged, true) {
                    tracing::warn!("cannot read the blocks from the store: {error}; the known ones stay in force");
                }
            }
        }
        INTERVAL
    }

    /// Applies the store's blocks, if gateways share them and their version has changed. A store with an older version has
    /// lost them, for example by a restart without persistence; then they are written back.
    async fn catch_up(&self, known: &mut KnownVersion) -> Result<(), StoreError> {
        let Some(shared) = self.limiter.store.shared_blocks() else { return Ok(()) };
        let Some(mut stored) = shared.read(known.version, &self.clock).await? else { return Ok(()) };
        if let Some(version) = known.version.filter(|known| *known > stored.version) {
            let now = self.clock.now();
            let ours = self.in_force(now);
            if !ours.is_empty() {
                if shared.restore(version, &ours, now).await? {
                    tracing::warn!(blocks = ours.len(), "the store lost its blocks; they were written back");
                    return Ok(());
                }
                // Another gateway was faster.
                stored = shared.read(None, &self.clock).await?.unwrap_or(stored);
            }
        }
        self.tell_unread(SharedNote::Block, &stored.unread);
        self.apply(stored.list);
        known.version = Some(stored.version);
        Ok(())
    }

    /// Counts what the store has and this process cannot read, and tells of it in the log. Called when the notes have changed.
    pub(super) fn tell_unread(&self, kind: SharedNote, unread: &[String]) {
        let metrics = &self.limiter.shared.metrics.listeners;
        metrics.shared_notes_unread[kind].set(i64::try_from(unread.len()).unwrap_or(i64::MAX));
        if let [first, ..] = unread {
            tracing::warn!(
                unread = unread.len(),
                "the store has {}s that cannot be read and have no effect here, such as {}; another version of Weir may have written them",
                kind.label(),
                quoted(first)
            );
        }
    }

    pub fn blocks(&self) -> Arc<Blocks> {
        self.limiter.shared.blocks.load_full()
    }

    fn in_force(&self, now: Micros) -> Vec<Block> {
        self.blocks().list().iter().filter(|block| block.until > now).cloned().collect()
    }

    /// The blocks in force, without that of this key.
    fn others(&self, key: &str, now: Micros) -> Vec<Block> {
        let mut list = self.in_force(now);
        list.retain(|block| block.key != key);
        list
    }

    fn apply(&self, list: Vec<Block>) {
        self.limiter.shared.block(Blocks::new(list, &self.limiter.view().rules().fingerprinter));
    }
}
