//! The spans of one request.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use http::Version;
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_http::HttpClient;
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator, SpanData, SpanEvents, SpanLinks};

use super::export::Exporter;
use super::settings::{Sampler, Settings};
use crate::engine::deciding::verdict::Verdict;
use crate::engine::limit::rules::Rules;
use crate::engine::request;
use crate::message::headers::{self, Headers};
use crate::message::target;
use crate::message::trace_context::{TRACEPARENT, TraceContext};
use crate::telemetry::RequestHead;
use crate::telemetry::access_log::UpstreamUse;
use crate::telemetry::denials::{IdFormat, OTHER_METHOD, method};
use crate::telemetry::metrics::{DecisionListener, ListenerKind, Metrics};
use crate::telemetry::summary::Summary;

/// Vendors' data about a trace (W3C Trace Context, section 3.3).
const TRACESTATE: &str = "tracestate";

/// gRPC status codes for errors of the server: deadline exceeded, unimplemented, internal, unavailable.
const GRPC_SERVER_ERRORS: [&str; 4] = ["4", "12", "13", "14"];

/// The process's traces. Clones share them.
#[derive(Clone, Debug)]
pub struct Traces(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    sampler: Sampler,
    ids: IdFormat,
    scope: InstrumentationScope,
    exporter: Exporter,
}

impl Traces {
    /// Checks the endpoint and the standard variables without starting anything.
    pub fn check(endpoint: Option<&str>) -> Result<(), String> {
        Settings::read(endpoint, variable).map(drop)
    }

    /// Starts the export to `endpoint` or to the collector in OpenTelemetry's variables; `None` if neither is set. `client`
    /// makes the HTTP client, given a file of authorities for the collector's certificate.
    pub fn start<C: HttpClient + 'static>(
        endpoint: Option<&str>,
        ids: IdFormat,
        metrics: &Metrics,
        client: impl FnOnce(Option<PathBuf>) -> Result<C, String>,
    ) -> Result<Option<Self>, String> {
        let Some(settings) = Settings::read(endpoint, variable)? else { return Ok(None) };
        let exporter = Exporter::start(&settings, metrics, client(settings.certificate.clone())?)?;
        if settings.wants_compression {
            tracing::warn!("OTEL_EXPORTER_OTLP_COMPRESSION is not supported; spans are sent uncompressed");
        }
        tracing::info!(endpoint = %settings.endpoint, "exporting traces");
        let scope = InstrumentationScope::builder("weir").with_version(env!("CARGO_PKG_VERSION")).build();
        Ok(Some(Self(Arc::new(Shared { sampler: settings.sampler, ids, scope, exporter }))))
    }

    /// Sends the remaining spans and ends the export. Waits at most 2 s.
    pub fn finish(&self) {
        self.0.exporter.finish();
    }
}

/// Returns the value of a variable that is set and not empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// A request's trace, if it is sampled. The request's span ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Trace(Option<Box<Sampled>>);

#[derive(Debug)]
struct Sampled {
    traces: Traces,
    /// The request's span.
    own: TraceContext,
    /// The client's span.
    parent: Option<u64>,
    state: TraceState,
    began: Instant,
    began_at: SystemTime,
    name: Cow<'static, str>,
    method: &'static str,
    attributes: Vec<KeyValue>,
    /// The response's status.
    status: Option<u16>,
    is_failure: bool,
    /// The upstream's span, and its start.
    upstream: Option<(u64, SystemTime)>,
}

impl Trace {
    /// Starts the trace of a request, unless it is not sampled.
    pub(crate) fn begin(traces: Option<&Traces>, listener: ListenerKind, request: &RequestHead, is_tls: bool) -> Self {
        let Some(traces) = traces else { return Self(None) };
        let (generator, parent) = (RandomIdGenerator::default(), TraceContext::of(request.headers));
        let trace_id = parent.map_or_else(|| generator.new_trace_id(), |parent| TraceId::from(parent.trace_id));
        if !traces.0.sampler.samples(parent.as_ref(), trace_id) {
            return Self(None);
        }
        let random = parent.map_or(TraceContext::RANDOM, |parent| parent.flags & TraceContext::RANDOM);
        let own = TraceContext {
            trace_id: u128::from_be_bytes(trace_id.to_bytes()),
            span_id: new_span(),
            flags: TraceContext::SAMPLED | random,
        };
        let method = method(request.method.as_str());
        let mut attributes = Vec::with_capacity(12);
        attributes.extend([
            KeyValue::new("weir.listener", listener.label()),
            KeyValue::new("http.request.method", method),
            KeyValue::new("url.scheme", if is_tls { "https" } else { "http" }),
            KeyValue::new("network.protocol.version", protocol(request.version)),
        ]);
        if traces.0.ids == IdFormat::Clear {
            attributes.push(KeyValue::new("url.path", target::split(request.target).0.to_owned()));
        }
        Self(Some(Box::new(Sampled {
            traces: traces.clone(),
            own,
            parent: parent.map(|parent| parent.span_id),
            state: parent.map(|_| state(request.headers)).unwrap_or_default(),
            began: Instant::now(),
            began_at: SystemTime::now(),
            name: if method == OTHER_METHOD { "HTTP" } else { method }.into(),
            method,
            attributes,
            status: None,
            is_failure: false,
            upstream: None,
        })))
    }

    /// Returns the trace's id; `None` if it is not sampled.
    pub(crate) fn id(&self) -> Option<u128> {
        self.0.as_ref().map(|sampled| sampled.own.trace_id)
    }

    /// Adds a span for the verdict, which took from `start` until now. `request` is the request as the limits see it.
    pub(crate) fn decided(
        &mut self,
        rules: &Rules,
        verdict: &Verdict,
        listener: DecisionListener,
        start: Instant,
        request: Option<&request::Request<'_>>,
    ) {
        let Some(sampled) = &mut self.0 else { return };
        let Summary { result, limit, answer } = Summary::of(verdict);
        let mut attributes = Vec::with_capacity(6);
        attributes.push(KeyValue::new("weir.listener", listener.label()));
        attributes.push(KeyValue::new("weir.result", result.label()));
        if let Some((place, limit)) = limit.and_then(|place| Some((place, rules.limit(place)?))) {
            attributes.push(KeyValue::new("weir.limit", limit.name.clone()));
            if let Some(answer) = answer.filter(|answer| answer.counted_numbers().is_some()) {
                attributes.push(KeyValue::new("weir.remaining", integer(answer.decision.remaining)));
            }
            if let Some(wait) = answer.filter(|answer| answer.is_short()).and_then(|answer| verdict.wait_by(answer)) {
                attributes.push(KeyValue::new("weir.retry_after", integer(wait.ceil_seconds())));
            }
            let id = || request.and_then(|request| rules.id_of(place, request));
            let id = sampled.traces.0.ids.id(id, answer.and_then(|answer| answer.fingerprint));
            attributes.extend(id.map(|id| KeyValue::new("weir.id", id)));
        }
        if sampled.traces.0.ids == IdFormat::Clear
            && let Some(request) = request
        {
            let client = request.client.map(|client| KeyValue::new("client.address", client.to_string()));
            sampled.attributes.extend(client);
            sampled.attributes.push(KeyValue::new("server.address", request.host.to_owned()));
        }
        // `start` is from the connection's cached clock and can be a little before the request.
        let began_at = sampled.began_at + start.saturating_duration_since(sampled.began);
        let name = Cow::Borrowed("decide");
        sampled.export(new_span(), SpanKind::Internal, name, began_at, attributes, Status::Unset);
    }

    /// Makes this the trace of a gRPC call that has ended with `code`.
    pub(crate) fn called(&mut self, path: &str, code: &'static str) {
        let Some(sampled) = &mut self.0 else { return };
        let name = path.trim_start_matches('/');
        let (service, method) = name.rsplit_once('/').unwrap_or(("", name));
        sampled.attributes.extend([
            KeyValue::new("rpc.system", "grpc"),
            KeyValue::new("rpc.service", service.to_owned()),
            KeyValue::new("rpc.method", method.to_owned()),
            KeyValue::new("rpc.grpc.status_code", code.parse().unwrap_or(0_i64)),
        ]);
        sampled.is_failure = GRPC_SERVER_ERRORS.contains(&code);
        sampled.name = name.to_owned().into();
    }

    /// Starts the upstream's span, and writes it to the headers for the upstream.
    pub(crate) fn pass_on(&mut self, headers: &mut Headers) {
        let Some(sampled) = &mut self.0 else { return };
        let span_id = new_span();
        sampled.upstream = Some((span_id, SystemTime::now()));
        headers.set(TRACEPARENT, TraceContext { span_id, ..sampled.own }.to_string());
        if sampled.parent.is_none() {
            // It belongs to a trace with an invalid `traceparent`.
            headers.remove(TRACESTATE);
        }
    }

    /// Returns the start of a sampled request.
    pub(crate) fn began(&self) -> Option<Instant> {
        self.0.as_ref().map(|sampled| sampled.began)
    }

    /// Records the response; `is_upstreams` if it is the upstream's.
    pub(crate) fn answered(&mut self, status: u16, is_upstreams: bool, used: Option<&UpstreamUse>) {
        let Some(sampled) = &mut self.0 else { return };
        sampled.status = Some(status);
        sampled.is_failure |= status >= 500;
        let Some((span_id, began_at)) = sampled.upstream.take() else { return };
        let mut attributes = Vec::with_capacity(6);
        attributes.push(KeyValue::new("http.request.method", sampled.method));
        if let Some(used) = used {
            let (address, port) = used.address.rsplit_once(':').unwrap_or((&used.address, ""));
            attributes.push(KeyValue::new("server.address", address.to_owned()));
            attributes.extend(port.parse().ok().map(|port: i64| KeyValue::new("server.port", port)));
            if used.attempts > 1 {
                attributes.push(KeyValue::new("http.request.resend_count", i64::from(used.attempts - 1)));
            }
        }
        // The built-in upstream's response has a body of our own, too.
        let is_answer = is_upstreams || used.is_none();
        if is_answer {
            attributes.push(KeyValue::new("http.response.status_code", i64::from(status)));
        }
        // For a client span, 4xx are errors, too (OpenTelemetry's semantic conventions for HTTP).
        let is_failure = !is_answer || status >= 400;
        if is_failure {
            attributes.push(KeyValue::new("error.type", status.to_string()));
        }
        let name = sampled.name.clone();
        sampled.export(span_id, SpanKind::Client, name, began_at, attributes, error(is_failure));
    }
}

impl Sampled {
    /// Exports the request's span, or a child of it, that ends now.
    fn export(
        &self,
        span_id: u64,
        kind: SpanKind,
        name: Cow<'static, str>,
        began_at: SystemTime,
        attributes: Vec<KeyValue>,
        status: Status,
    ) {
        let is_own = span_id == self.own.span_id;
        let parent = if is_own { self.parent } else { Some(self.own.span_id) };
        let trace = TraceId::from(self.own.trace_id);
        let flags = TraceFlags::new(self.own.flags);
        self.traces.0.exporter.push(SpanData {
            span_context: SpanContext::new(trace, SpanId::from(span_id), flags, false, self.state.clone()),
            parent_span_id: parent.map_or(SpanId::INVALID, SpanId::from),
            parent_span_is_remote: is_own && parent.is_some(),
            span_kind: kind,
            name,
            start_time: began_at,
            end_time: SystemTime::now().max(began_at),
            attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status,
            instrumentation_scope: self.traces.0.scope.clone(),
        });
    }
}

impl Drop for Sampled {
    fn drop(&mut self) {
        let mut attributes = std::mem::take(&mut self.attributes);
        match self.status {
            Some(status) => {
                attributes.push(KeyValue::new("http.response.status_code", i64::from(status)));
                if status >= 500 {
                    attributes.push(KeyValue::new("error.type", status.to_string()));
                }
            }
            None => attributes.push(KeyValue::new("error.type", "client_gone")),
        }
        let name = std::mem::take(&mut self.name);
        let status = error(self.is_failure);
        self.export(self.own.span_id, SpanKind::Server, name, self.began_at, attributes, status);
    }
}

fn error(is_failure: bool) -> Status {
    if is_failure { Status::error("") } else { Status::Unset }
}

fn new_span() -> u64 {
    u64::from_be_bytes(RandomIdGenerator::default().new_span_id().to_bytes())
}

/// Joins the lines of `tracestate`; empty if they are malformed.
fn state(headers: &Headers) -> TraceState {
    let lines: Vec<&str> = headers.all(TRACESTATE).filter_map(headers::text).collect();
    lines.join(",").parse().unwrap_or_default()
}

const fn protocol(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "1.0",
        Version::HTTP_2 => "2",
        _ => "1.1",
    }
}

fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
