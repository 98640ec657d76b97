//! The `routes` of the `--config` file: `[HOST][/PREFIX]` and what it sets for its requests.

use std::collections::HashSet;
use std::time::Duration;

use super::upstream_flags::{parse_buffer, parse_connections, parse_path, parse_threshold};
use super::values::parse_duration;
use crate::config::foreign::{Key, Mapping, Node, ReadResult, Value, all, quoted};
use crate::http::{HeaderChanges, HealthCheck, RouteOptions, RouteTimeouts, Routes};
use crate::message::client_headers::{is_hop_by_hop, is_of_limits};
use crate::message::headers::{is_name, is_value};

/// The keys of a route. Those that have the name of a flag take its place.
pub(super) const KEYS: [&str; 17] = [
    "upstream",
    "host",
    "strip-prefix",
    "add-prefix",
    "request-headers",
    "response-headers",
    "connect-timeout",
    "upstream-try-timeout",
    "response-timeout",
    "upstream-body-timeout",
    "upstream-connections",
    "buffer-requests",
    "max-body-bytes",
    "health-check",
    "health-interval",
    "health-timeout",
    "health-threshold",
];

/// The most headers that a route changes in one way.
const MAX_HEADERS: usize = 64;

const EXAMPLE: &str = "write `/v1: { upstream: http://127.0.0.1:3000 }`";

/// Adds the routes of a file to `routes`. `health` has what a health check leaves to the flags. Mistakes become findings.
pub(super) fn read(node: &Node, health: &HealthCheck, routes: &mut Routes) {
    let Ok(entries) = node.map("`routes`", EXAMPLE) else { return };
    for (key, node) in entries {
        let Ok((urls, options)) = route(key, node, health) else { continue };
        if let Err(mistake) = routes.add(&key.text, &urls, options) {
            key.error(mistake, "");
        }
    }
}

/// Reads a route's URLs, separated by commas, and what it sets.
fn route(key: &Key, node: &Node, health: &HealthCheck) -> ReadResult<(String, RouteOptions)> {
    let what = format!("the route {}", quoted(&key.text));
    let map = Mapping::of(node, &what, &KEYS)?;
    let host = map.read("host", Node::text);
    let urls = map.need("upstream", EXAMPLE).and_then(|node| urls(node, host?));
    let mut options = RouteOptions::default();
    let added = map.read("add-prefix", |node| {
        let text = node.text()?;
        options.add_prefix(text).map_err(|mistake| node.error(mistake, ""))
    });
    let strips = map.read("strip-prefix", Node::truth);
    let duration = |name| map.read(name, |node| parsed(node, parse_duration));
    let (connect, once) = (duration("connect-timeout"), duration("upstream-try-timeout"));
    let (response, body) = (duration("response-timeout"), duration("upstream-body-timeout"));
    let connections = map.read("upstream-connections", |node| parsed(node, parse_connections));
    let buffer = map.read("buffer-requests", |node| parsed(node, parse_buffer));
    let bytes = map.read("max-body-bytes", Node::whole);
    let health = health_check(&map, duration("health-interval"), duration("health-timeout"), health);
    let sent = map.read("request-headers", |node| headers(node, &["host"]));
    let received = map.read("response-headers", |node| headers(node, &[]));
    added?;
    let timeouts = RouteTimeouts { response: response?, upstream_body: body? };
    let options = RouteOptions {
        strips_prefix: strips?.unwrap_or_default(),
        request_headers: sent?.unwrap_or_default(),
        response_headers: received?.unwrap_or_default(),
        connect_timeout: connect?,
        try_timeout: once?,
        timeouts,
        connections: connections?,
        buffer: buffer?,
        health_check: health?,
        body_bytes: bytes?,
        ..options
    };
    Ok((urls?, options))
}

/// Reads URLs. `host` is for those that do not set one themselves.
fn urls(node: &Node, host: Option<&str>) -> ReadResult<String> {
    if items(node).is_empty() {
        return Err(node.error("`upstream` names no server", "write `upstream: http://HOST:PORT`"));
    }
    let urls = all(items(node).iter().map(|item| {
        let url = item.text()?;
        let host = host.filter(|_| url != "echo" && !url.contains("#host=")).map(|host| format!("#host={host}"));
        let url = format!("{url}{}", host.unwrap_or_default());
        Routes::default().add("/", &url, RouteOptions::default()).map_err(|mistake| item.error(mistake, ""))?;
        Ok(url)
    }))?;
    Ok(urls.join(","))
}

fn health_check(
    map: &Mapping<'_>,
    interval: ReadResult<Option<Duration>>,
    timeout: ReadResult<Option<Duration>>,
    flags: &HealthCheck,
) -> ReadResult<Option<HealthCheck>> {
    let threshold = map.read("health-threshold", |node| parsed(node, parse_threshold));
    let path = map.read("health-check", |node| parsed(node, parse_path));
    let (interval, timeout, threshold) = (interval?, timeout?, threshold?);
    let Some(path) = path? else {
        let lonely = ["health-interval", "health-timeout", "health-threshold"].iter().find_map(|name| map.get(name));
        return match lonely {
            Some((key, _)) => {
                Err(key.error(format!("`{}` needs `health-check`", key.text), "write `health-check: /healthz`"))
            }
            None => Ok(None),
        };
    };
    let (unhealthy, healthy) = threshold.unwrap_or((flags.unhealthy, flags.healthy));
    let (interval, timeout) = (interval.unwrap_or(flags.interval), timeout.unwrap_or(flags.timeout));
    Ok(Some(HealthCheck { path, interval, timeout, unhealthy, healthy }))
}

/// Reads changes to headers, except to those that Weir writes and the `reserved` ones.
fn headers(node: &Node, reserved: &[&str]) -> ReadResult<HeaderChanges> {
    let map = Mapping::of(node, "changes to headers", &["remove", "set", "add"])?;
    let pairs = |node: &Node| {
        let entries = node.map("headers", "write `x-api-version: 2`")?;
        check_count(node, entries.len())?;
        all(entries.iter().map(|(key, node)| {
            check_name(&key.text, reserved).map_err(|(mistake, help)| key.error(mistake, help))?;
            let value = node.text()?;
            if !is_value(value.as_bytes()) || value.trim() != value {
                return Err(node.error("invalid value of a header", "write it on one line, without blanks around it"));
            }
            Ok((key.text.clone(), value.to_owned()))
        }))
    };
    let removed = map.read("remove", |node| {
        check_count(node, items(node).len())?;
        all(items(node).iter().map(|item| {
            let name = item.text()?;
            check_name(name, reserved).map_err(|(mistake, help)| item.error(mistake, help))?;
            Ok(name.to_owned())
        }))
    });
    let set = map.read("set", |node| pairs(node).and_then(|pairs| distinct(node).map(|()| pairs)));
    let added = map.read("add", pairs);
    Ok(HeaderChanges {
        removed: removed?.unwrap_or_default(),
        set: set?.unwrap_or_default(),
        added: added?.unwrap_or_default(),
    })
}

/// Checks that a header may be changed. The error is a message and a help text.
fn check_name(name: &str, reserved: &[&str]) -> Result<(), (String, &'static str)> {
    let bytes = name.as_bytes();
    if !is_name(bytes) {
        return Err((format!("{} is not the name of a header", quoted(name)), "write one such as x-api-version"));
    }
    if reserved.iter().any(|reserved| name.eq_ignore_ascii_case(reserved)) {
        return Err((format!("`{name}` is set by `host`"), "write `host: NAME` into the route"));
    }
    let is_fixed = ["content-length", "trailer", "via"].iter().any(|fixed| name.eq_ignore_ascii_case(fixed));
    if is_fixed || is_hop_by_hop(bytes) || is_of_limits(bytes) {
        return Err((
            format!("`{name}` cannot be changed"),
            "Weir writes it for each message or connection; remove it here",
        ));
    }
    Ok(())
}

/// Checks that no header is there in two spellings.
fn distinct(node: &Node) -> ReadResult<()> {
    let mut seen = HashSet::new();
    for (key, _) in node.map("headers", "")? {
        if !seen.insert(key.text.to_ascii_lowercase()) {
            let message = format!("{} is set twice", quoted(&key.text));
            return Err(key.error(message, "the case of a header's name makes no difference; keep one"));
        }
    }
    Ok(())
}

fn check_count(node: &Node, count: usize) -> ReadResult<()> {
    if count <= MAX_HEADERS {
        return Ok(());
    }
    Err(node.error(format!("there are {count} headers"), format!("use at most {MAX_HEADERS}")))
}

/// Returns the items of a list, or a single value.
fn items(node: &Node) -> &[Node] {
    if let Value::List(items) = &node.value { items } else { std::slice::from_ref(node) }
}

/// Reads a value as its flag does.
fn parsed<T>(node: &Node, parse: fn(&str) -> Result<T, String>) -> ReadResult<T> {
    parse(node.text()?).map_err(|mistake| node.error(mistake, ""))
}
