//! The settings of an instance, as limits.

use std::collections::BTreeSet;

use super::super::gateway::{By, GatewayLimit, Rate, span};
use super::super::scope::{Condition, Scope, Test};
use super::super::settings::{Settings, scalar};
use super::super::text::piece;
use super::super::tree::member;
use super::{CONSUMER, Gateway, Instance};
use crate::config::foreign::{Node, Value};

/// Periods of `rate-limiting`, by the calendar in UTC.
const PERIODS: [(&str, &str); 6] =
    [("second", "1s"), ("minute", "1m"), ("hour", "1h"), ("day", "1d"), ("month", "month"), ("year", "year")];

const STORE: &str = "`--store` says where Weir counts: in memory, or in Redis for all gateways.";

/// Settings without an equivalent, and the nearest.
pub(super) const NEAR: [(&str, &str); 13] = [
    ("policy", STORE),
    ("strategy", STORE),
    ("redis", STORE),
    ("redis_host", STORE),
    ("redis_port", STORE),
    ("redis_password", STORE),
    ("redis_timeout", STORE),
    ("redis_database", STORE),
    ("sync_rate", "Weir asks its store for each decision."),
    ("fault_tolerant", "Weir allows what the store does not answer for; `on_store_error: deny` denies it."),
    ("hide_client_headers", "`--headers` says which headers clients see."),
    ("error_message", "`deny_with: { body: ... }` is near."),
    ("namespace", "instances with the same one share counters in Kong; here each has its own."),
];

/// The settings that make a limit.
pub(super) const KNOWN: [&str; 17] = [
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
];

pub(super) fn is_limit(plugin: &str) -> bool {
    plugin.contains("rate-limiting") || ["response-ratelimiting", "service-protection"].contains(&plugin)
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
    let status = settings.number("error_code").filter(|status| *status != 429);
    let by = settings.text("limit_by").or_else(|| settings.text("identifier"));
    let by = if instance.plugin == "service-protection" { "service" } else { by.unwrap_or("consumer") };
    // A limit on a service knows it; any other has counters for each.
    let services: Vec<Option<&str>> = match by {
        "service" if instance.service.is_none() => {
            let services: BTreeSet<_> = gateway.routes.iter().map(|route| route.service).collect();
            services.into_iter().collect()
        }
        _ => vec![None],
    };
    let mut limits = Vec::new();
    for service in services {
        let parts = gateway.parts(place, service);
        let is_split = parts.len() > 1;
        for (scope, wider) in parts {
            let mut notes = Vec::new();
            if is_split {
                notes.push(
                    instance.origin.note("Kong counts its routes together; here each part has buckets of its own."),
                );
            }
            let cases = cases(by, settings, gateway.has_consumers && instance.consumer.is_none(), &scope)?;
            for (scope, by) in cases {
                let name = instance.name();
                limits.push(GatewayLimit {
                    identity: format!("{name}\n{scope:?} {by:?}"),
                    origin: instance.origin.clone(),
                    source: format!("{name} {}", shown(instance)),
                    notes: std::mem::take(&mut notes),
                    wider: wider.clone(),
                    scope,
                    by,
                    missing: None,
                    rate: rate.clone(),
                    status,
                    is_shadow: false,
                    name,
                });
            }
        }
    }
    if limits.is_empty() { Err("it runs for no route".to_owned()) } else { Ok(limits) }
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
    shown.map(|(key, node)| format!("{}={}", key.text, value(node))).collect::<Vec<_>>().join(" ")
}

/// The requests that count together. Kong counts a request without a header or consumer by its address.
fn cases(
    by: &str,
    settings: &Settings<'_>,
    has_consumers: bool,
    scope: &Scope,
) -> Result<Vec<(Scope, Vec<By>)>, String> {
    let address = vec![By::Address(128)];
    let mut rest = scope.clone();
    let header = match by {
        "ip" => return Ok(vec![(rest, address)]),
        "service" => return Ok(vec![(rest, Vec::new())]),
        "path" => {
            let path = settings.text("path").ok_or("it has no `path`")?;
            let exact = Scope { paths: Condition::of([Test::is(path)]), ..Scope::default() };
            rest.paths.exclude(&exact.paths.any);
            let exact = scope.and(&exact).map(|scope| (scope, Vec::new()));
            let only = rest.paths.any == [Test::is(path)];
            return Ok(exact.into_iter().chain((!only).then_some((rest, address))).collect());
        }
        "header" => settings.text("header_name").ok_or("it has no `header_name`")?.to_lowercase(),
        "consumer" | "credential" if !has_consumers => {
            let is_one = scope.headers.iter().any(|(name, condition)| name == CONSUMER && !condition.any.is_empty());
            return Ok(vec![(rest, if is_one { Vec::new() } else { address })]);
        }
        "consumer" | "credential" => CONSUMER.to_owned(),
        _ => return Err(format!("Weir does not know what {} is", piece(by))),
    };
    let with = |test: Test| Scope { headers: vec![(header.clone(), Condition::of([test]))], ..Scope::default() };
    // A request without a consumer passes every exception of consumers.
    if header == CONSUMER {
        rest.headers.retain(|(name, _)| *name != header);
    }
    let present = scope.and(&with(Test::Present)).ok_or("`match` cannot join the conditions of its header")?;
    let absent = rest.and(&with(Test::Absent)).map(|scope| (scope, address));
    Ok([(present, vec![By::Header(header)])].into_iter().chain(absent).collect())
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
