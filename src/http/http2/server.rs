//! A client's HTTP/2 connection.
//!
//! A connection is one task, and its streams run in it ([`super::tasks`]).

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::server::{Connection, SendResponse};
use h2::{Ping, PingPong, Reason, RecvStream};
use http::Request;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::LINGER;
use super::output::Output;
use super::stream::{self, Kept, NewStream, StreamEnd};
use super::tasks::{Mailbox, Tasks, Wakeups};
use super::watch::{PREFACE, Resets, Traffic, WatchedStream};
use crate::http::admission::{AddressPermit, Streams};
use crate::http::alarm::{Alarm, after};
use crate::http::forwarding::Peer;
use crate::http::limits::{HeadLimits, Http2Limits};
use crate::http::server::Server;
use crate::http::service::Service;
use crate::http::transport::Stream;
use crate::message::connection::HttpLimit;

/// Streams that we have reset and that are remembered for a moment, because the client may still send on them; sending
/// on a forgotten stream counts as the client's error. A limiter rejects many requests whose bodies are in flight.
const REMEMBERED_RESETS: usize = 512;

/// Requests that may be reset while they wait to be accepted. They are accepted before more is read (see [`WatchedStream`]),
/// so this is more than fits into one read, and [`Http2Limits::max_resets`] is the effective bound.
const PENDING_RESETS: usize = 4096;

/// A connection that is idle for this long frees what its streams have used. A shorter time would have a client with a request
/// now and then pay for it each time.
const REST: Duration = Duration::from_secs(1);

/// The socket and the streams may wake each other this often before the worker's other connections get a turn.
const ROUNDS: usize = 16;

/// Serves a client's connection to its end. When `drain` is cancelled, running requests are answered and no more
/// accepted.
pub(crate) async fn serve<S: Service>(
    service: Rc<S>,
    stream: Stream,
    peer: Rc<Peer>,
    permit: AddressPermit,
    drain: CancellationToken,
) {
    let server = service.server();
    let limits = server.limits.http2;
    let traffic = Traffic::new(PREFACE);
    let output = Rc::new(Output::new(stream));
    let watched = WatchedStream::new(output.clone(), traffic.clone());
    // This and the session are on the heap, because a future has room for all that it ever holds.
    let handshake = Box::pin(builder(&limits, &server.limits.head).handshake(watched));
    let mut connection = match timeout(server.timeouts.first_byte, handshake).await {
        Ok(Ok(connection)) => Box::new(connection),
        Ok(Err(error)) => return tracing::debug!("a client's connection did not begin with HTTP/2: {error}"),
        Err(_) => return server.limit_reached(HttpLimit::FirstByteTimeout),
    };
    let streams = |streams: Rc<Mailbox<NewStream, StreamEnd>>| {
        let (service, peer, traffic) = (&*service, &peer, &traffic);
        async move {
            let mut kept = Kept::default();
            loop {
                let opened = streams.receive().await;
                streams.done(stream::serve(service, peer, traffic, opened, &mut kept).await);
            }
        }
    };
    let wakeups = Arc::new(Wakeups::default());
    output.gather();
    let session = Box::new(Session {
        pings: connection.ping_pong(),
        connection,
        output,
        pinged: None,
        socket: wakeups.socket(),
        tasks: Tasks::new(wakeups.clone(), streams),
        open: permit.streams(),
        wakeups,
        limits,
        resets: Resets::new(traffic.now()),
        idle_since: traffic.now(),
        traffic: traffic.clone(),
        alarm: Alarm::default(),
        requests: 0,
        is_resting: true,
        phase: Phase::Open,
    });
    session.run(server, &drain).await;
}

/// Returns the size of a head from which on the library answers 431; at four times this size it ends the connection.
/// This bounds CONTINUATION frames (CVE-2024-27316) and what a small compressed block expands to (CVE-2016-1544). The
/// library adds 32 bytes per header (RFC 9113 section 6.5.2). The value is above our own limits, because only our own
/// rejections are counted.
fn header_list(head: &HeadLimits) -> u32 {
    u32::try_from(2 * head.bytes + 32 * head.lines).unwrap_or(u32::MAX)
}

fn builder(limits: &Http2Limits, head: &HeadLimits) -> h2::server::Builder {
    let mut builder = h2::server::Builder::new();
    builder
        .max_concurrent_streams(limits.max_streams)
        .max_header_list_size(header_list(head))
        .initial_window_size(limits.stream_window)
        .initial_connection_window_size(limits.connection_window())
        .max_send_buffer_size(limits.send_buffer as usize)
        .max_local_error_reset_streams(Some(limits.max_errors as usize))
        .max_concurrent_reset_streams(REMEMBERED_RESETS)
        .max_pending_accept_reset_streams(PENDING_RESETS);
    builder
}

struct Session<'p, F, M> {
    connection: Box<Connection<WatchedStream, Bytes>>,
    output: Rc<Output>,
    pings: Option<PingPong>,
    /// The time of the last PING.
    pinged: Option<Instant>,
    /// Wakes the connection itself.
    socket: Waker,
    tasks: Tasks<NewStream, StreamEnd, F, M>,
    /// The running streams, counted for the client's address.
    open: Streams<'p>,
    wakeups: Arc<Wakeups>,
    limits: Http2Limits,
    traffic: Rc<Traffic>,
    alarm: Alarm,
    resets: Resets,
    /// Number of accepted requests.
    requests: u32,
    /// The end of the last stream.
    idle_since: Instant,
    /// True if what its streams have used is freed.
    is_resting: bool,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// The client was told to send no more requests; running ones are answered.
    Draining(Instant),
    /// The client was told that the connection is over.
    Closing(Instant),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeadlineAction {
    /// Close the connection without a frame.
    Drop,
    /// Tell the client that the connection is over.
    Close,
    /// A header block did not end in time.
    Incomplete,
    /// No stream was open for a moment.
    Rest,
    /// No stream was open for too long.
    Idle,
    /// Check whether the client is still there.
    Ping,
    /// The client did not answer.
    Dead,
}

impl<F, M> Session<'_, F, M>
where
    F: Future<Output = ()>,
    M: Fn(Rc<Mailbox<NewStream, StreamEnd>>) -> F,
{
    async fn run(mut self: Box<Self>, server: &Server, drain: &CancellationToken) {
        let mut drained = pin!(drain.cancelled());
        // Polling the token takes a lock, so it is polled once, and again when it wakes.
        let draining = self.wakeups.drain();
        draining.wake_by_ref();
        self.wakeups.wake_socket();
        poll_fn(|cx| {
            self.traffic.wake();
            self.wakeups.run(cx.waker());
            for _ in 0..ROUNDS {
                let woken = self.wakeups.take_signals();
                if woken.drain
                    && self.phase == Phase::Open
                    && drained.as_mut().poll(&mut Context::from_waker(&draining)).is_ready()
                {
                    self.drain();
                }
                if woken.socket && self.poll_socket(server).is_ready() {
                    return Poll::Ready(());
                }
                self.poll_streams(server);
                if self.poll_alarm(server, cx).is_ready() {
                    return Poll::Ready(());
                }
                if self.wakeups.pause() {
                    return self.flush();
                }
            }
            self.wakeups.give_way();
            self.flush()
        })
        .await;
        let Self { connection, mut tasks, traffic, .. } = *self;
        // Its streams notice. Those that have not been charged yet continue until they are.
        drop(connection);
        let rest = poll_fn(|cx| {
            traffic.wake();
            tasks.poll_rest(cx)
        });
        let _ = timeout(LINGER, rest).await;
    }

    /// Reads, writes, and accepts streams. Ready at the end.
    fn poll_socket(&mut self, server: &Server) -> Poll<()> {
        let socket = self.socket.clone();
        let mut cx = Context::from_waker(&socket);
        loop {
            match self.connection.poll_accept(&mut cx) {
                Poll::Ready(Some(Ok((request, respond)))) => {
                    self.requests += 1;
                    if self.requests == server.limits.requests && self.phase == Phase::Open {
                        server.limit_reached(HttpLimit::Requests);
                        self.drain();
                    }
                    self.start(server, request, respond);
                    if self.traffic.accepted() {
                        break;
                    }
                }
                Poll::Ready(Some(Err(error))) => {
                    if error.is_library() && error.reason() == Some(Reason::ENHANCE_YOUR_CALM) {
                        server.limit_reached(HttpLimit::Http2Errors);
                    }
                    tracing::debug!("a client's connection ended: {error}");
                    return Poll::Ready(());
                }
                Poll::Ready(None) => return Poll::Ready(()),
                Poll::Pending if self.traffic.release() => {
                    // Accepted requests are charged before more is read.
                    self.poll_streams(server);
                }
                Poll::Pending => break,
            }
        }
        if self.traffic.is_flooded(self.limits.max_control_frames.into()) {
            self.calm(server, HttpLimit::Http2ControlFrames);
        }
        Poll::Pending
    }

    /// Writes what this turn has gathered. Ready if the connection is broken.
    fn flush(&self) -> Poll<()> {
        match self.output.poll_flush(&mut Context::from_waker(&self.socket)) {
            Poll::Ready(Err(error)) => {
                tracing::debug!("a client's connection ended: {error}");
                Poll::Ready(())
            }
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Pending,
        }
    }

    /// Starts to answer a request, unless the client's address has too many. The client may send a rejected request
    /// again (RFC 9113 section 8.7).
    fn start(&mut self, server: &Server, request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
        if self.open.begin() {
            self.is_resting = false;
            self.tasks.start((request, respond));
        } else {
            server.limit_reached(HttpLimit::Streams);
            respond.send_reset(Reason::REFUSED_STREAM);
        }
    }

    fn poll_streams(&mut self, server: &Server) {
        let now = self.traffic.now();
        let mut is_attack = false;
        let was_empty = self.tasks.is_empty();
        let mut done = 0;
        self.tasks.turn(|ended| {
            done += 1;
            is_attack |= ended == StreamEnd::RapidReset && self.resets.count(self.limits.max_resets, now);
        });
        self.open.end(done);
        if !was_empty && self.tasks.is_empty() {
            self.idle_since = now;
        }
        if is_attack {
            self.calm(server, HttpLimit::Http2Resets);
        }
    }

    /// Tells the client to open no more streams (RFC 9113 section 6.8).
    fn drain(&mut self) {
        self.phase = Phase::Draining(self.traffic.now());
        self.traffic.drain();
        self.connection.graceful_shutdown();
        self.wakeups.wake_socket();
    }

    /// Tells the client that it asks for too much, and drops what runs.
    fn calm(&mut self, server: &Server, limit: HttpLimit) {
        if !matches!(self.phase, Phase::Closing(_)) {
            server.limit_reached(limit);
            self.close(Reason::ENHANCE_YOUR_CALM);
        }
    }

    fn close(&mut self, reason: Reason) {
        self.phase = Phase::Closing(self.traffic.now());
        self.connection.abrupt_shutdown(reason);
        self.wakeups.wake_socket();
    }

    /// Returns the next deadline and what to do then.
    fn deadline(&self, server: &Server) -> (Instant, DeadlineAction) {
        let timeouts = &server.timeouts;
        if let Phase::Closing(since) = self.phase {
            return (after(since, LINGER), DeadlineAction::Drop);
        }
        let incomplete = self
            .traffic
            .incomplete_since
            .get()
            .map(|since| (after(since, timeouts.header), DeadlineAction::Incomplete));
        let next = match self.phase {
            _ if !self.tasks.is_empty() => self.ping_deadline(),
            // The library waits for an answer to the PING that it sends with the GOAWAY.
            Phase::Draining(since) => (after(since.max(self.idle_since), LINGER), DeadlineAction::Close),
            // A connection is not idle while a frame is incomplete.
            _ if incomplete.is_none() && !self.is_resting && REST < timeouts.idle => {
                (after(self.idle_since, REST), DeadlineAction::Rest)
            }
            _ => incomplete.unwrap_or_else(|| (after(self.idle_since, timeouts.idle), DeadlineAction::Idle)),
        };
        incomplete.filter(|incomplete| incomplete.0 < next.0).unwrap_or(next)
    }

    /// Anything that the client sends shows that it is there, not only the answer to a PING.
    fn ping_deadline(&self) -> (Instant, DeadlineAction) {
        let heard = self.traffic.heard.get();
        match self.pinged.filter(|pinged| heard <= *pinged) {
            Some(pinged) => (pinged + self.limits.ping_timeout, DeadlineAction::Dead),
            None => (heard + self.limits.ping_interval, DeadlineAction::Ping),
        }
    }

    fn ping(&mut self) {
        let Some(pings) = &mut self.pings else { return };
        // Takes the last PING's answer, if it has come. If not, something else has arrived since.
        let _ = pings.poll_pong(&mut Context::from_waker(Waker::noop()));
        if pings.send_ping(Ping::opaque()).is_ok() {
            self.traffic.ping();
        }
        self.pinged = Some(self.traffic.now());
    }

    /// Handles missed deadlines. Ready at the end of the connection.
    fn poll_alarm(&mut self, server: &Server, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let (deadline, due) = self.deadline(server);
            if !self.alarm.poll(deadline, self.traffic.now(), cx) {
                return Poll::Pending;
            }
            match due {
                DeadlineAction::Drop => return Poll::Ready(()),
                DeadlineAction::Dead => {
                    server.limit_reached(HttpLimit::Http2PingTimeout);
                    return Poll::Ready(());
                }
                DeadlineAction::Incomplete => self.calm(server, HttpLimit::HeaderTimeout),
                DeadlineAction::Rest => {
                    self.tasks.free();
                    self.is_resting = true;
                }
                DeadlineAction::Idle => {
                    server.limit_reached(HttpLimit::IdleTimeout);
                    self.drain();
                }
                DeadlineAction::Close => self.close(Reason::NO_ERROR),
                DeadlineAction::Ping => self.ping(),
            }
        }
    }
}
