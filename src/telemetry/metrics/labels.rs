//! The values of labels: closed sets, decided here and not by what comes in.

/// How a limit's decision came out: the label `result` of `weir_decisions_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecisionResult {
    /// The cost was taken.
    Allowed,
    /// The limit denied the request.
    Denied,
    /// A limit in shadow would have denied it.
    ShadowDenied,
    /// Another limit denied the request, so nothing was taken.
    Uncharged,
    /// The id is unlimited.
    Unlimited,
    /// The store gave no answer and the request passed.
    ErrorAllowed,
    /// The store gave no answer and the request was denied.
    ErrorDenied,
    /// Too many requests were waiting for the store, so this one was rejected.
    Rejected,
}

impl DecisionResult {
    /// Every result.
    pub const ALL: [Self; 8] = [
        Self::Allowed,
        Self::Denied,
        Self::ShadowDenied,
        Self::Uncharged,
        Self::Unlimited,
        Self::ErrorAllowed,
        Self::ErrorDenied,
        Self::Rejected,
    ];

    /// Its name in labels, in the log and in traces.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::ShadowDenied => "shadow_denied",
            Self::Uncharged => "uncharged",
            Self::Unlimited => "unlimited",
            Self::ErrorAllowed => "error_allowed",
            Self::ErrorDenied => "error_denied",
            Self::Rejected => "rejected",
        }
    }
}

/// Who asked for a decision: the label `listener` of `weir_decision_duration_seconds`. The two services of the gRPC listener are
/// two, because their callers wait differently long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecisionListener {
    /// The reverse proxy.
    Proxy,
    /// The check listener, whoever asks there.
    Check,
    /// Envoy's external authorization, by gRPC.
    ExtAuthz,
    /// The rate limit service.
    RateLimit,
    /// `HAProxy`'s agent.
    Spoe,
}

impl DecisionListener {
    /// Every listener that asks for decisions.
    pub const ALL: [Self; 5] = [Self::Proxy, Self::Check, Self::ExtAuthz, Self::RateLimit, Self::Spoe];

    /// Its name in labels, in the log and in traces.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Proxy => "proxy",
            Self::Check => "check",
            Self::ExtAuthz => "ext_authz",
            Self::RateLimit => "rate_limit",
            Self::Spoe => "spoe",
        }
    }
}

/// A listener that speaks HTTP: the label `listener` of `weir_http_requests_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpListener {
    /// The reverse proxy.
    Proxy,
    /// The check listener.
    Check,
    /// The gRPC listener.
    Grpc,
}

impl HttpListener {
    pub(super) const ALL: [Self; 3] = [Self::Proxy, Self::Check, Self::Grpc];

    /// Its name in labels, in the log and in traces.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Proxy => "proxy",
            Self::Check => "check",
            Self::Grpc => "grpc",
        }
    }
}

/// What a response made of what its request was charged: the label `result` of `weir_settlements_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettlementResult {
    /// More was taken, or something where nothing was before.
    Charged,
    /// Some or all of it was given back.
    Refunded,
    /// There was no difference.
    Unchanged,
    /// The response does not say a cost, and the reserve stays.
    Absent,
    /// What it says is no number, and the reserve stays.
    Unreadable,
    /// No response came, and the reserve stays.
    Unanswered,
    /// The store gave no answer.
    Failed,
}

impl SettlementResult {
    pub(super) const ALL: [Self; 7] = [
        Self::Charged,
        Self::Refunded,
        Self::Unchanged,
        Self::Absent,
        Self::Unreadable,
        Self::Unanswered,
        Self::Failed,
    ];

    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Charged => "charged",
            Self::Refunded => "refunded",
            Self::Unchanged => "unchanged",
            Self::Absent => "absent",
            Self::Unreadable => "unreadable",
            Self::Unanswered => "unanswered",
            Self::Failed => "failed",
        }
    }
}

/// What the rate limit service answered: the label `answer` of `weir_rate_limit_service_answers_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateLimitAnswer {
    /// The request passes.
    Ok,
    /// The request is denied.
    OverLimit,
    /// The request passes because no limit names its domain. Domains are what callers say, so they make no label.
    UnknownDomain,
    /// The call is one that cannot be answered.
    Invalid,
    /// The store gave no answer and a limit fails closed.
    Unavailable,
}

impl RateLimitAnswer {
    pub(super) const ALL: [Self; 5] =
        [Self::Ok, Self::OverLimit, Self::UnknownDomain, Self::Invalid, Self::Unavailable];

    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::OverLimit => "over_limit",
            Self::UnknownDomain => "unknown_domain",
            Self::Invalid => "invalid",
            Self::Unavailable => "unavailable",
        }
    }
}

/// What clients came up against at a listener: the label `limit` of `weir_http_listener_limits_total`.
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

/// Why an upstream gave no response: the label `reason` of `weir_upstream_errors_total`.
pub const UPSTREAM_ERRORS: [&str; 9] =
    ["resolve", "busy", "connect", "exhausted", "connect_timeout", "response_timeout", "closed", "malformed", "body"];

/// Whether an upstream's address is used: the label `state` of `weir_upstream_endpoints`.
pub const ENDPOINT_STATES: [&str; 3] = ["healthy", "ejected", "unhealthy"];

/// Why a connection was closed at once: the label `reason` of `weir_http_connections_rejected_total`.
pub const CONNECTION_REJECTIONS: [&str; 2] = ["total", "address"];

/// The label `kind` of `weir_store_errors_total`; see [`crate::store::StoreError::kind`].
pub(super) const STORE_ERRORS: [&str; 6] = ["down", "late", "broken", "busy", "error", "duplicate"];

/// Why a connection came to no HTTP: the label `reason` of `weir_http_connections_failed_total`.
pub const CONNECTION_FAILURES: [&str; 5] =
    ["first_byte_timeout", "proxy_header", "tls_handshake", "tls_handshake_timeout", "plain_http"];

/// The label `kind` of `weir_tls_handshakes_total`.
pub(super) const TLS_HANDSHAKES: [&str; 2] = ["full", "resumed"];

/// How a gateway asks the check listener: the label `convention` of `weir_check_requests_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Convention {
    /// Envoy's `ext_authz` over HTTP.
    Envoy,
    /// nginx' `auth_request`.
    Nginx,
    /// Traefik's `ForwardAuth` and Caddy's `forward_auth`.
    Forward,
    /// HAProxy, by its Lua script `haproxy-auth-request`.
    Haproxy,
    /// Applications.
    Json,
}

impl Convention {
    /// Every convention.
    pub const ALL: [Self; 5] = [Self::Envoy, Self::Nginx, Self::Forward, Self::Haproxy, Self::Json];

    /// Its name, which is also its path at the listener.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Envoy => "envoy",
            Self::Nginx => "nginx",
            Self::Forward => "forward",
            Self::Haproxy => "haproxy",
            Self::Json => "json",
        }
    }
}

/// What the check listener answered: the label `result` of `weir_check_requests_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckResult {
    /// The request may pass.
    Allowed,
    /// A limit denies it.
    Denied,
    /// The store gave no answer and a limit fails closed.
    Unavailable,
    /// The client's request, or an application's call, is none that can be judged.
    Malformed,
    /// The gateway does not say what it should.
    Misconfigured,
}

impl CheckResult {
    /// How many there are.
    pub const COUNT: usize = Self::ALL.len();

    pub(super) const ALL: [Self; 5] =
        [Self::Allowed, Self::Denied, Self::Unavailable, Self::Malformed, Self::Misconfigured];

    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::Unavailable => "unavailable",
            Self::Malformed => "malformed",
            Self::Misconfigured => "misconfigured",
        }
    }
}

/// What an operator does to a bucket: the label `op` of `weir_admin_writes_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminWrite {
    /// It is made full.
    Reset,
    /// Tokens are given back.
    Refund,
    /// What remains is set.
    Set,
    /// Its id is blocked.
    Block,
    /// The block is ended.
    Unblock,
    /// Of no bucket: the log's filter is changed.
    Log,
}

impl AdminWrite {
    pub(super) const ALL: [Self; 6] = [Self::Reset, Self::Refund, Self::Set, Self::Block, Self::Unblock, Self::Log];

    /// Its name in labels and in the log.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Reset => "reset",
            Self::Refund => "refund",
            Self::Set => "set",
            Self::Block => "block",
            Self::Unblock => "unblock",
            Self::Log => "log",
        }
    }
}

/// What came of it: the label `result` of `weir_admin_writes_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminWriteResult {
    /// It is done.
    Done,
    /// Whoever asked has no token, or a wrong one.
    Unauthorized,
    /// It was a mistake, or cannot be done with this bucket.
    Mistaken,
    /// The store gave no answer.
    Failed,
}

impl AdminWriteResult {
    pub(super) const ALL: [Self; 4] = [Self::Done, Self::Unauthorized, Self::Mistaken, Self::Failed];

    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Unauthorized => "unauthorized",
            Self::Mistaken => "mistaken",
            Self::Failed => "failed",
        }
    }
}

/// What became of a span: the label `result` of `weir_trace_spans_total`.
#[cfg(feature = "otel")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanResult {
    /// The collector has taken it.
    Exported,
    /// It was dropped because too many were waiting.
    QueueFull,
    /// The collector did not take it, or not in time.
    ExportFailed,
}

#[cfg(feature = "otel")]
impl SpanResult {
    pub(super) const ALL: [Self; 3] = [Self::Exported, Self::QueueFull, Self::ExportFailed];

    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Exported => "exported",
            Self::QueueFull => "queue_full",
            Self::ExportFailed => "export_failed",
        }
    }
}

/// The label `code` of `weir_http_requests_total`: classes of status codes, and our own refusals apart.
pub const REQUEST_CODES: [&str; 7] = ["1xx", "2xx", "3xx", "4xx", "5xx", "429", "503"];

/// The methods of the gRPC listener: the label `method` of `weir_grpc_calls_total`.
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

/// The codes that the gRPC listener answers with: the label `code` of `weir_grpc_calls_total`.
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

/// Why a connection of `HAProxy`'s was ended by us: the label `reason` of `weir_spoe_disconnects_total`.
pub const SPOE_DISCONNECTS: [&str; 10] = [
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
