//! The servers of a route, and the choice among their addresses.

use std::cell::{Cell, RefCell};
use std::error::Error;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use http::StatusCode;

use super::address::{Server, ServerAddress};
use super::endpoint::{Endpoint, EndpointLease};
use crate::http::observer::UpstreamObserver;
use crate::http::transport::Address;
use crate::message::connection::{EndpointState, UpstreamFailure};

/// Addresses per name. Each request examines all addresses of a route to find the least loaded one. A resolver's answer
/// over UDP contains about thirty.
pub(super) const MAX_ADDRESSES: usize = 64;

/// The servers of a route, as seen by one worker.
#[derive(Debug)]
pub(super) struct Cluster {
    pub(super) servers: Vec<Rc<Server>>,
    endpoints: RefCell<Vec<Rc<Endpoint>>>,
    /// The index at which the next search starts, so that equal endpoints take turns.
    next: Cell<usize>,
    limits: Limits,
    observer: Rc<dyn UpstreamObserver>,
}

/// Bounds for each endpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Connections, including idle ones.
    pub(super) connections: usize,
    /// Idle connections are closed after this time.
    pub(super) idle_time: Duration,
}

impl Cluster {
    /// Makes a cluster of servers. Servers named by address have endpoints at once, others after
    /// [`Self::set_addresses`].
    pub(super) fn new(servers: &[Server], limits: Limits, observer: Rc<dyn UpstreamObserver>) -> Rc<Self> {
        let cluster = Self {
            servers: servers.iter().cloned().map(Rc::new).collect(),
            endpoints: RefCell::default(),
            next: Cell::new(0),
            limits,
            observer,
        };
        for server in &cluster.servers {
            let address = match &server.address {
                ServerAddress::Unix(path) => Some(Address::Unix(path.clone())),
                ServerAddress::Network { host, port } => {
                    host.parse().ok().map(|address| Address::Network(SocketAddr::new(address, *port)))
                }
            };
            cluster
                .endpoints
                .borrow_mut()
                .extend(address.map(|address| Rc::new(Endpoint::new(server.clone(), address, limits))));
        }
        Rc::new(cluster)
    }

    pub(super) fn endpoints(&self) -> Vec<Rc<Endpoint>> {
        self.endpoints.borrow().clone()
    }

    /// Sets the addresses of a server's name. Endpoints that stay keep their state and connections; requests at removed
    /// ones are completed. Returns whether anything changed.
    pub(super) fn set_addresses(&self, server: &Rc<Server>, addresses: &[SocketAddr]) -> bool {
        let mut endpoints = self.endpoints.borrow_mut();
        let before = endpoints.len();
        let mut found: Vec<Address> = Vec::new();
        for address in addresses.iter().copied().map(Address::Network) {
            if found.len() < MAX_ADDRESSES && !found.contains(&address) {
                found.push(address);
            }
        }
        endpoints.retain(|endpoint| !Rc::ptr_eq(&endpoint.server, server) || found.contains(&*endpoint.address));
        let kept = endpoints.len();
        for address in found {
            let is_known =
                |endpoint: &Rc<Endpoint>| Rc::ptr_eq(&endpoint.server, server) && *endpoint.address == address;
            if !endpoints.iter().any(is_known) {
                endpoints.push(Rc::new(Endpoint::new(server.clone(), address, self.limits)));
            }
        }
        kept < before || kept < endpoints.len()
    }

    /// Picks the endpoint with the fewest requests, in turn among equals, and avoids `avoid` if there is another.
    /// `None` if no name has an address yet.
    ///
    /// Ejected and unhealthy endpoints are excluded unless all are: health checks or ejections that affect everything
    /// are more likely wrong than right, and rejecting all requests is the worst outcome. Envoy does the same below its
    /// panic threshold, by default half of the hosts.
    pub(super) fn pick(self: &Rc<Self>, now: Instant, avoid: Option<&Rc<Endpoint>>) -> Option<EndpointLease> {
        let endpoints = self.endpoints.borrow();
        let start = self.next.get();
        let (later, first) = endpoints.split_at(start.min(endpoints.len()));
        let (place, endpoint) = first.iter().chain(later).enumerate().min_by_key(|(_, endpoint)| {
            let is_avoided = avoid.is_some_and(|avoid| Rc::ptr_eq(avoid, endpoint));
            (is_avoided, endpoint.state(now) != EndpointState::Healthy, endpoint.outstanding.get())
        })?;
        // A retry does not take a turn. Otherwise the two of a pair would swap turns with each failure, and the failing
        // one would be tried first every time.
        if avoid.is_none() {
            self.next.set((start + place + 1) % endpoints.len());
        }
        Some(EndpointLease::new(self.clone(), endpoint.clone()))
    }

    /// Returns whether any server gets a `Host` other than the client's.
    pub(super) fn replaces_host(&self) -> bool {
        self.servers.iter().any(|server| server.host.is_some())
    }

    /// Returns whether there is another endpoint than this one.
    pub(super) fn has_other(&self, endpoint: &Rc<Endpoint>) -> bool {
        self.endpoints.borrow().iter().any(|other| !Rc::ptr_eq(other, endpoint))
    }

    /// An endpoint responded. 502, 503 and 504 count as failures, as in Envoy (`consecutive_gateway_failure`), because
    /// they say that a server behind it cannot be used. Other responses come from a working application, including 500:
    /// a bug in one path must not eject the server for all others.
    pub(super) fn answered(&self, endpoint: &Endpoint, status: StatusCode, now: Instant) {
        match status {
            StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => {
                self.failed(endpoint, now);
            }
            _ => endpoint.failures.set(0),
        }
    }

    /// An endpoint failed a request. Enough consecutive failures eject it, while no more than half of all endpoints are
    /// ejected: the others get its load, and failures that would eject more often have a common cause.
    pub(super) fn failed(&self, endpoint: &Endpoint, now: Instant) {
        if Endpoint::failed(&endpoint.failures) {
            self.eject(endpoint, now);
        }
    }

    /// An endpoint did not complete a response. Counted apart from failures without a response: the next headers would
    /// forgive it, although their rest may not come either.
    pub(super) fn broke(&self, endpoint: &Endpoint, now: Instant) {
        if Endpoint::failed(&endpoint.broken) {
            self.eject(endpoint, now);
        }
    }

    fn eject(&self, endpoint: &Endpoint, now: Instant) {
        if endpoint.state(now) == EndpointState::Ejected {
            return;
        }
        let endpoints = self.endpoints.borrow();
        let ejected = endpoints.iter().filter(|other| other.state(now) == EndpointState::Ejected).count();
        if ejected < endpoints.len() / 2 {
            let length = endpoint.eject(now);
            self.observer.ejected();
            tracing::warn!(upstream = %endpoint, "ejected for {length:?}: its requests failed");
        }
    }

    pub(super) fn report(&self, endpoint: &Endpoint, reason: UpstreamFailure, error: &dyn Error) {
        self.observer.failed(Some(endpoint), reason, error);
    }

    pub(super) fn reap(&self, now: Instant) {
        for endpoint in self.endpoints.borrow().iter() {
            endpoint.reap(now);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::fmt::Display;
    use std::num::NonZeroU32;

    use super::super::endpoint::MAX_FAILURES;
    use super::*;
    use crate::message::connection::Unbuffered;

    #[derive(Debug, Default)]
    pub(in super::super) struct CountedEjections(Cell<u64>);

    impl UpstreamObserver for CountedEjections {
        fn unbuffered(&self, _: Unbuffered) {}

        fn answered(&self, _: Duration) {}

        fn failed(&self, _: Option<&dyn Display>, _: UpstreamFailure, _: &dyn Error) {}

        fn retried(&self) {}

        fn ejected(&self) {
            self.0.set(self.0.get() + 1);
        }

        fn unresolved(&self) {}
    }

    const SECOND: Duration = Duration::from_secs(1);

    const LIMITS: Limits = Limits { connections: 2, idle_time: SECOND };

    fn of(servers: &[&str]) -> (Rc<Cluster>, Rc<CountedEjections>) {
        let servers: Vec<_> = servers.iter().map(|server| Server::parse(server).unwrap()).collect();
        let observer: Rc<CountedEjections> = Rc::default();
        (Cluster::new(&servers, LIMITS, observer.clone()), observer)
    }

    fn cluster(count: usize) -> Rc<Cluster> {
        counted(count).0
    }

    fn counted(count: usize) -> (Rc<Cluster>, Rc<CountedEjections>) {
        let servers: Vec<_> = (1..=count).map(|last| format!("http://10.0.0.{last}")).collect();
        of(&servers.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// The last number of the address.
    fn name(endpoint: &Endpoint) -> char {
        match &*endpoint.address {
            Address::Network(address) => address.ip().to_string().chars().last().unwrap(),
            Address::Unix(_) => 'u',
        }
    }

    /// Fails what takes an endpoint until it is ejected.
    fn fail(cluster: &Cluster, number: usize, now: Instant) {
        let endpoint = cluster.endpoints()[number - 1].clone();
        for _ in 0..MAX_FAILURES {
            cluster.failed(&endpoint, now);
        }
    }

    /// Who takes requests that are done at once.
    #[track_caller]
    fn check_turns(cluster: &Rc<Cluster>, now: Instant, expected: &str) {
        let taken: String = expected.chars().map(|_| name(&cluster.pick(now, None).unwrap().endpoint)).collect();
        assert_eq!(taken, expected);
    }

    #[test]
    fn equals_take_turns() {
        check_turns(&cluster(1), Instant::now(), "111");
        check_turns(&cluster(3), Instant::now(), "1231231");
    }

    #[test]
    fn the_one_with_the_least_to_do_is_next() {
        let (cluster, now) = (cluster(3), Instant::now());
        let mut leases: Vec<_> = (0..6).map(|_| cluster.pick(now, None).unwrap()).collect();
        leases.retain(|lease| name(&lease.endpoint) != '2');
        assert_eq!(
            cluster.endpoints().iter().map(|endpoint| endpoint.outstanding.get()).collect::<Vec<_>>(),
            [2, 0, 2]
        );
        leases.extend((0..2).map(|_| cluster.pick(now, None).unwrap()));
        assert_eq!(leases[4..].iter().map(|lease| name(&lease.endpoint)).collect::<String>(), "22");
    }

    #[test]
    fn a_second_try_goes_elsewhere_if_it_can() {
        let (two, one, now) = (cluster(2), cluster(1), Instant::now());
        for expected in ['1', '2', '1'] {
            let first = two.pick(now, None).unwrap();
            assert!(two.has_other(&first.endpoint));
            assert_eq!(name(&first.endpoint), expected);
            assert_ne!(name(&two.pick(now, Some(&first.endpoint)).unwrap().endpoint), name(&first.endpoint));
        }
        let only = one.pick(now, None).unwrap();
        assert!(!one.has_other(&only.endpoint) && one.pick(now, Some(&only.endpoint)).is_some());
    }

    #[test]
    fn failures_in_a_row_eject() {
        let (cluster, now) = (cluster(2), Instant::now());
        let endpoint = cluster.endpoints()[0].clone();
        for _ in 1..MAX_FAILURES {
            cluster.failed(&endpoint, now);
        }
        cluster.answered(&endpoint, StatusCode::OK, now);
        cluster.failed(&endpoint, now);
        check_turns(&cluster, now, "1212");
        fail(&cluster, 1, now);
        check_turns(&cluster, now, "2222");
    }

    #[test]
    fn answers_that_say_that_nobody_is_there_are_failures() {
        for (status, expected) in [(502, "2222"), (503, "2222"), (504, "2222"), (500, "1212"), (404, "1212")] {
            let (cluster, now) = (cluster(2), Instant::now());
            let endpoint = cluster.endpoints()[0].clone();
            for _ in 0..MAX_FAILURES {
                cluster.answered(&endpoint, StatusCode::from_u16(status).unwrap(), now);
            }
            check_turns(&cluster, now, expected);
        }
    }

    #[test]
    fn an_ejection_ends_and_the_next_is_twice_as_long() {
        let (cluster, start) = (cluster(2), Instant::now());
        let endpoint = cluster.endpoints()[0].clone();
        let mut now = start;
        for seconds in [10, 20, 40, 80, 160, 300, 300] {
            fail(&cluster, 1, now);
            assert_eq!(endpoint.state(now + (seconds - 1) * SECOND), EndpointState::Ejected, "{seconds}");
            now += seconds * SECOND;
            assert_eq!(endpoint.state(now), EndpointState::Healthy, "{seconds}");
        }
        // It has been good for as long as it had been away.
        now += 300 * SECOND;
        fail(&cluster, 1, now);
        assert_eq!(endpoint.state(now + 10 * SECOND), EndpointState::Healthy);
    }

    #[test]
    fn no_more_than_half_are_ejected() {
        for (count, expected) in [(1, 0), (2, 1), (3, 1), (4, 2), (5, 2)] {
            let ((cluster, observer), now) = (counted(count), Instant::now());
            for number in 1..=count {
                fail(&cluster, number, now);
            }
            assert_eq!(observer.0.get(), expected, "of {count}");
        }
    }

    #[test]
    fn the_unhealthy_are_left_out_unless_all_are() {
        let (cluster, now) = (cluster(2), Instant::now());
        let endpoints = cluster.endpoints();
        let check = |number: usize, well| endpoints[number - 1].checked(well, NonZeroU32::MIN);
        assert!(check(1, false));
        check_turns(&cluster, now, "22");
        assert!(check(2, false));
        check_turns(&cluster, now, "1212");
        assert!(check(1, true));
        check_turns(&cluster, now, "11");
    }

    #[test]
    fn it_takes_several_checks_in_a_row_to_change_a_state() {
        let (cluster, now) = (cluster(1), Instant::now());
        let endpoint = cluster.endpoints()[0].clone();
        let states: String = "++-+--+---+-++"
            .chars()
            .map(|check| {
                let needed = if check == '+' { 2 } else { 3 };
                endpoint.checked(check == '+', NonZeroU32::new(needed).unwrap());
                if endpoint.state(now) == EndpointState::Healthy { 'h' } else { 'u' }
            })
            .collect();
        assert_eq!(states, "hhhhhhhhhuuuuh");
    }

    #[test]
    fn names_have_endpoints_when_they_have_addresses() {
        let cluster = of(&["http://a", "unix:/a"]).0;
        let (server, now) = (cluster.servers[0].clone(), Instant::now());
        check_turns(&cluster, now, "uu");
        let addresses: Vec<_> = (1..=3).map(|last| SocketAddr::from(([10, 0, 0, last], 80))).collect();
        assert!(cluster.set_addresses(&server, &addresses[..2]));
        let lease = cluster.pick(now, None).unwrap();
        let kept = cluster.endpoints();
        assert!(!cluster.set_addresses(&server, &[addresses[1], addresses[0], addresses[0]]));
        assert!(cluster.set_addresses(&server, &addresses[1..]));
        let now_there = cluster.endpoints();
        assert_eq!(now_there.iter().map(|endpoint| name(endpoint)).collect::<String>(), "u23");
        assert!(Rc::ptr_eq(&kept[2], &now_there[1]), "what stays is the same");
        drop(lease);
    }

    #[test]
    fn no_name_has_more_addresses_than_its_share() {
        let cluster = of(&["http://a"]).0;
        let server = cluster.servers[0].clone();
        assert!(cluster.pick(Instant::now(), None).is_none());
        let addresses: Vec<_> = (0..=255).map(|last| SocketAddr::from(([10, 0, 0, last], 80))).collect();
        cluster.set_addresses(&server, &addresses);
        assert_eq!(cluster.endpoints().len(), MAX_ADDRESSES);
    }
}
