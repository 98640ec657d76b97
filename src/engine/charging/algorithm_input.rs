//! The input of charges whose algorithm needs more than numbers: the entry of a queue, the call of a script.

use crate::engine::algorithms::charge::{Charge, Input, Mode};
use crate::engine::algorithms::queue::{EntryId, QueueEntry, Work};
use crate::engine::charging::plan::Plan;
use crate::engine::limit::Limit;
use crate::engine::limit::queue::Queue;

/// An operation that a limit's algorithm does not support.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnsupportedOperation {
    /// A script counts whenever it runs, and cannot undo that.
    #[error(
        "{0} is a script limit: it can be charged, but not checked, refunded or reset, because only the script knows its bucket"
    )]
    Script(String),
    /// Only workers remove entries.
    #[error("{0} is a queue and cannot be reset: only its workers remove entries")]
    Queue(String),
    /// Its buckets have no place for what is held.
    #[error("{0} cannot be reserved: only limits with `algorithm: gcra` or `fixed_window` and without `elevated` can")]
    Reservation(String),
}

impl Plan {
    /// Adds the input that the algorithm of `limit` needs to its charges, which begin at `first`. `entry` makes the entry of a
    /// queue, and `given_back` is the one that a refund removes.
    pub(crate) fn add_input<E>(
        &mut self,
        first: usize,
        limit: &Limit,
        entry: impl FnOnce(&Queue) -> Result<QueueEntry, E>,
        given_back: Option<&EntryId>,
    ) -> Result<(), E> {
        let entry = limit.queue.as_ref().map(|queue| entry(queue)).transpose()?;
        for charge in self.charges.iter_mut().skip(first) {
            if let (Some(queue), Some(entry)) = (&limit.queue, &entry) {
                charge.bucket.key.push_str(queue.storage.mark());
                let (storage, entry) = (queue.storage, entry.clone());
                let work = Work { storage, entry, given_back: given_back.cloned() };
                charge.input = Some(Box::new(Input::Queue(work)));
            } else if let Some(script) = &limit.script {
                charge.input = Some(Box::new(Input::Script(script.run(charge.numbers.count()))));
            }
            charge.bound_cost();
        }
        Ok(())
    }
}

impl Limit {
    /// Checks that its algorithm supports a charge of this mode and cost.
    pub(crate) fn check_mode(&self, mode: Mode, cost: Option<u64>) -> Result<(), UnsupportedOperation> {
        let spends = matches!(mode, Mode::Spend | Mode::SpendOnly) && cost != Some(0);
        if self.script.is_some() && !spends {
            return Err(UnsupportedOperation::Script(self.name.clone()));
        }
        if self.queue.is_some() && mode == Mode::SpendUpTo {
            return Err(UnsupportedOperation::Reservation(self.name.clone()));
        }
        if self.queue.is_some() && mode == Mode::Reset {
            return Err(UnsupportedOperation::Queue(self.name.clone()));
        }
        Ok(())
    }
}

impl Charge {
    /// Limits the cost to 1 for queues and scripts: a request is one entry, or one run. A cost of 0 still only checks.
    pub(crate) fn bound_cost(&mut self) {
        if matches!(self.input.as_deref(), Some(Input::Queue(_) | Input::Script(_))) {
            self.cost = self.cost.min(1);
        }
    }
}
