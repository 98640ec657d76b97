//! Buckets in Redis: in one server, in the master that a Sentinel names, or spread over the nodes of a cluster. One call of the
//! script in `lua/` decides all charges of a request, and those of all requests that ask at the same time (`node::calls`).
//!
//! Denials are not cached here. The limiter remembers some for a moment (`limiter::remembered_denials`), and asks for all others.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::{Batch, Health, PartialAnswer, StoreAnswer, StoreError};
use crate::clock::Clock;
use crate::engine::algorithms::decision::Decisions;
use crate::engine::algorithms::micros::{EXACT, Micros};
use crate::engine::algorithms::script::ScriptSource;
use crate::engine::algorithms::taking::has_duplicate;

mod call;
mod cluster;
mod credentials;
mod diagnosis;
mod hash_slots;
pub mod inspection;
mod keys;
pub mod leases;
mod leasing;
mod node;
mod notes;
mod options;
mod redirect;
mod request;
mod sentinel;
mod session;
mod stream;
mod target;
mod tls;
mod unclaimed;
mod url;

use cluster::Cluster;
pub use hash_slots::NAMES as TAG_NAMES;
use keys::KeyStarts;
use leases::Leases;
use node::{Line, NodeHandle, Route};
pub use notes::{Note, SharedNotes};
pub use options::{DEFAULT_PREFIX, DEFAULT_QUEUE, RedisOptions};
pub use target::StoreTarget;

/// The buckets in Redis. Each worker has an instance on its own runtime; all gateways share the buckets.
pub struct RedisStore {
    timeout: Duration,
    clock: Clock,
    key_starts: KeyStarts,
    /// For errors.
    user: Arc<str>,
    servers: Servers,
    leases: Arc<Leases>,
    /// Ends with the store.
    _returns: AbortOnDropHandle<()>,
}

/// The servers that have the buckets.
enum Servers {
    One(NodeHandle),
    Cluster(Cluster),
}

impl RedisStore {
    /// Starts to connect to `target` and returns at once: until there is a connection, every decision is
    /// [`StoreError::Down`]. Call it inside the tokio runtime that will ask.
    pub fn connect(target: &StoreTarget) -> Arc<Self> {
        let (timeout, clock) = (target.timeout, target.clock.clone());
        let (key_starts, servers) = if target.is_cluster() {
            (KeyStarts::spread(&target.prefix), Servers::Cluster(Cluster::start(target)))
        } else {
            let key_starts = KeyStarts::single(&target.prefix);
            (key_starts.clone(), Servers::One(NodeHandle::start(target, key_starts, Arc::default())))
        };
        let (leases, user) = (Leases::new(), target.credentials.user().into());
        Arc::new_cyclic(|store| {
            let returns = leasing::give_back_in_time(store.clone(), leases.clone());
            Self { timeout, clock, key_starts, user, servers, leases, _returns: returns }
        })
    }

    /// Decides the charges of one request, all or nothing: in one round trip, or in two if the charges are in several hash slots
    /// of a cluster. Charges that leases serve take none.
    ///
    /// Ends within the target's timeout whatever Redis does, not counting delays of this worker itself. A request that is
    /// dropped before it ends may have been charged.
    pub async fn decide(&self, batch: &Batch<'_>) -> Result<Decisions, StoreError> {
        if batch.charges.is_empty() {
            return Ok(Decisions::default());
        }
        if self.may_lease(batch) {
            return Box::pin(self.decide_with_leases(batch)).await;
        }
        self.decide_sent(Line::of(batch.charges), batch).await
    }

    async fn decide_sent(&self, line: Line, batch: &Batch<'_>) -> Result<Decisions, StoreError> {
        let now = self.check(std::slice::from_ref(batch))?;
        match &self.servers {
            Servers::One(node) => node.decide(Route::new(0, line), batch, now).await,
            Servers::Cluster(cluster) => Box::pin(cluster.decide(line, batch, now)).await,
        }
    }

    /// As [`Self::decide`], without waiting for the answer. The caller bounds the number of requests at a time.
    pub fn ask(&self, batch: &Batch<'_>) -> StoreAnswer {
        match (self.check(std::slice::from_ref(batch)), &self.servers) {
            (Ok(now), Servers::One(node)) => node.ask(Route::new(0, Line::of(batch.charges)), batch, now),
            (Ok(now), Servers::Cluster(cluster)) => cluster.ask(batch, now),
            (Err(error), _) => StoreAnswer::Ready(Err(error)),
        }
    }

    /// Decides several requests, one after the other: in one call, or in a cluster in a call for each. Each must have charges. Returns
    /// the decisions of all of them.
    pub async fn decide_in_turn(&self, batches: &[Batch<'_>]) -> Result<Decisions, StoreError> {
        let now = self.check(batches)?;
        match &self.servers {
            Servers::One(node) => node.decide_in_turn(batches, now).await.map(Decisions::joined),
            Servers::Cluster(cluster) => {
                let mut answers = Vec::with_capacity(batches.len());
                for batch in batches {
                    answers.push(cluster.decide(Line::of(batch.charges), batch, now).await);
                }
                PartialAnswer::joined(batches.iter().map(|batch| batch.charges).zip(answers))
            }
        }
    }

    /// Returns the time to decide by, or `None` for the server's clock; an error if these requests cannot be sent.
    fn check(&self, batches: &[Batch<'_>]) -> Result<Option<Micros>, StoreError> {
        if batches.iter().any(|batch| has_duplicate(batch.charges)) {
            return Err(StoreError::Duplicate);
        }
        if batches.iter().flat_map(|batch| batch.charges).any(call::lacks_input) {
            return Err(StoreError::Failed("a charge of a queue or script lacks its entry or arguments".into()));
        }
        let now = self.clock.set_time();
        if now.is_some_and(|now| now.0 >= EXACT) {
            return Err(StoreError::Failed("the clock is set beyond the year 2255".into()));
        }
        Ok(now)
    }

    /// Has the server compile user scripts, and logs those that it cannot. None of them runs.
    pub fn check_scripts(&self, scripts: Vec<Arc<ScriptSource>>) {
        match &self.servers {
            _ if scripts.is_empty() => {}
            Servers::One(node) => node.check_scripts(scripts),
            Servers::Cluster(cluster) => cluster.check_scripts(&scripts),
        }
    }

    /// Returns true if more requests are waiting than a server has at a time.
    pub fn is_overloaded(&self) -> bool {
        match &self.servers {
            Servers::One(node) => node.is_overloaded(Instant::now()),
            Servers::Cluster(cluster) => cluster.is_overloaded(),
        }
    }

    /// The maximum duration of a decision.
    pub const fn timeout(&self) -> Duration {
        self.timeout
    }

    pub fn health(&self) -> Health {
        let (leased_decisions, leased_tokens) = self.leases.usage();
        let health = match &self.servers {
            Servers::One(node) => node.health(),
            Servers::Cluster(cluster) => cluster.health(),
        };
        Health { leased_decisions, leased_tokens, ..health }
    }

    /// The beginning of keys that are not those of buckets.
    fn key_start(&self) -> Arc<str> {
        self.key_starts.of(0)
    }
}
