//! Late answers: is the server silent, or has it more to do than it can?
//!
//! Silence is a failure of the store, so `on_store_error` decides. Our own load is not: a flood must not switch limits off.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::calls::OUTSTANDING;
use super::connection::Connection;
use super::shared_call::MAX_CHARGES;
use super::{BUSY, Node};
use crate::store::redis::diagnosis::Diagnosis;
use crate::store::{Fault, StoreError};

/// The most requests that a server has at a time, unless it is far away. With more, the load may be why answers are late.
const CAPACITY: usize = OUTSTANDING * MAX_CHARGES;

/// The number of requests that wait for an answer.
#[derive(Default)]
pub(super) struct WaitingRequests {
    count: Arc<AtomicUsize>,
    /// The last time that they were more than [`CAPACITY`] when a request joined them.
    crowded: Mutex<Option<Instant>>,
}

/// One of these, until it is dropped.
pub(super) struct WaitingRequest(Arc<AtomicUsize>);

impl WaitingRequests {
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self) -> WaitingRequest {
        if self.count.fetch_add(1, Ordering::Relaxed) >= CAPACITY {
            *self.crowded.lock() = Some(Instant::now());
        }
        WaitingRequest(Arc::clone(&self.count))
    }

    /// True if they were more than [`CAPACITY`] since `span` before `begun`.
    pub(super) fn were_crowded(&self, begun: Instant, span: Duration) -> bool {
        self.crowded.lock().is_some_and(|crowded| crowded + span >= begun)
    }
}

impl Drop for WaitingRequest {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Node {
    /// Returns the error for a request that asked at `begun`, when `timely` calls had been answered in time, and did not get its turn
    /// in time.
    pub(super) fn without_turn(&self, begun: Instant, timely: u64) -> StoreError {
        let live = self.live.load();
        let Some(live) = live.as_ref() else { return StoreError::Down };
        if self.is_late(live, timely) && !self.is_overloaded(begun) { StoreError::Late(self.timeout) } else { BUSY }
    }

    /// Returns the error for a request of a call that asked at `since` and has no reply in time. `waited`: as many calls had been
    /// answered in time when the call began to wait for its turn, if it did.
    pub(super) fn without_reply(&self, live: &Connection, waited: Option<u64>, since: Instant) -> StoreError {
        if waited.is_some_and(|timely| !self.is_late(live, timely)) || self.is_overloaded(since) {
            return StoreError::Busy { sent: true };
        }
        let text = format!("answers take longer than the timeout of {:?}", self.timeout);
        self.note_failure(Diagnosis::new(Fault::Late, text));
        StoreError::Late(self.timeout)
    }

    /// True if more requests are waiting than a server has at a time, or were within a timeout before `begun`, or if a wait that began
    /// then took much longer than its timers while many were waiting. Then the load may be the reason for late replies: a crowd whose
    /// requests are rejected waits no longer, but the server is still at work for it. A server that is really silent is given up
    /// soon, and `on_store_error` applies from then on.
    pub(in crate::store::redis) fn is_overloaded(&self, begun: Instant) -> bool {
        let waiting = self.calls.requests();
        waiting > CAPACITY
            || waiting > MAX_CHARGES && begun.elapsed() >= self.timeout * 3 / 2
            || self.calls.requests.were_crowded(begun, self.timeout)
    }

    /// True if a call is overdue, or if none was answered in time since `timely` were. Those who wait behind such calls wait for the
    /// server, though replies come.
    fn is_late(&self, live: &Connection, timely: u64) -> bool {
        live.overdue.load(Ordering::Relaxed) > 0 || timely == self.timely()
    }

    /// The number of calls that were answered within the timeout of being sent.
    pub(super) fn timely(&self) -> u64 {
        self.timely.load(Ordering::Relaxed)
    }

    /// The number of requests that wait for an answer.
    pub(in crate::store::redis) fn waiting(&self) -> usize {
        self.calls.requests()
    }

    /// Returns the error of a request that asked at `begun`, when others were `waiting`, and waits no longer for its answer.
    pub(in crate::store::redis) fn late(&self, begun: Instant, waiting: usize) -> StoreError {
        // When the last ones of a flood are late, few are left.
        if waiting > CAPACITY || self.is_overloaded(begun) {
            StoreError::Busy { sent: true }
        } else {
            StoreError::Late(self.timeout)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_is_the_reason_for_what_is_late_until_a_timeout_after_its_last_request() {
        const TIMEOUT: Duration = Duration::from_millis(20);
        let waiting = WaitingRequests::default();
        let mut all: Vec<_> = (0..CAPACITY).map(|_| waiting.add()).collect();
        assert!(!waiting.were_crowded(Instant::now(), TIMEOUT));
        all.push(waiting.add());
        let last = Instant::now();
        // They are rejected, and the server is still at work for those that were sent.
        all.clear();
        assert!(waiting.were_crowded(last, TIMEOUT));
        assert!(!waiting.were_crowded(last + TIMEOUT + Duration::from_millis(1), TIMEOUT));
    }
}
