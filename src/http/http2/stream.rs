//! One stream of a client's connection: a request and its response.

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

use super::body::{ClientBody, ReceivedBody, SendError, SentBody, Source};
use super::convert;
use super::watch::Traffic;
use crate::http::activity::Activity;
use crate::http::alarm::Alarm;
use crate::http::forwarding::Peer;
use crate::http::message::{MAX_DISCARDED, Piece, RequestBody, Response, ResponseBody, ResponseHeaders};
use crate::http::service::{Context, Downstream};
use crate::http::service::{Exchange, Service};
use crate::message::connection::Cut;
use crate::message::headers::Headers;

/// A reset within this time of a request's arrival and before its response is a rapid one (CVE-2023-44487). Later ones
/// come from clients that have waited.
const RAPID: Duration = Duration::from_secs(1);

/// The time that an answered stream waits for the rest of its request.
const LINGER: Duration = Duration::from_secs(1);

/// Headers that may be added to a response: `Date` and `Content-Length`.
const OWN_HEADERS: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamEnd {
    /// Regularly, or by the upstream's fault.
    Answered,
    /// The client cancelled it soon, before there was a response.
    RapidReset,
    /// The client cancelled it later, or was too slow.
    Broken,
}

/// A stream's way back to its client.
#[derive(Debug)]
pub(crate) struct Responder {
    respond: RefCell<SendResponse<Bytes>>,
    /// True once the service has committed itself to an answer.
    is_committed: Cell<bool>,
    gone: Cell<bool>,
}

impl Responder {
    const fn new(respond: SendResponse<Bytes>) -> Self {
        Self { respond: RefCell::new(respond), is_committed: Cell::new(false), gone: Cell::new(false) }
    }

    /// Returns whether the client has reset the stream or is gone.
    fn poll_gone(&self, cx: &mut task::Context<'_>) -> bool {
        if !self.gone.get() {
            self.gone.set(self.respond.borrow_mut().poll_reset(cx).is_ready());
        }
        self.gone.get()
    }
}

impl Downstream for Responder {
    /// If the stream is gone, the interim response is dropped.
    fn send_interim(&self, status: StatusCode, headers: &Headers) {
        let mut response = http::Response::new(());
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
}

/// A stream that a client has opened.
pub(super) type NewStream = (Request<RecvStream>, SendResponse<Bytes>);

/// Answers a stream's request. `alarm` is reused from earlier streams.
pub(super) async fn serve<S: Service>(
    service: &S,
    peer: &Rc<Peer>,
    traffic: &Traffic,
    (request, respond): NewStream,
    alarm: &mut Alarm,
) -> StreamEnd {
    let (head, body) = request.into_parts();
    let server = service.server();
    let activity = Rc::new(Activity::new(traffic.now(), server.slow_readers.clone()));
    activity.exchange(!body.is_end_stream());
    let responder = Rc::new(Responder::new(respond));
    let context = Context::new(activity.clone(), peer.clone(), Rc::downgrade(&responder) as _);
    let stream = Stream { service, context: &context, responder: &responder };
    let overdue = |limit| server.limit_reached(limit);
    let work = pin!(stream.serve(head, body));
    // A stream that is dropped before the end of its response is reset with CANCEL.
    activity.watch(&server.timeouts, alarm, || traffic.now(), work, overdue).await.unwrap_or(StreamEnd::Broken)
}

/// A response and the rest of its request.
struct StreamAnswer<E> {
    response: Response,
    /// `None` if the request's head was rejected.
    exchange: Option<E>,
    upload: RequestBody,
}

/// A stream that is being answered.
struct Stream<'a, S> {
    service: &'a S,
    context: &'a Context,
    responder: &'a Rc<Responder>,
}

impl<S: Service> Stream<'_, S> {
    async fn serve(&self, head: request::Parts, body: RecvStream) -> StreamEnd {
        let activity = &self.context.activity;
        let began = activity.now();
        let is_head = head.method == Method::HEAD;
        let mut answering = pin!(self.answer(head, body));
        let answered = poll_fn(|cx| {
            // A stream is charged even if it is reset at once. So the service runs until it has charged the request,
            // and only then does a reset matter. With a store in memory both happen in the first poll.
            let gone = self.responder.poll_gone(cx);
            match answering.as_mut().poll(cx) {
                Poll::Pending if gone && self.responder.is_committed.get() => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
                Poll::Ready(_) if gone => Poll::Ready(None),
                Poll::Ready(answer) => Poll::Ready(Some(answer)),
            }
        })
        .await;
        let Some(StreamAnswer { response, exchange, upload }) = answered else {
            let is_rapid = activity.now().saturating_duration_since(began) < RAPID;
            return if is_rapid { StreamEnd::RapidReset } else { StreamEnd::Broken };
        };
        activity.answer(response.may_pause());
        let Response { status, headers, mut body } = response;
        let ended = self.respond(status, &headers, &mut body, is_head, exchange.as_ref()).await;
        if ended == StreamEnd::Answered {
            exchange.iter().for_each(S::Exchange::ended);
        } else {
            activity.cut_by(Cut::Client);
        }
        // A request whose response was sent is not in flight, even if its upload continues.
        drop(exchange);
        if ended == StreamEnd::Answered && !matches!(body, ResponseBody::Stream(_)) && !upload.is_end() {
            drop(body);
            let _ = timeout(LINGER, discard(upload)).await;
        }
        ended
    }

    async fn answer(&self, head: request::Parts, body: RecvStream) -> StreamAnswer<S::Exchange> {
        let Self { service, context, responder } = self;
        let server = service.server();
        let incoming = (!body.is_end_stream()).then(|| ReceivedBody::new(body, &head.headers));
        let mut request = match convert::request(head, &server.limits.head) {
            Ok(request) => request,
            Err(error) => {
                let response = server.reject(error);
                service.rejected(context, Version::HTTP_2, error, &response);
                return StreamAnswer { response, exchange: None, upload: RequestBody::Empty };
            }
        };
        // Held here as well: if the service drops an unread body, the stream must not be reset while the response is
        // sent.
        let mut upload = RequestBody::Empty;
        if let Some(incoming) = incoming {
            let awaits_continue = request.headers.contains("expect").then(|| Rc::clone(responder));
            let body = Rc::new(ClientBody {
                incoming: RefCell::new(incoming),
                activity: context.activity.clone(),
                allowed: Cell::new(server.limits.body_bytes),
                limit: server.limits.body_bytes,
                awaits_continue: RefCell::new(awaits_continue),
            });
            request.body = RequestBody::Upload(body.clone());
            upload = RequestBody::Upload(body);
        }
        let mut exchange = service.begin(context, &request);
        let response = service.answer(context, &mut request, &mut exchange).await;
        exchange.answered(context, &response);
        StreamAnswer { response, exchange: Some(exchange), upload }
    }

    async fn respond(
        &self,
        status: StatusCode,
        headers: &ResponseHeaders,
        body: &mut ResponseBody,
        is_head: bool,
        exchange: Option<&S::Exchange>,
    ) -> StreamEnd {
        // These have no content, whatever their headers say (RFC 9110 section 6.4.1).
        let is_end = is_head || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) || body.is_end();
        let mut head = http::Response::new(());
        *head.status_mut() = status;
        *head.headers_mut() = self.headers(status, headers, body);
        let sent = self.responder.respond.borrow_mut().send_response(head, is_end);
        let stream = match sent {
            Ok(stream) => stream,
            Err(error) => {
                tracing::debug!("a response was not sent: {error}");
                return StreamEnd::Broken;
            }
        };
        if is_end {
            return StreamEnd::Answered;
        }
        let mut outgoing = SentBody::new(stream);
        let exchange = exchange.map(|exchange| exchange as &dyn Exchange);
        let activity = &self.context.activity;
        if let ResponseBody::Message(message) = body {
            match outgoing.send_message(message) {
                Ok(Some(length)) => {
                    exchange.inspect(|exchange| exchange.sent(length));
                    return StreamEnd::Answered;
                }
                Ok(None) => {}
                Err(_) => return StreamEnd::Broken,
            }
        }
        match poll_fn(|cx| outgoing.poll_send(Source::Response(body, activity, exchange), cx)).await {
            Ok(()) => StreamEnd::Answered,
            Err(SendError::Gone) => StreamEnd::Broken,
            Err(SendError::Body(error)) => {
                // The client must not take the part that it received for the whole (RFC 9113 section 8.1). On a reset
                // the library drops what it has not written, so the socket gets a turn first.
                tracing::debug!("a response broke off: {error}");
                // Unless the upstream is to blame, the client's own body is.
                activity.cut_by(Cut::Client);
                next_turn().await;
                outgoing.reset(Reason::INTERNAL_ERROR);
                StreamEnd::Answered
            }
        }
    }

    fn headers(&self, status: StatusCode, headers: &ResponseHeaders, body: &ResponseBody) -> HeaderMap {
        let mut map = match headers {
            ResponseHeaders::Kept(kept) => kept.http2.get_or_init(|| Self::new_headers(status, headers, body)).clone(),
            ResponseHeaders::Own(headers) => Self::new_headers(status, headers, body),
        };
        self.date(headers, body, &mut map);
        map
    }

    fn new_headers(status: StatusCode, headers: &Headers, body: &ResponseBody) -> HeaderMap {
        // A 204 must not have `Content-Length` (RFC 9110 section 8.6).
        let is_wanted = |name: &[u8]| status != StatusCode::NO_CONTENT || !name.eq_ignore_ascii_case(b"content-length");
        let mut map = convert::header_map(headers, OWN_HEADERS, is_wanted);
        if let ResponseBody::Text(text) = body
            && !text.is_empty()
        {
            map.insert(CONTENT_LENGTH, text.len().into());
        }
        map
    }

    /// Adds `Date` if it is missing. Answers to gRPC calls have none, as those of gRPC's own servers: no client reads it, and it
    /// is the longest line of a short answer.
    fn date(&self, headers: &Headers, body: &ResponseBody, map: &mut HeaderMap) {
        if !matches!(body, ResponseBody::Message(_)) && !headers.contains("date") {
            self.service.server().date(self.context.activity.now(), |date| {
                if let Ok(mut date) = HeaderValue::from_str(date) {
                    date.set_sensitive(true);
                    map.insert(DATE, date);
                }
            });
        }
    }
}

/// Discards the rest of an answered request's body if it is short. Resetting a stream whose small body is in flight is
/// allowed (RFC 9113 section 8.1), but clients like curl report an error.
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

/// Waits until the socket has been polled.
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
