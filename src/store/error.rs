//! Errors of stores.

use std::time::Duration;

use crate::engine::algorithms::charge::Charge;
use crate::engine::algorithms::decision::{Decision, Decisions};

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
    /// Some nodes of a cluster have decided their charges, and others have not.
    #[error("some charges are undecided: {}", .0.error)]
    Partial(Box<PartialAnswer>),
}

/// The answer of those nodes of a cluster that answered. All or nothing holds among their charges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartialAnswer {
    /// One per charge. Those of undecided charges say nothing.
    pub decisions: Decisions,
    /// The indices of the undecided charges, in ascending order.
    pub undecided: Vec<usize>,
    /// Why one of them is undecided.
    pub error: StoreError,
}

impl StoreError {
    /// Returns true if the store may have made the charge.
    pub const fn is_ambiguous(&self) -> bool {
        matches!(self, Self::Late(_) | Self::Broken | Self::Busy { sent: true } | Self::Partial(_))
    }
}

impl PartialAnswer {
    /// Joins the answers to batches of charges.
    pub(super) fn joined<'c>(
        answers: impl IntoIterator<Item = (&'c [Charge], Result<Decisions, StoreError>)>,
    ) -> Result<Decisions, StoreError> {
        let (mut decisions, mut undecided, mut reason) = (Decisions::default(), Vec::new(), None);
        for (charges, answer) in answers {
            let first = decisions.len();
            let (decided, missing, error) = match answer {
                Ok(decided) => (decided, Vec::new(), None),
                Err(StoreError::Partial(partial)) => {
                    let Self { decisions, undecided, error } = *partial;
                    (decisions, undecided, Some(error))
                }
                Err(error) => {
                    let unknown = charges.iter().map(|charge| Decision::unknown(charge.numbers.burst()));
                    (unknown.collect(), (0..charges.len()).collect(), Some(error))
                }
            };
            decisions.append(decided);
            undecided.extend(missing.into_iter().map(|place| first + place));
            reason = match reason {
                Some(StoreError::Busy { .. }) => reason,
                _ => error.or(reason),
            };
        }
        match reason {
            None => Ok(decisions),
            Some(error) if undecided.len() == decisions.len() => Err(error),
            Some(error) => Err(StoreError::Partial(Box::new(Self { decisions, undecided, error }))),
        }
    }
}
