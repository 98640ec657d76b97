//! The settings of envoyproxy/ratelimit, their defaults, and what each becomes here.

/// The effect of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// These flags of `weir serve`.
    Flags(&'static str),
    /// Nothing, as Weir always does what it asks for, or need not.
    Always(&'static str),
    /// Nothing, and a line in the log says why.
    Ignored(&'static str),
    /// The start fails, and the error says why.
    Refused(&'static str),
}

/// Settings with one effect, each with its default.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) effect: Effect,
    pub(super) settings: &'static [(&'static str, &'static str)],
}

const fn flags(flags: &'static str, settings: &'static [(&'static str, &'static str)]) -> Group {
    Group { effect: Effect::Flags(flags), settings }
}

const fn always(what: &'static str, settings: &'static [(&'static str, &'static str)]) -> Group {
    Group { effect: Effect::Always(what), settings }
}

const fn ignored(why: &'static str, settings: &'static [(&'static str, &'static str)]) -> Group {
    Group { effect: Effect::Ignored(why), settings }
}

const fn refused(why: &'static str, settings: &'static [(&'static str, &'static str)]) -> Group {
    Group { effect: Effect::Refused(why), settings }
}

pub(super) const GROUPS: &[Group] = &[
    flags("--envoy-ratelimit-http", &[("HOST", "0.0.0.0"), ("PORT", "8080")]),
    flags("--envoy-ratelimit-debug", &[("DEBUG_HOST", "0.0.0.0"), ("DEBUG_PORT", "6070")]),
    flags("--grpc", &[("GRPC_HOST", "0.0.0.0"), ("GRPC_PORT", "8081"), ("GRPC_UDS", "")]),
    ignored("IP version and protocol follow from the address", &[("PROTO", "tcp")]),
    flags("--grpc-max-connection-age", &[("GRPC_MAX_CONNECTION_AGE", "24h")]),
    flags("--grpc-max-connection-age-grace", &[("GRPC_MAX_CONNECTION_AGE_GRACE", "1h")]),
    flags("--grpc-streams, whose default stays Weir's", &[("GRPC_MAX_CONCURRENT_STREAMS", "0")]),
    ignored(
        "`--store-timeout` and the caller's own timeout end a call, and `--store-queue` bounds those that wait",
        &[("MAX_CONCURRENT_REQUESTS", "0"), ("REQUEST_TIMEOUT", "0")],
    ),
    flags(
        "--grpc-tls-cert, --grpc-tls-key",
        &[("GRPC_SERVER_USE_TLS", "false"), ("GRPC_SERVER_TLS_CERT", ""), ("GRPC_SERVER_TLS_KEY", "")],
    ),
    flags("--grpc-tls-client-ca", &[("GRPC_CLIENT_TLS_CACERT", "")]),
    ignored(
        "envoyproxy/ratelimit does not read it either; GRPC_CLIENT_TLS_CACERT makes clients show a certificate",
        &[("GRPC_SERVER_TLS_CA_CERT", "")],
    ),
    refused(
        "Weir takes any client certificate of GRPC_CLIENT_TLS_CACERT; use an authority that issues only Envoy's",
        &[("GRPC_CLIENT_TLS_SAN", "")],
    ),
    flags("--log", &[("LOG_LEVEL", "warn")]),
    flags("--log-format", &[("LOG_FORMAT", "text")]),
    flags(
        "--envoy-ratelimit-config, or --xds-server with GRPC_XDS_SOTW",
        &[
            ("CONFIG_TYPE", "FILE"),
            ("RUNTIME_ROOT", "/srv/runtime_data/current"),
            ("RUNTIME_SUBDIRECTORY", ""),
            ("RUNTIME_APPDIRECTORY", "config"),
        ],
    ),
    always("files are watched, symbolic links too", &[("RUNTIME_WATCH_ROOT", "true")]),
    always("files whose names begin with a dot are never read", &[("RUNTIME_IGNOREDOTFILES", "false")]),
    always("several files may configure one domain", &[("MERGE_DOMAIN_CONFIG", "false")]),
    flags(
        "--xds-optional",
        &[("FORCE_START_WITHOUT_INITIAL_CONFIG", "false"), ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "false")],
    ),
    flags(
        "--xds-server",
        &[("CONFIG_GRPC_XDS_SERVER_URL", "localhost:18000"), ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "false")],
    ),
    flags("--xds-node-id", &[("CONFIG_GRPC_XDS_NODE_ID", "default")]),
    flags("--xds-node-metadata", &[("CONFIG_GRPC_XDS_NODE_METADATA", "")]),
    flags("--xds-header", &[("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "")]),
    flags("--xds-cert", &[("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "")]),
    flags("--xds-key", &[("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "")]),
    flags("--xds-ca", &[("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "")]),
    flags("--xds-server-name", &[("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "")]),
    flags(
        "--xds-backoff, whose default stays Weir's, so that limits come sooner",
        &[("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "10s")],
    ),
    flags("--xds-max-backoff, whose default stays Weir's", &[("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "60s")]),
    flags("--xds-max-message", &[("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "")]),
    ignored(
        "retries follow XDS_CLIENT_BACKOFF_INITIAL_INTERVAL and XDS_CLIENT_BACKOFF_MAX_INTERVAL alone",
        &[
            ("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "3s"),
            ("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "0.5"),
            ("XDS_CLIENT_BACKOFF_JITTER", "true"),
        ],
    ),
    always("there is no statsd", &[("USE_STATSD", "true")]),
    ignored(
        "Weir has no statsd; Prometheus reads its metrics, with labels in place of tags",
        &[
            ("STATSD_HOST", "localhost"),
            ("STATSD_PORT", "8125"),
            ("USE_DOG_STATSD", "false"),
            ("USE_DOG_STATSD_MOGRIFIERS", ""),
            ("EXTRA_TAGS", ""),
            ("STATS_FLUSH_INTERVAL", "10s"),
            ("DISABLE_STATS", "false"),
            ("PROMETHEUS_MAPPER_YAML", ""),
        ],
    ),
    flags("--metrics", &[("USE_PROMETHEUS", "false"), ("PROMETHEUS_ADDR", ":9090")]),
    flags("--metrics-path", &[("PROMETHEUS_PATH", "/metrics")]),
    ignored("times are in seconds", &[("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", "false")]),
    ignored("keys end with their windows", &[("EXPIRATION_JITTER_MAX_SECONDS", "300")]),
    always("what Redis has denied is remembered for a moment", &[("LOCAL_CACHE_SIZE_IN_BYTES", "0")]),
    flags("--near-limit", &[("NEAR_LIMIT_RATIO", "0.8")]),
    flags("--store-prefix", &[("CACHE_KEY_PREFIX", "")]),
    refused("buckets live in Redis; remove it and set REDIS_URL", &[("BACKEND_TYPE", "redis")]),
    always(
        "if one descriptor is denied, no bucket of the request changes",
        &[("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "false")],
    ),
    flags(
        "--headers",
        &[
            ("LIMIT_RESPONSE_HEADERS_ENABLED", "false"),
            ("LIMIT_LIMIT_HEADER", "RateLimit-Limit"),
            ("LIMIT_REMAINING_HEADER", "RateLimit-Remaining"),
            ("LIMIT_RESET_HEADER", "RateLimit-Reset"),
        ],
    ),
    ignored(
        "only the client gets headers, not the upstream",
        &[
            ("LIMIT_REQUEST_HEADERS_ENABLED", "false"),
            ("LIMIT_REQUEST_LIMIT_HEADER", "RateLimit-Limit"),
            ("LIMIT_REQUEST_REMAINING_HEADER", "RateLimit-Remaining"),
            ("LIMIT_REQUEST_RESET_HEADER", "RateLimit-Reset"),
        ],
    ),
    flags(
        "--store",
        &[
            ("REDIS_SOCKET_TYPE", "unix"),
            ("REDIS_TYPE", "SINGLE"),
            ("REDIS_URL", "/var/run/nutcracker/ratelimit.sock"),
            ("REDIS_AUTH", ""),
            ("REDIS_SENTINEL_AUTH", ""),
            ("REDIS_TLS", "false"),
        ],
    ),
    flags("--store-cert-file", &[("REDIS_TLS_CLIENT_CERT", "")]),
    flags("--store-key-file", &[("REDIS_TLS_CLIENT_KEY", "")]),
    flags("--store-ca-file", &[("REDIS_TLS_CACERT", "")]),
    refused(
        "Weir always verifies the name of a Redis; give it a certificate for the host in REDIS_URL",
        &[("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "false")],
    ),
    flags("--store-timeout", &[("REDIS_TIMEOUT", "10s")]),
    ignored(
        "each worker has one connection, and sends what has gathered in one batch",
        &[
            ("REDIS_POOL_SIZE", "10"),
            ("REDIS_POOL_ON_EMPTY_BEHAVIOR", "WAIT"),
            ("REDIS_PIPELINE_WINDOW", "0"),
            ("REDIS_PIPELINE_LIMIT", "0"),
            ("REDIS_USE_EXPLICIT_PIPELINE", "false"),
            ("REDIS_CLUSTER_PIPELINE_PARALLELISM", "1"),
        ],
    ),
    ignored(
        "a Redis that is down makes no process unready, since all would be; `failure_mode_deny` decides",
        &[("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "false")],
    ),
    refused("Weir counts all limits in one Redis, that of REDIS_URL", &[("REDIS_PERSECOND", "false")]),
    ignored(
        "there is no second Redis",
        &[
            ("REDIS_PERSECOND_SOCKET_TYPE", "unix"),
            ("REDIS_PERSECOND_TYPE", "SINGLE"),
            ("REDIS_PERSECOND_URL", "/var/run/nutcracker/ratelimitpersecond.sock"),
            ("REDIS_PERSECOND_POOL_SIZE", "10"),
            ("REDIS_PERSECOND_AUTH", ""),
            ("REDIS_PERSECOND_TLS", "false"),
            ("REDIS_PERSECOND_SENTINEL_AUTH", ""),
            ("REDIS_PERSECOND_PIPELINE_WINDOW", "0"),
            ("REDIS_PERSECOND_PIPELINE_LIMIT", "0"),
            ("REDIS_PERSECOND_USE_EXPLICIT_PIPELINE", "false"),
            ("REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM", "1"),
            ("REDIS_PERSECOND_TIMEOUT", "10s"),
            ("REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR", "WAIT"),
        ],
    ),
    ignored(
        "there is no memcached",
        &[
            ("MEMCACHE_HOST_PORT", ""),
            ("MEMCACHE_MAX_IDLE_CONNS", "2"),
            ("MEMCACHE_SRV", ""),
            ("MEMCACHE_SRV_REFRESH", "0"),
            ("MEMCACHE_TLS", "false"),
            ("MEMCACHE_TLS_CLIENT_CERT", ""),
            ("MEMCACHE_TLS_CLIENT_KEY", ""),
            ("MEMCACHE_TLS_CACERT", ""),
            ("MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION", "false"),
        ],
    ),
    flags("--shadow", &[("SHADOW_MODE", "false")]),
    refused(
        "Weir has it only per descriptor; write `quota_mode: true` beside each `rate_limit`",
        &[("QUOTA_MODE", "false")],
    ),
    ignored("Envoy gets the `metadata` of the limits alone", &[("RESPONSE_DYNAMIC_METADATA", "false")]),
    flags("--otlp-endpoint", &[("TRACING_ENABLED", "false")]),
    ignored("spans are sent over HTTP", &[("TRACING_EXPORTER_PROTOCOL", "http")]),
    ignored(
        "OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES and OTEL_TRACES_SAMPLER say it",
        &[
            ("TRACING_SERVICE_NAME", "RateLimit"),
            ("TRACING_SERVICE_NAMESPACE", ""),
            ("TRACING_SERVICE_INSTANCE_ID", ""),
            ("TRACING_SAMPLING_RATE", "1"),
        ],
    ),
];

/// Returns the default of a setting.
pub(super) fn default_of(name: &str) -> &'static str {
    let mut settings = GROUPS.iter().flat_map(|group| group.settings);
    settings.find(|(known, _)| *known == name).map_or("", |(_, default)| default)
}
