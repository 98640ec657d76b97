//! The requests that ask within one turn of a worker's event loop, collected in one call.
//!
//! The first request spawns a task that sends the call. The runtime runs tasks in the order in which they became ready, so that
//! task runs after all that were ready at that moment, and their requests go along. A lone request is not held up: with nothing
//! else ready, its task is next. Redis spends about 18 us on a call and 2 to 5 us on each request in it, so node calls are
//! cheaper, and a busy worker has them in every turn.
//!
//! Few calls are outstanding at a time: each has a place. While none is free, requests wait in [`Lines`], and the next call takes one of
//! each line in turn. Such calls are fuller, which costs the server less per request. A request that has waited too long, or whose
//! caller has gone, is not sent.
//!
//! The keys of a call have one hash tag. In a cluster a node has several, and collects a call for each.

use std::collections::VecDeque;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};
use tokio::sync::oneshot::Receiver;
use tokio::time::{Instant, sleep};
use tokio_util::task::TaskTracker;

use super::Node;
use super::connection::Connection;
use super::lines::{Line, Lines, Offer, SHARE};
use super::overload::WaitingRequests;
use super::patience::PARTS;
use super::sending::send_calls;
use super::shared_call::{Call, Caller, Fit, RequestAnswer, gives_back};
use crate::engine::algorithms::micros::Micros;
use crate::store::Batch;
use crate::store::redis::request::Request;

/// The most outstanding calls of a worker at a server. The second one keeps the server busy while the reply to the first is on its
/// way. Two full calls take Redis 1 ms, so a flood at a dozen workers stays within the default timeout of 20 ms. With a round trip
/// of 10 ms they carry 25,000 requests per second.
pub(super) const OUTSTANDING: usize = 2;

/// The same at a node of a cluster, whose calls are smaller: each has the keys of one tag, of the 21 that one of three nodes has.
pub(super) const OUTSTANDING_IN_CLUSTER: usize = 16;

/// The places that are added, one in each part of the timeout, while requests wait for a server whose replies take longer than a
/// part just for the way. Without them a request would wait for a whole round trip before its own.
const ADDED: usize = 4;

/// Calls that are being collected, and the tasks that send them.
pub(super) struct Calls {
    waiting: Mutex<Waiting>,
    pub(super) requests: WaitingRequests,
    /// A task ends with the deadline of its calls, or with the connection if the reply does not come.
    tasks: TaskTracker,
}

struct Waiting {
    /// Those that are being collected, in the order of asking. Each has a place, and a task that is about to send it.
    calls: VecDeque<Call>,
    /// The number of free places.
    free: usize,
    /// The number of places that are added.
    added: usize,
    /// Requests for which there is no place.
    lines: Lines<Waiter>,
    /// The parts of the timeout for which there have been lines.
    parts: u64,
    /// True while a task counts them.
    is_counting: bool,
}

/// Requests in a line: one, or several for one call.
struct Waiter {
    route: Route,
    requests: SmallVec<[(Request, Caller); 1]>,
    /// [`Waiting::parts`] when it asked.
    asked: u64,
    since: Instant,
    /// The calls that had been answered in time; see [`Node::timely`].
    timely: u64,
}

/// The way of a request to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store::redis) struct Route {
    pub(in crate::store::redis) tag: u8,
    /// Where it goes while its hash slot moves between two nodes; see [`Migration`].
    pub(in crate::store::redis) migration: Option<Migration>,
    /// The line in which it waits.
    pub(in crate::store::redis) line: Line,
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

impl Route {
    pub(in crate::store::redis) const fn new(tag: u8, line: Line) -> Self {
        Self { tag, migration: None, line }
    }
}

impl Calls {
    pub(super) fn new(outstanding: usize) -> Self {
        let waiting = Waiting {
            calls: VecDeque::new(),
            free: outstanding,
            added: 0,
            lines: Lines::default(),
            parts: 0,
            is_counting: false,
        };
        Self { waiting: Mutex::new(waiting), requests: WaitingRequests::default(), tasks: TaskTracker::new() }
    }

    /// Runs a task that ends with the store, as calls do.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task);
    }

    /// The number of requests that wait for an answer.
    pub(super) fn requests(&self) -> usize {
        self.requests.count()
    }

    /// Returns true if another request may wait, of `queue` in all.
    pub(super) fn has_room(&self, route: Route, queue: usize) -> bool {
        let (all, share) = (self.requests(), queue.div_ceil(SHARE));
        // No line is longer than all requests.
        all < queue && (all < share || self.waiting.lock().lines.length(route.tag, route.line) < share)
    }

    /// Adds a request to the call that is being collected, or to its line.
    pub(super) fn ask(
        &self,
        node: &Arc<Node>,
        route: Route,
        batch: &Batch<'_>,
        now: Option<Micros>,
    ) -> Receiver<RequestAnswer> {
        let (caller, receiver) = self.caller();
        self.collect(node, route, slice::from_ref(batch), smallvec![caller], now);
        receiver
    }

    /// Adds several requests to one call, with no others in between.
    pub(super) fn ask_in_turn(
        &self,
        node: &Arc<Node>,
        route: Route,
        batches: &[Batch<'_>],
        now: Option<Micros>,
    ) -> Vec<Receiver<RequestAnswer>> {
        let (callers, receivers) = batches.iter().map(|_| self.caller()).unzip();
        self.collect(node, route, batches, callers, now);
        receivers
    }

    fn caller(&self) -> (Caller, Receiver<RequestAnswer>) {
        Caller::new(self.requests.add())
    }

    /// Adds requests to the last call of their tag, or to a new one if that does not take them, or to their line.
    fn collect(
        &self,
        node: &Arc<Node>,
        route: Route,
        batches: &[Batch<'_>],
        callers: SmallVec<[Caller; 1]>,
        now: Option<Micros>,
    ) {
        let Some(first) = batches.first() else { return };
        let mut waiting = self.waiting.lock();
        let Waiting { calls, free, lines, .. } = &mut *waiting;
        // Nobody overtakes those who wait at the same tag.
        let mut last = if lines.has(route.tag) { None } else { calls.iter_mut().rfind(|call| call.tag == route.tag) };
        let takes = |call: &Call| {
            call.fits(route, batches.iter().copied(), now) == Fit::Fits && call.is_followed_soon(node, first)
        };
        let call = match last.take_if(|call| takes(call)) {
            Some(call) => call,
            None if *free > 0 => {
                *free -= 1;
                // Tasks start in the order in which they were spawned, and each takes the oldest call: the order of asking.
                self.tasks.spawn(send_calls(node.clone()));
                calls.push_back_mut(Call::new(node, route, first, now, None))
            }
            None => return self.line_up(node, &mut waiting, route, batches, callers, now),
        };
        for (batch, caller) in batches.iter().zip(callers) {
            call.push(batch, caller, PARTS);
        }
    }

    fn line_up(
        &self,
        node: &Arc<Node>,
        waiting: &mut Waiting,
        route: Route,
        batches: &[Batch<'_>],
        callers: SmallVec<[Caller; 1]>,
        now: Option<Micros>,
    ) {
        let requests = batches.iter().map(|batch| Request::new(batch, now)).zip(callers).collect();
        let waiter = Waiter { route, requests, asked: waiting.parts, since: Instant::now(), timely: node.timely() };
        waiting.lines.push(route.tag, route.line, waiter);
        if !waiting.is_counting {
            waiting.is_counting = true;
            self.tasks.spawn(expire(node.clone()));
        }
    }

    /// Takes the oldest call that is being collected.
    pub(super) fn take(&self) -> Option<Call> {
        self.waiting.lock().calls.pop_front()
    }

    /// Collects a call from the lines, for a place that is free.
    fn next(&self, node: &Node) -> Option<Call> {
        let mut waiting = self.waiting.lock();
        let Waiting { lines, parts, .. } = &mut *waiting;
        let mut next = None;
        while next.is_none() && !lines.is_empty() {
            lines.serve(|waiter| waiter.join(&mut next, node, *parts));
        }
        if next.is_none() {
            waiting.free_place();
        }
        next
    }
}

impl Waiting {
    fn free_place(&mut self) {
        if self.added > 0 {
            self.added -= 1;
        } else {
            self.free += 1;
        }
    }
}

/// One of the places of outstanding calls, which has been taken.
pub(super) struct TakenPlace<'a> {
    node: &'a Node,
    is_free: bool,
}

impl<'a> TakenPlace<'a> {
    pub(super) const fn new(node: &'a Node) -> Self {
        Self { node, is_free: false }
    }

    /// Returns the next call for this place, or `None` and frees it.
    pub(super) fn next(&mut self) -> Option<Call> {
        let next = self.node.calls.next(self.node);
        self.is_free = next.is_none();
        next
    }
}

impl Drop for TakenPlace<'_> {
    fn drop(&mut self) {
        if !self.is_free {
            self.node.calls.waiting.lock().free_place();
        }
    }
}

/// Ends the requests that do not get their turn in time, as long as there are lines, and adds places at a server that is far away.
async fn expire(node: Arc<Node>) {
    let part = node.timeout / PARTS;
    let is_far = |live: &Arc<Connection>| Duration::from_micros(live.shortest.load(Ordering::Relaxed)) >= part;
    loop {
        sleep(part).await;
        let mut waiting = node.calls.waiting.lock();
        waiting.parts += 1;
        let parts = waiting.parts;
        let expired = waiting.lines.expire(|waiter| waiter.patience(parts) == 0);
        waiting.is_counting = !waiting.lines.is_empty();
        let is_done = !waiting.is_counting;
        if !is_done && waiting.added < ADDED && node.live.load().as_ref().is_some_and(is_far) {
            waiting.added += 1;
            node.calls.tasks.spawn(send_calls(node.clone()));
        }
        drop(waiting);
        // Before the first is answered: those that are answered count no longer.
        let errors: Vec<_> = expired.iter().map(|waiter| node.without_turn(waiter.since, waiter.timely)).collect();
        for (waiter, error) in expired.into_iter().zip(errors) {
            waiter.requests.into_iter().for_each(|(_, caller)| drop(caller.answer(Err(error.clone()))));
        }
        if is_done {
            return;
        }
    }
}

impl Waiter {
    /// The rest of the timeout, in parts. The one that passes counts as gone.
    fn patience(&self, parts: u64) -> u32 {
        PARTS.saturating_sub(u32::try_from(parts - self.asked).unwrap_or(PARTS))
    }

    fn is_wanted(&self) -> bool {
        self.requests.iter().any(|(request, caller)| caller.is_there() || gives_back(&request.charges))
    }

    /// Adds the requests to a call, or begins one. Drops them if nobody waits for them.
    fn join(self, call: &mut Option<Call>, node: &Node, parts: u64) -> Offer<Self> {
        if !self.is_wanted() {
            return Offer::Taken;
        }
        let Some((first, _)) = self.requests.first() else { return Offer::Taken };
        let call = match call {
            None => call.insert(Call::new(node, self.route, &first.batch(), first.set_now, Some(self.timely))),
            Some(call) => {
                let batches = self.requests.iter().map(|(request, _)| request.batch());
                match call.fits(self.route, batches, first.set_now) {
                    Fit::Fits => call,
                    Fit::Unlike => return Offer::Unlike(self),
                    Fit::Full => return Offer::Full(self),
                }
            }
        };
        call.since = call.since.min(self.since);
        call.waited = call.waited.map(|timely| timely.min(self.timely));
        let patience = self.patience(parts);
        for (request, caller) in self.requests {
            call.push(&request.batch(), caller, patience);
        }
        Offer::Taken
    }
}
