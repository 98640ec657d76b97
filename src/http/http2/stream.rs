//! One stream of a client's connection: a request and its response.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::header::{CONTENT_LENGTH, DATE, HeaderMap, HeaderValue};
use http::{Method, StatusCode, Version, request};
use tokio::time::timeout;

use super::body::{ReceivedBody, SendError, SentBody, Source};
use super::client_stream::ClientStream;
use super::convert;
use super::watch::Traffic;
use crate::http::activity::Activity;
use crate::http::alarm::Alarm;
use crate::http::forwarding::Peer;
use crate::http::http1::spare;
use crate::http::message::{
    MAX_DISCARDED, Piece, Request, RequestBody, Response, ResponseBody, ResponseHeaders, Upload,
};
use crate::http::service::{Context, Exchange, Service};
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

/// A stream that a client has opened.
pub(super) type NewStream = (http::Request<RecvStream>, SendResponse<Bytes>);

/// Memory for one stream after the other.
#[derive(Default)]
pub(super) struct Kept {
    alarm: Alarm,
    /// The memory of a target.
    target: Cell<String>,
}

/// The longest target whose memory is kept.
const LONGEST_KEPT: usize = 1024;

/// Answers a stream's request.
pub(super) async fn serve<S: Service>(
    service: &S,
    peer: &Rc<Peer>,
    traffic: &Traffic,
    (request, respond): NewStream,
    kept: &mut Kept,
) -> StreamEnd {
    let (head, body) = request.into_parts();
    let server = service.server();
    let activity = Rc::new(Activity::new(traffic.now(), server.slow_readers.clone()));
    let upload = (!body.is_end_stream()).then(|| ReceivedBody::new(body, &head.headers));
    activity.exchange(upload.is_some());
    let client = Rc::new(ClientStream::new(respond, upload, activity.clone(), server.limits.body_bytes));
    let context = Context::new(activity.clone(), peer.clone(), Rc::downgrade(&client) as _);
    let Kept { alarm, target } = kept;
    let stream = Stream { service, context: &context, client: &client, target };
    let overdue = |limit| server.limit_reached(limit);
    let work = pin!(stream.serve(head));
    // A stream that is dropped before the end of its response is reset with CANCEL.
    activity.watch(&server.timeouts, alarm, || traffic.now(), work, overdue).await.unwrap_or(StreamEnd::Broken)
}

/// A stream that is being answered.
struct Stream<'a, S> {
    service: &'a S,
    context: &'a Context,
    /// Held here as well as by the body of the request: if the service drops that unread, the stream must not be reset while
    /// the response is sent.
    client: &'a Rc<ClientStream>,
    target: &'a Cell<String>,
}

impl<S: Service> Stream<'_, S> {
    async fn serve(&self, head: request::Parts) -> StreamEnd {
        let activity = &self.context.activity;
        let began = activity.now();
        let is_head = head.method == Method::HEAD;
        let mut answering = pin!(self.answer(head));
        let answered = poll_fn(|cx| {
            // A stream is charged even if it is reset at once. So the service runs until it has charged the request,
            // and only then does a reset matter. With a store in memory both happen in the first poll.
            let gone = self.client.poll_gone(cx);
            match answering.as_mut().poll(cx) {
                Poll::Pending if gone && self.client.is_committed() => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
                Poll::Ready(_) if gone => Poll::Ready(None),
                Poll::Ready(answer) => Poll::Ready(Some(answer)),
            }
        })
        .await;
        let Some((response, exchange)) = answered else {
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
        if ended == StreamEnd::Answered && !matches!(body, ResponseBody::Stream(_)) && !self.client.is_end() {
            drop(body);
            let _ = timeout(LINGER, discard(RequestBody::Upload(self.client.clone()))).await;
        }
        ended
    }

    /// Returns the response, and the exchange unless the request's head was rejected.
    async fn answer(&self, head: request::Parts) -> (Response, Option<S::Exchange>) {
        let Self { service, context, client, .. } = self;
        let server = service.server();
        let mut request = match convert::request(head, &server.limits.head, self.target.take()) {
            Ok(request) => request,
            Err(error) => {
                client.drop_upload();
                let response = server.reject(error);
                service.rejected(context, Version::HTTP_2, error, &response);
                return (response, None);
            }
        };
        if client.has_upload() {
            if request.headers.contains("expect") {
                client.await_continue();
            }
            request.body = RequestBody::Upload(Rc::clone(client) as _);
        }
        let mut exchange = service.begin(context, &request);
        let response = service.answer(context, &mut request, &mut exchange).await;
        exchange.answered(context, &response);
        let Request { headers, mut target, .. } = request;
        spare::keep(headers);
        if target.capacity() <= LONGEST_KEPT {
            target.clear();
            self.target.set(target);
        }
        (response, Some(exchange))
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
        let stream = match self.client.respond(head, is_end) {
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
        // Answers to gRPC calls have no `Date`, as those of gRPC's own servers: no client reads it, and it is the longest line
        // of a short answer.
        let lacks_date = !matches!(body, ResponseBody::Message(_)) && !headers.contains("date");
        match headers {
            ResponseHeaders::Kept(kept) => kept.http2(
                || Self::new_headers(status, headers, body),
                |form| {
                    let now = self.context.activity.now();
                    if lacks_date && form.dated_until.is_none_or(|until| until <= now) {
                        form.dated_until = Some(self.date(&mut form.map));
                    }
                },
            ),
            ResponseHeaders::Own(headers) => {
                let mut map = Self::new_headers(status, headers, body);
                if lacks_date {
                    self.date(&mut map);
                }
                map
            }
        }
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

    /// Sets `Date`. Returns until when it holds.
    fn date(&self, map: &mut HeaderMap) -> Instant {
        self.service.server().date(self.context.activity.now(), |date| {
            if let Ok(mut date) = HeaderValue::from_str(date) {
                date.set_sensitive(true);
                map.insert(DATE, date);
            }
        })
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
