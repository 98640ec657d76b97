//! What a client's connection is doing, since when, and how long it may.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Timeouts;

/// The state of one client's connection that its deadlines depend on.
///
/// A connection has one timer, which looks at this when it fires; what happens in between only writes a stamp. So a
/// request costs the timer wheel nothing.
#[derive(Debug)]
pub(super) struct Activity {
    /// The time at which the connection's task was woken: what happens in one go happens at one time.
    now: Cell<Instant>,
    phase: Cell<Phase>,
    since: Cell<Instant>,
    uploading: Cell<bool>,
    late: Cell<bool>,
    unread: Cell<bool>,
}

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The first byte of all.
    Opened,
    /// The first byte of another request.
    Idle,
    /// The rest of a request's fields, counted from their first byte: a trickle does not extend it.
    Head,
    /// The upstream's response fields.
    Exchange,
    /// The end of the response.
    Answer,
}

impl Activity {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self {
            now: Cell::new(now),
            phase: Cell::new(Phase::Opened),
            since: Cell::new(now),
            uploading: Cell::new(false),
            late: Cell::new(false),
            unread: Cell::new(false),
        }
    }

    /// The connection's task was woken. One look at the clock a wake-up instead of one an event saves a request a dozen
    /// of them, 0.3 us.
    pub(super) fn wake(&self) {
        self.now.set(Instant::now());
    }

    /// When the connection's task was woken.
    pub(super) fn now(&self) -> Instant {
        self.now.get()
    }

    fn enter(&self, phase: Phase) {
        self.phase.set(phase);
        self.moved();
    }

    /// The request's fields are complete; `uploading` if a body follows.
    pub(super) fn exchange(&self, uploading: bool) {
        self.uploading.set(uploading);
        self.late.set(false);
        self.unread.set(false);
        self.enter(Phase::Exchange);
    }

    /// The response's fields are known.
    pub(super) fn answer(&self) {
        self.enter(Phase::Answer);
    }

    /// The response has ended.
    pub(super) fn idle(&self) {
        self.enter(Phase::Idle);
    }

    /// A part of a body has moved.
    pub(super) fn moved(&self) {
        self.since.set(self.now.get());
    }

    /// The request's body has ended; from now on it is the upstream that is waited for.
    pub(super) fn uploaded(&self) {
        self.uploading.set(false);
        self.moved();
    }

    /// The request's body was dropped before its end.
    pub(super) fn left_unread(&self) {
        self.unread.set(true);
    }

    /// Whether the last request's body may still be on its way.
    pub(super) fn has_unread(&self) -> bool {
        self.unread.get()
    }

    /// Whether the request has a body that has not ended.
    pub(super) fn is_uploading(&self) -> bool {
        self.uploading.get()
    }

    /// Whether the upstream's response fields are overdue.
    pub(super) fn is_late(&self) -> bool {
        self.late.get()
    }

    /// When the patience ends, as things stand.
    pub(super) fn deadline(&self, timeouts: &Timeouts) -> Instant {
        let patience = match self.phase.get() {
            Phase::Opened | Phase::Head => timeouts.header,
            Phase::Idle | Phase::Answer => timeouts.idle,
            Phase::Exchange if self.uploading.get() => timeouts.idle,
            Phase::Exchange => timeouts.response,
        };
        self.since.get().checked_add(patience).unwrap_or_else(|| self.since.get() + FOREVER)
    }

    /// The deadline has passed. Returns whether a response can still say so; if not, the connection ends. A response
    /// that is not there one more deadline later will never be.
    pub(super) fn expire(&self) -> bool {
        let answerable = self.phase.get() == Phase::Exchange && !self.late.replace(true);
        self.moved();
        answerable
    }

    fn received(&self) {
        match self.phase.get() {
            Phase::Opened | Phase::Idle => self.enter(Phase::Head),
            // What a client sends on its own while it is answered (the next request, pipelined) buys it no time.
            Phase::Head | Phase::Exchange | Phase::Answer => {}
        }
    }

    fn sent(&self) {
        if matches!(self.phase.get(), Phase::Idle | Phase::Answer) {
            self.moved();
        }
    }
}

/// Ten years, for a timeout that is so long that the clock cannot add it.
const FOREVER: Duration = Duration::from_hours(87_600);

/// A client's stream, watched.
#[derive(Debug)]
pub(super) struct Watched<S> {
    stream: S,
    activity: Rc<Activity>,
}

impl<S> Watched<S> {
    pub(super) const fn new(stream: S, activity: Rc<Activity>) -> Self {
        Self { stream, activity }
    }

    pub(super) fn into_inner(self) -> S {
        self.stream
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.activity.received();
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        if polled.is_ready() {
            self.activity.sent();
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        if polled.is_ready() {
            self.activity.sent();
        }
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
