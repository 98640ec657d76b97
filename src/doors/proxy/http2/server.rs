//! One client's connection, from its preface to its last frame.
//!
//! A connection is one task, and its streams run in it ([`super::tasks`]).

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::server::{Connection, SendResponse};
use h2::{Ping, PingPong, Reason, RecvStream};
use http::Request;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::stream::{self, Ended};
use super::tasks::{Mailbox, Tasks, Wakeups};
use super::watch::{PREFACE, Resets, Traffic, Watched};
use super::{Http2Limits, LINGER};
use crate::doors::proxy::Proxy;
use crate::doors::proxy::forwarding::Peer;
use crate::metrics::DoorLimit;

/// How often the socket and the streams may wake each other before other connections of the worker have a turn.
const ROUNDS: usize = 16;

/// Serves a client's connection to its end. When `drain` is cancelled, what runs is answered and nothing after it.
pub(in super::super) async fn serve<S>(proxy: Rc<Proxy>, stream: S, peer: Rc<Peer>, drain: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let limits = proxy.limits.http2;
    let traffic = Traffic::new(PREFACE);
    let handshake = limits.server(&proxy.limits.head).handshake(Watched::new(stream, traffic.clone()));
    let connection = match timeout(proxy.timeouts.first_byte, handshake).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => return tracing::debug!("a client's connection did not begin with HTTP/2: {error}"),
        Err(_) => return proxy.counters.limited(DoorLimit::FirstByteTimeout),
    };
    let streams = |streams: Rc<Mailbox<Opened, Ended>>| {
        let (proxy, peer) = (&proxy, &peer);
        async move {
            loop {
                let (request, respond) = streams.receive().await;
                streams.done(stream::serve(proxy, peer, request, respond).await);
            }
        }
    };
    let wakeups = Arc::new(Wakeups::default());
    let session = Session {
        wire: Wire::new(connection),
        socket: wakeups.socket(),
        tasks: Tasks::new(wakeups.clone(), streams),
        wakeups,
        limits,
        resets: Resets::new(traffic.now()),
        idle_since: traffic.now(),
        traffic,
        requests: 0,
        phase: Phase::Open,
    };
    session.run(&proxy, &drain).await;
}

/// A stream that a client has opened.
type Opened = (Request<RecvStream>, SendResponse<Bytes>);

/// A client's connection.
struct Session<S, F, M> {
    wire: Wire<S>,
    /// What the connection itself is polled with.
    socket: Waker,
    tasks: Tasks<Opened, Ended, F, M>,
    wakeups: Arc<Wakeups>,
    limits: Http2Limits,
    traffic: Rc<Traffic>,
    resets: Resets,
    /// That have been accepted.
    requests: u32,
    /// When the last stream ended.
    idle_since: Instant,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// The client was told to send no more, and what runs is answered.
    Draining(Instant),
    /// The client was told that it is over.
    Closing(Instant),
}

/// The connection, and whether it is alive.
struct Wire<S> {
    connection: Connection<Watched<S>, Bytes>,
    pings: Option<PingPong>,
    sent: Option<Instant>,
}

/// What there is to do at a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    /// Close it without a word.
    Drop,
    /// Tell the client that it is over.
    Close,
    /// A header block did not end.
    Incomplete,
    /// No stream for a while.
    Idle,
    /// Ask whether the client is there.
    Ping,
    /// It is not.
    Dead,
}

impl<S, F, M> Session<S, F, M>
where
    S: AsyncRead + AsyncWrite + Unpin,
    F: Future<Output = ()>,
    M: Fn(Rc<Mailbox<Opened, Ended>>) -> F,
{
    async fn run(mut self, proxy: &Proxy, drain: &CancellationToken) {
        let mut drained = pin!(drain.cancelled());
        self.wakeups.wake_socket();
        let mut alarm = pin!(sleep_until(self.deadline(proxy).0.into()));
        poll_fn(|cx| {
            self.traffic.wake();
            self.wakeups.run(cx.waker());
            if self.phase == Phase::Open && drained.as_mut().poll(cx).is_ready() {
                self.drain();
            }
            for _ in 0..ROUNDS {
                if self.wakeups.take_socket() && self.poll_socket(proxy).is_ready() {
                    return Poll::Ready(());
                }
                self.poll_streams(proxy);
                if self.poll_alarm(proxy, alarm.as_mut(), cx).is_ready() {
                    return Poll::Ready(());
                }
                if self.wakeups.pause() {
                    return Poll::Pending;
                }
            }
            self.wakeups.give_way();
            Poll::Pending
        })
        .await;
        let Self { wire, mut tasks, wakeups, .. } = self;
        // Its streams are told by this. Those that the limits have not judged yet go on until they are.
        drop(wire);
        let rest = poll_fn(|cx| {
            wakeups.run(cx.waker());
            tasks.turn(|_| {});
            if tasks.is_empty() {
                return Poll::Ready(());
            }
            if !wakeups.pause() {
                wakeups.give_way();
            }
            Poll::Pending
        });
        let _ = timeout(LINGER, rest).await;
    }

    /// Reads and writes what can be read and written, and opens the streams that have come. Ready at the end.
    fn poll_socket(&mut self, proxy: &Proxy) -> Poll<()> {
        let socket = self.socket.clone();
        let mut cx = Context::from_waker(&socket);
        loop {
            match self.wire.connection.poll_accept(&mut cx) {
                Poll::Ready(Some(Ok((request, respond)))) => {
                    self.requests += 1;
                    if self.requests == proxy.limits.requests && self.phase == Phase::Open {
                        proxy.counters.limited(DoorLimit::Requests);
                        self.drain();
                    }
                    self.tasks.start((request, respond));
                }
                Poll::Ready(Some(Err(error))) => {
                    if error.is_library() && error.reason() == Some(Reason::ENHANCE_YOUR_CALM) {
                        proxy.counters.limited(DoorLimit::Http2Errors);
                    }
                    tracing::debug!("a client's connection ended: {error}");
                    return Poll::Ready(());
                }
                Poll::Ready(None) => return Poll::Ready(()),
                Poll::Pending if self.traffic.release() => {
                    // What has come is judged before more is read.
                    self.poll_streams(proxy);
                }
                Poll::Pending => break,
            }
        }
        if self.traffic.is_flooded(self.limits.max_control_frames.into()) {
            self.calm(proxy, DoorLimit::Http2ControlFrames);
        }
        Poll::Pending
    }

    fn poll_streams(&mut self, proxy: &Proxy) {
        let now = self.traffic.now();
        let mut is_attack = false;
        let was_empty = self.tasks.is_empty();
        self.tasks.turn(|ended| {
            is_attack |= ended == Ended::RapidReset && self.resets.count(self.limits.max_resets, now);
        });
        if !was_empty && self.tasks.is_empty() {
            self.idle_since = now;
        }
        if is_attack {
            self.calm(proxy, DoorLimit::Http2Resets);
        }
    }

    /// The client is told to open no more streams (RFC 9113 section 6.8).
    fn drain(&mut self) {
        self.phase = Phase::Draining(self.traffic.now());
        self.wire.connection.graceful_shutdown();
        self.wakeups.wake_socket();
    }

    /// The client is told that it asks for too much, and what runs is dropped.
    fn calm(&mut self, proxy: &Proxy, limit: DoorLimit) {
        if !matches!(self.phase, Phase::Closing(_)) {
            proxy.counters.limited(limit);
            self.close(Reason::ENHANCE_YOUR_CALM);
        }
    }

    fn close(&mut self, reason: Reason) {
        self.phase = Phase::Closing(self.traffic.now());
        self.wire.connection.abrupt_shutdown(reason);
        self.wakeups.wake_socket();
    }

    /// When something is to be done next, as things stand, and what.
    fn deadline(&self, proxy: &Proxy) -> (Instant, Due) {
        let timeouts = &proxy.timeouts;
        let after = |since: Instant, patience: Duration| {
            since.checked_add(patience).unwrap_or_else(|| since + Duration::from_hours(87_600))
        };
        if let Phase::Closing(since) = self.phase {
            return (after(since, LINGER), Due::Drop);
        }
        let incomplete = self.traffic.incomplete_since().map(|since| (after(since, timeouts.header), Due::Incomplete));
        let next = match self.phase {
            _ if !self.tasks.is_empty() => self.wire.deadline(&self.limits, &self.traffic),
            // The library waits for an answer to the `PING` that it sends with the GOAWAY.
            Phase::Draining(since) => (after(since.max(self.idle_since), LINGER), Due::Close),
            // What has begun to come is no idle time.
            _ => incomplete.unwrap_or_else(|| (after(self.idle_since, timeouts.idle), Due::Idle)),
        };
        incomplete.filter(|incomplete| incomplete.0 < next.0).unwrap_or(next)
    }

    /// Does what is due. Ready at the end of the connection.
    fn poll_alarm(&mut self, proxy: &Proxy, mut alarm: Pin<&mut Sleep>, cx: &mut Context<'_>) -> Poll<()> {
        // The alarm is set only to an earlier time than it has. When it rings, the deadline has usually moved on.
        let (mut deadline, mut due) = self.deadline(proxy);
        if deadline < alarm.deadline().into_std() {
            alarm.as_mut().reset(deadline.into());
        }
        while alarm.as_mut().poll(cx).is_ready() {
            if deadline <= self.traffic.now() {
                match due {
                    Due::Drop => return Poll::Ready(()),
                    Due::Dead => {
                        proxy.counters.limited(DoorLimit::Http2PingTimeout);
                        return Poll::Ready(());
                    }
                    Due::Incomplete => self.calm(proxy, DoorLimit::HeaderTimeout),
                    Due::Idle => {
                        proxy.counters.limited(DoorLimit::IdleTimeout);
                        self.drain();
                    }
                    Due::Close => self.close(Reason::NO_ERROR),
                    Due::Ping => self.wire.send(&self.traffic),
                }
                (deadline, due) = self.deadline(proxy);
            }
            alarm.as_mut().reset(deadline.into());
        }
        Poll::Pending
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Wire<S> {
    fn new(mut connection: Connection<Watched<S>, Bytes>) -> Self {
        let pings = connection.ping_pong();
        Self { connection, pings, sent: None }
    }

    /// Whatever the client sends says that it is there, not only the answer to a `PING`.
    fn deadline(&self, limits: &Http2Limits, traffic: &Traffic) -> (Instant, Due) {
        match self.sent.filter(|sent| traffic.heard() <= *sent) {
            Some(sent) => (sent + limits.ping_timeout, Due::Dead),
            None => (traffic.heard() + limits.ping_interval, Due::Ping),
        }
    }

    fn send(&mut self, traffic: &Traffic) {
        let Some(pings) = &mut self.pings else { return };
        // The answer to the last one is fetched, if it has come; if not, something else was heard of the client since.
        let _ = pings.poll_pong(&mut Context::from_waker(Waker::noop()));
        let _ = pings.send_ping(Ping::opaque());
        self.sent = Some(traffic.now());
    }
}
