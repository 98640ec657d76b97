//! Where buckets live: in this process' memory or in Redis. Both give the same answers.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::algorithms::charge::Charge;
use crate::engine::algorithms::decision::Decisions;
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::script::ScriptSource;

mod health;
pub mod memory;
pub mod redis;

pub use health::{Breaker, Fault, Health};
pub use redis::{SharedBlocks, StoredBlock, StoredBlocks};

/// The charges of one request, and when their numbers took effect (see [`crate::engine::algorithms::state::decide_level`]).
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// Decided together, all or nothing. No two may name the same bucket.
    pub charges: &'a [Charge],
    /// When the rules that made them took effect.
    pub effective_from: Micros,
    /// The time on this machine, read once a request: what the memory store decides by. Redis has a clock of its own.
    pub now: Micros,
}

/// Why a store gave no answer. What a request gets instead is its limits' `on_store_error`, unless the store is only busy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No connection, or the breaker is open. Nothing was sent.
    #[error("no connection to the store")]
    Down,
    /// The connection ended before the answer came.
    #[error("the connection to the store broke before the answer")]
    Broken,
    /// The store answers, but this process has more requests than it can decide in time: overload, not a failure.
    #[error("too many requests are waiting for the store")]
    Busy {
        /// False if the store was not asked.
        sent: bool,
    },
    /// No answer in time.
    #[error("no answer from the store within {0:?}")]
    Late(Duration),
    /// The store answered with an error, or with something that is no answer.
    #[error("the store refused the call: {0}")]
    Refused(String),
    /// Two charges of one request name the same bucket.
    #[error("the same bucket is charged twice in one request")]
    Duplicate,
}

impl StoreError {
    /// The label of the metric `weir_store_errors_total`.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Down => "down",
            Self::Broken => "broken",
            Self::Busy { .. } => "busy",
            Self::Late(_) => "late",
            Self::Refused(_) => "refused",
            Self::Duplicate => "duplicate",
        }
    }

    /// True if the store may have made the charge.
    pub const fn is_ambiguous(&self) -> bool {
        matches!(self, Self::Late(_) | Self::Broken | Self::Busy { sent: true })
    }
}

/// A store. Cheap to clone: clones share their buckets.
#[derive(Clone)]
pub enum Store {
    /// This process' memory.
    Memory(Arc<memory::MemoryStore>),
    /// A Redis server.
    Redis(Arc<redis::RedisStore>),
}

/// A store whose options were checked. Each worker opens it for itself.
pub enum StorePlan {
    /// The table that the workers share.
    Memory(Arc<memory::MemoryStore>),
    /// A Redis server.
    Redis(Box<redis::Target>),
}

impl StorePlan {
    /// A store on a server; connects to nothing.
    pub fn remote(options: &redis::RedisOptions) -> Result<Self, redis::RedisOptionsError> {
        Ok(Self::Redis(Box::new(options.target()?)))
    }

    /// The store in this process' memory; `None` if the buckets are on a server.
    pub const fn as_memory(&self) -> Option<&Arc<memory::MemoryStore>> {
        match self {
            Self::Memory(store) => Some(store),
            Self::Redis(_) => None,
        }
    }

    /// True if the buckets are on a server, which other gateways may share.
    pub const fn is_remote(&self) -> bool {
        matches!(self, Self::Redis(_))
    }

    /// Opens the store. A task connects to the server, so this must run on a Tokio runtime.
    pub fn open(&self) -> Store {
        match self {
            Self::Memory(store) => Store::Memory(Arc::clone(store)),
            Self::Redis(target) => Store::Redis(redis::RedisStore::connect(target)),
        }
    }
}

/// What was asked of a store, and the answer if it has come.
pub enum Asked {
    /// There is one.
    Answered(Result<Decisions, StoreError>),
    /// There is none yet. It comes within the store's timeout.
    Waiting(redis::PendingAnswer),
}

impl Asked {
    /// Waits for the answer.
    pub async fn answer(self) -> Result<Decisions, StoreError> {
        match self {
            Self::Answered(answer) => answer,
            Self::Waiting(coming) => coming.answer().await,
        }
    }

    /// The answer, if it has come.
    pub fn answered(&mut self) -> Option<&Result<Decisions, StoreError>> {
        if let Self::Waiting(coming) = self {
            *self = Self::Answered(coming.answered()?);
        }
        match self {
            Self::Answered(answer) => Some(answer),
            Self::Waiting(_) => None,
        }
    }
}

impl Store {
    /// Asks for the decisions of one request and does not wait for them. What is asked by one worker is decided in the
    /// order of asking, [`Self::decide`] included. To be called inside the runtime of the store.
    pub fn ask(&self, batch: &Batch<'_>) -> Asked {
        match self {
            Self::Memory(store) => Asked::Answered(store.decide(batch)),
            Self::Redis(store) => store.ask(batch).map_or_else(|error| Asked::Answered(Err(error)), Asked::Waiting),
        }
    }

    /// Decides the charges of one request, all or nothing: one decision a charge, in their order.
    pub async fn decide(&self, batch: &Batch<'_>) -> Result<Decisions, StoreError> {
        match self {
            Self::Memory(store) => store.decide(batch),
            // In a box, or every request to the memory store would carry room for a call to Redis: 1.5 KB that is moved
            // with the request's future.
            Self::Redis(store) => Box::pin(store.decide(batch)).await,
        }
    }

    /// Decides several requests one after the other, and nothing of anybody else's in between; each as [`Self::decide`]
    /// would. All of them have the time and the rules of the first.
    pub async fn decide_in_turn(&self, batches: &[Batch<'_>]) -> Result<Vec<Decisions>, StoreError> {
        match self {
            Self::Memory(store) => store.decide_in_turn(batches),
            Self::Redis(store) => Box::pin(store.decide_in_turn(batches)).await,
        }
    }

    /// How long a decision takes at most.
    pub fn timeout(&self) -> Duration {
        match self {
            Self::Memory(_) => Duration::ZERO,
            Self::Redis(store) => store.timeout(),
        }
    }

    /// The state of this worker's store.
    pub fn health(&self) -> Health {
        match self {
            Self::Memory(_) => {
                Health { connected: true, breaker: Breaker::Closed, fault: None, last_error: None, corrupt_values: 0 }
            }
            Self::Redis(store) => store.health(),
        }
    }

    /// Returns an error with the reason if the store cannot answer now.
    pub fn ready(&self) -> Result<(), String> {
        let Health { connected, last_error, .. } = self.health();
        if connected { Ok(()) } else { Err(last_error.unwrap_or_else(|| "not connected".into())) }
    }

    /// The store in this process' memory; `None` if the buckets are on a server.
    pub fn as_memory(&self) -> Option<&memory::MemoryStore> {
        match self {
            Self::Memory(store) => Some(store),
            Self::Redis(_) => None,
        }
    }

    /// True if the buckets are on a server, which other gateways may share.
    pub const fn is_remote(&self) -> bool {
        matches!(self, Self::Redis(_))
    }

    /// The blocked ids that the gateways at this store share; `None` if it has none beside this process.
    pub fn shared_blocks(&self) -> Option<SharedBlocks<'_>> {
        match self {
            Self::Memory(_) => None,
            Self::Redis(store) => Some(store.blocks()),
        }
    }

    /// Has the server compile these scripts, and logs those that it cannot. None of them runs. Returns at once.
    pub fn check_scripts(&self, scripts: Vec<Arc<ScriptSource>>) {
        if let Self::Redis(store) = self {
            store.check_scripts(scripts);
        }
    }
}
