//! Costs that depend on the response, charged or given back when it ended.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::engine::algorithms::charge::Charge;
use crate::engine::algorithms::micros::Micros;
use crate::engine::charging::settlement::{PendingSettlement, ResponseReport};
use crate::engine::limit::response_cost::CostSource;
use crate::store::Batch;
use crate::store::memory::MemoryStore;

/// Stands for the status of a response whose line has none, where no limit looks at it.
const ANY_STATUS: u16 = 200;

/// The parts of a response that a line contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LoggedResponse {
    pub(super) status: Option<u16>,
    /// Of the body.
    pub(super) bytes: Option<u64>,
}

/// Settlements of responses that have not ended yet, by their ends.
pub(super) struct Settlements {
    /// One beyond is made at once.
    most: usize,
    /// Those that were made at once.
    pub(super) early: u64,
    waiting: BinaryHeap<Reverse<(Micros, u64)>>,
    charges: hashbrown::HashMap<u64, Vec<Charge>>,
    added: u64,
}

impl Settlements {
    pub(super) fn new(most: usize) -> Self {
        Self { most, early: 0, waiting: BinaryHeap::new(), charges: hashbrown::HashMap::new(), added: 0 }
    }

    /// Adds what a request owes when its response ends.
    pub(super) fn add(&mut self, owed: &[PendingSettlement], response: LoggedResponse, ends: Micros, now: Micros) {
        let charges: Vec<Charge> = owed.iter().flat_map(|owed| settled(owed, response)).collect();
        if charges.is_empty() {
            return;
        }
        let is_early = self.waiting.len() >= self.most && ends > now;
        self.early += u64::from(is_early);
        let at = if is_early { now } else { ends };
        self.waiting.push(Reverse((at, self.added)));
        self.charges.insert(self.added, charges);
        self.added += 1;
    }

    /// Settles what ended by `now`. Returns the number of requests that could not be settled.
    pub(super) fn advance(&mut self, store: &MemoryStore, effective_from: Micros, now: Micros) -> u64 {
        let mut failed = 0;
        while let Some(Reverse((at, number))) = self.waiting.peek().copied().filter(|next| next.0.0 <= now) {
            self.waiting.pop();
            let Some(charges) = self.charges.remove(&number) else { continue };
            failed += u64::from(store.decide(&Batch { charges: &charges, effective_from, now: at }).is_err());
        }
        failed
    }
}

/// The charges of one limit. A limit without a condition on the status is settled by what the line has of the response.
fn settled(owed: &PendingSettlement, response: LoggedResponse) -> Vec<Charge> {
    let bytes = response.bytes.filter(|_| matches!(owed.cost.source, Some(CostSource::Bytes)));
    let bytes = bytes.map(|bytes| bytes.to_string());
    let report = match response.status {
        Some(status) => ResponseReport::Response(status, bytes.as_deref().map(str::as_bytes)),
        None if owed.cost.when.is_none() && bytes.is_some() => {
            ResponseReport::Response(ANY_STATUS, bytes.as_deref().map(str::as_bytes))
        }
        None => ResponseReport::Nothing(None),
    };
    owed.settle(report, false).map(|(_, charges)| charges).unwrap_or_default()
}
