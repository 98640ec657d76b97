//! Listening sockets.

use std::fmt;
use std::fs::{self, Permissions};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};

use crate::http::Stream;

/// Connections that the system queues until they are accepted; it caps this at `net.core.somaxconn`.
const BACKLOG: i32 = 4_096;

/// When idle peers are probed, so that a peer that has vanished does not keep its socket.
const KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_mins(1)).with_interval(Duration::from_secs(20)).with_retries(3);

/// The mode of a unix socket's file, as in nginx: write permission allows a process to connect. The umask would exclude all
/// other users, including the web server's; restrict access by the mode of the directory.
const SOCKET_MODE: u32 = 0o666;

/// The address of a unix socket's peers, which are processes of this machine.
const LOCAL_PEER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// `127.0.0.1:8080`, `[::1]:8080`; port 0 lets the system pick one.
    Tcp(SocketAddr),
    /// `unix:/run/weir.sock`.
    Unix(PathBuf),
}

impl ListenAddress {
    pub const fn tcp(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) => Some(*address),
            Self::Unix(_) => None,
        }
    }
}

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("unix:") {
            Some("") => Err("expected a path after `unix:`, such as unix:/run/weir.sock".into()),
            Some(path) => Ok(Self::Unix(PathBuf::from(path))),
            None => text.parse().map(Self::Tcp).map_err(|_| {
                "expected an address with a port, such as 127.0.0.1:8080 or [::]:8080, or unix:/run/weir.sock".into()
            }),
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A listening socket of this thread's runtime.
#[derive(Debug)]
pub(super) enum AsyncSocket {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

/// The address of a listening socket.
pub(super) fn address(socket: &Socket) -> io::Result<ListenAddress> {
    let address = socket.local_addr()?;
    let path = || ListenAddress::Unix(address.as_pathname().unwrap_or(Path::new("")).to_owned());
    Ok(address.as_socket().map_or_else(path, ListenAddress::Tcp))
}

impl AsyncSocket {
    pub(super) fn new(socket: Socket) -> io::Result<Self> {
        if socket.domain()? == Domain::UNIX {
            tokio::net::UnixListener::from_std(socket.into()).map(Self::Unix)
        } else {
            tokio::net::TcpListener::from_std(socket.into()).map(Self::Tcp)
        }
    }

    /// The next connection and its peer. Wakes only the task that polled last.
    pub(super) fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Stream, IpAddr)>> {
        match self {
            Self::Tcp(listener) => {
                listener.poll_accept(cx).map_ok(|(stream, peer)| (Stream::Tcp(stream), peer.ip().to_canonical()))
            }
            Self::Unix(listener) => listener.poll_accept(cx).map_ok(|(stream, _)| (Stream::Unix(stream), LOCAL_PEER)),
        }
    }
}

/// Binds `count` sockets, or one for a unix socket, which the workers share: it has no `SO_REUSEPORT`.
pub(super) fn bind(address: &ListenAddress, count: usize) -> io::Result<Vec<Socket>> {
    match address {
        ListenAddress::Tcp(address) => bind_tcp(*address, count),
        ListenAddress::Unix(path) => Ok(vec![bind_unix(path)?]),
    }
}

/// Binds one more socket to the address of another. Fails for a unix socket, and for one that another user or program has
/// bound without `SO_REUSEPORT`.
pub(super) fn bind_another(other: &Socket) -> io::Result<Socket> {
    let address = other.local_addr()?.as_socket().ok_or(io::ErrorKind::Unsupported)?;
    let socket = socket(address, true)?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

/// Sets up a socket that another program has bound as if it had been bound here.
pub(super) fn prepare(socket: &Socket) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    if socket.domain()? == Domain::UNIX { Ok(()) } else { set_up(socket) }
}

/// Binds a unix socket. Replaces the file of a process that has ended; if a process still listens, the address is in use.
fn bind_unix(path: &Path) -> io::Result<Socket> {
    if fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket()) {
        match UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path)?,
            // A full queue also shows that a process listens.
            _ => return Err(io::ErrorKind::AddrInUse.into()),
        }
    }
    // Not by `UnixListener::bind`, whose queue of 128 is full under the first burst.
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
    socket.bind(&socket2::SockAddr::unix(path)?)?;
    fs::set_permissions(path, Permissions::from_mode(SOCKET_MODE))?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

/// Binds `count` sockets to one address, so that the system spreads the connections over them (`SO_REUSEPORT`). With
/// port 0, the system picks a port for the first, which the others share.
fn bind_tcp(mut address: SocketAddr, count: usize) -> io::Result<Vec<Socket>> {
    if address.port() != 0 {
        // A second process with SO_REUSEPORT would bind without an error and quietly take half of the connections.
        drop(socket(address, false)?);
    }
    let mut sockets = Vec::with_capacity(count);
    for _ in 0..count {
        let socket = socket(address, true)?;
        socket.listen(BACKLOG)?;
        address = socket.local_addr()?.as_socket().unwrap_or(address);
        sockets.push(socket);
    }
    Ok(sockets)
}

fn socket(address: SocketAddr, is_shared: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(is_shared)?;
    set_up(&socket)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Sets the options that accepted sockets inherit. Not `TCP_DEFER_ACCEPT`: a client that connects early would wait for the
/// second retransmission of its handshake, and the timeout for the first byte serves the same purpose.
fn set_up(socket: &Socket) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(&KEEPALIVE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_of_one_address_share_the_port_that_the_first_was_given() {
        let listeners = bind_tcp("127.0.0.1:0".parse().unwrap(), 3).unwrap();
        let addresses: Vec<_> = listeners.iter().map(|socket| address(socket).unwrap().tcp().unwrap()).collect();
        assert_eq!(addresses.len(), 3);
        assert!(addresses.iter().all(|address| *address == addresses[0] && address.port() != 0));
    }

    #[test]
    fn an_address_in_use_is_an_error_even_if_its_owner_would_share_it() {
        let listeners = bind_tcp("127.0.0.1:0".parse().unwrap(), 1).unwrap();
        let error = bind(&address(&listeners[0]).unwrap(), 1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn addresses_are_read_and_shown_alike() {
        for text in ["127.0.0.1:8080", "[::1]:0", "unix:/run/weir.sock", "unix:weir.sock"] {
            assert_eq!(text.parse::<ListenAddress>().unwrap().to_string(), text);
        }
        for text in ["", "unix:", "localhost", "127.0.0.1", ":8080", "/run/weir.sock"] {
            assert!(text.parse::<ListenAddress>().unwrap_err().contains("unix:/run/weir.sock"), "{text}");
        }
    }

    #[test]
    fn the_socket_file_of_a_process_that_has_ended_is_taken_over_and_no_other_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("weir.sock");
        let wanted = ListenAddress::Unix(path.clone());
        let first = bind(&wanted, 2).unwrap();
        assert_eq!(address(&first[0].try_clone().unwrap()).unwrap(), wanted);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, SOCKET_MODE);
        assert_eq!(bind(&wanted, 1).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(first);
        assert!(path.exists(), "a listener that is dropped leaves its file");
        drop(bind(&wanted, 1).unwrap());
        fs::remove_file(&path).unwrap();
        fs::write(&path, "somebody's").unwrap();
        assert_eq!(bind(&wanted, 1).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(fs::read_to_string(&path).unwrap(), "somebody's");
    }
}
