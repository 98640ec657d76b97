//! Metrics, in the text exposition format of Prometheus.
//!
//! The counters of a limit are created when rules load, and all others at the start; a request only increments them.
//!
//! The only label with free values is the limit's name; [`limits`] has the metrics with it. All other labels have closed sets
//! of values. prometheus 0.14 identifies a series by a hash of these without a separator; a test shows that no two collide.

use prometheus::{Encoder, IntCounter, IntGauge, Registry, TextEncoder};

use self::families::Family;
use self::http::{HttpMetrics, UpstreamMetrics};
use self::limits::Limits;
use self::listeners::ListenerMetrics;
use self::process::ProcessMetrics;
use self::server::ServerMetrics;
use self::store::StoreMetrics;
use self::tally::Tallies;

mod families;
mod http;
mod limits;
mod listeners;
mod process;
mod server;
mod store;
mod tally;

pub use families::{LocalTimer, PerLabel, Timer};
pub use http::{Handshake, RequestCode};
pub use limits::{
    BanResult, CandidateMetrics, CandidateResult, CandidateTallies, Count, DecisionResult, LimitMetrics, LimitTallies,
    SettlementMetrics, WarningResult, WebhookResult,
};
pub use listeners::{
    AdminWrite, AdminWriteResult, CheckResult, Convention, DecisionListener, GrpcCode, GrpcMethod, ListenerKind,
    QuotaAssignment, QuotaReport, QuotaRequest, RateLimitAnswer, SharedNote, SpoeStatus, UninspectedBody,
};
pub use server::{KeysFetch, OverridesFetch, TooMany, XdsUpdate};
pub use store::{StoreCounts, StoreFailure, StoreReport};
pub use tally::Tally;

/// 50 us to 1 s: from a decision in memory to a store that is too slow to be useful. Two bounds are callers' timeouts: Envoy
/// waits 20 ms for its rate limit service and 200 ms for `ext_authz` by default.
const DECISION_BUCKETS: [f64; 14] =
    [0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0];

/// 10 ms to 10 minutes, the longest delay.
const DELAY_BUCKETS: [f64; 12] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 600.0];

label! {
    /// The label `result` of `weir_trace_spans_total`.
    pub enum SpanResult {
        Exported = "exported",
        QueueFull = "queue_full",
        /// The collector failed or timed out.
        ExportFailed = "export_failed",
    }
}

/// All metrics of a process.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    tallies: Tallies,
    limits: Limits,
    process: ProcessMetrics,
    pub server: ServerMetrics,
    pub store: StoreMetrics,
    pub listeners: ListenerMetrics,
    pub http: HttpMetrics,
    pub upstreams: UpstreamMetrics,
    pub(super) spans: PerLabel<SpanResult, IntCounter>,
}

impl Metrics {
    /// Creates and registers all metrics. Fails if two have the same name, which a test rules out.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let family = |name, help| Family { registry: &registry, name, help };
        family("weir_build_info", "Always 1; the labels describe the build")
            .gauges(&["version", "rustc"])?
            .with_label_values(&[env!("CARGO_PKG_VERSION"), env!("CARGO_PKG_RUST_VERSION")])
            .set(1);
        let http = HttpMetrics::new(&registry)?;
        for listener in ListenerKind::HTTP {
            for code in RequestCode::LABELS {
                http.requests.with_label_values(&[listener.label(), code]);
            }
        }
        Ok(Self {
            tallies: Tallies::default(),
            limits: Limits::new(),
            process: ProcessMetrics::new(&registry)?,
            server: ServerMetrics::new(&registry)?,
            store: StoreMetrics::new(&registry)?,
            listeners: ListenerMetrics::new(&registry)?,
            http,
            upstreams: UpstreamMetrics::new(&registry)?,
            spans: family("weir_trace_spans_total", "Spans of traces, by result").counter_by("result")?,
            registry,
        })
    }

    /// A worker's share of a listener's `weir_http_requests_total`.
    pub fn request_tallies(&self, listener: ListenerKind) -> PerLabel<RequestCode, Tally> {
        PerLabel::new(|code| self.tallies.counter(self.http.requests.with_label_values(&[listener.label(), code])))
    }

    /// A worker's share of a gauge.
    pub fn gauge_tally(&self, gauge: &IntGauge) -> Tally {
        self.tallies.gauge(gauge.clone())
    }

    /// Adds what the workers have counted to the metrics.
    pub fn add_up(&self) {
        self.tallies.add_up();
    }

    /// Returns all metrics in the text exposition format, version 0.0.4.
    pub fn render(&self) -> Result<Vec<u8>, prometheus::Error> {
        self.add_up();
        self.process.update();
        let mut text = Vec::with_capacity(16 * 1024);
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        self.limits.write(&mut text);
        Ok(text)
    }
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
            ("weir_http_requests_total", ListenerKind::HTTP.len() * RequestCode::ALL.len()),
            ("weir_grpc_calls_total", GrpcMethod::ALL.len() * GrpcCode::ALL.len()),
            ("weir_check_requests_total", Convention::ALL.len() * CheckResult::ALL.len()),
            ("weir_admin_writes_total", AdminWrite::ALL.len() * AdminWriteResult::ALL.len()),
        ] {
            let count =
                text.lines().filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with('{'))).count();
            assert_eq!(count, expected, "{name} in {text}");
        }
    }

    /// Calls that missed a caller's timeout can be counted only if a bucket ends there.
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
