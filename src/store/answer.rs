//! An answer of a store that may not have arrived yet.

use tokio::sync::oneshot::{Receiver, error::TryRecvError};

use super::error::StoreError;
use crate::engine::algorithms::decision::Decisions;

pub enum StoreAnswer {
    Ready(Result<Decisions, StoreError>),
    /// Arrives within the store's timeout. If this is dropped before the request was sent, the request is not sent, unless it
    /// gives something back.
    Pending(Receiver<Result<Decisions, StoreError>>),
}

impl StoreAnswer {
    /// Returns [`StoreError::Broken`] if the store's runtime has ended.
    pub async fn wait(self) -> Result<Decisions, StoreError> {
        match self {
            Self::Ready(answer) => answer,
            Self::Pending(receiver) => receiver.await.unwrap_or(Err(StoreError::Broken)),
        }
    }

    /// Returns the answer if it has arrived.
    pub fn poll(&mut self) -> Option<&Result<Decisions, StoreError>> {
        if let Self::Pending(receiver) = self {
            *self = Self::Ready(match receiver.try_recv() {
                Ok(answer) => answer,
                Err(TryRecvError::Empty) => return None,
                Err(TryRecvError::Closed) => Err(StoreError::Broken),
            });
        }
        if let Self::Ready(answer) = self { Some(answer) } else { None }
    }
}
