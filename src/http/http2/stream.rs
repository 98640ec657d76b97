//! One stream of a client's connection: one request and its response.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{self, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::header::{CONTENT_LENGTH, DATE, HeaderMap, HeaderValue};
use http::{Method, Request, StatusCode, Version, request};
use tokio::time::timeout;

use super::body::{Halt, Incoming, Outgoing, Receiver, Upload};
use super::convert;
use super::watch::Traffic;
use crate::http::activity::Activity;
use crate::http::alarm::Alarm;
use crate::http::context::{Context, Interim};
use crate::http::forwarding::Peer;
use crate::http::message::{Piece, RequestBody, Response, ResponseBody, ResponseHeaders};
use crate::http::{MAX_DISCARDED, Passage, Service};
use crate::message::headers::Headers;

/// A reset within this time of a request's coming, and before its response, is a rapid one (CVE-2023-44487). Who gives
/// up later has waited for something.
const RAPID: Duration = Duration::from_secs(1);

/// How long a stream whose answer is sent waits for the rest of its request.
const LINGER: Duration = Duration::from_secs(1);

/// Headers that may be added to those of a response: `Date` and `Content-Length`.
const OWN_HEADERS: usize = 2;

/// How a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// As it should, or by the upstream's fault.
    Answered,
    /// By the client, before there was an answer, and soon.
    RapidReset,
    /// By the client otherwise, or by us because it was too slow.
    Broken,
}

/// The way to answer a stream's request.
#[derive(Debug)]
pub(crate) struct Responder {
    respond: RefCell<SendResponse<Bytes>>,
    /// Whether the limits have been asked.
    judged: Cell<bool>,
    gone: Cell<bool>,
}

impl Responder {
    const fn new(respond: SendResponse<Bytes>) -> Self {
        Self { respond: RefCell::new(respond), judged: Cell::new(false), gone: Cell::new(false) }
    }

    /// Sends an interim response (RFC 9110 section 15.2). It is lost if the stream is gone, and nobody misses it.
    pub(crate) fn interim(&self, status: StatusCode, headers: &Headers) {
        let mut response = http::Response::new(());
        *response.status_mut() = status;
        *response.headers_mut() = convert::header_map(headers, 0, |_| true);
        if let Err(error) = self.respond.borrow_mut().send_informational(response) {
            tracing::debug!("an interim response was not sent: {error}");
        }
    }

    /// The limits have been asked. If nobody waits for the answer any more, this is where it ends: what reached the
    /// upstream would only have to be taken back.
    pub(crate) async fn judged(&self) {
        self.judged.set(true);
        if self.gone.get() {
            std::future::pending::<()>().await;
        }
    }

    /// Whether the client has reset the stream, or is gone.
    fn poll_gone(&self, cx: &mut task::Context<'_>) -> bool {
        if !self.gone.get() {
            self.gone.set(self.respond.borrow_mut().poll_reset(cx).is_ready());
        }
        self.gone.get()
    }
}

/// A stream that a client has opened.
pub(super) type Opened = (Request<RecvStream>, SendResponse<Bytes>);

/// The connection of a stream.
pub(super) struct Connection<'a, S> {
    pub(super) service: &'a S,
    pub(super) peer: &'a Rc<Peer>,
    pub(super) traffic: &'a Traffic,
}

impl<S: Service> Connection<'_, S> {
    /// Answers a stream's request. `alarm` is one that streams before this had.
    pub(super) async fn serve(&self, (request, respond): Opened, alarm: &mut Alarm) -> Ended {
        let Self { service, peer, traffic } = *self;
        let (head, body) = request.into_parts();
        let front = service.front();
        let activity = Rc::new(Activity::new(traffic.now(), front.slow_readers.clone()));
        activity.exchange(!body.is_end_stream());
        let responder = Rc::new(Responder::new(respond));
        let context = Context::new(activity.clone(), peer.clone(), Interim::Http2(responder.clone()));
        let stream = Stream { service, context: &context, responder: &responder };
        let overdue = |limit| front.counters.limited(limit);
        let work = pin!(stream.serve(head, body));
        // Dropped before the end of its response, the stream is reset with CANCEL.
        activity.watch(&front.timeouts, alarm, || traffic.now(), work, overdue).await.unwrap_or(Ended::Broken)
    }
}

/// What a stream's request is answered with.
struct Stream<'a, S> {
    service: &'a S,
    context: &'a Context,
    responder: &'a Rc<Responder>,
}

impl<S: Service> Stream<'_, S> {
    async fn serve(&self, head: request::Parts, body: RecvStream) -> Ended {
        let activity = &self.context.activity;
        let began = activity.now();
        let is_head = head.method == Method::HEAD;
        let mut answering = pin!(self.answer(head, body));
        let answered = poll_fn(|cx| {
            // Who opens a stream is charged for it even if it is reset at once. So the limits are asked first, and only
            // then does it matter that nobody waits for the answer; for a store in memory both is in the first poll.
            let gone = self.responder.poll_gone(cx);
            match answering.as_mut().poll(cx) {
                Poll::Pending if gone && self.responder.judged.get() => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
                Poll::Ready(_) if gone => Poll::Ready(None),
                Poll::Ready(answer) => Poll::Ready(Some(answer)),
            }
        })
        .await;
        let Some((response, passage)) = answered else {
            let is_rapid = activity.now().saturating_duration_since(began) < RAPID;
            return if is_rapid { Ended::RapidReset } else { Ended::Broken };
        };
        let Response { status, headers, mut body } = response;
        if matches!(body, ResponseBody::Stream(_)) {
            activity.stream();
        } else {
            activity.answer();
        }
        let ended = self.respond(status, &headers, &mut body, is_head, passage.as_ref()).await;
        // The rest of an upload that nobody waits for is no request in flight.
        passage.iter().for_each(Passage::ended);
        if ended == Ended::Answered {
            let unread = match passage {
                Some(passage) if !body.is_upstreams() => passage.unread,
                _ => body.take_unread(),
            };
            if !unread.is_end() {
                let _ = timeout(LINGER, discard(unread)).await;
            }
        }
        ended
    }

    async fn answer(&self, head: request::Parts, body: RecvStream) -> (Response, Option<Passage>) {
        let Self { service, context, responder } = self;
        let front = service.front();
        let incoming = (!body.is_end_stream()).then(|| Incoming::new(body, &head.headers));
        match convert::request(head, &front.limits.head) {
            Ok(mut request) => {
                if let Some(incoming) = incoming {
                    let awaits_continue = request.headers.contains("expect").then(|| Rc::clone(responder));
                    let limit = front.limits.body_bytes;
                    let upload = Upload::new(incoming, context.activity.clone(), limit, awaits_continue);
                    request.body = RequestBody::Http2(Box::new(upload));
                }
                let (response, passage) = front.pass(*service, context, request).await;
                (response, Some(passage))
            }
            Err(error) => (front.rejected(context, Version::HTTP_2, error), None),
        }
    }

    async fn respond(
        &self,
        status: StatusCode,
        headers: &ResponseHeaders,
        body: &mut ResponseBody,
        is_head: bool,
        passage: Option<&Passage>,
    ) -> Ended {
        // RFC 9110 section 6.4.1: these have no content, whatever their headers say of it.
        let is_end = is_head || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) || body.is_end();
        let mut head = http::Response::new(());
        *head.status_mut() = status;
        *head.headers_mut() = self.headers(status, headers, body);
        let sent = self.responder.respond.borrow_mut().send_response(head, is_end);
        let stream = match sent {
            Ok(stream) => stream,
            Err(error) => {
                tracing::debug!("a response was not sent: {error}");
                return Ended::Broken;
            }
        };
        if is_end {
            return Ended::Answered;
        }
        let mut outgoing = Outgoing::new(stream);
        let client = Receiver { activity: &self.context.activity, passage };
        match poll_fn(|cx| outgoing.poll_send(body, Some(client), cx)).await {
            Ok(()) => Ended::Answered,
            Err(Halt::Gone) => Ended::Broken,
            Err(Halt::Body(error)) => {
                // The client has seen the beginning of a response and must not take it for the whole (RFC 9113 section
                // 8.1). The library forgets what it has not written when a stream is reset, so that gets a turn first.
                tracing::debug!("a response broke off: {error}");
                next_turn().await;
                outgoing.reset(Reason::INTERNAL_ERROR);
                Ended::Answered
            }
        }
    }

    fn headers(&self, status: StatusCode, headers: &ResponseHeaders, body: &ResponseBody) -> HeaderMap {
        let ResponseHeaders::Kept(kept) = headers else { return self.new_headers(status, headers, body) };
        let mut map = kept.http2.get_or_init(|| self.new_headers(status, headers, body)).clone();
        self.date(headers, &mut map);
        map
    }

    fn new_headers(&self, status: StatusCode, headers: &Headers, body: &ResponseBody) -> HeaderMap {
        // RFC 9110 section 8.6: a 204 has no `Content-Length`.
        let is_wanted = |name: &[u8]| status != StatusCode::NO_CONTENT || !name.eq_ignore_ascii_case(b"content-length");
        let mut map = convert::header_map(headers, OWN_HEADERS, is_wanted);
        self.date(headers, &mut map);
        if let ResponseBody::Text(text) = body
            && !text.is_empty()
        {
            map.insert(CONTENT_LENGTH, text.len().into());
        }
        map
    }

    /// Says the time, if the headers do not.
    fn date(&self, headers: &Headers, map: &mut HeaderMap) {
        if !headers.contains("date") {
            self.service.front().date(self.context.activity.now(), |date| {
                if let Ok(mut date) = HeaderValue::from_str(date) {
                    date.set_sensitive(true);
                    map.insert(DATE, date);
                }
            });
        }
    }
}

/// Throws away what still comes of a request that has been answered, as long as it is short: to reset a stream of which a
/// small body is just under way is allowed (RFC 9113 section 8.1), and to clients like curl an error all the same.
async fn discard(mut unread: RequestBody) {
    let mut left = MAX_DISCARDED;
    while !unread.is_end() && unread.length().is_none_or(|length| length <= left as u64) {
        match unread.piece().await {
            Some(Ok(Piece::Data(data))) if data.len() <= left => left -= data.len(),
            Some(Ok(Piece::Trailers(_))) => {}
            _ => return,
        }
    }
}

/// Waits until the socket has had a turn.
async fn next_turn() {
    let mut has_waited = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut has_waited, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
