//! The stores of buckets: this process's memory, and Redis. Both give the same answers.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::algorithms::decision::Decisions;
use crate::engine::algorithms::script::ScriptSource;

mod answer;
mod batch;
mod error;
mod health;
pub mod memory;
pub mod redis;

pub use answer::StoreAnswer;
pub use batch::Batch;
pub use error::{PartialAnswer, StoreError};
pub use health::{Fault, Health};
pub use redis::{Note, SharedNotes};

/// A store. Cheap to clone: clones share their buckets.
#[derive(Clone)]
pub enum Store {
    Memory(Arc<memory::MemoryStore>),
    Redis(Arc<redis::RedisStore>),
}

/// A store with valid options. Each worker opens it.
pub enum StorePlan {
    Memory(Arc<memory::MemoryStore>),
    Redis(Box<redis::StoreTarget>),
}

impl StorePlan {
    /// Does not connect.
    pub fn remote(options: &redis::RedisOptions) -> Result<Self, String> {
        Ok(Self::Redis(Box::new(options.target()?)))
    }

    /// Returns `None` if the buckets are on a server, which other gateways may share.
    pub const fn as_memory(&self) -> Option<&Arc<memory::MemoryStore>> {
        match self {
            Self::Memory(store) => Some(store),
            Self::Redis(_) => None,
        }
    }

    /// Returns true if the keys are spread over the nodes of a cluster.
    pub const fn is_cluster(&self) -> bool {
        match self {
            Self::Memory(_) => false,
            Self::Redis(target) => target.is_cluster(),
        }
    }

    /// Must be called on a Tokio runtime, where a task connects to the server.
    pub fn open(&self) -> Store {
        match self {
            Self::Memory(store) => Store::Memory(Arc::clone(store)),
            Self::Redis(target) => Store::Redis(redis::RedisStore::connect(target)),
        }
    }
}

impl Store {
    /// Decides like [`Self::decide`], without waiting for the answer. One worker's batches that charge the same
    /// buckets are decided in the order of the calls. Must be called inside the store's runtime.
    pub fn ask(&self, batch: &Batch<'_>) -> StoreAnswer {
        match self {
            Self::Memory(store) => StoreAnswer::Ready(store.decide(batch)),
            Self::Redis(store) => store.ask(batch),
        }
    }

    /// Decides all or nothing. Returns one decision per charge, in their order.
    pub async fn decide(&self, batch: &Batch<'_>) -> Result<Decisions, StoreError> {
        match self {
            Self::Memory(store) => store.decide(batch),
            // In a box, or the future of every request would have 1.5 KB for a call to Redis, which are moved with it.
            Self::Redis(store) => Box::pin(store.decide(batch)).await,
        }
    }

    /// Decides several batches in order, each as [`Self::decide`] would, with no other batch in between. All of them use the
    /// time and the rules of the first. Returns the decisions of all of them.
    pub async fn decide_in_turn(&self, batches: &[Batch<'_>]) -> Result<Decisions, StoreError> {
        match self {
            Self::Memory(store) => store.decide_in_turn(batches).map(Decisions::joined),
            Self::Redis(store) => Box::pin(store.decide_in_turn(batches)).await,
        }
    }

    /// The error of a request that waits no longer for its answer than `patience`.
    pub fn late(&self, patience: Duration) -> StoreError {
        match self {
            Self::Redis(store) if store.is_overloaded() => StoreError::Busy { sent: true },
            Self::Memory(_) | Self::Redis(_) => StoreError::Late(patience),
        }
    }

    /// The maximum duration of a decision.
    pub fn timeout(&self) -> Duration {
        match self {
            Self::Memory(_) => Duration::ZERO,
            Self::Redis(store) => store.timeout(),
        }
    }

    pub fn health(&self) -> Health {
        match self {
            Self::Memory(_) => Health { connected: true, ..Health::default() },
            Self::Redis(store) => store.health(),
        }
    }

    /// The error is the reason why the store cannot answer now.
    pub fn ready(&self) -> Result<(), String> {
        let Health { connected, last_error, .. } = self.health();
        if connected { Ok(()) } else { Err(last_error.unwrap_or_else(|| "not connected".into())) }
    }

    pub fn as_memory(&self) -> Option<&memory::MemoryStore> {
        match self {
            Self::Memory(store) => Some(store),
            Self::Redis(_) => None,
        }
    }

    /// Returns true if the buckets are on a server, which other gateways may share.
    pub const fn is_remote(&self) -> bool {
        matches!(self, Self::Redis(_))
    }

    /// The notes of this name that gateways at one server share. `None` for memory.
    pub fn shared_notes(&self, name: &'static str) -> Option<SharedNotes<'_>> {
        match self {
            Self::Memory(_) => None,
            Self::Redis(store) => Some(store.notes(name)),
        }
    }

    /// The versions of the notes of these names. `None` for memory.
    pub async fn note_versions<const NAMES: usize>(
        &self,
        names: [&'static str; NAMES],
    ) -> Result<Option<[u64; NAMES]>, StoreError> {
        match self {
            Self::Memory(_) => Ok(None),
            Self::Redis(store) => store.note_versions(names).await.map(Some),
        }
    }

    /// Asks the server for notifications of changed notes, from the next connection on.
    pub fn watch_notes(&self) {
        if let Self::Redis(store) = self {
            store.watch_notes();
        }
    }

    /// Returns true if the server sends notifications of changed notes.
    pub fn is_notified_of_notes(&self) -> bool {
        matches!(self, Self::Redis(store) if store.is_notified_of_notes())
    }

    /// Returns when notes may have changed since their versions were read. Never returns for memory.
    pub async fn notes_changed(&self) {
        match self {
            Self::Memory(_) => pending().await,
            Self::Redis(store) => store.notes_changed().await,
        }
    }

    /// Gives back what is left of leases. Call it when the worker stops.
    pub async fn close(&self) {
        if let Self::Redis(store) = self {
            store.give_back_leases().await;
        }
    }

    /// Has the server compile these scripts, without running or waiting for them, and logs errors.
    pub fn check_scripts(&self, scripts: Vec<Arc<ScriptSource>>) {
        if let Self::Redis(store) = self {
            store.check_scripts(scripts);
        }
    }
}
