//! The socket to the server, TLS included.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::diagnosis::Diagnosis;
use super::tls::Tls;
use super::url::host_and_port;
use crate::store::Fault;

/// TCP probes an idle connection after this long. The owner's PING comes sooner; this covers a stalled owner.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// A peer that acknowledges nothing for this long is gone (`TCP_USER_TIMEOUT`); the kernel's default is 15 minutes.
const USER_TIMEOUT: Duration = Duration::from_secs(5);

/// The timeout of a TLS handshake. A Redis without TLS reads the first message as part of a command and waits for the rest. This is
/// shorter than the timeout for connecting, so that the reason is known.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_millis(700);

/// The server's address.
#[derive(Clone)]
pub(super) enum Address {
    Tcp { host: String, port: u16, tls: Option<(Tls, ServerName<'static>)> },
    Unix(PathBuf),
}

/// A socket of any kind.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

impl Address {
    /// The address of a server, with TLS if there are settings for it. Fails if the certificate of such a host cannot be checked.
    pub(super) fn tcp(host: String, port: u16, tls: Option<&Tls>) -> Result<Self, String> {
        let with_name = |tls: &Tls| {
            let name = ServerName::try_from(host.clone());
            name.map(|name| (tls.clone(), name)).map_err(|_| format!("`{host}` is not a valid host name"))
        };
        let tls = tls.map(with_name).transpose()?;
        Ok(Self::Tcp { host, port, tls })
    }

    /// The host; `None` for a socket.
    pub(super) fn host(&self) -> Option<&str> {
        match self {
            Self::Tcp { host, .. } => Some(host),
            Self::Unix(_) => None,
        }
    }

    pub(super) const fn has_tls(&self) -> bool {
        matches!(self, Self::Tcp { tls: Some(_), .. })
    }

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

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port, .. } => f.write_str(&host_and_port(host, *port)),
            Self::Unix(path) => write!(f, "{}", path.display()),
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
