//! Errors of stores.

use std::time::Duration;

/// A store gave no answer. Then the limits' `on_store_error` decides, unless the store is only busy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No connection, or the breaker is open. Nothing was sent.
    #[error("no connection to the store")]
    Down,
    #[error("the connection to the store broke before the answer")]
    Broken,
    /// The store answers, but this process has more requests than it decides in time: overload, not a failure.
    #[error("too many requests are waiting for the store")]
    Busy {
        /// True if the store was asked.
        sent: bool,
    },
    #[error("no answer from the store within {0:?}")]
    Late(Duration),
    /// The store returned an error, or something that is not an answer.
    #[error("the store returned an error: {0}")]
    Failed(String),
    #[error("the same bucket is charged twice in one request")]
    Duplicate,
}

impl StoreError {
    /// Returns true if the store may have made the charge.
    pub const fn is_ambiguous(&self) -> bool {
        matches!(self, Self::Late(_) | Self::Broken | Self::Busy { sent: true })
    }
}
