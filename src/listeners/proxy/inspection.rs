//! Reads JSON bodies of requests before they are decided, for limits that need them.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};

use crate::engine::request::body_cost::{BodyForm, UnreadBody};
use crate::engine::request::{Body, may_be_json};
use crate::http::activity::Activity;
use crate::http::failure::UpstreamError;
use crate::http::message::{BodyError, Piece, RequestBody, Upload};
use crate::listeners::http::body;
use crate::message::headers::Headers;
use crate::telemetry::metrics::{Metrics, UninspectedBody};

/// A request's body of which a part has been read. It is forwarded unchanged.
#[derive(Debug)]
struct HeldBody {
    text: RefCell<Bytes>,
    trailers: RefCell<Option<Headers>>,
    rest: RefCell<RequestBody>,
    has_ended: bool,
    /// True if its sender has announced its length.
    is_sized: bool,
}

/// The body of a request, as far as it was read.
#[derive(Debug)]
pub(super) enum Inspected {
    Absent,
    Whole(Bytes),
    Unread,
}

impl Inspected {
    /// The body, as rules see it.
    pub(super) fn body(&self) -> Body<'_> {
        match self {
            Self::Absent => Body::Absent,
            Self::Whole(text) => Body::of(text),
            Self::Unread => Body::Unread,
        }
    }
}

/// Reads a whole JSON body of up to `most` bytes, and leaves it to be forwarded. Others are forwarded too, whether or not their
/// begin was read. The type does not matter: servers in Go, and some in Python, decode whatever they get.
pub(super) async fn inspect(
    body: &mut RequestBody,
    headers: &Headers,
    most: usize,
    activity: &Activity,
    metrics: &Metrics,
) -> Result<Inspected, UpstreamError> {
    if body.is_end() {
        return Ok(Inspected::Absent);
    }
    let unread = |reason: UninspectedBody| {
        metrics.listeners.uninspected_bodies[reason].inc();
        Ok(Inspected::Unread)
    };
    if BodyForm::of(headers) == Err(UnreadBody::Encoded) {
        return unread(UninspectedBody::RequestEncoded);
    }
    // The client of a stream may wait for an answer before it sends more.
    if headers.is_grpc() {
        return unread(UninspectedBody::RequestType);
    }
    let length = body.length();
    if length.is_some_and(|length| length > most as u64) {
        return unread(UninspectedBody::RequestTooLong);
    }
    let mut text = BytesMut::new();
    let mut trailers = None;
    let has_ended = loop {
        match body::piece(body, activity).await? {
            Some(Piece::Data(data)) => text.extend_from_slice(&data),
            Some(Piece::Trailers(found)) => {
                trailers = Some(found);
                break true;
            }
            None => break true,
        }
        if text.len() > most || !may_be_json(&text) {
            break false;
        }
    };
    let text = text.freeze();
    let held = HeldBody {
        text: text.clone().into(),
        trailers: RefCell::new(trailers),
        rest: std::mem::take(body).into(),
        has_ended,
        is_sized: length.is_some(),
    };
    *body = RequestBody::Upload(Rc::new(held));
    if text.len() > most {
        return unread(UninspectedBody::RequestTooLong);
    }
    if !may_be_json(&text) {
        return unread(UninspectedBody::RequestType);
    }
    Ok(Inspected::Whole(text))
}

impl Upload for HeldBody {
    fn poll_piece(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, BodyError>>> {
        let text = self.text.take();
        if !text.is_empty() {
            return Poll::Ready(Some(Ok(Piece::Data(text))));
        }
        if let Some(trailers) = self.trailers.take() {
            return Poll::Ready(Some(Ok(Piece::Trailers(trailers))));
        }
        if self.has_ended { Poll::Ready(None) } else { self.rest.borrow_mut().poll_piece(cx) }
    }

    fn is_end(&self) -> bool {
        let is_sent = self.text.borrow().is_empty() && self.trailers.borrow().is_none();
        is_sent && (self.has_ended || self.rest.borrow().is_end())
    }

    fn length(&self) -> Option<u64> {
        if !self.is_sized {
            return None;
        }
        let rest = if self.has_ended { 0 } else { self.rest.borrow().length()? };
        Some(rest + self.text.borrow().len() as u64)
    }
}
