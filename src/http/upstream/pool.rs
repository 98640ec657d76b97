//! Idle connections to one endpoint.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Idle connections that are kept; further ones are closed. nginx is usually configured to keep as many (`keepalive
/// 256`). It is enough for 10 000 requests per second of 25 ms each.
const MAX_IDLE: usize = 256;

/// The connections, most recently used last.
#[derive(Debug)]
pub(super) struct Pool<C> {
    idle: RefCell<VecDeque<Idle<C>>>,
    /// How long a connection is kept. It should be less than the server's own timeout, so that we close first: a
    /// request that is in flight when the server closes may or may not have been processed.
    idle_time: Duration,
}

#[derive(Debug)]
struct Idle<C> {
    connection: C,
    since: Instant,
}

impl<C> Pool<C> {
    pub(super) const fn new(idle_time: Duration) -> Self {
        Self { idle: RefCell::new(VecDeque::new()), idle_time }
    }

    /// Returns the most recently used connection. It is the least likely to have been closed, and lets the others age.
    pub(super) fn take(&self, now: Instant) -> Option<C> {
        let mut idle = self.idle.borrow_mut();
        let youngest = idle.pop_back()?;
        if now.saturating_duration_since(youngest.since) < self.idle_time {
            return Some(youngest.connection);
        }
        // The others are older.
        idle.clear();
        None
    }

    pub(super) fn put(&self, connection: C, now: Instant) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() < MAX_IDLE {
            idle.push_back(Idle { connection, since: now });
        }
    }

    /// Closes connections that have been idle for too long.
    pub(super) fn reap(&self, now: Instant) {
        let mut idle = self.idle.borrow_mut();
        while idle.front().is_some_and(|oldest| now.saturating_duration_since(oldest.since) >= self.idle_time) {
            idle.pop_front();
        }
    }

    pub(super) fn clear(&self) {
        self.idle.borrow_mut().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Duration = Duration::from_secs(4);

    #[test]
    fn the_one_that_was_used_last_is_used_first() {
        let (pool, start) = (Pool::new(IDLE), Instant::now());
        for connection in 0..3 {
            pool.put(connection, start);
        }
        assert_eq!(
            (pool.take(start), pool.take(start), pool.take(start), pool.take(start)),
            (Some(2), Some(1), Some(0), None)
        );
    }

    #[test]
    fn none_is_kept_beyond_its_time() {
        let (pool, start) = (Pool::new(IDLE), Instant::now());
        pool.put("old", start);
        pool.put("young", start + IDLE / 2);
        pool.reap(start + IDLE);
        assert_eq!(pool.take(start + IDLE), Some("young"));
        assert_eq!(pool.take(start + IDLE), None);
        pool.put("old", start);
        assert_eq!(pool.take(start + IDLE), None);
    }

    #[test]
    fn a_full_pool_keeps_no_more() {
        let (pool, start) = (Pool::new(IDLE), Instant::now());
        for connection in 0..=MAX_IDLE {
            pool.put(connection, start);
        }
        assert_eq!(pool.take(start), Some(MAX_IDLE - 1));
        pool.clear();
        assert_eq!(pool.take(start), None);
    }
}
