//! Where requests go: routes, their servers, and the ways there.
//!
//! [`route`] says which servers a request is for and [`cluster`] which of their addresses takes it; [`forward`] sends it,
//! over a connection of the [`pool`] or a new one of [`connect`], a second time if that is safe. Names are [`resolve`]d
//! and servers [`health`]-checked in the background. Everything here belongs to one worker and knows what that worker has
//! seen: no request touches what another core writes.

use std::num::NonZeroUsize;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use self::cluster::{Cluster, Limits};
use self::connect::Connector;
use self::endpoint::State;
use self::resolve::Resolution;
use super::observer::UpstreamObserver;
use super::timeouts::Timeouts;
use super::transport;

mod address;
mod cluster;
mod connect;
mod endpoint;
mod forward;
mod health;
#[cfg(test)]
mod observed;
mod pool;
mod resolve;
mod route;

pub(crate) use forward::Forwarder;
pub use health::HealthCheck;
pub use route::Routes;

/// A connection of the pool.
type Connection = Box<super::http1::Connection<endpoint::Lease>>;

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
    /// Starts the background tasks, so the worker's runtime must run. `observer` makes an observer of a route.
    pub(crate) fn new(
        options: &UpstreamOptions,
        timeouts: &Timeouts,
        observer: impl Fn() -> Rc<dyn UpstreamObserver>,
    ) -> Self {
        let mut tasks = JoinSet::new();
        let connector = Rc::new(Connector { timeout: timeouts.connect, tls: options.tls.clone() });
        let limits = Limits { connections: options.connections.get(), idle_time: timeouts.upstream_idle };
        let check = options.health_check.clone().map(Rc::new);
        let way = |route: &route::Route| match &route.upstream {
            route::Upstream::Echo => Way::Echo,
            route::Upstream::Servers(servers) => {
                let observer = observer();
                let cluster = Cluster::new(servers, limits, observer.clone());
                let resolution: Rc<Resolution> = Rc::default();
                for server in cluster.servers().iter().filter(|server| server.has_name()) {
                    let observer = observer.clone();
                    tasks.spawn_local(resolution.clone().keep(
                        cluster.clone(),
                        server.clone(),
                        options.resolve_interval,
                        resolve::lookup,
                        move || observer.unresolved(),
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
                    observer,
                }))
            }
        };
        let ways = options.routes.iter().map(way).collect();
        Self { routes: options.routes.clone(), ways, _tasks: tasks }
    }

    /// The way of a request, by its host in lower case without a port and its normalised path.
    pub(crate) fn pick(&self, host: &str, path: &str) -> Option<&Way> {
        self.routes.pick(host, path).and_then(|place| self.ways.get(place))
    }

    /// Closes connections that have been idle for too long, and counts the endpoints. Call it about once per second.
    pub(crate) fn reap(&self, now: Instant) -> EndpointCounts {
        let mut counts = EndpointCounts::default();
        for way in &self.ways {
            let Way::Servers(forwarder) = way else { continue };
            forwarder.cluster.reap(now);
            for endpoint in forwarder.cluster.endpoints() {
                match endpoint.state(now) {
                    State::Healthy => counts.healthy += 1,
                    State::Ejected => counts.ejected += 1,
                    State::Unhealthy => counts.unhealthy += 1,
                }
            }
        }
        counts
    }
}

/// Addresses of servers by state.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EndpointCounts {
    pub(crate) healthy: i64,
    pub(crate) ejected: i64,
    pub(crate) unhealthy: i64,
}
