//! New connections to endpoints.

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

/// What new connections are made with.
#[derive(Debug)]
pub(super) struct Connector {
    /// For a connection, TLS included.
    pub(super) timeout: Duration,
    /// `None` if no server is reached by `https://`.
    pub(super) tls: Option<transport::Connector>,
}

impl Connector {
    /// A connection to an endpoint, and whether it was used before. `may_share` unless the request is for HTTP/1.1 alone,
    /// as one that wants to upgrade is; a server of `https://` is then not offered anything else.
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

    /// A new stream to an endpoint, and what is spoken on it. The caller gives it a deadline.
    pub(super) async fn open(&self, endpoint: &Endpoint, offers_http2: bool) -> io::Result<(Stream, Protocol)> {
        let stream = endpoint.address.connect().await?;
        match (endpoint.server.scheme, &self.tls) {
            (Scheme::Http, _) => Ok((stream, Protocol::Http1)),
            (Scheme::H2c, _) => Ok((stream, Protocol::Http2)),
            (Scheme::Https, Some(tls)) => {
                let (stream, is_http2) = tls.connect(endpoint.server.host(), stream, offers_http2).await?;
                Ok((stream, if is_http2 { Protocol::Http2 } else { Protocol::Http1 }))
            }
            (Scheme::Https, None) => Err(io::Error::new(io::ErrorKind::Unsupported, "no TLS was set up")),
        }
    }
}

/// Whether a connection could not be opened for want of something of ours: descriptors, ports, memory.
pub(super) fn is_own(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::MFILE | Errno::NFILE | Errno::ADDRNOTAVAIL | Errno::NOBUFS | Errno::NOMEM)
    )
}

/// A connection that is there already: the shared one, or an idle one that is still good. The end of one that the server
/// has closed is usually there to be seen.
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
