//! New connections to endpoints.

use std::io;
use std::time::Duration;

use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use super::super::failure::UpstreamError;
use super::super::transport::{self, Protocol, Stream};
use super::Connection;
use super::address::Scheme;
use super::endpoint::{Address, Endpoint};

/// What new connections are made with.
#[derive(Debug)]
pub(super) struct Connector {
    /// For a connection, TLS included.
    pub(super) timeout: Duration,
    /// `None` if no server is reached by `https://`.
    pub(super) tls: Option<transport::Connector>,
}

impl Connector {
    /// A new connection to an endpoint.
    pub(super) async fn connect(&self, endpoint: &Endpoint) -> Result<Connection, UpstreamError> {
        let (stream, _protocol) = match timeout(self.timeout, self.open(endpoint, false)).await {
            Ok(connected) => connected.map_err(UpstreamError::Connect)?,
            Err(_) => return Err(UpstreamError::ConnectTimeout(self.timeout)),
        };
        Ok(super::super::http1::Connection::new(stream))
    }

    /// A new stream to an endpoint, and what is spoken on it. The caller gives it a deadline.
    pub(super) async fn open(&self, endpoint: &Endpoint, offers_http2: bool) -> io::Result<(Stream, Protocol)> {
        let stream = match &endpoint.address {
            Address::Network(address) => {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                Stream::Tcp(stream)
            }
            Address::Unix(path) => Stream::Unix(UnixStream::connect(path).await?),
        };
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
