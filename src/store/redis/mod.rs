//! Buckets in a Redis server. One call of the script in `lua/` decides all charges of a request, and those of all requests that
//! ask at the same time (`calls`).
//!
//! A request uses the current connection or fails at once. It waits for another only during the first attempt to replace one
//! that was cut, which takes a round trip or two. A task (`owner`) opens the connection, probes it and replaces it. A request
//! whose reply is late may have been charged, so it is never sent again.
//!
//! Busy is not down. The number of outstanding calls is bounded; further requests wait for their turn and are rejected if it
//! does not come in time. Only silence and errors of the server are failures of the store.
//!
//! Denials are not cached. Another gateway's refund or reset would end one early, and so would new numbers; a denial in a
//! shared call costs the server 1.4 us, which is not worth a stale answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};
use tokio_util::task::AbortOnDropHandle;

use super::{Batch, Fault, Health, StoreAnswer, StoreError};
use crate::clock::Clock;
use crate::engine::algorithms::batch::has_duplicate;
use crate::engine::algorithms::decision::Decisions;
use crate::engine::algorithms::micros::{EXACT, Micros};
use crate::engine::algorithms::script::ScriptSource;

mod answers;
mod blocks;
mod calls;
mod connection;
mod detail;
mod diagnosis;
mod options;
mod owner;
mod patience;
mod reply;
mod requests;
mod source;
mod stream;
mod user_scripts;
mod words;

pub use blocks::SharedBlocks;
use calls::Calls;
use connection::Connection;
use diagnosis::Diagnosis;
pub use options::{DEFAULT_QUEUE, RedisOptions, Target};

/// The connection is given up after this many timeouts of silence while a call is outstanding.
///
/// One late reply is a hiccup (a fork for a snapshot, another client's slow command). After five times as long the server is
/// probably frozen, and each further request would wait the whole deadline for nothing.
const SILENT_TIMEOUTS: u32 = 5;

/// A connection that lasted this long is replaced at once when it breaks, and requests wait for the new one. One that broke
/// sooner would probably break again.
const SHORTEST_LIFE: Duration = Duration::from_millis(100);

/// A Redis server. Each worker has an instance on its own runtime; all gateways at the server share its buckets.
pub struct RedisStore {
    shared: Arc<Shared>,
    /// Ends with the store.
    _owner: AbortOnDropHandle<()>,
}

/// The state that requests share with the connection's owner.
struct Shared {
    timeout: Duration,
    clock: Clock,
    live: ArcSwapOption<Connection>,
    /// Set during the first attempt to replace a broken connection.
    is_returning: AtomicBool,
    /// Wakes the requests that wait for that attempt.
    returned: Notify,
    /// Free places of the [`Self::queue`] requests that may wait.
    waiting: Semaphore,
    queue: usize,
    calls: Calls,
    /// The next call's number, counted over all connections.
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
    /// The server was silent, and nothing is sent until it answers on a new connection.
    breaker_open: bool,
    diagnosis: Option<Diagnosis>,
}

impl RedisStore {
    /// Starts to connect to `target` and returns at once: until there is a connection, every decision is
    /// [`StoreError::Down`]. Call it inside the tokio runtime that will ask.
    pub fn connect(target: &Target) -> Arc<Self> {
        let diagnosis = Some(Diagnosis::new(Fault::Unreachable, "not connected yet"));
        let shared = Arc::new(Shared {
            timeout: target.timeout,
            clock: target.clock.clone(),
            live: ArcSwapOption::empty(),
            is_returning: AtomicBool::new(false),
            returned: Notify::new(),
            waiting: Semaphore::new(target.queue),
            queue: target.queue,
            calls: Calls::default(),
            // A random start: a reply to another process does not match.
            number: AtomicU64::new(rand::random()),
            lost: Notify::new(),
            state: Mutex::new(State { diagnosis, ..State::default() }),
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
    /// Ends within the target's timeout whatever Redis does, not counting delays of this worker itself. A request that is
    /// dropped before it ends may have been charged.
    pub async fn decide(&self, batch: &Batch<'_>) -> Result<Decisions, StoreError> {
        if batch.charges.is_empty() {
            return Ok(Decisions::default());
        }
        let _permit = self.shared.waiting.try_acquire().map_err(|_| BUSY)?;
        self.ask(batch).wait().await
    }

    /// As [`Self::decide`], without waiting for the answer. The caller bounds the number of requests at a time.
    pub fn ask(&self, batch: &Batch<'_>) -> StoreAnswer {
        match self.check(std::slice::from_ref(batch)) {
            Ok(now) => StoreAnswer::Pending(self.shared.calls.ask(&self.shared, batch, now)),
            Err(error) => StoreAnswer::Ready(Err(error)),
        }
    }

    /// Decides several requests in one call, one after the other. Each must have charges.
    pub async fn decide_in_turn(&self, batches: &[Batch<'_>]) -> Result<Vec<Decisions>, StoreError> {
        let now = self.check(batches)?;
        let _permit = self.shared.waiting.try_acquire().map_err(|_| BUSY)?;
        let mut decided = Vec::with_capacity(batches.len());
        for answer in self.shared.calls.ask_in_turn(&self.shared, batches, now) {
            decided.push(StoreAnswer::Pending(answer).wait().await?);
        }
        Ok(decided)
    }

    /// Returns the time to decide by, or `None` for the server's clock; an error if these requests cannot be sent.
    fn check(&self, batches: &[Batch<'_>]) -> Result<Option<Micros>, StoreError> {
        if batches.iter().any(|batch| has_duplicate(batch.charges)) {
            return Err(StoreError::Duplicate);
        }
        if batches.iter().flat_map(|batch| batch.charges).any(words::lacks_input) {
            return Err(StoreError::Failed("a charge of a queue or script lacks its entry or arguments".into()));
        }
        let now = self.shared.clock.set_time();
        if now.is_some_and(|now| now.0 >= EXACT) {
            return Err(StoreError::Failed("the clock is set beyond the year 2255".into()));
        }
        if self.shared.live.load().is_none() && !self.shared.is_returning.load(Ordering::Relaxed) {
            return Err(StoreError::Down);
        }
        Ok(now)
    }

    /// Has the server compile user scripts, and logs those that it cannot. None of them runs.
    pub fn check_scripts(&self, scripts: Vec<Arc<ScriptSource>>) {
        let shared = Arc::clone(&self.shared);
        if !scripts.is_empty() {
            self.shared.calls.spawn(async move { shared.check_scripts(&scripts).await });
        }
    }

    /// The maximum duration of a decision.
    pub fn timeout(&self) -> Duration {
        self.shared.timeout
    }

    pub fn health(&self) -> Health {
        let State { breaker_open, diagnosis } = self.shared.state.lock().clone();
        let (fault, last_error) = diagnosis.map(|diagnosis| (diagnosis.fault, diagnosis.text)).unzip();
        Health {
            connected: self.shared.live.load().is_some(),
            breaker_open,
            fault,
            last_error,
            corrupt_values: self.shared.corrupt.load(Ordering::Relaxed),
        }
    }
}

/// The error of a request that is not sent because too many are waiting.
const BUSY: StoreError = StoreError::Busy { sent: false };

impl Shared {
    /// Returns the connection, or waits for the one that is about to replace it.
    async fn connection(&self) -> Result<Arc<Connection>, StoreError> {
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

    /// Returns the next number, for the server to echo. Without it a lost or duplicated reply would shift all later ones.
    fn number(&self) -> String {
        format!("#{:x}", self.number.fetch_add(1, Ordering::Relaxed))
    }
}
