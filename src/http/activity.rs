//! The deadlines of a client's connection or stream, and the timer for them.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tokio::time::{Sleep, sleep_until};

use super::admission::{BYTES_PER_RESPONSE, SlowReaders};
use super::failure::UpstreamError;
use super::limits::Timeouts;
use super::observer::HttpLimit;

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
    uploading: Cell<bool>,
    late: Cell<bool>,
    /// True once the process is shutting down.
    draining: Cell<bool>,
    upload: Pace,
    download: Pace,
    reader: Cell<ReaderPace>,
    /// The number of responses that the current one counts as while it waits.
    weight: Cell<u64>,
    slow_readers: Rc<SlowReaders>,
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
    /// Waits for the upstream's response headers.
    Exchange,
    /// Waits for the end of the response.
    Answer,
    /// The response is a stream of our own and may be silent for any time. A client that does not read it still times
    /// out.
    Stream,
    /// Waits for bytes of another protocol, in either direction.
    Tunnel,
}

/// The time that a client kept us waiting for a body, and the bytes it moved in that time.
///
/// Time spent waiting for the upstream does not count, so a slow upstream does not make its client slow.
#[derive(Debug, Default)]
struct Pace {
    waited: Cell<Duration>,
    bytes: Cell<u64>,
    since: Cell<Option<Instant>>,
}

/// A grace period at the start of each body, because connections pause and windows fill. Kestrel's
/// `MinRequestBodyDataRate` has the same.
const RATE_GRACE: Duration = Duration::from_secs(5);

impl Pace {
    fn reset(&self) {
        self.waited.set(Duration::ZERO);
        self.bytes.set(0);
        self.since.set(None);
    }

    fn wait(&self, now: Instant) {
        if self.since.get().is_none() {
            self.since.set(Some(now));
        }
    }

    fn moved(&self, bytes: u64, now: Instant) {
        self.bytes.set(self.bytes.get() + bytes);
        if let Some(since) = self.since.take() {
            self.waited.set(self.waited.get() + now.saturating_duration_since(since));
        }
    }

    /// Returns when the client, if it is being waited for, falls below the rate.
    fn deadline(&self, rate: u64) -> Option<Instant> {
        let since = self.since.get().filter(|_| rate > 0)?;
        let earned = RATE_GRACE + Duration::from_millis(self.bytes.get().saturating_mul(1_000) / rate);
        since.checked_add(earned.saturating_sub(self.waited.get()))
    }
}

impl Activity {
    pub(super) fn new(now: Instant, slow_readers: Rc<SlowReaders>) -> Self {
        Self {
            now: Cell::new(now),
            phase: Cell::new(Phase::Opened),
            since: Cell::new(now),
            uploading: Cell::new(false),
            late: Cell::new(false),
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
        self.uploading.set(uploading);
        self.late.set(false);
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
        self.upload.wait(self.now.get());
    }

    /// A part of the request's body has arrived.
    pub(crate) fn uploaded(&self, bytes: u64) {
        self.upload.moved(bytes, self.now.get());
        self.moved();
    }

    /// The request's body has ended. From now on the upstream is waited for.
    pub(crate) fn upload_ended(&self) {
        self.uploading.set(false);
        self.upload.since.set(None);
        self.moved();
    }

    /// The client is not reading the response.
    pub(crate) fn awaits_download(&self) {
        if self.reader.get() == ReaderPace::Prompt {
            self.reader.set(if self.slow_readers.begin(self.weight.get()) {
                ReaderPace::Slow
            } else {
                ReaderPace::Excess
            });
        }
        self.download.wait(self.now.get());
    }

    /// The client has read a part of the response.
    pub(crate) fn downloaded(&self, bytes: u64) {
        self.stop_waiting();
        self.download.moved(bytes, self.now.get());
        self.moved();
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

    /// Returns whether the upstream's response headers are overdue.
    pub(crate) fn is_late(&self) -> bool {
        self.late.get()
    }

    /// Returns the error if the upstream's response headers are overdue.
    pub(super) fn overdue(&self) -> Option<UpstreamError> {
        let stalled = self.is_uploading();
        self.is_late().then_some(if stalled { UpstreamError::UploadStalled } else { UpstreamError::ResponseTimeout })
    }

    /// Returns the next deadline and the limit that it enforces; no limit if the upstream is being waited for.
    fn deadline(&self, timeouts: &Timeouts) -> (Instant, Option<HttpLimit>) {
        if self.reader.get() == ReaderPace::Excess {
            return (self.now.get(), Some(HttpLimit::SlowReaders));
        }
        let (patience, limit) = match self.phase.get() {
            Phase::Opened | Phase::Idle if self.draining.get() => (DRAIN_PATIENCE, None),
            Phase::Opened => (timeouts.first_byte, Some(HttpLimit::FirstByteTimeout)),
            Phase::Head => (timeouts.header, Some(HttpLimit::HeaderTimeout)),
            Phase::Idle => (timeouts.idle, Some(HttpLimit::IdleTimeout)),
            Phase::Answer => (timeouts.body, Some(HttpLimit::BodyTimeout)),
            Phase::Exchange if self.uploading.get() => (timeouts.body, Some(HttpLimit::BodyTimeout)),
            Phase::Exchange => (timeouts.response, None),
            Phase::Stream => (FOREVER, None),
            Phase::Tunnel => (timeouts.tunnel, Some(HttpLimit::TunnelTimeout)),
        };
        let since = self.since.get();
        let mut deadline = (since.checked_add(patience).unwrap_or_else(|| since + FOREVER), limit);
        for (pace, limit) in [(&self.upload, HttpLimit::UploadRate), (&self.download, HttpLimit::DownloadRate)] {
            if self.phase.get() == Phase::Stream && limit == HttpLimit::UploadRate {
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

    /// Handles a missed deadline. Returns whether a response can still report it. If no response starts by the next
    /// deadline, the connection or stream is closed.
    fn expire(&self) -> bool {
        let answerable = self.phase.get() == Phase::Exchange && !self.late.replace(true);
        self.upload.reset();
        self.download.reset();
        self.stop_waiting();
        self.moved();
        answerable
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
                if !self.expire() {
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

/// Ten years, in place of timeouts that overflow the clock.
const FOREVER: Duration = Duration::from_hours(87_600);

/// A timer that fires at its deadline or earlier.
///
/// A deadline usually moves to a later time long before it passes, with every request and every part of a body. So the
/// timer is only ever set to an earlier time than before, and the deadline is checked again when it fires. Events in
/// between do not touch the timer wheel.
#[derive(Debug, Default)]
pub(super) struct Alarm {
    /// Boxed because it must not move.
    sleep: Option<Pin<Box<Sleep>>>,
    /// The time at which it fires, and the task to wake.
    set: Option<(Instant, Waker)>,
}

impl Alarm {
    /// Returns whether the deadline has passed; if not, the task is woken when it has. `now` is when the task was
    /// woken.
    pub(super) fn poll(&mut self, deadline: Instant, now: Instant, cx: &mut Context<'_>) -> bool {
        if deadline <= now {
            return true;
        }
        let is_set = |(time, waker): &(Instant, Waker)| now < *time && *time <= deadline && waker.will_wake(cx.waker());
        if !self.set.as_ref().is_some_and(is_set) {
            let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(deadline.into())));
            sleep.as_mut().reset(deadline.into());
            self.set = Some((deadline, cx.waker().clone()));
            if sleep.as_mut().poll(cx).is_ready() {
                // It has passed since the task was woken.
                self.set = None;
                cx.waker().wake_by_ref();
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    #[test]
    fn only_the_time_counts_in_which_the_client_is_waited_for() {
        let (pace, start) = (Pace::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(pace.deadline(100), None);
        pace.wait(at(10));
        assert_eq!(pace.deadline(100), Some(at(15)), "the grace");
        pace.wait(at(12));
        pace.moved(300, at(13));
        assert_eq!(pace.deadline(100), None, "it is not waited for");
        pace.wait(at(50));
        assert_eq!(pace.deadline(100), Some(at(55)), "5 s of grace and 3 s for 300 bytes, less the 3 s it has waited");
        assert_eq!(pace.deadline(0), None, "no minimum");
    }

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
        check(4, Some(HttpLimit::BodyTimeout));
        activity.upload_ended();
        check(5, None);
        assert!(activity.expire() && activity.is_late() && !activity.expire());
        activity.enter(Phase::Answer);
        check(4, Some(HttpLimit::BodyTimeout));
        activity.awaits_download();
        check(4, Some(HttpLimit::BodyTimeout));
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
        activity.enter(Phase::Stream);
        activity.awaits_upload();
        assert!(activity.deadline(&timeouts).0 > activity.now() + seconds(86_400));
        activity.upload_ended();
        activity.enter(Phase::Idle);
        check(3, Some(HttpLimit::IdleTimeout));
        activity.enter(Phase::Tunnel);
        check(6, Some(HttpLimit::TunnelTimeout));
    }

    /// Sets an alarm to these deadlines one after the other, in milliseconds from now, each by a task of its own that does
    /// not wait; then waits for the last one.
    async fn check(before: &[u64], last: u64) {
        let (start, mut alarm) = (Instant::now(), Alarm::default());
        let at = |millis| start + Duration::from_millis(millis);
        for millis in before {
            assert!(!alarm.poll(at(*millis), start, &mut Context::from_waker(Waker::noop())), "{millis} ms");
        }
        let ring = poll_fn(|cx| if alarm.poll(at(last), Instant::now(), cx) { Poll::Ready(()) } else { Poll::Pending });
        assert!(timeout(Duration::from_secs(10), ring).await.is_ok(), "{before:?}, {last}: nobody was woken");
        assert!(Instant::now() >= at(last), "{before:?}, {last}: it rang too early");
    }

    #[tokio::test]
    async fn whoever_waits_is_woken_at_the_last_deadline() {
        check(&[], 0).await;
        check(&[], 5).await;
        check(&[5], 5).await;
        check(&[3_600_000], 5).await;
        check(&[5], 20).await;
        check(&[20, 5], 40).await;
    }
}
