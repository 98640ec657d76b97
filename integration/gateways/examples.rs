//! The gateways of `integration/examples`: their programs, the changes that their READMEs name, and where they differ
//! from the proxy.

use super::example::Change;
use super::table::{ADDRESS, JOINED_KEYS, Policy, Row, UNSEEN_PATHS};
use crate::support::programs::Program;

/// A gateway in front of the application.
pub(super) struct Gateway {
    /// The example's directory, empty for the proxy.
    pub(super) example: &'static str,
    pub(super) program: Option<Program>,
    /// The flag of the listener that it asks.
    pub(super) listener: &'static str,
    /// Longer timeouts: a busy machine may keep a process waiting for longer than the example allows.
    pub(super) patience: &'static [Change],
    /// The change that fails requests while Weir does not answer. By default they pass.
    pub(super) closed: &'static [Change],
    /// The changes of the example and of Weir's flags that make this machine a trusted load balancer.
    pub(super) behind: &'static [Change],
    pub(super) behind_flags: &'static [&'static str],
    /// The change for gRPC on both sides.
    pub(super) grpc: &'static [Change],
    pub(super) exceptions: Exceptions,
}

/// Differences from the proxy that clients see.
#[derive(Clone, Copy)]
pub(super) struct Exceptions {
    /// The gateway's own body of a denial.
    pub(super) denial: Option<&'static str>,
    /// The status where a limit denies with 503.
    pub(super) denied_with: u16,
    /// The gateway matches and forwards one spelling of a path: pairs of the table's and the application's.
    pub(super) forwards: &'static [(&'static str, &'static str)],
    /// The status of a denied gRPC call.
    pub(super) grpc_code: &'static str,
    /// A denied HEAD lacks the `Content-Type`.
    pub(super) bare_head: bool,
    /// The rate limit service describes each limit even where an override with `deny: true` decides.
    pub(super) policies_of_deny: &'static [Policy],
    /// Rows in place of those with the same title.
    pub(super) rows: &'static [Row],
}

/// gRPC's status for a reached limit.
pub(super) const RESOURCE_EXHAUSTED: &str = "RESOURCE_EXHAUSTED";

const NONE: Exceptions = Exceptions {
    denial: None,
    denied_with: 503,
    forwards: &[],
    grpc_code: RESOURCE_EXHAUSTED,
    bare_head: false,
    policies_of_deny: &[],
    rows: &[],
};

const TRUST_THIS_MACHINE: &[&str] = &["--trusted-proxies", "127.0.0.0/8"];

/// The proxy, which the others are compared with.
pub(super) const PROXY: Gateway = Gateway {
    example: "",
    program: None,
    listener: "--proxy",
    patience: &[],
    closed: &[],
    behind: &[],
    behind_flags: TRUST_THIS_MACHINE,
    grpc: &[],
    exceptions: NONE,
};

const TRUST_ONE_HOP: &[Change] = &[("xff_num_trusted_hops: 0", "xff_num_trusted_hops: 1")];
const EXT_AUTHZ_CLOSED: &[Change] = &[("failure_mode_allow: true", "failure_mode_allow: false")];

pub(super) const ENVOY_EXT_AUTHZ_GRPC: Gateway = Gateway {
    example: "envoy-ext-authz-grpc",
    program: Some(Program::Envoy),
    listener: "--grpc",
    patience: &[
        ("timeout: 0.2s", "timeout: 60s"),
        ("connect_timeout: 0.1s", "connect_timeout: 60s"),
        ("connect_timeout: 1s", "connect_timeout: 60s"),
    ],
    closed: EXT_AUTHZ_CLOSED,
    behind: TRUST_ONE_HOP,
    behind_flags: &[],
    grpc: &[],
    exceptions: NONE,
};

pub(super) const ENVOY_EXT_AUTHZ_HTTP: Gateway = Gateway {
    example: "envoy-ext-authz-http",
    program: Some(Program::Envoy),
    listener: "--check",
    patience: &[
        ("timeout: 0.2s", "timeout: 60s"),
        ("connect_timeout: 0.1s", "connect_timeout: 60s"),
        ("connect_timeout: 1s", "connect_timeout: 60s"),
    ],
    closed: EXT_AUTHZ_CLOSED,
    behind: TRUST_ONE_HOP,
    behind_flags: &[],
    grpc: &[],
    exceptions: Exceptions { denied_with: 429, bare_head: true, ..NONE },
};

pub(super) const ENVOY_RLS: Gateway = Gateway {
    example: "envoy-rls",
    program: Some(Program::Envoy),
    listener: "--grpc",
    patience: &[
        ("timeout: 0.02s", "timeout: 60s"),
        ("connect_timeout: 0.1s", "connect_timeout: 60s"),
        ("connect_timeout: 1s", "connect_timeout: 60s"),
    ],
    closed: &[("failure_mode_deny: false", "failure_mode_deny: true")],
    behind: TRUST_ONE_HOP,
    behind_flags: &[],
    grpc: &[],
    exceptions: Exceptions {
        denied_with: 429,
        forwards: &[
            ("//login/./?next=%2Fhome", "/login/?next=%2Fhome"),
            ("/a/%2e%2e/%6Cogin", "/login"),
            ("/login%2f", "/login%2f"),
        ],
        policies_of_deny: &[ADDRESS],
        rows: &[UNSEEN_PATHS, JOINED_KEYS],
        ..NONE
    },
};

pub(super) const NGINX: Gateway = Gateway {
    example: "nginx",
    program: Some(Program::Nginx),
    listener: "--check",
    patience: &[
        ("proxy_connect_timeout 100ms", "proxy_connect_timeout 60s"),
        ("proxy_read_timeout 200ms", "proxy_read_timeout 60s"),
    ],
    closed: &[("proxy_intercept_errors on;", ""), ("error_page 500 502 503 504 =204 /_weir_unasked;", "")],
    behind: &[("# set_real_ip_from 10.0.0.0/8;", "set_real_ip_from 127.0.0.0/8;")],
    behind_flags: &[],
    grpc: &[
        ("listen 8000;", "listen 8000 http2;"),
        ("proxy_pass http://application;", "grpc_pass grpc://application;"),
    ],
    exceptions: Exceptions {
        denial: Some(
            r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Request cannot be satisfied as assigned quota has been exceeded","status":429}"#,
        ),
        ..NONE
    },
};

pub(super) const CADDY: Gateway = Gateway {
    example: "caddy",
    program: Some(Program::Caddy),
    listener: "--check",
    patience: &[
        ("dial_timeout 100ms", "dial_timeout 60s"),
        ("response_header_timeout 200ms", "response_header_timeout 60s"),
    ],
    closed: &[("import application\n\t\t}\n\t\trespond", "respond 503\n\t\t}\n\t\trespond")],
    behind: &[("# trusted_proxies 10.0.0.0/8", "trusted_proxies 127.0.0.0/8")],
    behind_flags: TRUST_THIS_MACHINE,
    grpc: &[
        ("protocols h1 h2\n", "protocols h1 h2c\n"),
        ("\treverse_proxy 127.0.0.1:3000", "\treverse_proxy h2c://127.0.0.1:3000"),
    ],
    exceptions: Exceptions { grpc_code: "UNAVAILABLE", ..NONE },
};

const HAPROXY_CLOSED: &[Change] = &[("# http-request deny deny_status 503", "http-request deny deny_status 503")];
const HAPROXY_BEHIND: &[Change] = &[(
    "# http-request set-src hdr(x-forwarded-for) if { src 10.0.0.0/8 }",
    "http-request set-src hdr(x-forwarded-for) if { src 127.0.0.0/8 }",
)];
const HAPROXY_GRPC: &[Change] = &[
    ("bind :8000", "bind :8000 proto h2"),
    ("server application 127.0.0.1:3000", "server application 127.0.0.1:3000 proto h2"),
];

pub(super) const HAPROXY: Gateway = Gateway {
    example: "haproxy",
    program: Some(Program::Haproxy),
    listener: "--check",
    patience: &[
        ("local PATIENCE = 200", "local PATIENCE = 5000"),
        ("timeout connect 100ms", "timeout connect 60s"),
        ("timeout server 200ms", "timeout server 60s"),
    ],
    closed: HAPROXY_CLOSED,
    behind: HAPROXY_BEHIND,
    behind_flags: &[],
    grpc: HAPROXY_GRPC,
    exceptions: NONE,
};

pub(super) const HAPROXY_SPOE: Gateway = Gateway {
    example: "haproxy-spoe",
    program: Some(Program::Haproxy),
    listener: "--spoe",
    patience: &[
        ("timeout hello 100ms", "timeout hello 60s"),
        // A request that is on its way when the agent goes waits so long.
        ("timeout processing 200ms", "timeout processing 20s"),
        ("timeout connect 100ms", "timeout connect 60s"),
    ],
    closed: HAPROXY_CLOSED,
    behind: HAPROXY_BEHIND,
    behind_flags: &[],
    grpc: HAPROXY_GRPC,
    exceptions: NONE,
};

/// The gateways that the tests start.
pub(super) const ALL: &[Gateway] =
    &[PROXY, ENVOY_EXT_AUTHZ_GRPC, ENVOY_EXT_AUTHZ_HTTP, ENVOY_RLS, NGINX, HAPROXY, HAPROXY_SPOE, CADDY];
