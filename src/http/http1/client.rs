//! A connection to an upstream, and one request and its response on it.
//!
//! A connection is driven by whoever uses it: the task of the client's connection sends the request, waits, and passes
//! the body on. A task of its own for each upstream connection would cost two wake-ups a request more, and would outlive
//! a client that went away.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Instant;

use bytes::{Buf, BytesMut};
use http::{Method, StatusCode, Version};

use super::super::activity::Activity;
use super::super::context::Context as Surroundings;
use super::super::failure::{HeadError, UpstreamError};
use super::super::forwarding;
use super::super::lease::{Lease, SendFailed};
use super::super::limits::HeadLimits;
use super::super::message::{BodyError, Download, Piece, Request, RequestBody, Response, ResponseBody};
use super::super::transport::Stream;
use super::super::tunnel::Tunnel;
use super::decode::{Decoded, Decoder};
use super::encode::{self, Encoder, Outbox, WrongLength};
use super::head::{self, ResponseHead};
use super::poll_fill;
use crate::message::headers::Headers;

/// How large the head of a response may be. Servers set many cookies, and these servers are the operator's own.
const LIMITS: HeadLimits = HeadLimits { bytes: 64 * 1024, target: 0, lines: head::MOST_LINES };

/// Interim responses before the real one. A server that sends more of them is broken.
const MOST_INTERIM: usize = 16;

/// A lease of an endpoint that keeps idle connections.
pub(crate) trait Keep: Lease + Sized {
    /// Keeps a clean connection for another request.
    fn keep(self, connection: Box<Connection<Self>>, now: Instant);
}

/// A connection to an upstream. It is boxed because it moves between the pool, the request and the response's body.
#[derive(Debug)]
pub(crate) struct Connection<L> {
    stream: Stream,
    input: BytesMut,
    outbox: Outbox,
    /// The request's body, while it has not ended.
    upload: Option<RequestBody>,
    encoder: Encoder,
    decoder: Decoder,
    /// Whether another request may follow, as far as the heads say.
    is_persistent: bool,
    /// Whether a part of the request's body was taken, so that the request cannot be sent again.
    has_taken: bool,
    /// Whether something has come since the request was begun.
    has_received: bool,
    /// Whose response's body is being read.
    reading: Option<(L, Rc<Activity>)>,
}

/// Why a request's body did not arrive.
enum UploadError {
    /// The client's fault.
    Client(BodyError),
    /// The upstream takes no more.
    Upstream(io::Error),
}

impl From<WrongLength> for UploadError {
    fn from(error: WrongLength) -> Self {
        Self::Client(BodyError::Malformed(error.to_string()))
    }
}

impl<L: Keep> Connection<L> {
    /// Speaks HTTP/1.1 on a new stream.
    pub(crate) fn new(stream: Stream) -> Box<Self> {
        Box::new(Self {
            stream,
            input: BytesMut::new(),
            outbox: Outbox::default(),
            upload: None,
            encoder: Encoder::Empty,
            decoder: Decoder::Ended,
            is_persistent: true,
            has_taken: false,
            has_received: false,
            reading: None,
        })
    }

    /// Whether nothing has come while it was idle: neither the end nor a response that nobody asked for.
    pub(crate) fn is_quiet(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        // A socket that has nothing to say is known from what the system has told, without asking it.
        self.stream.is_silent(&mut cx) || poll_fill(&mut self.stream, &mut self.input, 0, &mut cx).is_pending()
    }

    /// Sends a request and waits for the response's headers.
    pub(crate) async fn send(
        mut self: Box<Self>,
        mut request: Request,
        context: &Surroundings,
        lease: L,
    ) -> Result<Response, Box<SendFailed<L>>> {
        let activity = &context.activity;
        self.begin(&mut request);
        let mut interim = 0;
        let received = poll_fn(|cx| {
            // An upstream that answers early may stop reading, so a failed write is no reason not to look for an answer.
            let broken = match self.poll_upload(cx) {
                Poll::Ready(Err(UploadError::Client(error))) => {
                    return Poll::Ready(Err(UpstreamError::Upload(error)));
                }
                Poll::Ready(Err(UploadError::Upstream(error))) => Some(error),
                Poll::Ready(Ok(())) | Poll::Pending => None,
            };
            loop {
                match self.poll_head(&request.method, cx) {
                    Poll::Ready(Ok(head)) if head.is_interim() => {
                        interim += 1;
                        if interim > MOST_INTERIM {
                            return Poll::Ready(Err(MALFORMED));
                        }
                        // A `100 Continue` the client has from us, for which RFC 9110 section 15.2 makes an exception.
                        if head.status != StatusCode::CONTINUE {
                            context.send_interim(head.status, head.headers);
                        }
                    }
                    Poll::Ready(head) => return Poll::Ready(head),
                    Poll::Pending => {
                        return if let Some(error) = broken {
                            Poll::Ready(Err(UpstreamError::Closed(error)))
                        } else if !activity.is_late() {
                            Poll::Pending
                        } else if activity.is_uploading() {
                            Poll::Ready(Err(UpstreamError::UploadStalled))
                        } else {
                            Poll::Ready(Err(UpstreamError::ResponseTimeout))
                        };
                    }
                }
            }
        })
        .await;
        match received {
            Ok(head) if head.status == StatusCode::SWITCHING_PROTOCOLS => {
                if self.upload.is_some() || !request.headers.contains("upgrade") {
                    return Err(self.failed(UpstreamError::SwitchedProtocols, request, lease));
                }
                let body = ResponseBody::Tunnel(Box::new(Tunnel::new(self.stream, self.input, lease)));
                Ok(Response { status: head.status, headers: head.headers.into(), body })
            }
            Ok(head) => Ok(self.respond(head, lease, activity)),
            Err(error) => Err(self.failed(error, request, lease)),
        }
    }

    /// Writes the request's head into the outbox.
    fn begin(&mut self, request: &mut Request) {
        let body = std::mem::take(&mut request.body);
        self.encoder = match body.length() {
            Some(0) if !request.headers.contains("content-length") => Encoder::Empty,
            Some(length) => Encoder::Length(length),
            None => Encoder::Chunked,
        };
        self.upload = (!body.is_end()).then_some(body);
        (self.has_taken, self.has_received) = (false, false);
        self.outbox.begin();
        encode::request_head(self.outbox.text(), &request.method, &request.target, &request.headers, self.encoder);
    }

    fn failed(self: Box<Self>, error: UpstreamError, mut request: Request, lease: L) -> Box<SendFailed<L>> {
        let was_sent = self.outbox.total() > 0;
        let is_whole = !self.has_taken && !self.has_received;
        request.body = self.upload.unwrap_or_default();
        Box::new(SendFailed { error, lease, request: is_whole.then_some(request), was_sent })
    }

    /// Sends what there is of the request. Ready when all of it was, or when it never will be.
    fn poll_upload(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), UploadError>> {
        while let Some(upload) = &mut self.upload {
            if !self.outbox.has_room() {
                ready!(self.poll_flush(cx))?;
                continue;
            }
            let trailers = match upload.poll_piece(cx) {
                Poll::Ready(Some(Ok(Piece::Data(data)))) => {
                    self.has_taken = true;
                    self.encoder.data(data, &mut self.outbox).map_err(UploadError::from)?;
                    if !upload.is_end() {
                        continue;
                    }
                    Headers::new()
                }
                Poll::Ready(Some(Ok(Piece::Trailers(trailers)))) => trailers,
                Poll::Ready(None) => Headers::new(),
                Poll::Ready(Some(Err(error))) => {
                    // Without its body this is another request, which must not be sent in place of the first.
                    self.has_taken = true;
                    self.upload = None;
                    self.is_persistent = false;
                    return Poll::Ready(Err(UploadError::Client(error)));
                }
                Poll::Pending => {
                    let _ = self.poll_flush(cx)?;
                    return Poll::Pending;
                }
            };
            self.upload = None;
            self.encoder.end(&forwarding::trailers(trailers), &mut self.outbox).map_err(UploadError::from)?;
        }
        self.poll_flush(cx)
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), UploadError>> {
        if self.outbox.is_empty() {
            return Poll::Ready(Ok(()));
        }
        self.outbox.poll_flush(&mut self.stream, cx).map_err(|error| {
            self.upload = None;
            self.is_persistent = false;
            self.outbox.discard();
            UploadError::Upstream(error)
        })
    }

    /// Reads the head of a response.
    fn poll_head(&mut self, method: &Method, cx: &mut Context<'_>) -> Poll<Result<ResponseHead, UpstreamError>> {
        let mut is_worth_a_look = !self.input.is_empty();
        loop {
            if is_worth_a_look {
                match head::response(&self.input, method, &LIMITS) {
                    Ok(Some((head, length))) => {
                        self.input.advance(length);
                        return Poll::Ready(Ok(head));
                    }
                    Ok(None) => {}
                    Err(error) => return Poll::Ready(Err(UpstreamError::Head(error))),
                }
            }
            let before = self.input.len();
            match ready!(poll_fill(&mut self.stream, &mut self.input, 0, cx)) {
                Ok(0) => return Poll::Ready(Err(UpstreamError::Closed(io::ErrorKind::UnexpectedEof.into()))),
                Ok(_) => self.has_received = true,
                Err(error) => return Poll::Ready(Err(UpstreamError::Closed(error))),
            }
            // As for a client's: a long line that comes in small pieces is looked at once. The first piece is looked at
            // whatever it is, to tell early what is no HTTP at all.
            is_worth_a_look = before == 0
                || memchr::memchr(b'\n', &self.input[before..]).is_some()
                || self.input.len() >= LIMITS.bytes;
        }
    }

    fn respond(mut self: Box<Self>, head: ResponseHead, lease: L, activity: &Rc<Activity>) -> Response {
        let ResponseHead { status, version, headers, framing, options } = head;
        self.decoder = Decoder::new(framing);
        self.is_persistent &= !options.close && (version == Version::HTTP_11 || options.keep_alive);
        self.reading = Some((lease, activity.clone()));
        Response { status, headers: headers.into(), body: ResponseBody::download(self) }
    }

    /// Whether another request can follow: both messages have ended, and nothing came after them.
    fn is_reusable(&self) -> bool {
        self.is_persistent
            && self.decoder.is_end()
            && self.upload.is_none()
            && self.outbox.is_empty()
            && self.input.is_empty()
    }
}

const MALFORMED: UpstreamError = UpstreamError::Head(HeadError::Malformed("there are too many interim responses"));

impl<L: Keep> Connection<L> {
    /// Ends the response without another one after it.
    fn end(&mut self) {
        self.decoder = Decoder::Ended;
        self.is_persistent = false;
        self.upload = None;
    }
}

impl<L: Keep> Download for Connection<L> {
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, BodyError>>> {
        // The request may still be under way. If its client cut it off, there is nobody to send the response to.
        if let Poll::Ready(Err(UploadError::Client(error))) = self.poll_upload(cx) {
            self.end();
            return Poll::Ready(Some(Err(error)));
        }
        let error = loop {
            match self.decoder.decode(&mut self.input) {
                Ok(Decoded::Data(data)) => {
                    if let Some((_, activity)) = &self.reading {
                        activity.moved();
                    }
                    return Poll::Ready(Some(Ok(Piece::Data(data))));
                }
                Ok(Decoded::Trailers(trailers)) => return Poll::Ready(Some(Ok(Piece::Trailers(trailers)))),
                Ok(Decoded::End) => return Poll::Ready(None),
                Ok(Decoded::More) => {}
                Err(error) => break BodyError::Malformed(error.to_string()),
            }
            let expected = self.decoder.expected();
            match ready!(poll_fill(&mut self.stream, &mut self.input, expected, cx)) {
                Ok(0) if self.decoder.may_close() => {
                    self.end();
                    return Poll::Ready(None);
                }
                Ok(0) => break BodyError::Cut("the connection was closed".into()),
                Ok(_) => {}
                Err(error) => break BodyError::Cut(error.to_string()),
            }
        };
        self.end();
        if let Some((lease, activity)) = &self.reading {
            lease.cut_off(&error, activity.now());
        }
        Poll::Ready(Some(Err(error)))
    }

    fn drive_upload(&mut self, cx: &mut Context<'_>) {
        let _ = self.poll_upload(cx);
    }

    fn is_end(&self) -> bool {
        self.decoder.is_end()
    }

    fn length(&self) -> Option<u64> {
        self.decoder.length()
    }

    fn is_done(&self) -> bool {
        self.decoder.is_end()
    }

    fn release(mut self: Box<Self>) {
        if let Some((lease, activity)) = self.reading.take()
            && self.is_reusable()
        {
            lease.keep(self, activity.now());
        }
    }
}
