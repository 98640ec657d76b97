//! The requests that ask within one turn of a worker's event loop, sent as one call.
//!
//! The first request spawns a task that sends the call. The runtime runs tasks in the order in which they became ready, so that
//! task runs after all that were ready at that moment, and their requests go along. A lone request is not held up: with nothing
//! else ready, its task is next. Redis spends about 18 us on a call and 2 to 5 us on each request in it, so node calls are
//! cheaper, and a busy worker has them in every turn.
//!
//! Few calls are outstanding at a time. Meanwhile further requests collect in fuller calls, which cost the server less per
//! request. A request that has waited too long, or whose caller has gone, is not sent.
//!
//! The keys of a call have one hash tag. In a cluster a node has several, and collects a call for each.

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
use super::overload::WaitingRequests;
use super::patience::{PARTS, Patience, within};
use super::{Node, SILENT_TIMEOUTS};
use crate::engine::algorithms::charge::Mode;
use crate::engine::algorithms::decision::Decisions;
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::tag::TAGS;
use crate::store::redis::call::Requests;
use crate::store::redis::diagnosis::Diagnosis;
use crate::store::redis::unclaimed::Unclaimed;
use crate::store::{Batch, Fault, StoreError};

/// The most outstanding calls of a worker at a server. The second one keeps the server busy while the reply to the first is on its
/// way. Two full calls take Redis 1 ms, so a flood at a dozen workers stays within the default timeout of 20 ms. With a round trip
/// of 10 ms they carry 25,000 requests per second.
pub(super) const OUTSTANDING: usize = 2;

/// The same at a node of a cluster, whose calls are smaller: each has the keys of one tag, of the 21 that one of three nodes has.
pub(super) const OUTSTANDING_IN_CLUSTER: usize = 16;

/// The most charges of a call. The server does nothing else meanwhile: some 0.5 ms for that many buckets.
pub(super) const MAX_CHARGES: usize = 128;

/// The most bytes of keys and words in a call, unless its only request has more. [`MAX_CHARGES`] of usual length have 10 KiB.
const MAX_BYTES: usize = 32 * 1024;

/// The answer to a request.
pub(super) type RequestAnswer = Result<Decisions, StoreError>;

/// Calls that are being collected, and the tasks that send them.
pub(super) struct Calls {
    /// There is one task for each.
    waiting: Mutex<Waiting>,
    /// Taken in the order of asking, and held until the reply.
    places: Semaphore,
    requests: WaitingRequests,
    /// A task ends with the deadline of its call, or with the connection if the reply does not come.
    tasks: TaskTracker,
}

/// Calls in the order of asking.
struct Waiting {
    calls: VecDeque<Call>,
    /// The number of calls that have left.
    gone: usize,
    /// The last call of each tag, which still takes requests: its place, counted from the first call ever.
    last: [usize; TAGS as usize],
}

/// The way of a request to a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::store::redis) struct Route {
    pub(in crate::store::redis) tag: u8,
    /// Where it goes while its hash slot moves between two nodes; see [`Migration`].
    pub(in crate::store::redis) migration: Option<Migration>,
}

/// How a node of a cluster is asked while a hash slot moves. A call with several keys fails if some are at the old node and others
/// at the new one, so the request has a call of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store::redis) enum Migration {
    /// At the node that has the hash slot.
    Source,
    /// At the node that is about to have it.
    Destination,
}

/// Requests that are decided in one call, one after the other.
struct Call {
    route: Route,
    requests: Requests,
    /// The time of the first request. The others share its patience, so they must follow soon.
    asked: Micros,
    /// When the first request asked.
    since: Instant,
    askers: Vec<Asker>,
}

/// The receiver of an answer.
struct Asker {
    answer: oneshot::Sender<RequestAnswer>,
    /// Refunds and resets are sent even if nobody waits for the answer.
    gives_back: bool,
    unclaimed: Option<Box<Unclaimed>>,
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

impl Waiting {
    /// The last call of a tag, if it has not left.
    fn last(&mut self, tag: u8) -> Option<&mut Call> {
        let place = self.last[usize::from(tag)].checked_sub(self.gone)?;
        self.calls.get_mut(place).filter(|call| call.route.tag == tag)
    }

    fn push(&mut self, call: Call) {
        self.last[usize::from(call.route.tag)] = self.gone + self.calls.len();
        self.calls.push_back(call);
    }

    fn pop(&mut self) -> Option<Call> {
        let call = self.calls.pop_front()?;
        self.gone += 1;
        Some(call)
    }
}

impl Calls {
    pub(super) fn new(outstanding: usize) -> Self {
        let waiting = Waiting { calls: VecDeque::new(), gone: 0, last: [0; TAGS as usize] };
        Self {
            waiting: Mutex::new(waiting),
            places: Semaphore::new(outstanding),
            requests: WaitingRequests::default(),
            tasks: TaskTracker::new(),
        }
    }

    /// Runs a task that ends with the store, as calls do.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task);
    }

    /// The number of requests that wait for an answer.
    pub(super) fn requests(&self) -> usize {
        self.requests.count()
    }

    /// Returns true if as many calls are outstanding as may be.
    pub(super) fn are_full(&self) -> bool {
        self.places.available_permits() == 0
    }

    /// Adds a request to the call that is being collected.
    pub(super) fn ask(
        &self,
        node: &Arc<Node>,
        route: Route,
        batch: &Batch<'_>,
        now: Option<Micros>,
    ) -> Receiver<RequestAnswer> {
        self.collect(node, route, (batch, &[]), now, |call| call.push(batch))
    }

    /// Adds several requests to one call, with no others in between.
    pub(super) fn ask_in_turn(
        &self,
        node: &Arc<Node>,
        batches: &[Batch<'_>],
        now: Option<Micros>,
    ) -> Vec<Receiver<RequestAnswer>> {
        let Some(batches_of_call) = batches.split_first() else { return Vec::new() };
        let push = |call: &mut Call| batches.iter().map(|batch| call.push(batch)).collect();
        self.collect(node, Route::default(), batches_of_call, now, push)
    }

    /// Adds requests to the last call of their tag, or to a new one if that does not take them.
    fn collect<R>(
        &self,
        node: &Arc<Node>,
        route: Route,
        batches: (&Batch<'_>, &[Batch<'_>]),
        now: Option<Micros>,
        push: impl FnOnce(&mut Call) -> R,
    ) -> R {
        self.requests.add(1 + batches.1.len());
        let mut waiting = self.waiting.lock();
        if let Some(call) = waiting.last(route.tag).filter(|call| call.takes(node, route, batches, now)) {
            return push(call);
        }
        let mut call = Call::new(node, route, batches.0, now);
        let receivers = push(&mut call);
        waiting.push(call);
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
    /// Gives back what a request has taken whose answer nobody takes.
    fn give_back(
        self: &Arc<Self>,
        route: Route,
        now: Option<Micros>,
        unclaimed: Option<Box<Unclaimed>>,
        answer: RequestAnswer,
    ) {
        if let (Some(unclaimed), Ok(decisions)) = (unclaimed, answer) {
            let refunds = unclaimed.refunds(&decisions);
            if !refunds.is_empty() {
                // A refund is sent although nobody waits for its answer.
                drop(self.calls.ask(self, route, &unclaimed.batch(&refunds), now));
            }
        }
    }

    /// Waits for an overdue reply, whose answers nobody takes; the call stays outstanding until it arrives. Gives the connection up
    /// if the server stays silent.
    async fn outwait<F>(
        self: &Arc<Self>,
        live: &Arc<Connection>,
        (route, requests): (Route, &Requests),
        unclaimed: Vec<Option<Box<Unclaimed>>>,
        mut reply: Pin<&mut F>,
    ) where
        F: Future<Output = Result<Value, RedisError>>,
    {
        live.overdue.fetch_add(1, Ordering::Relaxed);
        let mut silent = 1;
        while silent < SILENT_TIMEOUTS {
            let heard = live.heard.load(Ordering::Relaxed);
            if let Some(answer) = within(self.timeout, reply.as_mut()).await {
                live.overdue.fetch_sub(1, Ordering::Relaxed);
                // The result still shows whether the connection works.
                let answers = self.answers(live, requests, answer, false).into_iter().flatten();
                for (answer, unclaimed) in answers.zip(unclaimed) {
                    self.give_back(route, requests.now, unclaimed, answer);
                }
                return;
            }
            silent = if live.heard.load(Ordering::Relaxed) == heard { silent + 1 } else { 0 };
        }
        let text = format!("no answer within {:?}", self.timeout * SILENT_TIMEOUTS);
        self.give_up(live, Diagnosis::new(Fault::Silent, text));
    }
}

impl Call {
    fn new(node: &Node, route: Route, first: &Batch<'_>, now: Option<Micros>) -> Self {
        let requests = Requests::new(first, now, node.number(), node.key_starts.of(route.tag));
        Self { route, requests, asked: first.now, since: Instant::now(), askers: Vec::new() }
    }

    /// Returns whether the call can take these requests as well.
    fn takes(&self, node: &Node, route: Route, (first, rest): (&Batch<'_>, &[Batch<'_>]), now: Option<Micros>) -> bool {
        if self.route != route || route.migration.is_some() {
            return false;
        }
        let requests = &self.requests;
        let (mut charges, mut bytes) = (requests.charges(), requests.bytes());
        for batch in std::iter::once(first).chain(rest) {
            let is_alike = (requests.now, requests.effective_from) == (now, batch.effective_from);
            if !is_alike || !requests.runs_as(batch.charges) {
                return false;
            }
            charges += batch.charges.len();
            bytes += requests.bytes_of(batch.charges);
        }
        // These times are known; reading the clock would add 100 to the 17,000 instructions of a request.
        let waited = first.now.since(self.asked);
        charges <= MAX_CHARGES && bytes <= MAX_BYTES && u128::from(waited.0) < (node.timeout / PARTS).as_micros()
    }

    fn push(&mut self, batch: &Batch<'_>) -> Receiver<RequestAnswer> {
        let (answer, receiver) = oneshot::channel();
        self.requests.push(batch.charges, batch.now);
        let gives_back = batch.charges.iter().any(|charge| matches!(charge.mode, Mode::Refund | Mode::Reset));
        self.askers.push(Asker { answer, gives_back, unclaimed: Unclaimed::of(batch) });
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
    let Some(mut call) = node.calls.waiting.lock().pop() else { return };
    let waiting = node.calls.requests.until_dropped(call.askers.len());
    if !call.drop_unwanted() {
        return;
    }
    let Call { route, requests, mut askers, since, .. } = call;
    let Turn { live, mut patience, waited, _place } = match turn {
        Ok(turn) => turn,
        Err(error) => return fail(askers, &error),
    };
    let mut reply = pin!(live.ask(&requests, route.migration == Some(Migration::Destination)));
    let Some(answer) = patience.wait(reply.as_mut()).await else {
        let is_silent = !waited || live.overdue.load(Ordering::Relaxed) > 0;
        let error = if is_silent && !node.is_overloaded(since) {
            let text = format!("answers take longer than the timeout of {:?}", node.timeout);
            node.note_failure(Diagnosis::new(Fault::Late, text));
            StoreError::Late(node.timeout)
        } else {
            StoreError::Busy { sent: true }
        };
        let unclaimed = askers.iter_mut().map(|asker| asker.unclaimed.take()).collect();
        fail(askers, &error);
        drop(waiting);
        return node.outwait(&live, (route, &requests), unclaimed, reply).await;
    };
    match node.answers(&live, &requests, answer, true) {
        Ok(answers) => {
            for (asker, answer) in askers.into_iter().zip(answers) {
                if let Err(answer) = asker.answer.send(answer) {
                    node.give_back(route, requests.now, asker.unclaimed, answer);
                }
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
