//! Metrics of listeners that speak HTTP, and of upstreams.

use prometheus::{IntCounter, IntGauge};

use super::families::{Counters, Timer, metrics};
use super::label::label;

label! {
    /// The label `listener` of `weir_http_requests_total`.
    pub enum HttpListener {
        Proxy = "proxy",
        Check = "check",
        Grpc = "grpc",
    }
}

label! {
    /// The label `listener` of `weir_tls_handshakes_total`.
    pub enum TlsListener {
        Proxy = "proxy",
        Check = "check",
        Grpc = "grpc",
        Spoe = "spoe",
        Admin = "admin",
    }
}

impl From<HttpListener> for TlsListener {
    fn from(listener: HttpListener) -> Self {
        match listener {
            HttpListener::Proxy => Self::Proxy,
            HttpListener::Check => Self::Check,
            HttpListener::Grpc => Self::Grpc,
        }
    }
}

/// The label `code` of `weir_http_requests_total`: classes of status codes, and apart from them the 429 and 503 of Weir.
pub const REQUEST_CODES: [&str; 7] = ["1xx", "2xx", "3xx", "4xx", "5xx", "429", "503"];

/// The label `limit` of `weir_http_listener_limits_total`.
pub const HTTP_LIMITS: [&str; 18] = [
    "target",
    "header_bytes",
    "header_count",
    "body_bytes",
    "requests",
    "first_byte_timeout",
    "header_timeout",
    "idle_timeout",
    "body_timeout",
    "upload_rate",
    "download_rate",
    "slow_readers",
    "tunnel_timeout",
    "streams",
    "http2_resets",
    "http2_control_frames",
    "http2_errors",
    "http2_ping_timeout",
];

/// The label `reason` of `weir_http_connections_failed_total`.
pub const CONNECTION_FAILURES: [&str; 6] =
    ["first_byte_timeout", "proxy_header", "tls_handshake", "tls_handshake_timeout", "plain_http", "tls_on_plain_port"];

/// The label `state` of `weir_upstream_endpoints`.
pub const ENDPOINT_STATES: [&str; 3] = ["healthy", "ejected", "unhealthy"];

/// 1 ms to 33 s in powers of two.
const UPSTREAM_BUCKETS: [f64; 16] =
    [0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384, 32.768];

metrics! {
    pub struct HttpMetrics {
        requests: [[IntCounter; REQUEST_CODES.len()]; HttpListener::ALL.len()] = counter_by_two(
            "weir_http_requests_total", "Requests, by listener and class of status",
            ("listener", HttpListener::LABELS), ("code", REQUEST_CODES),
        );
        requests_in_flight: IntGauge = gauge("weir_http_requests_in_flight", "Requests in flight");
        tunnels: IntGauge = gauge("weir_http_tunnels", "Open connections that were upgraded to another protocol");
        limits: Counters = counters(
            "weir_http_listener_limits_total", "Times that a client reached a limit of a listener",
            "limit", &HTTP_LIMITS,
        );
        connections_failed: Counters = counters(
            "weir_http_connections_failed_total", "Connections that ended before their first request, by reason",
            "reason", &CONNECTION_FAILURES,
        );
        tls_handshakes: [[IntCounter; 2]; TlsListener::ALL.len()] = counter_by_two(
            "weir_tls_handshakes_total", "TLS handshakes with clients, by listener",
            ("listener", TlsListener::LABELS), ("kind", ["full", "resumed"]),
        );
    }
}

metrics! {
    pub struct UpstreamMetrics {
        seconds: Timer = timer(
            "weir_upstream_duration_seconds", "Time until an upstream's response headers",
            &UPSTREAM_BUCKETS,
        );
        errors: Counters = counters(
            "weir_upstream_errors_total", "Requests that an upstream failed, by reason",
            "reason", &[
                "resolve", "busy", "connect", "exhausted", "connect_timeout", "response_timeout", "closed", "malformed", "body",
                "body_timeout",
            ],
        );
        /// Every worker has its own view of each address.
        endpoints: [IntGauge; ENDPOINT_STATES.len()] = gauge_by(
            "weir_upstream_endpoints", "Upstream addresses by state, once per worker",
            "state", ENDPOINT_STATES,
        );
        ejections: IntCounter = counter(
            "weir_upstream_ejections_total",
            "Upstream addresses that were not used for a while because their requests failed",
        );
        retries: IntCounter = counter("weir_upstream_retries_total", "Requests that were sent to an upstream again");
        resolve_errors: IntCounter = counter(
            "weir_upstream_resolve_errors_total",
            "DNS lookups of upstreams that returned no address",
        );
    }
}
