//! Notes with an end that all gateways at a server share: calls of `lua/blocks.lua`.
//!
//! They are few and rarely change, so each gateway has a copy, and asks for their versions often, but for the notes only if those
//! have changed.

use std::future::pending;
use std::sync::LazyLock;
use std::time::Duration;

use redis::{Cmd, RedisResult, Value};
use tokio::time::timeout;

use super::call::{assembled, describe, text};
use super::diagnosis::lacks_right;
use super::{RedisStore, Servers};
use crate::clock::Clock;
use crate::engine::algorithms::micros::Micros;
use crate::store::StoreError;

/// Called by source, since there are only a few calls per second: a call by hash would have to handle a server that has lost
/// the script.
static SOURCE: LazyLock<String> = LazyLock::new(|| assembled(include_str!("../../../lua/blocks.lua")));

/// The deadline of a call. No request waits for it.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The rights that they need, besides those of limits.
const RIGHTS: &str = "+zscore +zrange +zrangebyscore +zcard +zadd +zrem +hget +hset +hdel";

/// The member of the sorted set of notes whose score is their version.
const VERSION: &str = "!version";

/// The most notes that one call reads. The server does nothing else meanwhile, and requests have 20 ms: ten thousand took it
/// 130 ms on a busy machine.
const PAGE: usize = 200;

/// The most times that all notes are read, if they change in between.
const MOST_READS: usize = 3;

/// Notes on a server. Each change increases their version, which is 0 if there were none lately, or if the server has lost them. A
/// change may have been made after [`StoreError::Late`]. Times are this machine's.
#[derive(Clone, Copy)]
pub struct SharedNotes<'a> {
    store: &'a RedisStore,
    name: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// No two notes of a name have the same.
    pub key: String,
    pub until: Micros,
    pub text: Vec<u8>,
}

impl Note {
    /// The end of a note that never expires: the year 2255. The script's arithmetic is exact up to there.
    pub const NEVER: Micros = Micros(9_000_000_000_000_000);
}

impl RedisStore {
    /// The notes in the keys that end in `!name` and `!name-notes`; no bucket's begins with `!`.
    pub fn notes(&self, name: &'static str) -> SharedNotes<'_> {
        SharedNotes { store: self, name }
    }

    /// The versions of the notes of these names, in one round trip.
    pub async fn note_versions<const NAMES: usize>(
        &self,
        names: [&'static str; NAMES],
    ) -> Result<[u64; NAMES], StoreError> {
        let start = self.key_start();
        let commands = names.map(|name| {
            let mut command = redis::cmd("ZSCORE");
            command.arg(format!("{start}!{name}")).arg(VERSION);
            command
        });
        let mut versions = [0; NAMES];
        for (version, reply) in versions.iter_mut().zip(self.replies(&commands).await?) {
            *version = match &reply {
                Value::Nil => 0,
                // A number of microseconds, which is exact.
                Value::Double(score) => score.to_string().parse().map_err(|_| unexpected(&reply))?,
                reply => text(reply).and_then(|score| score.parse().ok()).ok_or_else(|| unexpected(reply))?,
            };
        }
        Ok(versions)
    }

    /// Sends commands about keys of the first tag in one go. Returns their replies, or the error that one of them is.
    async fn replies(&self, commands: &[Cmd]) -> Result<Vec<Value>, StoreError> {
        let of_cluster;
        let node = match &self.servers {
            Servers::One(node) => node,
            Servers::Cluster(cluster) => {
                of_cluster = cluster.node(0)?;
                &*of_cluster
            }
        };
        let live = node.connection().ok_or(StoreError::Down)?;
        let replying = async {
            let mut replies = node.numbered_replies(&live, commands).await?;
            if let Servers::Cluster(cluster) = &self.servers {
                for (command, reply) in commands.iter().zip(&mut replies) {
                    cluster.follow_command(0, command, reply).await?;
                }
            }
            replies.into_iter().map(Value::extract_error).collect()
        };
        let replies: RedisResult<Vec<Value>> =
            timeout(TIMEOUT, replying).await.map_err(|_| StoreError::Late(TIMEOUT))?;
        replies.map_err(|error| match describe(&error) {
            _ if error.code().is_none() => StoreError::Broken,
            text if lacks_right(&text) => StoreError::Failed(format!(
                "the user may not call what blocks, live overrides and resets need: `ACL SETUSER {} {RIGHTS}` ({text})",
                self.user
            )),
            text => StoreError::Failed(text),
        })
    }

    /// Asks the server for notifications of changed notes, from the next connection on; see [`Self::notes_changed`].
    pub fn watch_notes(&self) {
        if let Servers::One(node) = &self.servers {
            node.watch_keys();
        }
    }

    /// Returns true if the server sends notifications. A cluster does not, and a server or a user may lack the commands.
    pub fn is_notified_of_notes(&self) -> bool {
        matches!(&self.servers, Servers::One(node) if node.is_notified())
    }

    /// Returns when notes may have changed since their versions were read.
    pub async fn notes_changed(&self) {
        match &self.servers {
            Servers::One(node) => node.key_changed().await,
            Servers::Cluster(_) => pending().await,
        }
    }
}

/// A part of the notes: their version, the number of members that were read, and the notes among them.
type Page = (u64, usize, Vec<Note>);

impl SharedNotes<'_> {
    /// Adds a note, or replaces that of the same key. The new version is greater than `known`. Returns false if `most` others
    /// are in force.
    pub async fn put(self, note: &Note, most: usize, known: u64, now: Micros) -> Result<bool, StoreError> {
        let words =
            [b"block".to_vec(), bytes(&most), left(note, now), bytes(&note.key), note.text.clone(), bytes(&known)];
        is_changed(&self.call(&words).await?)
    }

    /// Removes the note with this key. The new version is greater than `known`. Returns false if it does not exist.
    pub async fn remove(self, key: &str, known: u64) -> Result<bool, StoreError> {
        is_changed(&self.call(&[b"unblock".to_vec(), bytes(&key), bytes(&known)]).await?)
    }

    /// Writes all notes back. Returns false if the server has this version or a later one.
    pub async fn restore(self, version: u64, notes: &[Note], now: Micros) -> Result<bool, StoreError> {
        let mut words = vec![b"restore".to_vec(), bytes(&version)];
        words.extend(notes.iter().flat_map(|note| [left(note, now), bytes(&note.key), note.text.clone()]));
        is_changed(&self.call(&words).await?)
    }

    /// Reads the version and all notes in the order of their ends; `None` if the version is still `known`.
    pub async fn read(self, known: Option<u64>, clock: &Clock) -> Result<Option<(u64, Vec<Note>)>, StoreError> {
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
        // Notes that changed while they were read keep the version from before, so the next call reads them again.
        Ok(Some(stored))
    }

    async fn read_page(self, known: Option<u64>, from: usize, clock: &Clock) -> Result<Page, StoreError> {
        // No version is this large, so the server replies with its notes.
        let version = bytes(&known.unwrap_or(u64::MAX));
        let reply = self.call(&[b"read".to_vec(), version, bytes(&from), bytes(&PAGE)]).await?;
        let Value::Array(values) = &reply else { return Err(unexpected(&reply)) };
        let (version, looked_at, members) = match values.as_slice() {
            [Value::Int(version)] => (version, &0, &[][..]),
            [Value::Int(version), Value::Int(looked_at), members @ ..] => (version, looked_at, members),
            _ => return Err(unexpected(&reply)),
        };
        let (now, mut list) = (clock.now(), Vec::with_capacity(members.len() / 3));
        for member in members.chunks(3) {
            let [Value::BulkString(key), Value::Int(left), Value::BulkString(text)] = member else {
                return Err(unexpected(&reply));
            };
            let until = Micros(now.0.saturating_add(u64::try_from(*left).unwrap_or(0)));
            list.push(Note { key: String::from_utf8_lossy(key).into_owned(), until, text: text.clone() });
        }
        Ok((u64::try_from(*version).unwrap_or(0), usize::try_from(*looked_at).unwrap_or(0), list))
    }

    async fn call(self, arguments: &[Vec<u8>]) -> Result<Value, StoreError> {
        let Self { store, name } = self;
        let start = store.key_start();
        let mut command = Cmd::new();
        command.arg("EVAL").arg(SOURCE.as_str()).arg(2);
        command.arg(format!("{start}!{name}")).arg(format!("{start}!{name}-notes")).arg(arguments);
        store.replies(&[command]).await.map(|mut replies| replies.pop().unwrap_or(Value::Nil))
    }
}

fn bytes(value: &impl ToString) -> Vec<u8> {
    value.to_string().into_bytes()
}

/// The time left, in microseconds.
fn left(note: &Note, now: Micros) -> Vec<u8> {
    bytes(&note.until.min(Note::NEVER).since(now).0)
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
