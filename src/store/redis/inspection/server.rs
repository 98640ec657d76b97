//! The facts about one server.

use std::time::Duration;

use redis::{Cmd, RedisResult, Value};
use tokio::time::timeout;

use super::facts::{ClockOffset, Purpose, ServerFacts};
use super::info::{NodeLine, cluster_state, info, nodes};
use super::rights::Trial;
use super::timing::{offset, round_trips};
use crate::clock::Clock;
use crate::store::redis::call::text;
use crate::store::redis::credentials::Credentials;
use crate::store::redis::session::Session;
use crate::store::redis::stream::Address;

/// The timeout of connecting, login included. The store has the same.
const OPEN_TIMEOUT: Duration = Duration::from_secs(1);

/// The timeout of a reply.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// The number of times that the clock is read. The call that took the least counts.
const CLOCK_READS: usize = 16;

/// A connection to one server.
pub(super) struct Questions(Session);

impl Questions {
    /// The error says what to do about it.
    pub(super) async fn open(address: &Address, credentials: &Credentials) -> Result<Self, String> {
        match timeout(OPEN_TIMEOUT, Session::log_in(address, credentials)).await {
            Ok(opened) => Ok(Self(opened.map_err(|diagnosis| diagnosis.text)?)),
            Err(_) => Err(format!("no connection within {OPEN_TIMEOUT:?}")),
        }
    }

    /// The reply, or `None` if it is late.
    pub(super) async fn reply(&self, command: &Cmd) -> Option<RedisResult<Value>> {
        timeout(ANSWER_TIMEOUT, self.0.ask(command)).await.ok()
    }

    /// The reply, unless it is late or an error.
    pub(super) async fn value(&self, words: &[&str]) -> Option<Value> {
        let (name, rest) = words.split_first()?;
        self.reply(redis::cmd(name).arg(rest)).await?.ok()
    }

    async fn text(&self, words: &[&str]) -> Option<String> {
        text(&self.value(words).await?).map(str::to_owned)
    }

    async fn setting(&self, name: &str) -> Option<String> {
        let Value::Array(pair) = self.value(&["CONFIG", "GET", name]).await? else { return None };
        text(pair.get(1)?).map(str::to_owned)
    }

    /// The nodes of the cluster; `asked` is the host of this one.
    pub(super) async fn nodes(&self, asked: &str) -> Option<Vec<NodeLine>> {
        Some(nodes(&self.text(&["CLUSTER", "NODES"]).await?, asked))
    }

    /// All facts. `trial` finds out the user's rights.
    pub(super) async fn facts(&self, credentials: &Credentials, trial: Option<&Trial>) -> ServerFacts {
        let info = self.text(&["INFO"]).await.map(|text| info(&text));
        let cluster = if info.as_ref().is_none_or(|info| info.is_node) {
            self.text(&["CLUSTER", "INFO"]).await.and_then(|text| cluster_state(&text))
        } else {
            None
        };
        let rights = match trial {
            Some(trial) => {
                let (script, hash) = (self.reply(&trial.script()).await, self.reply(&trial.hash()).await);
                let missing = script.zip(hash).and_then(|(script, hash)| trial.missing(&script, &hash));
                let mut denied = Vec::new();
                for (name, command) in trial.notifications() {
                    if let Some(Err(error)) = self.reply(&command).await
                        && error.code() == Some("NOPERM")
                    {
                        denied.push(name);
                    }
                }
                missing.map(|missing| missing.with(Purpose::Notifications, denied))
            }
            None => None,
        };
        ServerFacts {
            info,
            save: self.setting("save").await,
            appendfsync: self.setting("appendfsync").await,
            stops_writes: self.setting("stop-writes-on-bgsave-error").await.map(|value| value == "yes"),
            cluster,
            user: credentials.user().to_owned(),
            rights,
            clock: self.clock().await,
            pings: round_trips(async || self.value(&["PING"]).await.is_some()).await,
        }
    }

    async fn clock(&self) -> Option<ClockOffset> {
        let clock = Clock::machine();
        let mut best: Option<ClockOffset> = None;
        for _ in 0..CLOCK_READS {
            let before = clock.now().0;
            let theirs = time(&self.value(&["TIME"]).await?)?;
            let read = offset(before, theirs, clock.now().0);
            if best.is_none_or(|best| read.within < best.within) {
                best = Some(read);
            }
        }
        best
    }
}

/// Reads the reply to `TIME`, in microseconds since the Unix epoch.
fn time(value: &Value) -> Option<u64> {
    let Value::Array(parts) = value else { return None };
    let [seconds, micros] = parts.as_slice() else { return None };
    let [seconds, micros] = [seconds, micros].map(|part| text(part)?.parse::<u64>().ok());
    seconds?.checked_mul(1_000_000)?.checked_add(micros?)
}
