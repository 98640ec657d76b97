//! A call that requests share.

use tokio::sync::oneshot::{self, Receiver};
use tokio::time::Instant;

use super::Node;
use super::calls::{Migration, Route};
use super::overload::WaitingRequest;
use super::patience::PARTS;
use crate::engine::algorithms::charge::{Charge, Mode};
use crate::engine::algorithms::decision::Decisions;
use crate::engine::algorithms::micros::Micros;
use crate::store::redis::call::Requests;
use crate::store::redis::unclaimed::Unclaimed;
use crate::store::{Batch, StoreError};

/// The most charges of a call. The server does nothing else meanwhile: some 0.5 ms for that many buckets.
pub(super) const MAX_CHARGES: usize = 128;

/// The most bytes of keys and words in a call, unless its only request has more. [`MAX_CHARGES`] of usual length have 10 KiB.
const MAX_BYTES: usize = 32 * 1024;

/// The answer to a request.
pub(super) type RequestAnswer = Result<Decisions, StoreError>;

/// Requests that are decided in one call, one after the other.
pub(super) struct Call {
    pub(super) tag: u8,
    pub(super) migration: Option<Migration>,
    pub(super) requests: Requests,
    /// The time of the first request. The others of a call that did not wait share its patience, so they must follow soon.
    asked: Micros,
    /// The instant at which the first request asked.
    pub(super) since: Instant,
    pub(super) askers: Vec<Asker>,
    /// [`Node::timely`] when the first request began to wait because too many calls were outstanding; `None` if it did not.
    pub(super) waited: Option<u64>,
}

/// The receiver of an answer, which it waits for.
pub(super) struct Caller {
    answer: oneshot::Sender<RequestAnswer>,
    _waiting: WaitingRequest,
}

/// A request of a call.
pub(super) struct Asker {
    /// `None` once it is answered.
    pub(super) caller: Option<Caller>,
    /// The parts of the timeout that it may still wait when it is sent.
    pub(super) patience: u32,
    /// Refunds and resets are sent even if nobody waits for the answer.
    gives_back: bool,
    pub(super) unclaimed: Option<Box<Unclaimed>>,
}

/// The answer to the question whether a call can take more requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    Fits,
    /// These cannot be in one call with the others.
    Unlike,
    Full,
}

impl Caller {
    pub(super) fn new(waiting: WaitingRequest) -> (Self, Receiver<RequestAnswer>) {
        let (answer, receiver) = oneshot::channel();
        (Self { answer, _waiting: waiting }, receiver)
    }

    pub(super) fn is_there(&self) -> bool {
        !self.answer.is_closed()
    }

    /// Returns the answer if nobody takes it.
    pub(super) fn answer(self, answer: RequestAnswer) -> Result<(), RequestAnswer> {
        self.answer.send(answer)
    }
}

impl Call {
    pub(super) fn new(node: &Node, route: Route, first: &Batch<'_>, now: Option<Micros>, waited: Option<u64>) -> Self {
        let Route { tag, migration, .. } = route;
        let requests = Requests::new(first, now, node.number(), node.key_starts.of(tag));
        Self { tag, migration, requests, asked: first.now, since: Instant::now(), askers: Vec::new(), waited }
    }

    /// Returns whether the call can take these requests as well.
    pub(super) fn fits<'b>(&self, route: Route, batches: impl Iterator<Item = Batch<'b>>, now: Option<Micros>) -> Fit {
        if route.tag != self.tag || self.migration.is_some() || route.migration.is_some() {
            return Fit::Unlike;
        }
        let requests = &self.requests;
        let (mut charges, mut bytes) = (requests.charges(), requests.bytes());
        for batch in batches {
            let is_alike = (requests.now, requests.effective_from) == (now, batch.effective_from);
            if !is_alike || !requests.runs_as(batch.charges) {
                return Fit::Unlike;
            }
            charges += batch.charges.len();
            bytes += requests.bytes_of(batch.charges);
        }
        if charges <= MAX_CHARGES && bytes <= MAX_BYTES { Fit::Fits } else { Fit::Full }
    }

    /// Returns true if the first request was asked shortly before this one.
    pub(super) fn is_followed_soon(&self, node: &Node, batch: &Batch<'_>) -> bool {
        // These times are known; reading the clock would add 100 to the 17,000 instructions of a request.
        u128::from(batch.now.since(self.asked).0) < (node.timeout / PARTS).as_micros()
    }

    pub(super) fn push(&mut self, batch: &Batch<'_>, caller: Caller, patience: u32) {
        self.requests.push(batch.charges, batch.now);
        let (gives_back, unclaimed) = (gives_back(batch.charges), Unclaimed::of(batch));
        self.askers.push(Asker { caller: Some(caller), patience, gives_back, unclaimed });
    }

    /// Drops the requests whose callers have gone; false if that leaves none.
    pub(super) fn drop_unwanted(&mut self) -> bool {
        let is_wanted = |asker: &Asker| asker.gives_back || asker.caller.as_ref().is_some_and(Caller::is_there);
        if !self.askers.iter().all(is_wanted) {
            let keep: Vec<bool> = self.askers.iter().map(is_wanted).collect();
            self.requests.retain(&keep);
            self.askers.retain(is_wanted);
        }
        !self.askers.is_empty()
    }
}

/// Returns true for refunds and resets.
pub(super) fn gives_back(charges: &[Charge]) -> bool {
    charges.iter().any(|charge| matches!(charge.mode, Mode::Refund | Mode::Reset))
}
