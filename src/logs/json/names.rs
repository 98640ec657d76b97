//! The names of members in JSON logs, per program.

use super::programs::{PROGRAMS, Program};
use crate::logs::field::Field;
use crate::logs::template::variable;

/// The program that wrote a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::logs) enum Dialect {
    Weir,
    Recording,
    Caddy,
    Traefik,
    Envoy,
    /// One whose members are data.
    Program(&'static Program),
    /// Any other names, as people choose them for nginx.
    Nginx,
}

impl Dialect {
    pub(in crate::logs) fn all() -> impl Iterator<Item = Self> {
        let named = [Self::Weir, Self::Recording, Self::Caddy, Self::Traefik, Self::Envoy];
        named.into_iter().chain(PROGRAMS.iter().map(Self::Program)).chain([Self::Nginx])
    }

    /// The name that `--log-format` takes.
    pub(in crate::logs) const fn name(self) -> &'static str {
        match self {
            Self::Weir => "weir",
            Self::Recording => "recording",
            Self::Caddy => "caddy",
            Self::Traefik => "traefik-json",
            Self::Envoy => "envoy-json",
            Self::Program(program) => program.name,
            Self::Nginx => "json",
        }
    }

    /// The dialect of a line with such members, of which `has` tells. `is_nested` tells which are objects or arrays.
    pub(in crate::logs) fn of(has: impl Fn(&[u8]) -> bool, is_nested: impl Fn(&[u8]) -> bool) -> Self {
        let has_all = |names: &[&[u8]]| names.iter().all(|name| has(name));
        if has(b"weir_recording") {
            Self::Recording
        } else if has_all(&[b"time", b"duration_ms", b"bytes", b"protocol"]) {
            Self::Weir
        } else if has(b"ts") && is_nested(b"request") {
            Self::Caddy
        } else if has(b"StartUTC") || has(b"RequestMethod") || has(b"ClientHost") {
            Self::Traefik
        } else if has(b"start_time") && (has(b"response_code") || has(b"authority") || has(b":authority")) {
            Self::Envoy
        } else {
            let is_known = |program: &&Program| program.marks.iter().all(|name| has(name.as_bytes()));
            PROGRAMS.iter().find(is_known).map_or(Self::Nginx, Self::Program)
        }
    }

    /// The members of which a line that tells a request has one.
    pub(super) fn required(self) -> &'static [&'static [u8]] {
        match self {
            Self::Caddy => &[b"request"],
            // The first and the last line have neither.
            Self::Recording => &[b"target", b"domain"],
            _ => &[],
        }
    }

    /// The meaning of a member.
    pub(super) fn field(self, name: &[u8]) -> Field {
        let Ok(name) = std::str::from_utf8(name) else { return Field::Ignored };
        match self {
            Self::Weir => weir(name),
            Self::Recording => recording(name),
            Self::Caddy => caddy(name),
            Self::Traefik => traefik(name),
            Self::Envoy => envoy(name),
            Self::Program(program) => program.field(name),
            Self::Nginx => nginx(name),
        }
    }

    /// The meaning of a member of the object in which Caddy writes the request.
    pub(super) fn field_of_request(name: &[u8]) -> &'static Field {
        match name {
            b"client_ip" => &Field::Client,
            b"remote_ip" => &Field::Peer,
            b"method" => &Field::Method,
            b"host" => &Field::Host,
            b"uri" => &Field::Target,
            _ => &Field::Ignored,
        }
    }

    /// The members that a line has only if the request has them.
    pub(super) fn optional(self) -> &'static [&'static str] {
        match self {
            Self::Weir => &[
                "client",
                "user",
                "method",
                "target",
                "host",
                "verdict",
                "user_agent",
                "referer",
                "request_id",
                "headers",
            ],
            Self::Recording => &[
                "at_us",
                "client",
                "tls_subject",
                "method",
                "host",
                "target",
                "headers",
                "domain",
                "descriptors",
                "hits",
                "only_checks",
                "carries_limits",
            ],
            _ => &[],
        }
    }

    /// Returns true if a member holds parts of a request as an object or an array.
    pub(super) fn is_structure(self, name: &[u8]) -> bool {
        match self {
            Self::Caddy => name == b"request",
            Self::Weir => name == b"headers",
            Self::Recording => {
                matches!(name, b"headers" | b"domain" | b"descriptors" | b"hits" | b"only_checks" | b"carries_limits")
            }
            _ => false,
        }
    }
}

/// `time` is when the request's headers had arrived.
fn weir(name: &str) -> Field {
    match name {
        "time" => Field::Arrival,
        "duration_ms" => Field::Took(1_000),
        "delay_ms" => Field::Waited(1_000),
        "client" => Field::Client,
        "user" => Field::TlsSubject,
        "method" => Field::Method,
        "target" => Field::Target,
        "host" => Field::Host,
        "status" => Field::Status,
        "bytes" => Field::Bytes,
        "verdict" => Field::Verdict,
        "user_agent" => Field::Header("user-agent".into()),
        "referer" => Field::Header("referer".into()),
        "request_id" => Field::Header("x-request-id".into()),
        _ => Field::Ignored,
    }
}

/// The lines of `weir record`. `at_us` is the instant at which the limits decided.
fn recording(name: &str) -> Field {
    match name {
        "at_us" => Field::Arrival,
        "client" => Field::Client,
        "tls_subject" => Field::TlsSubject,
        "method" => Field::Method,
        "host" => Field::Host,
        "target" => Field::Target,
        _ => Field::Ignored,
    }
}

/// `ts` is when the line was written. The request is an object of its own.
fn caddy(name: &str) -> Field {
    match name {
        "ts" => Field::End,
        "size" => Field::Bytes,
        "duration" => Field::Took(1_000_000),
        "status" => Field::Status,
        _ => Field::Ignored,
    }
}

/// Durations are in nanoseconds. `time` is when the line was written.
fn traefik(name: &str) -> Field {
    match name {
        "StartUTC" => Field::Arrival,
        "StartLocal" | "time" => Field::Ignored,
        "Duration" => Field::TookNanoseconds,
        "ClientHost" => Field::Client,
        "ClientAddr" => Field::Peer,
        "RequestAddr" => Field::Host,
        "RequestMethod" => Field::Method,
        "RequestPath" => Field::Target,
        "DownstreamStatus" => Field::Status,
        "DownstreamContentSize" => Field::Bytes,
        name => header(name, &["request_"]),
    }
}

/// The names of Istio's default and of Envoy's documentation. `start_time` is when the request began.
fn envoy(name: &str) -> Field {
    match name {
        "start_time" => Field::Arrival,
        "duration" => Field::Took(1_000),
        "method" | ":method" => Field::Method,
        "path" | ":path" | "x-envoy-original-path" => Field::Target,
        "authority" | ":authority" | "host" => Field::Host,
        "response_code" | "status" => Field::Status,
        "bytes_sent" => Field::Bytes,
        "downstream_remote_address" | "downstream_remote_address_without_port" | "client" => Field::Client,
        "downstream_direct_remote_address" | "downstream_direct_remote_address_without_port" => Field::Peer,
        "downstream_peer_subject" | "peer_subject" => Field::TlsSubject,
        "user_agent" | "user-agent" => Field::Header("user-agent".into()),
        "request_id" | "x-request-id" => Field::Header("x-request-id".into()),
        "x_forwarded_for" | "x-forwarded-for" | "forwarded_for" => Field::Header("x-forwarded-for".into()),
        "referer" => Field::Header("referer".into()),
        name => header(name, &["req_", "request_header_", "header_"]),
    }
}

/// Reads `NAME=VARIABLE,...`. The error says what is wrong.
pub(in crate::logs) fn names(pairs: &str) -> Result<Vec<(String, Field)>, String> {
    let pair = |pair: &str| {
        let (name, variable) =
            pair.split_once('=').ok_or_else(|| format!("expected `NAME=VARIABLE`, found `{pair}`"))?;
        match nginx(variable.trim_start_matches('$')) {
            Field::Ignored => {
                Err(format!("`{variable}` is not a variable of nginx, such as `remote_addr` or `http_x_api_key`"))
            }
            field => Ok((name.to_owned(), field)),
        }
    };
    pairs.split(',').map(pair).collect()
}

/// The names that people give to the variables of nginx, and those of the variables. Times are written at the end.
pub(super) fn nginx(name: &str) -> Field {
    let name = name.trim_start_matches('@').to_ascii_lowercase().replace('-', "_");
    match &*name {
        "time" | "timestamp" | "ts" | "date" | "time_iso8601" | "time_local" | "msec" | "datetime" => Field::End,
        "start_time" => Field::Arrival,
        "client" | "client_ip" | "clientip" | "remote_ip" | "ip" | "remote" | "remote_address" | "src_ip" => {
            Field::Client
        }
        "method" | "verb" | "http_method" | "request_method" => Field::Method,
        "url" | "path" | "request_path" | "request_url" | "target" | "request_uri" => Field::Target,
        "uri" => Field::Path,
        "query" => Field::Query,
        "vhost" | "domain" | "http_host" | "host" | "hostname" => Field::Host,
        "code" | "response_code" | "status_code" | "response_status" => Field::Status,
        "duration" | "response_time" | "request_duration" | "took" => Field::Took(1_000_000),
        "duration_ms" | "request_time_ms" | "response_time_ms" => Field::Took(1_000),
        "user_agent" | "useragent" | "agent" => Field::Header("user-agent".into()),
        "referer" | "referrer" => Field::Header("referer".into()),
        "x_forwarded_for" | "xff" | "forwarded_for" => Field::Header("x-forwarded-for".into()),
        "x_request_id" => Field::Header("x-request-id".into()),
        "x_api_key" | "api_key" => Field::Header("x-api-key".into()),
        "client_subject" | "tls_subject" | "ssl_subject" => Field::TlsSubject,
        name => match variable(name) {
            Field::Ignored => header(name, &["request_header_", "req_header_", "header_"]),
            field => field,
        },
    }
}

/// The header that a name tells behind one of these prefixes.
fn header(name: &str, prefixes: &[&str]) -> Field {
    let behind = prefixes.iter().find_map(|prefix| name.strip_prefix(prefix)).filter(|header| !header.is_empty());
    behind.map_or(Field::Ignored, |header| Field::Header(header.to_ascii_lowercase().replace('_', "-").into()))
}
