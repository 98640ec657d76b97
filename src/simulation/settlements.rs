//! Costs that depend on the response, charged or given back when it ended.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::engine::algorithms::charge::Charge;
use crate::engine::algorithms::micros::Micros;
use crate::engine::charging::settlement::{PendingSettlement, ResponseReport};
use crate::engine::limit::response_cost::CostSource;
use crate::store::Batch;
use crate::store::memory::MemoryStore;

/// The most settlements that wait for the end of a response. One beyond is made at once.
const MOST_WAITING: usize = 1_000_000;

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
#[derive(Default)]
pub(super) struct Settlements {
    waiting: BinaryHeap<Reverse<(Micros, u64)>>,
    charges: hashbrown::HashMap<u64, Vec<Charge>>,
    added: u64,
}

impl Settlements {
    /// Adds what a request owes when its response ends.
    pub(super) fn add(&mut self, owed: &[PendingSettlement], response: LoggedResponse, ends: Micros, now: Micros) {
        let charges: Vec<Charge> = owed.iter().flat_map(|owed| settled(owed, response)).collect();
        if charges.is_empty() {
            return;
        }
        let at = if self.waiting.len() < MOST_WAITING { ends } else { now };
        self.waiting.push(Reverse((at, self.added)));
        self.charges.insert(self.added, charges);
        self.added += 1;
    }

    /// Settles what ended by `now`.
    pub(super) fn advance(&mut self, store: &MemoryStore, effective_from: Micros, now: Micros) {
        while let Some(Reverse((at, number))) = self.waiting.peek().copied().filter(|next| next.0.0 <= now) {
            self.waiting.pop();
            let Some(charges) = self.charges.remove(&number) else { continue };
            // Their buckets were in the plan of the request.
            let _ = store.decide(&Batch { charges: &charges, effective_from, now: at });
        }
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
