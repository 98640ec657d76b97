//! Requests and responses on their way through, whatever protocol they came by and whatever they leave by.
//!
//! Bodies are pulled: whoever sends a body on asks for the next piece when there is room for it, so a slow receiver
//! slows the sender down and nothing piles up in between.

use std::cell::OnceCell;
use std::future::poll_fn;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode, Version};

use super::{http1, http2};
use crate::engine::answer::reply::Reply;
use crate::message::headers::Headers;

/// A request, in the form that a server takes it.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) method: Method,
    /// The target as it was sent, in origin form (`/path?query`) or `*`.
    pub(crate) target: String,
    /// By which the client sent it.
    pub(crate) version: Version,
    /// The headers, `Host` among them unless an HTTP/1.0 client named none. HTTP/2's `:authority` is a `Host` here.
    pub(crate) headers: Headers,
    pub(crate) body: RequestBody,
}

/// A response, in the form that a client is sent it.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: StatusCode,
    pub(crate) headers: ResponseHeaders,
    pub(crate) body: ResponseBody,
}

/// The headers of a response: its own, or those of an answer that is given many times. Who changes them gets a copy.
#[derive(Debug)]
pub(crate) enum ResponseHeaders {
    Own(Headers),
    Kept(Rc<KeptHeaders>),
}

/// The headers of an answer of ours that is given many times, always with the same status and body.
#[derive(Clone, Debug)]
pub(crate) struct KeptHeaders {
    headers: Headers,
    /// As HTTP/1.1 sends them, with the status before them and the body's length behind them.
    pub(crate) http1: OnceCell<Vec<u8>>,
    /// As HTTP/2 sends them, with what it adds to them.
    pub(crate) http2: OnceCell<HeaderMap>,
}

/// A part of a body.
#[derive(Debug)]
pub(crate) enum Piece {
    /// Some bytes, never none.
    Data(Bytes),
    /// The headers after the content (RFC 9110 section 6.5). Nothing comes after them.
    Trailers(Headers),
}

/// What a request carries.
#[derive(Debug, Default)]
pub(crate) enum RequestBody {
    /// Nothing.
    #[default]
    Empty,
    /// What follows the headers on an HTTP/1 connection.
    Http1(http1::Upload),
    /// What follows the headers on a stream of HTTP/2.
    Http2(Box<http2::Upload>),
}

/// What a response carries.
#[derive(Debug)]
pub(crate) enum ResponseBody {
    /// Text of our own.
    Text(Bytes),
    /// A message of our own with headers after it: the answer to a unary gRPC call.
    Message(Box<Message>),
    /// Messages of our own, each when there is one.
    Stream(Box<dyn BodyStream>),
    /// What an upstream sends by HTTP/1.
    Http1(http1::Download),
    /// What an upstream sends by HTTP/2.
    Http2(Box<http2::Download>),
    /// What an upstream sends, while somebody looks out for its trailers.
    Watched(Box<Watched>),
    /// Another protocol, to which an upstream has switched: there is no HTTP on the connection any more.
    Tunnel(Box<http1::Tunnel>),
}

/// A body of our own that ends with trailers.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) data: Bytes,
    pub(crate) trailers: Option<Headers>,
}

/// A body of our own that takes its time.
pub(crate) trait BodyStream: std::fmt::Debug {
    /// The next part, `None` at the end.
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, BodyError>>>;
}

/// A body that is passed on as it comes, and whose trailers are shown to somebody first.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) body: ResponseBody,
    /// Dropped with the body: then there will be no trailers any more.
    pub(crate) watcher: Box<dyn Watcher>,
}

/// Who looks out for trailers.
pub(crate) trait Watcher: std::fmt::Debug {
    /// These have come.
    fn trailers(&mut self, trailers: &Headers);
}

/// Why a body broke off.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    /// The sender closed or reset the connection or the stream before the end.
    #[error("it was cut off: {0}")]
    Cut(String),
    /// The sender breaks the rules of its protocol.
    #[error("it breaks the rules of HTTP: {0}")]
    Malformed(String),
    /// It is longer than the listener allows.
    #[error("it is longer than {0} bytes")]
    TooLong(u64),
}

impl RequestBody {
    /// The next part, `None` at the end.
    pub(crate) fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, BodyError>>> {
        match self {
            Self::Empty => Poll::Ready(None),
            Self::Http1(body) => body.poll_piece(cx),
            Self::Http2(body) => body.poll_piece(cx),
        }
    }

    /// As [`Self::poll_piece`], to wait for.
    pub(crate) async fn piece(&mut self) -> Option<Result<Piece, BodyError>> {
        poll_fn(|cx| self.poll_piece(cx)).await
    }

    /// Whether it has ended, as far as that is known without asking for more.
    pub(crate) fn is_end(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Http1(body) => body.is_end(),
            Self::Http2(body) => body.is_end(),
        }
    }

    /// The bytes that are still to come, if the sender has said how many.
    pub(crate) fn length(&self) -> Option<u64> {
        match self {
            Self::Empty => Some(0),
            Self::Http1(body) => body.length(),
            Self::Http2(body) => body.length(),
        }
    }
}

impl ResponseBody {
    /// The next part, `None` at the end.
    pub(crate) fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, BodyError>>> {
        match self {
            Self::Text(text) if text.is_empty() => Poll::Ready(None),
            Self::Text(text) => Poll::Ready(Some(Ok(Piece::Data(std::mem::take(text))))),
            Self::Message(message) => Poll::Ready(message.next().map(Ok)),
            Self::Stream(stream) => stream.poll_piece(cx),
            Self::Http1(body) => body.poll_piece(cx),
            Self::Http2(body) => body.poll_piece(cx),
            Self::Watched(watched) => watched.poll_piece(cx),
            Self::Tunnel(_) => Poll::Ready(None),
        }
    }

    /// Goes on with the request that this answers, while nobody has room for the answer.
    pub(crate) fn drive_upload(&mut self, cx: &mut Context<'_>) {
        match self {
            Self::Http1(body) => body.drive_upload(cx),
            Self::Http2(body) => body.drive_upload(cx),
            Self::Watched(watched) => watched.body.drive_upload(cx),
            Self::Text(_) | Self::Message(_) | Self::Stream(_) | Self::Tunnel(_) => {}
        }
    }

    /// What the upstream did not take of the request before its response ended.
    pub(crate) fn take_unread(&mut self) -> RequestBody {
        match self {
            Self::Http1(body) => body.take_unread(),
            Self::Http2(body) => body.take_unread(),
            Self::Watched(watched) => watched.body.take_unread(),
            Self::Text(_) | Self::Message(_) | Self::Stream(_) | Self::Tunnel(_) => RequestBody::Empty,
        }
    }

    /// Whether it comes from an upstream, which may still be reading the request.
    pub(crate) const fn is_upstreams(&self) -> bool {
        !matches!(self, Self::Text(_) | Self::Message(_) | Self::Stream(_))
    }

    /// Whether it has ended, as far as that is known without asking for more.
    pub(crate) fn is_end(&self) -> bool {
        match self {
            Self::Text(text) => text.is_empty(),
            Self::Message(message) => message.data.is_empty() && message.trailers.is_none(),
            Self::Stream(_) => false,
            Self::Http1(body) => body.is_end(),
            Self::Http2(body) => body.is_end(),
            Self::Watched(watched) => watched.body.is_end(),
            Self::Tunnel(_) => true,
        }
    }

    /// The bytes that are still to come, if the sender has said how many.
    pub(crate) fn length(&self) -> Option<u64> {
        match self {
            Self::Text(text) => Some(text.len() as u64),
            // With a length, HTTP/1 has no place for trailers.
            Self::Message(_) | Self::Stream(_) => None,
            Self::Http1(body) => body.length(),
            Self::Http2(body) => body.length(),
            Self::Watched(watched) => watched.body.length(),
            Self::Tunnel(_) => Some(0),
        }
    }
}

impl Watched {
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, BodyError>>> {
        let polled = self.body.poll_piece(cx);
        if let Poll::Ready(Some(Ok(Piece::Trailers(trailers)))) = &polled {
            self.watcher.trailers(trailers);
        }
        polled
    }
}

impl Message {
    fn next(&mut self) -> Option<Piece> {
        if self.data.is_empty() {
            return self.trailers.take().map(Piece::Trailers);
        }
        Some(Piece::Data(std::mem::take(&mut self.data)))
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
        Self { headers, http1: OnceCell::new(), http2: OnceCell::new() }
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
