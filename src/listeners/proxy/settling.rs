//! Exchanges with upstreams whose responses settle the cost of their requests.
//!
//! Clients cannot evade the cost by leaving: the exchange goes on without them, among the worker's [`Orphans`], until the
//! response's headers have come. Otherwise the request is charged as one without a response.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{self, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::{JoinSet, spawn_local};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use crate::http::Context;
use crate::http::activity::Activity;
use crate::http::failure::UpstreamError;
use crate::http::message::{Request, Response, ResponseBody, Watched, Watcher};
use crate::http::upstream::Forwarder;
use crate::limiter::Settlement;
use crate::message::headers::Headers;

/// Exchanges that a worker continues without their clients, and again as many that wait for their turn. Each occupies an
/// upstream connection. Beyond that, requests are charged at once.
const MAX_ORPHANS: usize = 64;

/// An exchange with an upstream, settled by its response. If dropped, it is charged if any of it may have reached the
/// upstream.
struct Exchange {
    sending: Pin<Box<dyn Future<Output = Result<Response, UpstreamError>>>>,
    context: Rc<Context>,
    /// The longest time that it may go on without its client.
    patience: Duration,
    /// `None` once settled.
    settlement: Option<Box<Settlement>>,
}

/// A worker's exchanges whose clients have left.
pub(super) struct Orphans {
    sender: mpsc::Sender<Exchange>,
    /// Ends with the proxy.
    _task: AbortOnDropHandle<()>,
}

/// Leaves an unfinished exchange to the orphans.
struct Guard<'a> {
    exchange: Option<Exchange>,
    activity: &'a Activity,
    orphans: &'a Orphans,
}

/// Sends a request and settles by its response, even if the client leaves.
pub(super) async fn exchange(
    forwarder: Rc<Forwarder>,
    mut request: Request,
    context: &Context,
    settlement: Box<Settlement>,
    orphans: &Orphans,
) -> Result<Response, UpstreamError> {
    let detached = Rc::new(context.detached());
    let surroundings = detached.clone();
    let patience = forwarder.response_timeout;
    let sending = Box::pin(async move { forwarder.send(&mut request, &surroundings).await });
    let exchange = Exchange { sending, context: detached.clone(), patience, settlement: Some(settlement) };
    let mut guard = Guard { exchange: Some(exchange), activity: &context.activity, orphans };
    let sent =
        poll_fn(|cx| guard.exchange.as_mut().map_or(Poll::Pending, |exchange| Pin::new(exchange).poll(cx))).await;
    guard.exchange = None;
    context.attempts.swap(&detached.attempts);
    sent
}

/// Settles by an upstream's response or its absence. A cost in the body or the trailers is settled when they come, or at
/// the body's end.
pub(super) fn settle(
    mut settlement: Box<Settlement>,
    sent: Result<Response, UpstreamError>,
    was_sent: bool,
) -> Result<Response, UpstreamError> {
    let mut response = match sent {
        Ok(response) => response,
        Err(error) => {
            if was_sent {
                settlement.sent();
            }
            return Err(error);
        }
    };
    let may_come = !response.body.is_end();
    settlement.answered(response.status.as_u16(), &response.headers, may_come);
    // After a switch of protocols, no more of the request's body comes.
    if !settlement.is_done() && !matches!(response.body, ResponseBody::Tunnel(_)) {
        let body = std::mem::replace(&mut response.body, ResponseBody::Text(Bytes::new()));
        response.body = ResponseBody::Watched(Box::new(Watched { body, watcher: settlement }));
    }
    Ok(response)
}

impl Watcher for Settlement {
    fn data(&mut self, bytes: &[u8]) {
        self.data(bytes);
    }

    fn trailers(&mut self, trailers: &mut Headers) {
        self.trailers(trailers);
    }
}

impl Future for Exchange {
    type Output = Result<Response, UpstreamError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Self::Output> {
        let sent = ready!(self.sending.as_mut().poll(cx));
        let was_sent = self.context.attempts.borrow().was_sent;
        Poll::Ready(match self.settlement.take() {
            Some(settlement) => settle(settlement, sent, was_sent),
            None => sent,
        })
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if let Some(settlement) = self.settlement.as_mut().filter(|_| self.context.attempts.borrow().was_sent) {
            settlement.sent();
        }
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let Some(exchange) = self.exchange.take() else { return };
        // A request without the rest of its body gets no answer, and one that was not sent needs none. These are dropped,
        // and those beyond the bound.
        if !self.activity.is_uploading() && exchange.context.attempts.borrow().was_sent {
            let _ = self.orphans.sender.try_send(exchange);
        }
    }
}

impl Orphans {
    pub(super) fn new() -> Self {
        let (sender, orphans) = mpsc::channel(MAX_ORPHANS);
        Self { sender, _task: AbortOnDropHandle::new(spawn_local(run(orphans))) }
    }
}

/// Runs exchanges until the sender is dropped.
async fn run(mut orphans: mpsc::Receiver<Exchange>) {
    let mut running = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = running.join_next() => {}
            orphan = orphans.recv(), if running.len() < MAX_ORPHANS => match orphan {
                Some(orphan) => drop(running.spawn_local(finish(orphan))),
                None => return,
            },
        }
    }
}

/// Drops the response with its body unread, which tells the upstream to stop.
async fn finish(exchange: Exchange) {
    let _ = timeout(exchange.patience, exchange).await;
}
