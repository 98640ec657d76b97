//! Probes: does the server still answer, and does each reply belong to its command?

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::{Cmd, ErrorKind, RedisError, Value};

use super::Node;
use super::connection::Connection;
use super::patience::within;
use crate::store::Fault;
use crate::store::redis::call::describe;
use crate::store::redis::diagnosis::Diagnosis;

/// The interval at which the connection's owner looks whether the server has answered.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The looks without an answer before a server that was asked nothing is probed. A round trip costs it as much as 20 decisions in a
/// shared call, and a hundred idle gateways with a probe per second and connection 1 % of a core.
const IDLE_LOOKS: u32 = 5;

/// The least time that a probe may take. Nothing waits for it, and a stall that requests survive is no reason to reconnect.
pub(super) const PROBE_TIMEOUT: Duration = Duration::from_millis(250);

/// The server's silence, as far as its connection's owner has seen.
#[derive(Default)]
pub(super) struct Silence {
    /// The replies that had come and the numbers that had been given out at the last look.
    heard: u64,
    asked: u64,
    looks: u32,
}

impl Silence {
    /// Looks again. A server that has answered since the last look needs no probe. One that was asked and has not is probed at
    /// once, and an idle one from time to time.
    pub(super) fn is_probe_due(&mut self, live: &Connection, node: &Node) -> bool {
        let (heard, asked) = (live.heard.load(Ordering::Relaxed), node.number.load(Ordering::Relaxed));
        let (was_heard, was_asked) = (heard != self.heard, asked != self.asked);
        (self.heard, self.asked) = (heard, asked);
        self.looks = if was_heard { 0 } else { self.looks + 1 };
        !was_heard && (was_asked || self.looks >= IDLE_LOOKS)
    }
}

impl Node {
    /// Asks the server to repeat a number.
    pub(super) async fn probe(&self, live: &Arc<Connection>) -> Result<(), Diagnosis> {
        let patience = PROBE_TIMEOUT.max(self.timeout);
        let silent = || Diagnosis::new(Fault::Silent, format!("PING had no answer within {patience:?}"));
        match within(patience, pin!(self.numbered_replies(live, &[]))).await.ok_or_else(silent)? {
            Ok(_) => Ok(()),
            Err(error) if error.code().is_none() => Err(Diagnosis::new(Fault::Unreachable, describe(&error))),
            // A server that is busy with a script answers; a new connection would change nothing.
            Err(error) => Diagnosis::of_call(&describe(&error), &self.key_starts).map_or(Ok(()), Err),
        }
    }

    /// Sends a PING with a number and these commands in one write. Returns the replies to the commands if the number comes back;
    /// otherwise gives the connection up, as a lost or duplicated reply would shift all others.
    pub(in crate::store::redis) async fn numbered_replies(
        &self,
        live: &Arc<Connection>,
        commands: &[Cmd],
    ) -> Result<Vec<Value>, RedisError> {
        let number = self.number();
        let mut ping = redis::cmd("PING");
        ping.arg(&number);
        let mut replies = live.replies(std::iter::once(&ping).chain(commands)).await?.into_iter();
        match replies.next().unwrap_or(Value::Nil).extract_error()? {
            Value::BulkString(echo) if echo == number.as_bytes() => Ok(replies.collect()),
            other => {
                let text = format!("a reply was lost or duplicated on the way, PING was answered by {other:?}");
                self.give_up(live, Diagnosis::new(Fault::Unreachable, &*text));
                Err(RedisError::from((ErrorKind::Client, "unexpected reply", text)))
            }
        }
    }
}
