//! Late answers: is the server silent, or has it more to do than it can?
//!
//! Silence is a failure of the store, so `on_store_error` decides. Our own load is not: a flood must not switch limits off.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::time::Instant;

use super::calls::{MAX_CHARGES, OUTSTANDING};
use super::{BUSY, Node};
use crate::store::StoreError;

/// The number of requests that wait for an answer.
#[derive(Default)]
pub(super) struct WaitingRequests(AtomicUsize);

/// Some of these, until it is dropped.
pub(super) struct UntilDropped<'a>(&'a AtomicUsize, usize);

impl WaitingRequests {
    pub(super) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, count: usize) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// Lets this many of them wait until the result is dropped.
    pub(super) const fn until_dropped(&self, count: usize) -> UntilDropped<'_> {
        UntilDropped(&self.0, count)
    }
}

impl Drop for UntilDropped<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

impl Node {
    /// Returns the error for a call that did not get its turn in time.
    pub(super) fn without_turn(&self, begun: Instant) -> StoreError {
        match self.live.load().as_ref() {
            None => StoreError::Down,
            Some(live) if live.overdue.load(Ordering::Relaxed) > 0 && !self.is_overloaded(begun) => {
                StoreError::Late(self.timeout)
            }
            Some(_) => BUSY,
        }
    }

    /// True if more requests are waiting than a server has at a time, or if a wait that began at `begun` took much longer than its
    /// timers while many were waiting. Then the load may be the reason for late replies. A server that is really silent is given
    /// up soon, and `on_store_error` applies from then on.
    pub(in crate::store::redis) fn is_overloaded(&self, begun: Instant) -> bool {
        let waiting = self.calls.requests();
        waiting > OUTSTANDING * MAX_CHARGES || waiting > MAX_CHARGES && begun.elapsed() >= self.timeout * 3 / 2
    }

    /// The number of replies that have come on the current connection.
    pub(in crate::store::redis) fn heard(&self) -> Option<u64> {
        Some(self.live.load().as_ref()?.heard.load(Ordering::Relaxed))
    }

    /// Returns the error of a request that asked at `begun`, when `heard` replies had come, and waits no longer for its answer. A server
    /// that answers others meanwhile is not silent.
    pub(in crate::store::redis) fn late(&self, begun: Instant, heard: Option<u64>) -> StoreError {
        let is_serving = self.calls.are_full() && self.heard().is_some() && self.heard() != heard;
        if is_serving || self.is_overloaded(begun) {
            StoreError::Busy { sent: true }
        } else {
            StoreError::Late(self.timeout)
        }
    }
}
