//! The blocked ids, which the server keeps for all gateways: calls of `lua/blocks.lua`.
//!
//! They are few and rarely change, so each gateway has a copy, and polls for a new version.

use std::sync::LazyLock;
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::time::timeout;

use super::RedisStore;
use super::connection::describe;
use super::source::without_comments;
use crate::engine::algorithms::micros::Micros;
use crate::engine::rules::blocks::MOST_BLOCKS;
use crate::store::StoreError;

/// Called by source, since there are only one or two calls per second: a call by hash would have to handle a server that has lost
/// the script.
static SOURCE: LazyLock<String> = LazyLock::new(|| without_comments(include_str!("../../../lua/blocks.lua")));

/// The keys; no bucket's begins with `!`.
const KEYS: [&str; 2] = ["weir:{0}:!blocked", "weir:{0}:!blocked-notes"];

/// How long a call may take. No request waits for it.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The most blocks that one call reads. The server does nothing else meanwhile, and requests have 20 ms: ten thousand took it
/// 130 ms on a busy machine.
const PAGE: usize = 200;

/// The most times that all blocks are read, if they change in between.
const MOST_READS: usize = 3;

/// A blocked id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredBlock {
    /// The beginning of its buckets' keys.
    pub key: String,
    /// How long it stays blocked: at most [`crate::engine::rules::blocks::LONGEST_BLOCK`].
    pub left: Micros,
    /// A note for people and other gateways. The store does not read it.
    pub note: String,
}

/// All blocked ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredBlocks {
    /// Increases with every change; 0 if nothing was blocked lately, or if the server has lost it.
    pub version: u64,
    /// In the order of their ends.
    pub list: Vec<StoredBlock>,
}

/// The blocked ids that all gateways share. A change may have been made after [`StoreError::Late`].
#[derive(Clone, Copy)]
pub struct SharedBlocks<'a>(&'a RedisStore);

impl RedisStore {
    /// The blocked ids on this server.
    pub fn blocks(&self) -> SharedBlocks<'_> {
        SharedBlocks(self)
    }
}

impl SharedBlocks<'_> {
    /// Blocks an id, whatever was left of an earlier block. `known` is the known version, 0 for none: the new one is later.
    /// Returns false if [`MOST_BLOCKS`] others are blocked.
    pub async fn block(self, block: &StoredBlock, known: u64) -> Result<bool, StoreError> {
        let (most, left, known) = (MOST_BLOCKS.to_string(), block.left.0.to_string(), known.to_string());
        is_changed(&self.call(&["block", &most, &left, &block.key, &block.note, &known]).await?)
    }

    /// Ends the block with this key, with `known` as for [`Self::block`]. Returns false if there is none.
    pub async fn unblock(self, key: &str, known: u64) -> Result<bool, StoreError> {
        is_changed(&self.call(&["unblock", key, &known.to_string()]).await?)
    }

    /// Writes all blocks back. Returns false if the store has this version or a later one.
    pub async fn restore(self, blocks: &StoredBlocks) -> Result<bool, StoreError> {
        let mut words = vec!["restore".to_owned(), blocks.version.to_string()];
        words.extend(
            blocks.list.iter().flat_map(|block| [block.left.0.to_string(), block.key.clone(), block.note.clone()]),
        );
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        is_changed(&self.call(&words).await?)
    }

    /// Reads all blocks; `None` if their version is still `known`.
    pub async fn read(self, known: Option<u64>) -> Result<Option<StoredBlocks>, StoreError> {
        let mut stored = StoredBlocks { version: 0, list: Vec::new() };
        for _ in 0..MOST_READS {
            let (version, looked_at, list) = self.read_page(known, 0).await?;
            if known == Some(version) {
                return Ok(None);
            }
            stored = StoredBlocks { version, list };
            let (mut from, mut rest, mut current) = (looked_at, looked_at, version);
            while rest == PAGE && current == version {
                let list;
                (current, rest, list) = self.read_page(None, from).await?;
                stored.list.extend(list);
                from += rest;
            }
            if current == version {
                break;
            }
        }
        // Blocks that changed while they were read keep the version from before, so the next call reads them again.
        Ok(Some(stored))
    }

    /// Reads a page: the version, the number of members that were looked at, and the blocks among them.
    async fn read_page(self, known: Option<u64>, from: usize) -> Result<(u64, usize, Vec<StoredBlock>), StoreError> {
        // No version is this large, so the server replies with its blocks.
        let version = known.unwrap_or(u64::MAX).to_string();
        let (start, count) = (from.to_string(), PAGE.to_string());
        let values = match self.call(&["read", &version, &start, &count]).await? {
            Value::Array(values) => values,
            other => return Err(unexpected(&other)),
        };
        let mut values = values.into_iter();
        let version = match values.next() {
            Some(Value::Int(version)) => u64::try_from(version).unwrap_or(0),
            other => return Err(unexpected(&other.unwrap_or(Value::Nil))),
        };
        let looked_at = match values.next() {
            Some(Value::Int(looked_at)) => usize::try_from(looked_at).unwrap_or(0),
            None => 0,
            Some(other) => return Err(unexpected(&other)),
        };
        let mut list = Vec::with_capacity(values.len() / 3);
        while let Some(member) = values.next() {
            match (member, values.next(), values.next()) {
                (Value::BulkString(key), Some(Value::Int(left)), Some(Value::BulkString(note))) => {
                    let left = Micros(u64::try_from(left).unwrap_or(0));
                    list.push(StoredBlock { key: text(key), left, note: text(note) });
                }
                (member, ..) => return Err(unexpected(&member)),
            }
        }
        Ok((version, looked_at, list))
    }

    async fn call(self, arguments: &[&str]) -> Result<Value, StoreError> {
        let live = self.0.shared.live.load_full().ok_or(StoreError::Down)?;
        let mut command = Cmd::new();
        command.arg("EVAL").arg(SOURCE.as_str()).arg(KEYS.len()).arg(&KEYS).arg(arguments);
        let answer = timeout(TIMEOUT, live.reply(&command)).await;
        match answer.map_err(|_| StoreError::Late(TIMEOUT))? {
            Ok(Value::ServerError(error)) => Err(StoreError::Failed(describe(&error.into()))),
            Ok(value) => Ok(value),
            Err(error) if error.code().is_none() => Err(StoreError::Broken),
            Err(error) => Err(StoreError::Failed(describe(&error))),
        }
    }
}

fn is_changed(answer: &Value) -> Result<bool, StoreError> {
    match answer {
        Value::Int(1) => Ok(true),
        Value::Int(0) => Ok(false),
        other => Err(unexpected(other)),
    }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

fn unexpected(value: &Value) -> StoreError {
    StoreError::Failed(format!("unexpected reply of the script of blocks: {value:?}"))
}
