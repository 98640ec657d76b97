//! Reads JSON bodies of requests before they are decided, for limits that need them.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};

use crate::engine::rules::body_cost::{BodyForm, UnreadBody};
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

/// Reads a whole JSON body of up to `most` bytes, and leaves it to be forwarded. Returns `None` for others, of which some may
/// have been read and are forwarded, too.
pub(super) async fn inspect(
    body: &mut RequestBody,
    headers: &Headers,
    most: usize,
    activity: &Activity,
    metrics: &Metrics,
) -> Result<Option<Bytes>, UpstreamError> {
    if body.is_end() {
        return Ok(None);
    }
    let uninspected = |reason: UninspectedBody| metrics.listeners.uninspected_bodies.inc(reason.label());
    match BodyForm::of(headers) {
        Ok(BodyForm::Json) => {}
        Err(UnreadBody::Encoded) => {
            uninspected(UninspectedBody::RequestEncoded);
            return Ok(None);
        }
        Ok(BodyForm::Events) | Err(UnreadBody::OtherType) => return Ok(None),
    }
    let length = body.length();
    if length.is_some_and(|length| length > most as u64) {
        uninspected(UninspectedBody::RequestTooLong);
        return Ok(None);
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
        if text.len() > most {
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
    if !has_ended {
        uninspected(UninspectedBody::RequestTooLong);
        return Ok(None);
    }
    Ok(Some(text))
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
