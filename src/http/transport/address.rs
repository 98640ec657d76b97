//! Addresses of servers.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use tokio::net::{TcpStream, UnixStream};

use super::Stream;

/// Where a server listens. Written as `127.0.0.1:3000` or `unix:/run/app.sock`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    Network(SocketAddr),
    Unix(PathBuf),
}

impl Address {
    /// Opens a connection. The caller gives it a deadline.
    pub(crate) async fn connect(&self) -> io::Result<Stream> {
        match self {
            Self::Network(address) => {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(stream))
            }
            Self::Unix(path) => Ok(Stream::Unix(UnixStream::connect(path).await?)),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}
