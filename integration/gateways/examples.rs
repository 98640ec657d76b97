//! The gateways of `integration/examples`: what runs each, what its README says to change, and where it cannot do as the
//! proxy does.

use super::example::Change;
use super::table::{ADDRESS, JOINED_KEYS, Policy, Row, UNSEEN_PATHS};
use crate::support::programs::Program;

/// A way from a client to the application on which Weir is asked.
pub(super) struct Gateway {
    /// The directory of its example; empty for the proxy.
    pub(super) example: &'static str,
    pub(super) program: Option<Program>,
    /// The flag of Weir's listener that it asks at.
    pub(super) listener: &'static str,
    /// No test measures speed: a machine that runs other tests may leave a process waiting for longer than the example
    /// lets Weir take.
    pub(super) patience: &'static [Change],
    /// What makes requests fail while Weir does not answer. Without it they pass.
    pub(super) closed: &'static [Change],
    /// What makes this machine a trusted load balancer: of the example, and of Weir's flags.
    pub(super) behind: &'static [Change],
    pub(super) behind_flags: &'static [&'static str],
    /// What makes it speak gRPC on both sides.
    pub(super) grpc: &'static [Change],
    pub(super) exceptions: Exceptions,
}

/// What a client sees otherwise than from the proxy.
#[derive(Clone, Copy)]
pub(super) struct Exceptions {
    /// The body of a refusal, which is the gateway's own.
    pub(super) refusal: Option<&'static str>,
    /// The gateway matches and forwards one spelling of a path: those of the table, by what the application sees.
    pub(super) forwards: &'static [(&'static str, &'static str)],
    /// The status that a client of gRPC is refused with.
    pub(super) grpc_code: &'static str,
    /// A refused HEAD has no `Content-Type`, which is about a body that is not there.
    pub(super) bare_head: bool,
    /// The rate limit service says how each limit stands, even where an override with `deny: true` refuses at once.
    pub(super) policies_of_deny: &'static [Policy],
    /// Rows in place of those of the table with the same title.
    pub(super) rows: &'static [Row],
}

/// What gRPC calls a limit that is reached.
pub(super) const RESOURCE_EXHAUSTED: &str = "RESOURCE_EXHAUSTED";

const NONE: Exceptions = Exceptions {
    refusal: None,
    forwards: &[],
    grpc_code: RESOURCE_EXHAUSTED,
    bare_head: false,
    policies_of_deny: &[],
    rows: &[],
};

const TRUST_THIS_MACHINE: &[&str] = &["--trusted-proxies", "127.0.0.0/8"];

/// The proxy itself, which the others are held against.
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
    patience: &[("timeout: 0.2s", "timeout: 5s")],
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
    patience: &[("timeout: 0.2s", "timeout: 5s")],
    closed: EXT_AUTHZ_CLOSED,
    behind: TRUST_ONE_HOP,
    behind_flags: &[],
    grpc: &[],
    exceptions: Exceptions { bare_head: true, ..NONE },
};

pub(super) const ENVOY_RLS: Gateway = Gateway {
    example: "envoy-rls",
    program: Some(Program::Envoy),
    listener: "--grpc",
    patience: &[("timeout: 0.02s", "timeout: 5s")],
    closed: &[("failure_mode_deny: false", "failure_mode_deny: true")],
    behind: TRUST_ONE_HOP,
    behind_flags: &[],
    grpc: &[],
    exceptions: Exceptions {
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
        ("proxy_connect_timeout 100ms", "proxy_connect_timeout 5s"),
        ("proxy_read_timeout 200ms", "proxy_read_timeout 5s"),
    ],
    closed: &[("proxy_intercept_errors on;", ""), ("error_page 500 502 503 504 =204 /_unasked;", "")],
    behind: &[("# set_real_ip_from 10.0.0.0/8;", "set_real_ip_from 127.0.0.0/8;")],
    behind_flags: &[],
    grpc: &[
        ("listen 8000;", "listen 8000 http2;"),
        ("proxy_pass http://application;", "grpc_pass grpc://application;"),
    ],
    exceptions: Exceptions {
        refusal: Some(
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
        ("dial_timeout 100ms", "dial_timeout 5s"),
        ("response_header_timeout 200ms", "response_header_timeout 5s"),
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
        ("timeout connect 100ms", "timeout connect 5s"),
        ("timeout server 200ms", "timeout server 5s"),
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
        ("timeout hello 100ms", "timeout hello 5s"),
        ("timeout processing 200ms", "timeout processing 5s"),
        ("timeout connect 100ms", "timeout connect 5s"),
    ],
    closed: HAPROXY_CLOSED,
    behind: HAPROXY_BEHIND,
    behind_flags: &[],
    grpc: HAPROXY_GRPC,
    exceptions: NONE,
};

/// All that are started.
pub(super) const ALL: &[Gateway] =
    &[PROXY, ENVOY_EXT_AUTHZ_GRPC, ENVOY_EXT_AUTHZ_HTTP, ENVOY_RLS, NGINX, HAPROXY, HAPROXY_SPOE, CADDY];
