//! A connection to the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, Value};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::store::redis::call::{Requests, ScriptRef};

/// A connection and its statistics.
pub(in crate::store::redis) struct Connection {
    pub(super) client: MultiplexedConnection,
    pub(super) opened: Instant,
    /// Replies received.
    pub(super) heard: AtomicU64,
    /// Outstanding calls whose requests have already been answered without the server.
    pub(super) overdue: AtomicU32,
    pub(super) has_ended: Arc<AtomicBool>,
    /// Reads and writes the socket. When it ends, outstanding calls end with an error.
    pub(super) driver: AbortOnDropHandle<()>,
}

impl Connection {
    /// Makes one call, and a second one with the source if the server does not know the script, which it then has not run.
    pub(super) async fn ask(&self, requests: &Requests) -> Result<Value, RedisError> {
        match self.send(requests, ScriptRef::Hash).await {
            Err(error) if error.code() == Some("NOSCRIPT") => self.send(requests, ScriptRef::Source).await,
            answer => answer,
        }
    }

    async fn send(&self, requests: &Requests, script: ScriptRef) -> Result<Value, RedisError> {
        match self.reply(&requests.command(script)).await? {
            // `Value::extract_error` would find the errors of single requests in the reply as well.
            Value::ServerError(error) => Err(error.into()),
            value => Ok(value),
        }
    }

    /// Sends a command and returns its reply.
    pub(in crate::store::redis) async fn reply(&self, command: &Cmd) -> Result<Value, RedisError> {
        let reply = self.client.clone().send_packed_command(command).await;
        if reply.is_ok() {
            self.heard.fetch_add(1, Ordering::Relaxed);
        }
        reply
    }
}
