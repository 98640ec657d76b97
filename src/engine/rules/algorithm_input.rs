//! The input of charges whose algorithm needs more than numbers: the entry of a queue, the call of a script.

use super::limit::Limit;
use super::plan::{InvalidInput, Plan};
use super::request::Request;
use crate::engine::algorithms::charge::{Charge, Input, Mode};
use crate::engine::algorithms::queue::{EntryId, EntryTooLong, LONGEST_ENTRY, QueueEntry, Work};

/// The input of a charge by name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueInput<'a> {
    /// The fields of the entry.
    pub(crate) fields: &'a [(String, String)],
    /// The entry that a refund removes.
    pub(crate) entry: Option<&'a EntryId>,
}

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
}

impl Plan {
    /// Adds the input that the algorithm of `limit` needs to its charges, which begin at `first`.
    pub(super) fn add_input(&mut self, first: usize, limit: &Limit, request: &Request<'_>) -> Result<(), InvalidInput> {
        let Some(queue) = &limit.queue else {
            self.add_script(first, limit);
            return Ok(());
        };
        let entry = queue.entry(request).map_err(|EntryTooLong(bytes)| InvalidInput {
            origin: format!("the queue entry of {}", limit.name),
            wanted: "at most 8192 bytes",
            value: format!("{bytes} bytes"),
        })?;
        self.add_entry(first, limit, &entry, None);
        Ok(())
    }

    /// As [`Self::add_input`], for a charge by name. The error is for the caller.
    pub(super) fn add_named_input(&mut self, first: usize, limit: &Limit, input: QueueInput<'_>) -> Result<(), String> {
        let Some(queue) = &limit.queue else {
            self.add_script(first, limit);
            return Ok(());
        };
        let entry = queue.entry_of(input.fields)?;
        self.add_entry(first, limit, &entry, input.entry);
        Ok(())
    }

    fn add_entry(&mut self, first: usize, limit: &Limit, entry: &QueueEntry, removed: Option<&EntryId>) {
        let Some(queue) = &limit.queue else { return };
        for charge in self.charges.iter_mut().skip(first) {
            charge.bucket.key.push_str(queue.storage.mark());
            let work = Work { storage: queue.storage, entry: entry.clone(), given_back: removed.cloned() };
            charge.input = Some(Box::new(Input::Queue(work)));
            charge.bound_cost();
        }
    }

    fn add_script(&mut self, first: usize, limit: &Limit) {
        let Some(script) = &limit.script else { return };
        for charge in self.charges.iter_mut().skip(first) {
            charge.input = Some(Box::new(Input::Script(script.run(charge.numbers.count()))));
            charge.bound_cost();
        }
    }
}

impl Limit {
    /// Checks that its algorithm supports a charge of this mode and cost.
    pub(crate) fn check_mode(&self, mode: Mode, cost: Option<u64>) -> Result<(), UnsupportedOperation> {
        let spends = matches!(mode, Mode::Spend | Mode::SpendOnly) && cost != Some(0);
        if self.script.is_some() && !spends {
            return Err(UnsupportedOperation::Script(self.name.clone()));
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

const _: () = assert!(LONGEST_ENTRY == 8192, "the message says so");
