//! HTTP, for every listener that speaks it: messages, the connections of clients and those to upstreams.
//!
//! A client's connection is one task, and all that happens for its requests happens in it, the upstream's connection
//! included ([`http1`], [`http2`]). What a listener does with a request is its [`Service`]; what surrounds it (deadlines,
//! limits, TLS, the log) is the listener's [`Front`].

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use http::Version;
use tokio_util::sync::CancellationToken;

use self::context::Context;
use self::failure::Failure;
use self::forwarding::Peer;
use self::http1::HeadError;
use self::message::{Request, RequestBody, Response, ResponseBody};
use self::transport::{Acceptor, Opened, Protocol};
use crate::clock::Clock;
use crate::engine::rules::request;
use crate::limiter::{HeldSlots, Ruling, Shared};
use crate::message::client_address::{ClientAddress, TrustedProxies};
use crate::message::headers::Headers;
use crate::telemetry::access_log::{AccessLog, Entry, Record, WorkerLog};
use crate::telemetry::denials::IdFormat;
use crate::telemetry::http_counters::{Counters, Open};
use crate::telemetry::metrics::{DecisionListener, HttpListener};
use crate::telemetry::traces::{Trace, Traces};

pub(crate) mod activity;
mod admission;
mod alarm;
pub(crate) mod basic;
mod client_headers;
pub(crate) mod context;
pub(crate) mod failure;
pub(crate) mod forwarding;
mod http1;
mod http2;
mod limits;
pub(crate) mod log;
pub(crate) mod message;
#[cfg(any(test, fuzzing))]
pub mod properties;
mod slow_readers;
pub(crate) mod transport;
pub(crate) mod upstream;

pub use admission::{Admission, ConnectionLimits, MAX_CONNECTIONS, MAX_PER_ADDRESS, MAX_STREAMS, Place};
pub use client_headers::ClientHeaders;
pub use http1::HeadLimits;
pub use http2::Http2Limits;
pub use limits::HttpLimits;
pub use slow_readers::{RESPONSE_MEMORY, SlowReaders};
pub use transport::{
    AcceptOptions, ClientAuth, Connector, ConnectorError, ConnectorOptions, ConnectorReloader, FileError, KeyPairFiles,
    ServerTls, ServerTlsOptions, ServerTlsReloader, Stream, TlsInfo,
};
pub(crate) use transport::{Source, subject_of_pem};
pub use upstream::{HealthCheck, Routes, UpstreamOptions};

/// How much of a refused request's body is thrown away to keep the connection; a longer one costs the connection.
const MAX_DISCARDED: usize = 64 * 1024;

/// How long a listener waits for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For a client's first byte.
    pub first_byte: Duration,
    /// From a request's first byte to the end of its headers.
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
    /// From the end of the request to the upstream's response headers.
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

/// How a listener takes its connections and requests.
#[derive(Clone, Debug)]
pub struct FrontOptions {
    /// What connections begin with.
    pub accept: AcceptOptions,
    /// Peers whose word on the client's address is taken.
    pub trusted_proxies: TrustedProxies,
    /// Which headers of clients are taken.
    pub client_headers: ClientHeaders,
    /// The time of each request: what the memory store decides by and overrides expire by.
    pub clock: Clock,
    /// How long to wait for what.
    pub timeouts: Timeouts,
    /// What is taken from a client at all.
    pub limits: HttpLimits,
    /// The connections of all workers and listeners.
    pub admission: Arc<Admission>,
    /// Where requests are logged, if they are.
    pub access_log: Option<AccessLog>,
    /// Where their spans go, if there are any.
    pub traces: Option<Traces>,
}

/// What a listener does with requests.
pub(crate) trait Service: 'static {
    /// What surrounds it.
    fn front(&self) -> &Front;

    /// Answers a request of any protocol. A body that it does not look at belongs into the passage.
    async fn answer(&self, context: &Context, request: Request, passage: &mut Passage) -> Response;
}

/// A worker's side of a listener: what all of its connections share.
pub(crate) struct Front {
    acceptor: Acceptor,
    pub(crate) trusted_proxies: TrustedProxies,
    pub(crate) client_headers: ClientHeaders,
    pub(crate) clock: Clock,
    timeouts: Timeouts,
    pub(crate) limits: HttpLimits,
    access_log: Option<Rc<WorkerLog>>,
    traces: Option<Traces>,
    listener: HttpListener,
    pub(crate) counters: Rc<Counters>,
    date: RefCell<Date>,
    /// In a reference of this worker's, as each request takes one.
    slow_readers: Rc<SlowReaders>,
}

/// The text of a `Date` header, which stays the same for a second.
#[derive(Debug, Default)]
struct Date {
    text: String,
    until: Option<Instant>,
}

/// A request from its headers until the last byte of its answer was handed over: it counts as in flight, and is logged at
/// the end.
#[derive(Debug)]
pub(crate) struct Passage {
    _in_flight: Open,
    pub(crate) trace: Trace,
    /// In a box, as it is large and there is none as a rule.
    entry: Option<Box<Entry>>,
    /// The body of a request that was answered by us, without a look at it.
    pub(crate) unread: RequestBody,
    /// The slots that it holds, of limits of requests in flight.
    pub(crate) slots: RefCell<Option<Box<HeldSlots>>>,
}

impl Passage {
    /// The request's limits have decided, from `start` on. `request` is what they saw of it; `None` if only descriptors or
    /// ids.
    pub(crate) fn decided(&mut self, ruling: &Ruling, start: Instant, request: Option<&request::Request<'_>>) {
        let (rules, verdict) = (ruling.view.rules(), &ruling.verdict);
        // The log has one limit per line, and a call may ask for many.
        if let Some(entry) = self.entry.as_mut().filter(|_| ruling.listener != DecisionListener::RateLimit) {
            entry.record.judged(rules, verdict);
        }
        self.trace.judged(rules, verdict, ruling.listener, start, request);
        ruling.log_denials(request, self.trace.id());
    }

    /// The service has answered; the body comes next.
    fn answered(&mut self, context: &Context, response: &Response) {
        self.trace.answered(context, response);
        if let Some(entry) = &mut self.entry {
            entry.record.upstream = context.attempts.told(entry.received());
            entry.record.status = response.status.as_u16();
        }
    }

    /// The last of the answer is about to be handed over. From here on the request holds no slot: a client that has seen
    /// the end of its answer must find its slot free.
    fn ended(&self) {
        drop(self.slots.take());
    }

    /// So many bytes of the answer's body were handed over.
    fn sent(&self, bytes: usize) {
        if let Some(entry) = &self.entry {
            entry.sent(bytes);
        }
    }
}

impl Front {
    /// A worker's side of a listener.
    pub(crate) fn new(options: &FrontOptions, listener: HttpListener, shared: &Shared) -> Self {
        let metrics = shared.metrics();
        Self {
            traces: options.traces.clone(),
            listener,
            acceptor: Acceptor {
                options: options.accept.clone(),
                admission: options.admission.clone(),
                patience: options.timeouts.first_byte,
                metrics: metrics.clone(),
                shows_peers: shared.id_format() == IdFormat::Clear,
            },
            trusted_proxies: options.trusted_proxies.clone(),
            client_headers: options.client_headers.clone(),
            clock: options.clock.clone(),
            timeouts: options.timeouts,
            limits: options.limits,
            access_log: options.access_log.as_ref().map(AccessLog::for_worker),
            counters: Counters::new(metrics.clone(), listener),
            date: RefCell::default(),
            slow_readers: Rc::new(options.admission.slow_readers.clone()),
        }
    }

    /// Tells the metrics what was timed. To be called about once a second.
    pub(crate) fn flush(&self) {
        self.counters.flush();
    }

    /// An answer of our own to a request that went wrong.
    pub(crate) fn failed(&self, failure: &Failure) -> Response {
        if let Some(limit) = failure.limit() {
            self.counters.limited(limit);
        }
        self.own(failure.response())
    }

    /// The answer to a request whose head cannot be read, which is logged with what is known of it.
    fn rejected(&self, context: &Context, version: Version, error: HeadError) -> Response {
        let response = self.failed(&Failure::Head(error));
        if let Some(log) = &self.access_log {
            let peer = &context.peer;
            let record = Record::rejected(self.clock.now(), peer.address(), peer.subject(), version, error.to_string());
            let mut entry = log.begin(record);
            entry.record.status = response.status.as_u16();
            if let ResponseBody::Text(text) = &response.body {
                entry.sent(text.len());
            }
        }
        response
    }

    /// An answer of our own.
    pub(crate) fn own(&self, answer: impl Into<Response>) -> Response {
        let response = answer.into();
        self.counters.answered(response.status, true);
        response
    }

    /// Lets the service answer a request. The passage ends with the answer's last byte.
    async fn pass<S: Service>(&self, service: &S, context: &Context, request: Request) -> (Response, Passage) {
        let mut passage = self.begin(context, &request);
        let response = service.answer(context, request, &mut passage).await;
        passage.answered(context, &response);
        (response, passage)
    }

    /// A request begins; the service is asked next.
    fn begin(&self, context: &Context, request: &Request) -> Passage {
        let trace = Trace::begin(self.traces.as_ref(), self.listener, request, context.peer.tls.is_some());
        let begin = |log: &Rc<WorkerLog>| Box::new(log.begin(self.record(context, request, &trace)));
        let entry = self.access_log.as_ref().map(begin);
        context.attempts.forget();
        Passage {
            _in_flight: self.counters.in_flight(),
            trace,
            entry,
            unread: RequestBody::Empty,
            slots: RefCell::default(),
        }
    }

    /// What the access log says of a request, as far as it is known at its beginning.
    fn record(&self, context: &Context, request: &Request, trace: &Trace) -> Record {
        let client = self.client(&context.peer, &request.headers).map(|client| client.address);
        let record = Record::new(self.clock.now(), client, context.peer.subject(), request);
        Record { trace_id: trace.id().or(record.trace_id), ..record }
    }

    /// The client of a peer's request; `None` if a load balancer does not say who the peer is.
    pub(crate) fn client(&self, peer: &Peer, headers: &Headers) -> Option<ClientAddress> {
        peer.address().map(|address| self.trusted_proxies.client(address, headers))
    }

    /// Writes a `Date` header's value (RFC 9110 section 6.6.1 has a proxy add it where it is missing).
    fn date(&self, now: Instant, write: impl FnOnce(&str)) {
        let mut date = self.date.borrow_mut();
        if date.until.is_none_or(|until| until <= now) {
            date.text = httpdate::fmt_http_date(SystemTime::now());
            date.until = Some(now + Duration::from_secs(1));
        }
        write(&date.text);
    }
}

/// Serves a client's connection to its end. When `drain` is cancelled, what runs is answered, and one more request that
/// was on its way.
pub(crate) async fn serve<S: Service>(service: Rc<S>, stream: Stream, peer: IpAddr, drain: CancellationToken) {
    let front = service.front();
    let Some(opened) = front.acceptor.open(stream, peer, &drain).await else { return };
    let Opened { stream, source, tls, protocol, permit } = opened;
    let peer = Rc::new(Peer::new(source, &front.trusted_proxies, tls));
    match protocol {
        Protocol::Http1 => http1::serve(service, stream, peer, drain).await,
        Protocol::Http2 => http2::serve(service, stream, peer, &permit, drain).await,
    }
}
