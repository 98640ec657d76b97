//! The terms of charges whose algorithm needs more than numbers: what a request brings to a queue, what a script runs.

use super::limit::Limit;
use super::request::Request;
use super::rule_set::{BadCost, Plan, Rules};
use crate::engine::algorithms::charge::{Charge, Mode};
use crate::engine::algorithms::details::Terms;
use crate::engine::algorithms::queue::{Entry, EntryId, LONGEST_ENTRY, Then, TooLong, Work};

/// What somebody brings who names a limit and has no request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Brought<'a> {
    /// The fields of an entry.
    pub(crate) fields: &'a [(String, String)],
    /// The entry that is given back.
    pub(crate) entry: Option<&'a EntryId>,
}

/// Why what is asked of a limit makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Senseless {
    /// A script counts whenever it runs, and cannot take back what it has counted.
    #[error(
        "{0} is a script, which can be spent and neither asked, refunded nor reset: only the script knows its bucket"
    )]
    Script(String),
    /// The entries of a queue are work.
    #[error("{0} is a queue, which is not reset: its entries are work, and only its workers take them away")]
    Queue(String),
}

impl Plan {
    /// Gives the charges from `first` on, which are those of a limit, what its algorithm needs from a request.
    pub(crate) fn equip(&mut self, first: usize, limit: &Limit, request: &Request<'_>) -> Result<(), BadCost> {
        let Some(queue) = &limit.queue else {
            self.equip_script(first, limit);
            return Ok(());
        };
        let entry = queue.entry(request).map_err(|TooLong(bytes)| BadCost {
            origin: format!("the queue entry of {}", limit.name),
            wanted: "at most 8192 bytes",
            value: format!("{bytes} bytes"),
        })?;
        self.equip_queue(first, limit, &entry, None);
        Ok(())
    }

    /// The same for a charge by name. The error is for who asks.
    pub(crate) fn equip_named(&mut self, first: usize, limit: &Limit, brought: Brought<'_>) -> Result<(), String> {
        let Some(queue) = &limit.queue else {
            self.equip_script(first, limit);
            return Ok(());
        };
        let entry = queue.entry_of(brought.fields)?;
        self.equip_queue(first, limit, &entry, brought.entry);
        Ok(())
    }

    fn equip_queue(&mut self, first: usize, limit: &Limit, entry: &Entry, given_back: Option<&EntryId>) {
        let Some(queue) = &limit.queue else { return };
        for charge in self.charges.iter_mut().skip(first) {
            charge.bucket.key.push_str(queue.storage.mark());
            let work = Work { storage: queue.storage, entry: entry.clone(), given_back: given_back.cloned() };
            charge.terms = Some(Box::new(Terms::Queue(work)));
            charge.bound_cost();
        }
    }

    fn equip_script(&mut self, first: usize, limit: &Limit) {
        let Some(script) = &limit.script else { return };
        for charge in self.charges.iter_mut().skip(first) {
            charge.terms = Some(Box::new(Terms::Script(script.run(charge.numbers.count()))));
            charge.bound_cost();
        }
    }
}

impl Plan {
    /// The limit that answers this request by itself once its entry is in the queue, if one does.
    pub fn accepting<'r>(&self, rules: &'r Rules) -> Option<&'r Limit> {
        let limits = self.origins.iter().filter_map(|origin| rules.limit(origin.limit));
        limits.into_iter().find(|limit| limit.queue.as_ref().is_some_and(|queue| queue.then == Then::Accept))
    }
}

impl Rules {
    /// Whether something can be done with all buckets of a plan.
    pub fn check_plan(&self, plan: &Plan, mode: Mode, cost: Option<u64>) -> Result<(), Senseless> {
        let mut limits = plan.origins.iter().filter_map(|origin| self.limit(origin.limit));
        limits.try_for_each(|limit| limit.check_mode(mode, cost))
    }
}

impl Limit {
    /// Whether something can be done with its buckets at all.
    pub(crate) fn check_mode(&self, mode: Mode, cost: Option<u64>) -> Result<(), Senseless> {
        let spends = matches!(mode, Mode::Spend | Mode::SpendOnly) && cost != Some(0);
        if self.script.is_some() && !spends {
            return Err(Senseless::Script(self.name.clone()));
        }
        if self.queue.is_some() && mode == Mode::Reset {
            return Err(Senseless::Queue(self.name.clone()));
        }
        Ok(())
    }
}

impl Charge {
    /// A request is one entry of a queue and one run of a script, whatever it costs others; 0 asks all the same.
    pub(crate) fn bound_cost(&mut self) {
        if matches!(self.terms.as_deref(), Some(Terms::Queue(_) | Terms::Script(_))) {
            self.cost = self.cost.min(1);
        }
    }
}

const _: () = assert!(LONGEST_ENTRY == 8192, "the message says so");
