//! One Redis server: the connection to it, its owner, and the calls that it answers.
//!
//! A request uses the current connection or fails at once. It waits for another only during the first attempt to replace one
//! that was cut, which takes a round trip or two. A task (`owner`) opens the connection, probes it and replaces it. A request
//! whose reply is late may have been charged, so it is never sent again.
//!
//! Busy is not down. The number of outstanding calls is bounded; further requests wait for their turn and are rejected if it
//! does not come in time. Only silence and errors of the server are failures of the store.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use self::calls::{Calls, OUTSTANDING, OUTSTANDING_IN_CLUSTER};
pub(super) use self::calls::{Migration, Route};
pub(super) use self::connection::Connection;
pub(super) use self::lines::Line;
pub(super) use self::patience::within;
use super::diagnosis::Diagnosis;
use super::keys::KeyStarts;
use super::target::StoreTarget;
use crate::engine::algorithms::decision::Decisions;
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::script::ScriptSource;
use crate::store::{Batch, Fault, Health, StoreAnswer, StoreError};

mod answers;
mod calls;
mod connection;
mod lines;
mod opening;
mod overload;
mod owner;
mod patience;
mod probing;
mod renewal;
mod scripts;
mod sending;
mod shared_call;

/// The connection is given up after this many timeouts of silence while a call is outstanding.
///
/// One late reply is a hiccup (a fork for a snapshot, another client's slow command). After five times as long the server is
/// probably frozen, and each further request would wait the whole deadline for nothing.
const SILENT_TIMEOUTS: u32 = 5;

/// A connection that lasted this long is replaced at once when it breaks, and requests wait for the new one. One that broke
/// sooner would probably break again.
const SHORTEST_LIFE: Duration = Duration::from_millis(100);

/// An error or a late answer counts this long if no other call follows, which would tell whether it was a hiccup.
const FAILING_FOR: Duration = Duration::from_mins(1);

/// The error of a request that is not sent because too many are waiting.
const BUSY: StoreError = StoreError::Busy { sent: false };

/// A server, with the task that connects to it. Each worker has its own.
pub(super) struct NodeHandle {
    node: Arc<Node>,
    /// Ends with the handle.
    _owner: AbortOnDropHandle<()>,
}

/// The state that requests share with the connection's owner.
pub(super) struct Node {
    timeout: Duration,
    key_starts: KeyStarts,
    /// True if other nodes may have the hash slot of a key.
    is_in_cluster: bool,
    live: ArcSwapOption<Connection>,
    /// Set during the first attempt to replace a broken connection.
    is_returning: AtomicBool,
    /// Wakes the requests that wait for that attempt.
    returned: Notify,
    /// The most requests that may wait for an answer.
    queue: usize,
    calls: Calls,
    /// The next call's number, counted over all connections.
    number: AtomicU64,
    /// Calls that were answered within the timeout of being sent.
    timely: AtomicU64,
    /// Wakes the owner when a connection was given up or has ended.
    lost: Notify,
    /// True if somebody waits for changes of keys.
    is_watching: AtomicBool,
    /// Wakes them when a key that they have read may have changed: the server has sent a notification, or the connection is new.
    changed: Notify,
    state: Mutex<NodeState>,
    /// Set while `state` says what is wrong with the answers on the connection.
    is_failing: AtomicBool,
    /// True if the server rejects the password that has replaced the connection's.
    is_rejected: AtomicBool,
    counts: Arc<NodeCounts>,
}

/// The counts of nodes. Those of a cluster share one, so the sums stay when a node leaves.
#[derive(Default)]
pub(super) struct NodeCounts {
    /// Values that were not buckets.
    corrupt: AtomicU64,
    /// Refunds that nobody waits for and that were not made.
    lost_refunds: AtomicU64,
}

impl NodeCounts {
    pub(super) fn count_lost(&self, refunds: u64) {
        self.lost_refunds.fetch_add(refunds, Ordering::Relaxed);
    }

    /// Adds the sums to a store's health.
    pub(super) fn tell(&self, health: &mut Health) {
        health.corrupt_values = self.corrupt.load(Ordering::Relaxed);
        health.lost_refunds = self.lost_refunds.load(Ordering::Relaxed);
    }
}

#[derive(Clone)]
struct NodeState {
    /// The server was silent, and nothing is sent until it answers on a new connection.
    breaker_open: bool,
    diagnosis: Option<Diagnosis>,
    /// When the diagnosis was made last.
    noted: Instant,
}

impl NodeState {
    fn new(diagnosis: Option<Diagnosis>) -> Self {
        Self { breaker_open: false, diagnosis, noted: Instant::now() }
    }
}

impl NodeHandle {
    /// Starts to connect to `target` and returns at once: until there is a connection, every decision is
    /// [`StoreError::Down`]. Call it inside the tokio runtime that will ask.
    pub(super) fn start(target: &StoreTarget, key_starts: KeyStarts, counts: Arc<NodeCounts>) -> Self {
        let is_in_cluster = target.is_node();
        let outstanding = if is_in_cluster { OUTSTANDING_IN_CLUSTER } else { OUTSTANDING };
        let diagnosis = Some(Diagnosis::new(Fault::Unreachable, "not connected yet"));
        let node = Arc::new(Node {
            timeout: target.timeout,
            key_starts,
            is_in_cluster,
            live: ArcSwapOption::empty(),
            // Requests that a cluster redirects to a new node wait for its connection.
            is_returning: AtomicBool::new(is_in_cluster),
            returned: Notify::new(),
            queue: target.queue,
            calls: Calls::new(outstanding),
            // A random start: a reply to another process does not match.
            number: AtomicU64::new(rand::random()),
            timely: AtomicU64::new(0),
            lost: Notify::new(),
            is_watching: AtomicBool::new(false),
            changed: Notify::new(),
            state: Mutex::new(NodeState::new(diagnosis)),
            is_failing: AtomicBool::new(false),
            is_rejected: AtomicBool::new(false),
            counts,
        });
        let owner = tokio::spawn(owner::run(node.clone(), target.clone()));
        Self { node, _owner: AbortOnDropHandle::new(owner) }
    }

    /// Decides the charges of one request, in the order in which requests ask, unless the server has lost the script meanwhile.
    /// Those that ask within one turn of the event loop share a round trip.
    ///
    /// Ends within the target's timeout whatever Redis does, not counting delays of this worker itself. A request that is
    /// dropped before it ends may have been charged.
    pub(super) async fn decide(
        &self,
        route: Route,
        batch: &Batch<'_>,
        now: Option<Micros>,
    ) -> Result<Decisions, StoreError> {
        self.admit(route)?;
        self.ask(route, batch, now).wait().await
    }

    /// Returns an error if no further request may wait, or none in its line.
    pub(super) fn admit(&self, route: Route) -> Result<(), StoreError> {
        if self.calls.has_room(route, self.queue) { Ok(()) } else { Err(BUSY) }
    }

    /// As [`Self::decide`], without waiting for the answer. The caller bounds the number of requests at a time.
    pub(super) fn ask(&self, route: Route, batch: &Batch<'_>, now: Option<Micros>) -> StoreAnswer {
        match self.check() {
            Ok(()) => StoreAnswer::Pending(self.calls.ask(self, route, batch, now)),
            Err(error) => StoreAnswer::Ready(Err(error)),
        }
    }

    /// Decides several requests in one call, one after the other. Each must have charges.
    pub(super) async fn decide_in_turn(
        &self,
        batches: &[Batch<'_>],
        now: Option<Micros>,
    ) -> Result<Vec<Decisions>, StoreError> {
        let Some(first) = batches.first() else { return Ok(Vec::new()) };
        let route = Route::new(0, Line::of(first.charges));
        self.check()?;
        self.admit(route)?;
        let mut decided = Vec::with_capacity(batches.len());
        for answer in self.calls.ask_in_turn(self, route, batches, now) {
            decided.push(StoreAnswer::Pending(answer).wait().await?);
        }
        Ok(decided)
    }

    /// Has the server compile user scripts, and logs those that it cannot. None of them runs.
    pub(super) fn check_scripts(&self, scripts: Vec<Arc<ScriptSource>>) {
        let node = Arc::clone(&self.node);
        self.calls.spawn(async move { node.check_scripts(&scripts).await });
    }
}

impl Deref for NodeHandle {
    type Target = Arc<Node>;

    fn deref(&self) -> &Arc<Node> {
        &self.node
    }
}

impl Node {
    pub(super) fn connection(&self) -> Option<Arc<Connection>> {
        self.live.load_full()
    }

    /// Asks the server for notifications of changed keys, from the next connection on.
    pub(super) fn watch_keys(&self) {
        self.is_watching.store(true, Ordering::Relaxed);
    }

    /// Returns true if the server sends notifications.
    pub(super) fn is_notified(&self) -> bool {
        self.live.load().as_ref().is_some_and(|live| live.is_tracking)
    }

    /// Returns when a key may have changed since it was read.
    pub(super) async fn key_changed(&self) {
        self.changed.notified().await;
    }

    pub(super) fn health(&self) -> Health {
        let NodeState { breaker_open, diagnosis, noted } = self.state.lock().clone();
        let is_over = self.is_failing.load(Ordering::Relaxed) && noted.elapsed() >= FAILING_FOR;
        let diagnosis = diagnosis.filter(|_| !is_over);
        let (fault, last_error) = diagnosis.map(|diagnosis| (diagnosis.fault, diagnosis.text)).unzip();
        let rejected = self.is_rejected.load(Ordering::Relaxed).then(|| renewal::REJECTED.to_owned());
        let (connected, last_error) = (self.live.load().is_some(), last_error.or(rejected));
        let mut health = Health { connected, breaker_open, fault, last_error, ..Health::default() };
        self.counts.tell(&mut health);
        health
    }

    /// Returns an error if there is no connection, and none is about to come.
    fn check(&self) -> Result<(), StoreError> {
        if self.live.load().is_none() && !self.is_returning.load(Ordering::Relaxed) {
            return Err(StoreError::Down);
        }
        Ok(())
    }

    /// Returns the connection, or waits for the one that is about to replace it.
    pub(super) async fn awaited_connection(&self) -> Result<Arc<Connection>, StoreError> {
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
