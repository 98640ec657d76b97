//! Requests and responses in transit, independent of the protocols on both sides.
//!
//! Bodies are pulled: the sending side asks for the next part when it has room, so a slow receiver slows its sender
//! down and nothing piles up in between.

use std::cell::{OnceCell, RefCell};
use std::fmt::Debug;
use std::future::poll_fn;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::{BufMut, Bytes};
use http::{HeaderMap, Method, StatusCode, Version};

use super::tunnel::Tunnel;
use crate::message::connection::UpstreamFailure;
use crate::message::headers::Headers;
use crate::message::reply::Reply;

/// A request in the form that a server receives it.
#[derive(Debug, Default)]
pub(crate) struct Request {
    pub(crate) method: Method,
    /// The target as it was sent, in origin form (`/path?query`) or `*`.
    pub(crate) target: String,
    /// The version that the client used.
    pub(crate) version: Version,
    /// Includes `Host` unless an HTTP/1.0 client sent none. HTTP/2's `:authority` becomes `Host`.
    pub(crate) headers: Headers,
    pub(crate) body: RequestBody,
}

/// A response in the form that a client receives it.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: StatusCode,
    pub(crate) headers: ResponseHeaders,
    pub(crate) body: ResponseBody,
}

/// A response's headers: its own, or shared ones. Changing shared headers copies them.
#[derive(Debug)]
pub(crate) enum ResponseHeaders {
    Own(Headers),
    Kept(Rc<KeptHeaders>),
}

/// The headers of a response that is sent many times, always with the same status and body, or the trailers of many.
#[derive(Clone, Debug)]
pub(crate) struct KeptHeaders {
    headers: Headers,
    /// The HTTP/1.1 form: status line, headers and the body's length.
    pub(crate) http1: OnceCell<Vec<u8>>,
    http2: RefCell<Option<Http2Form>>,
}

/// The HTTP/2 form of kept headers, including the headers that it adds.
#[derive(Clone, Debug)]
pub(crate) struct Http2Form {
    pub(crate) map: HeaderMap,
    /// Until when the map's `Date` holds; `None` without one.
    pub(crate) dated_until: Option<Instant>,
}

impl KeptHeaders {
    /// Returns a copy of the HTTP/2 form, which `update` sees first.
    pub(crate) fn http2(&self, make: impl FnOnce() -> HeaderMap, update: impl FnOnce(&mut Http2Form)) -> HeaderMap {
        let mut form = self.http2.borrow_mut();
        let form = form.get_or_insert_with(|| Http2Form { map: make(), dated_until: None });
        update(form);
        form.map.clone()
    }
}

/// The most bytes of an unread request body that are discarded to keep the connection. If there are more, it is closed.
pub(super) const MAX_DISCARDED: usize = 64 * 1024;

/// A part of a body.
#[derive(Debug)]
pub(crate) enum Piece {
    /// At least one byte.
    Data(Bytes),
    /// Trailers (RFC 9110 section 6.5). Nothing follows them.
    Trailers(Headers),
}

/// A request's body.
#[derive(Debug, Default)]
pub(crate) enum RequestBody {
    #[default]
    Empty,
    /// Read from the client's connection or stream, which shares it.
    Upload(Rc<dyn Upload>),
}

/// A request's body as it arrives from a client.
pub(crate) trait Upload: Debug {
    /// The next part, `None` at the end.
    fn poll_piece(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, BodyError>>>;

    /// Returns whether it has ended, as far as that is known without reading on.
    fn is_end(&self) -> bool;

    /// The bytes still to come, if the sender has announced them.
    fn length(&self) -> Option<u64>;
}

/// A response's body.
#[derive(Debug)]
pub(crate) enum ResponseBody {
    Text(Bytes),
    /// Text with trailers: the answer to a unary gRPC call.
    Message(Message),
    /// Messages of our own that are produced over time.
    Stream(Box<dyn BodyStream>),
    /// Received from an upstream; `None` once it has ended.
    Download(Option<Box<dyn Download>>),
    /// Received from an upstream, with a watcher for its data and trailers.
    Watched(Box<Watched>),
    /// An upstream's connection that switched to another protocol.
    Tunnel(Box<Tunnel>),
}

/// A response's body as it arrives from an upstream, together with its exchange.
pub(crate) trait Download: Debug {
    /// The next part, `None` at the end.
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, BodyError>>>;

    /// Sends more of the request while nobody takes the response.
    fn drive_upload(&mut self, cx: &mut Context<'_>);

    /// Returns whether it has ended, as far as that is known without reading on.
    fn is_end(&self) -> bool;

    /// The bytes still to come, if the sender has announced them.
    fn length(&self) -> Option<u64>;

    /// Takes the whole rest, whose length is known, if it is already there and nothing else is to be done.
    fn take_whole(&mut self, _text: &mut dyn BufMut) -> bool {
        false
    }

    /// Returns whether its connection can be [released](Self::release).
    fn is_done(&self) -> bool {
        false
    }

    /// Gives the connection back for another request if it is clean.
    fn release(self: Box<Self>) {}
}

/// A body of our own that ends with trailers.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) data: Bytes,
    pub(crate) trailers: Option<Rc<KeptHeaders>>,
}

/// A body of our own that is produced over time.
pub(crate) trait BodyStream: Debug {
    /// The next part, `None` at the end.
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, BodyError>>>;
}

/// A body that is forwarded, and a watcher that sees its data and trailers first.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) body: ResponseBody,
    /// Dropped with the body: nothing can come after that.
    pub(crate) watcher: Box<dyn Watcher>,
}

/// Sees a body on its way, and may remove trailers.
pub(crate) trait Watcher: Debug {
    fn data(&mut self, bytes: &[u8]);

    fn trailers(&mut self, trailers: &mut Headers);
}

/// An error that ends a body early.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BodyError {
    #[error("cut off: {0}")]
    Cut(String),
    #[error("malformed: {0}")]
    Malformed(String),
    #[error("longer than {0} bytes")]
    TooLong(u64),
    #[error("nothing came in time")]
    Silent,
}

impl BodyError {
    /// The reason of a response that ends with this.
    pub(super) const fn reason(&self) -> UpstreamFailure {
        if matches!(self, Self::Silent) { UpstreamFailure::BodyTimeout } else { UpstreamFailure::Body }
    }
}

impl RequestBody {
    /// The next part, `None` at the end.
    pub(crate) fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, BodyError>>> {
        match self {
            Self::Empty => Poll::Ready(None),
            Self::Upload(body) => body.poll_piece(cx),
        }
    }

    pub(crate) async fn piece(&mut self) -> Option<Result<Piece, BodyError>> {
        poll_fn(|cx| self.poll_piece(cx)).await
    }

    /// Returns whether it has ended, as far as that is known without reading on.
    pub(crate) fn is_end(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Upload(body) => body.is_end(),
        }
    }

    /// The bytes still to come, if the sender has announced them.
    pub(crate) fn length(&self) -> Option<u64> {
        match self {
            Self::Empty => Some(0),
            Self::Upload(body) => body.length(),
        }
    }
}

impl ResponseBody {
    pub(super) fn download(download: Box<dyn Download>) -> Self {
        let mut body = Some(download);
        release(&mut body);
        Self::Download(body)
    }

    /// The next part, `None` at the end.
    pub(crate) fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, BodyError>>> {
        match self {
            Self::Text(text) if text.is_empty() => Poll::Ready(None),
            Self::Text(text) => Poll::Ready(Some(Ok(Piece::Data(std::mem::take(text))))),
            Self::Message(message) => Poll::Ready(message.next().map(Ok)),
            Self::Stream(stream) => stream.poll_piece(cx),
            Self::Download(Some(body)) => {
                let polled = body.poll_piece(cx);
                if let Self::Download(body) = self {
                    release(body);
                }
                polled
            }
            Self::Watched(watched) => watched.poll_piece(cx),
            Self::Download(None) | Self::Tunnel(_) => Poll::Ready(None),
        }
    }

    /// Takes the whole rest, whose length is known, if it is already there.
    pub(super) fn take_whole(&mut self, text: &mut dyn BufMut) -> bool {
        match self {
            Self::Text(all) => {
                text.put_slice(&std::mem::take(all));
                true
            }
            Self::Download(body) => {
                let is_taken = body.as_mut().is_some_and(|body| body.take_whole(text));
                release(body);
                is_taken
            }
            _ => false,
        }
    }

    /// Sends more of the request that this answers while nobody takes the response.
    pub(crate) fn drive_upload(&mut self, cx: &mut Context<'_>) {
        match self {
            Self::Download(Some(body)) => body.drive_upload(cx),
            Self::Watched(watched) => watched.body.drive_upload(cx),
            Self::Text(_) | Self::Message(_) | Self::Stream(_) | Self::Download(None) | Self::Tunnel(_) => {}
        }
    }

    /// Returns whether it comes from an upstream, which may still be reading the request.
    pub(crate) const fn is_upstreams(&self) -> bool {
        !matches!(self, Self::Text(_) | Self::Message(_) | Self::Stream(_))
    }

    /// Returns whether it has ended, as far as that is known without reading on.
    pub(crate) fn is_end(&self) -> bool {
        match self {
            Self::Text(text) => text.is_empty(),
            Self::Message(message) => message.data.is_empty() && message.trailers.is_none(),
            Self::Stream(_) => false,
            Self::Download(body) => body.as_ref().is_none_or(|body| body.is_end()),
            Self::Watched(watched) => watched.body.is_end(),
            Self::Tunnel(_) => true,
        }
    }

    /// The bytes still to come, if the sender has announced them.
    pub(crate) fn length(&self) -> Option<u64> {
        match self {
            Self::Text(text) => Some(text.len() as u64),
            // HTTP/1 has no place for trailers in a message with a length.
            Self::Message(_) | Self::Stream(_) => None,
            Self::Download(Some(body)) => body.length(),
            Self::Watched(watched) => watched.body.length(),
            Self::Download(None) | Self::Tunnel(_) => Some(0),
        }
    }
}

fn release(body: &mut Option<Box<dyn Download>>) {
    if let Some(body) = body.take_if(|body| body.is_done()) {
        body.release();
    }
}

impl Watched {
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, BodyError>>> {
        let mut polled = self.body.poll_piece(cx);
        match &mut polled {
            Poll::Ready(Some(Ok(Piece::Data(bytes)))) => self.watcher.data(bytes),
            Poll::Ready(Some(Ok(Piece::Trailers(trailers)))) => self.watcher.trailers(trailers),
            _ => {}
        }
        polled
    }
}

impl Message {
    fn next(&mut self) -> Option<Piece> {
        if self.data.is_empty() {
            return self.trailers.take().map(|trailers| Piece::Trailers(trailers.headers.clone()));
        }
        Some(Piece::Data(std::mem::take(&mut self.data)))
    }
}

impl Response {
    /// Returns whether it may be silent for any time between its parts: a stream of our own, of events, or of gRPC messages.
    /// None of them announces its length.
    pub(super) fn may_pause(&self) -> bool {
        match &self.body {
            ResponseBody::Stream(_) => true,
            body => body.is_upstreams() && body.length().is_none() && self.headers.is_stream(),
        }
    }
}

impl From<Reply> for Response {
    fn from(Reply { status, headers, body }: Reply) -> Self {
        Self { status, headers: headers.into(), body: ResponseBody::Text(body.into()) }
    }
}

impl From<Headers> for ResponseHeaders {
    fn from(headers: Headers) -> Self {
        Self::Own(headers)
    }
}

impl From<Headers> for KeptHeaders {
    fn from(headers: Headers) -> Self {
        Self { headers, http1: OnceCell::new(), http2: RefCell::default() }
    }
}

impl Deref for KeptHeaders {
    type Target = Headers;

    fn deref(&self) -> &Headers {
        &self.headers
    }
}

impl Deref for ResponseHeaders {
    type Target = Headers;

    fn deref(&self) -> &Headers {
        match self {
            Self::Own(headers) => headers,
            Self::Kept(kept) => &kept.headers,
        }
    }
}

impl DerefMut for ResponseHeaders {
    fn deref_mut(&mut self) -> &mut Headers {
        match self {
            Self::Own(headers) => headers,
            Self::Kept(kept) => {
                let kept = Rc::make_mut(kept);
                kept.http1.take();
                kept.http2.take();
                &mut kept.headers
            }
        }
    }
}
