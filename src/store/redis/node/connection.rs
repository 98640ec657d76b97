//! A connection to the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, Value};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::store::redis::call::{Requests, ScriptRef};
use crate::store::redis::credentials::Password;

/// A connection and its statistics.
pub(in crate::store::redis) struct Connection {
    pub(super) client: MultiplexedConnection,
    pub(super) opened: Instant,
    /// True if the server sends a notification when a key changes that was read on this connection (`CLIENT TRACKING`).
    pub(super) is_tracking: bool,
    /// The password that it was opened with, if that is from a file.
    pub(super) password: Option<Password>,
    /// Replies received.
    pub(super) heard: AtomicU64,
    /// The shortest time that a reply took, in microseconds: the way there and back, whatever the server's load.
    pub(super) shortest: AtomicU64,
    /// Outstanding calls whose requests have already been answered without the server.
    pub(super) overdue: AtomicU32,
    pub(super) has_ended: Arc<AtomicBool>,
    /// Reads and writes the socket. When it ends, outstanding calls end with an error.
    pub(super) driver: AbortOnDropHandle<()>,
    /// Asks the Sentinels, if there are some, whether this server is still the master.
    pub(super) _watcher: Option<AbortOnDropHandle<()>>,
}

impl Connection {
    /// Makes one call, and a second one with the source if the server does not know the script, which it then has not run.
    /// `asking`: the node of a cluster is about to receive the hash slot.
    pub(super) async fn ask(&self, requests: &Requests, asking: bool) -> Result<Value, RedisError> {
        match self.send(requests, ScriptRef::Hash, asking).await {
            Err(error) if error.code() == Some("NOSCRIPT") => self.send(requests, ScriptRef::Source, asking).await,
            answer => answer,
        }
    }

    async fn send(&self, requests: &Requests, script: ScriptRef, asking: bool) -> Result<Value, RedisError> {
        let command = requests.command(script);
        let reply = if asking { self.reply_when_asking(command).await } else { self.reply(&command).await };
        match reply? {
            // `Value::extract_error` would find the errors of single requests in the reply as well.
            Value::ServerError(error) => Err(error.into()),
            value => Ok(value),
        }
    }

    /// Sends ASKING, which holds for the next command only, and a command in one write. Returns the reply to the command.
    pub(in crate::store::redis) async fn reply_when_asking(&self, command: Cmd) -> Result<Value, RedisError> {
        let mut pipeline = redis::pipe();
        pipeline.cmd("ASKING").add_command(command);
        let sent = Instant::now();
        let mut replies = self.client.clone().send_packed_commands(&pipeline, 1, 1).await?;
        self.count_reply(sent);
        Ok(replies.pop().unwrap_or(Value::Nil))
    }

    /// Sends commands in one write and returns their replies.
    pub(super) async fn replies(&self, commands: impl Iterator<Item = &Cmd>) -> Result<Vec<Value>, RedisError> {
        let mut pipeline = redis::pipe();
        for command in commands {
            pipeline.add_command(command.clone());
        }
        let sent = Instant::now();
        let replies = self.client.clone().send_packed_commands(&pipeline, 0, pipeline.len()).await;
        if replies.is_ok() {
            self.count_reply(sent);
        }
        replies
    }

    /// Sends a command and returns its reply.
    pub(in crate::store::redis) async fn reply(&self, command: &Cmd) -> Result<Value, RedisError> {
        let sent = Instant::now();
        let reply = self.client.clone().send_packed_command(command).await;
        if reply.is_ok() {
            self.count_reply(sent);
        }
        reply
    }

    fn count_reply(&self, sent: Instant) {
        self.heard.fetch_add(1, Ordering::Relaxed);
        let micros = u64::try_from(sent.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.shortest.fetch_min(micros, Ordering::Relaxed);
    }
}
