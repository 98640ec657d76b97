//! The requests that ask within one turn of a worker's event loop, sent as one call.
//!
//! The first to ask spawns a task that sends the call. The runtime runs tasks in the order in which they became ready,
//! so that task comes after all that were ready at that moment, and whatever those ask goes along. A lone request waits
//! for nobody: with nothing else ready, its task is next. Redis spends about 18 us on a call and 2 to 5 us on a request
//! in it, so the more company the better, and a busy worker has some in every turn.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot::{self, error::TryRecvError};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::Shared;
use super::script::Requests;
use super::user_scripts;
use crate::engine::charge::Decisions;
use crate::engine::numbers::Micros;
use crate::store::{Batch, StoreError};

/// Charges of one call. The server does nothing else in the meantime: some 0.3 ms for as many buckets. With 64 requests
/// a call's own cost is down to 0.3 us each, and twice as many would save half of that.
const MAX_CHARGES: usize = 64;

/// Bytes of keys and words in one call, unless its only request has more. It keeps a call to what one write to a socket
/// takes; [`MAX_CHARGES`] of usual length have 5 KiB.
const MAX_BYTES: usize = 16 * 1024;

/// What a request is told.
pub(super) type Answer = Result<Decisions, StoreError>;

/// Calls that are being collected, and the tasks that send them.
#[derive(Default)]
pub(super) struct Calls {
    /// In the order of asking; only the last one still takes requests. There is one task for each.
    waiting: Mutex<VecDeque<Call>>,
    /// A task ends with the deadline of its call at the latest.
    tasks: TaskTracker,
}

/// Requests that are decided in one call, one after the other.
pub(super) struct Call {
    pub(super) requests: Requests,
    /// The time that all of them are decided by; `None` for the server's.
    pub(super) now: Option<Micros>,
    /// When the numbers of all of them took effect.
    pub(super) effective_from: Micros,
    /// That of the first to ask: the others asked within the same turn.
    pub(super) deadline: Instant,
    askers: Vec<oneshot::Sender<Answer>>,
}

/// An answer that has not come yet. It comes within the store's timeout.
pub struct Coming(oneshot::Receiver<Answer>);

impl Coming {
    /// Waits for it. If the task that asks was dropped with its runtime, that is [`StoreError::Down`].
    pub async fn answer(self) -> Result<Decisions, StoreError> {
        self.0.await.unwrap_or(Err(StoreError::Down))
    }

    /// The answer, if it has come.
    pub fn answered(&mut self) -> Option<Result<Decisions, StoreError>> {
        match self.0.try_recv() {
            Ok(answer) => Some(answer),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Closed) => Some(Err(StoreError::Down)),
        }
    }
}

impl Calls {
    /// Runs what is no call of a request, and ends with the store as calls do.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task);
    }

    /// Adds a request to the call that is collected, and gives where its answer will come.
    pub(super) fn ask(&self, shared: &Arc<Shared>, batch: &Batch<'_>, now: Option<Micros>) -> Coming {
        let (sender, receiver) = oneshot::channel();
        let mut waiting = self.waiting.lock();
        if let Some(call) = waiting.back_mut().filter(|call| call.takes(batch, now)) {
            call.push(batch, sender);
            return Coming(receiver);
        }
        let deadline = Instant::now() + shared.timeout;
        let effective_from = batch.effective_from;
        let requests = Requests::with(user_scripts::of(batch.charges));
        let mut call = Call { requests, now, effective_from, deadline, askers: Vec::new() };
        call.push(batch, sender);
        waiting.push_back(call);
        // Tasks start in the order in which they were spawned, and each takes the oldest call: the order of asking.
        self.tasks.spawn(send_next(shared.clone()));
        Coming(receiver)
    }
}

impl Calls {
    /// Begins a call with several requests, which nothing can come between, and gives where their answers will come.
    pub(super) fn ask_in_turn(
        &self,
        shared: &Arc<Shared>,
        batches: &[Batch<'_>],
        now: Option<Micros>,
    ) -> Vec<oneshot::Receiver<Answer>> {
        let Some(first) = batches.first() else { return Vec::new() };
        let (deadline, effective_from) = (Instant::now() + shared.timeout, first.effective_from);
        let mut call = Call { requests: Requests::default(), now, effective_from, deadline, askers: Vec::new() };
        let ask = |batch| {
            let (sender, receiver) = oneshot::channel();
            call.push(batch, sender);
            receiver
        };
        let receivers = batches.iter().map(ask).collect();
        self.waiting.lock().push_back(call);
        self.tasks.spawn(send_next(shared.clone()));
        receivers
    }
}

impl Call {
    /// Whether a request may be decided together with those that are in the call.
    fn takes(&self, batch: &Batch<'_>, now: Option<Micros>) -> bool {
        self.requests.runs_as(batch.charges)
            && self.requests.charges() + batch.charges.len() <= MAX_CHARGES
            && self.requests.bytes() + Requests::bytes_of(batch.charges) <= MAX_BYTES
            && (self.now, self.effective_from) == (now, batch.effective_from)
    }

    fn push(&mut self, batch: &Batch<'_>, asker: oneshot::Sender<Answer>) {
        self.requests.push(batch.charges, self.now.unwrap_or(batch.now));
        self.askers.push(asker);
    }
}

/// Sends the oldest call and hands out its answers. Who has stopped waiting for one does not miss it.
async fn send_next(shared: Arc<Shared>) {
    let Some(call) = shared.calls.waiting.lock().pop_front() else { return };
    match shared.run(&call).await {
        Ok(answers) => {
            for (asker, answer) in call.askers.into_iter().zip(answers) {
                let _ = asker.send(answer);
            }
        }
        Err(error) => {
            for asker in call.askers {
                let _ = asker.send(Err(error.clone()));
            }
        }
    }
}
