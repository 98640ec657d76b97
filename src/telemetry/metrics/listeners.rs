//! Metrics of decisions by listener, and of what each listener replies.

use prometheus::{IntCounter, IntGauge};

use super::families::{Counters, Timer, metrics};
use super::label::label;
use super::{DECISION_BUCKETS, DELAY_BUCKETS};

label! {
    /// The label `listener` of `weir_decision_duration_seconds`. The gRPC listener has one for each of its services, because
    /// their callers have different timeouts.
    pub enum DecisionListener {
        Proxy = "proxy",
        Check = "check",
        ExtAuthz = "ext_authz",
        RateLimit = "rate_limit",
        Spoe = "spoe",
    }
}

label! {
    /// The label `kind` of `weir_shared_notes_unread`: what gateways at one store learn from each other.
    pub enum SharedNote {
        Block = "block",
        Override = "override",
        Reset = "reset",
    }
}

label! {
    /// A way to ask the check listener: the label `convention` of `weir_check_requests_total`, and the path at the
    /// listener.
    pub enum Convention {
        /// Envoy's `ext_authz` over HTTP.
        Envoy = "envoy",
        /// nginx' `auth_request`.
        Nginx = "nginx",
        /// Traefik's `ForwardAuth` and Caddy's `forward_auth`.
        Forward = "forward",
        /// HAProxy's Lua script `haproxy-auth-request`.
        Haproxy = "haproxy",
        /// Applications.
        Json = "json",
    }
}

label! {
    /// The label `result` of `weir_check_requests_total`.
    pub enum CheckResult {
        Allowed = "allowed",
        Denied = "denied",
        /// The store failed and a limit fails closed.
        Unavailable = "unavailable",
        /// The client's request, or an application's call, is invalid.
        Malformed = "malformed",
        /// The gateway leaves out what it must send.
        Misconfigured = "misconfigured",
    }
}

label! {
    /// The label `answer` of `weir_rate_limit_service_answers_total`.
    pub enum RateLimitAnswer {
        Ok = "ok",
        OverLimit = "over_limit",
        /// The request passes because no limit names its domain. Callers choose domains, so they are not a label.
        UnknownDomain = "unknown_domain",
        Invalid = "invalid",
        /// The store failed and a limit fails closed.
        Unavailable = "unavailable",
    }
}

label! {
    /// A change by an operator: the label `op` of `weir_admin_writes_total`.
    pub enum AdminWrite {
        Reset = "reset",
        /// A reset of all ids of a limit.
        ResetAll = "reset_all",
        Refund = "refund",
        Set = "set",
        Block = "block",
        Unblock = "unblock",
        SetOverride = "set_override",
        DeleteOverride = "delete_override",
        /// A change of the log's filter.
        Log = "log",
        /// A reload of the files.
        Reload = "reload",
        /// A recording of requests.
        Record = "record",
    }
}

label! {
    /// The label `result` of `weir_admin_writes_total`.
    pub enum AdminWriteResult {
        Done = "done",
        /// The token is missing or wrong.
        Unauthorized = "unauthorized",
        /// The change is invalid, or impossible for this bucket.
        Mistaken = "mistaken",
        /// The store failed.
        Failed = "failed",
    }
}

/// The label `method` of `weir_grpc_calls_total`.
pub const GRPC_METHODS: [&str; 8] = [
    "check",
    "should_rate_limit",
    "check_rate_limit",
    "report",
    "health_check",
    "health_list",
    "health_watch",
    "unknown",
];

/// The label `reason` of `weir_spoe_disconnects_total`, in the order of the SPOE listener's `Status`.
pub const SPOE_REASONS: [&str; 10] = [
    "normal",
    "timeout",
    "too_big",
    "invalid",
    "no_version",
    "no_frame_size",
    "no_capabilities",
    "bad_version",
    "bad_frame_size",
    "fragmented",
];

/// The label `code` of `weir_grpc_calls_total`.
pub const GRPC_CODES: [&str; 9] = [
    "ok",
    "cancelled",
    "invalid_argument",
    "deadline_exceeded",
    "not_found",
    "resource_exhausted",
    "unimplemented",
    "internal",
    "unavailable",
];

label! {
    /// The label `reason` of `weir_uninspected_bodies_total`.
    pub enum UninspectedBody {
        /// It has a `content-encoding`.
        RequestEncoded = "request_encoded",
        /// It is longer than `--max-inspected-body`.
        RequestTooLong = "request_too_long",
        /// It is not JSON, whatever its `content-type`, or it is a gRPC stream.
        RequestType = "request_type",
        ResponseEncoded = "response_encoded",
        /// It is neither JSON nor an event stream.
        ResponseType = "response_type",
    }
}

metrics! {
    pub struct ListenerMetrics {
        decision_seconds: [Timer; DecisionListener::ALL.len()] = timer_by(
            "weir_decision_duration_seconds", "Time to a verdict, the store's reply included, by listener",
            &DECISION_BUCKETS, "listener", DecisionListener::LABELS,
        );
        uninspected_bodies: Counters = counters(
            "weir_uninspected_bodies_total", "Bodies that a limit needed and that were not read, by reason",
            "reason", &UninspectedBody::LABELS,
        );
        slots: IntGauge = gauge("weir_slots_held", "Slots that requests in flight hold");
        delayed: IntGauge = gauge("weir_delayed_requests", "Requests that are held for limits with `delay`");
        delay_seconds: Timer = timer(
            "weir_delay_seconds", "How long requests were held for limits with `delay`", &DELAY_BUCKETS,
        );
        blocks: IntGauge = gauge("weir_blocks", "Ids that operators have blocked");
        live_overrides: IntGauge = gauge("weir_live_overrides", "Live overrides in force");
        live_overrides_inert: IntGauge = gauge(
            "weir_live_overrides_inert", "Live overrides that the rules in force have no use for",
        );
        shared_notes_unread: [IntGauge; SharedNote::ALL.len()] = gauge_by(
            "weir_shared_notes_unread", "Changes by operators in the store that cannot be read and have no effect here",
            "kind", SharedNote::LABELS,
        );
        live_overrides_synced: IntGauge = gauge(
            "weir_live_overrides_sync_timestamp_seconds", "When the live overrides were last in step with the store",
        );
        /// By [`DecisionListener`], except the rate limit service: its calls name no client.
        client_conflicts: Counters = counters(
            "weir_client_address_conflicts_total",
            "Requests whose X-Forwarded-For and Forwarded name different clients",
            "listener", &["proxy", "check", "ext_authz", "spoe"],
        );
        check_requests: [[IntCounter; CheckResult::ALL.len()]; Convention::ALL.len()] = counter_by_two(
            "weir_check_requests_total", "Replies of the check listener, by convention and result",
            ("convention", Convention::LABELS), ("result", CheckResult::LABELS),
        );
        grpc_calls: [[IntCounter; GRPC_CODES.len()]; GRPC_METHODS.len()] = counter_by_two(
            "weir_grpc_calls_total", "gRPC calls, by method and status code",
            ("method", GRPC_METHODS), ("code", GRPC_CODES),
        );
        rate_limit_answers: [IntCounter; RateLimitAnswer::ALL.len()] = counter_by(
            "weir_rate_limit_service_answers_total", "Replies of the rate limit service",
            "answer", RateLimitAnswer::LABELS,
        );
        spoe_disconnects: Counters = counters(
            "weir_spoe_disconnects_total", "HAProxy connections that Weir closed, by reason",
            "reason", &SPOE_REASONS,
        );
        admin_writes: [[IntCounter; AdminWriteResult::ALL.len()]; AdminWrite::ALL.len()] = counter_by_two(
            "weir_admin_writes_total", "Changes that operators asked for, by operation and result",
            ("op", AdminWrite::LABELS), ("result", AdminWriteResult::LABELS),
        );
    }
}
