//! The requests that ask within one turn of a worker's event loop, sent as one call.
//!
//! The first request spawns a task that sends the call. The runtime runs tasks in the order in which they became ready, so that
//! task runs after all that were ready at that moment, and their requests go along. A lone request is not held up: with nothing
//! else ready, its task is next. Redis spends about 18 us on a call and 2 to 5 us on each request in it, so node calls are
//! cheaper, and a busy worker has them in every turn.
//!
//! At most [`MAX_UNDER_WAY`] calls are outstanding. Meanwhile further requests collect in fuller calls. A request that has waited
//! too long, or whose caller has gone, is not sent.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use parking_lot::Mutex;
use redis::{RedisError, Value};
use tokio::sync::oneshot::{self, Receiver};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::connection::Connection;
use super::patience::{PARTS, Patience, within};
use super::{BUSY, Node, SILENT_TIMEOUTS};
use crate::engine::algorithms::charge::Mode;
use crate::engine::algorithms::decision::Decisions;
use crate::engine::algorithms::micros::Micros;
use crate::store::redis::call::Requests;
use crate::store::redis::diagnosis::Diagnosis;
use crate::store::{Batch, Fault, StoreError};

/// The most outstanding calls of a worker. Four full calls keep Redis busy for about 1 ms, so a flood at a dozen workers stays
/// within the default timeout of 20 ms. With a round trip of 10 ms they carry 25,000 requests per second.
const MAX_UNDER_WAY: usize = 4;

/// The most charges of a call. The server does nothing else meanwhile: some 0.3 ms for that many buckets. With 64 requests the
/// call itself costs only 0.3 us per request, and twice as many would save half of that.
const MAX_CHARGES: usize = 64;

/// The most bytes of keys and words in a call, unless its only request has more. A call then fits into one write to the socket;
/// [`MAX_CHARGES`] of usual length have 5 KiB.
const MAX_BYTES: usize = 16 * 1024;

/// The answer to a request.
pub(super) type Answer = Result<Decisions, StoreError>;

/// Calls that are being collected, and the tasks that send them.
pub(super) struct Calls {
    /// In the order of asking; only the last one still takes requests. There is one task for each.
    waiting: Mutex<VecDeque<Call>>,
    /// Taken in the order of asking, and held until the reply.
    places: Semaphore,
    /// A task ends with the deadline of its call, or with the connection if the reply does not come.
    tasks: TaskTracker,
}

/// Requests that are decided in one call, one after the other.
struct Call {
    requests: Requests,
    /// The time of the first request. The others share its patience, so they must follow soon.
    asked: Micros,
    /// When the first request asked.
    since: Instant,
    askers: Vec<Asker>,
}

/// The receiver of an answer.
struct Asker {
    answer: oneshot::Sender<Answer>,
    /// Refunds and resets are sent even if nobody waits for the answer.
    gives_back: bool,
}

/// A call's turn to be sent.
struct Turn<'a> {
    live: Arc<Connection>,
    /// The rest of the requests' patience.
    patience: Patience,
    /// Whether the call had to wait because too many others were outstanding.
    waited: bool,
    _place: SemaphorePermit<'a>,
}

impl Default for Calls {
    fn default() -> Self {
        Self { waiting: Mutex::default(), places: Semaphore::new(MAX_UNDER_WAY), tasks: TaskTracker::new() }
    }
}

impl Calls {
    /// Runs a task that ends with the store, as calls do.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task);
    }

    /// Adds a request to the call that is being collected.
    pub(super) fn ask(&self, node: &Arc<Node>, batch: &Batch<'_>, now: Option<Micros>) -> Receiver<Answer> {
        self.collect(node, batch, &[], now, |call| call.push(batch))
    }

    /// Adds several requests to one call, with no others in between.
    pub(super) fn ask_in_turn(
        &self,
        node: &Arc<Node>,
        batches: &[Batch<'_>],
        now: Option<Micros>,
    ) -> Vec<Receiver<Answer>> {
        let Some((first, rest)) = batches.split_first() else { return Vec::new() };
        self.collect(node, first, rest, now, |call| batches.iter().map(|batch| call.push(batch)).collect())
    }

    /// Adds requests to the last call, or to a new one if that does not take them.
    fn collect<R>(
        &self,
        node: &Arc<Node>,
        first: &Batch<'_>,
        rest: &[Batch<'_>],
        now: Option<Micros>,
        push: impl FnOnce(&mut Call) -> R,
    ) -> R {
        let mut waiting = self.waiting.lock();
        if let Some(call) = waiting.back_mut().filter(|call| call.takes(node, first, rest, now)) {
            return push(call);
        }
        let mut call = Call::new(node, first, now);
        let receivers = push(&mut call);
        waiting.push_back(call);
        // Tasks start in the order in which they were spawned, and each takes the oldest call: the order of asking.
        self.tasks.spawn(send_next(node.clone()));
        receivers
    }

    /// Waits until a call may be sent.
    async fn turn<'a>(&'a self, node: &Node) -> Result<Turn<'a>, StoreError> {
        let (begun, mut patience) = (Instant::now(), Patience::of(node.timeout));
        let mut place = pin!(self.places.acquire());
        let at_once = poll_fn(|context| Poll::Ready(place.as_mut().poll(context))).await;
        let waited = at_once.is_pending();
        let place = match at_once {
            Poll::Ready(place) => place.ok(),
            Poll::Pending => patience.wait(place).await.ok_or_else(|| node.without_turn(begun))?.ok(),
        };
        let place = place.ok_or(StoreError::Down)?;
        let live = match node.live.load_full() {
            Some(live) => live,
            None => patience.wait(pin!(node.awaited_connection())).await.unwrap_or(Err(StoreError::Down))?,
        };
        Ok(Turn { live, patience, waited, _place: place })
    }
}

impl Node {
    /// Returns the error for a call that did not get its turn in time.
    fn without_turn(&self, begun: Instant) -> StoreError {
        match self.live.load().as_ref() {
            None => StoreError::Down,
            Some(live) if live.overdue.load(Ordering::Relaxed) > 0 && !self.is_overloaded(begun) => {
                StoreError::Late(self.timeout)
            }
            Some(_) => BUSY,
        }
    }

    /// True if more requests are waiting than may be outstanding, or if a wait that began at `begun` took much longer than its
    /// timers while many were waiting. Then the load may be the reason for late replies. A server that is really silent is given
    /// up soon, and `on_store_error` applies from then on.
    fn is_overloaded(&self, begun: Instant) -> bool {
        let waiting = self.queue.saturating_sub(self.waiting.available_permits());
        waiting > MAX_UNDER_WAY * MAX_CHARGES || waiting > MAX_CHARGES && begun.elapsed() >= self.timeout * 3 / 2
    }

    /// Waits for an overdue reply; the call stays outstanding until it arrives. Gives the connection up if the server stays silent.
    async fn outwait<F>(&self, live: &Arc<Connection>, requests: &Requests, mut reply: Pin<&mut F>)
    where
        F: Future<Output = Result<Value, RedisError>>,
    {
        live.overdue.fetch_add(1, Ordering::Relaxed);
        let mut silent = 1;
        while silent < SILENT_TIMEOUTS {
            let heard = live.heard.load(Ordering::Relaxed);
            if let Some(answer) = within(self.timeout, reply.as_mut()).await {
                live.overdue.fetch_sub(1, Ordering::Relaxed);
                // The result still shows whether the connection works.
                let _ = self.answers(live, requests, answer);
                return;
            }
            silent = if live.heard.load(Ordering::Relaxed) == heard { silent + 1 } else { 0 };
        }
        let text = format!("no answer within {:?}", self.timeout * SILENT_TIMEOUTS);
        self.give_up(live, Diagnosis::new(Fault::Silent, text));
    }
}

impl Call {
    fn new(node: &Node, first: &Batch<'_>, now: Option<Micros>) -> Self {
        let requests = Requests::new(first, now, node.number());
        Self { requests, asked: first.now, since: Instant::now(), askers: Vec::new() }
    }

    /// Returns whether the call can take these requests as well.
    fn takes(&self, node: &Node, first: &Batch<'_>, rest: &[Batch<'_>], now: Option<Micros>) -> bool {
        let requests = &self.requests;
        let (mut charges, mut bytes) = (requests.charges(), requests.bytes());
        for batch in std::iter::once(first).chain(rest) {
            let is_alike = (requests.now, requests.effective_from) == (now, batch.effective_from);
            if !is_alike || !requests.runs_as(batch.charges) {
                return false;
            }
            charges += batch.charges.len();
            bytes += Requests::bytes_of(batch.charges);
        }
        // These times are known; reading the clock would add 100 to the 17,000 instructions of a request.
        let waited = first.now.since(self.asked);
        charges <= MAX_CHARGES && bytes <= MAX_BYTES && u128::from(waited.0) < (node.timeout / PARTS).as_micros()
    }

    fn push(&mut self, batch: &Batch<'_>) -> Receiver<Answer> {
        let (answer, receiver) = oneshot::channel();
        self.requests.push(batch.charges, batch.now);
        let gives_back = batch.charges.iter().any(|charge| matches!(charge.mode, Mode::Refund | Mode::Reset));
        self.askers.push(Asker { answer, gives_back });
        receiver
    }

    /// Drops the requests whose callers have gone; false if that leaves none.
    fn drop_unwanted(&mut self) -> bool {
        let is_wanted = |asker: &Asker| asker.gives_back || !asker.answer.is_closed();
        if !self.askers.iter().all(is_wanted) {
            let keep: Vec<bool> = self.askers.iter().map(is_wanted).collect();
            self.requests.retain(&keep);
            self.askers.retain(is_wanted);
        }
        !self.askers.is_empty()
    }
}

/// Sends the oldest call when its turn comes, and distributes the answers.
async fn send_next(node: Arc<Node>) {
    let turn = node.calls.turn(&node).await;
    let Some(mut call) = node.calls.waiting.lock().pop_front() else { return };
    if !call.drop_unwanted() {
        return;
    }
    let Call { requests, askers, since, .. } = call;
    let Turn { live, mut patience, waited, _place } = match turn {
        Ok(turn) => turn,
        Err(error) => return fail(askers, &error),
    };
    let mut reply = pin!(live.ask(&requests));
    let Some(answer) = patience.wait(reply.as_mut()).await else {
        let is_silent = !waited || live.overdue.load(Ordering::Relaxed) > 0;
        let error = if is_silent && !node.is_overloaded(since) {
            StoreError::Late(node.timeout)
        } else {
            StoreError::Busy { sent: true }
        };
        fail(askers, &error);
        return node.outwait(&live, &requests, reply).await;
    };
    match node.answers(&live, &requests, answer) {
        Ok(answers) => {
            for (asker, answer) in askers.into_iter().zip(answers) {
                let _ = asker.answer.send(answer);
            }
        }
        Err(error) => fail(askers, &error),
    }
}

fn fail(askers: Vec<Asker>, error: &StoreError) {
    for asker in askers {
        let _ = asker.answer.send(Err(error.clone()));
    }
}
