//! The interface between a connection and its listener: the listener's [`Service`], and the [`Context`] of a request.

use std::cell::RefCell;
use std::fmt::Debug;
use std::future::pending;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use http::{StatusCode, Version};

use super::activity::Activity;
use super::failure::{HeadError, UpstreamError};
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

    /// Bodies that the service does not read are drained by the connection. The service may change or take the request;
    /// afterwards only its memory is used again.
    async fn answer(&self, context: &Context, request: &mut Request, exchange: &mut Self::Exchange) -> Response;

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

/// The surroundings of the requests of an HTTP/1 connection, or of one HTTP/2 request.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) activity: Rc<Activity>,
    pub(crate) peer: Rc<Peer>,
    client: Weak<dyn Downstream>,
    /// True for an exchange that may outlive its client.
    is_detached: bool,
    pub(crate) attempts: RefCell<Attempts>,
}

/// The client's end of an exchange: an HTTP/1 connection or an HTTP/2 stream.
pub(super) trait Downstream: Debug {
    /// Sends an interim response (1xx) before the real one.
    fn send_interim(&self, status: StatusCode, headers: &Headers);

    /// The service commits itself to an answer. Returns false if nobody waits for it any more.
    fn commit(&self) -> bool;

    /// Sets the limit for the whole body of the request, of which nothing was read yet.
    fn limit_body(&self, bytes: u64);
}

impl Context {
    pub(super) fn new(activity: Rc<Activity>, peer: Rc<Peer>, client: Weak<dyn Downstream>) -> Self {
        Self { activity, peer, client, is_detached: false, attempts: RefCell::default() }
    }

    /// Returns the context of an exchange that may go on when the client is gone. It keeps nothing of the client's
    /// connection.
    pub(crate) fn detached(&self) -> Self {
        Self { is_detached: true, ..Self::new(self.activity.clone(), self.peer.clone(), self.client.clone()) }
    }

    /// Called once the request is charged and before it is answered or forwarded. If the client has cancelled its request
    /// meanwhile, this never returns: what reached the upstream would only have to be cancelled there.
    pub(crate) async fn ready_to_answer(&self) {
        if !self.is_detached && self.client.upgrade().is_some_and(|client| !client.commit()) {
            pending::<()>().await;
        }
    }

    /// Called before the request's body is read.
    pub(crate) fn limit_body(&self, bytes: u64) {
        if let Some(client) = self.client.upgrade() {
            client.limit_body(bytes);
        }
    }

    /// Forwards an interim response, the `number`th, to the client.
    pub(super) fn forward_interim(
        &self,
        number: usize,
        status: StatusCode,
        mut headers: Headers,
    ) -> Result<(), UpstreamError> {
        if number > MAX_INTERIM {
            return Err(UpstreamError::Head(HeadError::Malformed("too many interim responses")));
        }
        // The client already has a `100 Continue` from us; RFC 9110 section 15.2 exempts it from forwarding.
        if status == StatusCode::CONTINUE {
            return Ok(());
        }
        forwarding::strip(&mut headers);
        // It has no body to have a length (RFC 9110 section 8.6).
        headers.remove("content-length");
        if let Some(client) = self.client.upgrade() {
            client.send_interim(status, &headers);
        }
        Ok(())
    }
}

/// Interim responses before the final one. A server that sends more is broken.
const MAX_INTERIM: usize = 16;

/// The servers that a request was sent to, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    last: Option<Rc<Address>>,
    count: u32,
    since: Option<Instant>,
    /// True if some of the request may have reached a server.
    pub(crate) was_sent: bool,
}

impl Attempts {
    /// The request goes to this server now.
    pub(super) fn begin(&mut self, address: &Rc<Address>, now: Instant) {
        self.since.get_or_insert(now);
        self.count += 1;
        self.last = Some(address.clone());
    }

    /// Returns the last server's address, the time since the first attempt and the number of attempts; `None` without
    /// any. `received` is when the request was: a connection's clock stands still while it is served, so the first attempt
    /// may seem to precede it.
    pub(crate) fn summary(&self, received: Instant) -> Option<(String, Duration, u32)> {
        let address = self.last.as_ref()?.to_string();
        let time = self.since.map_or(Duration::ZERO, |since| since.max(received).elapsed());
        Some((address, time, self.count))
    }
}
