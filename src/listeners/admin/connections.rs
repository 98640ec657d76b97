//! The connections of the admin listener: enough for a few scrapers, probes and operators.
//!
//! One more closes an older one. A probe sends its request with its first packet, so silent connections, however
//! many, keep none waiting.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;

use tokio_util::sync::CancellationToken;

/// Connections at once: of this machine, and as many again of others, who so cannot keep the former out.
const MAX_CONNECTIONS: usize = 64;

/// The connections that are open.
#[derive(Debug, Default)]
pub struct Connections {
    /// In the order in which they came.
    local: RefCell<Vec<Rc<Visit>>>,
    /// The same of other machines.
    others: RefCell<Vec<Rc<Visit>>>,
}

/// A connection.
#[derive(Debug, Default)]
pub struct Visit {
    stage: Cell<Stage>,
    /// Cancelled when another takes its place.
    pub(super) replaced: CancellationToken,
}

/// How far a connection has come; the first are closed first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// No request has come.
    #[default]
    Silent,
    /// A request was answered.
    Idle,
    /// A request is being answered.
    Answering,
}

/// A connection's place, until it is dropped.
#[derive(Debug)]
pub struct Place {
    connections: Rc<Connections>,
    is_local: bool,
    /// The connection.
    pub visit: Rc<Visit>,
}

impl Connections {
    /// Gives a new connection a place; another one loses its own if there are too many.
    pub fn enter(self: &Rc<Self>, peer: IpAddr) -> Place {
        let is_local = peer.to_canonical().is_loopback();
        let visit = Rc::new(Visit::default());
        let mut visits = self.of(is_local).borrow_mut();
        if visits.len() >= MAX_CONNECTIONS {
            // Of several the first, which is the oldest.
            let least = visits.iter().enumerate().min_by_key(|(_, visit)| visit.stage()).map(|(place, _)| place);
            if let Some(place) = least {
                visits.remove(place).replaced.cancel();
            }
        }
        visits.push(visit.clone());
        Place { connections: self.clone(), is_local, visit }
    }

    fn of(&self, is_local: bool) -> &RefCell<Vec<Rc<Visit>>> {
        if is_local { &self.local } else { &self.others }
    }
}

impl Visit {
    pub(super) fn stage(&self) -> Stage {
        self.stage.get()
    }

    pub(super) fn is_at(&self, stage: Stage) {
        self.stage.set(stage);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.connections.of(self.is_local).borrow_mut().retain(|visit| !Rc::ptr_eq(visit, &self.visit));
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
            let place = connections.enter(OTHER);
            place.visit.is_at(stage);
            place
        });
        let mut rest: Vec<Place> = (4..MAX_CONNECTIONS).map(|_| connections.enter(OTHER)).collect();
        for place in &rest {
            place.visit.is_at(Stage::Idle);
        }
        let replaced = |places: &[Place; 4]| places.each_ref().map(|place| place.visit.replaced.is_cancelled());
        rest.push(connections.enter(LOCAL));
        assert_eq!(replaced(&first), [false; 4], "this machine has places of its own");
        for expected in [[false, false, true, false], [false, false, true, true], [false, true, true, true]] {
            let place = connections.enter(OTHER);
            place.visit.is_at(Stage::Idle);
            rest.push(place);
            assert_eq!(replaced(&first), expected);
        }
        drop((first, rest));
        assert_eq!(connections.others.borrow().len() + connections.local.borrow().len(), 0);
    }
}
