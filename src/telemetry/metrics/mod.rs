//! Every metric, label and bucket of the product.
//!
//! What is counted is decided when rules load: a limit's handles are made then, and a request only touches handles.
//!
//! The one free label is the limit's name, and what has it is in [`limits`]. All other labels have closed sets of values;
//! prometheus 0.14 knows a series by a hash of these without a separator, and a test shows that no two are taken for one.

use std::time::Duration;

use prometheus::{
    Encoder, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};

use self::labels::{STORE_ERRORS, TLS_HANDSHAKES};
use self::limits::PerLimit;
use self::process::Process;
use self::register::{counter, counters, gauge, histogram, histograms, register};
use self::tally::Tallies;

mod labels;
mod limits;
mod process;
mod register;
mod tally;

#[cfg(feature = "otel")]
pub use labels::SpanResult;
pub use labels::{
    AdminWrite, AdminWriteResult, CONNECTION_FAILURES, CONNECTION_REJECTIONS, CheckResult, Convention,
    DecisionListener, DecisionResult, ENDPOINT_STATES, GRPC_CODES, GRPC_METHODS, HTTP_LIMITS, HttpListener,
    REQUEST_CODES, RateLimitAnswer, SPOE_DISCONNECTS, SettlementResult, UPSTREAM_ERRORS,
};
pub use limits::{Count, LimitMetrics, LimitTallies, SettlementMetrics};
pub use tally::Tally;

/// 50 us to 1 s: from a decision in memory to a store that is worse than none. Two edges are where callers give up: Envoy
/// waits 20 ms for its rate limit service and 200 ms for `ext_authz`, unless it is told otherwise.
const DECISION_BUCKETS: [f64; 14] =
    [0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0];

/// 1 ms to 33 s in powers of two: an upstream's first byte.
const UPSTREAM_BUCKETS: [f64; 16] =
    [0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384, 32.768];

/// All metrics of a process.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    tallies: Tallies,
    process: Process,
    /// Threads that serve.
    pub workers: IntGauge,
    decisions: PerLimit<{ DecisionResult::ALL.len() }>,
    settlements: PerLimit<{ SettlementResult::ALL.len() }>,
    keys_limited: PerLimit<1>,
    /// How long a verdict took, the store's part included, by [`DecisionListener`].
    decision_seconds: HistogramVec,
    /// How long Redis took; a decision in memory is not timed by itself.
    pub store_seconds: Histogram,
    store_errors: IntCounterVec,
    /// Workers with a connection to the store; for memory, all of them.
    pub store_connections: IntGauge,
    /// Workers whose breaker is open.
    pub store_breakers_open: IntGauge,
    store_unusable: IntGaugeVec,
    /// Stored values that were no bucket and were taken for a full one.
    store_corrupt_values: IntCounter,
    /// Buckets in memory: the store's, or with Redis those of limits that are kept here while it is away.
    pub keys: IntGauge,
    /// The bound on them.
    pub keys_max: IntGauge,
    /// Buckets in memory that were dropped because they were full again.
    keys_evicted: IntCounter,
    /// Charges to a limit's shared bucket because the table was at its bound.
    keys_overflowed: IntCounter,
    reloads: IntCounterVec,
    /// 1 if the last reload of the rules worked, 0 if the rules are those of before.
    pub reload_successful: IntGauge,
    /// When the rules in force were loaded, in seconds since the Unix epoch.
    pub reload_timestamp: IntGauge,
    start_timestamp: IntGauge,
    /// By [`HttpListener`] and code.
    requests: IntCounterVec,
    grpc_calls: IntCounterVec,
    check_requests: IntCounterVec,
    /// Requests that are being answered.
    requests_in_flight: IntGauge,
    /// Slots that requests of this process hold, of limits of requests in flight.
    slots: IntGauge,
    /// Connections that were upgraded to another protocol and are open.
    tunnels: IntGauge,
    listener_limits: IntCounterVec,
    /// Connections of clients that are open.
    pub connections: IntGauge,
    /// The bound on them.
    pub connections_max: IntGauge,
    connections_rejected: IntCounterVec,
    /// Times that the system gave no connection: for want of file descriptors, as a rule.
    pub accept_errors: IntCounter,
    /// Lines of the access log that could not be kept or written.
    pub access_log_dropped: IntCounter,
    #[cfg(feature = "otel")]
    spans: IntCounterVec,
    connections_failed: IntCounterVec,
    tls_handshakes: IntCounterVec,
    spoe_disconnects: IntCounterVec,
    clients_disputed: IntCounterVec,
    tls_reloads: IntCounterVec,
    /// Without labels, and a family so that it is absent without TLS: a date of 0 would ring every alarm.
    tls_expiry: IntGaugeVec,
    /// Until the upstream's response headers.
    pub upstream_seconds: Histogram,
    upstream_errors: IntCounterVec,
    /// Addresses of upstreams by state, each as often as there are workers: every worker has its own view.
    upstream_endpoints: IntGaugeVec,
    /// Addresses that were left alone for a while because their requests failed.
    pub upstream_ejections: IntCounter,
    /// Requests that were sent a second time.
    pub upstream_retries: IntCounter,
    /// Lookups of upstreams' names that gave no address.
    pub upstream_resolve_errors: IntCounter,
    /// In the order of [`RateLimitAnswer::ALL`].
    rate_limit_answers: [IntCounter; RateLimitAnswer::ALL.len()],
    /// Ids that are blocked.
    pub blocks: IntGauge,
    admin_writes: IntCounterVec,
    /// Tasks that panicked; each cost one connection.
    pub panics: IntCounter,
}

impl Metrics {
    /// Makes and registers them all. An error means that two have the same name, which a test rules out.
    #[expect(clippy::too_many_lines, reason = "it is one list")]
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let rate_limit_answers = counters(
            &registry,
            "weir_rate_limit_service_answers_total",
            "Answers of the rate limit service",
            &["answer"],
        )?;
        let metrics = Self {
            process: Process::new(&registry)?,
            workers: gauge(&registry, "weir_workers", "Threads that serve")?,
            rate_limit_answers: RateLimitAnswer::ALL
                .map(|answer| rate_limit_answers.with_label_values(&[answer.label()])),
            decisions: PerLimit::new(
                "weir_decisions_total",
                "Decisions by limit and result",
                DecisionResult::ALL.map(DecisionResult::label),
            ),
            settlements: PerLimit::new(
                "weir_settlements_total",
                "Settlements by what responses tell, by limit and result",
                SettlementResult::ALL.map(SettlementResult::label),
            ),
            keys_limited: PerLimit::new(
                "weir_keys_limited_total",
                "Charges to the bucket that new ids of a limit share beyond its bound",
                [""],
            ),
            decision_seconds: histograms(
                &registry,
                "weir_decision_duration_seconds",
                "Time to a verdict by listener",
                &DECISION_BUCKETS,
                &["listener"],
            )?,
            store_seconds: histogram(
                &registry,
                "weir_store_duration_seconds",
                "Time that Redis took",
                &DECISION_BUCKETS,
            )?,
            store_errors: counters(&registry, "weir_store_errors_total", "Store calls without an answer", &["kind"])?,
            store_connections: gauge(&registry, "weir_store_connections", "Workers that are connected to the store")?,
            store_breakers_open: gauge(&registry, "weir_store_breakers_open", "Workers whose store breaker is open")?,
            store_unusable: register(
                &registry,
                IntGaugeVec::new(
                    Opts::new("weir_store_unusable", "Workers whose store cannot decide, by reason"),
                    &["reason"],
                )?,
            )?,
            store_corrupt_values: counter(
                &registry,
                "weir_store_corrupt_values_total",
                "Stored values that were no bucket",
            )?,
            keys: gauge(&registry, "weir_keys", "Buckets held in memory")?,
            keys_max: gauge(&registry, "weir_keys_max", "Buckets that memory may hold")?,
            keys_evicted: counter(&registry, "weir_keys_evicted_total", "Full buckets dropped from memory")?,
            keys_overflowed: counter(&registry, "weir_keys_overflowed_total", "Charges to a shared bucket")?,
            reloads: counters(&registry, "weir_config_reloads_total", "Reloads of the rules by result", &["result"])?,
            reload_successful: gauge(
                &registry,
                "weir_config_last_reload_successful",
                "Whether the last reload worked",
            )?,
            reload_timestamp: gauge(
                &registry,
                "weir_config_last_reload_success_timestamp_seconds",
                "When the rules in force were loaded",
            )?,
            start_timestamp: gauge(
                &registry,
                "process_start_time_seconds",
                "When the process began to count, in seconds since the Unix epoch",
            )?,
            requests: counters(
                &registry,
                "weir_http_requests_total",
                "Requests by listener and class of status",
                &["listener", "code"],
            )?,
            grpc_calls: counters(
                &registry,
                "weir_grpc_calls_total",
                "gRPC calls by method and code",
                &["method", "code"],
            )?,
            check_requests: counters(
                &registry,
                "weir_check_requests_total",
                "Answers of the check listener by convention and result",
                &["convention", "result"],
            )?,
            requests_in_flight: gauge(&registry, "weir_http_requests_in_flight", "Requests being answered")?,
            slots: gauge(&registry, "weir_slots_held", "Slots that requests in flight hold")?,
            tunnels: gauge(&registry, "weir_http_tunnels", "Open connections that were upgraded")?,
            listener_limits: counters(
                &registry,
                "weir_http_listener_limits_total",
                "Clients that came up against a limit of the listener",
                &["limit"],
            )?,
            connections: gauge(&registry, "weir_http_connections", "Open connections of clients")?,
            connections_max: gauge(&registry, "weir_http_connections_max", "Connections of clients that may be open")?,
            connections_rejected: counters(
                &registry,
                "weir_http_connections_rejected_total",
                "Connections closed because there were too many",
                &["reason"],
            )?,
            accept_errors: counter(
                &registry,
                "weir_http_accept_errors_total",
                "Failures to accept a connection, such as no descriptor left",
            )?,
            access_log_dropped: counter(
                &registry,
                "weir_access_log_dropped_total",
                "Lines of the access log that were lost",
            )?,
            #[cfg(feature = "otel")]
            spans: counters(&registry, "weir_trace_spans_total", "Spans of traces by result", &["result"])?,
            connections_failed: counters(
                &registry,
                "weir_http_connections_failed_total",
                "Connections that came to no HTTP",
                &["reason"],
            )?,
            tls_handshakes: counters(&registry, "weir_tls_handshakes_total", "TLS handshakes of clients", &["kind"])?,
            spoe_disconnects: counters(
                &registry,
                "weir_spoe_disconnects_total",
                "Connections of HAProxy that were ended, by reason",
                &["reason"],
            )?,
            clients_disputed: counters(
                &registry,
                "weir_client_address_conflicts_total",
                "Requests whose X-Forwarded-For and Forwarded name different clients",
                &["listener"],
            )?,
            tls_reloads: counters(
                &registry,
                "weir_tls_reloads_total",
                "Reloads of the certificates by result",
                &["result"],
            )?,
            tls_expiry: register(
                &registry,
                IntGaugeVec::new(
                    Opts::new(
                        "weir_tls_certificate_expiry_timestamp_seconds",
                        "When the first of the certificates expires",
                    ),
                    &[],
                )?,
            )?,
            upstream_seconds: histogram(
                &registry,
                "weir_upstream_duration_seconds",
                "Time to response headers",
                &UPSTREAM_BUCKETS,
            )?,
            upstream_errors: counters(
                &registry,
                "weir_upstream_errors_total",
                "Upstream failures by reason",
                &["reason"],
            )?,
            upstream_endpoints: register(
                &registry,
                IntGaugeVec::new(
                    Opts::new("weir_upstream_endpoints", "Addresses of upstreams by state, once for each worker"),
                    &["state"],
                )?,
            )?,
            upstream_ejections: counter(
                &registry,
                "weir_upstream_ejections_total",
                "Addresses left alone for a while because their requests failed",
            )?,
            upstream_retries: counter(&registry, "weir_upstream_retries_total", "Requests sent a second time")?,
            upstream_resolve_errors: counter(
                &registry,
                "weir_upstream_resolve_errors_total",
                "Lookups of upstreams' names that gave no address",
            )?,
            blocks: gauge(&registry, "weir_blocks", "Ids that an operator has blocked")?,
            admin_writes: counters(
                &registry,
                "weir_admin_writes_total",
                "Changes of buckets that operators asked for, by result",
                &["op", "result"],
            )?,
            panics: counter(&registry, "weir_panics_total", "Tasks that panicked, one connection each")?,
            registry,
            tallies: Tallies::default(),
        };
        metrics.announce()?;
        Ok(metrics)
    }

    /// Closed label sets begin at 0, so that a rate over the first event is not lost.
    fn announce(&self) -> Result<(), prometheus::Error> {
        for (metric, values) in [
            (&self.store_errors, &STORE_ERRORS[..]),
            (&self.upstream_errors, &UPSTREAM_ERRORS),
            (&self.listener_limits, &HTTP_LIMITS),
            (&self.connections_rejected, &CONNECTION_REJECTIONS),
            (&self.reloads, &["success", "failure"]),
            (&self.connections_failed, &CONNECTION_FAILURES),
            (&self.tls_handshakes, &TLS_HANDSHAKES),
            (&self.spoe_disconnects, &SPOE_DISCONNECTS),
            (&self.tls_reloads, &["success", "failure"]),
        ] {
            for value in values {
                metric.with_label_values(&[value]);
            }
        }
        for (listener, code) in
            HttpListener::ALL.into_iter().flat_map(|listener| REQUEST_CODES.map(|code| (listener, code)))
        {
            self.requests.with_label_values(&[listener.label(), code]);
        }
        for listener in DecisionListener::ALL {
            self.decision_seconds(listener);
            // The rate limit service is told of no client.
            if listener != DecisionListener::RateLimit {
                self.clients_disputed.with_label_values(&[listener.label()]);
            }
        }
        for convention in Convention::ALL {
            self.check_counters(convention);
        }
        self.grpc_counters();
        #[cfg(feature = "otel")]
        for result in SpanResult::ALL {
            self.spans(result);
        }
        for op in AdminWrite::ALL {
            for result in AdminWriteResult::ALL {
                self.admin_writes.with_label_values(&[op.label(), result.label()]);
            }
        }
        self.upstream_endpoints();
        let labels = ["version", "rustc"];
        let info = IntGaugeVec::new(Opts::new("weir_build_info", "Always 1; the labels tell the build"), &labels)?;
        info.with_label_values(&[env!("CARGO_PKG_VERSION"), env!("CARGO_PKG_RUST_VERSION")]).set(1);
        self.registry.register(Box::new(info))
    }

    /// How long verdicts took for this listener.
    pub fn decision_seconds(&self, listener: DecisionListener) -> Histogram {
        self.decision_seconds.with_label_values(&[listener.label()])
    }

    /// The process has begun to count, and the first rules are in force, at this time in seconds since the Unix epoch.
    pub fn started(&self, seconds: i64) {
        self.start_timestamp.set(seconds);
        self.reload_successful.set(1);
        self.reload_timestamp.set(seconds);
    }

    /// Counts an answer of the rate limit service.
    pub fn rate_limit_answer(&self, answer: RateLimitAnswer) {
        self.rate_limit_answers[answer as usize].inc();
    }

    /// Sets the number of workers whose store cannot decide for this reason, a label of the store's `Fault`.
    pub fn store_unusable(&self, reason: &str, workers: i64) {
        self.store_unusable.with_label_values(&[reason]).set(workers);
    }

    /// Counts a store call without an answer.
    pub fn store_error(&self, kind: &'static str) {
        self.store_errors.with_label_values(&[kind]).inc();
    }

    /// Counts a reload of the rules.
    pub fn reload(&self, successful: bool) {
        self.reloads.with_label_values(&[if successful { "success" } else { "failure" }]).inc();
        self.reload_successful.set(i64::from(successful));
    }

    /// Counts a connection that came to no HTTP; `reason` is one of [`CONNECTION_FAILURES`].
    pub fn connection_failed(&self, reason: &'static str) {
        self.connections_failed.with_label_values(&[reason]).inc();
    }

    /// What counts the spans that come to this.
    #[cfg(feature = "otel")]
    pub fn spans(&self, result: SpanResult) -> IntCounter {
        self.spans.with_label_values(&[result.label()])
    }

    /// Counts a TLS handshake of a client.
    pub fn tls_handshake(&self, is_resumed: bool) {
        self.tls_handshakes.with_label_values(&[TLS_HANDSHAKES[usize::from(is_resumed)]]).inc();
    }

    /// Counts a connection of `HAProxy`'s that we ended; `reason` is one of [`SPOE_DISCONNECTS`].
    pub fn spoe_disconnect(&self, reason: &'static str) {
        self.spoe_disconnects.with_label_values(&[reason]).inc();
    }

    /// Counts a request whose `X-Forwarded-For` and `Forwarded` name different clients.
    pub fn client_disputed(&self, listener: DecisionListener) {
        self.clients_disputed.with_label_values(&[listener.label()]).inc();
    }

    /// Counts a reload of the certificates.
    pub fn tls_reload(&self, successful: bool) {
        self.tls_reloads.with_label_values(&[if successful { "success" } else { "failure" }]).inc();
    }

    /// When the first of the certificates expires, in seconds since the Unix epoch.
    pub fn tls_expiry(&self, seconds: i64) {
        self.tls_expiry.with_label_values::<&str>(&[]).set(seconds);
    }

    /// A worker's share of a listener's `weir_http_requests_total`, in the order of [`REQUEST_CODES`].
    pub fn request_tallies(&self, listener: HttpListener) -> [Tally; REQUEST_CODES.len()] {
        REQUEST_CODES.map(|code| self.tallies.counter(self.requests.with_label_values(&[listener.label(), code])))
    }

    /// A worker's share of the requests that are being answered.
    pub fn in_flight_tally(&self) -> Tally {
        self.tallies.gauge(self.requests_in_flight.clone())
    }

    /// A worker's share of the slots that requests in flight hold.
    pub fn slots_tally(&self) -> Tally {
        self.tallies.gauge(self.slots.clone())
    }

    /// A worker's share of the connections that were upgraded to another protocol and are open.
    pub fn tunnel_tally(&self) -> Tally {
        self.tallies.gauge(self.tunnels.clone())
    }

    /// The handles of `weir_grpc_calls_total`, in the order of [`GRPC_METHODS`] and [`GRPC_CODES`].
    pub fn grpc_counters(&self) -> [[IntCounter; GRPC_CODES.len()]; GRPC_METHODS.len()] {
        GRPC_METHODS.map(|method| GRPC_CODES.map(|code| self.grpc_calls.with_label_values(&[method, code])))
    }

    /// The handles of `weir_check_requests_total` of one convention, by [`CheckResult`].
    pub fn check_counters(&self, convention: Convention) -> [IntCounter; CheckResult::COUNT] {
        CheckResult::ALL.map(|result| self.check_requests.with_label_values(&[convention.label(), result.label()]))
    }

    /// Counts a connection that was closed at once; `reason` is one of [`CONNECTION_REJECTIONS`].
    pub fn connection_rejected(&self, reason: &'static str) {
        self.connections_rejected.with_label_values(&[reason]).inc();
    }

    /// Takes over what the stores have counted by themselves since the start. Only the admin listener does, one page after
    /// the other, so no reader sees a counter between its two steps.
    pub fn stores_counted(&self, evicted: u64, overflowed: u64, corrupt_values: u64) {
        for (counter, value) in [
            (&self.keys_evicted, evicted),
            (&self.keys_overflowed, overflowed),
            (&self.store_corrupt_values, corrupt_values),
        ] {
            counter.reset();
            counter.inc_by(value);
        }
    }

    /// Counts what an operator asked for.
    pub fn admin_write(&self, op: AdminWrite, result: AdminWriteResult) {
        self.admin_writes.with_label_values(&[op.label(), result.label()]).inc();
    }

    /// Counts a client that came up against a limit of the listener, one of [`HTTP_LIMITS`].
    pub fn listener_limit(&self, limit: &'static str) {
        self.listener_limits.with_label_values(&[limit]).inc();
    }

    /// Counts an upstream failure; `reason` is one of [`UPSTREAM_ERRORS`].
    pub fn upstream_error(&self, reason: &'static str) {
        self.upstream_errors.with_label_values(&[reason]).inc();
    }

    /// The handles of `weir_upstream_endpoints`, in the order of [`ENDPOINT_STATES`].
    pub fn upstream_endpoints(&self) -> [IntGauge; ENDPOINT_STATES.len()] {
        ENDPOINT_STATES.map(|state| self.upstream_endpoints.with_label_values(&[state]))
    }

    /// The text exposition format, version 0.0.4.
    pub fn render(&self) -> Result<Vec<u8>, prometheus::Error> {
        self.tallies.add_up();
        self.process.look();
        let mut text = Vec::with_capacity(16 * 1024);
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        self.decisions.write(&mut text);
        self.settlements.write(&mut text);
        self.keys_limited.write(&mut text);
        Ok(text)
    }
}

/// Observes a span in seconds.
pub fn observe(histogram: &Histogram, span: Duration) {
    histogram.observe(span.as_secs_f64());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text() -> String {
        String::from_utf8(Metrics::new().unwrap().render().unwrap()).unwrap()
    }

    #[test]
    fn names_are_unique_and_labels_begin_at_zero() {
        let text = text();
        for line in ["weir_store_errors_total{kind=\"late\"} 0\n", "weir_keys_max 0\n", "process_open_fds "] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
    }

    #[test]
    fn no_two_label_values_are_taken_for_one_series() {
        let text = text();
        for (name, expected) in [
            ("weir_http_requests_total", HttpListener::ALL.len() * REQUEST_CODES.len()),
            ("weir_grpc_calls_total", GRPC_METHODS.len() * GRPC_CODES.len()),
            ("weir_check_requests_total", Convention::ALL.len() * CheckResult::ALL.len()),
            ("weir_admin_writes_total", AdminWrite::ALL.len() * AdminWriteResult::ALL.len()),
        ] {
            let count =
                text.lines().filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with('{'))).count();
            assert_eq!(count, expected, "{name} in {text}");
        }
    }

    /// What a caller's deadline is missed by can only be read off where a bucket ends.
    #[test]
    fn callers_deadlines_are_edges_of_buckets() {
        let text = text();
        for edge in ["0.02", "0.2"] {
            for listener in DecisionListener::ALL.map(DecisionListener::label) {
                let line =
                    format!("weir_decision_duration_seconds_bucket{{listener=\"{listener}\",le=\"{edge}\"}} 0\n");
                assert!(text.contains(&line), "{line} is not in {text}");
            }
        }
    }
}
