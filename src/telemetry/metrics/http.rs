//! Metrics of listeners that speak HTTP, and of upstreams.

use prometheus::{IntCounter, IntCounterVec, IntGauge};

use super::ListenerKind;
use super::families::{PerLabel, Timer, metrics};
use crate::message::connection::{ConnectionFailure, EndpointState, HttpLimit, Unbuffered, UpstreamFailure};

label! {
    /// The label `code` of `weir_http_requests_total`: classes of status codes, and apart from them the 429 and 503 of Weir.
    pub enum RequestCode {
        Informational = "1xx",
        Successful = "2xx",
        Redirection = "3xx",
        ClientError = "4xx",
        ServerError = "5xx",
        TooManyRequests = "429",
        Unavailable = "503",
    }
}

label! {
    /// The label `kind` of `weir_tls_handshakes_total`.
    pub enum Handshake {
        Full = "full",
        Resumed = "resumed",
    }
}

/// 1 ms to 33 s in powers of two.
const UPSTREAM_BUCKETS: [f64; 16] =
    [0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384, 32.768];

metrics! {
    pub struct HttpMetrics {
        /// By [`ListenerKind`], of which [`ListenerKind::HTTP`] have requests, and [`RequestCode`].
        requests: IntCounterVec = counters(
            "weir_http_requests_total", "Requests, by listener and class of status", &["listener", "code"],
        );
        requests_in_flight: IntGauge = gauge("weir_http_requests_in_flight", "Requests in flight");
        tunnels: IntGauge = gauge("weir_http_tunnels", "Open connections that were upgraded to another protocol");
        limits: PerLabel<HttpLimit, IntCounter> = counter_by(
            "weir_http_listener_limits_total", "Times that a client reached a limit of a listener", "limit",
        );
        connections_failed: PerLabel<ConnectionFailure, IntCounter> = counter_by(
            "weir_http_connections_failed_total", "Connections that ended before their first request, by reason", "reason",
        );
        tls_handshakes: PerLabel<ListenerKind, PerLabel<Handshake, IntCounter>> = counter_by_two(
            "weir_tls_handshakes_total", "TLS handshakes with clients, by listener", "listener", "kind",
        );
    }
}

metrics! {
    pub struct UpstreamMetrics {
        seconds: Timer = timer(
            "weir_upstream_duration_seconds", "Time until an upstream's response headers",
            &UPSTREAM_BUCKETS,
        );
        errors: PerLabel<UpstreamFailure, IntCounter> = counter_by(
            "weir_upstream_errors_total", "Requests that an upstream failed, by reason", "reason",
        );
        /// Every worker has its own view of each address.
        endpoints: PerLabel<EndpointState, IntGauge> = gauge_by(
            "weir_upstream_endpoints", "Upstream addresses by state, once per worker", "state",
        );
        ejections: IntCounter = counter(
            "weir_upstream_ejections_total",
            "Upstream addresses that were not used for a while because their requests failed",
        );
        unbuffered: PerLabel<Unbuffered, IntCounter> = counter_by(
            "weir_requests_unbuffered_total",
            "Requests that were sent as they came, though their route reads requests ahead, by reason", "reason",
        );
        retries: IntCounter = counter("weir_upstream_retries_total", "Requests that were sent to an upstream again");
        resolve_errors: IntCounter = counter(
            "weir_upstream_resolve_errors_total",
            "DNS lookups of upstreams that returned no address",
        );
    }
}
