//! Metrics of decisions by listener, and of what each listener replies.

use prometheus::{IntCounter, IntGauge};

use super::families::{PerLabel, Timer, metrics};
use super::{DECISION_BUCKETS, DELAY_BUCKETS};

label! {
    /// The protocol of a listening socket: the label `listener` of `weir_http_requests_total` and
    /// `weir_tls_handshakes_total`, and the name in the log, in systemd's units and among handed-over sockets.
    pub enum ListenerKind {
        Proxy = "proxy",
        Grpc = "grpc",
        Check = "check",
        Spoe = "spoe",
        Admin = "admin",
    }
}

impl ListenerKind {
    /// Those whose HTTP requests are counted.
    pub const HTTP: [Self; 3] = [Self::Proxy, Self::Grpc, Self::Check];
}

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
    /// The label `result` of `weir_rate_limit_quota_reports_total`.
    pub enum QuotaReport {
        Ok = "ok",
        /// It ends its stream.
        Invalid = "invalid",
    }
}

label! {
    /// The label `assignment` of `weir_rate_limit_quota_assignments_total`.
    pub enum QuotaAssignment {
        TokenBucket = "token_bucket",
        AllowAll = "allow_all",
        DenyAll = "deny_all",
        /// The Envoy has more buckets than are served.
        Abandon = "abandon",
    }
}

label! {
    /// The label `result` of `weir_rate_limit_quota_requests_total`.
    pub enum QuotaRequest {
        Allowed = "allowed",
        Denied = "denied",
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

label! {
    /// A method of the gRPC listener: the label `method` of `weir_grpc_calls_total`.
    pub enum GrpcMethod {
        Check = "check",
        ShouldRateLimit = "should_rate_limit",
        CheckRateLimit = "check_rate_limit",
        Report = "report",
        Reserve = "reserve",
        Commit = "commit",
        StreamRateLimitQuotas = "stream_rate_limit_quotas",
        HealthCheck = "health_check",
        HealthList = "health_list",
        HealthWatch = "health_watch",
        Unknown = "unknown",
    }
}

label! {
    /// The status codes in use: the label `code` of `weir_grpc_calls_total`.
    pub enum GrpcCode {
        Ok = "ok",
        Cancelled = "cancelled",
        InvalidArgument = "invalid_argument",
        DeadlineExceeded = "deadline_exceeded",
        NotFound = "not_found",
        ResourceExhausted = "resource_exhausted",
        Unimplemented = "unimplemented",
        Internal = "internal",
        Unavailable = "unavailable",
    }
}

label! {
    /// The status of an AGENT-DISCONNECT: the label `reason` of `weir_spoe_disconnects_total`.
    pub enum SpoeStatus {
        /// The process ends, or `HAProxy` has disconnected.
        Normal = "normal",
        Timeout = "timeout",
        /// A frame is longer than negotiated.
        TooBig = "too_big",
        /// Not a frame, or not allowed now.
        Invalid = "invalid",
        NoVersion = "no_version",
        NoFrameSize = "no_frame_size",
        NoCapabilities = "no_capabilities",
        BadVersion = "bad_version",
        /// Below the protocol's minimum.
        BadFrameSize = "bad_frame_size",
        Fragmented = "fragmented",
    }
}

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
        decision_seconds: PerLabel<DecisionListener, Timer> = timer_by(
            "weir_decision_duration_seconds", "Time to a verdict, the store's reply included, by listener",
            &DECISION_BUCKETS, "listener",
        );
        uninspected_bodies: PerLabel<UninspectedBody, IntCounter> = counter_by(
            "weir_uninspected_bodies_total", "Bodies that a limit needed and that were not read, by reason", "reason",
        );
        slots: IntGauge = gauge("weir_slots_held", "Slots that requests in flight hold");
        delayed: IntGauge = gauge("weir_delayed_requests", "Requests that are held for limits with `delay`");
        delay_seconds: Timer = timer(
            "weir_delay_seconds", "How long requests were held for limits with `delay`", &DELAY_BUCKETS,
        );
        blocks: IntGauge = gauge("weir_blocks", "Ids that operators have blocked or limits have banned");
        live_overrides: IntGauge = gauge("weir_live_overrides", "Live overrides in force");
        live_overrides_inert: IntGauge = gauge(
            "weir_live_overrides_inert", "Live overrides that the rules in force have no use for",
        );
        shared_notes_unread: PerLabel<SharedNote, IntGauge> = gauge_by(
            "weir_shared_notes_unread", "Changes by operators in the store that cannot be read and have no effect here",
            "kind",
        );
        live_overrides_synced: IntGauge = gauge(
            "weir_live_overrides_sync_timestamp_seconds", "When the live overrides were last in step with the store",
        );
        /// Those of the rate limit service stay 0: its calls name no client.
        client_conflicts: PerLabel<DecisionListener, IntCounter> = counter_by(
            "weir_client_address_conflicts_total",
            "Requests whose X-Forwarded-For and Forwarded name different clients", "listener",
        );
        check_requests: PerLabel<Convention, PerLabel<CheckResult, IntCounter>> = counter_by_two(
            "weir_check_requests_total", "Replies of the check listener, by convention and result", "convention", "result",
        );
        grpc_calls: PerLabel<GrpcMethod, PerLabel<GrpcCode, IntCounter>> = counter_by_two(
            "weir_grpc_calls_total", "gRPC calls, by method and status code", "method", "code",
        );
        rate_limit_answers: PerLabel<RateLimitAnswer, IntCounter> = counter_by(
            "weir_rate_limit_service_answers_total", "Replies of the rate limit service", "answer",
        );
        quota_streams: IntGauge = gauge("weir_rate_limit_quota_streams", "Streams of Envoys that limit by themselves");
        quota_reports: PerLabel<QuotaReport, IntCounter> = counter_by(
            "weir_rate_limit_quota_reports_total", "Messages of Envoys that limit by themselves", "result",
        );
        quota_assignments: PerLabel<QuotaAssignment, IntCounter> = counter_by(
            "weir_rate_limit_quota_assignments_total", "Assignments sent to Envoys that limit by themselves", "assignment",
        );
        quota_requests: PerLabel<QuotaRequest, IntCounter> = counter_by(
            "weir_rate_limit_quota_requests_total", "Requests that Envoys have reported as allowed or denied", "result",
        );
        spoe_disconnects: PerLabel<SpoeStatus, IntCounter> = counter_by(
            "weir_spoe_disconnects_total", "HAProxy connections that Weir closed, by reason", "reason",
        );
        admin_writes: PerLabel<AdminWrite, PerLabel<AdminWriteResult, IntCounter>> = counter_by_two(
            "weir_admin_writes_total", "Changes that operators asked for, by operation and result", "op", "result",
        );
    }
}
