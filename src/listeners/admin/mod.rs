//! The admin listener: metrics, health, the live page ([`mod@page`]), and the admin API, which `openapi.json` describes. Not for
//! clients.

use std::cell::RefCell;
use std::future;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use tokio::net::TcpStream;
use tokio::sync::mpsc::Receiver;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use self::change::AdminRequest;
use self::connections::Stage;
pub use self::connections::{ConnectionGuard, Connections};
use self::history::History;
use self::log::LogFilter;
pub use self::readiness::{Phase, Readiness};
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
mod readiness;
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
