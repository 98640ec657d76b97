//! A worker's idle connections to one upstream.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::counters::Counters;
use super::exchange::Connection;
use super::log::Throttle;

/// Idle connections that a worker keeps; one that comes back to a full pool is closed. As many as nginx is usually told
/// to keep (`keepalive 256`): enough for 10 000 requests a second at 25 ms each.
const MAX_IDLE: usize = 256;

/// The connections, the one that was used last at the back.
#[derive(Debug)]
pub(super) struct Pool {
    /// Host and port, for the log.
    authority: String,
    idle: RefCell<VecDeque<Box<Connection>>>,
    idle_time: Duration,
    counters: Rc<Counters>,
    log: Throttle,
}

impl Pool {
    pub(super) fn new(authority: String, idle_time: Duration, counters: Rc<Counters>) -> Rc<Self> {
        Rc::new(Self { authority, idle: RefCell::default(), idle_time, counters, log: Throttle::default() })
    }

    /// The connection that was used last: it is the least likely to have been closed, and the others get a chance to
    /// grow old.
    pub(super) fn take(&self, now: Instant) -> Option<Box<Connection>> {
        let mut idle = self.idle.borrow_mut();
        let connection = idle.pop_back()?;
        if now.saturating_duration_since(connection.idle_since) < self.idle_time {
            return Some(connection);
        }
        // The others are older.
        idle.clear();
        None
    }

    /// Keeps a connection for another request.
    pub(super) fn put(&self, mut connection: Box<Connection>, now: Instant) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() < MAX_IDLE {
            connection.idle_since = now;
            idle.push_back(connection);
        }
    }

    /// Closes connections that have been idle for too long.
    pub(super) fn reap(&self) {
        let mut idle = self.idle.borrow_mut();
        while idle.front().is_some_and(|oldest| oldest.idle_since.elapsed() >= self.idle_time) {
            idle.pop_front();
        }
    }

    /// Counts and logs that the upstream failed; `reason` is one of [`crate::metrics::UPSTREAM_ERRORS`].
    pub(super) fn failed(&self, reason: &'static str, error: &dyn std::error::Error) {
        self.counters.upstream_failed(reason);
        if let Some(suppressed) = self.log.pass() {
            tracing::warn!(upstream = %self.authority, reason, suppressed, "upstream failed: {error}");
        }
    }

    /// The response's body broke off.
    pub(super) fn body_failed(&self, error: &hyper::Error) {
        self.failed("body", error);
    }
}
