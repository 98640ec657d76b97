//! The admin listener: metrics, health, operations on buckets ([`buckets`]), the log's filter ([`log`]) and the live page
//! ([`page`]). Not for clients.

use std::cell::RefCell;
use std::future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{HOST, HeaderName, HeaderValue};
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

use self::buckets::Target;
use self::change::AdminRequest;
use self::connections::Stage;
pub use self::connections::{ConnectionGuard, Connections};
use self::log::LogFilter;
use self::tokens::Tokens;
use crate::http::simple::{self, Incoming};
use crate::limiter::Shared;
use crate::limiter::operator::Operator;
use crate::listeners::replies::method_not_allowed;
use crate::message::address;
use crate::message::headers::Headers;
use crate::message::host::host_of;
use crate::message::reply::{Reply, problem};
use crate::store::memory::{MemoryStore, Usage};
use crate::store::{Fault, Store};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::throttle::Throttle;

mod body;
mod buckets;
mod change;
pub mod client;
mod connections;
mod live;
pub mod log;
mod page;
mod replies;
pub mod tokens;
mod top;

/// For the head of a connection's first request.
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// For the head of a further request. Scrapers keep their connections for intervals of 15 s or so.
const HEADER_TIMEOUT: Duration = Duration::from_mins(1);

const PLAIN: &str = "text/plain; charset=utf-8";

/// The phase of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// The listeners are not up yet.
    #[default]
    Starting,
    /// Connections are taken.
    Serving,
    /// New connections are no longer taken, or soon will not be.
    Draining,
}

/// The readiness of the process.
#[derive(Debug, Default)]
pub struct Readiness {
    phase: watch::Sender<Phase>,
    reload_error: Mutex<Option<String>>,
}

impl Readiness {
    /// Ends the start. A process that drains already stays in that phase.
    pub fn serving(&self) {
        self.phase.send_if_modified(|phase| {
            let is_new = *phase == Phase::Starting;
            if is_new {
                *phase = Phase::Serving;
            }
            is_new
        });
    }

    pub fn draining(&self) {
        self.phase.send_replace(Phase::Draining);
    }

    pub fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Follows the phase.
    pub fn phases(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    /// Sets the result of the last reload: the error, if any.
    pub fn reloaded(&self, error: Option<String>) {
        *self.reload_error.lock() = error;
    }
}

#[derive(Clone)]
pub struct AdminOptions {
    pub readiness: Arc<Readiness>,
    pub shared: Arc<Shared>,
    /// The stores of all workers.
    pub stores: Arc<[Store]>,
    /// The tokens for changes.
    pub tokens: Tokens,
    /// The log's filter, if it can be changed.
    pub log: Option<LogFilter>,
    /// The name and address of each listener.
    pub listeners: Vec<(&'static str, String)>,
    /// The listener is on loopback and answers only to loopback names: a page in a local browser could have its own name
    /// resolve to 127.0.0.1 (DNS rebinding).
    pub is_local: bool,
}

/// The admin listener.
pub struct Admin {
    options: AdminOptions,
    operator: Rc<Operator>,
    /// Resets the log's filter when a temporary one expires.
    log_reset: RefCell<Option<AbortOnDropHandle<()>>>,
    rejection_log: Throttle,
}

impl Admin {
    pub fn new(options: AdminOptions, operator: Rc<Operator>) -> Rc<Self> {
        Rc::new(Self { options, operator, log_reset: RefCell::default(), rejection_log: Throttle::default() })
    }

    /// Serves a connection to its end. When `closing` is cancelled, the current request is answered and no other one.
    pub async fn serve_connection(
        self: Rc<Self>,
        stream: TcpStream,
        guard: ConnectionGuard,
        closing: CancellationToken,
    ) {
        let peer = stream.peer_addr().ok();
        let connection = guard.connection.clone();
        let answer = async |request: Request<Incoming>| {
            connection.stage.set(Stage::Answering);
            let (head, body) = request.into_parts();
            let response = convert(self.answer(AdminRequest { head, body, peer }).await);
            connection.stage.set(Stage::Idle);
            response
        };
        let silent = async {
            sleep(FIRST_REQUEST_TIMEOUT).await;
            if connection.stage.get() != Stage::Silent {
                future::pending::<()>().await;
            }
        };
        let served = tokio::select! {
            served = simple::serve(stream, HEADER_TIMEOUT, &closing, answer) => served,
            () = silent => return tracing::debug!("an admin connection sent no request in time"),
            () = connection.replaced.cancelled() => return tracing::debug!("an admin connection was closed for a new one"),
        };
        if let Err(error) = served {
            tracing::debug!("an admin connection ended: {error}");
        }
    }

    async fn answer(self: &Rc<Self>, request: AdminRequest) -> Reply {
        let path = request.head.uri.path().to_owned();
        if self.options.is_local && !is_addressed(&request.head) {
            let detail = "this listener is on loopback: use localhost or a loopback address";
            return problem(StatusCode::MISDIRECTED_REQUEST, detail);
        }
        if let ("/log", Some(filter)) = (path.as_str(), &self.options.log) {
            return self.answer_log(filter, request).await;
        }
        if path == "/top" {
            return self.answer_top(&request);
        }
        if path == "/live" {
            return self.answer_live(&request);
        }
        match Target::parse(&path) {
            Some(target) => self.answer_buckets(&target, request).await,
            None => self.answer_page(&request.head.method, &path),
        }
    }

    fn answer_page(&self, method: &Method, path: &str) -> Reply {
        let page = match path {
            "/" => |_: &Self| page::reply(),
            "/metrics" => Self::metrics_page,
            "/healthz" => |_: &Self| page(StatusCode::OK, PLAIN, "ok\n".to_owned()),
            "/readyz" => Self::ready_page,
            _ => {
                let detail =
                    "there are /, /live, /top, /metrics, /healthz, /readyz, /log, /buckets/NAME:ID and /blocks";
                return problem(StatusCode::NOT_FOUND, detail);
            }
        };
        if !matches!(*method, Method::GET | Method::HEAD) {
            return method_not_allowed(method, "GET, HEAD");
        }
        page(self)
    }

    /// Losing the store does not make the process unready: each limit has its `on_store_error`, and all processes would
    /// become unready at once.
    fn ready_page(&self) -> Reply {
        let stores = &self.options.stores;
        let health = StoresHealth::of(stores);
        let reload_error = self.options.readiness.reload_error.lock().clone();
        let is_degraded = health.connected < stores.len() || health.failing > 0 || reload_error.is_some();
        let (code, status) = match self.options.readiness.phase() {
            Phase::Draining => (StatusCode::SERVICE_UNAVAILABLE, "draining"),
            Phase::Starting => (StatusCode::SERVICE_UNAVAILABLE, "starting"),
            Phase::Serving if is_degraded => (StatusCode::OK, "degraded"),
            Phase::Serving => (StatusCode::OK, "ready"),
        };
        let store = match health.connected {
            connected if connected == stores.len() && health.failing == 0 => "up",
            connected if connected > 0 && connected == health.failing => "failing",
            0 => "down",
            _ => "partly up",
        };
        let mut body =
            json!({ "status": status, "store": store, "config": if reload_error.is_some() { "error" } else { "ok" } });
        if let Some(error) = health.error {
            body["store_error"] = error.into();
        }
        if let Some(error) = reload_error {
            body["config_error"] = error.into();
        }
        page(code, "application/json", format!("{body}\n"))
    }

    fn metrics_page(&self) -> Reply {
        let AdminOptions { stores, shared, .. } = &self.options;
        // The workers share one table.
        let in_memory = stores.iter().find_map(Store::as_memory).map(MemoryStore::usage);
        StoresHealth::of(stores).publish(shared.metrics(), &in_memory.unwrap_or_else(|| shared.local.usage()));
        let text = shared.metrics().render().map(String::from_utf8);
        if let Ok(Ok(text)) = text {
            return page(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text);
        }
        tracing::error!("cannot render the metrics: {text:?}");
        page(StatusCode::INTERNAL_SERVER_ERROR, PLAIN, "cannot render the metrics\n".to_owned())
    }
}

fn page(status: StatusCode, content_type: &str, body: String) -> Reply {
    let headers = Headers::from_iter([("content-type", content_type), ("cache-control", "no-store")]);
    Reply { status, headers, body }
}

/// Returns whether a request to a listener on loopback names it. Probes may use any name.
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

/// Converts a reply. Headers that the library does not take are left out; replies have none.
fn convert(Reply { status, headers, body }: Reply) -> Response<Full<Bytes>> {
    // hyper leaves the body out for HEAD and keeps its length.
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    for (name, value) in headers.iter() {
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
            response.headers_mut().append(name, value);
        }
    }
    response
}

/// The health of all workers' stores.
#[derive(Debug, Default, PartialEq, Eq)]
struct StoresHealth {
    connected: usize,
    /// Connected stores whose last replies were errors.
    failing: usize,
    breakers_open: usize,
    /// In the order of [`Fault::LABELS`].
    faults: [u64; Fault::LABELS.len()],
    corrupt_values: u64,
    leased_decisions: u64,
    leased_tokens: u64,
    /// The error of a store that cannot decide.
    error: Option<String>,
}

impl StoresHealth {
    fn of(stores: &[Store]) -> Self {
        let mut all = Self::default();
        for store in stores {
            let health = store.health();
            all.connected += usize::from(health.connected);
            all.breakers_open += usize::from(health.breaker_open);
            all.failing += usize::from(health.connected && health.fault.is_some());
            if let Some(fault) = health.fault {
                all.faults[fault as usize] += 1;
            }
            all.corrupt_values += health.corrupt_values;
            all.leased_decisions += health.leased_decisions;
            all.leased_tokens += health.leased_tokens;
            all.error = health.last_error.or(all.error);
        }
        all
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
        metrics.store.leased_tokens.set(gauge(self.leased_tokens));
        metrics.store.set_counts(usage.evicted, usage.overflowed, self.corrupt_values, self.leased_decisions);
    }
}
