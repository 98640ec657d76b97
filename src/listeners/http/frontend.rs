//! A worker's listener that speaks HTTP.

use std::rc::Rc;

use http::{StatusCode, Version};

use super::ActiveRequest;
use super::failure::Failure;
use super::observers::RouteObserver;
use crate::clock::Clock;
use crate::engine::answer::headers::Generations;
use crate::engine::request::incoming::ReadingOptions;
use crate::http::Context;
use crate::http::failure::HeadError;
use crate::http::forwarding::Peer;
use crate::http::message::{Request, Response, ResponseBody};
use crate::http::observer::UpstreamObserver;
use crate::http::{HttpOptions, Server};
use crate::limiter::Limiter;
use crate::message::client_address::ClientAddress;
use crate::message::connection::EndpointState;
use crate::message::headers::Headers;
use crate::telemetry::RequestHead;
use crate::telemetry::access_log::{AccessLog, Record, WorkerLog};
use crate::telemetry::denials::IdFormat;
use crate::telemetry::http_counters::Counters;
use crate::telemetry::metrics::ListenerKind;
use crate::telemetry::traces::{Trace, Traces};

#[derive(Clone, Debug)]
pub struct FrontendOptions {
    pub http: HttpOptions,
    /// The time of requests.
    pub clock: Clock,
    /// The rate limit headers to send.
    pub generations: Generations,
    pub access_log: Option<AccessLog>,
    pub traces: Option<Traces>,
}

impl FrontendOptions {
    /// Returns the settings for reading requests.
    pub fn reading(&self) -> ReadingOptions {
        let HttpOptions { trusted_proxies, client_headers, limits, .. } = self.http.clone();
        ReadingOptions { trusted_proxies, client_headers, escaped_slashes: limits.escaped_slashes }
    }
}

/// The state that a listener's connections share.
pub(crate) struct Frontend {
    pub(crate) server: Server,
    pub(crate) limiter: Rc<Limiter>,
    pub(crate) clock: Clock,
    pub(crate) generations: Generations,
    access_log: Option<Rc<WorkerLog>>,
    traces: Option<Traces>,
    listener: ListenerKind,
    counters: Rc<Counters>,
}

impl Frontend {
    pub(crate) fn new(options: &FrontendOptions, listener: ListenerKind, limiter: Rc<Limiter>) -> Self {
        let counters = Counters::new(limiter.shared().metrics().clone(), listener);
        let logs_peers = limiter.shared().denial_log.ids == IdFormat::Clear;
        Self {
            server: Server::new(&options.http, counters.clone(), logs_peers),
            limiter,
            clock: options.clock.clone(),
            generations: options.generations,
            access_log: options.access_log.as_ref().map(AccessLog::for_worker),
            traces: options.traces.clone(),
            listener,
            counters,
        }
    }

    /// Adds measured times to the metrics. Must be called about once a second.
    pub(crate) fn flush(&self) {
        self.counters.upstream_seconds.flush();
    }

    pub(crate) fn route(&self) -> Rc<dyn UpstreamObserver> {
        RouteObserver::new(self.counters.clone())
    }

    /// Sets this worker's number of endpoints of each state.
    pub(crate) fn count_endpoints(&self, counts: [i64; EndpointState::ALL.len()]) {
        self.counters.set_endpoints(counts);
    }

    /// Counts a response of an upstream or a service.
    pub(crate) fn answered(&self, status: StatusCode) {
        self.counters.answered(status, false);
    }

    /// Counts and returns a response of our own.
    pub(crate) fn own(&self, response: impl Into<Response>) -> Response {
        let response = response.into();
        self.counters.answered(response.status, true);
        response
    }

    /// Counts a failure and returns the response to it.
    pub(crate) fn failed(&self, failure: &Failure) -> Response {
        if let Some(limit) = failure.limit() {
            self.server.limit_reached(limit);
        }
        self.own(failure.reply())
    }

    pub(crate) fn begin(&self, context: &Context, request: &Request) -> ActiveRequest {
        let Request { method, target, version, headers, .. } = request;
        let head = RequestHead { method, target, version: *version, headers };
        let trace = Trace::begin(self.traces.as_ref(), self.listener, &head, context.peer.tls.is_some());
        let entry = self.access_log.as_ref().map(|log| Box::new(log.begin(self.record(context, &head, &trace))));
        ActiveRequest::new(self.counters.in_flight(), trace, entry, context)
    }

    /// Starts the record for the access log.
    fn record(&self, context: &Context, request: &RequestHead, trace: &Trace) -> Record {
        let client = self.client(&context.peer, request.headers).map(|client| client.address);
        // The limits decide at this instant, so a simulation of the log decides as they did.
        let received = self.clock.at(context.activity.now());
        let record = Record::new(received, client, context.peer.subject(), request);
        Record { trace_id: trace.id().or(record.trace_id), ..record }
    }

    /// Counts and logs a request whose head could not be read.
    pub(crate) fn rejected(&self, context: &Context, version: Version, error: HeadError, response: &Response) {
        self.counters.answered(response.status, true);
        let Some(log) = &self.access_log else { return };
        let peer = &context.peer;
        let entry = log.begin(Record {
            received: self.clock.now(),
            client: peer.address(),
            subject: peer.subject().map(Box::from),
            version,
            status: response.status.as_u16(),
            rejected: Some(error.to_string().into()),
            ..Record::default()
        });
        if let ResponseBody::Text(text) = &response.body {
            entry.sent(text.len());
        }
    }

    /// Returns the client of a peer's request; `None` if a load balancer did not name the peer.
    pub(crate) fn client(&self, peer: &Peer, headers: &Headers) -> Option<ClientAddress> {
        peer.address().map(|address| self.server.trusted_proxies.client(address, headers))
    }
}
