//! The settings of an instance, as limits.

use serde_json::json;

use super::super::gateway::{By, GatewayLimit, Rate, span, whole};
use super::super::scope::{Condition, Scope, Test};
use super::super::settings::{Settings, scalar};
use super::super::text::{map, piece, quoted};
use super::super::tree::{member, text};
use super::{CONSUMER, Gateway, Instance, Owner};
use crate::config::foreign::{Node, Value};

/// The most cases of a key.
const MOST_CASES: usize = 8;

/// The statuses that a limit can deny with.
const STATUSES: std::ops::Range<u64> = 400..600;

const STORE: &str = "`--store` says where Weir counts: in memory, or in Redis for all gateways.";

const LATENCY: &str = "requests in flight do not wait in Weir.";

/// Settings without an equivalent, and the nearest.
pub(super) const NEAR: [(&str, &str); 8] = [
    ("_meta", "a limit with `mode: off` is near."),
    ("policy", STORE),
    ("redis_host", STORE),
    ("redis_port", STORE),
    ("redis_database", STORE),
    ("redis_password", STORE),
    ("default_conn_delay", LATENCY),
    ("only_use_default_delay", LATENCY),
];

/// The settings that make a limit.
pub(super) const KNOWN: [&str; 15] = [
    "count",
    "time_window",
    "window_type",
    "rate",
    "burst",
    "nodelay",
    "conn",
    "key",
    "key_type",
    "group",
    "rejected_code",
    "rules",
    "rejected_msg",
    "allow_degradation",
    "show_limit_quota_header",
];

pub(super) fn is_limit(plugin: &str) -> bool {
    plugin.contains("limit-") || ["workflow", "ai-rate-limiting"].contains(&plugin)
}

pub(super) fn is_disabled(node: &Node) -> bool {
    let is_set = |node| text(node, "disable") == Some("true");
    is_set(node) || member(node, "_meta").is_some_and(is_set)
}

/// The keys of its limits that say how they answer, and what they do without a store.
pub(super) fn more(settings: &Settings<'_>) -> Vec<(&'static str, String)> {
    let mut denial = Vec::new();
    let status = settings.number("rejected_code").unwrap_or(503);
    denial.extend((status != 429 && STATUSES.contains(&status)).then(|| ("status", status.to_string())));
    if let Some(message) = settings.text("rejected_msg") {
        denial.push(("content_type", quoted("application/json")));
        denial.push(("body", quoted(&json!({ "error_msg": message }).to_string().replace('{', "{{"))));
    }
    let mut more = Vec::new();
    more.extend((!denial.is_empty()).then(|| ("deny_with", map(&denial))));
    more.extend((settings.text("show_limit_quota_header") == Some("false")).then(|| ("headers", "none".to_owned())));
    // Without its store, APISIX answers 500.
    let allows = settings.truth("allow_degradation");
    let policy = settings.text("policy").unwrap_or("local");
    if policy == "local" {
        return more;
    }
    settings.forget("policy");
    more.extend((!allows).then(|| ("on_store_error", "deny".to_owned())));
    more
}

/// The limits of an instance, or why it is left out.
pub(super) fn limits(
    gateway: &Gateway<'_>,
    instance: &Instance<'_>,
    owner: &Owner<'_>,
    settings: &Settings<'_>,
) -> Result<Vec<GatewayLimit>, String> {
    let meta = member(instance.node, "_meta");
    if is_disabled(instance.node) {
        return Err("it is disabled in APISIX".to_owned());
    } else if meta.is_some_and(|meta| member(meta, "filter").is_some()) {
        return Err("`match` cannot say its `_meta.filter`".to_owned());
    }
    let rate = rate(instance.plugin, settings)?;
    let (parts, left_out) = gateway.parts(instance, owner)?;
    let (people, unknown) = gateway.people(instance, owner);
    let cases = cases(settings)?;
    let name = instance.name(owner);
    let mut told: Vec<String> = left_out.into_iter().collect();
    told.extend(differences(instance, settings, &rate, &cases));
    let each_route = "APISIX counts each route by itself, unless it reads a file; here";
    let has_several_routes =
        gateway.routes.first().map(|route| route.owner) != gateway.routes.last().map(|route| route.owner);
    if parts.len() > 1 {
        let counts = if instance.counts_each_route() { each_route } else { "APISIX counts its routes together; here" };
        told.push(instance.origin.note(format!("{counts} each part has buckets of its own.")));
    } else if instance.counts_each_route() && owner.kind.starts_with("consumer") && has_several_routes {
        told.push(instance.origin.note(format!("{each_route} they count together.")));
    }
    if cases.iter().any(|(_, by)| by.contains(&By::Address(128))) && gateway.has_real_ip(instance) {
        told.push(instance.origin.note("`real-ip` sets the address: give Weir the proxies in `--trusted-proxies`."));
    }
    let mut limits = Vec::new();
    for (scope, mut wider) in parts {
        wider.extend(unknown.iter().cloned());
        for (case, by) in &cases {
            // A request without a name is not one of a consumer with a limit of its own.
            let is_nobody = case.headers.iter().any(|(name, is)| name == CONSUMER && is.any.contains(&Test::Absent));
            let case = if is_nobody { Some(case.clone()) } else { case.and(&people) };
            let Some(scope) = case.and_then(|case| scope.and(&case)) else { continue };
            limits.push(GatewayLimit {
                name: name.clone(),
                identity: format!("{name}\n"),
                origin: instance.origin.clone(),
                source: format!("{name}{}", shown(instance)),
                notes: std::mem::take(&mut told),
                wider: wider.clone(),
                scope,
                by: by.clone(),
                missing: by.iter().any(|by| matches!(by, By::FirstHeader(_))).then_some("shared"),
                rate: rate.clone(),
                status: None,
                is_shadow: false,
            });
        }
    }
    if limits.is_empty() {
        Err("`match` cannot join the conditions of its key and of its route".to_owned())
    } else {
        Ok(limits)
    }
}

/// The differences of the limits of an instance from APISIX.
fn differences(
    instance: &Instance<'_>,
    settings: &Settings<'_>,
    rate: &Rate,
    cases: &[(Scope, Vec<By>)],
) -> Vec<String> {
    let mut told = Vec::new();
    // Instances of a group are joined before, unless they are of a consumer or a global rule.
    if settings.get("group").is_some() && instance.group.is_none() {
        told.push(instance.origin.note("APISIX counts its `group` together; here it has buckets of its own."));
    }
    if let Some(status) = settings.number("rejected_code").filter(|status| !STATUSES.contains(status)) {
        let what = format!("`rejected_code: {status}` is left out: a denial has a status of 400 to 599.");
        told.push(instance.origin.note(what));
    }
    if cases.iter().any(|(_, by)| by.len() > 1 && by.iter().any(|by| matches!(by, By::FirstHeader(_)))) {
        told.push(instance.origin.note("requests with an empty header of its key count together here."));
    }
    if let Rate::InFlight(_) = rate
        && settings.number("burst") > Some(0)
    {
        told.push(instance.origin.note("APISIX delays those beyond `conn`; here all that it lets in are in flight."));
    }
    if cases.iter().flat_map(|(_, by)| by).any(|by| matches!(by, By::Query(_) | By::Cookie(..))) {
        told.push(
            instance.origin.note("APISIX counts a request without the key by its address; here it is not counted."),
        );
    }
    told
}

/// The settings of the limit itself, for readers.
fn shown(instance: &Instance<'_>) -> String {
    let Value::Map(entries) = &instance.node.value else { return String::new() };
    let shown = entries.iter().filter(|(key, _)| KNOWN.contains(&key.text.as_str()));
    shown.filter_map(|(key, node)| Some(format!(" {}={}", key.text, scalar(node)?))).collect()
}

fn rate(plugin: &str, settings: &Settings<'_>) -> Result<Rate, String> {
    let number = |name| settings.number(name).ok_or_else(|| format!("its {} is not a whole number", piece(name)));
    Ok(match plugin {
        "limit-count" if settings.get("rules").is_some() => {
            return Err("Weir does not read `rules`; write a limit for each".to_owned());
        }
        "limit-count" => {
            let is_sliding = settings.text("window_type") == Some("sliding");
            let algorithm = if is_sliding { "sliding_window" } else { "fixed_window" };
            let seconds = number("time_window")?;
            Rate::Windows {
                algorithm,
                more: &[],
                windows: vec![(number("count")?, span(seconds.saturating_mul(1_000_000)))],
            }
        }
        "limit-req" => {
            let rate = settings.text("rate").and_then(|rate| whole(rate, 1_000_000));
            let (count, period) = rate.ok_or("its `rate` is not a number")?;
            let burst = number("burst")?;
            let waiting = if settings.truth("nodelay") { 0 } else { burst };
            Rate::Bucket {
                burst: (burst - waiting).saturating_add(1),
                count,
                period,
                delay: waiting.saturating_mul(period).div_ceil(count),
            }
        }
        "limit-conn" => Rate::InFlight(number("conn")?.saturating_add(number("burst")?)),
        _ => return Err("Weir does not know the plugin".to_owned()),
    })
}

/// The cases of a key. Requests that lack all its parts count by address.
fn cases(settings: &Settings<'_>) -> Result<Vec<(Scope, Vec<By>)>, String> {
    let key = settings.text("key").unwrap_or("remote_addr");
    let variables: Vec<&str> = match settings.text("key_type").unwrap_or("var") {
        "constant" => return Ok(vec![(Scope::default(), Vec::new())]),
        "var_combination" => {
            let is_end = |each: char| !each.is_ascii_alphanumeric() && each != '_';
            let names = key.split('$').skip(1).map(|name| name.trim_start_matches('{'));
            names.filter_map(|name| name.split(is_end).next()).collect()
        }
        _ => vec![key],
    };
    let mut cases = vec![(Scope::default(), Vec::new())];
    for variable in variables {
        let by = part(variable).ok_or_else(|| format!("{} has no equivalent in a rules file", piece(variable)))?;
        let with = |(scope, known): &(Scope, Vec<By>), test| {
            let own = match (&by, test) {
                (By::Header(name) | By::FirstHeader(name), Some(test)) => vec![(name.clone(), Condition::of([test]))],
                _ => Vec::new(),
            };
            let own = Scope { headers: own, ..Scope::default() };
            Some((scope.and(&own)?, known.clone()))
        };
        let mut next = Vec::new();
        for case in &cases {
            let present =
                with(case, Some(Test::Present)).map(|(scope, known)| (scope, [known, vec![by.clone()]].concat()));
            next.extend(present);
            next.extend(with(case, Some(Test::Absent)).filter(|_| matches!(by, By::Header(_) | By::FirstHeader(_))));
        }
        cases = next;
    }
    if cases.len() > MOST_CASES {
        return Err(format!("{} has more than {MOST_CASES} cases", piece(key)));
    }
    cases.iter_mut().filter(|(_, by)| by.is_empty()).for_each(|(_, by)| by.push(By::Address(128)));
    Ok(cases)
}

fn part(variable: &str) -> Option<By> {
    Some(match variable {
        "remote_addr" | "binary_remote_addr" => By::Address(128),
        "consumer_name" => By::Header(CONSUMER.to_owned()),
        "host" | "http_host" => By::Word("host"),
        "uri" => By::Word("path"),
        "request_method" | "method" => By::Word("method"),
        // No variable has such a name, so APISIX counts by address.
        _ if variable.starts_with('$') => By::Address(128),
        _ => match variable.split_once('_')? {
            ("http", name) => By::FirstHeader(name.replace('_', "-").to_lowercase()),
            ("arg", name) => By::Query(name.to_owned()),
            ("cookie", name) => By::Cookie(name.to_owned(), "first"),
            _ => return None,
        },
    })
}
