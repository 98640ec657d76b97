//! Where requests go: routes, their servers, and the ways there.
//!
//! [`route`] says which servers a request is for and [`cluster`] which of their addresses takes it; [`forward`] sends it,
//! over a connection of the [`pool`] or a new one of [`connect`], a second time if that is safe. Names are [`resolve`]d
//! and servers [`health`]-checked in the background. Everything here belongs to one worker and knows what that worker has
//! seen: no request touches what another core writes.

use std::cell::Cell;
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use self::cluster::{Cluster, Limits};
use self::connect::Connector;
use self::endpoint::State;
use self::resolve::Resolution;
use super::Timeouts;
use super::log::Throttle;
use super::transport;
use crate::telemetry::http_counters::Counters;
use crate::telemetry::metrics::ENDPOINT_STATES;

mod address;
mod cluster;
mod connect;
mod endpoint;
mod forward;
mod health;
mod pool;
mod resolve;
mod route;

pub(super) use self::endpoint::Endpoint;
pub(super) use endpoint::Lease;
pub(crate) use forward::Forwarder;
pub use health::HealthCheck;
pub use route::Routes;

/// A connection of the pool.
type Connection = Box<super::http1::Connection>;

/// Where requests go and how.
#[derive(Clone, Debug)]
pub struct UpstreamOptions {
    /// Which requests go where.
    pub routes: Routes,
    /// Connections that a worker has to one address at once, idle ones included. Further requests wait in line.
    pub connections: NonZeroUsize,
    /// How long one try may take until the response's headers; the second has what is left of the whole time.
    pub try_timeout: Option<Duration>,
    /// How often names are resolved again.
    pub resolve_interval: Duration,
    /// How servers are asked whether they are well; not at all unless given.
    pub health_check: Option<HealthCheck>,
    /// How servers of `https://` are verified; needed if there is one, see [`Routes::use_tls`].
    pub tls: Option<transport::Connector>,
}

impl UpstreamOptions {
    /// What is sound for most.
    pub fn new(routes: Routes) -> Self {
        Self {
            routes,
            // As many as there may be clients: with less, clients that send their bodies slowly take them all, and the
            // others wait in vain. To protect a server that can take fewer is the operator's choice.
            connections: const { NonZeroUsize::new(16_384).unwrap() },
            try_timeout: None,
            resolve_interval: Duration::from_secs(10),
            health_check: None,
            tls: None,
        }
    }
}

/// A worker's ways to the servers of all routes.
#[derive(Debug)]
pub(crate) struct Upstreams {
    routes: Routes,
    /// In the order of the routes.
    ways: Vec<Way>,
    counters: Rc<Counters>,
    /// What this worker has added to the metric.
    counted: Cell<[i64; ENDPOINT_STATES.len()]>,
    /// What runs in the background; it ends with this.
    _tasks: JoinSet<()>,
}

/// The way of a route.
#[derive(Debug)]
pub(crate) enum Way {
    /// The built-in upstream.
    Echo,
    /// Shared with exchanges that go on without their clients.
    Servers(Rc<Forwarder>),
}

impl Upstreams {
    /// Starts what runs in the background, so it is to be called inside the worker's runtime.
    pub(crate) fn new(options: &UpstreamOptions, timeouts: &Timeouts, counters: &Rc<Counters>) -> Self {
        let mut tasks = JoinSet::new();
        let connector = Rc::new(Connector { timeout: timeouts.connect, tls: options.tls.clone() });
        let limits = Limits { connections: options.connections.get(), idle_time: timeouts.upstream_idle };
        let check = options.health_check.clone().map(Rc::new);
        let way = |route: &route::Route| match &route.upstream {
            route::Upstream::Echo => Way::Echo,
            route::Upstream::Servers(servers) => {
                let cluster = Cluster::new(servers, limits, counters.clone());
                let resolution: Rc<Resolution> = Rc::default();
                for server in cluster.servers().iter().filter(|server| server.has_name()) {
                    let counters = counters.clone();
                    tasks.spawn_local(resolution.clone().keep(
                        cluster.clone(),
                        server.clone(),
                        options.resolve_interval,
                        resolve::lookup,
                        move || counters.upstream_unresolved(),
                    ));
                }
                if let Some(check) = &check {
                    tasks.spawn_local(health::keep(check.clone(), cluster.clone(), connector.clone()));
                }
                Way::Servers(Rc::new(Forwarder {
                    cluster,
                    resolution,
                    connector: connector.clone(),
                    try_timeout: options.try_timeout,
                    counters: counters.clone(),
                    log: Throttle::default(),
                }))
            }
        };
        let ways = options.routes.iter().map(way).collect();
        Self {
            routes: options.routes.clone(),
            ways,
            counters: counters.clone(),
            counted: Cell::default(),
            _tasks: tasks,
        }
    }

    /// The way of a request, by its host in lower case without a port and its normalised path.
    pub(crate) fn pick(&self, host: &str, path: &str) -> Option<&Way> {
        self.routes.pick(host, path).and_then(|place| self.ways.get(place))
    }

    /// Closes connections that have been idle for too long, and counts the endpoints. To be called about once a second.
    pub(crate) fn reap(&self, now: Instant) {
        let mut counts = [0; ENDPOINT_STATES.len()];
        for way in &self.ways {
            let Way::Servers(forwarder) = way else { continue };
            forwarder.cluster.reap(now);
            for endpoint in forwarder.cluster.endpoints() {
                match endpoint.state(now) {
                    State::Healthy => counts[0] += 1,
                    State::Ejected => counts[1] += 1,
                    State::Unhealthy => counts[2] += 1,
                }
            }
        }
        self.count(counts);
    }

    fn count(&self, counts: [i64; ENDPOINT_STATES.len()]) {
        let before = self.counted.replace(counts);
        self.counters.add_endpoints(std::array::from_fn(|place| counts[place] - before[place]));
    }
}

impl Drop for Upstreams {
    fn drop(&mut self) {
        self.count([0; ENDPOINT_STATES.len()]);
    }
}
