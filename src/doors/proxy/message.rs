//! Requests and responses on their way through, whatever protocol they came by and whatever they leave by.
//!
//! Bodies are pulled: whoever sends a body on asks for the next piece when there is room for it, so a slow receiver
//! slows the sender down and nothing piles up in between.

use std::future::poll_fn;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Method, StatusCode, Version};

use super::{http1, http2};
use crate::engine::fields::Fields;
use crate::engine::reply::Reply;

/// A request, in the form that a server takes it.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) method: Method,
    /// The target as it was sent, in origin form (`/path?query`) or `*`.
    pub(super) target: String,
    /// By which the client sent it.
    pub(super) version: Version,
    /// The fields, `Host` among them unless an HTTP/1.0 client named none. HTTP/2's `:authority` is a `Host` here.
    pub(super) fields: Fields,
    pub(super) body: RequestBody,
}

/// A response, in the form that a client is sent it.
#[derive(Debug)]
pub(super) struct Response {
    pub(super) status: StatusCode,
    pub(super) fields: Fields,
    pub(super) body: ResponseBody,
}

/// A part of a body.
#[derive(Debug)]
pub(super) enum Piece {
    /// Some bytes, never none.
    Data(Bytes),
    /// The fields after the content (RFC 9110 section 6.5). Nothing comes after them.
    Trailers(Fields),
}

/// What a request carries.
#[derive(Debug, Default)]
pub(super) enum RequestBody {
    /// Nothing.
    #[default]
    Empty,
    /// What follows the fields on an HTTP/1 connection.
    Http1(http1::Upload),
    /// What follows the fields on a stream of HTTP/2.
    Http2(Box<http2::Upload>),
}

/// What a response carries.
#[derive(Debug)]
pub(super) enum ResponseBody {
    /// Text of our own.
    Text(Bytes),
    /// What an upstream sends by HTTP/1.
    Http1(http1::Download),
    /// What an upstream sends by HTTP/2.
    Http2(Box<http2::Download>),
    /// Another protocol, to which an upstream has switched: there is no HTTP on the connection any more.
    Tunnel(Box<http1::Tunnel>),
}

/// Why a body broke off.
#[derive(Debug, thiserror::Error)]
pub(super) enum BodyError {
    /// The sender closed or reset the connection or the stream before the end.
    #[error("it was cut off: {0}")]
    Cut(String),
    /// The sender breaks the rules of its protocol.
    #[error("it breaks the rules of HTTP: {0}")]
    Malformed(String),
    /// It is longer than the door allows.
    #[error("it is longer than {0} bytes")]
    TooLong(u64),
}

impl RequestBody {
    /// The next part, `None` at the end.
    pub(super) fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, BodyError>>> {
        match self {
            Self::Empty => Poll::Ready(None),
            Self::Http1(body) => body.poll_piece(cx),
            Self::Http2(body) => body.poll_piece(cx),
        }
    }

    /// As [`Self::poll_piece`], to wait for.
    pub(super) async fn piece(&mut self) -> Option<Result<Piece, BodyError>> {
        poll_fn(|cx| self.poll_piece(cx)).await
    }

    /// Whether it has ended, as far as that is known without asking for more.
    pub(super) fn is_end(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Http1(body) => body.is_end(),
            Self::Http2(body) => body.is_end(),
        }
    }

    /// The bytes that are still to come, if the sender has said how many.
    pub(super) fn length(&self) -> Option<u64> {
        match self {
            Self::Empty => Some(0),
            Self::Http1(body) => body.length(),
            Self::Http2(body) => body.length(),
        }
    }
}

impl ResponseBody {
    /// The next part, `None` at the end.
    pub(super) fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, BodyError>>> {
        match self {
            Self::Text(text) if text.is_empty() => Poll::Ready(None),
            Self::Text(text) => Poll::Ready(Some(Ok(Piece::Data(std::mem::take(text))))),
            Self::Http1(body) => body.poll_piece(cx),
            Self::Http2(body) => body.poll_piece(cx),
            Self::Tunnel(_) => Poll::Ready(None),
        }
    }

    /// Goes on with the request that this answers, while nobody has room for the answer.
    pub(super) fn drive_upload(&mut self, cx: &mut Context<'_>) {
        match self {
            Self::Http1(body) => body.drive_upload(cx),
            Self::Http2(body) => body.drive_upload(cx),
            Self::Text(_) | Self::Tunnel(_) => {}
        }
    }

    /// What the upstream did not take of the request before its response ended.
    pub(super) fn take_unread(&mut self) -> RequestBody {
        match self {
            Self::Http1(body) => body.take_unread(),
            Self::Http2(body) => body.take_unread(),
            Self::Text(_) | Self::Tunnel(_) => RequestBody::Empty,
        }
    }

    /// Whether it comes from an upstream, which may still be reading the request.
    pub(super) const fn is_upstreams(&self) -> bool {
        !matches!(self, Self::Text(_))
    }

    /// Whether it has ended, as far as that is known without asking for more.
    pub(super) fn is_end(&self) -> bool {
        match self {
            Self::Text(text) => text.is_empty(),
            Self::Http1(body) => body.is_end(),
            Self::Http2(body) => body.is_end(),
            Self::Tunnel(_) => true,
        }
    }

    /// The bytes that are still to come, if the sender has said how many.
    pub(super) fn length(&self) -> Option<u64> {
        match self {
            Self::Text(text) => Some(text.len() as u64),
            Self::Http1(body) => body.length(),
            Self::Http2(body) => body.length(),
            Self::Tunnel(_) => Some(0),
        }
    }
}

impl From<Reply> for Response {
    fn from(Reply { status, fields, body }: Reply) -> Self {
        Self { status, fields, body: ResponseBody::Text(body.into()) }
    }
}
