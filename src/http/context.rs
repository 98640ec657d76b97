//! What surrounds a request: its client, its deadlines, and the way back for what comes before the answer.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use http::StatusCode;

use super::activity::Activity;
use super::forwarding::{self, Peer};
use super::http1::ClientIo;
use super::http2::Responder;
use super::upstream::Endpoint;
use crate::message::headers::Headers;
use crate::telemetry::access_log::UpstreamUse;

/// What surrounds the requests of a connection, or one request of an HTTP/2 connection.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) activity: Rc<Activity>,
    pub(crate) peer: Rc<Peer>,
    pub(super) interim: Interim,
    pub(crate) attempts: Attempts,
}

impl Context {
    pub(super) fn new(activity: Rc<Activity>, peer: Rc<Peer>, interim: Interim) -> Self {
        Self { activity, peer, interim, attempts: Attempts::default() }
    }

    /// The surroundings of an exchange that may go on when the client is gone. They keep nothing of its connection.
    pub(crate) fn detached(&self) -> Self {
        let interim = match &self.interim {
            Interim::Http1(io) => Interim::Http1Detached(Rc::downgrade(io)),
            Interim::Http2(responder) => Interim::Http2Detached(Rc::downgrade(responder)),
            Interim::Http1Detached(io) => Interim::Http1Detached(io.clone()),
            Interim::Http2Detached(responder) => Interim::Http2Detached(responder.clone()),
        };
        Self::new(self.activity.clone(), self.peer.clone(), interim)
    }

    /// The limits have been asked. If the client has taken its request back meanwhile, nothing comes after this.
    pub(crate) async fn judged(&self) {
        if let Interim::Http2(responder) = &self.interim {
            responder.judged().await;
        }
    }
}

/// Which servers a request was sent to, for the access log. Requests of a connection come one after the other.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    last: RefCell<Option<Rc<Endpoint>>>,
    count: Cell<u32>,
    /// True if some of the request may have reached a server.
    was_sent: Cell<bool>,
    since: Cell<Option<Instant>>,
}

impl Attempts {
    /// Another request begins.
    pub(super) fn forget(&self) {
        self.last.take();
        self.count.set(0);
        self.was_sent.set(false);
    }

    /// The request goes to this server now.
    pub(super) fn begin(&self, endpoint: &Rc<Endpoint>, now: Instant) {
        if self.count.get() == 0 {
            self.since.set(Some(now));
        }
        self.count.set(self.count.get() + 1);
        *self.last.borrow_mut() = Some(endpoint.clone());
    }

    /// Takes over what is known of another's, whose requests were these.
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

    /// True if some of the request may have reached a server.
    pub(crate) const fn was_sent(&self) -> bool {
        self.was_sent.get()
    }

    /// What the access log says of them, when there is an answer or none will come. `received` is when the request was;
    /// the clock of a connection stands still while it is served, and so may be a little before that.
    pub(crate) fn told(&self, received: Instant) -> Option<UpstreamUse> {
        let address = self.last.borrow().as_ref()?.place();
        let time = self.since.get().map_or(Duration::ZERO, |since| since.max(received).elapsed());
        Some(UpstreamUse { address, time, attempts: self.count.get() })
    }
}

/// Where interim responses (1xx) go.
#[derive(Debug)]
pub(super) enum Interim {
    /// Into an HTTP/1 connection, before the response.
    Http1(Rc<ClientIo>),
    /// Onto a stream of HTTP/2, before the response.
    Http2(Rc<Responder>),
    /// As [`Self::Http1`], as long as the connection is there.
    Http1Detached(Weak<ClientIo>),
    /// As [`Self::Http2`], as long as the stream is there.
    Http2Detached(Weak<Responder>),
}

impl Interim {
    /// Passes an interim response on to the client.
    pub(super) fn send(&self, status: StatusCode, mut headers: Headers) {
        forwarding::strip(&mut headers);
        // It has no body to have a length (RFC 9110 section 8.6).
        headers.remove("content-length");
        match self {
            Self::Http1(io) => io.interim(status, &headers),
            Self::Http2(responder) => responder.interim(status, &headers),
            Self::Http1Detached(io) => io.upgrade().into_iter().for_each(|io| io.interim(status, &headers)),
            Self::Http2Detached(responder) => {
                responder.upgrade().into_iter().for_each(|responder| responder.interim(status, &headers));
            }
        }
    }
}
