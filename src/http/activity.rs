//! The deadlines of a client's connection or stream.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use super::admission::{BYTES_PER_RESPONSE, SlowReaders};
use super::alarm::{Alarm, FOREVER, after};
use super::failure::UpstreamError;
use super::limits::{RouteTimeouts, Timeouts};
use super::pace::Pace;
use crate::message::connection::{Cut, HttpLimit, UpstreamFailure};

/// The state of a client's connection, or of one HTTP/2 stream, that determines its deadlines.
///
/// A single timer looks at it when it fires; events only write a timestamp. So a request does not touch the timer
/// wheel.
#[derive(Debug)]
pub(crate) struct Activity {
    /// The time of the last wake-up. All events of one wake-up share it.
    now: Cell<Instant>,
    phase: Cell<Phase>,
    since: Cell<Instant>,
    /// The timeouts of the request's route. Boxed because few have their own.
    route: RefCell<Option<Box<RouteTimeouts>>>,
    uploading: Cell<bool>,
    /// True if the request's body is messages with pauses between them, so that it has no rate.
    sends_messages: Cell<bool>,
    /// The side that did not continue the exchange in time.
    late: Cell<Option<Party>>,
    /// The cause of the exchange's early end.
    cut: Cell<Option<Cut>>,
    /// The reason, if the upstream failed in the middle of the response.
    upstream_error: Cell<Option<UpstreamFailure>>,
    /// True once the process is shutting down.
    draining: Cell<bool>,
    upload: Pace,
    download: Pace,
    reader: Cell<ReaderPace>,
    /// The number of responses that the current one counts as while it waits.
    weight: Cell<u64>,
    slow_readers: Rc<SlowReaders>,
}

/// A side of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Party {
    Client,
    Upstream,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReaderPace {
    /// The client reads the response as it comes.
    Prompt,
    /// The response waits for the client and counts as slow.
    Slow,
    /// The response would have to wait, but too many already do.
    Excess,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Waits for the connection's first byte.
    Opened,
    /// Waits for the next request's first byte.
    Idle,
    /// Waits for the rest of the headers. The time counts from their first byte, so a trickle does not extend it.
    Head,
    /// The request waits for its turn by a limit with `delay`. Nobody else is waited for.
    Held,
    /// Waits for the request's body and the upstream's response headers.
    Exchange,
    /// Waits for the end of the response.
    Answer,
    /// The same, but the response may be silent for any time. A client that does not read it still times out.
    Stream,
    /// Waits for bytes of another protocol, in either direction.
    Tunnel,
}

impl Activity {
    pub(super) fn new(now: Instant, slow_readers: Rc<SlowReaders>) -> Self {
        Self {
            now: Cell::new(now),
            phase: Cell::new(Phase::Opened),
            since: Cell::new(now),
            route: RefCell::default(),
            uploading: Cell::new(false),
            sends_messages: Cell::new(false),
            late: Cell::new(None),
            cut: Cell::new(None),
            upstream_error: Cell::new(None),
            draining: Cell::new(false),
            upload: Pace::default(),
            download: Pace::default(),
            reader: Cell::new(ReaderPace::Prompt),
            weight: Cell::new(1),
            slow_readers,
        }
    }

    /// Returns when the task was woken. Reading the clock once per wake-up instead of once per event saves each request
    /// a dozen reads, 0.3 us.
    pub(crate) fn now(&self) -> Instant {
        self.now.get()
    }

    pub(super) fn enter(&self, phase: Phase) {
        self.phase.set(phase);
        self.late.set(None);
        self.moved();
    }

    /// Called at a request's first byte. Bytes sent while the previous request is answered (pipelining) do not extend
    /// any deadline.
    pub(crate) fn received(&self) {
        if matches!(self.phase.get(), Phase::Opened | Phase::Idle) {
            self.enter(Phase::Head);
        }
    }

    /// The request's headers are complete; `uploading` if a body follows.
    pub(crate) fn exchange(&self, uploading: bool) {
        self.route.take();
        self.uploading.set(uploading);
        self.sends_messages.set(false);
        self.cut.set(None);
        self.upstream_error.set(None);
        self.upload.reset();
        self.download.reset();
        self.stop_waiting();
        self.weight.set(1);
        self.enter(Phase::Exchange);
    }

    /// While the response waits for its client, it may hold this many bytes in addition to the usual ones.
    pub(super) fn holds(&self, bytes: u64) {
        self.stop_waiting();
        self.weight.set(1 + bytes.div_ceil(BYTES_PER_RESPONSE));
    }

    /// The request's route has timeouts of its own.
    pub(crate) fn takes_route(&self, timeouts: RouteTimeouts) {
        self.route.replace(Some(Box::new(timeouts)));
    }

    fn of_route(&self) -> RouteTimeouts {
        self.route.borrow().as_deref().copied().unwrap_or_default()
    }

    /// The request waits for its turn by a limit.
    pub(crate) fn hold(&self) {
        self.enter(Phase::Held);
    }

    /// The request's turn has come.
    pub(crate) fn resume(&self) {
        self.enter(Phase::Exchange);
    }

    /// The request's body is messages for a server that reads them one by one. An attacker cannot choose this for a server
    /// that waits for a whole body.
    pub(super) fn send_messages(&self) {
        self.sends_messages.set(true);
    }

    /// The response's headers have come. It `may_pause` for any time.
    pub(super) fn answer(&self, may_pause: bool) {
        self.enter(if may_pause { Phase::Stream } else { Phase::Answer });
    }

    /// The process is shutting down, so an idle connection is closed soon.
    pub(crate) fn drain(&self) {
        self.draining.set(true);
        self.moved();
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.get()
    }

    /// Some progress was made.
    pub(crate) fn moved(&self) {
        self.since.set(self.now.get());
    }

    /// The client has sent no more of the request's body yet.
    pub(crate) fn awaits_upload(&self) {
        if self.upload.wait(self.now.get()) {
            self.moved();
        }
    }

    /// Returns whether the request waits for more of its body from the client.
    pub(super) const fn is_awaiting_upload(&self) -> bool {
        self.upload.is_waiting()
    }

    /// Returns when the exchange last made progress or began to wait for another side.
    pub(super) const fn since(&self) -> Instant {
        self.since.get()
    }

    /// A part of the request's body has arrived.
    pub(crate) fn uploaded(&self, bytes: u64) {
        self.upload.moved(bytes, self.now.get());
        self.moved();
    }

    /// The request's body has ended. From now on the upstream is waited for.
    pub(crate) fn upload_ended(&self) {
        self.uploading.set(false);
        self.upload.stop();
        self.moved();
    }

    /// The client is not reading the response.
    pub(crate) fn awaits_download(&self) {
        if self.reader.get() == ReaderPace::Prompt {
            let has_room = self.slow_readers.begin(self.weight.get());
            self.reader.set(if has_room { ReaderPace::Slow } else { ReaderPace::Excess });
        }
        if self.download.wait(self.now.get()) && self.phase.get() != Phase::Exchange {
            self.moved();
        }
    }

    /// The client has read a part of the response. Interim responses before it give the upstream no more time.
    pub(crate) fn downloaded(&self, bytes: u64) {
        self.stop_waiting();
        self.download.moved(bytes, self.now.get());
        if self.phase.get() != Phase::Exchange {
            self.moved();
        }
    }

    fn stop_waiting(&self) {
        if self.reader.replace(ReaderPace::Prompt) == ReaderPace::Slow {
            self.slow_readers.end(self.weight.get());
        }
    }

    /// Returns whether the request has a body that has not ended.
    pub(crate) fn is_uploading(&self) -> bool {
        self.uploading.get()
    }

    /// Returns whether a part of the exchange is overdue: the request's body, or the upstream's response.
    pub(crate) const fn is_late(&self) -> bool {
        self.late.get().is_some()
    }

    /// Returns the error if the upstream's response headers are overdue.
    pub(super) fn overdue(&self) -> Option<UpstreamError> {
        Some(match self.late.get()? {
            Party::Client => UpstreamError::UploadStalled,
            Party::Upstream => UpstreamError::ResponseTimeout,
        })
    }

    /// The upstream failed in the middle of the response.
    pub(super) fn upstream_cut(&self, reason: UpstreamFailure) {
        self.upstream_error.set(Some(reason));
        self.cut_by(if self.is_late() { Cut::Timeout } else { Cut::Upstream });
    }

    /// The exchange ends early. The first cause counts: it brings about the others.
    pub(super) fn cut_by(&self, cut: Cut) {
        if self.cut.get().is_none() {
            self.cut.set(Some(cut));
        }
    }

    /// Returns what ended the exchange early.
    pub(crate) const fn cut(&self) -> Option<Cut> {
        self.cut.get()
    }

    /// Returns how the upstream failed in the middle of the response.
    pub(crate) const fn upstream_error(&self) -> Option<UpstreamFailure> {
        self.upstream_error.get()
    }

    /// Returns the next deadline and the limit that it enforces; no limit if it is the upstream's.
    fn deadline(&self, timeouts: &Timeouts) -> (Instant, Option<HttpLimit>) {
        if self.reader.get() == ReaderPace::Excess {
            return (self.now.get(), Some(HttpLimit::SlowReaders));
        }
        let phase = self.phase.get();
        let (patience, limit) = match phase {
            Phase::Opened | Phase::Idle if self.draining.get() => (DRAIN_PATIENCE, None),
            Phase::Opened => (timeouts.first_byte, Some(HttpLimit::FirstByteTimeout)),
            Phase::Head => (timeouts.header, Some(HttpLimit::HeaderTimeout)),
            Phase::Idle => (timeouts.idle, Some(HttpLimit::IdleTimeout)),
            Phase::Exchange | Phase::Answer if self.upload.is_waiting() => {
                (timeouts.body, Some(HttpLimit::BodyTimeout))
            }
            Phase::Answer | Phase::Stream if self.download.is_waiting() => {
                (timeouts.body, Some(HttpLimit::BodyTimeout))
            }
            Phase::Exchange => (self.of_route().response.unwrap_or(timeouts.response), None),
            Phase::Answer => (self.of_route().upstream_body.unwrap_or(timeouts.upstream_body), None),
            Phase::Held | Phase::Stream => (FOREVER, None),
            Phase::Tunnel => (timeouts.tunnel, Some(HttpLimit::TunnelTimeout)),
        };
        let since = self.since.get();
        let mut deadline = (after(since, patience), limit);
        let has_rate = matches!(phase, Phase::Exchange | Phase::Answer) && !self.sends_messages.get();
        for (pace, limit) in [(&self.upload, HttpLimit::UploadRate), (&self.download, HttpLimit::DownloadRate)] {
            if limit == HttpLimit::UploadRate && !has_rate {
                continue;
            }
            let is_slow = limit == HttpLimit::DownloadRate && self.reader.get() == ReaderPace::Slow;
            let rate = if is_slow { self.slow_readers.rate(timeouts.min_rate) } else { timeouts.min_rate };
            if let Some(end) = pace.deadline(rate).filter(|end| *end < deadline.0) {
                deadline = (end, Some(limit));
            }
        }
        deadline
    }

    /// Handles a missed deadline. Returns whether the exchange can still end by itself: with a response that reports it, or with
    /// the end of an upstream's response that the upstream does not continue. If it does not until the next deadline, the
    /// connection or stream is closed.
    fn expire(&self, limit: Option<HttpLimit>) -> bool {
        let party = if limit.is_some() { Party::Client } else { Party::Upstream };
        let may_end = match self.phase.get() {
            Phase::Exchange => true,
            Phase::Answer => party == Party::Upstream,
            _ => false,
        };
        let may_end = may_end && self.late.replace(Some(party)).is_none();
        if !may_end {
            self.cut_by(Cut::Timeout);
        }
        self.upload.reset();
        self.download.reset();
        self.stop_waiting();
        self.moved();
        may_end
    }

    /// Runs `work` until it ends, or returns `None` if nothing moves in time. `overdue` is told of each limit that is
    /// reached, and `clock` returns when the task was woken.
    pub(super) async fn watch<T>(
        &self,
        timeouts: &Timeouts,
        alarm: &mut Alarm,
        clock: impl Fn() -> Instant,
        work: impl Future<Output = T>,
        overdue: impl Fn(HttpLimit),
    ) -> Option<T> {
        let mut work = pin!(work);
        poll_fn(|cx| {
            self.now.set(clock());
            loop {
                if let Poll::Ready(done) = work.as_mut().poll(cx) {
                    return Poll::Ready(Some(done));
                }
                let (deadline, limit) = self.deadline(timeouts);
                if !alarm.poll(deadline, self.now.get(), cx) {
                    return Poll::Pending;
                }
                if let Some(limit) = limit {
                    overdue(limit);
                }
                if !self.expire(limit) {
                    return Poll::Ready(None);
                }
            }
        })
        .await
    }
}

impl Drop for Activity {
    fn drop(&mut self) {
        self.stop_waiting();
    }
}

/// The idle timeout while the process is shutting down. A request that crosses our close would be
/// lost; nearly all round trips are shorter than this.
pub(crate) const DRAIN_PATIENCE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_phase_has_its_patience() {
        let seconds = Duration::from_secs;
        let timeouts = Timeouts {
            first_byte: seconds(1),
            header: seconds(2),
            idle: seconds(3),
            body: seconds(4),
            response: seconds(5),
            tunnel: seconds(6),
            upstream_body: seconds(7),
            min_rate: 100,
            ..Timeouts::default()
        };
        let readers = Rc::new(SlowReaders::new(1));
        let activity = Activity::new(Instant::now(), readers.clone());
        let check = |patience, limit| {
            assert_eq!(activity.deadline(&timeouts), (activity.now() + seconds(patience), limit));
        };
        check(1, Some(HttpLimit::FirstByteTimeout));
        activity.received();
        check(2, Some(HttpLimit::HeaderTimeout));
        activity.exchange(true);
        check(5, None);
        activity.takes_route(RouteTimeouts { response: Some(seconds(8)), upstream_body: None });
        check(8, None);
        activity.awaits_upload();
        check(4, Some(HttpLimit::BodyTimeout));
        activity.hold();
        assert!(activity.deadline(&timeouts).0 > activity.now() + seconds(86_400));
        activity.resume();
        activity.upload_ended();
        check(8, None);
        activity.takes_route(RouteTimeouts::default());
        check(5, None);
        let ended = activity.now();
        activity.now.set(ended + seconds(1));
        // An interim response.
        activity.awaits_download();
        activity.downloaded(100);
        assert_eq!(activity.deadline(&timeouts), (ended + seconds(5), None));
        assert!(activity.expire(None) && activity.is_late() && !activity.expire(None));
        activity.answer(false);
        check(7, None);
        activity.awaits_download();
        check(4, Some(HttpLimit::BodyTimeout));
        activity.takes_route(RouteTimeouts { response: Some(seconds(8)), upstream_body: Some(seconds(9)) });
        activity.downloaded(1);
        check(9, None);
        activity.exchange(false);
        check(5, None);
        activity.answer(false);
        activity.awaits_download();
        let another = Activity::new(activity.now(), readers.clone());
        another.enter(Phase::Answer);
        another.awaits_download();
        assert_eq!(another.deadline(&timeouts), (another.now(), Some(HttpLimit::SlowReaders)));
        activity.downloaded(1);
        another.downloaded(1);
        another.awaits_download();
        assert_eq!(another.deadline(&timeouts).1, Some(HttpLimit::BodyTimeout));
        drop(another);
        assert!(readers.begin(1));
        readers.end(1);
        activity.answer(true);
        activity.awaits_upload();
        assert!(activity.deadline(&timeouts).0 > activity.now() + seconds(86_400));
        activity.awaits_download();
        check(4, Some(HttpLimit::BodyTimeout));
        activity.downloaded(1);
        activity.upload_ended();
        activity.enter(Phase::Idle);
        check(3, Some(HttpLimit::IdleTimeout));
        activity.enter(Phase::Tunnel);
        check(6, Some(HttpLimit::TunnelTimeout));
    }
}
