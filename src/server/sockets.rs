//! The sockets of a listener, and their distribution over the workers.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use socket2::Socket;

use super::listening_socket::{self, ListenAddress};

/// The sockets of a listener. The workers, and a process that takes over, have duplicates of their descriptors.
///
/// Closing a socket resets the connections in its queue, even if others listen at its address. So every inherited socket
/// is used, whatever the number of workers is.
#[derive(Debug)]
pub(super) struct Sockets {
    sockets: Vec<Socket>,
}

impl Sockets {
    /// Binds a socket per worker, or one for all if the system can't spread connections over several.
    pub(super) fn bind(address: &ListenAddress, workers: usize) -> io::Result<Self> {
        Ok(Self { sockets: listening_socket::bind(address, workers)? })
    }

    /// Takes sockets that another process has bound.
    pub(super) fn adopt(sockets: Vec<Socket>) -> io::Result<Self> {
        for socket in &sockets {
            listening_socket::prepare(socket)?;
        }
        Ok(Self { sockets })
    }

    /// The address; the first one, if there are several.
    pub(super) fn address(&self) -> io::Result<Option<ListenAddress>> {
        self.sockets.first().map(listening_socket::address).transpose()
    }

    /// Adds sockets until each worker has its own, if the system allows that. Call it as late as possible: if the process
    /// fails to start, the connections in the queue of a new socket are lost.
    pub(super) fn widen(&mut self, workers: usize) {
        while self.sockets.len() < workers {
            match self.sockets.first().map(listening_socket::bind_another) {
                Some(Ok(socket)) => self.sockets.push(socket),
                Some(Err(error)) => {
                    tracing::debug!("workers share a listening socket: {error}");
                    return;
                }
                None => return,
            }
        }
    }

    /// The sockets of each worker: each socket has a worker, and each worker has a socket.
    pub(super) fn spread(&self, workers: usize) -> io::Result<Vec<Vec<Socket>>> {
        let mut shares: Vec<Vec<_>> = (0..workers).map(|_| Vec::new()).collect();
        let count = self.sockets.len().max(workers);
        for (place, socket) in self.sockets.iter().cycle().take(count).enumerate() {
            if let Some(share) = shares.get_mut(place % workers) {
                share.push(socket.try_clone()?);
            }
        }
        Ok(shares)
    }

    /// Duplicates for another process.
    pub(super) fn descriptors(&self) -> io::Result<Vec<OwnedFd>> {
        self.sockets.iter().map(|socket| socket.as_fd().try_clone_to_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// Spreads `sockets` over `workers`, and checks that a connection to any socket reaches a worker.
    #[track_caller]
    fn check(sockets: usize, workers: usize, widen: bool, expected: &[usize]) {
        let bound = Sockets::bind(&"127.0.0.1:0".parse().unwrap(), sockets).unwrap();
        let mut adopted = Sockets::adopt(bound.sockets).unwrap();
        if widen {
            adopted.widen(workers);
        }
        let shares = adopted.spread(workers).unwrap();
        assert_eq!(shares.iter().map(Vec::len).collect::<Vec<_>>(), expected);
        let address = adopted.address().unwrap().unwrap().tcp().unwrap();
        drop(adopted);
        // The system chooses the socket, so many connections reach all of them.
        let clients: Vec<_> = (0..200).map(|_| TcpStream::connect(address).unwrap()).collect();
        let accept = |socket: &Socket| std::iter::from_fn(|| socket.accept().ok()).count();
        assert_eq!(shares.iter().flatten().map(accept).sum::<usize>(), clients.len());
    }

    #[test]
    fn every_socket_has_a_worker_and_every_worker_a_socket() {
        check(2, 2, true, &[1, 1]);
        check(5, 2, true, &[3, 2]);
        check(1, 3, true, &[1, 1, 1]);
        check(1, 3, false, &[1, 1, 1]);
    }

    #[test]
    fn a_socket_that_cannot_be_bound_twice_is_shared() {
        let alone = Socket::from(TcpListener::bind("127.0.0.1:0").unwrap());
        let mut sockets = Sockets::adopt(vec![alone]).unwrap();
        sockets.widen(2);
        assert_eq!(sockets.sockets.len(), 1);
        assert_eq!(sockets.spread(2).unwrap().len(), 2);
    }
}
