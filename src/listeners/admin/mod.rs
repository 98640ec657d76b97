//! The admin listener: metrics, whether the process is well and ready, what operators do with buckets ([`buckets`]), and what is
//! logged ([`log`]). Not for clients.

use std::cell::RefCell;
use std::future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use parking_lot::Mutex;
use serde_json::json;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use self::connections::Stage;
pub use self::connections::{Connections, Place};
use self::log::LogFilter;
use self::tokens::Tokens;
use crate::http::simple::{self, Incoming};
use crate::limiter::Shared;
use crate::limiter::operator::Operator;
use crate::message::address;
use crate::message::host::host_of;
use crate::message::reply::{Reply, problem};
use crate::store::memory::{MemoryStore, Usage};
use crate::store::{Fault, Store};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::throttle::Throttle;

mod body;
pub mod buckets;
pub mod client;
mod connections;
pub mod log;
mod replies;
pub mod tokens;

/// For the head of the first request.
const FIRST_REQUEST: Duration = Duration::from_secs(5);

/// For the head of another one: a scraper that keeps its connection comes every 15 s or so.
const HEADER_TIMEOUT: Duration = Duration::from_mins(1);

/// How far the process has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// The listeners are not up yet.
    #[default]
    Starting,
    /// Connections are taken.
    Serving,
    /// It takes no new connections, or soon will not.
    Draining,
}

/// What the process knows of its own readiness.
#[derive(Debug, Default)]
pub struct Readiness {
    phase: watch::Sender<Phase>,
    reload_error: Mutex<Option<String>>,
}

impl Readiness {
    /// The listeners are up.
    pub fn serving(&self) {
        self.phase.send_if_modified(|phase| {
            let is_new = *phase == Phase::Starting;
            if is_new {
                *phase = Phase::Serving;
            }
            is_new
        });
    }

    /// The process takes no new connections.
    pub fn draining(&self) {
        self.phase.send_replace(Phase::Draining);
    }

    /// How far the process has come.
    pub fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// How far it has come, now and later.
    pub fn phases(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    /// How the last reload of the rules went: `None`, or what is wrong with the files.
    pub fn reloaded(&self, error: Option<String>) {
        *self.reload_error.lock() = error;
    }
}

/// What the admin listener is made of.
#[derive(Clone)]
pub struct AdminOptions {
    /// Whether requests are taken.
    pub readiness: Arc<Readiness>,
    /// What the workers share: the metrics, and what is kept here while the store is away.
    pub shared: Arc<Shared>,
    /// The stores of all workers.
    pub stores: Arc<[Store]>,
    /// Who may change buckets.
    pub tokens: Tokens,
    /// What is logged, if that can be changed.
    pub log: Option<LogFilter>,
    /// Whether only this machine can reach the listener. Then it answers to this machine's own names: a page in a browser here
    /// could have its name resolved to 127.0.0.1 and ask under that (DNS rebinding).
    pub is_local: bool,
}

/// The admin listener.
pub struct Admin {
    readiness: Arc<Readiness>,
    shared: Arc<Shared>,
    metrics: Arc<Metrics>,
    stores: Arc<[Store]>,
    tokens: Tokens,
    operator: Rc<Operator>,
    log: Option<LogFilter>,
    is_local: bool,
    /// Puts the log's filter of the flag in force again.
    returning: RefCell<Option<AbortOnDropHandle<()>>>,
    /// Of changes that nobody may make who asks for them.
    complaints: Throttle,
}

impl Admin {
    /// An admin listener, and what does what it is asked to do with buckets.
    pub fn new(options: AdminOptions, operator: Rc<Operator>) -> Rc<Self> {
        let AdminOptions { readiness, shared, stores, tokens, log, is_local } = options;
        let metrics = shared.metrics().clone();
        let (returning, complaints) = (RefCell::default(), Throttle::default());
        Rc::new(Self { readiness, shared, metrics, stores, tokens, operator, log, is_local, returning, complaints })
    }

    /// Serves one connection to its end. When `closing` is cancelled, what runs is answered and nothing after it.
    pub async fn serve_connection(self: Rc<Self>, stream: TcpStream, place: Place, closing: CancellationToken) {
        let peer = stream.peer_addr().ok();
        let visit = place.visit.clone();
        let answer = async |request| {
            visit.is_at(Stage::Answering);
            let response = self.answer(request, peer).await;
            visit.is_at(Stage::Idle);
            response
        };
        let silent = async {
            sleep(FIRST_REQUEST).await;
            if visit.stage() != Stage::Silent {
                future::pending::<()>().await;
            }
        };
        let served = tokio::select! {
            served = simple::serve(stream, HEADER_TIMEOUT, &closing, answer) => served,
            () = silent => return tracing::debug!("an admin connection had no request in time"),
            () = place.visit.replaced.cancelled() => return tracing::debug!("an admin connection gave way to another"),
        };
        if let Err(error) = served {
            tracing::debug!("an admin connection ended: {error}");
        }
    }

    async fn answer(self: &Rc<Self>, request: Request<Incoming>, peer: Option<SocketAddr>) -> Response<Full<Bytes>> {
        let (head, body) = request.into_parts();
        if self.is_local && !is_addressed(&head) {
            let detail = "this listener is on loopback: ask for localhost, or for a loopback address";
            return own(problem(StatusCode::MISDIRECTED_REQUEST, detail));
        }
        if let ("/log", Some(filter)) = (head.uri.path(), &self.log) {
            return own(self.answer_log(filter, &head.method, &head.headers, body, peer).await);
        }
        match buckets::asked(head.uri.path()) {
            Some(asked) => own(self.answer_operator(&asked, &head.method, &head.headers, body, peer).await),
            None => self.answer_page(&head.method, head.uri.path()),
        }
    }

    fn answer_page(&self, method: &Method, path: &str) -> Response<Full<Bytes>> {
        let page = match path {
            "/metrics" => Self::metrics_page,
            "/healthz" => Self::health_page,
            "/readyz" => Self::ready_page,
            _ => {
                let problem = problem(
                    StatusCode::NOT_FOUND,
                    "there are /metrics, /healthz, /readyz, /log, /buckets/NAME:ID and /blocks",
                );
                return own(problem);
            }
        };
        if !matches!(*method, Method::GET | Method::HEAD) {
            let mut problem = problem(StatusCode::METHOD_NOT_ALLOWED, "this page is only for reading");
            problem.headers.append("allow", "GET, HEAD");
            return own(problem);
        }
        let (status, kind, text) = page(self);
        // hyper leaves the body out for HEAD and keeps its length.
        let mut response = Response::new(Full::new(text.into()));
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }

    fn health_page(_: &Self) -> (StatusCode, &'static str, Vec<u8>) {
        (StatusCode::OK, "text/plain; charset=utf-8", b"ok\n".to_vec())
    }

    /// A store that is away does not make the process unready: each limit's `on_store_error` says what happens then, and
    /// all processes would become unready at once.
    fn ready_page(&self) -> (StatusCode, &'static str, Vec<u8>) {
        let standing = Standing::of(&self.stores);
        let reload_error = self.readiness.reload_error.lock().clone();
        let is_degraded = standing.connected < self.stores.len() || standing.failing > 0 || reload_error.is_some();
        let (code, status) = match self.readiness.phase() {
            Phase::Draining => (StatusCode::SERVICE_UNAVAILABLE, "draining"),
            Phase::Starting => (StatusCode::SERVICE_UNAVAILABLE, "starting"),
            Phase::Serving if is_degraded => (StatusCode::OK, "degraded"),
            Phase::Serving => (StatusCode::OK, "ready"),
        };
        let store = match standing.connected {
            connected if connected == self.stores.len() && standing.failing == 0 => "up",
            connected if connected > 0 && connected == standing.failing => "failing",
            0 => "down",
            _ => "partly up",
        };
        let mut page =
            json!({ "status": status, "store": store, "config": if reload_error.is_some() { "error" } else { "ok" } });
        if let Some(error) = standing.error {
            page["store_error"] = error.into();
        }
        if let Some(error) = reload_error {
            page["config_error"] = error.into();
        }
        (code, "application/json", format!("{page}\n").into_bytes())
    }

    fn metrics_page(&self) -> (StatusCode, &'static str, Vec<u8>) {
        let standing = Standing::of(&self.stores);
        // The workers share one table.
        let in_memory = self.stores.iter().find_map(Store::as_memory).map(MemoryStore::usage);
        standing.publish(&self.metrics, &in_memory.unwrap_or_else(|| self.shared.local.usage()));
        match self.metrics.render() {
            Ok(text) => (StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text),
            Err(error) => {
                tracing::error!("cannot render the metrics: {error}");
                (
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "text/plain; charset=utf-8",
                    b"cannot render the metrics\n".to_vec(),
                )
            }
        }
    }
}

/// Whether a request at a listener on loopback is meant for it. A probe may ask under any name whether the process is well.
fn is_addressed(head: &Parts) -> bool {
    let is_own = |host: &HeaderValue| {
        let host = host.to_str().ok().and_then(host_of);
        host.is_some_and(|host| match address::parse(&host) {
            Ok(address) => address.is_loopback(),
            Err(_) => host == "localhost" || host.ends_with(".localhost"),
        })
    };
    matches!(head.uri.path(), "/healthz" | "/readyz") || head.headers.get_all(HOST).iter().all(is_own)
}

/// A reply of ours. A line whose name or value the library does not take is left out; the engine makes none such.
fn own(Reply { status, headers, body }: Reply) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    for (name, value) in headers.iter() {
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
            response.headers_mut().append(name, value);
        }
    }
    response
}

/// How the stores of all workers stand.
#[derive(Debug, Default, PartialEq, Eq)]
struct Standing {
    connected: usize,
    /// Connected stores whose last answers were errors.
    failing: usize,
    breakers_open: usize,
    /// In the order of [`Fault::LABELS`].
    faults: [u64; Fault::LABELS.len()],
    corrupt_values: u64,
    /// Why one of those that cannot decide cannot.
    error: Option<String>,
}

impl Standing {
    fn of(stores: &[Store]) -> Self {
        let mut standing = Self::default();
        for store in stores {
            let health = store.health();
            standing.connected += usize::from(health.connected);
            standing.breakers_open += usize::from(health.breaker_open);
            standing.failing += usize::from(health.connected && health.fault.is_some());
            if let Some(fault) = health.fault {
                standing.faults[fault as usize] += 1;
            }
            standing.corrupt_values += health.corrupt_values;
            standing.error = health.last_error.or(standing.error);
        }
        standing
    }

    /// `usage` is that of the buckets in memory.
    fn publish(&self, metrics: &Metrics, usage: &Usage) {
        let gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        metrics.store.connections.set(gauge(self.connected as u64));
        metrics.store.breakers_open.set(gauge(self.breakers_open as u64));
        for (reason, workers) in Fault::LABELS.into_iter().zip(self.faults) {
            metrics.store.unusable.with_label_values(&[reason]).set(gauge(workers));
        }
        metrics.store.keys.set(gauge(usage.keys));
        metrics.store.set_counts(usage.evicted, usage.overflowed, self.corrupt_values);
    }
}
