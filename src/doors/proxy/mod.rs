//! The proxy: requests come in, each is judged once before its body is read, and what passes goes to an upstream.
//!
//! A request passes through [`target`] (can it be forwarded at all), the gate (may it pass), [`forwarding`] (what a proxy
//! takes away and adds) and [`upstream`]; what goes wrong on the way becomes an answer in [`failure`]. A client's
//! connection is one task ([`connection`]), and all that happens for its request happens in it, the upstream's
//! connection included ([`http1`], [`http2`]).

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use http::StatusCode;

use self::access_log::{Entry, Record, WorkerLog};
use self::context::Context;
use self::counters::{Counters, Open};
use self::failure::Failure;
use self::message::{Request, RequestBody, Response, ResponseBody};
use self::transport::Acceptor;
use self::upstream::{Upstreams, Way};
use crate::engine::client_address::TrustedProxies;
use crate::engine::fields::Fields;
use crate::engine::reply::{self, Generations, Reply};
use crate::engine::{path, request};
use crate::gate::{Gate, Judged};
use crate::store::Clock;

mod access_log;
mod activity;
mod admission;
mod connection;
mod context;
mod counters;
mod echo;
mod failure;
mod forwarding;
mod http1;
mod http2;
mod limits;
mod log;
mod message;
#[cfg(any(test, fuzzing))]
pub mod properties;
mod target;
mod transport;
mod upstream;

pub use access_log::{AccessLog, Destination, Format};
pub use admission::{Admission, ConnectionLimits, MAX_CONNECTIONS, MAX_PER_ADDRESS, Place};
pub use http1::HeadLimits;
pub use http2::Http2Limits;
pub use limits::DoorLimits;
pub use transport::{
    AcceptOptions, ClientAuth, Connector, ConnectorError, ConnectorOptions, ConnectorReloader, FileError, KeyPairFiles,
    ServerTls, ServerTlsOptions, ServerTlsReloader, Stream, TlsInfo,
};
pub use upstream::{HealthCheck, Routes, UpstreamOptions};

/// How much of a refused request's body is thrown away to keep the connection; a longer one costs the connection.
const MAX_DISCARDED: usize = 64 * 1024;

/// How long the proxy waits for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For a client's first byte.
    pub first_byte: Duration,
    /// From a request's first byte to the end of its fields.
    pub header: Duration,
    /// For anything to move in a body.
    pub body: Duration,
    /// For another request on a client's connection.
    pub idle: Duration,
    /// For anything to move on a connection that was upgraded to another protocol.
    pub tunnel: Duration,
    /// Bytes a second that a client must send of a body and take of a response, on average over the time in which it is
    /// waited for and after some grace; 0 for no minimum.
    pub min_rate: u64,
    /// For a connection to the upstream, name resolution included.
    pub connect: Duration,
    /// From the end of the request to the upstream's response fields.
    pub response: Duration,
    /// How long a connection to the upstream is kept for another request. It should be shorter than the upstream keeps
    /// it: node and uvicorn close after 5 s.
    pub upstream_idle: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            first_byte: Duration::from_secs(10),
            header: Duration::from_secs(10),
            body: Duration::from_secs(30),
            idle: Duration::from_mins(1),
            tunnel: Duration::from_mins(5),
            min_rate: 240,
            connect: Duration::from_secs(1),
            response: Duration::from_secs(30),
            upstream_idle: Duration::from_secs(4),
        }
    }
}

/// How the proxy is set up.
#[derive(Clone, Debug)]
pub struct ProxyOptions {
    /// Where requests go.
    pub upstream: UpstreamOptions,
    /// What connections begin with.
    pub accept: AcceptOptions,
    /// Peers whose word on the client's address is taken.
    pub trusted_proxies: TrustedProxies,
    /// Which rate limit fields are sent.
    pub generations: Generations,
    /// The time of each request: what the memory store decides by and overrides expire by.
    pub clock: Clock,
    /// How long to wait for what.
    pub timeouts: Timeouts,
    /// What is taken from a client at all.
    pub limits: DoorLimits,
    /// The connections of all workers.
    pub admission: Arc<Admission>,
    /// Where requests are logged, if they are.
    pub access_log: Option<AccessLog>,
}

/// A worker's proxy.
pub struct Proxy {
    gate: Gate,
    upstreams: Upstreams,
    acceptor: Acceptor,
    trusted_proxies: TrustedProxies,
    generations: Generations,
    timeouts: Timeouts,
    limits: DoorLimits,
    access_log: Option<Rc<WorkerLog>>,
    counters: Rc<Counters>,
    clock: Clock,
    date: RefCell<Date>,
}

/// The text of a `Date` field, which stays the same for a second.
#[derive(Debug, Default)]
struct Date {
    text: String,
    until: Option<Instant>,
}

/// A request from its fields until the last byte of its answer was handed over: it counts as in flight, and is logged at
/// the end.
#[derive(Debug)]
struct Passage {
    _in_flight: Open,
    /// In a box, as it is large and there is none as a rule.
    entry: Option<Box<Entry>>,
    /// The body of a request that was answered by us, without a look at it.
    unread: RequestBody,
}

impl Passage {
    /// So many bytes of the answer's body were handed over.
    fn sent(&self, bytes: usize) {
        if let Some(entry) = &self.entry {
            entry.sent(bytes);
        }
    }
}

impl Proxy {
    /// A proxy with its own connections to the upstream and to the store.
    pub fn new(gate: Gate, options: &ProxyOptions) -> Rc<Self> {
        let metrics = gate.shared().metrics();
        let counters = Counters::new(metrics.clone());
        let upstreams = Upstreams::new(&options.upstream, &options.timeouts, &counters);
        let acceptor = Acceptor {
            options: options.accept.clone(),
            admission: options.admission.clone(),
            patience: options.timeouts.first_byte,
            metrics: metrics.clone(),
        };
        Rc::new(Self {
            gate,
            upstreams,
            acceptor,
            trusted_proxies: options.trusted_proxies.clone(),
            generations: options.generations,
            timeouts: options.timeouts,
            limits: options.limits,
            access_log: options.access_log.as_ref().map(AccessLog::for_worker),
            counters,
            clock: options.clock.clone(),
            date: RefCell::default(),
        })
    }

    /// Closes connections to upstreams that have been idle for too long, and tells the metrics what was timed. To be
    /// called about once a second.
    pub fn reap(&self) {
        self.upstreams.reap(Instant::now());
        self.gate.flush();
        self.counters.flush();
    }

    /// Answers a request of any protocol. The passage ends with the answer's last byte.
    async fn answer(&self, context: &Context, mut request: Request) -> (Response, Passage) {
        let entry = self.access_log.as_ref().map(|log| Box::new(log.begin(self.record(context, &request))));
        let mut passage = Passage { _in_flight: self.counters.in_flight(), entry, unread: RequestBody::Empty };
        let response = match self.decide(context, &mut request, passage.entry.as_deref_mut()).await {
            Ok(Ruled::Refused(reply)) => {
                passage.unread = request.body;
                self.own(reply)
            }
            Ok(Ruled::Passed(way, judged)) => {
                context.attempts.forget();
                let response = self.pass(context, request, way, &judged).await;
                if let Some(entry) = &mut passage.entry {
                    entry.record.upstream = context.attempts.told(entry.received());
                }
                response
            }
            Err(failure) => {
                passage.unread = request.body;
                self.failed(&failure)
            }
        };
        if let Some(entry) = &mut passage.entry {
            entry.record.status = response.status.as_u16();
        }
        (response, passage)
    }

    /// What the access log says of a request, as far as it is known at its beginning.
    fn record(&self, context: &Context, request: &Request) -> Record {
        let client = self.trusted_proxies.client(context.peer.address, &request.fields);
        let subject = context.peer.tls.as_ref().and_then(|tls| tls.subject.as_deref());
        Record::new(self.clock.now(), client, subject, request)
    }

    /// Whether a request can be forwarded and may pass. This is its one charge, made before its body is read.
    async fn decide(
        &self,
        context: &Context,
        request: &mut Request,
        entry: Option<&mut Entry>,
    ) -> Result<Ruled<'_>, Failure> {
        let host = target::check(request, self.limits.escaped_slashes)?;
        if context.peer.tls.as_ref().is_some_and(|tls| !tls.covers(&host)) {
            return Err(Failure::Misdirected);
        }
        if request.body.length().is_some_and(|length| length > self.limits.body_bytes) {
            return Err(Failure::TooLong(self.limits.body_bytes));
        }
        forwarding::strip_named(&mut request.fields);
        let (path, query) = target::split(&request.target);
        let path = path::normalise(path);
        let way = self.upstreams.pick(&host, &path);
        let view = request::Request {
            method: request.method.as_str(),
            host: &host,
            path: &path,
            query,
            headers: &request.fields,
            client: self.trusted_proxies.client(context.peer.address, &request.fields),
            tls_subject: context.peer.tls.as_ref().and_then(|tls| tls.subject.as_deref()),
            now: self.clock.now(),
        };
        let judged = self.gate.judge(&view, context.activity.now()).await.map_err(Failure::BadCost)?;
        if let Some(entry) = entry {
            entry.judged(&judged);
        }
        context.interim.judged().await;
        if judged.verdict.is_allowed() {
            return Ok(Ruled::Passed(way, judged));
        }
        let is_grpc = is_grpc(&request.fields);
        Ok(Ruled::Refused(reply::refusal(judged.snapshot.rules(), &judged.verdict, self.generations, is_grpc)))
    }

    /// Gets the answer to a request that may pass.
    async fn pass(&self, context: &Context, request: Request, way: Option<&Way>, judged: &Judged) -> Response {
        let mut response = match self.forward(context, request, way).await {
            Ok(response) => {
                self.counters.answered(response.status, false);
                response
            }
            Err(failure) => self.failed(&failure),
        };
        reply::add_fields(judged.snapshot.rules(), &judged.verdict, self.generations, &mut response.fields);
        response
    }

    async fn forward(&self, context: &Context, mut request: Request, way: Option<&Way>) -> Result<Response, Failure> {
        let way = way.ok_or(Failure::NoRoute)?;
        if target::count_down(&mut request) == Some(0) {
            return Ok(last_hop());
        }
        let upgrade = forwarding::upgrade(&request).map(str::to_owned);
        forwarding::strip(&mut request.fields);
        context.peer.forward(request.version, &mut request.fields);
        if let Some(protocol) = upgrade {
            request.fields.append("connection", "upgrade");
            request.fields.append("upgrade", protocol);
        }
        let mut response = match way {
            Way::Echo => echo::answer(request, &context.activity).await?,
            Way::Servers(forwarder) => forwarder.send(request, context).await?,
        };
        let protocol = match response.body {
            ResponseBody::Tunnel(_) => response.fields.text("upgrade").map(str::to_owned),
            _ => None,
        };
        forwarding::strip(&mut response.fields);
        if matches!(response.status, StatusCode::SWITCHING_PROTOCOLS | StatusCode::NO_CONTENT) {
            // Neither has a body, and a client that believed a length would wait for one (RFC 9110 section 8.6).
            response.fields.remove("content-length");
        }
        if let Some(protocol) = protocol {
            response.fields.append("upgrade", protocol);
        }
        Ok(response)
    }

    fn failed(&self, failure: &Failure) -> Response {
        if let Some(limit) = failure.limit() {
            self.counters.limited(limit);
        }
        self.own(failure.response())
    }

    /// An answer of our own.
    fn own(&self, reply: Reply) -> Response {
        self.counters.answered(reply.status, true);
        reply.into()
    }

    /// Writes a `Date` field's value (RFC 9110 section 6.6.1 has a proxy add it where it is missing).
    fn date(&self, now: Instant, write: impl FnOnce(&str)) {
        let mut date = self.date.borrow_mut();
        if date.until.is_none_or(|until| until <= now) {
            date.text = httpdate::fmt_http_date(SystemTime::now());
            date.until = Some(now + Duration::from_secs(1));
        }
        write(&date.text);
    }
}

/// What became of a request at the gate.
enum Ruled<'a> {
    Refused(Reply),
    Passed(Option<&'a Way>, Judged),
}

/// The answer to an OPTIONS request that was meant for us (RFC 9110 section 7.6.2).
fn last_hop() -> Response {
    let fields = Fields::from_iter([("allow", failure::ALLOWED)]);
    Reply { status: StatusCode::NO_CONTENT, fields, body: String::new() }.into()
}

fn is_grpc(fields: &Fields) -> bool {
    fields.get("content-type").is_some_and(|kind| kind.starts_with(b"application/grpc"))
}
