//! Upstreams: routes, their servers and the connections to them.
//!
//! [`route`] picks the servers for a request and [`cluster`] one of their addresses. [`forward`] sends the request over
//! a connection from the pool or a new one ([`connections`]), and retries if that is safe. Names are resolved
//! ([`resolve`]) and servers checked ([`health`]) in the background. Each worker has all of this for itself, so
//! requests never write to memory that other cores use.

use std::cell::RefCell;
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use tokio::task::JoinSet;

use self::cluster::{Cluster, Limits};
use self::connections::Connector;
use self::kept_body::KeptMemory;
use self::resolve::Resolution;
use super::activity::Activity;
use super::limits::{RouteTimeouts, Timeouts};
use super::message::Request;
use super::observer::UpstreamObserver;
use super::transport;
use crate::message::connection::EndpointState;
use crate::message::headers::Headers;

mod address;
mod cluster;
mod connections;
mod endpoint;
mod forward;
mod health;
mod kept_body;
mod resolve;
mod route;
mod route_options;

pub(crate) use forward::Forwarder;
pub use health::HealthCheck;
pub use route::Routes;
pub use route_options::{HeaderChanges, RouteOptions};

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
    /// The longest body that is read before its request is sent.
    pub buffer: usize,
    /// Required if a server uses `https://`, see [`Routes::use_tls`].
    pub tls: Option<transport::Connector>,
    /// The options of the last reload, which replace these; `None` if nothing can be reloaded.
    pub reloaded: Option<Arc<ArcSwapOption<Self>>>,
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
            buffer: 0,
            tls: None,
            reloaded: None,
        }
    }
}

/// A worker's upstreams.
#[derive(Debug)]
pub(crate) struct Upstreams {
    timeouts: Timeouts,
    memory: Rc<KeptMemory>,
    reloaded: Option<Arc<ArcSwapOption<UpstreamOptions>>>,
    current: RefCell<RouteTable>,
}

/// The routes in force and their destinations, in the same order.
#[derive(Debug)]
struct RouteTable {
    routes: Routes,
    destinations: Vec<Rc<Destination>>,
    /// The reload that it comes from.
    origin: Option<Arc<UpstreamOptions>>,
}

/// The destination of a route. Requests keep theirs when a reload removes it.
#[derive(Debug)]
pub(crate) struct Destination {
    pub(crate) kind: DestinationKind,
    pub(crate) options: Option<Box<RouteOptions>>,
    prefix: String,
    /// Background tasks, which end with this.
    _tasks: JoinSet<()>,
}

#[derive(Debug)]
pub(crate) enum DestinationKind {
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
        let memory = Rc::default();
        let open = |route| Rc::new(Destination::open(route, options, timeouts, &memory, &observer));
        let destinations = options.routes.iter().map(open).collect();
        let table = RouteTable { routes: options.routes.clone(), destinations, origin: None };
        Self { timeouts: *timeouts, memory, reloaded: options.reloaded.clone(), current: RefCell::new(table) }
    }

    /// Puts the routes of the last reload in force. Those that are the same keep their connections and what is known of
    /// their servers.
    pub(crate) fn follow(&self, observer: impl Fn() -> Rc<dyn UpstreamObserver>) {
        let Some(reloaded) = &self.reloaded else { return };
        let latest = reloaded.load();
        let Some(latest) = &*latest else { return };
        let mut current = self.current.borrow_mut();
        if current.origin.as_ref().is_some_and(|origin| Arc::ptr_eq(origin, latest)) {
            return;
        }
        let destination = |route| {
            let place = current.routes.iter().position(|known| known == route);
            let known = place.and_then(|place| current.destinations.get(place)).cloned();
            known.unwrap_or_else(|| Rc::new(Destination::open(route, latest, &self.timeouts, &self.memory, &observer)))
        };
        let destinations = latest.routes.iter().map(destination).collect();
        *current = RouteTable { routes: latest.routes.clone(), destinations, origin: Some(latest.clone()) };
    }

    /// Returns the destination for a host, in lower case without a port, and a normalised path.
    pub(crate) fn pick(&self, host: &str, path: &str) -> Option<Rc<Destination>> {
        let current = self.current.borrow();
        current.routes.pick(host, path).and_then(|index| current.destinations.get(index)).cloned()
    }

    /// Closes connections that have been idle for too long, and counts the endpoints, in the order of
    /// [`EndpointState::ALL`]. Call it about once per second.
    pub(crate) fn reap(&self, now: Instant) -> [i64; EndpointState::ALL.len()] {
        let mut counts = [0; EndpointState::ALL.len()];
        for destination in &self.current.borrow().destinations {
            let DestinationKind::Servers(forwarder) = &destination.kind else { continue };
            forwarder.cluster.reap(now);
            for endpoint in forwarder.cluster.endpoints() {
                counts[endpoint.state(now) as usize] += 1;
            }
        }
        counts
    }
}

impl Destination {
    fn open(
        route: &route::Route,
        options: &UpstreamOptions,
        timeouts: &Timeouts,
        memory: &Rc<KeptMemory>,
        observer: &impl Fn() -> Rc<dyn UpstreamObserver>,
    ) -> Self {
        let mut tasks = JoinSet::new();
        let kind = match &route.upstream {
            route::Upstream::Echo => DestinationKind::Echo,
            route::Upstream::Servers(servers) => {
                let own = route.options.as_deref().cloned().unwrap_or_default();
                let observer = observer();
                let limits = Limits {
                    connections: own.connections.unwrap_or(options.connections).get(),
                    idle_time: timeouts.upstream_idle,
                };
                let connector = Rc::new(Connector {
                    timeout: own.connect_timeout.unwrap_or(timeouts.connect),
                    tls: options.tls.clone(),
                });
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
                if let Some(check) = own.health_check.or_else(|| options.health_check.clone()) {
                    tasks.spawn_local(health::keep(Rc::new(check), cluster.clone(), connector.clone()));
                }
                DestinationKind::Servers(Rc::new(Forwarder {
                    cluster,
                    resolution,
                    connector,
                    try_timeout: own.try_timeout.or(options.try_timeout),
                    response_timeout: own.timeouts.response.unwrap_or(timeouts.response),
                    buffer: own.buffer.unwrap_or(options.buffer),
                    observer,
                    memory: memory.clone(),
                }))
            }
        };
        Self { kind, options: route.options.clone(), prefix: route.prefix.clone(), _tasks: tasks }
    }

    /// Returns the target that the route's servers are to see, `None` if it stays. The error is the reason to reject the request.
    pub(crate) fn rewritten(&self, target: &str) -> Result<Option<String>, &'static str> {
        self.options.as_ref().map_or(Ok(None), |options| options.rewrite(&self.prefix, target))
    }

    /// Changes the rest of a request as they are to see it.
    pub(crate) fn prepare(&self, request: &mut Request, activity: &Activity) {
        if let Some(options) = &self.options {
            options.request_headers.apply(&mut request.headers);
            if options.timeouts != RouteTimeouts::default() {
                activity.takes_route(options.timeouts);
            }
        }
    }

    /// Changes the headers of a response as the route's clients are to see them.
    pub(crate) fn finish(&self, headers: &mut Headers) {
        if let Some(options) = &self.options {
            options.response_headers.apply(headers);
        }
    }
}
