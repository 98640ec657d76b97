//! The ids that are blocked, as the server keeps them for all gateways: calls of `lua/blocks.lua`.
//!
//! They are few and change seldom, so each gateway has a copy of its own, and asks now and then whether there is another
//! version.

use std::sync::LazyLock;
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::time::timeout;

use super::script::without_comments;
use super::{RedisStore, describe};
use crate::engine::blocks::MOST_BLOCKS;
use crate::engine::numbers::Micros;
use crate::store::StoreError;

/// Called by its source each time: that is one or two calls a second, and a second script would need its own way back
/// from a server that has lost it.
static SOURCE: LazyLock<String> = LazyLock::new(|| without_comments(include_str!("../../../lua/blocks.lua")));

/// The keys; `!` begins no bucket's.
const KEYS: [&str; 2] = ["weir:{0}:!blocked", "weir:{0}:!blocked-notes"];

/// How long such a call may take. No request waits for it.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Blocks that are read in one call. The server does nothing else meanwhile, and requests have 20 ms: ten thousand took
/// it 130 ms on a busy machine.
const PAGE: usize = 200;

/// How often all is read anew because something has changed in between.
const MOST_READS: usize = 3;

/// What is to become of an id.
#[derive(Clone, Copy, Debug)]
pub enum BlockEdit<'a> {
    /// It is blocked from now on.
    Block {
        /// The beginning of its buckets' keys.
        key: &'a str,
        /// For how long: at most [`crate::engine::blocks::LONGEST_BLOCK`].
        span: Micros,
        /// What is noted beside it. The store does not read it.
        note: &'a str,
        /// The version that is known, 0 for none: the new one is later.
        known: u64,
    },
    /// It is blocked no longer.
    Unblock {
        /// The beginning of its buckets' keys.
        key: &'a str,
        /// The version that is known, 0 for none: the new one is later.
        known: u64,
    },
}

/// What an edit came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edited {
    /// It is done.
    Done,
    /// Nothing has changed: there are [`MOST_BLOCKS`] others, or there is nothing to unblock or to restore.
    Unchanged,
}

/// An id that is blocked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptBlock {
    /// The beginning of its buckets' keys.
    pub key: String,
    /// For how long yet.
    pub left: Micros,
    /// What was noted.
    pub note: String,
}

/// All that is blocked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptBlocks {
    /// A later one for every change; 0 if nothing was blocked lately, or if the server has lost it.
    pub version: u64,
    /// In the order of their ends.
    pub list: Vec<KeptBlock>,
}

impl RedisStore {
    /// Blocks an id or ends its block. After [`StoreError::Late`] it may have been done.
    pub async fn edit_block(&self, edit: BlockEdit<'_>) -> Result<Edited, StoreError> {
        let answer = match edit {
            BlockEdit::Block { key, span, note, known } => {
                let (most, span, known) = (MOST_BLOCKS.to_string(), span.0.to_string(), known.to_string());
                self.call_blocks(&["block", &most, &span, key, note, &known]).await?
            }
            BlockEdit::Unblock { key, known } => self.call_blocks(&["unblock", key, &known.to_string()]).await?,
        };
        edited(&answer)
    }

    /// Writes back all that is blocked, unless the store has this version or a later one. After [`StoreError::Late`] it
    /// may have been done.
    pub async fn restore_blocks(&self, blocks: &KeptBlocks) -> Result<Edited, StoreError> {
        let mut words = vec!["restore".to_owned(), blocks.version.to_string()];
        words.extend(
            blocks.list.iter().flat_map(|block| [block.left.0.to_string(), block.key.clone(), block.note.clone()]),
        );
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        edited(&self.call_blocks(&words).await?)
    }

    /// What is blocked; `None` if it is what it was under the version that is known.
    pub async fn blocks(&self, known: Option<u64>) -> Result<Option<KeptBlocks>, StoreError> {
        let mut kept = KeptBlocks { version: 0, list: Vec::new() };
        for _ in 0..MOST_READS {
            let (version, looked_at, list) = self.read_blocks(known, 0).await?;
            if known == Some(version) {
                return Ok(None);
            }
            kept = KeptBlocks { version, list };
            let (mut from, mut rest, mut current) = (looked_at, looked_at, version);
            while rest == PAGE && current == version {
                let list;
                (current, rest, list) = self.read_blocks(None, from).await?;
                kept.list.extend(list);
                from += rest;
            }
            if current == version {
                break;
            }
        }
        // Read across a change, it has the version of before, and is read again the next time.
        Ok(Some(kept))
    }

    /// A page: the version, how many members were looked at, and the blocks among them.
    async fn read_blocks(&self, known: Option<u64>, from: usize) -> Result<(u64, usize, Vec<KeptBlock>), StoreError> {
        // No version is as large, so there is something to be read.
        let version = known.unwrap_or(u64::MAX).to_string();
        let (start, count) = (from.to_string(), PAGE.to_string());
        let values = match self.call_blocks(&["read", &version, &start, &count]).await? {
            Value::Array(values) => values,
            other => return Err(nonsense(&other)),
        };
        let mut values = values.into_iter();
        let version = match values.next() {
            Some(Value::Int(version)) => u64::try_from(version).unwrap_or(0),
            other => return Err(nonsense(&other.unwrap_or(Value::Nil))),
        };
        let looked_at = match values.next() {
            Some(Value::Int(looked_at)) => usize::try_from(looked_at).unwrap_or(0),
            None => 0,
            Some(other) => return Err(nonsense(&other)),
        };
        let mut list = Vec::with_capacity(values.len() / 3);
        while let Some(member) = values.next() {
            match (member, values.next(), values.next()) {
                (Value::BulkString(key), Some(Value::Int(left)), Some(Value::BulkString(note))) => {
                    let left = Micros(u64::try_from(left).unwrap_or(0));
                    list.push(KeptBlock { key: text(key), left, note: text(note) });
                }
                (member, ..) => return Err(nonsense(&member)),
            }
        }
        Ok((version, looked_at, list))
    }

    async fn call_blocks(&self, arguments: &[&str]) -> Result<Value, StoreError> {
        let live = self.shared.live.load_full().ok_or(StoreError::Down)?;
        let mut command = Cmd::new();
        command.arg("EVAL").arg(SOURCE.as_str()).arg(KEYS.len()).arg(&KEYS).arg(arguments);
        let answer = timeout(TIMEOUT, live.reply(&command)).await;
        match answer.map_err(|_| StoreError::Late(TIMEOUT))? {
            Ok(Value::ServerError(error)) => Err(StoreError::Refused(describe(&error.into()))),
            Ok(value) => Ok(value),
            Err(error) if error.code().is_none() => Err(StoreError::Broken),
            Err(error) => Err(StoreError::Refused(describe(&error))),
        }
    }
}

fn edited(answer: &Value) -> Result<Edited, StoreError> {
    match answer {
        Value::Int(1) => Ok(Edited::Done),
        Value::Int(0) => Ok(Edited::Unchanged),
        other => Err(nonsense(other)),
    }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

fn nonsense(value: &Value) -> StoreError {
    StoreError::Refused(format!("the script of blocks answers {value:?}"))
}
