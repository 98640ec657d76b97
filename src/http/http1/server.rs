//! A client's HTTP/1 connection.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::{BufMut, BytesMut};
use http::{Method, Version};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::yield_now;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::client_io::{ClientIo, ClientStream};
use super::decode::Framing;
use super::encode;
use super::head::{self, RequestHead};
use super::spare;
use crate::http::activity::{Activity, Phase};
use crate::http::admission::AddressPermit;
use crate::http::alarm::Alarm;
use crate::http::failure::HeadError;
use crate::http::forwarding::Peer;
use crate::http::message::{
    MAX_DISCARDED, Piece, Request, RequestBody, Response, ResponseBody, ResponseHeaders, Upload,
};
use crate::http::server::Server;
use crate::http::service::{Context as RequestContext, Exchange, Service};
use crate::http::transport::{Stream, input};
use crate::message::connection::HttpLimit;

/// The time to read and discard an unwanted body, so that the client reads the response: closing while bytes are in
/// flight would make the client's system drop it (RFC 9112 section 9.6).
const LINGER: Duration = Duration::from_secs(5);

/// Serves a client's connection to its end. When `drain` is cancelled, the current request is answered, and one more
/// that was on its way.
pub(crate) async fn serve<S: Service>(
    service: Rc<S>,
    stream: Stream,
    peer: Rc<Peer>,
    _: AddressPermit, // Until the end.
    drain: CancellationToken,
) {
    let server = service.server();
    let activity = Rc::new(Activity::new(Instant::now(), server.slow_readers.clone()));
    let io = ClientIo::new(stream, activity.clone());
    let context = RequestContext::new(activity.clone(), peer, Rc::downgrade(&io) as _);
    let overdue = |limit| server.limit_reached(limit);
    let mut connection = Connection { service: &*service, server, io: &io, context, served: 0 };
    // What is handed over to a future has two places in the task, and so has a future that is not pinned here.
    let (mut alarm, work) = (Alarm::default(), pin!(connection.serve(&drain)));
    if activity.watch(&server.timeouts, &mut alarm, Instant::now, work, overdue).await.is_none() {
        tracing::debug!("a client's connection was closed: nothing moved in time");
    }
}

/// The memory for targets that an idle connection keeps.
const LONGEST_KEPT: usize = 512;

/// Requests of a client that does not wait for answers (pipelining) that are answered before the worker's other connections get a turn.
const IN_A_ROW: u32 = 4;

struct Connection<'a, S> {
    service: &'a S,
    server: &'a Server,
    io: &'a Rc<ClientIo>,
    context: RequestContext,
    /// Number of requests so far.
    served: u32,
}

/// The properties of a request that determine how it is answered.
struct RequestSummary {
    is_head: bool,
    version: Version,
    /// True if the client wants to send another request.
    stays: bool,
}

impl<S: Service> Connection<'_, S> {
    async fn serve(&mut self, drain: &CancellationToken) {
        let mut drained = pin!(drain.cancelled());
        let mut is_told = false;
        let mut request = Request::default();
        let mut in_a_row = 0;
        loop {
            let mut is_first = true;
            let head = poll_fn(|cx| {
                let polled = self.poll_head(&mut request, cx);
                in_a_row = if polled.is_pending() { 0 } else { in_a_row + 1 };
                // Polling the token takes a lock. Once polled it wakes the task, so it is only polled again after a
                // wake-up without a byte.
                let is_asked = std::mem::replace(&mut is_first, false) && is_told;
                if polled.is_pending() && !is_asked && !self.context.activity.is_draining() {
                    is_told = true;
                    // An idle connection is closed a little later, because a request may be on its way to us.
                    if drained.as_mut().poll(cx).is_ready() {
                        self.context.activity.drain();
                    }
                }
                polled
            });
            let head = match head.await {
                Ok(Some(head)) => head,
                Ok(None) => return,
                Err(error) => return Box::pin(self.reject(error)).await,
            };
            self.served = self.served.saturating_add(1);
            // On the heap, so that an idle connection has no room for its 4 KiB. `Box::pin` would copy all of them.
            let answered = Box::write(Box::new_uninit(), self.serve_request(head, &mut request, drain));
            let stays = Box::into_pin(answered).await;
            // An idle connection keeps little memory.
            spare::keep(std::mem::take(&mut request.headers));
            if request.target.capacity() > LONGEST_KEPT {
                request.target = String::new();
            }
            input::release(&mut self.io.input.borrow_mut());
            match stays {
                Ok(true) => self.context.activity.enter(Phase::Idle),
                Ok(false) => return Box::pin(self.close()).await,
                Err(error) => return tracing::debug!("a client's connection ended: {error}"),
            }
            if in_a_row >= IN_A_ROW {
                in_a_row = 0;
                yield_now().await;
            }
        }
    }

    /// Reads a request's head; `None` if the client closes instead.
    fn poll_head(&self, request: &mut Request, cx: &mut Context<'_>) -> Poll<Result<Option<RequestHead>, HeadError>> {
        let (limits, activity) = (&self.server.limits.head, &self.context.activity);
        let mut input = self.io.input.borrow_mut();
        if !input.is_empty() {
            activity.received();
        }
        let fill = |input: &mut BytesMut| {
            let filled = self.io.stream.borrow_mut().poll_fill(input, 0, cx);
            if matches!(filled, Poll::Ready(Ok(1..))) {
                activity.received();
            }
            filled
        };
        let mut parse = |bytes: &[u8]| {
            if request.headers.memory() == 0 {
                request.headers = spare::take();
            }
            head::request(bytes, limits, request)
        };
        match ready!(head::poll(&mut input, limits, fill, &mut parse)) {
            Ok(head) => Poll::Ready(head.map(Some)),
            Err(_) => Poll::Ready(Ok(None)),
        }
    }

    /// Answers a request that cannot be read. The start of the next one is not known, so the connection ends.
    async fn reject(&self, error: HeadError) {
        let response = self.server.reject(error);
        self.service.rejected(&self.context, Version::HTTP_11, error, &response);
        self.context.activity.exchange(false);
        let summary = RequestSummary { is_head: false, version: Version::HTTP_11, stays: false };
        if self.respond(&summary, response, None).await.is_ok() {
            self.close().await;
        }
    }

    /// Answers a request. Returns whether another may follow.
    async fn serve_request(
        &self,
        head: RequestHead,
        request: &mut Request,
        drain: &CancellationToken,
    ) -> io::Result<bool> {
        let RequestHead { framing, is_persistent } = head;
        let (is_head, version) = (request.method == Method::HEAD, request.version);
        let mut summary = RequestSummary { is_head, version, stays: is_persistent };
        let has_body = framing != Framing::Empty;
        let expects = version == Version::HTTP_11 && has_body && request.headers.contains("expect");
        self.io.begin(framing, self.server.limits.body_bytes, version == Version::HTTP_11, expects);
        self.context.activity.exchange(has_body);
        request.body = if has_body { RequestBody::Upload(self.io.clone()) } else { RequestBody::Empty };
        self.context.attempts.take();
        let mut exchange = self.service.begin(&self.context, request);
        let Some(response) = self.while_here(pin!(self.service.answer(&self.context, request, &mut exchange))).await
        else {
            return Err(io::ErrorKind::ConnectionAborted.into());
        };
        exchange.answered(&self.context, &response);
        let is_last = drain.is_cancelled() || self.served >= self.server.limits.requests;
        if is_last && !drain.is_cancelled() {
            self.server.limit_reached(HttpLimit::Requests);
        }
        summary.stays &= !is_last && (response.body.is_upstreams() || self.discard());
        self.respond(&summary, response, Some(&exchange)).await
    }

    /// Waits for the response; `None` if the client goes first. The future is pinned by the caller because it is
    /// kilobytes that would be moved for each request.
    async fn while_here<T>(&self, mut answer: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        poll_fn(|cx| {
            if let Poll::Ready(response) = answer.as_mut().poll(cx) {
                return Poll::Ready(Some(response));
            }
            let gone = self.io.poll_gone(cx);
            let broken = !self.io.outbox.borrow().is_empty() && matches!(self.io.poll_flush(cx), Poll::Ready(Err(_)));
            if gone || broken { Poll::Ready(None) } else { Poll::Pending }
        })
        .await
    }

    /// Discards what has arrived of an unread body. Returns whether that was all of it.
    ///
    /// A client that waits for a `100 Continue` may send its body after any response or omit it (RFC 9110 section
    /// 10.1.1), so the start of its next request is not known.
    fn discard(&self) -> bool {
        let mut left = MAX_DISCARDED;
        let mut cx = Context::from_waker(std::task::Waker::noop());
        while !self.io.decoder.get().is_end() {
            if self.io.awaits_continue.get() {
                return false;
            }
            match self.io.poll_piece(&mut cx) {
                Poll::Ready(Some(Ok(Piece::Data(data)))) if data.len() <= left => left -= data.len(),
                Poll::Ready(Some(Ok(Piece::Trailers(_))) | None) => {}
                _ => return false,
            }
        }
        true
    }

    /// Sends a response. Returns whether another request may follow.
    async fn respond(
        &self,
        request: &RequestSummary,
        mut response: Response,
        exchange: Option<&S::Exchange>,
    ) -> io::Result<bool> {
        // Only our own responses have this header: an upstream's is about its own connection and was removed. Shared
        // headers never have it, so they are not copied here.
        let wants_close = !response.body.is_upstreams()
            && response.headers.contains("connection")
            && response.headers.remove("connection");
        if let ResponseBody::Tunnel(_) = response.body {
            return self.switch(response).await;
        }
        let (body, may_pause) = (&response.body, response.may_pause());
        let bodiless =
            request.is_head || response.status.is_informational() || matches!(response.status.as_u16(), 204 | 304);
        let mut framing = match body.length() {
            _ if bodiless => Framing::Empty,
            Some(0) => Framing::Empty,
            Some(length) => Framing::Length(length),
            None if request.version == Version::HTTP_11 => Framing::Chunked,
            None => Framing::UntilClose,
        };
        // A client that waits for a `100 Continue` will not get one, because it would stand in the middle of this
        // response. As in `discard`, the start of its next request is not known.
        let is_uncertain = self.io.awaits_continue.take() && !self.io.decoder.get().is_end();
        let stays = request.stays && !wants_close && !is_uncertain && framing != Framing::UntilClose;
        let mut is_written = bodiless;
        {
            let mut outbox = self.io.outbox.borrow_mut();
            let text = outbox.text();
            self.write_head(text, request, &response, (!bodiless).then_some(framing), stays);
            // A short body that is there is sent together with the head.
            if let Framing::Length(length) = framing
                && !bodiless
                && length <= encode::SMALL as u64
                && response.body.take_whole(text)
            {
                exchange.inspect(|exchange| exchange.sent(usize::try_from(length).unwrap_or(usize::MAX)));
                is_written = true;
            }
            is_written |= framing == Framing::Empty && response.body.is_end();
        }
        if let ResponseHeaders::Own(headers) = &mut response.headers {
            spare::keep(std::mem::take(headers));
        }
        self.context.activity.answer(may_pause);
        if is_written {
            drop(response);
            exchange.inspect(|exchange| exchange.ended());
            poll_fn(|cx| self.io.poll_flush(cx)).await?;
        } else {
            poll_fn(|cx| self.poll_body(&mut response.body, &mut framing, exchange, cx)).await?;
        }
        Ok(stays && self.discard())
    }

    /// Writes a response's head. `framing` is `None` if no body follows.
    fn write_head(
        &self,
        text: &mut impl BufMut,
        request: &RequestSummary,
        response: &Response,
        framing: Option<Framing>,
        stays: bool,
    ) {
        match &response.headers {
            ResponseHeaders::Kept(kept) if framing.is_some() => {
                text.put_slice(kept.http1.get_or_init(|| {
                    let mut start = Vec::new();
                    encode::framed_start(&mut start, response, framing);
                    start
                }));
            }
            _ => {
                // The response to a HEAD announces the body's length, if that is known.
                let length = response.body.length().filter(|length| request.is_head && *length > 0);
                encode::framed_start(text, response, length.map(Framing::Length).or(framing));
            }
        }
        if !response.headers.contains("date") {
            self.server.date(self.context.activity.now(), |date| encode::line(text, b"date", date.as_bytes()));
        }
        if !stays {
            encode::line(text, b"connection", b"close");
        } else if request.version == Version::HTTP_10 {
            encode::line(text, b"connection", b"keep-alive");
        }
        text.put_slice(b"\r\n");
    }

    /// Sends a body. Ready when done.
    fn poll_body(
        &self,
        body: &mut ResponseBody,
        framing: &mut Framing,
        exchange: Option<&S::Exchange>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            if !self.io.outbox.borrow().has_room() && self.io.poll_flush(cx)?.is_pending() {
                // A client may send its whole request before it reads the response.
                body.drive_upload(cx);
                return Poll::Pending;
            }
            let piece = match body.poll_piece(cx) {
                Poll::Ready(piece) => piece.transpose(),
                Poll::Pending => {
                    let _ = self.io.poll_flush(cx)?;
                    // Without this check, a silent upstream would continue to work for a client that has gone.
                    let gone = self.io.poll_gone(cx);
                    return if gone {
                        Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()))
                    } else {
                        Poll::Pending
                    };
                }
            };
            let piece = piece.inspect_err(|_| {
                // The client gets what came before the failure. The missing end tells it that the body is incomplete.
                let _ = self.io.poll_flush(cx);
            });
            let piece = piece.map_err(io::Error::other)?;
            if let (Some(Piece::Data(data)), Some(exchange)) = (&piece, exchange) {
                exchange.sent(data.len());
            }
            let encoded = framing.encode(piece, || body.is_end(), &mut self.io.outbox.borrow_mut());
            if !encoded.map_err(io::Error::other)? {
                continue;
            }
            *body = ResponseBody::Text(bytes::Bytes::new());
            exchange.inspect(|exchange| exchange.ended());
            return self.io.poll_flush(cx);
        }
    }

    /// Switches to another protocol.
    async fn switch(&self, response: Response) -> io::Result<bool> {
        let ResponseBody::Tunnel(tunnel) = response.body else { return Ok(false) };
        {
            let mut outbox = self.io.outbox.borrow_mut();
            let text = outbox.text();
            encode::response_start(text, response.status, &response.headers);
            text.put_slice(b"connection: upgrade\r\n\r\n");
        }
        poll_fn(|cx| self.io.poll_flush(cx)).await?;
        let _open = self.server.tunnel();
        let client = ClientStream(self.io.clone());
        tunnel.run(client, self.io.input.take(), self.context.activity.clone()).await?;
        Ok(false)
    }

    /// Closes the connection in a way that lets the client read the response.
    async fn close(&self) {
        let mut stream = ClientStream(self.io.clone());
        let is_read = self.io.decoder.get().is_end() && self.io.input.borrow().is_empty();
        if stream.shutdown().await.is_err() || is_read {
            return;
        }
        let mut scratch = vec![0; 8 * 1024];
        let reading = async { while matches!(stream.read(&mut scratch).await, Ok(count) if count > 0) {} };
        let _ = timeout(LINGER, reading).await;
    }
}
