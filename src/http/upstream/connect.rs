//! Connects to endpoints.

use std::io;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use tokio::time::timeout;

use super::super::failure::UpstreamError;
use super::super::http1;
use super::super::http2;
use super::super::transport::{self, Protocol, Stream};
use super::Connection;
use super::address::Scheme;
use super::endpoint::Endpoint;

/// A connection to send a request on.
#[derive(Debug)]
pub(super) enum Connected {
    /// For one request at a time.
    Http1(Connection),
    /// Shared with other requests.
    Http2(http2::Connection),
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
    /// Returns a connection to an endpoint, and whether it was used before. `may_share` is false for requests that need
    /// HTTP/1.1, such as upgrades; `https://` servers are then not offered HTTP/2.
    pub(super) async fn connection(
        &self,
        endpoint: &Endpoint,
        now: Instant,
        may_share: bool,
    ) -> Result<(Connected, bool), UpstreamError> {
        let may_share = may_share || endpoint.server.scheme == Scheme::H2c;
        if let Some(known) = known(endpoint, now, may_share) {
            return Ok((known, true));
        }
        match timeout(self.timeout, self.connect(endpoint, now, may_share)).await {
            Ok(Err(error)) if is_own(&error) => Err(UpstreamError::Exhausted(error)),
            Ok(connected) => connected.map_err(UpstreamError::Connect),
            Err(_) => Err(UpstreamError::ConnectTimeout(self.timeout)),
        }
    }

    async fn connect(&self, endpoint: &Endpoint, now: Instant, may_share: bool) -> io::Result<(Connected, bool)> {
        let is_http1 =
            || !may_share || endpoint.server.scheme == Scheme::Http || endpoint.speaks.get() == Some(Protocol::Http1);
        let mut turn = None;
        if !is_http1() {
            turn = Some(endpoint.connecting.lock().await);
            if let Some(known) = known(endpoint, now, may_share) {
                return Ok((known, true));
            }
            if is_http1() {
                turn = None;
            }
        }
        let (stream, protocol) = self.open(endpoint, may_share).await?;
        if may_share {
            endpoint.speaks.set(Some(protocol));
        }
        let connected = match protocol {
            Protocol::Http1 => Connected::Http1(http1::Connection::new(stream)),
            Protocol::Http2 => {
                let connection = http2::Connection::connect(stream).await?;
                endpoint.share(connection.clone());
                Connected::Http2(connection)
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

/// Returns an existing connection: the shared one, or an idle one that is still good. If the server has closed one,
/// that is usually visible already.
fn known(endpoint: &Endpoint, now: Instant, may_share: bool) -> Option<Connected> {
    if may_share && let Some(shared) = endpoint.shared() {
        return Some(Connected::Http2(shared));
    }
    loop {
        let mut idle = endpoint.pool.take(now)?;
        if idle.is_quiet() {
            return Some(Connected::Http1(idle));
        }
    }
}
