//! The settings of an instance, as limits.

use std::collections::BTreeSet;

use serde_json::json;

use super::super::gateway::{By, GatewayLimit, Rate, span};
use super::super::scope::{Condition, Scope, Test};
use super::super::settings::{Settings, scalar};
use super::super::text::{map, piece, quoted};
use super::super::tree::{member, text};
use super::{CONSUMER, CUSTOM_ID, Gateway, Instance};
use crate::config::foreign::{Node, Value};

/// Periods of `rate-limiting`, by the calendar in UTC.
const PERIODS: [(&str, &str); 6] =
    [("second", "1s"), ("minute", "1m"), ("hour", "1h"), ("day", "1d"), ("month", "month"), ("year", "year")];

/// The header in which Kong sends the id of the consumer's credential.
const CREDENTIAL: &str = "x-credential-identifier";

const STORE: &str = "`--store` says where Weir counts: in memory, or in Redis for all gateways.";

/// Settings without an equivalent, and the nearest.
pub(super) const NEAR: [(&str, &str); 10] = [
    ("policy", STORE),
    ("strategy", STORE),
    ("redis", STORE),
    ("redis_host", STORE),
    ("redis_port", STORE),
    ("redis_password", STORE),
    ("redis_timeout", STORE),
    ("redis_database", STORE),
    ("sync_rate", "Weir asks its store for each decision."),
    ("namespace", "instances with the same one share counters in Kong; here each has its own."),
];

/// Settings of a store that `policy: local` does not use.
const OF_REDIS: [&str; 13] = [
    "policy",
    "strategy",
    "dictionary_name",
    "redis",
    "redis_host",
    "redis_port",
    "redis_password",
    "redis_username",
    "redis_timeout",
    "redis_database",
    "redis_server_name",
    "redis_ssl",
    "redis_ssl_verify",
];

/// The statuses that a limit can deny with.
const STATUSES: std::ops::Range<u64> = 400..600;

/// The settings that make a limit.
pub(super) const KNOWN: [&str; 20] = [
    "second",
    "minute",
    "hour",
    "day",
    "month",
    "year",
    "limits",
    "limit",
    "window_size",
    "window_type",
    "limit_by",
    "identifier",
    "header_name",
    "path",
    "error_code",
    "disable_penalty",
    "block_on_first_violation",
    "error_message",
    "fault_tolerant",
    "hide_client_headers",
];

/// The routes that a limit counts together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RoutesOf {
    All,
    /// Those of a service, or those without one.
    Service(Option<usize>),
}

pub(super) fn is_limit(plugin: &str) -> bool {
    plugin.contains("rate-limiting") || ["response-ratelimiting", "service-protection"].contains(&plugin)
}

/// The keys of its limits that say how they answer, and what they do without a store.
pub(super) fn more(instance: &Instance<'_>, settings: &Settings<'_>) -> Vec<(&'static str, String)> {
    let mut denial = Vec::new();
    let status = settings.number("error_code").filter(|status| *status != 429 && STATUSES.contains(status));
    denial.extend(status.map(|status| ("status", status.to_string())));
    if let Some(message) = settings.text("error_message").filter(|message| *message != "API rate limit exceeded") {
        denial.push(("content_type", quoted("application/json")));
        denial.push(("body", quoted(&json!({ "message": message }).to_string().replace('{', "{{"))));
    }
    let mut more = Vec::new();
    more.extend((!denial.is_empty()).then(|| ("deny_with", map(&denial))));
    more.extend(settings.truth("hide_client_headers").then(|| ("headers", "none".to_owned())));
    more.extend((settings.text("fault_tolerant") == Some("false")).then(|| ("on_store_error", "deny".to_owned())));
    let config = member(instance.node, "config").unwrap_or(instance.node);
    let policy = text(config, "policy").or_else(|| text(config, "strategy"));
    if policy.is_none_or(|policy| policy == "local") {
        for name in OF_REDIS {
            let _ = settings.get(name);
        }
    }
    if !settings.text("sync_rate").is_some_and(|rate| ["-1", "0"].contains(&rate)) {
        settings.forget("sync_rate");
    }
    more
}

/// The limits of an instance, or why it is left out.
pub(super) fn limits(
    gateway: &Gateway<'_>,
    place: usize,
    instance: &Instance<'_>,
    settings: &Settings<'_>,
) -> Result<Vec<GatewayLimit>, String> {
    let rate = match instance.plugin {
        "rate-limiting" => by_calendar(settings)?,
        "rate-limiting-advanced" | "service-protection" => by_size(settings)?,
        "response-ratelimiting" => {
            return Err("it counts what responses report; `cost_from_response: { header: ... }` is near".to_owned());
        }
        _ => return Err("Weir does not know the plugin".to_owned()),
    };
    let by = settings.text("limit_by").or_else(|| settings.text("identifier"));
    let by = if instance.plugin == "service-protection" { "service" } else { by.unwrap_or("consumer") };
    let by_service = by == "service" && instance.owners[3].is_none();
    // A limit on a service knows it; any other has counters for each. Without a service, Kong counts by address.
    let services: BTreeSet<RoutesOf> = if by_service {
        gateway.routes.iter().map(|route| RoutesOf::Service(route.service)).collect()
    } else {
        BTreeSet::from([RoutesOf::All])
    };
    let mut told = told(gateway, place, instance, settings, &rate);
    if ["consumer", "credential"].contains(&by) && gateway.has_other_order(instance) {
        told.push(instance.origin.note("Weir does not read `ordering`: Kong may not know the consumer yet."));
    }
    let mut limits = Vec::new();
    for service in services {
        let by = if service == RoutesOf::Service(None) { "ip" } else { by };
        let parts = gateway.parts(place, service);
        // By consumer, those with only a `custom_id` count by themselves anyway.
        if parts.iter().filter(|(scope, _)| by != "consumer" || !names_custom_ids(scope)).count() > 1 {
            told.push(
                instance.origin.note("Kong counts its requests together; here each part has buckets of its own."),
            );
        }
        for (scope, wider) in parts {
            let wider = [wider, gateway.unknown_people(instance)].concat();
            for (scope, by) in cases(by, settings, gateway, instance, &scope)? {
                let name = instance.name(gateway);
                let missing = by.iter().any(|by| matches!(by, By::FirstHeader(_))).then_some("shared");
                limits.push(GatewayLimit {
                    identity: format!("{name}\n"),
                    origin: instance.origin.clone(),
                    source: format!("{name} {}", shown(instance)),
                    notes: std::mem::take(&mut told),
                    wider: wider.clone(),
                    scope,
                    by,
                    missing,
                    rate: rate.clone(),
                    status: None,
                    is_shadow: false,
                    name,
                });
            }
        }
    }
    if limits.is_empty() { Err("it runs for no route".to_owned()) } else { Ok(limits) }
}

/// The differences of the limits of an instance from Kong.
fn told(
    gateway: &Gateway<'_>,
    place: usize,
    instance: &Instance<'_>,
    settings: &Settings<'_>,
    rate: &Rate,
) -> Vec<String> {
    let mut told = Vec::new();
    let ties: Vec<String> = gateway.ties(place).into_iter().map(piece).collect();
    if !ties.is_empty() {
        let ties = ties.join(", ");
        told.push(format!("of its routes and {ties}, Kong may ask either first; here the limits of both count."));
    }
    if let Some(status) = settings.number("error_code").filter(|status| !STATUSES.contains(status)) {
        told.push(format!("`error_code: {status}` is left out: a denial has a status of 400 to 599."));
    }
    if matches!(rate, Rate::Windows { more: [("count_denied", _)], .. }) {
        told.push("Kong counts all that it denies; here denied requests count up to twice the limit.".to_owned());
    }
    told.iter().map(|told| instance.origin.note(told)).collect()
}

/// The settings of the limit itself, for readers.
fn shown(instance: &Instance<'_>) -> String {
    let Some(Value::Map(entries)) = member(instance.node, "config").map(|config| &config.value) else {
        return String::new();
    };
    let is_shown = |name: &str| KNOWN.contains(&name);
    let value = |node: &Node| match &node.value {
        Value::List(items) => items.iter().filter_map(scalar).collect::<Vec<_>>().join(","),
        _ => scalar(node).unwrap_or_default().to_owned(),
    };
    let shown = entries.iter().filter(|(key, _)| is_shown(&key.text));
    let shown = shown.filter(|(_, node)| !node.is_null());
    shown.map(|(key, node)| format!("{}={}", key.text, value(node))).collect::<Vec<_>>().join(" ")
}

/// Returns true if these are the requests of consumers with only a `custom_id`.
fn names_custom_ids(scope: &Scope) -> bool {
    scope.headers.iter().any(|(name, condition)| name == CUSTOM_ID && !condition.any.is_empty())
}

/// The requests that count together. Kong counts a request without a header or consumer by its address.
fn cases(
    by: &str,
    settings: &Settings<'_>,
    gateway: &Gateway<'_>,
    instance: &Instance<'_>,
    scope: &Scope,
) -> Result<Vec<(Scope, Vec<By>)>, String> {
    let address = vec![By::Address(128)];
    let keys = match by {
        "ip" => Vec::new(),
        "service" => return Ok(vec![(scope.clone(), Vec::new())]),
        "path" => {
            let path = settings.text("path").ok_or("it has no `path`")?;
            let exact = Scope { paths: Condition::of([Test::is(path)]), ..Scope::default() };
            let mut rest = scope.clone();
            rest.paths.exclude(&exact.paths.any);
            let exact = scope.and(&exact).map(|scope| (scope, Vec::new()));
            let only = rest.paths.any == [Test::is(path)];
            return Ok(exact.into_iter().chain((!only).then_some((rest, address))).collect());
        }
        "header" => {
            let name = settings.text("header_name").ok_or("it has no `header_name`")?.to_lowercase();
            vec![(name.clone(), By::FirstHeader(name))]
        }
        "consumer" if instance.owners[0].is_some() => return Ok(vec![(scope.clone(), Vec::new())]),
        "consumer" | "credential" if !gateway.has_consumers || gateway.is_before_authentication(instance) => Vec::new(),
        "credential" => vec![(CREDENTIAL.to_owned(), By::Header(CREDENTIAL.to_owned()))],
        "consumer" if names_custom_ids(scope) => vec![(CUSTOM_ID.to_owned(), By::Header(CUSTOM_ID.to_owned()))],
        "consumer" => {
            let are_nameless = gateway.entities.iter().any(|entity| entity.has_custom_id);
            // These find users who are no consumers of Kong.
            let is_of_ldap = |node: &&Node| text(node, "name").is_some_and(|name| name.starts_with("ldap-auth"));
            let has_users = gateway.identifying.iter().any(is_of_ldap);
            let headers = [Some(CONSUMER), are_nameless.then_some(CUSTOM_ID), has_users.then_some(CREDENTIAL)];
            headers.into_iter().flatten().map(|header| (header.to_owned(), By::Header(header.to_owned()))).collect()
        }
        _ => return Err(format!("Weir does not know what {} is", piece(by))),
    };
    let (mut cases, mut rest) = (Vec::new(), Some(scope.clone()));
    for (header, by) in keys {
        let with = |test| Scope { headers: vec![(header.clone(), Condition::of([test]))], ..Scope::default() };
        let Some(left) = rest else { break };
        let present = left.and(&with(Test::Present)).ok_or("`match` cannot join the conditions of its header")?;
        cases.push((present, vec![by]));
        rest = left.and(&with(Test::Absent));
    }
    cases.extend(rest.map(|rest| (rest, address)));
    Ok(cases)
}

fn by_calendar(settings: &Settings<'_>) -> Result<Rate, String> {
    let mut windows = Vec::new();
    for (name, period) in PERIODS {
        let Some(count) = settings.text(name) else { continue };
        windows.push((whole(count)?, period.to_owned()));
    }
    if windows.is_empty() {
        return Err("it has no period".to_owned());
    }
    if !windows.is_sorted_by_key(|(count, _)| *count) {
        return Err("Kong refuses it: a longer period allows less than a shorter one".to_owned());
    }
    Ok(Rate::Windows { algorithm: "fixed_window", more: &[("aligned", "clock")], windows })
}

fn by_size(settings: &Settings<'_>) -> Result<Rate, String> {
    let numbers = |name| {
        let Some(Value::List(items)) = settings.get(name).map(|node| &node.value) else {
            return Err(format!("it has no list {}", piece(name)));
        };
        items.iter().map(|item| whole(scalar(item).unwrap_or_default())).collect::<Result<Vec<u64>, _>>()
    };
    let (limits, sizes) = (numbers("limit")?, numbers("window_size")?);
    if limits.len() != sizes.len() {
        return Err("`limit` and `window_size` have different lengths".to_owned());
    }
    // Of several limits of one window, the least holds.
    let mut pairs: Vec<_> = sizes.into_iter().zip(limits).collect();
    pairs.sort_unstable();
    pairs.dedup_by_key(|(size, _)| *size);
    let windows = pairs.into_iter().map(|(size, limit)| (limit, span(size.saturating_mul(1_000_000)))).collect();
    let does_count_denied = settings.text("disable_penalty") != Some("true");
    let (algorithm, more): (_, &[_]) = match settings.text("window_type").unwrap_or("sliding") {
        "fixed" => ("fixed_window", &[("aligned", "clock")]),
        _ if does_count_denied => ("sliding_window", &[("count_denied", "true")]),
        _ => ("sliding_window", &[]),
    };
    Ok(Rate::Windows { algorithm, more, windows })
}

/// A request passes while fewer have than this, so a part of one counts as a whole.
fn whole(count: &str) -> Result<u64, String> {
    let number = count.parse::<f64>().ok().filter(|number| (0.0..1e15).contains(number) && *number > 0.0);
    let (whole, decimals) = count.split_once('.').unwrap_or((count, ""));
    let whole =
        number.and_then(|_| whole.parse::<u64>().ok()).ok_or_else(|| format!("{} is not a number", piece(count)))?;
    Ok(whole + u64::from(decimals.bytes().any(|digit| digit != b'0')))
}
