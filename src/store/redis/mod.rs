//! Buckets in a Redis server. One call of the script in `lua/` decides all charges of a request, and those of all requests that
//! ask at the same time (`node::calls`).
//!
//! Denials are not cached. Another gateway's refund or reset would end one early, and so would new numbers; a denial in a
//! shared call costs the server 1.4 us, which is not worth a stale answer.

use std::sync::Arc;
use std::time::Duration;

use super::{Batch, Health, StoreAnswer, StoreError};
use crate::clock::Clock;
use crate::engine::algorithms::batch::has_duplicate;
use crate::engine::algorithms::decision::Decisions;
use crate::engine::algorithms::micros::{EXACT, Micros};
use crate::engine::algorithms::script::ScriptSource;

mod blocks;
mod call;
mod diagnosis;
mod node;
mod options;
mod stream;
mod target;
mod tls;
mod url;

pub use blocks::SharedBlocks;
use node::NodeHandle;
pub use options::{DEFAULT_QUEUE, RedisOptions};
pub use target::Target;

/// A Redis server. Each worker has an instance on its own runtime; all gateways at the server share its buckets.
pub struct RedisStore {
    timeout: Duration,
    clock: Clock,
    node: NodeHandle,
}

impl RedisStore {
    /// Starts to connect to `target` and returns at once: until there is a connection, every decision is
    /// [`StoreError::Down`]. Call it inside the tokio runtime that will ask.
    pub fn connect(target: &Target) -> Arc<Self> {
        let (timeout, clock) = (target.timeout, target.clock.clone());
        Arc::new(Self { timeout, clock, node: NodeHandle::start(target) })
    }

    /// Decides the charges of one request, all or nothing, in one round trip.
    ///
    /// Ends within the target's timeout whatever Redis does, not counting delays of this worker itself. A request that is
    /// dropped before it ends may have been charged.
    pub async fn decide(&self, batch: &Batch<'_>) -> Result<Decisions, StoreError> {
        if batch.charges.is_empty() {
            return Ok(Decisions::default());
        }
        let now = self.check(std::slice::from_ref(batch))?;
        self.node.decide(batch, now).await
    }

    /// As [`Self::decide`], without waiting for the answer. The caller bounds the number of requests at a time.
    pub fn ask(&self, batch: &Batch<'_>) -> StoreAnswer {
        match self.check(std::slice::from_ref(batch)) {
            Ok(now) => self.node.ask(batch, now),
            Err(error) => StoreAnswer::Ready(Err(error)),
        }
    }

    /// Decides several requests in one call, one after the other. Each must have charges.
    pub async fn decide_in_turn(&self, batches: &[Batch<'_>]) -> Result<Vec<Decisions>, StoreError> {
        let now = self.check(batches)?;
        self.node.decide_in_turn(batches, now).await
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
        if !scripts.is_empty() {
            self.node.check_scripts(scripts);
        }
    }

    /// The maximum duration of a decision.
    pub const fn timeout(&self) -> Duration {
        self.timeout
    }

    pub fn health(&self) -> Health {
        self.node.health()
    }
}
