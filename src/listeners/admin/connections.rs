//! The connections of the admin listener: enough for a few scrapers, probes and operators.
//!
//! One more closes an older one. A probe sends its request with its first packet, so any number of silent connections
//! keeps none waiting.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;

use tokio_util::sync::CancellationToken;

/// For local peers, and again for remote ones, which so cannot keep local ones out.
const MAX_CONNECTIONS: usize = 64;

/// The open connections, oldest first.
#[derive(Debug, Default)]
pub struct Connections {
    local: RefCell<Vec<Rc<Connection>>>,
    remote: RefCell<Vec<Rc<Connection>>>,
}

#[derive(Debug, Default)]
pub(super) struct Connection {
    pub(super) stage: Cell<Stage>,
    /// Cancelled when another connection takes its place.
    pub(super) replaced: CancellationToken,
}

/// The progress of a connection. Connections in the lowest stage are closed first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// No request has come.
    #[default]
    Silent,
    Idle,
    Answering,
}

/// Counts a connection until it is dropped.
#[derive(Debug)]
pub struct ConnectionGuard {
    connections: Rc<Connections>,
    is_local: bool,
    pub(super) connection: Rc<Connection>,
}

impl Connections {
    /// Adds a connection. Closes another one if there are too many.
    pub fn enter(self: &Rc<Self>, peer: IpAddr) -> ConnectionGuard {
        let is_local = peer.to_canonical().is_loopback();
        let connection = Rc::new(Connection::default());
        let mut connections = self.of(is_local).borrow_mut();
        if connections.len() >= MAX_CONNECTIONS {
            // Of several the first, which is the oldest.
            let least = connections.iter().enumerate().min_by_key(|(_, connection)| connection.stage.get());
            if let Some(index) = least.map(|(index, _)| index) {
                connections.remove(index).replaced.cancel();
            }
        }
        connections.push(connection.clone());
        ConnectionGuard { connections: self.clone(), is_local, connection }
    }

    fn of(&self, is_local: bool) -> &RefCell<Vec<Rc<Connection>>> {
        if is_local { &self.local } else { &self.remote }
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.connections.of(self.is_local).borrow_mut().retain(|other| !Rc::ptr_eq(other, &self.connection));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

    #[test]
    fn the_oldest_that_does_the_least_gives_way() {
        let connections = Rc::new(Connections::default());
        let stages = [Stage::Answering, Stage::Idle, Stage::Silent, Stage::Silent];
        let first = stages.map(|stage| {
            let guard = connections.enter(OTHER);
            guard.connection.stage.set(stage);
            guard
        });
        let mut rest: Vec<ConnectionGuard> = (4..MAX_CONNECTIONS).map(|_| connections.enter(OTHER)).collect();
        for guard in &rest {
            guard.connection.stage.set(Stage::Idle);
        }
        let replaced =
            |guards: &[ConnectionGuard; 4]| guards.each_ref().map(|guard| guard.connection.replaced.is_cancelled());
        rest.push(connections.enter(LOCAL));
        assert_eq!(replaced(&first), [false; 4], "local peers are counted apart");
        for expected in [[false, false, true, false], [false, false, true, true], [false, true, true, true]] {
            let guard = connections.enter(OTHER);
            guard.connection.stage.set(Stage::Idle);
            rest.push(guard);
            assert_eq!(replaced(&first), expected);
        }
        drop((first, rest));
        assert_eq!(connections.remote.borrow().len() + connections.local.borrow().len(), 0);
    }
}
