//! One address of a server: its connections, its state, and leases for requests.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::num::NonZeroU32;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, Notify, Semaphore};

use super::Connection;
use super::address::Server;
use super::cluster::{Cluster, Limits};
use super::connections::Pool;
use crate::http::failure::Lease;
use crate::http::http1::KeepAlive;
use crate::http::http2;
use crate::http::message::BodyError;
use crate::http::transport::{Address, Protocol};
use crate::message::connection::EndpointState;

/// Consecutive failures that eject an endpoint, as in Envoy's outlier detection (`consecutive_5xx`).
pub(super) const MAX_FAILURES: u32 = 5;

/// The first ejection: nginx' `fail_timeout`. Each one that follows closely lasts twice as long.
const FIRST_EJECTION: Duration = Duration::from_secs(10);

/// The longest ejection: Envoy's `max_ejection_time`.
const LONGEST_EJECTION: Duration = Duration::from_mins(5);

/// HTTP/2 connections per worker and address. With the 100 streams that RFC 9113 section 6.5.2 recommends at least, they
/// carry more requests than a process has connections by default.
pub(super) const MAX_SHARED: usize = 256;

/// One address of a server, as seen by one worker.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(super) server: Rc<Server>,
    pub(super) address: Rc<Address>,
    /// Idle HTTP/1.1 connections.
    pub(super) pool: Pool<Connection>,
    /// The HTTP/2 connections, which requests share. The first one with a free stream is used, so that the others become
    /// idle.
    shared: RefCell<Vec<Shared>>,
    /// Held while a connection is opened that may become a shared one, so that concurrent requests open only one.
    pub(super) connecting: Mutex<()>,
    /// Notified when a request has ended, whose stream another may use.
    pub(super) freed: Notify,
    /// The protocol of the last connection; `https://` servers may choose.
    pub(super) speaks: Cell<Option<Protocol>>,
    idle_time: Duration,
    /// Requests assigned to it, including those that wait.
    pub(super) outstanding: Cell<usize>,
    /// One permit for each request that may use a connection. An HTTP/1.1 request has a connection of its own and
    /// prefers an idle one, so there are never more connections than permits.
    slots: Semaphore,
    /// Consecutive failed requests.
    pub(super) failures: Cell<u32>,
    /// Consecutive responses whose headers came and whose rest did not.
    pub(super) broken: Cell<u32>,
    ejection: Cell<Option<Ejection>>,
    /// The result of the health checks; `true` without any.
    healthy: Cell<bool>,
    /// Consecutive health checks with the opposite result.
    contradictions: Cell<u32>,
}

#[derive(Debug)]
struct Shared {
    connection: http2::Connection,
    /// Since when [`Endpoint::reap`] has found it without requests.
    idle_since: Option<Instant>,
}

/// A current or past ejection.
#[derive(Clone, Copy, Debug)]
struct Ejection {
    until: Instant,
    length: Duration,
}

impl Endpoint {
    pub(super) fn new(server: Rc<Server>, address: Address, limits: Limits) -> Self {
        Self {
            server,
            address: Rc::new(address),
            pool: Pool::new(limits.idle_time),
            shared: RefCell::default(),
            connecting: Mutex::new(()),
            freed: Notify::new(),
            speaks: Cell::new(None),
            idle_time: limits.idle_time,
            outstanding: Cell::new(0),
            slots: Semaphore::new(limits.connections),
            failures: Cell::new(0),
            broken: Cell::new(0),
            ejection: Cell::new(None),
            healthy: Cell::new(true),
            contradictions: Cell::new(0),
        }
    }

    /// Takes a free stream of a shared connection. An upload gets none behind another one that the server does not read, as long as
    /// there may be another connection.
    pub(super) fn stream(&self, uploads: bool) -> Option<http2::StreamSlot> {
        let mut shared = self.shared.borrow_mut();
        loop {
            let shuns_stuck = uploads && shared.len() < MAX_SHARED;
            let (place, slot) = shared
                .iter()
                .enumerate()
                .filter(|(_, shared)| !(shuns_stuck && shared.connection.is_stuck()))
                .find_map(|(place, shared)| shared.connection.begin().map(|slot| (place, slot)))?;
            if shared[place].connection.is_open() {
                return Some(slot);
            }
            shared.remove(place);
        }
    }

    /// Returns whether there may be another shared connection.
    pub(super) fn may_open(&self) -> bool {
        let mut shared = self.shared.borrow_mut();
        shared.retain(|shared| shared.connection.is_open());
        shared.len() < MAX_SHARED
    }

    pub(super) fn share(&self, connection: http2::Connection) {
        self.shared.borrow_mut().push(Shared { connection, idle_since: None });
    }

    /// Closes connections that have been idle for too long.
    pub(super) fn reap(&self, now: Instant) {
        self.pool.reap(now);
        self.shared.borrow_mut().retain_mut(|shared| {
            if shared.connection.active() > 0 {
                shared.idle_since = None;
                return true;
            }
            let idle_since = *shared.idle_since.get_or_insert(now);
            now.saturating_duration_since(idle_since) < self.idle_time
        });
    }

    /// Stops using existing connections. Requests on them are completed.
    fn forget_connections(&self) {
        self.pool.clear();
        self.shared.borrow_mut().clear();
    }

    pub(super) fn state(&self, now: Instant) -> EndpointState {
        if !self.healthy.get() {
            EndpointState::Unhealthy
        } else if self.ejection.get().is_some_and(|ejection| now < ejection.until) {
            EndpointState::Ejected
        } else {
            EndpointState::Healthy
        }
    }

    /// Records a health check. `needed` consecutive results change the state; returns whether this one did.
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
            // They lead to an unhealthy server.
            self.forget_connections();
        }
        is_enough
    }

    /// A request failed, as `count` counts. Returns whether the endpoint should be ejected.
    pub(super) fn failed(count: &Cell<u32>) -> bool {
        count.set(count.get().saturating_add(1));
        count.get() >= MAX_FAILURES
    }

    /// Ejects it: twice as long as the last time, if that ended less than its length ago. Returns how long.
    pub(super) fn eject(&self, now: Instant) -> Duration {
        let length = match self.ejection.get() {
            Some(last) if now < last.until + last.length => (last.length * 2).min(LONGEST_EJECTION),
            _ => FIRST_EJECTION,
        };
        self.ejection.set(Some(Ejection { until: now + length, length }));
        self.failures.set(0);
        self.broken.set(0);
        // They lead to a failing server.
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

/// The right to use an endpoint for one request, until the response's last byte.
#[derive(Debug)]
pub(crate) struct EndpointLease {
    cluster: Rc<Cluster>,
    pub(super) endpoint: Rc<Endpoint>,
    /// True if it holds one of the endpoint's permits.
    admitted: bool,
}

impl EndpointLease {
    pub(super) fn new(cluster: Rc<Cluster>, endpoint: Rc<Endpoint>) -> Self {
        endpoint.outstanding.set(endpoint.outstanding.get() + 1);
        Self { cluster, endpoint, admitted: false }
    }

    /// Takes a connection permit if one is free and nobody waits for it.
    pub(super) fn try_admit(&mut self) -> bool {
        if let Ok(slot) = self.endpoint.slots.try_acquire() {
            slot.forget();
            self.admitted = true;
        }
        self.admitted
    }

    /// Waits for a connection permit, in order of arrival.
    pub(super) async fn admit(&mut self) {
        // The semaphore is never closed.
        if let Ok(slot) = self.endpoint.slots.acquire().await {
            slot.forget();
            self.admitted = true;
        }
    }
}

impl Lease for EndpointLease {
    fn cut_off(&self, error: &BodyError, now: Instant) {
        self.cluster.report(&self.endpoint, error.reason(), error);
        self.cluster.broke(&self.endpoint, now);
    }

    fn completed(&self) {
        self.endpoint.broken.set(0);
    }
}

impl KeepAlive for EndpointLease {
    fn keep(self, connection: Connection, now: Instant) {
        self.endpoint.pool.put(connection, now);
    }
}

impl Drop for EndpointLease {
    fn drop(&mut self) {
        self.endpoint.outstanding.set(self.endpoint.outstanding.get() - 1);
        if self.admitted {
            self.endpoint.slots.add_permits(1);
        }
        self.endpoint.freed.notify_one();
    }
}
