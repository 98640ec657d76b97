//! Faults of the network between the gateways and a server.

use std::time::Duration;

use super::fault::{Buckets, Fault, Requests, Servers, Stage};
use crate::support::injector::{Injector, Trouble};
use crate::support::redis::RedisServer;

const SHORT: Duration = Duration::from_millis(700);

struct Network {
    injector: Injector,
    _server: RedisServer,
}

impl Servers for Network {
    fn store(&self) -> String {
        format!("redis://{}", self.injector.address)
    }
}

fn end(network: &mut Network) {
    network.injector.set(Trouble::None);
}

/// Nothing is lost but replies, whatever happens.
const fn fault(name: &'static str, begin: fn(&mut Network), requests: Requests) -> Fault<Network> {
    Fault { name, begin, lasts: SHORT, end, requests, buckets: Buckets::Kept }
}

const FAULTS: [Fault<Network>; 9] = [
    fault(
        "replies 5 ms later",
        |network| network.injector.set(Trouble::Delay(Duration::from_millis(5))),
        Requests::Decided,
    ),
    fault(
        "replies 200 ms later",
        |network| network.injector.set(Trouble::Delay(Duration::from_millis(200))),
        Requests::Undecided,
    ),
    fault("300 bytes per second", |network| network.injector.set(Trouble::Throttle(300)), Requests::Undecided),
    fault("nothing passes", |network| network.injector.set(Trouble::Stall), Requests::Undecided),
    fault("replies are lost", |network| network.injector.set(Trouble::Drop), Requests::Undecided),
    fault("a reset in a reply", |network| network.injector.set(Trouble::ResetOnce), Requests::Decided),
    fault("a reset in each first reply", |network| network.injector.set(Trouble::Reset), Requests::Undecided),
    fault("connections are half closed", |network| network.injector.set(Trouble::HalfClose), Requests::Undecided),
    fault("connections are closed once", |network| network.injector.cut(), Requests::Decided),
];

#[test]
fn limits_hold_through_the_faults_of_the_network() {
    let server = RedisServer::plain();
    let network = Network { injector: Injector::to(&server.address()), _server: server };
    Stage::new(network, SHORT / 2).survive_all(&FAULTS);
}
