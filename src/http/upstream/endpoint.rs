//! One address of a server: what it is doing, whether it is to be used, and the right to use it for one request.

use std::cell::{Cell, RefCell};
use std::error::Error;
use std::fmt;
use std::num::NonZeroU32;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, Semaphore};

use super::super::http1::Keep;
use super::super::http2;
use super::super::lease;
use super::super::transport::{Address, Protocol};
use super::Connection;
use super::address::Server;
use super::cluster::{Cluster, Limits};
use super::pool::Pool;

/// Failures in a row that eject an endpoint: what Envoy's outlier detection takes (`consecutive_5xx`).
pub(super) const MAX_FAILURES: u32 = 5;

/// The first ejection: nginx' `fail_timeout`. Each that follows closely is twice as long.
const FIRST_EJECTION: Duration = Duration::from_secs(10);

/// The longest ejection: Envoy's `max_ejection_time`.
const LONGEST_EJECTION: Duration = Duration::from_mins(5);

/// One address of a server, as one worker sees it.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(super) server: Rc<Server>,
    pub(super) address: Rc<Address>,
    /// Idle connections of HTTP/1.1.
    pub(super) pool: Pool<Connection>,
    /// The one connection of HTTP/2, which all requests share.
    shared: RefCell<Option<Shared>>,
    /// Held while a connection is made that may become the shared one, so that requests that come together make one.
    pub(super) connecting: Mutex<()>,
    /// What it spoke the last time; a server of `https://` may choose.
    pub(super) speaks: Cell<Option<Protocol>>,
    idle_time: Duration,
    /// Requests that were given to it and are not done, those that stand in line included.
    outstanding: Cell<usize>,
    /// One for each request that may use a connection now. An HTTP/1.1 request has its connection for itself and takes an
    /// idle one before it opens another, so there are never more connections than this.
    slots: Semaphore,
    /// Requests in a row that failed.
    failures: Cell<u32>,
    ejection: Cell<Option<Ejection>>,
    /// What the health checks say; `true` without any.
    healthy: Cell<bool>,
    /// Health checks in a row that say otherwise.
    contradictions: Cell<u32>,
}

/// A connection that requests share.
#[derive(Debug)]
struct Shared {
    connection: http2::Connection,
    /// When [`Endpoint::reap`] found it without a request.
    idle_since: Option<Instant>,
}

/// An ejection, or one that is over.
#[derive(Clone, Copy, Debug)]
struct Ejection {
    until: Instant,
    length: Duration,
}

/// Whether an endpoint is to be used: the label `state` of `weir_upstream_endpoints`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Healthy,
    /// Requests to it failed, so it is left alone for a while.
    Ejected,
    /// The health checks fail.
    Unhealthy,
}

impl Endpoint {
    pub(super) fn new(server: Rc<Server>, address: Address, limits: Limits) -> Self {
        Self {
            server,
            address: Rc::new(address),
            pool: Pool::new(limits.idle_time),
            shared: RefCell::new(None),
            connecting: Mutex::new(()),
            speaks: Cell::new(None),
            idle_time: limits.idle_time,
            outstanding: Cell::new(0),
            slots: Semaphore::new(limits.connections),
            failures: Cell::new(0),
            ejection: Cell::new(None),
            healthy: Cell::new(true),
            contradictions: Cell::new(0),
        }
    }

    /// The connection that requests share, if there is one that takes more of them.
    pub(super) fn shared(&self) -> Option<http2::Connection> {
        let mut shared = self.shared.borrow_mut();
        shared.take_if(|shared| !shared.connection.is_open());
        shared.as_ref().map(|shared| shared.connection.clone())
    }

    /// From now on requests share this connection.
    pub(super) fn share(&self, connection: http2::Connection) {
        *self.shared.borrow_mut() = Some(Shared { connection, idle_since: None });
    }

    /// Closes connections that have been idle for too long.
    pub(super) fn reap(&self, now: Instant) {
        self.pool.reap(now);
        self.shared.borrow_mut().take_if(|shared| {
            if shared.connection.active() > 0 {
                shared.idle_since = None;
                return false;
            }
            let idle_since = *shared.idle_since.get_or_insert(now);
            now.saturating_duration_since(idle_since) >= self.idle_time
        });
    }

    /// Uses no connection of before any more. What runs on them is finished.
    fn forget_connections(&self) {
        self.pool.clear();
        self.shared.take();
    }

    pub(super) const fn outstanding(&self) -> usize {
        self.outstanding.get()
    }

    pub(super) fn state(&self, now: Instant) -> State {
        if !self.healthy.get() {
            State::Unhealthy
        } else if self.ejection.get().is_some_and(|ejection| now < ejection.until) {
            State::Ejected
        } else {
            State::Healthy
        }
    }

    /// A health check found it `well` or not. Enough in a row that say otherwise than those before change its state;
    /// returns whether this one did.
    pub(super) fn checked(&self, well: bool, needed: NonZeroU32) -> bool {
        if well == self.healthy.get() {
            self.contradictions.set(0);
            return false;
        }
        self.contradictions.set(self.contradictions.get() + 1);
        let is_enough = self.contradictions.get() >= needed.get();
        if is_enough {
            self.contradictions.set(0);
            self.healthy.set(well);
            // They lead to what is not well.
            self.forget_connections();
        }
        is_enough
    }

    /// A request was answered.
    pub(super) fn succeeded(&self) {
        self.failures.set(0);
    }

    /// A request failed; returns whether that makes enough for an ejection.
    pub(super) fn failed(&self) -> bool {
        self.failures.set(self.failures.get().saturating_add(1));
        self.failures.get() >= MAX_FAILURES
    }

    /// Leaves it alone for a while: twice as long as the last time, if that is not longer ago than it lasted. Returns how
    /// long.
    pub(super) fn eject(&self, now: Instant) -> Duration {
        let length = match self.ejection.get() {
            Some(last) if now < last.until + last.length => (last.length * 2).min(LONGEST_EJECTION),
            _ => FIRST_EJECTION,
        };
        self.ejection.set(Some(Ejection { until: now + length, length }));
        self.failures.set(0);
        // They lead to what failed.
        self.forget_connections();
        length
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.address {
            Address::Network(address) => write!(f, "{} ({address})", self.server),
            Address::Unix(_) => write!(f, "{}", self.server),
        }
    }
}

/// The right to use an endpoint for one request, from the pick until the last byte of its response.
#[derive(Debug)]
pub(crate) struct Lease {
    cluster: Rc<Cluster>,
    endpoint: Rc<Endpoint>,
    /// Whether it has one of the endpoint's slots.
    admitted: bool,
}

impl Lease {
    pub(super) fn new(cluster: Rc<Cluster>, endpoint: Rc<Endpoint>) -> Self {
        endpoint.outstanding.set(endpoint.outstanding.get() + 1);
        Self { cluster, endpoint, admitted: false }
    }

    pub(super) const fn endpoint(&self) -> &Rc<Endpoint> {
        &self.endpoint
    }

    /// Takes a connection of the endpoint's if there is one to spare and nobody in line for it.
    pub(super) fn try_admit(&mut self) -> bool {
        if let Ok(slot) = self.endpoint.slots.try_acquire() {
            slot.forget();
            self.admitted = true;
        }
        self.admitted
    }

    /// Waits until the endpoint has a connection to spare. Who came first goes first.
    pub(super) async fn admit(&mut self) {
        // Never closed, so this ends only with a slot.
        if let Ok(slot) = self.endpoint.slots.acquire().await {
            slot.forget();
            self.admitted = true;
        }
    }
}

impl lease::Lease for Lease {
    fn cut_off(&self, error: &dyn Error, now: Instant) {
        self.cluster.report(&self.endpoint, "body", error);
        self.cluster.failed(&self.endpoint, now);
    }
}

impl Keep for Lease {
    fn keep(self, connection: Connection, now: Instant) {
        self.endpoint.pool.put(connection, now);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.endpoint.outstanding.set(self.endpoint.outstanding.get() - 1);
        if self.admitted {
            self.endpoint.slots.add_permits(1);
        }
    }
}
