//! The interface between a connection and its listener: the listener's [`Service`], and the [`Context`] of a request.

use std::cell::{Cell, RefCell};
use std::fmt::Debug;
use std::future::pending;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use http::{StatusCode, Version};

use super::activity::Activity;
use super::failure::HeadError;
use super::forwarding::{self, Peer};
use super::message::{Request, Response};
use super::server::Server;
use super::transport::Address;
use crate::message::headers::Headers;

/// Answers the requests of a listener.
///
/// Every call is statically dispatched: a connection is compiled for its listener.
pub(crate) trait Service: 'static {
    type Exchange: Exchange;

    fn server(&self) -> &Server;

    /// Starts an exchange, before the request is looked at.
    fn begin(&self, context: &Context, request: &Request) -> Self::Exchange;

    /// Bodies that the service does not read are drained by the connection.
    async fn answer(&self, context: &Context, request: Request, exchange: &mut Self::Exchange) -> Response;

    /// A request's head could not be read; `response` is sent.
    fn rejected(&self, context: &Context, version: Version, error: HeadError, response: &Response);
}

/// A request from its headers until the last byte of its response was handed over, or until the client has gone.
pub(crate) trait Exchange {
    /// The service has returned the response; its body is sent next.
    fn answered(&mut self, context: &Context, response: &Response);

    /// Bytes of the response's body were handed over.
    fn sent(&self, bytes: usize);

    /// The last of the response is about to be handed over. A client that has seen the end of its response must not find
    /// the request still in flight.
    fn ended(&self);
}

/// What surrounds the requests of a connection, or one request of an HTTP/2 connection.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) activity: Rc<Activity>,
    pub(crate) peer: Rc<Peer>,
    client: Client,
    pub(crate) attempts: Attempts,
}

/// The client's end of an exchange: an HTTP/1 connection or an HTTP/2 stream.
pub(super) trait Downstream: Debug {
    /// Sends an interim response (1xx) before the real one.
    fn send_interim(&self, status: StatusCode, headers: &Headers);

    /// The service commits itself to an answer. Returns false if nobody waits for it any more.
    fn commit(&self) -> bool;
}

#[derive(Debug)]
enum Client {
    Attached(Rc<dyn Downstream>),
    /// Of an exchange that may outlive its client.
    Detached(Weak<dyn Downstream>),
}

impl Context {
    pub(super) fn new(activity: Rc<Activity>, peer: Rc<Peer>, client: Rc<dyn Downstream>) -> Self {
        Self { activity, peer, client: Client::Attached(client), attempts: Attempts::default() }
    }

    /// Returns the context of an exchange that may go on when the client is gone. It keeps nothing of the client's
    /// connection.
    pub(crate) fn detached(&self) -> Self {
        let client = match &self.client {
            Client::Attached(client) => Rc::downgrade(client),
            Client::Detached(client) => client.clone(),
        };
        let (activity, peer) = (self.activity.clone(), self.peer.clone());
        Self { activity, peer, client: Client::Detached(client), attempts: Attempts::default() }
    }

    /// Called once the request is charged and before it is answered or forwarded. If the client has cancelled its request
    /// meanwhile, this never returns: what reached the upstream would only have to be cancelled there.
    pub(crate) async fn ready_to_answer(&self) {
        if let Client::Attached(client) = &self.client
            && !client.commit()
        {
            pending::<()>().await;
        }
    }

    /// Passes an interim response on to the client.
    pub(super) fn send_interim(&self, status: StatusCode, mut headers: Headers) {
        forwarding::strip(&mut headers);
        // It has no body to have a length (RFC 9110 section 8.6).
        headers.remove("content-length");
        match &self.client {
            Client::Attached(client) => client.send_interim(status, &headers),
            Client::Detached(client) => {
                client.upgrade().into_iter().for_each(|client| client.send_interim(status, &headers));
            }
        }
    }
}

/// The servers that a request was sent to, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    last: RefCell<Option<Rc<Address>>>,
    count: Cell<u32>,
    /// True if some of the request may have reached a server.
    was_sent: Cell<bool>,
    since: Cell<Option<Instant>>,
}

impl Attempts {
    /// Another request begins.
    pub(super) fn reset(&self) {
        self.last.take();
        self.count.set(0);
        self.was_sent.set(false);
    }

    /// The request goes to this server now.
    pub(super) fn begin(&self, address: &Rc<Address>, now: Instant) {
        if self.count.get() == 0 {
            self.since.set(Some(now));
        }
        self.count.set(self.count.get() + 1);
        *self.last.borrow_mut() = Some(address.clone());
    }

    /// Takes over the attempts of a detached context.
    pub(crate) fn adopt(&self, other: &Self) {
        self.last.replace(other.last.take());
        self.count.set(other.count.get());
        self.was_sent.set(other.was_sent.get());
        self.since.set(other.since.get());
    }

    /// Some of the request may reach a server from here on; returns whether some of it may have before.
    pub(super) fn sending(&self) -> bool {
        self.was_sent.replace(true)
    }

    /// No server has seen any of what [`Self::sending`] announced, which returned `before`.
    pub(super) fn not_sent(&self, before: bool) {
        self.was_sent.set(before);
    }

    /// Returns whether some of the request may have reached a server.
    pub(crate) const fn was_sent(&self) -> bool {
        self.was_sent.get()
    }

    /// Returns the last server's address, the time since the first attempt and the number of attempts; `None` without
    /// any. `received` is when the request was: a connection's clock stands still while it is served, so the first attempt
    /// may seem to precede it.
    pub(crate) fn summary(&self, received: Instant) -> Option<(String, Duration, u32)> {
        let address = self.last.borrow().as_ref()?.to_string();
        let time = self.since.get().map_or(Duration::ZERO, |since| since.max(received).elapsed());
        Some((address, time, self.count.get()))
    }
}
