//! A connection to an upstream, which many requests share.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{Ping, PingPong, Reason, RecvStream};
use http::{HeaderValue, StatusCode, Uri, Version, header};
use tokio::task::AbortHandle;
use tokio::time::sleep_until;

use super::body::{Halt, Incoming, Outgoing};
use super::convert;
use super::watch::{Traffic, Watched};
use crate::http::activity::Activity;
use crate::http::context::Context as Surroundings;
use crate::http::failure::{HeadError, UpstreamError};
use crate::http::lease::{Lease, SendFailed};
use crate::http::message::{BodyError, Download, Piece, Request, RequestBody, Response, ResponseBody};
use crate::http::transport::Stream;

/// Bytes of a response's headers, as for HTTP/1: servers set many cookies, and they are ours.
const MAX_HEADER_BYTES: u32 = 64 * 1024;

/// Bytes of one response that may wait for its client.
const STREAM_WINDOW: u32 = 256 * 1024;

/// The same for all responses of a connection. It is so large because what one slow client leaves lying takes the others'
/// room: sixty-four of them do not hold up the rest.
const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;

/// Bytes of one request that wait for the upstream's window or socket.
const SEND_BUFFER: usize = 64 * 1024;

/// Interim responses before the real one; a server that sends more of them is broken.
const MOST_INTERIM: usize = 16;

/// How long nothing may come while a response is waited for, until the upstream is asked by a PING.
const PING_AFTER: Duration = Duration::from_secs(10);

/// How long a second PING waits if nothing else came since the first: gRPC's servers take two within five minutes for an
/// attack, unless they have sent something in between.
const PING_AGAIN_AFTER: Duration = Duration::from_secs(310);

/// How long the upstream has to answer it.
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection to an upstream. Clones share it; the last one, and the last response on it, closes it.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    shared: Rc<Shared>,
}

#[derive(Debug)]
struct Shared {
    sender: RefCell<SendRequest<Bytes>>,
    /// Requests whose response has not ended.
    active: Rc<Cell<usize>>,
    driver: AbortHandle,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Connection {
    /// Speaks HTTP/2 on a new stream. Its other end has said by ALPN, or is known, to do so too.
    pub(crate) async fn connect(stream: Stream) -> io::Result<Self> {
        let traffic = Traffic::new(0);
        let mut builder = h2::client::Builder::new();
        builder
            .enable_push(false)
            .max_header_list_size(MAX_HEADER_BYTES)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buffer_size(SEND_BUFFER);
        let handshake = builder.handshake(Watched::new(stream, traffic.clone()));
        let (sender, mut connection) = handshake.await.map_err(io_error)?;
        let active = Rc::new(Cell::new(0));
        let pings = connection.ping_pong();
        let driver = tokio::task::spawn_local(drive(connection, pings, traffic, active.clone())).abort_handle();
        Ok(Self { shared: Rc::new(Shared { sender: RefCell::new(sender), active, driver }) })
    }

    /// Whether another request may be sent on it: it is not closed, and the upstream has not said that it will be.
    pub(crate) fn is_open(&self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        !matches!(self.shared.sender.borrow_mut().poll_ready(&mut cx), Poll::Ready(Err(_)))
    }

    /// How many requests there are on it whose response has not ended.
    pub(crate) fn active(&self) -> usize {
        self.shared.active.get()
    }

    /// Sends a request and waits for the response's headers. Without room it waits for that too, until its deadline.
    ///
    /// A request that fails was not sent if the upstream says that it has not worked on it and will not: whatever its
    /// method, it can go another way (RFC 9113 section 8.7).
    pub(crate) async fn send<L: Lease>(
        &self,
        mut request: Request,
        context: &Surroundings,
        lease: L,
    ) -> Result<Response, Box<SendFailed<L>>> {
        let head = match head(&request, context) {
            Ok(head) => head,
            Err(error) => return Err(failed(error, lease, Some(request), false)),
        };
        let is_end = request.body.is_end();
        // The handle that sends is a new one: one that has sent waits until its last request was.
        let mut sender = self.shared.sender.borrow().clone();
        let (mut response, stream) = match sender.send_request(head, is_end) {
            Ok(sent) => sent,
            Err(error) => {
                return Err(failed(UpstreamError::Closed(io_error(error)), lease, Some(request), false));
            }
        };
        drop(sender);
        let active = Active::new(self.shared.clone());
        let body = std::mem::take(&mut request.body);
        let mut upload = Pump { outgoing: Outgoing::new(stream), body, is_done: is_end };
        let mut interim = 0;
        let received = poll_fn(|cx| {
            if let Err(error) = upload.poll(cx) {
                return Poll::Ready(Err(Fault::Error(UpstreamError::Upload(error))));
            }
            if let Poll::Ready(received) = poll_response(&mut response, &mut interim, context, cx) {
                return Poll::Ready(received);
            }
            match context.activity.is_late() {
                true if context.activity.is_uploading() => Poll::Ready(Err(Fault::Error(UpstreamError::UploadStalled))),
                true => Poll::Ready(Err(Fault::Error(UpstreamError::ResponseTimeout))),
                false => Poll::Pending,
            }
        })
        .await;
        match received {
            Ok(response) => Ok(respond(response, upload, context.activity.clone(), lease, active)),
            Err(fault) => {
                let (error, was_sent) = match fault {
                    Fault::Error(error) => (error, true),
                    Fault::Stream(error) => {
                        let was_sent = !is_unprocessed(&error);
                        (UpstreamError::Closed(io_error(error)), was_sent)
                    }
                };
                let again = upload.untouched().filter(|_| interim == 0).map(|body| Request { body, ..request });
                Err(failed(error, lease, again, was_sent))
            }
        }
    }
}

const MALFORMED: UpstreamError = UpstreamError::Head(HeadError::Malformed("there are too many interim responses"));

/// Why there is no response.
enum Fault {
    Error(UpstreamError),
    Stream(h2::Error),
}

fn failed<L>(error: UpstreamError, lease: L, request: Option<Request>, was_sent: bool) -> Box<SendFailed<L>> {
    Box::new(SendFailed { error, lease, request, was_sent })
}

fn io_error(error: h2::Error) -> io::Error {
    if error.is_io() {
        return error.into_io().unwrap_or_else(|| io::ErrorKind::Other.into());
    }
    io::Error::other(error)
}

/// Whether the upstream says that it has not worked on a request and will not: it refused its stream, or told at its
/// GOAWAY that it was not among those that it looks at. The library ends only those streams with the GOAWAY.
fn is_unprocessed(error: &h2::Error) -> bool {
    error.is_remote() && (error.is_go_away() || error.reason() == Some(Reason::REFUSED_STREAM))
}

/// The head of a request, as HTTP/2 has it (RFC 9113 section 8.3.1).
fn head(request: &Request, context: &Surroundings) -> Result<http::Request<()>, UpstreamError> {
    let authority = request.headers.get("host").unwrap_or_default();
    let uri = Uri::builder().scheme(context.peer.scheme()).authority(authority).path_and_query(request.target.as_str());
    let uri = uri
        .build()
        .map_err(|_| UpstreamError::Upload(BodyError::Malformed("HTTP/2 has no way to say its target".into())))?;
    let mut map = convert::header_map(&request.headers, 0, |name| !name.eq_ignore_ascii_case(b"host"));
    if request.headers.is_grpc() {
        // It is of one hop and was taken away with the others, but gRPC's servers insist on it, and we pass trailers on.
        map.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    let mut head = http::Request::new(());
    *head.method_mut() = request.method.clone();
    *head.uri_mut() = uri;
    *head.version_mut() = Version::HTTP_2;
    *head.headers_mut() = map;
    Ok(head)
}

fn poll_response(
    response: &mut ResponseFuture,
    interim: &mut usize,
    context: &Surroundings,
    cx: &mut Context<'_>,
) -> Poll<Result<http::Response<RecvStream>, Fault>> {
    while let Poll::Ready(Some(Ok(head))) = response.poll_informational(cx) {
        *interim += 1;
        if *interim > MOST_INTERIM {
            return Poll::Ready(Err(Fault::Error(MALFORMED)));
        }
        // The client was told to go on by us (RFC 9110 section 15.2: unless the proxy itself asked).
        if head.status() != StatusCode::CONTINUE {
            context.send_interim(head.status(), convert::headers(head.headers()));
        }
    }
    let response = ready!(Pin::new(response).poll(cx)).map_err(Fault::Stream)?;
    convert::check_response(response.headers()).map_err(|error| Fault::Error(UpstreamError::Head(error)))?;
    Poll::Ready(Ok(response))
}

fn respond<L: Lease>(
    response: http::Response<RecvStream>,
    upload: Pump,
    activity: Rc<Activity>,
    lease: L,
    active: Active,
) -> Response {
    let (head, body) = response.into_parts();
    let headers = convert::headers(&head.headers);
    let incoming = Incoming::new(body, &head.headers);
    let body = ResponseBody::download(Box::new(Reading { incoming, upload, activity, lease, _active: active }));
    Response { status: head.status, headers: headers.into(), body }
}

/// A request that counts as active.
#[derive(Debug)]
struct Active(Rc<Shared>);

impl Active {
    fn new(shared: Rc<Shared>) -> Self {
        shared.active.set(shared.active.get() + 1);
        Self(shared)
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.0.active.set(self.0.active.get() - 1);
    }
}

/// The request's body on its way. It goes on while the response comes, because the server may answer each piece by
/// itself (gRPC's streams in both directions).
#[derive(Debug)]
struct Pump {
    outgoing: Outgoing,
    body: RequestBody,
    is_done: bool,
}

impl Pump {
    /// Sends what there is. Fails if the client's body does; an upstream that takes no more of it is no failure, because
    /// its response tells.
    fn poll(&mut self, cx: &mut Context<'_>) -> Result<(), BodyError> {
        if self.is_done {
            return Ok(());
        }
        match self.outgoing.poll_send(&mut self.body, None, cx) {
            Poll::Pending => return Ok(()),
            Poll::Ready(Ok(()) | Err(Halt::Gone)) => self.is_done = true,
            Poll::Ready(Err(Halt::Body(error))) => {
                self.is_done = true;
                // Its stream must not end as if this were all.
                self.outgoing.reset(Reason::CANCEL);
                return Err(error);
            }
        }
        Ok(())
    }

    /// The body, if nothing was taken from it.
    fn untouched(self) -> Option<RequestBody> {
        (!self.outgoing.has_begun()).then_some(self.body)
    }
}

/// A response whose body is being read.
#[derive(Debug)]
struct Reading<L> {
    incoming: Incoming,
    upload: Pump,
    activity: Rc<Activity>,
    /// The use of the upstream's address, and of the connection, until this is dropped.
    lease: L,
    _active: Active,
}

impl<L: Lease> Download for Reading<L> {
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, BodyError>>> {
        if let Err(error) = self.upload.poll(cx) {
            return Poll::Ready(Some(Err(error)));
        }
        let piece = self.incoming.poll_piece(cx);
        if let Poll::Ready(Some(Err(error))) = &piece {
            self.lease.cut_off(error, self.activity.now());
        }
        piece
    }

    fn drive_upload(&mut self, cx: &mut Context<'_>) {
        // A failure resets the stream, and is seen when the next piece is asked for.
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

    fn is_done(&self) -> bool {
        // The server may have ended its response before the request has.
        false
    }

    fn release(self: Box<Self>) {}
}

/// Reads and writes until the connection is closed, or until the upstream is found to be gone.
async fn drive(
    connection: h2::client::Connection<Watched, Bytes>,
    mut pings: Option<PingPong>,
    traffic: Rc<Traffic>,
    active: Rc<Cell<usize>>,
) {
    let mut connection = pin!(connection);
    let mut alarm = pin!(sleep_until((traffic.now() + PING_AFTER).into()));
    let mut asked: Option<Asked> = None;
    poll_fn(|cx| {
        let now = traffic.wake();
        loop {
            if let Poll::Ready(ended) = connection.as_mut().poll(cx) {
                if let Err(error) = ended {
                    tracing::debug!("a connection to an upstream ended: {error}");
                }
                return Poll::Ready(());
            }
            // Nothing is held up here: an upstream's responses are asked for.
            if !traffic.release() {
                break;
            }
        }
        while alarm.as_mut().poll(cx).is_ready() {
            let heard = traffic.heard();
            let deadline = match asked {
                Some(Asked { at, .. }) if heard <= at => at + PING_TIMEOUT,
                Some(Asked { at, content }) if content == traffic.content() => at + PING_AGAIN_AFTER,
                _ => heard + PING_AFTER,
            };
            if deadline > now {
                alarm.as_mut().reset(deadline.into());
                continue;
            }
            if asked.is_some_and(|asked| heard <= asked.at) {
                tracing::debug!("a connection to an upstream ended: it does not answer");
                return Poll::Ready(());
            }
            if active.get() == 0 {
                // Whoever keeps it idle decides how long.
                alarm.as_mut().reset((now + PING_AFTER).into());
                continue;
            }
            if let Some(pings) = &mut pings {
                let _ = pings.poll_pong(cx);
                let _ = pings.send_ping(Ping::opaque());
            }
            asked = Some(Asked { at: now, content: traffic.content() });
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    })
    .await;
}

/// A PING that was sent.
#[derive(Clone, Copy, Debug)]
struct Asked {
    at: Instant,
    /// What had come until then.
    content: u64,
}
