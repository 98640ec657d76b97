//! The values of labels: closed sets, decided here and not by what comes in.

/// How a limit's decision came out: the label `result` of `weir_decisions_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecisionResult {
    /// The cost was taken.
    Allowed,
    /// The limit refused the request.
    Denied,
    /// A limit in shadow would have refused it.
    ShadowDenied,
    /// Another limit refused the request, so nothing was taken.
    Uncharged,
    /// The id is unlimited.
    Unlimited,
    /// The store gave no answer and the request passed.
    ErrorAllowed,
    /// The store gave no answer and the request was refused.
    ErrorDenied,
}

impl DecisionResult {
    pub(super) const ALL: [Self; 7] = [
        Self::Allowed,
        Self::Denied,
        Self::ShadowDenied,
        Self::Uncharged,
        Self::Unlimited,
        Self::ErrorAllowed,
        Self::ErrorDenied,
    ];

    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::ShadowDenied => "shadow_denied",
            Self::Uncharged => "uncharged",
            Self::Unlimited => "unlimited",
            Self::ErrorAllowed => "error_allowed",
            Self::ErrorDenied => "error_denied",
        }
    }
}

/// What a client came up against at the door: the label `limit` of `weir_http_door_limits_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DoorLimit {
    /// The target of a request is too long.
    Target,
    /// The fields of a request are too large.
    HeaderBytes,
    /// A request has too many fields.
    HeaderCount,
    /// A request's body is too long.
    BodyBytes,
    /// A connection had all the requests that it may have.
    Requests,
    /// The first byte did not come in time.
    FirstByteTimeout,
    /// The end of the fields did not come in time.
    HeaderTimeout,
    /// No other request came in time.
    IdleTimeout,
    /// Nothing of a body moved in time.
    BodyTimeout,
    /// A client sends its body too slowly.
    UploadRate,
    /// A client reads its response too slowly.
    DownloadRate,
    /// Nothing moved in time after an upgrade.
    TunnelTimeout,
    /// A client took too many requests back at once.
    Http2Resets,
    /// A client sent too many frames that are neither requests nor bodies.
    Http2ControlFrames,
    /// A client broke the rules of HTTP/2 too often, or in a way that costs too much.
    Http2Errors,
    /// A client did not answer a PING.
    Http2PingTimeout,
}

impl DoorLimit {
    pub(super) const ALL: [Self; 16] = [
        Self::Target,
        Self::HeaderBytes,
        Self::HeaderCount,
        Self::BodyBytes,
        Self::Requests,
        Self::FirstByteTimeout,
        Self::HeaderTimeout,
        Self::IdleTimeout,
        Self::BodyTimeout,
        Self::UploadRate,
        Self::DownloadRate,
        Self::TunnelTimeout,
        Self::Http2Resets,
        Self::Http2ControlFrames,
        Self::Http2Errors,
        Self::Http2PingTimeout,
    ];

    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Target => "target",
            Self::HeaderBytes => "header_bytes",
            Self::HeaderCount => "header_count",
            Self::BodyBytes => "body_bytes",
            Self::Requests => "requests",
            Self::FirstByteTimeout => "first_byte_timeout",
            Self::HeaderTimeout => "header_timeout",
            Self::IdleTimeout => "idle_timeout",
            Self::BodyTimeout => "body_timeout",
            Self::UploadRate => "upload_rate",
            Self::DownloadRate => "download_rate",
            Self::TunnelTimeout => "tunnel_timeout",
            Self::Http2Resets => "http2_resets",
            Self::Http2ControlFrames => "http2_control_frames",
            Self::Http2Errors => "http2_errors",
            Self::Http2PingTimeout => "http2_ping_timeout",
        }
    }
}

/// Why an upstream gave no response: the label `reason` of `weir_upstream_errors_total`.
pub const UPSTREAM_ERRORS: [&str; 8] =
    ["resolve", "busy", "connect", "connect_timeout", "response_timeout", "closed", "malformed", "body"];

/// Whether an upstream's address is used: the label `state` of `weir_upstream_endpoints`.
pub const ENDPOINT_STATES: [&str; 3] = ["healthy", "ejected", "unhealthy"];

/// Why a connection was closed at once: the label `reason` of `weir_http_connections_refused_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionRefusal {
    /// There were too many in all.
    Total,
    /// There were too many from one address.
    Address,
}

impl ConnectionRefusal {
    pub(super) const LABELS: [&str; 2] = ["total", "address"];
}

/// The label `kind` of `weir_store_errors_total`; see [`crate::store::StoreError::kind`].
pub(super) const STORE_ERRORS: [&str; 4] = ["down", "late", "refused", "duplicate"];

/// Why a connection came to no HTTP: the label `reason` of `weir_http_connections_failed_total`.
pub const CONNECTION_FAILURES: [&str; 5] =
    ["first_byte_timeout", "proxy_header", "tls_handshake", "tls_handshake_timeout", "plain_http"];

/// The label `kind` of `weir_tls_handshakes_total`.
pub(super) const TLS_HANDSHAKES: [&str; 2] = ["full", "resumed"];

/// The label `code` of `weir_requests_total`: classes of status codes, and our own refusals apart.
pub const REQUEST_CODES: [&str; 7] = ["1xx", "2xx", "3xx", "4xx", "5xx", "429", "503"];
