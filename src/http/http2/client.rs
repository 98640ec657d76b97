//! Upstream connections that many requests share.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, RecvStream};
use http::uri::Scheme;
use http::{HeaderValue, Uri, Version, header};
use tokio::task::AbortHandle;

use super::body::{ReceivedBody, SendError, SentBody, Source};
use super::convert;
use super::drive::drive;
use super::output::Output;
use super::watch::{Traffic, WatchedStream};
use crate::http::activity::Activity;
use crate::http::failure::UpstreamError;
use crate::http::failure::{Lease, SendFailed};
use crate::http::message::{BodyError, Download, Piece, Request, RequestBody, Response, ResponseBody};
use crate::http::service::Context as RequestContext;
use crate::http::transport::Stream;

/// Bytes of a response's headers, as for HTTP/1.
const MAX_HEADER_BYTES: u32 = 64 * 1024;

/// Bytes of one response that may wait for its client.
const STREAM_WINDOW: u32 = 256 * 1024;

/// Concurrent requests on one connection, if the upstream allows more. Go, nginx and Envoy allow 250, 128 and 100 by
/// default.
const MAX_STREAMS: u32 = 4096;

/// The windows of all streams together, so that responses whose clients do not read leave room for the others.
const CONNECTION_WINDOW: u32 = MAX_STREAMS * STREAM_WINDOW;

/// Bytes of one request that wait for the upstream's window or socket.
const SEND_BUFFER: usize = 64 * 1024;

/// An upstream connection. Clones share it. It is closed with the last clone and the last response on it.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    shared: Rc<Shared>,
}

#[derive(Debug)]
struct Shared {
    sender: RefCell<SendRequest<Bytes>>,
    /// Requests whose response has not ended.
    active: Rc<Cell<usize>>,
    /// Uploads that wait for the upstream to take more.
    stuck: Cell<usize>,
    /// The scheme of its requests (RFC 9113 section 8.3.1). Servers reject one that does not match the connection.
    scheme: Scheme,
    driver: AbortHandle,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Connection {
    /// Starts HTTP/2 on a new stream whose other end supports it, by ALPN or prior knowledge, and waits for the upstream's
    /// settings. Requests beyond its limit of concurrent streams would be refused.
    pub(crate) async fn connect(stream: Stream) -> io::Result<Self> {
        let scheme = if matches!(stream, Stream::Tls(_)) { Scheme::HTTPS } else { Scheme::HTTP };
        let traffic = Traffic::new(0);
        let mut builder = h2::client::Builder::new();
        builder
            .enable_push(false)
            .max_header_list_size(MAX_HEADER_BYTES)
            .initial_max_send_streams(0)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buffer_size(SEND_BUFFER);
        let output = Rc::new(Output::new(stream));
        let handshake = builder.handshake(WatchedStream::new(output.clone(), traffic.clone()));
        let (sender, mut connection) = handshake.await.map_err(io_error)?;
        poll_fn(|cx| {
            traffic.wake();
            loop {
                if let Poll::Ready(ended) = Pin::new(&mut connection).poll(cx) {
                    return Poll::Ready(Err(ended.map_or_else(io_error, |()| io::ErrorKind::UnexpectedEof.into())));
                }
                if !traffic.release() {
                    break;
                }
            }
            if sender.current_max_send_streams() > 0 { Poll::Ready(Ok(())) } else { Poll::Pending }
        })
        .await?;
        let active = Rc::new(Cell::new(0));
        let pings = connection.ping_pong();
        let driver = tokio::task::spawn_local(drive(connection, pings, traffic, output, active.clone())).abort_handle();
        Ok(Self {
            shared: Rc::new(Shared { sender: RefCell::new(sender), active, stuck: Cell::new(0), scheme, driver }),
        })
    }

    /// Returns whether another request may be sent: the connection is neither closed nor about to be.
    pub(crate) fn is_open(&self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        !matches!(self.shared.sender.borrow_mut().poll_ready(&mut cx), Poll::Ready(Err(_)))
    }

    /// Returns the number of requests whose response has not ended.
    pub(crate) fn active(&self) -> usize {
        self.shared.active.get()
    }

    /// Returns whether the upstream does not take all that it is sent. The connection's window, 64 KiB by default, may then be full:
    /// no other upload would get through until the upstream reads on.
    pub(crate) fn is_stuck(&self) -> bool {
        self.shared.stuck.get() > 0
    }

    /// Takes a place for a request, unless all of the upstream's or our own are taken.
    pub(crate) fn begin(&self) -> Option<StreamSlot> {
        let Shared { sender, active, .. } = &*self.shared;
        let most = sender.borrow().current_max_send_streams().min(MAX_STREAMS as usize);
        (active.get() < most).then(|| StreamSlot::new(self.shared.clone()))
    }
}

/// A place for a request on a connection, until its response has ended.
#[derive(Debug)]
pub(crate) struct StreamSlot(Rc<Shared>);

impl StreamSlot {
    fn new(shared: Rc<Shared>) -> Self {
        shared.active.set(shared.active.get() + 1);
        Self(shared)
    }

    /// Sends a request and waits for the response's headers.
    ///
    /// A failed request counts as not sent if the upstream says that it has not processed it. Such a request may be
    /// sent elsewhere, whatever its method (RFC 9113 section 8.7).
    pub(crate) async fn send<L: Lease>(
        self,
        mut request: Request,
        context: &RequestContext,
        lease: L,
    ) -> Result<Response, Box<SendFailed<L>>> {
        let head = match head(&request, &self.0.scheme) {
            Ok(head) => head,
            Err(error) => return Err(failed(error, lease, Some(request), false)),
        };
        let is_end = request.body.is_end();
        // Uses a new handle, because one that has sent a request waits until that request was sent.
        let mut sender = self.0.sender.borrow().clone();
        let (mut response, stream) = match sender.send_request(head, is_end) {
            Ok(sent) => sent,
            Err(error) => {
                return Err(failed(UpstreamError::Closed(io_error(error)), lease, Some(request), false));
            }
        };
        drop(sender);
        let body = std::mem::take(&mut request.body);
        if request.headers.is_grpc() {
            context.activity.send_messages();
        }
        let stuck = StuckUpload { connection: self.0.clone(), is_counted: false };
        let mut upload = Upload { outgoing: SentBody::new(stream), body, is_done: is_end, stuck };
        let mut interim = 0;
        let received = poll_fn(|cx| {
            if let Err(error) = upload.poll(cx) {
                return Poll::Ready(Err((UpstreamError::Upload(error), true)));
            }
            if let Poll::Ready(received) = poll_response(&mut response, &mut interim, context, cx) {
                return Poll::Ready(received);
            }
            context.activity.overdue().map_or(Poll::Pending, |error| Poll::Ready(Err((error, true))))
        })
        .await;
        match received {
            Ok(response) => Ok(respond(response, upload, context.activity.clone(), lease, self)),
            Err((error, was_sent)) => {
                let may_repeat = interim == 0 && (!was_sent || upload.is_untouched());
                let again = may_repeat.then(|| Request { body: upload.body, ..request });
                Err(failed(error, lease, again, was_sent))
            }
        }
    }
}

fn failed<L>(error: UpstreamError, lease: L, request: Option<Request>, was_sent: bool) -> Box<SendFailed<L>> {
    Box::new(SendFailed { error, lease, request, was_taken: false, was_sent })
}

fn io_error(error: h2::Error) -> io::Error {
    if error.is_io() {
        return error.into_io().unwrap_or_else(|| io::ErrorKind::Other.into());
    }
    io::Error::other(error)
}

/// Returns whether the upstream has not processed the request: it refused the stream or excluded it in its GOAWAY. The
/// library ends only excluded streams with the GOAWAY.
fn is_unprocessed(error: &h2::Error) -> bool {
    error.is_remote() && (error.is_go_away() || error.reason() == Some(Reason::REFUSED_STREAM))
}

/// Returns a request's head in HTTP/2's form (RFC 9113 section 8.3.1).
fn head(request: &Request, scheme: &Scheme) -> Result<http::Request<()>, UpstreamError> {
    let authority = request.headers.get("host").unwrap_or_default();
    let uri = Uri::builder().scheme(scheme.clone()).authority(authority).path_and_query(request.target.as_str());
    let uri = uri
        .build()
        .map_err(|_| UpstreamError::Upload(BodyError::Malformed("the target cannot be sent by HTTP/2".into())))?;
    let mut map = convert::header_map(&request.headers, 0, |name| !name.eq_ignore_ascii_case(b"host"));
    if request.headers.is_grpc() {
        // `TE` was removed as a hop-by-hop header, but gRPC servers require it, and we do forward trailers.
        map.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    let mut head = http::Request::new(());
    *head.method_mut() = request.method.clone();
    *head.uri_mut() = uri;
    *head.version_mut() = Version::HTTP_2;
    *head.headers_mut() = map;
    Ok(head)
}

/// The error comes with whether the upstream may have processed the request.
fn poll_response(
    response: &mut ResponseFuture,
    interim: &mut usize,
    context: &RequestContext,
    cx: &mut Context<'_>,
) -> Poll<Result<http::Response<RecvStream>, (UpstreamError, bool)>> {
    while let Poll::Ready(Some(Ok(head))) = response.poll_informational(cx) {
        *interim += 1;
        let headers = convert::headers(head.headers());
        context.forward_interim(*interim, head.status(), headers).map_err(|error| (error, true))?;
    }
    let response = ready!(Pin::new(response).poll(cx)).map_err(|error| {
        let was_sent = !is_unprocessed(&error);
        (UpstreamError::Closed(io_error(error)), was_sent)
    })?;
    convert::check_response(response.headers()).map_err(|error| (UpstreamError::Head(error), true))?;
    Poll::Ready(Ok(response))
}

fn respond<L: Lease>(
    response: http::Response<RecvStream>,
    upload: Upload,
    activity: Rc<Activity>,
    lease: L,
    slot: StreamSlot,
) -> Response {
    let (head, body) = response.into_parts();
    let headers = convert::headers(&head.headers);
    let incoming = ReceivedBody::new(body, &head.headers);
    if incoming.is_end() {
        lease.completed();
    }
    activity.holds(STREAM_WINDOW.into());
    let body = ResponseBody::download(Box::new(ResponseBodyStream { incoming, upload, activity, lease, _slot: slot }));
    Response { status: head.status, headers: headers.into(), body }
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        self.0.active.set(self.0.active.get() - 1);
    }
}

/// A request's body in transit. It continues while the response arrives, because the server may answer each part by
/// itself (gRPC's bidirectional streams).
#[derive(Debug)]
struct Upload {
    outgoing: SentBody,
    body: RequestBody,
    is_done: bool,
    stuck: StuckUpload,
}

/// An upload's part in [`Shared::stuck`].
#[derive(Debug)]
struct StuckUpload {
    connection: Rc<Shared>,
    is_counted: bool,
}

impl StuckUpload {
    fn set(&mut self, is_stuck: bool) {
        let stuck = &self.connection.stuck;
        match (std::mem::replace(&mut self.is_counted, is_stuck), is_stuck) {
            (false, true) => stuck.set(stuck.get() + 1),
            (true, false) => stuck.set(stuck.get() - 1),
            _ => {}
        }
    }
}

impl Drop for StuckUpload {
    fn drop(&mut self) {
        self.set(false);
    }
}

impl Upload {
    /// Sends as much as possible. Fails only if the client's body does: if the upstream stops reading, its response
    /// tells why.
    fn poll(&mut self, cx: &mut Context<'_>) -> Result<(), BodyError> {
        if self.is_done {
            return Ok(());
        }
        let polled = self.outgoing.poll_send(Source::Request(&mut self.body), cx);
        self.stuck.set(polled.is_pending() && self.outgoing.is_stuck());
        match polled {
            Poll::Pending => return Ok(()),
            Poll::Ready(Ok(()) | Err(SendError::Gone)) => self.is_done = true,
            Poll::Ready(Err(SendError::Body(error))) => {
                self.is_done = true;
                // The stream must not end as if the body were complete.
                self.outgoing.reset(Reason::CANCEL);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Returns whether nothing was taken from the body.
    const fn is_untouched(&self) -> bool {
        !self.outgoing.has_begun
    }
}

/// A response whose body is being read.
#[derive(Debug)]
struct ResponseBodyStream<L> {
    incoming: ReceivedBody,
    upload: Upload,
    activity: Rc<Activity>,
    /// Held until the response is dropped.
    lease: L,
    _slot: StreamSlot,
}

/// It is never released: the server may end its response while it still reads the request.
impl<L: Lease> Download for ResponseBodyStream<L> {
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, BodyError>>> {
        if let Err(error) = self.upload.poll(cx) {
            return Poll::Ready(Some(Err(error)));
        }
        let piece = match self.incoming.poll_piece(cx) {
            Poll::Pending if self.activity.is_late() => Poll::Ready(Some(Err(BodyError::Silent))),
            piece => piece,
        };
        match &piece {
            Poll::Pending => {}
            Poll::Ready(Some(Err(error))) => {
                self.activity.upstream_cut(error.reason());
                self.lease.cut_off(error, self.activity.now());
            }
            Poll::Ready(_) => {
                self.activity.moved();
                if self.incoming.is_end() {
                    self.lease.completed();
                }
            }
        }
        piece
    }

    fn drive_upload(&mut self, cx: &mut Context<'_>) {
        // A failure resets the stream and is reported with the next part.
        if let Err(error) = self.upload.poll(cx) {
            tracing::debug!("a request broke off: {error}");
        }
    }

    fn is_end(&self) -> bool {
        self.incoming.is_end()
    }

    fn length(&self) -> Option<u64> {
        self.incoming.length()
    }
}
