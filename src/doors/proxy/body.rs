//! Bodies on their way through: what they carry passes one piece at a time, and a piece is taken when the other side has
//! room for it.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::activity::Activity;
use super::counters::InFlight;
use super::exchange::UpstreamBody;

/// The body of a client's request.
#[derive(Debug)]
pub(super) struct RequestBody {
    incoming: Incoming,
    activity: Rc<Activity>,
    ended: bool,
}

impl RequestBody {
    pub(super) fn new(incoming: Incoming, activity: Rc<Activity>) -> Self {
        let ended = incoming.is_end_stream();
        Self { incoming, activity, ended }
    }

    fn end(&mut self) {
        self.ended = true;
        self.activity.uploaded();
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.incoming).poll_frame(cx));
        match &frame {
            Some(Ok(_)) if !self.incoming.is_end_stream() => self.activity.moved(),
            Some(Ok(_)) | None => self.end(),
            Some(Err(_)) => {}
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        if !self.ended {
            self.activity.left_unread();
        }
    }
}

/// The body of a response to a client.
#[derive(Debug)]
pub(super) struct ResponseBody {
    content: Content,
    /// The request counts as in flight until this is dropped.
    _in_flight: InFlight,
}

/// What a response carries.
#[derive(Debug)]
pub(super) enum Content {
    /// Text of our own.
    Text(Bytes),
    /// What an upstream sends.
    Upstream(UpstreamBody),
}

impl ResponseBody {
    pub(super) const fn new(content: Content, in_flight: InFlight) -> Self {
        Self { content, _in_flight: in_flight }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut self.content {
            Content::Text(text) if text.is_empty() => Poll::Ready(None),
            Content::Text(text) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(text))))),
            Content::Upstream(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Text(text) => text.is_empty(),
            Content::Upstream(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Text(text) => SizeHint::with_exact(text.len() as u64),
            Content::Upstream(body) => body.size_hint(),
        }
    }
}
