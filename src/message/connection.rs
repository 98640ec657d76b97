//! The limits and failures of connections to clients and upstreams, by the labels that metrics and logs have for them.

label! {
    /// A bound on what one client may use, whatever the rules say: the label `limit` of `weir_http_listener_limits_total`.
    pub enum HttpLimit {
        Target = "target",
        HeaderBytes = "header_bytes",
        HeaderCount = "header_count",
        BodyBytes = "body_bytes",
        /// Requests on one connection.
        Requests = "requests",
        FirstByteTimeout = "first_byte_timeout",
        HeaderTimeout = "header_timeout",
        IdleTimeout = "idle_timeout",
        BodyTimeout = "body_timeout",
        UploadRate = "upload_rate",
        DownloadRate = "download_rate",
        /// Responses that wait for clients which read slowly, in the whole process.
        SlowReaders = "slow_readers",
        TunnelTimeout = "tunnel_timeout",
        /// Concurrent HTTP/2 requests from one address.
        Streams = "streams",
        /// Requests cancelled soon after they were sent (rapid reset).
        Http2Resets = "http2_resets",
        /// Frames that are neither requests nor bodies.
        Http2ControlFrames = "http2_control_frames",
        Http2Errors = "http2_errors",
        Http2PingTimeout = "http2_ping_timeout",
    }
}

label! {
    /// A reason for a connection's end before its first request that operators may want to know: the label `reason` of
    /// `weir_http_connections_failed_total`.
    pub enum ConnectionFailure {
        FirstByteTimeout = "first_byte_timeout",
        ProxyHeader = "proxy_header",
        TlsHandshake = "tls_handshake",
        TlsHandshakeTimeout = "tls_handshake_timeout",
        PlainHttp = "plain_http",
        PlainPort = "tls_on_plain_port",
    }
}

label! {
    /// A reason why an upstream failed a request: the label `reason` of `weir_upstream_errors_total`.
    pub enum UpstreamFailure {
        Resolve = "resolve",
        /// Its connections are all in use.
        Busy = "busy",
        Connect = "connect",
        /// The system has no more connections.
        Exhausted = "exhausted",
        ConnectTimeout = "connect_timeout",
        ResponseTimeout = "response_timeout",
        Closed = "closed",
        Malformed = "malformed",
        /// It cut its response off.
        Body = "body",
        BodyTimeout = "body_timeout",
    }
}

label! {
    /// Why a request was not read ahead as a whole: the label `reason` of `weir_requests_unbuffered_total`.
    pub enum Unbuffered {
        TooLong = "too_long",
        /// Requests that were read ahead have used the memory up.
        Memory = "memory",
    }
}

label! {
    /// The state of an upstream's address: the label `state` of `weir_upstream_endpoints`.
    pub enum EndpointState {
        Healthy = "healthy",
        /// Requests to it failed, so it is not used for a while.
        Ejected = "ejected",
        Unhealthy = "unhealthy",
    }
}

label! {
    /// The cause of a response's early end: the member `cut` of the access log.
    pub enum Cut {
        /// It closed, or sent what is no body.
        Upstream = "upstream",
        /// It left.
        Client = "client",
        /// Nothing moved in time.
        Timeout = "timeout",
    }
}
