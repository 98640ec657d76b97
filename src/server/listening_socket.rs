//! Listening sockets.

use std::fmt;
use std::fs::{self, Permissions};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use crate::http::Stream;

/// Connections that the system holds until they are accepted; the system cuts it to `net.core.somaxconn`.
const BACKLOG: i32 = 4_096;

/// When an idle peer is asked whether it is still there, so that one that vanished does not hold its socket for ever.
const KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_mins(1)).with_interval(Duration::from_secs(20)).with_retries(3);

/// The mode of a unix socket's file, the same as nginx gives it: whoever may write to it may connect. What the umask would
/// leave keeps out every other user, the web server's too; the mode of the directory says who may come.
const SOCKET_MODE: u32 = 0o666;

/// What the peer of a unix socket counts as: it is a process of this machine.
const LOCAL_PEER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Where a listener listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// `127.0.0.1:8080`, `[::1]:8080`; port 0 lets the system pick one.
    Tcp(SocketAddr),
    /// `unix:/run/weir.sock`.
    Unix(PathBuf),
}

impl ListenAddress {
    /// The address, if it is one of TCP.
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
            Some("") => Err("a path is wanted after `unix:`, such as unix:/run/weir.sock".into()),
            Some(path) => Ok(Self::Unix(PathBuf::from(path))),
            None => text.parse().map(Self::Tcp).map_err(|_| {
                "an address with a port is wanted, such as 127.0.0.1:8080 or [::]:8080, or unix:/run/weir.sock".into()
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

/// A bound socket that listens, not yet known to a runtime.
#[derive(Debug)]
pub(super) enum ListeningSocket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl AsFd for ListeningSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener) => listener.as_fd(),
        }
    }
}

/// A listener of a runtime.
#[derive(Debug)]
pub(super) enum AsyncSocket {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

impl ListeningSocket {
    /// Where it listens.
    pub(super) fn address(&self) -> io::Result<ListenAddress> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(ListenAddress::Tcp),
            Self::Unix(listener) => {
                let address = listener.local_addr()?;
                Ok(ListenAddress::Unix(address.as_pathname().unwrap_or(Path::new("")).to_owned()))
            }
        }
    }

    /// Another handle to the same socket, with the same queue of connections.
    pub(super) fn try_clone(&self) -> io::Result<Self> {
        match self {
            Self::Tcp(listener) => listener.try_clone().map(Self::Tcp),
            Self::Unix(listener) => listener.try_clone().map(Self::Unix),
        }
    }

    /// Hands it to the runtime of this thread.
    pub(super) fn into_async(self) -> io::Result<AsyncSocket> {
        match self {
            Self::Tcp(listener) => tokio::net::TcpListener::from_std(listener).map(AsyncSocket::Tcp),
            Self::Unix(listener) => tokio::net::UnixListener::from_std(listener).map(AsyncSocket::Unix),
        }
    }
}

impl AsyncSocket {
    /// The next connection and its peer. Only the last task that asked is woken.
    pub(super) fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Stream, IpAddr)>> {
        match self {
            Self::Tcp(listener) => {
                listener.poll_accept(cx).map_ok(|(stream, peer)| (Stream::Tcp(stream), peer.ip().to_canonical()))
            }
            Self::Unix(listener) => listener.poll_accept(cx).map_ok(|(stream, _)| (Stream::Unix(stream), LOCAL_PEER)),
        }
    }
}

/// Binds `count` sockets, or one for a unix socket: there is no `SO_REUSEPORT` for them, so the workers share it.
pub(super) fn bind(address: &ListenAddress, count: usize) -> io::Result<Vec<ListeningSocket>> {
    match address {
        ListenAddress::Tcp(address) => Ok(bind_tcp(*address, count)?.into_iter().map(ListeningSocket::Tcp).collect()),
        ListenAddress::Unix(path) => Ok(vec![ListeningSocket::Unix(bind_unix(path)?)]),
    }
}

/// Binds one more socket to the address of another. The error is of a kind of socket, or of one that another user or
/// another program has bound, that does not share.
pub(super) fn bind_another(other: &ListeningSocket) -> io::Result<ListeningSocket> {
    match other {
        ListeningSocket::Tcp(other) => {
            let socket = socket(other.local_addr()?, true)?;
            socket.listen(BACKLOG)?;
            Ok(ListeningSocket::Tcp(socket.into()))
        }
        ListeningSocket::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// Sets up a socket that another program has bound as if it had been bound here.
pub(super) fn prepare(listener: &ListeningSocket) -> io::Result<()> {
    let socket = SockRef::from(listener);
    socket.set_nonblocking(true)?;
    if let ListeningSocket::Tcp(_) = listener {
        set_up(&socket)?;
    }
    Ok(())
}

/// Binds a unix socket. The file of a process that has
/// ended is taken over; that of one which listens is an error, as for an address in use.
fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    if fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket()) {
        match UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path)?,
            // A full queue too shows that somebody listens.
            _ => return Err(io::ErrorKind::AddrInUse.into()),
        }
    }
    // Not by `UnixListener::bind`, whose queue of 128 is full under the first burst.
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
    socket.bind(&socket2::SockAddr::unix(path)?)?;
    fs::set_permissions(path, Permissions::from_mode(SOCKET_MODE))?;
    socket.listen(BACKLOG)?;
    Ok(UnixListener::from(socket))
}

/// Binds `count` sockets to one address, so that the system spreads the connections over them (`SO_REUSEPORT`). With
/// port 0 the system picks a port for the first and the others take the same.
pub(super) fn bind_tcp(address: SocketAddr, count: usize) -> io::Result<Vec<TcpListener>> {
    let mut address = address;
    if address.port() != 0 {
        // A second process with SO_REUSEPORT would bind without an error and quietly take half of the connections.
        drop(socket(address, false)?);
    }
    let mut listeners = Vec::with_capacity(count);
    for _ in 0..count {
        let socket = socket(address, true)?;
        socket.listen(BACKLOG)?;
        let listener = TcpListener::from(socket);
        address = listener.local_addr()?;
        listeners.push(listener);
    }
    Ok(listeners)
}

/// A bound socket.
fn socket(address: SocketAddr, is_shared: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(is_shared)?;
    set_up(&socket)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// What accepted sockets inherit. Not `TCP_DEFER_ACCEPT`: whoever connects ahead of need would wait for the second
/// retransmission of its handshake, and the deadline for the first byte does what it is for.
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
        let addresses: Vec<_> = listeners.iter().map(|listener| listener.local_addr().unwrap()).collect();
        assert_eq!(addresses.len(), 3);
        assert!(addresses.iter().all(|address| *address == addresses[0] && address.port() != 0));
    }

    #[test]
    fn an_address_in_use_is_an_error_even_if_its_owner_would_share_it() {
        let listeners = bind_tcp("127.0.0.1:0".parse().unwrap(), 1).unwrap();
        let error = bind_tcp(listeners[0].local_addr().unwrap(), 1).unwrap_err();
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
        let address = ListenAddress::Unix(path.clone());
        let first = bind(&address, 2).unwrap();
        assert_eq!(first[0].try_clone().unwrap().address().unwrap(), address);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, SOCKET_MODE);
        assert_eq!(bind(&address, 1).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(first);
        assert!(path.exists(), "a listener that is dropped leaves its file");
        drop(bind(&address, 1).unwrap());
        fs::remove_file(&path).unwrap();
        fs::write(&path, "somebody's").unwrap();
        assert_eq!(bind(&address, 1).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(fs::read_to_string(&path).unwrap(), "somebody's");
    }
}
