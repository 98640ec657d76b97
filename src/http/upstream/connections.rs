//! Connections to endpoints: new ones and idle ones.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use tokio::time::timeout;

use super::Connection;
use super::address::Scheme;
use super::endpoint::Endpoint;
use crate::http::failure::UpstreamError;
use crate::http::http1;
use crate::http::http2;
use crate::http::transport::{self, Protocol, Stream};

/// Idle connections that are kept; further ones are closed. As many as 64 connections of HTTP/2 use with 16 streams each: with
/// fewer, their requests open and close connections all the time.
const MAX_IDLE: usize = 1024;

/// A connection to send a request on.
#[derive(Debug)]
pub(super) enum ReadyConnection {
    /// For one request at a time.
    Http1(Connection),
    /// A stream of a connection that other requests share.
    Http2(http2::StreamSlot),
}

/// What a request needs of its connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Needs {
    /// False for requests that need HTTP/1.1, such as upgrades; `https://` servers are then not offered HTTP/2.
    pub(super) may_share: bool,
    /// It has a body.
    pub(super) uploads: bool,
}

/// Opens connections.
#[derive(Debug)]
pub(super) struct Connector {
    /// For a connection, including TLS.
    pub(super) timeout: Duration,
    /// `None` if no server uses `https://`.
    pub(super) tls: Option<transport::Connector>,
}

impl Connector {
    /// Returns a connection to an endpoint, and whether it was used before.
    pub(super) async fn connection(
        &self,
        endpoint: &Endpoint,
        now: Instant,
        needs: Needs,
    ) -> Result<(ReadyConnection, bool), UpstreamError> {
        let may_share = needs.may_share || endpoint.server.scheme == Scheme::H2c;
        let needs = Needs { may_share, ..needs };
        if let Some(known) = known(endpoint, now, needs) {
            return Ok((known, true));
        }
        // Boxed because it is rare.
        match Box::pin(timeout(self.timeout, self.connect(endpoint, now, needs))).await {
            Ok(Err(error)) if is_own(&error) => Err(UpstreamError::Exhausted(error)),
            Ok(connected) => connected.map_err(UpstreamError::Connect),
            Err(_) if may_share && !endpoint.may_open() => Err(UpstreamError::Busy(self.timeout)),
            Err(_) => Err(UpstreamError::ConnectTimeout(self.timeout)),
        }
    }

    async fn connect(&self, endpoint: &Endpoint, now: Instant, needs: Needs) -> io::Result<(ReadyConnection, bool)> {
        let may_share = needs.may_share;
        let is_http1 =
            || !may_share || endpoint.server.scheme == Scheme::Http || endpoint.speaks.get() == Some(Protocol::Http1);
        let turn = loop {
            if is_http1() {
                break None;
            }
            let turn = endpoint.connecting.lock().await;
            if let Some(known) = known(endpoint, now, needs) {
                return Ok((known, true));
            }
            if endpoint.may_open() {
                break (!is_http1()).then_some(turn);
            }
            drop(turn);
            endpoint.freed.notified().await;
        };
        let (stream, protocol) = self.open(endpoint, may_share).await?;
        if may_share {
            endpoint.speaks.set(Some(protocol));
        }
        let connected = match protocol {
            Protocol::Http1 => ReadyConnection::Http1(http1::Connection::new(stream)),
            Protocol::Http2 => {
                let connection = http2::Connection::connect(stream).await?;
                let slot = connection.begin().ok_or(io::ErrorKind::ConnectionRefused)?;
                endpoint.share(connection);
                ReadyConnection::Http2(slot)
            }
        };
        drop(turn);
        Ok((connected, false))
    }

    /// Opens a stream to an endpoint and returns it with its protocol. The caller gives it a deadline.
    pub(super) async fn open(&self, endpoint: &Endpoint, offers_http2: bool) -> io::Result<(Stream, Protocol)> {
        let stream = endpoint.address.connect().await?;
        match (endpoint.server.scheme, &self.tls) {
            (Scheme::Http, _) => Ok((stream, Protocol::Http1)),
            (Scheme::H2c, _) => Ok((stream, Protocol::Http2)),
            (Scheme::Https, Some(tls)) => {
                let (stream, is_http2) = tls.connect(endpoint.server.host(), stream, offers_http2).await?;
                Ok((stream, if is_http2 { Protocol::Http2 } else { Protocol::Http1 }))
            }
            (Scheme::Https, None) => Err(io::Error::new(io::ErrorKind::Unsupported, "TLS is not configured")),
        }
    }
}

/// Returns whether a connection failed because this process or machine is out of descriptors, ports or memory.
pub(super) fn is_own(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::MFILE | Errno::NFILE | Errno::ADDRNOTAVAIL | Errno::NOBUFS | Errno::NOMEM)
    )
}

/// Returns an existing connection: a shared one with a free stream, or an idle one that is still good. If the server has
/// closed one, that is usually visible already.
fn known(endpoint: &Endpoint, now: Instant, needs: Needs) -> Option<ReadyConnection> {
    if needs.may_share
        && let Some(stream) = endpoint.stream(needs.uploads)
    {
        return Some(ReadyConnection::Http2(stream));
    }
    loop {
        let mut idle = endpoint.pool.take(now)?;
        if idle.is_quiet() {
            return Some(ReadyConnection::Http1(idle));
        }
    }
}

/// Idle connections to one endpoint, most recently used last.
#[derive(Debug)]
pub(super) struct Pool<C> {
    idle: RefCell<VecDeque<Idle<C>>>,
    /// The idle timeout. It should be less than the server's own timeout, so that we close first: a
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
