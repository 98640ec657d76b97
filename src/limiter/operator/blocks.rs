//! Blocks ids, and keeps this process's blocks in step with those that gateways at one store share.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::{BucketState, Operator, OperatorError};
use crate::engine::algorithms::micros::Micros;
use crate::engine::rules::blocks::{Block, Blocks, MOST_BLOCKS};
use crate::engine::rules::limit::LimitMode;
use crate::store::{SharedBlocks, StoreError, StoredBlock, StoredBlocks};

/// How often the store is asked for the blocks of other gateways, so that they hold everywhere within a second.
const INTERVAL: Duration = Duration::from_millis(500);

/// The same until the first success: the connection is still being made.
const FIRST_INTERVAL: Duration = Duration::from_millis(20);

/// What this process knows of the store's blocks.
#[derive(Debug, Default)]
pub(super) struct KnownBlocks {
    version: Option<u64>,
    /// Whether it was logged that they cannot be read.
    is_logged: bool,
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
    ) -> Result<BucketState, OperatorError> {
        let (view, now) = (self.limiter.view(), self.clock.now());
        let found = view.rules().inspect(bucket, now)?;
        if !found.is_in_use() {
            let reason = if found.limit.mode == LimitMode::Off { "it is `mode: off`" } else { "it has no numbers" };
            let name = &found.limit.name;
            return Err(OperatorError::Unsupported(format!("{name} applies to no request: {reason}")));
        }
        let until = Micros(now.0.saturating_add(span.0));
        let block = Block { key: found.key.clone(), until, bucket: found.name(), reason, by };
        let full = || OperatorError::Unsupported(format!("{MOST_BLOCKS} ids are blocked, which is the maximum"));
        let mut known = self.known.lock().await;
        let shared = self.limiter.store().shared_blocks();
        if let Some(shared) = shared {
            self.catch_up(shared, &mut known).await?;
            let stored = StoredBlock { key: found.key.clone(), left: span, note: note(&block) };
            if !shared.block(&stored, known.version.unwrap_or(0)).await? {
                return Err(full());
            }
        }
        // It holds here at once, even if the store cannot be asked again.
        let mut list = self.others(&found.key, now);
        if shared.is_none() && list.len() >= MOST_BLOCKS {
            return Err(full());
        }
        list.push(block);
        self.apply(list);
        if let Some(shared) = shared {
            let _ = self.catch_up(shared, &mut known).await;
        }
        drop(known);
        self.state(&found, None, now).await
    }

    /// Ends the block of exactly this id or beginning, not one that covers more.
    pub async fn unblock(&self, bucket: &str) -> Result<BucketState, OperatorError> {
        let (view, now) = (self.limiter.view(), self.clock.now());
        let found = view.rules().inspect(bucket, now)?;
        let mut known = self.known.lock().await;
        let mut was_blocked = self.blocks().list().iter().any(|block| block.key == found.key && block.until > now);
        let shared = self.limiter.store().shared_blocks();
        if let Some(shared) = shared {
            self.catch_up(shared, &mut known).await?;
            was_blocked |= shared.unblock(&found.key, known.version.unwrap_or(0)).await?;
        }
        self.apply(self.others(&found.key, now));
        if let Some(shared) = shared {
            let _ = self.catch_up(shared, &mut known).await;
        }
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
        let blocks = self.blocks();
        let in_force = blocks.list().iter().filter(|block| block.until > now);
        let mut list: Vec<_> = in_force.map(|block| (block.clone(), block.until.since(now))).collect();
        list.sort_by(|(a, _), (b, _)| a.until.cmp(&b.until).then_with(|| a.key.cmp(&b.key)));
        list
    }

    /// Learns other gateways' blocks and drops those that have ended. Returns how long to wait until the next call.
    pub async fn keep_up(&self) -> Duration {
        let mut known = self.known.lock().await;
        let read = match self.limiter.store().shared_blocks() {
            None => Ok(()),
            Some(shared) => self.catch_up(shared, &mut known).await,
        };
        let now = self.clock.now();
        if self.blocks().list().iter().any(|block| block.until <= now) {
            self.apply(self.blocks().list().iter().filter(|block| block.until > now).cloned().collect());
        }
        match read {
            Ok(()) => {
                known.is_logged = false;
                INTERVAL
            }
            // The connection's own task logs that it is lost.
            Err(StoreError::Down) if known.version.is_none() => FIRST_INTERVAL,
            Err(error) => {
                if !known.is_logged && error != StoreError::Down {
                    known.is_logged = true;
                    tracing::warn!("cannot read the blocks from the store: {error}; the known ones stay in force");
                }
                INTERVAL
            }
        }
    }

    /// Applies the store's blocks if their version has changed. A store with an older version has lost them, for example by
    /// a restart without persistence; then they are written back.
    async fn catch_up(&self, shared: SharedBlocks<'_>, known: &mut KnownBlocks) -> Result<(), StoreError> {
        let Some(mut stored) = shared.read(known.version).await? else { return Ok(()) };
        let now = self.clock.now();
        if let Some(version) = known.version.filter(|known| *known > stored.version) {
            let blocks = self.blocks();
            let in_force = blocks.list().iter().filter(|block| block.until > now);
            let list: Vec<StoredBlock> = in_force
                .map(|block| StoredBlock { key: block.key.clone(), left: block.until.since(now), note: note(block) })
                .collect();
            let ours = StoredBlocks { version, list };
            if !ours.list.is_empty() {
                if shared.restore(&ours).await? {
                    tracing::warn!(blocks = ours.list.len(), "the store lost its blocks; they were written back");
                    return Ok(());
                }
                // Another gateway was faster.
                stored = shared.read(None).await?.unwrap_or(stored);
            }
        }
        self.apply(stored.list.into_iter().take(MOST_BLOCKS).map(|block| of_stored(block, now)).collect());
        known.version = Some(stored.version);
        Ok(())
    }

    pub(super) fn blocks(&self) -> Arc<Blocks> {
        self.limiter.shared().blocks.load_full()
    }

    /// The blocks in force, without that of this key.
    fn others(&self, key: &str, now: Micros) -> Vec<Block> {
        self.blocks().list().iter().filter(|block| block.key != key && block.until > now).cloned().collect()
    }

    fn apply(&self, list: Vec<Block>) {
        let fingerprinter = self.limiter.view().rules().fingerprinter();
        self.limiter.shared().block(Blocks::new(list, &fingerprinter));
    }
}

/// What the store keeps of a block for people to read, as JSON.
fn note(block: &Block) -> String {
    json!({ "bucket": block.bucket, "reason": block.reason, "by": block.by }).to_string()
}

fn of_stored(block: StoredBlock, now: Micros) -> Block {
    let note: serde_json::Value = serde_json::from_str(&block.note).unwrap_or_default();
    let text = |member: &str| note[member].as_str().map(str::to_owned);
    Block {
        until: Micros(now.0.saturating_add(block.left.0)),
        bucket: text("bucket").unwrap_or_else(|| block.key.clone()),
        reason: text("reason"),
        by: text("by").unwrap_or_default(),
        key: block.key,
    }
}
