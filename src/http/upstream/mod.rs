//! Upstreams: routes, their servers and the connections to them.
//!
//! [`route`] picks the servers for a request and [`cluster`] one of their addresses. [`forward`] sends the request over
//! a connection from the pool or a new one ([`connections`]), and retries if that is safe. Names are resolved
//! ([`resolve`]) and servers checked ([`health`]) in the background. Each worker has all of this for itself, so
//! requests never write to memory that other cores use.

use std::num::NonZeroUsize;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use self::cluster::{Cluster, Limits};
use self::connections::Connector;
use self::kept_body::KeptMemory;
use self::resolve::Resolution;
use super::limits::Timeouts;
use super::observer::UpstreamObserver;
use super::transport;
use crate::message::connection::EndpointState;

mod address;
mod cluster;
mod connections;
mod endpoint;
mod forward;
mod health;
mod kept_body;
mod resolve;
mod route;

pub(crate) use forward::Forwarder;
pub use health::HealthCheck;
pub use route::Routes;

/// A pooled connection.
type Connection = Box<super::http1::Connection<endpoint::EndpointLease>>;

/// Options for forwarding requests.
#[derive(Clone, Debug)]
pub struct UpstreamOptions {
    /// Selects the servers for each request.
    pub routes: Routes,
    /// Connections per worker and address, including idle ones. Further requests wait.
    pub connections: NonZeroUsize,
    /// The timeout of one try, until the response's headers. A retry has the rest of the whole timeout.
    pub try_timeout: Option<Duration>,
    /// The interval at which names are resolved again.
    pub resolve_interval: Duration,
    pub health_check: Option<HealthCheck>,
    /// Required if a server uses `https://`, see [`Routes::use_tls`].
    pub tls: Option<transport::Connector>,
}

impl UpstreamOptions {
    /// Returns options with defaults.
    pub fn new(routes: Routes) -> Self {
        Self {
            routes,
            // As many as client connections: with fewer, clients that send their bodies slowly could occupy them all.
            // Operators can lower it to protect a server.
            connections: const { NonZeroUsize::new(16_384).unwrap() },
            try_timeout: None,
            resolve_interval: Duration::from_secs(10),
            health_check: None,
            tls: None,
        }
    }
}

/// A worker's upstreams.
#[derive(Debug)]
pub(crate) struct Upstreams {
    routes: Routes,
    /// In the order of the routes.
    destinations: Vec<Destination>,
    /// Background tasks, which end with this.
    _tasks: JoinSet<()>,
}

/// The destination of a route.
#[derive(Debug)]
pub(crate) enum Destination {
    /// The built-in upstream.
    Echo,
    /// Shared with exchanges that continue without their clients.
    Servers(Rc<Forwarder>),
}

impl Upstreams {
    /// Starts the background tasks, so call it inside the worker's runtime. `observer` makes a route's observer.
    pub(crate) fn new(
        options: &UpstreamOptions,
        timeouts: &Timeouts,
        observer: impl Fn() -> Rc<dyn UpstreamObserver>,
    ) -> Self {
        let mut tasks = JoinSet::new();
        let connector = Rc::new(Connector { timeout: timeouts.connect, tls: options.tls.clone() });
        let limits = Limits { connections: options.connections.get(), idle_time: timeouts.upstream_idle };
        let check = options.health_check.clone().map(Rc::new);
        let memory: Rc<KeptMemory> = Rc::default();
        let destination = |route: &route::Route| match &route.upstream {
            route::Upstream::Echo => Destination::Echo,
            route::Upstream::Servers(servers) => {
                let observer = observer();
                let cluster = Cluster::new(servers, limits, observer.clone());
                let resolution: Rc<Resolution> = Rc::default();
                for server in cluster.servers.iter().filter(|server| server.has_name()) {
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
                Destination::Servers(Rc::new(Forwarder {
                    cluster,
                    resolution,
                    connector: connector.clone(),
                    try_timeout: options.try_timeout,
                    observer,
                    memory: memory.clone(),
                }))
            }
        };
        let destinations = options.routes.iter().map(destination).collect();
        Self { routes: options.routes.clone(), destinations, _tasks: tasks }
    }

    /// Returns the destination for a host, in lower case without a port, and a normalised path.
    pub(crate) fn pick(&self, host: &str, path: &str) -> Option<&Destination> {
        self.routes.pick(host, path).and_then(|index| self.destinations.get(index))
    }

    /// Closes connections that have been idle for too long, and counts the endpoints, in the order of
    /// [`EndpointState::ALL`]. Call it about once per second.
    pub(crate) fn reap(&self, now: Instant) -> [i64; EndpointState::ALL.len()] {
        let mut counts = [0; EndpointState::ALL.len()];
        for destination in &self.destinations {
            let Destination::Servers(forwarder) = destination else { continue };
            forwarder.cluster.reap(now);
            for endpoint in forwarder.cluster.endpoints() {
                counts[endpoint.state(now) as usize] += 1;
            }
        }
        counts
    }
}
