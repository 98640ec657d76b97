//! Buckets in a Redis server: one call of the script in `lua/` decides all charges of a request, and those of all requests that
//! ask at the same time (`calls`).
//!
//! A request uses the connection that is there or fails at once. It waits for another only while the first attempt to replace
//! one that was cut is under way, which takes a round trip or two. The connection belongs to a task (`owner`), which opens
//! it, probes it and replaces it. A request whose reply is late has perhaps been charged, so it is never sent again.
//!
//! Busy is not down. The number of outstanding calls is bounded; further requests wait for their turn and are rejected if it
//! does not come in time. Only silence and errors of the server are failures of the store.
//!
//! Denials are not remembered here. Time alone would not end one early, but another gateway's refund or reset would, and
//! so would new numbers; and a denial in a shared call costs 1.4 us of the server's time, for which no answer need be
//! stale.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, RedisError, Value};
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::{Batch, Breaker, Fault, Health, StoreError};
use crate::clock::Clock;
use crate::engine::algorithms::batch::has_duplicate;
use crate::engine::algorithms::charge::Decisions;
use crate::engine::algorithms::numbers::{EXACT, Micros};
use crate::engine::algorithms::script::ScriptSource;

mod blocks;
mod calls;
mod detail;
mod options;
mod owner;
mod patience;
mod script;
mod stream;
mod trouble;
mod user_scripts;

pub use blocks::{SharedBlocks, StoredBlock, StoredBlocks};
pub use calls::Coming;
use calls::{Answer, Calls, Sent};
pub use options::{DEFAULT_QUEUE, DEFAULT_TIMEOUT, RedisOptions, RedisOptionsError, Target, redacted};
use script::{BadReply, CallNumber, Form};
use trouble::Trouble;

/// The connection is given up after so many timeouts of silence while a call is outstanding.
///
/// One late reply is a hiccup (a fork for a snapshot, a slow command of somebody else). After five times as long a frozen
/// server is likelier, and each further request would wait the whole deadline for nothing.
const SILENT_TIMEOUTS: u32 = 5;

/// A connection that lasted this long is replaced at once when it breaks, and requests wait for the new one. One that broke
/// sooner would probably break again.
const SHORTEST_LIFE: Duration = Duration::from_millis(100);

/// How long a server may take to compile a script of the user. Nobody waits for it.
const CHECK_TIMEOUT: Duration = Duration::from_secs(1);

/// A Redis server. One instance a worker, on the worker's runtime; the buckets are shared by all that use the server.
pub struct RedisStore {
    shared: Arc<Shared>,
    /// Ends with the store.
    _owner: AbortOnDropHandle<()>,
}

/// What requests and the owner of the connection share.
struct Shared {
    timeout: Duration,
    clock: Clock,
    live: ArcSwapOption<Live>,
    /// Set during the first attempt to replace a broken connection.
    is_returning: AtomicBool,
    /// Wakes the requests that wait for that attempt.
    returned: Notify,
    /// Free places in the queue, which has [`Self::queue`] in all: one for each request that may wait.
    waiting: Semaphore,
    queue: usize,
    calls: Calls,
    /// The number of the next call, counted over all connections.
    number: AtomicU64,
    /// Wakes the owner when a connection was given up or has ended.
    lost: Notify,
    state: Mutex<State>,
    /// Set while `state` holds a [`Fault::Failing`].
    is_failing: AtomicBool,
    corrupt: AtomicU64,
}

#[derive(Clone, Default)]
struct State {
    breaker: Breaker,
    trouble: Option<Trouble>,
}

/// A connection, and how it has been doing.
struct Live {
    connection: MultiplexedConnection,
    opened: Instant,
    /// Replies received.
    heard: AtomicU64,
    /// Outstanding calls whose requests have already been answered without the server.
    overdue: AtomicU32,
    has_ended: Arc<AtomicBool>,
    /// Reads and writes the socket. When it ends, outstanding calls end with an error.
    driver: AbortOnDropHandle<()>,
}

impl RedisStore {
    /// Starts to connect to `target` and returns at once: until there is a connection, every decision is
    /// [`StoreError::Down`]. Call it inside the tokio runtime that will ask.
    pub fn connect(target: &Target) -> Arc<Self> {
        let trouble = Some(Trouble::new(Fault::Unreachable, "not connected yet"));
        let shared = Arc::new(Shared {
            timeout: target.timeout,
            clock: target.clock.clone(),
            live: ArcSwapOption::empty(),
            is_returning: AtomicBool::new(false),
            returned: Notify::new(),
            waiting: Semaphore::new(target.queue),
            queue: target.queue,
            calls: Calls::default(),
            // A random start: a reply to another process never fits.
            number: AtomicU64::new(rand::random()),
            lost: Notify::new(),
            state: Mutex::new(State { trouble, ..State::default() }),
            is_failing: AtomicBool::new(false),
            corrupt: AtomicU64::new(0),
        });
        let owner = tokio::spawn(owner::run(shared.clone(), target.clone()));
        Arc::new(Self { shared, _owner: AbortOnDropHandle::new(owner) })
    }

    /// Decides the charges of one request, all or nothing, in one round trip. Requests are decided in the order in which
    /// they ask, unless the server has lost the script meanwhile; those that ask within one turn of the event loop share
    /// the round trip.
    ///
    /// Ends within the timeout of the target whatever Redis does; what holds up this worker itself is not counted. A request
    /// that is dropped before it ends may have been charged.
    pub async fn decide(&self, batch: &Batch<'_>) -> Result<Decisions, StoreError> {
        if batch.charges.is_empty() {
            return Ok(Decisions::default());
        }
        let _permit = self.shared.waiting.try_acquire().map_err(|_| BUSY)?;
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
        let _permit = shared.waiting.try_acquire().map_err(|_| BUSY)?;
        let mut decided = Vec::with_capacity(batches.len());
        for answer in shared.calls.ask_in_turn(shared, batches, now) {
            decided.push(answer.await.unwrap_or(Err(StoreError::Broken))?);
        }
        Ok(decided)
    }

    /// The time that was set for this store; `None` if the server's holds. An error if it cannot be asked at all.
    fn given_time(&self) -> Result<Option<Micros>, StoreError> {
        let now = self.shared.clock.set_time();
        if now.is_some_and(|now| now.0 >= EXACT) {
            return Err(StoreError::Refused("the clock is set beyond the year 2255".into()));
        }
        if self.shared.live.load().is_none() && !self.shared.is_returning.load(Ordering::Relaxed) {
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

    /// The state of the connection.
    pub fn health(&self) -> Health {
        let State { breaker, trouble } = self.shared.state.lock().clone();
        let (fault, last_error) = trouble.map(|trouble| (trouble.fault, trouble.text)).unzip();
        Health {
            connected: self.shared.live.load().is_some(),
            breaker,
            fault,
            last_error,
            corrupt_values: self.shared.corrupt.load(Ordering::Relaxed),
        }
    }
}

/// The error of a request that was not sent because too many wait.
const BUSY: StoreError = StoreError::Busy { sent: false };

impl Live {
    /// One call; a second one with the source if the server does not know the script, which it then has not run.
    async fn ask(&self, sent: &Sent) -> Result<Value, RedisError> {
        match self.send(sent, Form::Hash).await {
            Err(error) if error.code() == Some("NOSCRIPT") => self.send(sent, Form::Source).await,
            answer => answer,
        }
    }

    async fn send(&self, sent: &Sent, form: Form) -> Result<Value, RedisError> {
        let command = sent.requests.command(form, sent.now, sent.effective_from, sent.number);
        match self.reply(&command).await? {
            // `Value::extract_error` would find the errors of single requests in the reply as well.
            Value::ServerError(error) => Err(error.into()),
            value => Ok(value),
        }
    }

    /// Sends a command and hears its reply.
    async fn reply(&self, command: &Cmd) -> Result<Value, RedisError> {
        let reply = self.connection.clone().send_packed_command(command).await;
        if reply.is_ok() {
            self.heard.fetch_add(1, Ordering::Relaxed);
        }
        reply
    }
}

impl Shared {
    async fn check_scripts(&self, scripts: &[Arc<ScriptSource>]) {
        for script in scripts {
            let Some(live) = self.live.load_full() else { return };
            let mut command = Cmd::new();
            command.arg("EVAL").arg(user_scripts::probe(script)).arg(0);
            let answer = timeout(CHECK_TIMEOUT, live.reply(&command)).await;
            // Only an error reply says something of the script. A broken connection has a line of its own in the log.
            if let Ok(Err(error)) = answer.map(|answer| answer.and_then(Value::extract_error))
                && error.code().is_some()
            {
                let file = script.file();
                tracing::error!(
                    file,
                    "Redis cannot compile this script, so its limits have no answer: {}",
                    describe(&error)
                );
            }
        }
    }

    /// The connection, or the one that is about to replace it.
    async fn connection(&self) -> Result<Arc<Live>, StoreError> {
        loop {
            let mut returned = std::pin::pin!(self.returned.notified());
            returned.as_mut().enable();
            match self.live.load_full() {
                Some(live) => return Ok(live),
                None if !self.is_returning.load(Ordering::Relaxed) => return Err(StoreError::Down),
                None => returned.await,
            }
        }
    }

    /// The next number of a call.
    fn number(&self) -> CallNumber {
        CallNumber(self.number.fetch_add(1, Ordering::Relaxed))
    }

    /// The answers to the requests of a call, or the error that all of them get.
    fn answers(
        &self,
        live: &Arc<Live>,
        sent: &Sent,
        answer: Result<Value, RedisError>,
    ) -> Result<Vec<Answer>, StoreError> {
        let value = answer.map_err(|error| self.refused(live, &error))?;
        let reply = sent.requests.reply(value, sent.number).map_err(|reply| match reply {
            BadReply::Nonsense(text) => StoreError::Refused(text),
            BadReply::Foreign(text) => {
                let text = format!("a reply was lost or duplicated on the way, this call was answered by {text:.100}");
                self.give_up(live, Trouble::new(Fault::Unreachable, text));
                StoreError::Broken
            }
        })?;
        if reply.corrupt > 0 {
            self.corrupt.fetch_add(reply.corrupt, Ordering::Relaxed);
        }
        let failing = reply.answers.iter().find_map(|answer| answer.as_ref().err());
        match failing.filter(|_| reply.answers.iter().all(Result::is_err)) {
            Some(text) => self.fails(text),
            None => self.answers_again(),
        }
        let answers = reply.answers.into_iter();
        Ok(answers
            .map(|answer| answer.map_err(|text| self.refused_by(live, Trouble::of_request(&text), text)))
            .collect())
    }

    /// The error of a call. Gives the connection up if it broke or the server is the wrong one.
    fn refused(&self, live: &Arc<Live>, error: &RedisError) -> StoreError {
        let text = describe(error);
        if error.code().is_none() {
            // No reply of a server: the connection broke, or what came is not Redis' protocol.
            self.give_up(live, Trouble::new(Fault::Unreachable, text));
            return StoreError::Broken;
        }
        self.fails(&text);
        self.refused_by(live, Trouble::of_call(&text), text)
    }

    /// The error of a request. Gives the connection up if there is trouble with the server.
    fn refused_by(&self, live: &Arc<Live>, trouble: Option<Trouble>, text: String) -> StoreError {
        if let Some(trouble) = trouble {
            self.give_up(live, trouble);
        }
        StoreError::Refused(text)
    }

    /// Notes that a call brought only errors.
    fn fails(&self, text: &str) {
        if !self.is_failing.swap(true, Ordering::Relaxed) {
            self.state.lock().trouble = Some(Trouble::new(Fault::Failing, text));
        }
    }

    /// Notes that a call was answered.
    fn answers_again(&self) {
        if self.is_failing.load(Ordering::Relaxed) && self.is_failing.swap(false, Ordering::Relaxed) {
            let mut state = self.state.lock();
            state.trouble = state.trouble.take().filter(|trouble| trouble.fault != Fault::Failing);
        }
    }

    /// Takes `live` away from requests, unless the owner has replaced it already.
    fn give_up(&self, live: &Arc<Live>, trouble: Trouble) {
        let mut state = self.state.lock();
        if self.live.load().as_ref().is_some_and(|current| Arc::ptr_eq(current, live)) {
            let was_cut = trouble.fault == Fault::Unreachable && live.opened.elapsed() >= SHORTEST_LIFE;
            self.is_returning.store(was_cut, Ordering::Relaxed);
            self.is_failing.store(false, Ordering::Relaxed);
            let breaker = if trouble.fault == Fault::Silent { Breaker::Open } else { Breaker::Closed };
            *state = State { breaker, trouble: Some(trouble) };
            self.live.store(None);
            live.driver.abort();
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
