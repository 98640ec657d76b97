//! What the upstream's answer tells of the cost of a request, handed to the gate.
//!
//! A client that is gone does not get around its cost: the exchange goes on without it until the fields of the response
//! have come, among the [`Orphans`] of the worker.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::{JoinSet, spawn_local};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use crate::doors::http::activity::Activity;
use crate::doors::http::context::{Attempts, Context};
use crate::doors::http::failure::UpstreamError;
use crate::doors::http::message::{Request, Response, ResponseBody, Watched, Watcher};
use crate::doors::http::upstream::Forwarder;
use crate::engine::fields::Fields;
use crate::gate::Settling;

/// Exchanges that a worker carries on without their clients, and as many that wait for their turn. Each occupies a
/// connection to the upstream; with more than that clients leave on purpose, and what was reserved stays.
const MOST_ORPHANS: usize = 64;

/// An upstream's answer, and how it was come by.
type Sent = (Result<Response, UpstreamError>, Attempts);

/// An exchange with an upstream, and what it will settle.
struct Exchange {
    sending: Pin<Box<dyn Future<Output = Sent>>>,
    settling: Settling,
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
    settling: Settling,
    orphans: &Orphans,
) -> Result<Response, UpstreamError> {
    let detached = context.detached();
    let sending = Box::pin(async move {
        let sent = forwarder.send(request, &detached).await;
        (sent, detached.attempts)
    });
    let mut guard = Guard { exchange: Some(Exchange { sending, settling }), activity: &context.activity, orphans };
    let (settling, sent, attempts) = poll_fn(|cx| {
        let Some(mut exchange) = guard.exchange.take() else { return Poll::Pending };
        match exchange.sending.as_mut().poll(cx) {
            Poll::Ready((sent, attempts)) => Poll::Ready((exchange.settling, sent, attempts)),
            Poll::Pending => {
                guard.exchange = Some(exchange);
                Poll::Pending
            }
        }
    })
    .await;
    context.attempts.adopt(&attempts);
    settle(settling, sent, context.attempts.was_sent())
}

/// Settles by an upstream's response, or by there being none. What only its trailers can tell is settled when they come,
/// or when its body ends without them.
pub(super) fn settle(
    mut settling: Settling,
    sent: Result<Response, UpstreamError>,
    was_sent: bool,
) -> Result<Response, UpstreamError> {
    let mut response = match sent {
        Ok(response) => response,
        Err(error) => {
            if !was_sent {
                settling.unsent();
            }
            return Err(error);
        }
    };
    let may_come = !response.body.is_end();
    settling.answered(response.status.as_u16(), &response.fields, may_come);
    if !settling.is_done() {
        let body = std::mem::replace(&mut response.body, ResponseBody::Text(Bytes::new()));
        response.body = ResponseBody::Watched(Box::new(Watched { body, watcher: Box::new(settling) }));
    }
    Ok(response)
}

impl Watcher for Settling {
    fn trailers(&mut self, trailers: &Fields) {
        self.trailers(trailers);
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        // Of a request whose body did not come to its end there is nothing to be carried on.
        if let Some(exchange) = self.exchange.take().filter(|_| !self.activity.is_uploading()) {
            // One that there is no room for is dropped, and settles as without a response.
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
                Some(orphan) => drop(running.spawn_local(orphan.carry_on(patience))),
                None => return,
            },
        }
    }
}

impl Exchange {
    async fn carry_on(self, patience: Duration) {
        let Self { sending, settling } = self;
        if let Ok((sent, attempts)) = timeout(patience, sending).await {
            // Nobody reads the body; without it the upstream knows that it need not go on.
            drop(settle(settling, sent, attempts.was_sent()));
        }
    }
}
