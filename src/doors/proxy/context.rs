//! What surrounds a request: its client, its deadlines, and the way back for what comes before the answer.

use std::rc::Rc;

use http::StatusCode;

use super::activity::Activity;
use super::forwarding::{self, Peer};
use super::http1::ClientIo;
use super::http2::Responder;
use crate::engine::fields::Fields;

/// What surrounds the requests of a connection, or one request of an HTTP/2 connection.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) activity: Rc<Activity>,
    pub(super) peer: Rc<Peer>,
    pub(super) interim: Interim,
}

/// Where interim responses (1xx) go.
#[derive(Debug)]
pub(super) enum Interim {
    /// Into an HTTP/1 connection, before the response.
    Http1(Rc<ClientIo>),
    /// Onto a stream of HTTP/2, before the response.
    Http2(Rc<Responder>),
}

impl Interim {
    /// Passes an interim response on to the client.
    pub(super) fn send(&self, status: StatusCode, mut fields: Fields) {
        forwarding::strip(&mut fields);
        match self {
            Self::Http1(io) => io.interim(status, &fields),
            Self::Http2(responder) => responder.interim(status, &fields),
        }
    }

    /// The limits have been asked. If the client has taken its request back meanwhile, nothing comes after this.
    pub(super) async fn judged(&self) {
        if let Self::Http2(responder) = self {
            responder.judged().await;
        }
    }
}
