//! The blocks that all gateways at a server share: calls of `lua/blocks.lua`.
//!
//! They are few and rarely change, so each gateway has a copy, and polls for a new version.

use std::sync::LazyLock;
use std::time::Duration;

use redis::{Cmd, Value};
use serde_json::json;
use tokio::time::timeout;

use super::RedisStore;
use super::call::{assembled, describe};
use crate::clock::Clock;
use crate::engine::algorithms::micros::Micros;
use crate::engine::rules::blocks::{Block, MOST_BLOCKS};
use crate::store::StoreError;

/// Called by source, since there are only one or two calls per second: a call by hash would have to handle a server that has lost
/// the script.
static SOURCE: LazyLock<String> = LazyLock::new(|| assembled(include_str!("../../../lua/blocks.lua")));

/// The ends of the keys; no bucket's begins with `!`.
const KEYS: [&str; 2] = ["!blocked", "!blocked-notes"];

/// How long a call may take. No request waits for it.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The most blocks that one call reads. The server does nothing else meanwhile, and requests have 20 ms: ten thousand took it
/// 130 ms on a busy machine.
const PAGE: usize = 200;

/// The most times that all blocks are read, if they change in between.
const MOST_READS: usize = 3;

/// The blocks on a server. Each change increases their version, which is 0 if nothing was blocked lately, or if the server has
/// lost them. A change may have been made after [`StoreError::Late`]. Times are this machine's.
#[derive(Clone, Copy)]
pub struct SharedBlocks<'a>(&'a RedisStore);

/// A part of the blocks: their version, the number of members that were read, and the blocks among them.
type Page = (u64, usize, Vec<Block>);

impl RedisStore {
    pub fn blocks(&self) -> SharedBlocks<'_> {
        SharedBlocks(self)
    }
}

impl SharedBlocks<'_> {
    /// Adds a block, or replaces that of the same key. The new version is greater than `known`. Returns false if
    /// [`MOST_BLOCKS`] others are in force.
    pub async fn block(self, block: &Block, known: u64, now: Micros) -> Result<bool, StoreError> {
        let (most, left, known) = (MOST_BLOCKS.to_string(), left(block, now), known.to_string());
        is_changed(&self.call(&["block", &most, &left, &block.key, &note(block), &known]).await?)
    }

    /// Ends the block with this key. The new version is greater than `known`. Returns false if no such block exists.
    pub async fn unblock(self, key: &str, known: u64) -> Result<bool, StoreError> {
        is_changed(&self.call(&["unblock", key, &known.to_string()]).await?)
    }

    /// Writes all blocks back. Returns false if the server has this version or a later one.
    pub async fn restore(self, version: u64, blocks: &[Block], now: Micros) -> Result<bool, StoreError> {
        let mut words = vec!["restore".to_owned(), version.to_string()];
        words.extend(blocks.iter().flat_map(|block| [left(block, now), block.key.clone(), note(block)]));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        is_changed(&self.call(&words).await?)
    }

    /// Reads the version and all blocks in the order of their ends; `None` if the version is still `known`.
    pub async fn read(self, known: Option<u64>, clock: &Clock) -> Result<Option<(u64, Vec<Block>)>, StoreError> {
        let mut stored = (0, Vec::new());
        for _ in 0..MOST_READS {
            let (version, looked_at, list) = self.read_page(known, 0, clock).await?;
            if known == Some(version) {
                return Ok(None);
            }
            stored = (version, list);
            let (mut from, mut rest, mut current) = (looked_at, looked_at, version);
            while rest == PAGE && current == version {
                let list;
                (current, rest, list) = self.read_page(None, from, clock).await?;
                stored.1.extend(list);
                from += rest;
            }
            if current == version {
                break;
            }
        }
        // Blocks that changed while they were read keep the version from before, so the next call reads them again.
        Ok(Some(stored))
    }

    async fn read_page(self, known: Option<u64>, from: usize, clock: &Clock) -> Result<Page, StoreError> {
        // No version is this large, so the server replies with its blocks.
        let version = known.unwrap_or(u64::MAX).to_string();
        let (start, count) = (from.to_string(), PAGE.to_string());
        let reply = self.call(&["read", &version, &start, &count]).await?;
        let Value::Array(values) = &reply else { return Err(unexpected(&reply)) };
        let (version, looked_at, members) = match values.as_slice() {
            [Value::Int(version)] => (version, &0, &[][..]),
            [Value::Int(version), Value::Int(looked_at), members @ ..] => (version, looked_at, members),
            _ => return Err(unexpected(&reply)),
        };
        let (now, mut list) = (clock.now(), Vec::with_capacity(members.len() / 3));
        for member in members.chunks(3) {
            let [Value::BulkString(key), Value::Int(left), Value::BulkString(note)] = member else {
                return Err(unexpected(&reply));
            };
            let until = now.0.saturating_add(u64::try_from(*left).unwrap_or(0));
            list.push(block(String::from_utf8_lossy(key).into_owned(), Micros(until), note));
        }
        Ok((u64::try_from(*version).unwrap_or(0), usize::try_from(*looked_at).unwrap_or(0), list))
    }

    async fn call(self, arguments: &[&str]) -> Result<Value, StoreError> {
        let live = self.0.connection()?;
        let start = self.0.key_start();
        let mut command = Cmd::new();
        command.arg("EVAL").arg(SOURCE.as_str()).arg(KEYS.len());
        command.arg(&KEYS.map(|key| format!("{start}{key}"))).arg(arguments);
        let answer = timeout(TIMEOUT, live.reply(&command)).await.map_err(|_| StoreError::Late(TIMEOUT))?;
        answer.and_then(Value::extract_error).map_err(|error| {
            if error.code().is_none() {
                return StoreError::Broken;
            }
            self.0.note_redirect();
            StoreError::Failed(describe(&error))
        })
    }
}

/// The time left, in microseconds.
fn left(block: &Block, now: Micros) -> String {
    block.until.since(now).0.to_string()
}

/// Returns the rest of a block, as JSON for people and other gateways.
fn note(block: &Block) -> String {
    json!({ "bucket": block.bucket, "reason": block.reason, "by": block.by }).to_string()
}

fn block(key: String, until: Micros, note: &[u8]) -> Block {
    let note: serde_json::Value = serde_json::from_slice(note).unwrap_or_default();
    let text = |member: &str| note[member].as_str().map(str::to_owned);
    let (bucket, reason, by) = (text("bucket").unwrap_or_else(|| key.clone()), text("reason"), text("by"));
    Block { key, until, bucket, reason, by: by.unwrap_or_default() }
}

fn is_changed(answer: &Value) -> Result<bool, StoreError> {
    match answer {
        Value::Int(1) => Ok(true),
        Value::Int(0) => Ok(false),
        other => Err(unexpected(other)),
    }
}

fn unexpected(value: &Value) -> StoreError {
    StoreError::Failed(format!("unexpected reply of the script of blocks: {value:?}"))
}
