//! The socket to the server, TLS included.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::diagnosis::Diagnosis;
use super::options::{KEEPALIVE, USER_TIMEOUT};

use crate::store::Fault;

/// The timeout of a TLS handshake. A Redis without TLS reads the first message as part of a command and waits for the rest. This is
/// shorter than the timeout for connecting, so that the reason is known.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_millis(700);

/// The server's address.
#[derive(Clone)]
pub(super) enum Address {
    Tcp { host: String, port: u16, tls: Option<(Arc<ClientConfig>, ServerName<'static>)> },
    Unix(PathBuf),
}

/// A socket of any kind.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

impl Address {
    /// True for TCP without TLS.
    pub(super) const fn is_plain_tcp(&self) -> bool {
        matches!(self, Self::Tcp { tls: None, .. })
    }

    /// Connects.
    pub(super) async fn open(&self) -> Result<Box<dyn Stream>, Diagnosis> {
        let unreachable = |error: io::Error| Diagnosis::new(Fault::Unreachable, error.to_string());
        match self {
            Self::Unix(path) => {
                let reached = UnixStream::connect(path).await;
                let named = |error| Diagnosis::new(Fault::Unreachable, format!("{}: {error}", path.display()));
                Ok(Box::new(reached.map_err(named)?))
            }
            Self::Tcp { host, port, tls } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(unreachable)?;
                settle(&stream).map_err(unreachable)?;
                let Some((config, name)) = tls else { return Ok(Box::new(stream)) };
                let handshake = TlsConnector::from(config.clone()).connect(name.clone(), stream);
                let shaken = timeout(HANDSHAKE_TIMEOUT, handshake).await;
                let shaken =
                    shaken.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "no TLS handshake")));
                Ok(Box::new(shaken.map_err(|error| Diagnosis::of_handshake(&error))?))
            }
        }
    }
}

fn settle(stream: &TcpStream) -> io::Result<()> {
    // Without it a command can wait for the acknowledgement of the previous one, 40 ms on Linux.
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE).with_interval(USER_TIMEOUT))?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    Ok(())
}
