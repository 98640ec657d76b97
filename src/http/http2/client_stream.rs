//! A stream of a client's connection: the way back to the client, and the body of its request.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::SendStream;
use h2::server::SendResponse;
use http::{Response, StatusCode};

use super::body::ReceivedBody;
use super::convert;
use crate::http::activity::Activity;
use crate::http::message::{BodyError, Piece, Upload};
use crate::http::service::Downstream;
use crate::message::headers::Headers;

/// Shared by the connection, which answers, and the reader of the request's body.
#[derive(Debug)]
pub(super) struct ClientStream {
    respond: RefCell<SendResponse<Bytes>>,
    /// True once the service has committed itself to an answer.
    is_committed: Cell<bool>,
    gone: Cell<bool>,
    activity: Rc<Activity>,
    /// `None` for a request without a body.
    upload: RefCell<Option<ReceivedBody>>,
    /// Bytes of the body that may still come.
    allowed: Cell<u64>,
    /// The limit for the whole body.
    limit: Cell<u64>,
    /// True if the client waits for a `100 Continue` before it sends the body.
    awaits_continue: Cell<bool>,
}

impl ClientStream {
    pub(super) fn new(
        respond: SendResponse<Bytes>,
        upload: Option<ReceivedBody>,
        activity: Rc<Activity>,
        limit: u64,
    ) -> Self {
        Self {
            respond: RefCell::new(respond),
            is_committed: Cell::new(false),
            gone: Cell::new(false),
            activity,
            upload: RefCell::new(upload),
            allowed: Cell::new(limit),
            limit: Cell::new(limit),
            awaits_continue: Cell::new(false),
        }
    }

    /// Returns whether the client has reset the stream or is gone.
    pub(super) fn poll_gone(&self, cx: &mut Context<'_>) -> bool {
        if !self.gone.get() {
            self.gone.set(self.respond.borrow_mut().poll_reset(cx).is_ready());
        }
        self.gone.get()
    }

    pub(super) const fn is_committed(&self) -> bool {
        self.is_committed.get()
    }

    pub(super) fn respond(&self, head: Response<()>, is_end: bool) -> Result<SendStream<Bytes>, h2::Error> {
        self.respond.borrow_mut().send_response(head, is_end)
    }

    /// Returns whether the request has a body.
    pub(super) fn has_upload(&self) -> bool {
        self.upload.borrow().is_some()
    }

    /// The client sends the body only after a `100 Continue`, which the first read of it sends.
    pub(super) fn await_continue(&self) {
        self.awaits_continue.set(true);
    }

    /// Drops the body of a request that is not answered by the service.
    pub(super) fn drop_upload(&self) {
        self.upload.take();
    }
}

impl Downstream for ClientStream {
    /// If the stream is gone, the interim response is dropped.
    fn send_interim(&self, status: StatusCode, headers: &Headers) {
        let mut response = Response::new(());
        *response.status_mut() = status;
        *response.headers_mut() = convert::header_map(headers, 0, |_| true);
        if let Err(error) = self.respond.borrow_mut().send_informational(response) {
            tracing::debug!("an interim response was not sent: {error}");
        }
    }

    fn commit(&self) -> bool {
        self.is_committed.set(true);
        !self.gone.get()
    }

    fn limit_body(&self, bytes: u64) {
        self.limit.set(bytes);
        self.allowed.set(bytes);
    }
}

impl Upload for ClientStream {
    fn poll_piece(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, BodyError>>> {
        if self.awaits_continue.take() {
            self.send_interim(StatusCode::CONTINUE, &Headers::new());
        }
        let mut upload = self.upload.borrow_mut();
        let Some(upload) = &mut *upload else { return Poll::Ready(None) };
        let polled = upload.poll_piece(cx);
        match &polled {
            Poll::Pending => self.activity.awaits_upload(),
            Poll::Ready(Some(Ok(Piece::Data(data)))) => {
                self.activity.uploaded(data.len() as u64);
                let Some(allowed) = self.allowed.get().checked_sub(data.len() as u64) else {
                    upload.end();
                    return Poll::Ready(Some(Err(BodyError::TooLong(self.limit.get()))));
                };
                self.allowed.set(allowed);
                if upload.is_end() {
                    self.activity.upload_ended();
                }
            }
            Poll::Ready(_) => self.activity.upload_ended(),
        }
        polled
    }

    fn is_end(&self) -> bool {
        self.upload.borrow().as_ref().is_none_or(ReceivedBody::is_end)
    }

    fn length(&self) -> Option<u64> {
        self.upload.borrow().as_ref().map_or(Some(0), ReceivedBody::length)
    }
}
