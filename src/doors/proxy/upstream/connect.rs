//! New connections to endpoints.

use std::io;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;

use super::super::failure::UpstreamError;
use super::Connection;
use super::endpoint::{Address, Endpoint};

/// What new connections are made with.
#[derive(Debug)]
pub(super) struct Connector {
    /// For a connection, TLS included.
    pub(super) timeout: Duration,
}

impl Connector {
    /// A new connection to an endpoint.
    pub(super) async fn connect(&self, endpoint: &Endpoint) -> Result<Connection, UpstreamError> {
        let stream = match timeout(self.timeout, self.stream(endpoint)).await {
            Ok(connected) => connected.map_err(UpstreamError::Connect)?,
            Err(_) => return Err(UpstreamError::ConnectTimeout(self.timeout)),
        };
        super::super::exchange::Connection::handshake(stream).await.map_err(UpstreamError::Closed)
    }

    async fn stream(&self, endpoint: &Endpoint) -> io::Result<TcpStream> {
        match &endpoint.address {
            Address::Network(address) => {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                Ok(stream)
            }
            Address::Unix(_) => Err(io::Error::other("later")),
        }
    }
}
