//! What the upstream's answer tells of the cost of a request, handed to the limiter.
//!
//! A client that is gone does not get around its cost: the exchange goes on without it until the headers of the response
//! have come, among the [`Orphans`] of the worker. Where that cannot be, what was sent is charged as without a response.

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

/// Exchanges that a worker carries on without their clients, and as many that wait for their turn. Each occupies a
/// connection to the upstream; with more than that clients leave on purpose, and their requests are charged at once.
const MOST_ORPHANS: usize = 64;

/// An exchange with an upstream, settled by its response. One that is given up is charged, if any of it may have reached
/// the upstream.
struct Exchange {
    sending: Pin<Box<dyn Future<Output = Result<Response, UpstreamError>>>>,
    context: Rc<Context>,
    /// `None` once there is a response, or none will come.
    settlement: Option<Box<Settlement>>,
}

/// Exchanges of a worker whose clients are gone.
pub(super) struct Orphans {
    found: mpsc::Sender<Exchange>,
    /// Ends with the proxy.
    _keeper: AbortOnDropHandle<()>,
}

/// Leaves an exchange that did not come to its end to the orphans.
struct Guard<'a> {
    exchange: Option<Exchange>,
    activity: &'a Activity,
    orphans: &'a Orphans,
}

/// Sends a request and settles by its response, even if the client does not wait for it.
pub(super) async fn exchange(
    forwarder: Rc<Forwarder>,
    request: Request,
    context: &Context,
    settlement: Box<Settlement>,
    orphans: &Orphans,
) -> Result<Response, UpstreamError> {
    let detached = Rc::new(context.detached());
    let surroundings = detached.clone();
    let sending = Box::pin(async move { forwarder.send(request, &surroundings).await });
    let exchange = Exchange { sending, context: detached.clone(), settlement: Some(settlement) };
    let mut guard = Guard { exchange: Some(exchange), activity: &context.activity, orphans };
    let sent =
        poll_fn(|cx| guard.exchange.as_mut().map_or(Poll::Pending, |exchange| Pin::new(exchange).poll(cx))).await;
    guard.exchange = None;
    context.attempts.swap(&detached.attempts);
    sent
}

/// Settles by an upstream's response, or by there being none. What only its trailers can tell is settled when they come,
/// or when its body ends without them.
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
    if !settlement.is_done() {
        let body = std::mem::replace(&mut response.body, ResponseBody::Text(Bytes::new()));
        response.body = ResponseBody::Watched(Box::new(Watched { body, watcher: settlement }));
    }
    Ok(response)
}

impl Watcher for Settlement {
    fn trailers(&mut self, trailers: &Headers) {
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
        // Without the rest of its body a request comes to no answer, and one that was not sent need not be any more. Those
        // are dropped, as are those beyond the bound.
        if !self.activity.is_uploading() && exchange.context.attempts.borrow().was_sent {
            let _ = self.orphans.found.try_send(exchange);
        }
    }
}

impl Orphans {
    /// None yet. Each will be carried on for `patience` at most.
    pub(super) fn new(patience: Duration) -> Self {
        let (found, orphans) = mpsc::channel(MOST_ORPHANS);
        Self { found, _keeper: AbortOnDropHandle::new(spawn_local(keep(orphans, patience))) }
    }
}

/// Carries exchanges on until nobody can leave any more.
async fn keep(mut orphans: mpsc::Receiver<Exchange>, patience: Duration) {
    let mut running = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = running.join_next() => {}
            orphan = orphans.recv(), if running.len() < MOST_ORPHANS => match orphan {
                Some(orphan) => drop(running.spawn_local(carry_on(orphan, patience))),
                None => return,
            },
        }
    }
}

/// Nobody reads the body of the response; without a reader the upstream knows that it need not go on.
async fn carry_on(exchange: Exchange, patience: Duration) {
    let _ = timeout(patience, exchange).await;
}
