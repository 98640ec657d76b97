//! Buckets in a Redis server: one call of the script in `lua/` decides all charges of a request, and those of all requests that
//! ask at the same time (`calls`).
//!
//! A request uses the connection that is there or fails at once; it never waits for another. The connection belongs to
//! a task (`owner`), which opens it, probes it and replaces it. A request whose reply is late has perhaps been
//! charged, so it is never sent again.
//!
//! Denials are not remembered here. Time alone would not end one early, but another gateway's refund or reset would, and
//! so would new numbers; and a denial in a shared call costs 1.4 us of the server's time, for which no answer need be
//! stale.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, RedisError, Value};
use tokio::sync::{Notify, Semaphore};
use tokio::time::{timeout, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::{Batch, Clock, StoreError};
use crate::engine::charge::Decisions;
use crate::engine::numbers::{EXACT, Micros};
use crate::engine::script::ScriptSource;
use crate::engine::settle::has_duplicate;

mod blocks;
mod calls;
mod detail;
mod options;
mod owner;
mod script;
mod user_scripts;

pub use blocks::{BlockEdit, Edited, KeptBlock, KeptBlocks};
pub use calls::Coming;
use calls::{Answer, Call, Calls};
pub use options::{DEFAULT_TIMEOUT, RedisOptions, RedisOptionsError, Target, redacted};
use script::Form;

/// Requests that may be under way at once. 50 000 requests a second times a deadline of 20 ms; with more than that waiting
/// Redis is not keeping up, and to wait longer is worse than the failure policy.
const MAX_IN_FLIGHT: usize = 1_024;

/// Calls in a row without an answer in time after which the connection is given up.
///
/// One late reply is a hiccup (a fork for a snapshot, a slow command of somebody else). After five a frozen server is
/// likelier, and each further request would wait the whole deadline for nothing. Calls are counted rather than requests,
/// as those of one call are late together.
const BREAKER_FAILURES: u32 = 5;

/// How long a server may take to compile a script of the user. Nobody waits for it.
const CHECK_TIMEOUT: Duration = Duration::from_secs(1);

/// A Redis server. One instance a worker, on the worker's runtime; the buckets are shared by all that use the server.
pub struct RedisStore {
    shared: Arc<Shared>,
    /// Ends with the store.
    _owner: AbortOnDropHandle<()>,
}

/// Whether requests are let through to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breaker {
    /// They are, if there is a connection.
    Closed,
    /// Calls kept failing; nothing is sent until a probe is answered.
    Open,
}

/// How the store stands, for `/readyz` and the metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Whether there is a connection that answers.
    pub connected: bool,
    /// Whether repeated failure has cut the server off.
    pub breaker: Breaker,
    /// Why there is no connection; `None` while there is one.
    pub last_error: Option<String>,
}

/// What requests and the owner of the connection share.
struct Shared {
    timeout: Duration,
    clock: Clock,
    live: ArcSwapOption<Live>,
    in_flight: Semaphore,
    calls: Calls,
    /// Wakes the owner when a request has given up the connection.
    lost: Notify,
    state: Mutex<(Breaker, Option<String>)>,
    corrupt: AtomicU64,
}

/// A connection, and how it has been doing.
struct Live {
    connection: MultiplexedConnection,
    failures: AtomicU32,
}

impl RedisStore {
    /// Starts to connect to `target` and returns at once: until there is a connection, every decision is
    /// [`StoreError::Down`]. Call it inside the tokio runtime that will ask.
    pub fn connect(target: &Target) -> Arc<Self> {
        let shared = Arc::new(Shared {
            timeout: target.timeout,
            clock: target.clock.clone(),
            live: ArcSwapOption::empty(),
            in_flight: Semaphore::new(MAX_IN_FLIGHT),
            calls: Calls::default(),
            lost: Notify::new(),
            state: Mutex::new((Breaker::Closed, Some("not connected yet".into()))),
            corrupt: AtomicU64::new(0),
        });
        let owner = tokio::spawn(owner::run(shared.clone(), target.clone()));
        Arc::new(Self { shared, _owner: AbortOnDropHandle::new(owner) })
    }

    /// Decides the charges of one request, all or nothing, in one round trip. Requests are decided in the order in which
    /// they ask, unless the server has lost the script meanwhile; those that ask within one turn of the event loop share
    /// the round trip.
    ///
    /// Ends within the timeout of the target whatever Redis does. A request that is dropped before it ends may have been
    /// charged.
    pub async fn decide(&self, batch: &Batch<'_>) -> Result<Decisions, StoreError> {
        if batch.charges.is_empty() {
            return Ok(Decisions::default());
        }
        let _permit = self.shared.in_flight.try_acquire().map_err(|_| StoreError::Down)?;
        self.ask(batch)?.answer().await
    }

    /// As [`Self::decide`], without waiting: where the answer will come. How many ask so at once is for the caller to bound.
    pub fn ask(&self, batch: &Batch<'_>) -> Result<Coming, StoreError> {
        if has_duplicate(batch.charges) {
            return Err(StoreError::Duplicate);
        }
        if batch.charges.iter().any(script::lacks_terms) {
            return Err(StoreError::Refused("a queue or a script is charged without saying for what".into()));
        }
        let shared = &self.shared;
        let now = self.given_time()?;
        Ok(shared.calls.ask(shared, batch, now))
    }

    /// Decides several requests in one call, one after the other. None may be without charges.
    pub async fn decide_in_turn(&self, batches: &[Batch<'_>]) -> Result<Vec<Decisions>, StoreError> {
        if batches.iter().any(|batch| has_duplicate(batch.charges)) {
            return Err(StoreError::Duplicate);
        }
        let shared = &self.shared;
        let now = self.given_time()?;
        let _permit = shared.in_flight.try_acquire().map_err(|_| StoreError::Down)?;
        let mut decided = Vec::with_capacity(batches.len());
        for answer in shared.calls.ask_in_turn(shared, batches, now) {
            decided.push(answer.await.unwrap_or(Err(StoreError::Down))?);
        }
        Ok(decided)
    }

    /// The time that was set for this store; `None` if the server's holds. An error if it cannot be asked at all.
    fn given_time(&self) -> Result<Option<Micros>, StoreError> {
        let now = self.shared.clock.given();
        if now.is_some_and(|now| now.0 >= EXACT) {
            return Err(StoreError::Refused("the clock is set beyond the year 2255".into()));
        }
        if self.shared.live.load().is_none() {
            return Err(StoreError::Down);
        }
        Ok(now)
    }

    /// Has the server compile some scripts of the user, and logs those that it cannot. Nothing of them runs.
    pub fn check_scripts(&self, scripts: Vec<Arc<ScriptSource>>) {
        let shared = Arc::clone(&self.shared);
        if !scripts.is_empty() {
            self.shared.calls.spawn(async move { shared.check_scripts(&scripts).await });
        }
    }

    /// How long a decision takes at most.
    pub fn timeout(&self) -> Duration {
        self.shared.timeout
    }

    /// How the store stands.
    pub fn status(&self) -> Status {
        let (breaker, last_error) = self.shared.state.lock().clone();
        Status { connected: self.shared.live.load().is_some(), breaker, last_error }
    }

    /// Keys of ours that held text that is no bucket, and counted as full buckets, since the start.
    pub fn corrupt_values(&self) -> u64 {
        self.shared.corrupt.load(Ordering::Relaxed)
    }
}

impl Live {
    /// One call; a second one with the source if the server does not know the script, which it then has not run.
    async fn ask(&self, call: &Call) -> Result<Value, RedisError> {
        match self.send(call, Form::Hash).await {
            Err(error) if error.code() == Some("NOSCRIPT") => self.send(call, Form::Source).await,
            answer => answer,
        }
    }

    async fn send(&self, call: &Call, form: Form) -> Result<Value, RedisError> {
        let command = call.requests.command(form, call.now, call.effective_from);
        match self.connection.clone().send_packed_command(&command).await? {
            // `Value::extract_error` would find the errors of single requests in the reply as well.
            Value::ServerError(error) => Err(error.into()),
            value => Ok(value),
        }
    }
}

impl Shared {
    async fn check_scripts(&self, scripts: &[Arc<ScriptSource>]) {
        for script in scripts {
            let Some(live) = self.live.load_full() else { return };
            let mut command = Cmd::new();
            command.arg("EVAL").arg(user_scripts::probe(script)).arg(0);
            let answer = timeout(CHECK_TIMEOUT, live.connection.clone().send_packed_command(&command)).await;
            // Without an answer nothing is known of the script, and the log hears of the connection anyway.
            if let Ok(Err(error)) = answer.map(|answer| answer.and_then(Value::extract_error)) {
                let file = script.file();
                tracing::error!(
                    file,
                    "Redis cannot compile this script, so its limits have no answer: {}",
                    describe(&error)
                );
            }
        }
    }

    /// Makes a call: an answer for each of its requests, or the error that all of them get.
    async fn run(&self, call: &Call) -> Result<Vec<Answer>, StoreError> {
        let live = self.live.load_full().ok_or(StoreError::Down)?;
        let Ok(answer) = timeout_at(call.deadline, live.ask(call)).await else {
            self.failed(&live);
            return Err(StoreError::Late(self.timeout));
        };
        let value = answer.map_err(|error| self.refused(&live, &error))?;
        live.failures.store(0, Ordering::Relaxed);
        let reply = call.requests.reply(value).map_err(StoreError::Refused)?;
        if reply.corrupt > 0 {
            self.corrupt.fetch_add(reply.corrupt, Ordering::Relaxed);
        }
        let answers = reply.answers.into_iter();
        Ok(answers.map(|answer| answer.map_err(|text| self.refused_by_server(&live, text))).collect())
    }

    /// Counts a call without an answer in time.
    fn failed(&self, live: &Arc<Live>) {
        if live.failures.fetch_add(1, Ordering::Relaxed) + 1 >= BREAKER_FAILURES {
            let reason = format!("{BREAKER_FAILURES} calls in a row had no answer within {:?}", self.timeout);
            self.give_up(live, Breaker::Open, reason);
        }
    }

    /// What a call gets for an error, and whether the connection goes with it.
    fn refused(&self, live: &Arc<Live>, error: &RedisError) -> StoreError {
        let text = describe(error);
        if error.code().is_none() {
            // No reply of a server: the connection broke, or what came is not Redis' protocol.
            self.give_up(live, Breaker::Closed, text);
            return StoreError::Down;
        }
        live.failures.store(0, Ordering::Relaxed);
        self.refused_by_server(live, text)
    }

    /// The same for an error reply.
    fn refused_by_server(&self, live: &Arc<Live>, text: String) -> StoreError {
        if is_wrong_server(&text) {
            self.give_up(live, Breaker::Closed, text.clone());
        }
        StoreError::Refused(text)
    }

    /// Takes `live` away from requests, unless the owner has replaced it already.
    fn give_up(&self, live: &Arc<Live>, breaker: Breaker, reason: String) {
        let previous = self.live.compare_and_swap(live, None);
        if previous.as_ref().is_some_and(|previous| Arc::ptr_eq(previous, live)) {
            *self.state.lock() = (breaker, Some(reason));
            self.lost.notify_one();
        }
    }
}

/// The server's own words, or the client's.
fn describe(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        (Some(code), None) => code.to_owned(),
        (None, _) if error.kind() == ErrorKind::AuthenticationFailed => {
            "the server refuses the user or password".into()
        }
        (None, _) => error.to_string(),
    }
}

/// Whether the error says that this server cannot serve us now and another, or this one later, can: it was demoted to a
/// replica, is loading its data, or has lost its master or its cluster.
///
/// Everything else (OOM, MISCONF, NOPERM, WRONGTYPE, ...) is an answer of the right server and passes without a new
/// connection: an OOM is over when memory is free again.
fn is_wrong_server(text: &str) -> bool {
    // Redis 7 passes an error inside a script on as it is; 6.2 wraps it: `ERR Error running script (call to f_...):
    // @user_script:1: -READONLY You can't write against a read only replica.`
    let inner = if text.starts_with("ERR ") { text.rsplit_once(": -").map_or(text, |(_, inner)| inner) } else { text };
    matches!(inner.split(' ').next(), Some("READONLY" | "LOADING" | "MASTERDOWN" | "CLUSTERDOWN"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_of_the_wrong_server_cost_the_connection() {
        for text in [
            "READONLY You can't write against a read only replica. script: 7e1, on @user_script:150.",
            "LOADING Redis is loading the dataset in memory",
            "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
            "CLUSTERDOWN Hash slot not served",
            "ERR Error running script (call to f_7e1): @user_script:1: -READONLY You can't write against a replica.",
            "ERR user script: -READONLY You can't write against a read only replica. script: 7e1, on @user_script:9.",
        ] {
            assert!(is_wrong_server(text), "{text}");
        }
        for text in [
            "OOM command not allowed when used memory > 'maxmemory'. script: 7e1, on @user_script:150.",
            "ERR Error running script (call to f_7e1): @user_script:1: -OOM command not allowed",
            "WRONGTYPE Operation against a key holding the wrong kind of value",
            "NOPERM this user has no permissions to run the 'evalsha' command",
            "ERR unknown mode READONLY",
        ] {
            assert!(!is_wrong_server(text), "{text}");
        }
    }
}
