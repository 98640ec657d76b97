//! Drops the trailers that would bring what a header may not: they come after it, and some servers merge them with the headers.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::http::forwarding::Peer;
use crate::http::message::{BodyError, Piece, RequestBody, ResponseBody, Upload, Watched, Watcher};
use crate::http::upstream::Destination;
use crate::message::client_headers::ClientHeaders;
use crate::message::headers::Headers;

#[derive(Debug)]
struct FilteredRequest {
    body: RefCell<RequestBody>,
    accepted: ClientHeaders,
    is_trusted: bool,
    destination: Rc<Destination>,
}

/// Drops a request's trailers that are not accepted from this client, and those of headers that the route removes or sets.
pub(super) fn filter_request(
    body: &mut RequestBody,
    accepted: &ClientHeaders,
    peer: &Peer,
    destination: &Rc<Destination>,
) {
    // Trailers reach an upstream only behind chunks, which is how a body without a length is sent.
    if !body.is_end() && body.length().is_none() {
        let (accepted, destination) = (accepted.clone(), destination.clone());
        let body_before = std::mem::take(body).into();
        let filtered = FilteredRequest { body: body_before, accepted, is_trusted: peer.is_trusted, destination };
        *body = RequestBody::Upload(Rc::new(filtered));
    }
}

impl Upload for FilteredRequest {
    fn poll_piece(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, BodyError>>> {
        let mut polled = self.body.borrow_mut().poll_piece(cx);
        if let Poll::Ready(Some(Ok(Piece::Trailers(trailers)))) = &mut polled {
            // The request is already with the upstream, too late to reject it.
            if self.accepted.prepare(trailers, self.is_trusted).is_err() {
                trailers.clear();
            }
            if let Some(options) = &self.destination.options {
                options.request_headers.apply_to_trailers(trailers);
            }
        }
        polled
    }

    fn is_end(&self) -> bool {
        self.body.borrow().is_end()
    }

    fn length(&self) -> Option<u64> {
        self.body.borrow().length()
    }
}

#[derive(Debug)]
struct ResponseTrailers(Rc<Destination>);

/// Drops a response's trailers of headers that the route removes or sets.
pub(super) fn filter_response(body: &mut ResponseBody, destination: &Rc<Destination>) {
    let changes = destination.options.as_ref().map(|options| &options.response_headers);
    let is_filtered = changes.is_some_and(|changes| !changes.removed.is_empty() || !changes.set.is_empty());
    if is_filtered && !body.is_end() && body.is_upstreams() {
        let watcher = Box::new(ResponseTrailers(destination.clone()));
        let body_before = std::mem::replace(body, ResponseBody::Download(None));
        *body = ResponseBody::Watched(Box::new(Watched { body: body_before, watcher }));
    }
}

impl Watcher for ResponseTrailers {
    fn data(&mut self, _: &[u8]) {}

    fn trailers(&mut self, trailers: &mut Headers) {
        if let Some(options) = &self.0.options {
            options.response_headers.apply_to_trailers(trailers);
        }
    }
}
