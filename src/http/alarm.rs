//! A timer for deadlines that move.

use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use tokio::time::{Sleep, sleep_until};

/// Ten years, in place of timeouts that overflow the clock.
pub(super) const FOREVER: Duration = Duration::from_hours(87_600);

/// Returns when `patience` ends that began at `since`.
pub(super) fn after(since: Instant, patience: Duration) -> Instant {
    since.checked_add(patience).unwrap_or_else(|| since + FOREVER)
}

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
    use std::future::poll_fn;
    use std::task::Poll;

    use tokio::time::timeout;

    use super::*;

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

    #[test]
    fn no_patience_overflows_the_clock() {
        let start = Instant::now();
        assert_eq!(after(start, Duration::from_secs(5)), start + Duration::from_secs(5));
        assert_eq!(after(start, Duration::MAX), start + FOREVER);
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
