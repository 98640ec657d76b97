//! The admin listener: metrics, health, the live page ([`mod@page`]), and the admin API, which `openapi.json` describes. Not for
//! clients.

use std::cell::RefCell;
use std::future;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::sync::mpsc::Receiver;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use self::change::AdminRequest;
use self::connections::Stage;
pub use self::connections::{ConnectionGuard, Connections};
use self::history::History;
use self::log::LogFilter;
use self::reload::ReloadSender;
pub use self::routes::AdminPaths;
use self::routes::{Access, Found, Operation};
use self::tokens::Tokens;
use crate::engine::request::incoming::ReadingOptions;
use crate::http::simple::{self, Body, Incoming};
use crate::http::{AcceptOptions, Acceptor, Admission, ConnectionLimits, Stream};
use crate::limiter::Shared;
use crate::limiter::operator::Operator;
use crate::listeners::http::ConnectionObserver;
use crate::listeners::replies::method_not_allowed;
use crate::message::headers::Headers;
use crate::message::reply::{Reply, problem};
use crate::store::Store;
use crate::telemetry::metrics::ListenerKind;
use crate::telemetry::throttle::Throttle;

mod access;
mod body;
mod buckets;
mod change;
pub mod client;
mod connections;
mod explain;
mod health;
mod history;
mod impact;
mod limits;
mod live;
pub mod log;
mod overrides;
mod page;
mod record;
pub mod reload;
mod replies;
mod routes;
pub mod tokens;
mod top;

/// The description of the API.
const OPENAPI: &str = include_str!("openapi.json");

/// For the head of a connection's first request.
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// For the head of a further request. Scrapers keep their connections for intervals of 15 s or so.
const HEADER_TIMEOUT: Duration = Duration::from_mins(1);

/// For a peer that has left already.
const UNKNOWN: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

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
    certificate_error: Mutex<Option<String>>,
    routes_error: Mutex<Option<String>>,
    keys_missing: Mutex<Vec<String>>,
    xds_error: Mutex<Option<String>>,
    /// The start also waits for the first configuration of a management server.
    awaits_configuration: AtomicBool,
    /// The listeners are open.
    is_open: AtomicBool,
}

impl Readiness {
    /// The listeners are open, which ends the start unless a configuration is awaited.
    pub fn serving(&self) {
        self.is_open.store(true, Ordering::Release);
        self.end_start();
    }

    /// Prolongs the start until [`Self::configured`].
    pub fn await_configuration(&self) {
        self.awaits_configuration.store(true, Ordering::Release);
    }

    /// A management server's configuration is in force.
    pub fn configured(&self) {
        self.awaits_configuration.store(false, Ordering::Release);
        self.end_start();
    }

    /// Ends the start if all is there. A process that drains already stays in that phase.
    fn end_start(&self) {
        if !self.is_open.load(Ordering::Acquire) || self.awaits_configuration.load(Ordering::Acquire) {
            return;
        }
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

    pub fn reload_error(&self) -> Option<String> {
        self.reload_error.lock().clone()
    }

    /// Sets the result of the last reload of the rules: the error, if any.
    pub fn reloaded(&self, error: Option<String>) {
        *self.reload_error.lock() = error;
    }

    /// The token issuers whose keys have never been fetched, for a message.
    pub fn keys_error(&self) -> Option<String> {
        let missing = self.keys_missing.lock();
        (!missing.is_empty()).then(|| format!("the keys of {} have not been fetched", missing.join(", ")))
    }

    /// Sets the names of the token issuers whose keys have never been fetched.
    pub fn keys_missing(&self, names: Vec<String>) {
        *self.keys_missing.lock() = names;
    }

    /// Why the management server's configuration is missing, or may not be the newest.
    pub fn xds_error(&self) -> Option<String> {
        self.xds_error.lock().clone()
    }

    /// Sets what is wrong with the management server or its configuration, if anything.
    pub fn xds(&self, error: Option<String>) {
        *self.xds_error.lock() = error;
    }

    /// Why the routes on disk are not in force.
    pub fn routes_error(&self) -> Option<String> {
        self.routes_error.lock().clone()
    }

    /// Sets the result of the last reload of the routes: the error, if any.
    pub fn routes_reloaded(&self, error: Option<String>) {
        *self.routes_error.lock() = error;
    }

    /// Why the certificate files on disk are not in use.
    pub fn certificate_error(&self) -> Option<String> {
        self.certificate_error.lock().clone()
    }

    /// Sets the errors in the certificate files on disk, if any.
    pub fn certificates_reloaded(&self, error: Option<String>) {
        *self.certificate_error.lock() = error;
    }
}

#[derive(Clone)]
pub struct AdminOptions {
    pub accept: AcceptOptions,
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
    /// Names of the listener in `Host`, in lower case, besides `localhost` and addresses.
    pub hosts: Arc<[String]>,
    /// The only path at the address for the metrics alone.
    pub metrics_path: Arc<str>,
    pub reloads: ReloadSender,
    /// The listeners' settings, for explanations.
    pub reading: ReadingOptions,
    /// The listener is on a loopback address, so it answers only to loopback names.
    pub is_local: bool,
}

/// The admin listener.
pub struct Admin {
    options: AdminOptions,
    acceptor: Acceptor,
    operator: Rc<Operator>,
    /// Resets the log's filter when a temporary one expires.
    log_reset: RefCell<Option<AbortOnDropHandle<()>>>,
    /// The stream of the recording that runs, or of the last one.
    recording: RefCell<Option<AbortOnDropHandle<()>>>,
    rejection_log: Throttle,
    history: History,
    started: Instant,
}

/// The answer to a request.
enum AdminAnswer {
    Reply(Reply),
    /// Lines of JSON, as they come.
    Stream(Receiver<Bytes>),
}

impl From<Reply> for AdminAnswer {
    fn from(reply: Reply) -> Self {
        Self::Reply(reply)
    }
}

impl Admin {
    pub fn new(options: AdminOptions, operator: Rc<Operator>) -> Rc<Self> {
        let metrics = options.shared.metrics().clone();
        let acceptor = Acceptor {
            options: options.accept.clone(),
            // A connection that sends nothing is closed before.
            patience: HEADER_TIMEOUT,
            // Its connections are bounded by [`Connections`].
            admission: Admission::new(ConnectionLimits {
                per_address: None,
                streams_per_address: None,
                ..ConnectionLimits::default()
            }),
            observer: Rc::new(ConnectionObserver { metrics, listener: ListenerKind::Admin }),
            logs_peers: true,
        };
        Rc::new(Self {
            options,
            acceptor,
            operator,
            log_reset: RefCell::default(),
            recording: RefCell::default(),
            rejection_log: Throttle::default(),
            history: History::default(),
            started: Instant::now(),
        })
    }

    /// Serves a connection to its end. When `closing` is cancelled, the current request is answered and no other one.
    pub async fn serve_connection(
        self: Rc<Self>,
        stream: TcpStream,
        paths: AdminPaths,
        guard: ConnectionGuard,
        closing: CancellationToken,
    ) {
        let peer = stream.peer_addr().ok();
        let connection = guard.connection.clone();
        let answer = async |request: Request<Incoming>| {
            connection.stage.set(Stage::Answering);
            let (head, body) = request.into_parts();
            let answer = match paths {
                AdminPaths::All => self.answer(AdminRequest { head, body, peer }).await,
                AdminPaths::Metrics => self.answer_scraper(&head).into(),
            };
            // A stream goes on, and ends with its connection.
            if matches!(answer, AdminAnswer::Reply(_)) {
                connection.stage.set(Stage::Idle);
            }
            convert(answer)
        };
        let silent = async {
            sleep(FIRST_REQUEST_TIMEOUT).await;
            if connection.stage.get() != Stage::Silent {
                future::pending::<()>().await;
            }
        };
        let address = peer.map_or(UNKNOWN, |peer| peer.ip());
        let serving = async {
            match self.acceptor.open(Stream::Tcp(stream), address, &closing).await {
                Some(opened) => simple::serve(opened.stream, HEADER_TIMEOUT, &closing, answer).await,
                None => Ok(()),
            }
        };
        let served = tokio::select! {
            served = serving => served,
            () = silent => return tracing::debug!("an admin connection sent no request in time"),
            () = connection.replaced.cancelled() => return tracing::debug!("an admin connection was closed for a new one"),
        };
        if let Err(error) = served {
            tracing::debug!("an admin connection ended: {error}");
        }
    }

    async fn answer(self: &Rc<Self>, request: AdminRequest) -> AdminAnswer {
        let path = request.head.uri.path().to_owned();
        let found = routes::find(request.head.method.as_str(), &path);
        let access = if let Found::Route(route, _) = &found { route.access } else { Access::Open };
        if let Err(rejection) = self.admit(access, &request.head, request.peer) {
            return rejection.reply().into();
        }
        match found {
            Found::Route(route, segment) => self.operate(route.operation, &segment, request).await,
            Found::Methods(allowed) => method_not_allowed(&request.head.method, &allowed).into(),
            Found::Nothing => problem(StatusCode::NOT_FOUND, &routes::help(&path)).into(),
        }
    }

    /// `segment` is what the route's path leaves open.
    async fn operate(self: &Rc<Self>, operation: Operation, segment: &str, request: AdminRequest) -> AdminAnswer {
        match operation {
            Operation::Page => page::reply(),
            Operation::Top => self.top(request.head.uri.query()),
            Operation::Impact => self.impact(request.head.uri.query()),
            Operation::Live => self.answer_live(&request),
            Operation::History => self.answer_history(),
            Operation::Health => page(StatusCode::OK, PLAIN, "ok\n".to_owned()),
            Operation::Ready => self.ready_page(),
            Operation::Metrics => self.metrics_page(),
            Operation::OpenApi => page(StatusCode::OK, "application/json", OPENAPI.to_owned()),
            Operation::Version => self.version(),
            Operation::Limits => self.limits(),
            Operation::Limit => self.limit(segment),
            Operation::ResetLimit => return self.reset_limit(segment, request).await,
            Operation::Overrides => self.overrides(request.head.uri.query()),
            Operation::Override => self.live_override(segment),
            Operation::ChangeOverride(write) => return self.change_override(write, segment, request).await,
            Operation::Explain => self.explain(request.body).await,
            Operation::Bucket => self.bucket(segment).await,
            Operation::ChangeBucket(write) => return self.change_bucket(write, segment, request).await,
            Operation::Blocks => self.blocks(),
            Operation::Log => self.log(),
            Operation::SetLog => return self.change_log(false, request).await,
            Operation::ResetLog => return self.change_log(true, request).await,
            Operation::Record => return self.record(request).await,
            Operation::Reload => return self.reload(request).await,
        }
        .into()
    }
}

fn page(status: StatusCode, content_type: &str, body: String) -> Reply {
    let headers = Headers::from_iter([("content-type", content_type), ("cache-control", "no-store")]);
    Reply { status, headers, body }
}

/// Converts a reply. Headers that the library does not take are left out; replies have none.
fn convert(answer: AdminAnswer) -> Response<Body> {
    let (status, headers, body) = match answer {
        // hyper leaves the body out for HEAD and keeps its length.
        AdminAnswer::Reply(Reply { status, headers, body }) => (status, headers, Body::Whole(Full::new(body.into()))),
        AdminAnswer::Stream(lines) => {
            let headers = Headers::from_iter([("content-type", "application/x-ndjson"), ("cache-control", "no-store")]);
            (StatusCode::OK, headers, Body::Stream(lines))
        }
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    for (name, value) in headers.iter() {
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
            response.headers_mut().append(name, value);
        }
    }
    response
}
