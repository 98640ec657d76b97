//! Listening sockets.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};

/// Connections that the system holds until they are accepted; the system cuts it to `net.core.somaxconn`.
const BACKLOG: i32 = 4_096;

/// When an idle peer is asked whether it is still there, so that one that vanished does not hold its socket for ever.
const KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_mins(1)).with_interval(Duration::from_secs(20)).with_retries(3);

/// Binds `count` sockets to one address, so that the system spreads the connections over them (`SO_REUSEPORT`). With
/// port 0 the system picks a port for the first and the others take the same.
pub(super) fn bind(address: SocketAddr, count: usize) -> io::Result<Vec<TcpListener>> {
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

/// A bound socket. Accepted ones inherit what is set here.
fn socket(address: SocketAddr, is_shared: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(is_shared)?;
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(&KEEPALIVE)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_of_one_address_share_the_port_that_the_first_was_given() {
        let listeners = bind("127.0.0.1:0".parse().unwrap(), 3).unwrap();
        let addresses: Vec<_> = listeners.iter().map(|listener| listener.local_addr().unwrap()).collect();
        assert_eq!(addresses.len(), 3);
        assert!(addresses.iter().all(|address| *address == addresses[0] && address.port() != 0));
    }

    #[test]
    fn an_address_in_use_is_an_error_even_if_its_owner_would_share_it() {
        let listeners = bind("127.0.0.1:0".parse().unwrap(), 1).unwrap();
        let error = bind(listeners[0].local_addr().unwrap(), 1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }
}
