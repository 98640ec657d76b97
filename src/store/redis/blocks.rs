//! The blocks that all gateways at a server share.

use serde_json::json;

use super::RedisStore;
use super::notes::{Note, SharedNotes, StoredNotes};
use crate::clock::Clock;
use crate::engine::algorithms::micros::Micros;
use crate::engine::limit::blocks::{Block, MOST_BLOCKS};
use crate::store::StoreError;

/// The blocks on a server. Each change increases their version, which is 0 if nothing was blocked lately, or if the server has
/// lost them. A change may have been made after [`StoreError::Late`]. Times are this machine's.
#[derive(Clone, Copy)]
pub struct SharedBlocks<'a>(SharedNotes<'a>);

impl RedisStore {
    pub fn blocks(&self) -> SharedBlocks<'_> {
        SharedBlocks(SharedNotes { store: self, keys: ["!blocked", "!blocked-notes"] })
    }
}

impl SharedBlocks<'_> {
    /// Adds a block, or replaces that of the same key. The new version is greater than `known`. Returns false if
    /// [`MOST_BLOCKS`] others are in force.
    pub async fn block(self, block: &Block, known: u64, now: Micros) -> Result<bool, StoreError> {
        self.0.put(&note(block), MOST_BLOCKS, known, now).await
    }

    /// Ends the block with this key. The new version is greater than `known`. Returns false if no such block exists.
    pub async fn unblock(self, key: &str, known: u64) -> Result<bool, StoreError> {
        self.0.remove(key, known).await
    }

    /// Writes all blocks back. Returns false if the server has this version or a later one.
    pub async fn restore(self, version: u64, blocks: &[Block], now: Micros) -> Result<bool, StoreError> {
        self.0.restore(version, &blocks.iter().map(note).collect::<Vec<_>>(), now).await
    }

    /// Reads the version and all blocks in the order of their ends; `None` if the version is still `known`.
    pub async fn read(self, known: Option<u64>, clock: &Clock) -> Result<Option<StoredNotes<Block>>, StoreError> {
        let read = self.0.read(known, clock).await?;
        Ok(read.map(|notes| StoredNotes::of(notes, MOST_BLOCKS, |note| Some(block(note)))))
    }
}

/// The rest of a block is JSON for people and other gateways.
fn note(block: &Block) -> Note {
    let text = json!({ "bucket": block.bucket, "reason": block.reason, "by": block.by }).to_string();
    Note { key: block.key.clone(), until: block.until, text: text.into_bytes() }
}

/// The key and the end are all that a block needs.
fn block(note: &Note) -> Block {
    let (key, until) = (note.key.clone(), note.until);
    let note: serde_json::Value = serde_json::from_slice(&note.text).unwrap_or_default();
    let text = |member: &str| note[member].as_str().map(str::to_owned);
    let (bucket, reason, by) = (text("bucket").unwrap_or_else(|| key.clone()), text("reason"), text("by"));
    Block { key, until, bucket, reason, by: by.unwrap_or_default() }
}
