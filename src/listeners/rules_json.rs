//! Limits, overrides and explanations as JSON, for the admin listener and `weir explain`.

use std::fmt::Display;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::engine::algorithms::describe::Span;
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::numbers::Numbers;
use crate::engine::limit::allowance::Allowance;
use crate::engine::limit::blocks::Blocks;
use crate::engine::limit::identity::IdError;
use crate::engine::limit::matching::Match;
use crate::engine::limit::overrides::{Override, OverrideOrigin};
use crate::engine::limit::rules::Rules;
use crate::engine::limit::{Cost, CostFallback, Limit, LimitMode, WHOLE_SHARE};
use crate::engine::request::Request;
use crate::engine::request::claims::ClaimRef;
use crate::engine::request::part::{Part, TypedPart};
use crate::engine::request::value_type::ValueType;
use crate::engine::telling::bucket_info::limit_of;
use crate::engine::telling::explanation::{CandidateUse, Explanation};
use crate::engine::telling::reasons::wanted_value;
use crate::engine::text::instant::day_until;
use crate::limiter::KnownOverride;

/// A limit as its file gives it.
pub(crate) fn limit(limit: &Limit) -> Value {
    let mut value = json!({
        "name": limit.name,
        "mode": mode(limit.mode),
        "enforced": limit.is_enforced(),
        "enforce_for_percent": f64::from(limit.enforce_for) * 100.0 / f64::from(WHOLE_SHARE),
        "match": conditions(&limit.conditions),
        "by": limit.by.iter().map(typed).collect::<Vec<_>>(),
        "cost": cost(limit),
        "overrides": limit.overrides.len(),
    });
    numbers(&limit.allowance, &mut value);
    if let Some(warn_at) = &limit.warn_at {
        value["warn_at_percent"] = warn_at.shares().into();
    }
    if let Some(end) = limit.review_by {
        value["review_by"] = day_until(end).into();
    }
    for candidate in &limit.candidates {
        let percent = f64::from(candidate.enforce_for) * 100.0 / f64::from(WHOLE_SHARE);
        let mut beside = json!({ "enforce_for_percent": percent });
        numbers(&candidate.allowance, &mut beside);
        *of_candidate(&mut value, candidate.name.as_deref()) = beside;
    }
    owned(limit, value)
}

/// Adds the owner of a limit that has one.
pub(crate) fn owned(limit: &Limit, mut value: Value) -> Value {
    if let Some(owner) = &limit.owner {
        value["owner"] = (**owner).into();
    }
    value
}

/// The member for a candidate, as a rules file has it: `candidate`, or its name in `candidates`.
pub(crate) fn of_candidate<'v>(value: &'v mut Value, name: Option<&str>) -> &'v mut Value {
    match name {
        None => &mut value["candidate"],
        Some(name) => &mut value["candidates"][name],
    }
}

/// The cost as a rules file writes it, with the settings that differ from their defaults.
fn cost(limit: &Limit) -> Value {
    let mut value = match &limit.cost {
        Cost::Fixed(cost) => return json!(cost),
        Cost::Part(part) => named(part, part.name().unwrap_or_default()),
        Cost::Bytes { .. } => json!({ "bytes": "request" }),
    };
    let (fallback, usual) = (limit.cost_fallback, CostFallback::default());
    if fallback.default != usual.default {
        value["default"] = fallback.default.into();
    }
    if fallback.denies_missing {
        value["missing"] = "deny".into();
    }
    if !fallback.denies_malformed {
        value["malformed"] = "default".into();
    }
    value
}

/// An override, whose id only its file has.
pub(crate) fn given(rules: &Rules, limit: &Limit, given: &Override) -> Value {
    let mut value = json!({
        "limit": limit.name,
        "source": "file",
        "place": rules.place_of(&given.origin),
        "comment": given.origin.comment,
        "until": given.until.and_then(timestamp),
    });
    numbers(&given.allowance, &mut value);
    value
}

/// A live override.
pub(crate) fn live(known: &KnownOverride) -> Value {
    let given = &known.given;
    let mut value = json!({
        "override": given.bucket,
        "limit": limit_of(&given.bucket),
        "source": "live",
        "place": "live",
        "numbers": serde_json::from_str::<Value>(&given.numbers).unwrap_or_default(),
        "comment": given.comment,
        "until": given.until.and_then(timestamp),
        "by": given.by,
        "at": timestamp(given.at),
        "inert": known.allowance.as_ref().err(),
    });
    numbers(known.allowance.as_ref().unwrap_or(&Allowance::Disabled), &mut value);
    value
}

/// Explains how each limit applies to a request, in the order of the files.
pub(crate) fn explanation(rules: &Rules, request: &Request<'_>, blocks: Option<&Blocks>) -> Value {
    let explanations = Explanation::of_limits(rules, request, blocks);
    let each = rules.limits().iter().zip(&explanations);
    let limits: Vec<Value> = each.map(|(limit, explanation)| explained(rules, limit, request, explanation)).collect();
    json!({ "request": self::request(request), "limits": limits })
}

fn request(request: &Request<'_>) -> Value {
    let descriptor = request.descriptor.iter().map(|entry| json!({ "key": entry.key, "value": entry.value }));
    let descriptor: Vec<Value> = descriptor.collect();
    if let Some(domain) = request.domain {
        return json!({ "domain": domain, "descriptor": descriptor });
    }
    json!({
        "method": request.method,
        "host": request.host,
        "path": request.path,
        "client": request.client,
        "descriptor": descriptor,
    })
}

fn explained(rules: &Rules, limit: &Limit, request: &Request<'_>, explanation: &Explanation) -> Value {
    let Explanation::Applies { id, bucket, allowance, candidates, given_by, cost, enforced, blocked, denied_for } =
        explanation
    else {
        let because = explanation.reason(limit, request);
        let mut value = json!({ "name": limit.name, "applies": false, "because": because });
        if let Explanation::Banned(left) = explanation {
            value["blocked_for"] = left.ceil_seconds().into();
        }
        return owned(limit, value);
    };
    let place = |origin: &OverrideOrigin| json!({ "place": rules.place_of(origin), "comment": origin.comment });
    let origin = given_by.as_ref().map(place);
    let mut value = json!({
        "name": limit.name,
        "applies": *allowance != Allowance::Disabled,
        "id": id.iter().map(|part| part.as_ref().ok()).collect::<Vec<_>>(),
        "bucket": bucket,
        "enforced": enforced,
        "cost": cost,
        "blocked_for": blocked.map(Micros::ceil_seconds),
        "fits": blocked.is_none() && *allowance != Allowance::Deny && !allowance.never_fits(*cost),
        "given_by": origin,
    });
    let disabled = "the limit has no numbers, and no override matches this id";
    let because = match allowance {
        _ if blocked.is_some() => Some("the id is blocked"),
        Allowance::Disabled => Some(disabled),
        _ => denied_for.as_ref().map(IdError::setting),
    };
    if let Some(because) = because {
        value["because"] = because.into();
    }
    numbers(allowance, &mut value);
    for CandidateUse { name, allowance, is_in_force } in candidates {
        let mut candidate = json!({ "enforced": is_in_force });
        if !is_in_force {
            numbers(allowance, &mut candidate);
        }
        *of_candidate(&mut value, name.as_deref()) = candidate;
    }
    owned(limit, value)
}

/// Adds the members that tell an allowance.
fn numbers(allowance: &Allowance, value: &mut Value) {
    value["allows"] = allows(allowance).into();
    let windows = allowance.windows().into_iter().flat_map(|windows| windows.iter());
    value["windows"] = windows.map(window).collect();
    if let Some(elevated) = allowance.elevated() {
        value["elevated"] = elevated.to_string().into();
    }
}

pub(crate) const fn allows(allowance: &Allowance) -> &'static str {
    match allowance {
        Allowance::Disabled => "nothing",
        Allowance::Unlimited => "unlimited",
        Allowance::Deny => "deny",
        Allowance::Windows(_) | Allowance::Elevated(_) => "windows",
    }
}

pub(crate) const fn mode(mode: LimitMode) -> &'static str {
    match mode {
        LimitMode::Enforce => "enforce",
        LimitMode::Shadow => "shadow",
        LimitMode::Off => "off",
    }
}

fn window(numbers: &Numbers) -> Value {
    json!({
        "algorithm": numbers.algorithm().name(),
        "allows": numbers.to_string(),
        "burst": numbers.burst(),
        "count": Some(numbers.count()).filter(|count| *count > 0),
        "period": Some(numbers.period()).filter(|period| *period > 0).map(|period| Span(period).to_string()),
    })
}

/// A part as a rules file writes it.
fn typed(by: &TypedPart) -> Value {
    let mut value = match by.part.name() {
        None if by.form == ValueType::Text => return by.to_string().into(),
        None => json!({ by.part.word(): true }),
        Some(name) => named(&by.part, name),
    };
    if by.form != ValueType::Text {
        value["as"] = by.form.name().into();
    }
    if let Some(duplicates) = by.duplicates.name() {
        value["duplicates"] = duplicates.into();
    }
    value
}

fn named(part: &Part, name: &str) -> Value {
    let mut value = json!({ part.word(): name });
    if let Part::Claim(ClaimRef { jwt: Some(jwt), .. }) = part {
        value["jwt"] = jwt.as_str().into();
    }
    value
}

/// The conditions that a limit has.
fn conditions(conditions: &Match) -> Value {
    fn texts<T: Display>(items: &[T]) -> Value {
        items.iter().map(T::to_string).collect()
    }
    let named = |word: &str, member: &str| -> Value {
        let those = conditions.parts.iter().filter(|wanted| wanted.part.word() == word);
        those.map(|wanted| json!({ member: wanted.part.name(), "wanted": wanted_value(&wanted.test) })).collect()
    };
    let mut all = Map::from_iter([
        ("methods".to_owned(), texts(&conditions.methods)),
        ("hosts".to_owned(), texts(&conditions.hosts)),
        ("not_hosts".to_owned(), texts(&conditions.other_hosts)),
        ("paths".to_owned(), texts(&conditions.paths)),
        ("not_paths".to_owned(), texts(&conditions.other_paths)),
        ("networks".to_owned(), texts(&conditions.networks)),
        ("not_networks".to_owned(), texts(&conditions.other_networks)),
        ("domains".to_owned(), texts(&conditions.domains)),
        ("headers".to_owned(), named("header", "name")),
        ("claims".to_owned(), named("claim", "name")),
        ("descriptor".to_owned(), named("descriptor", "key")),
    ]);
    all.retain(|_, value| value.as_array().is_some_and(|list| !list.is_empty()));
    Value::Object(all)
}

/// A time in whole seconds.
pub(crate) fn timestamp(time: Micros) -> Option<String> {
    let time = Timestamp::from_second(i64::try_from(time.0 / 1_000_000).ok()?);
    time.ok().map(|time| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Source, Sources, load};
    use crate::engine::limit::fingerprint::Fingerprinter;

    /// The only limit of a rules file with these settings, as JSON.
    fn read(settings: &str) -> Value {
        let text = format!(
            "jwt: {{ main: {{ issuer: a, audiences: [], jwks_url: 'https://a/' }} }}\n\
             limits: {{ A: {{ burst: 1, match: {{ path: '/{{p}}' }}, {settings} }} }}"
        );
        let source = Source { name: String::new(), text };
        let sources = Sources { limits: Some(source), ..Sources::default() };
        let loaded = load(&sources, Fingerprinter::new((1, 2)), Micros(0));
        let rules = loaded.rules.unwrap_or_else(|| panic!("{settings}: {}", loaded.report));
        limit(&rules.limits()[0])
    }

    #[test]
    fn parts_are_as_in_a_rules_file() {
        for by in [
            json!("ip/48"),
            json!("host"),
            json!("method"),
            json!("path"),
            json!("credentials"),
            json!({ "host": true, "as": "registered-domain" }),
            json!({ "header": "x-a", "as": "integer" }),
            json!({ "query": "q", "duplicates": "first" }),
            json!({ "cookie": "c", "duplicates": "last" }),
            json!({ "path": "p" }),
            json!({ "tls": "subject" }),
            json!({ "claim": "sub", "jwt": "main" }),
            json!({ "claim": "/a/b" }),
            json!({ "body": "/model" }),
            json!({ "descriptor": "tenant" }),
        ] {
            assert_eq!(read(&format!("by: {by}"))["by"], json!([by]));
        }
        for cost in [
            json!(7),
            json!({ "header": "x-a", "default": 5 }),
            json!({ "query": "q", "missing": "deny" }),
            json!({ "claim": "n", "jwt": "main" }),
            json!({ "body": "/n", "malformed": "default" }),
            json!({ "bytes": "request" }),
        ] {
            assert_eq!(read(&format!("cost: {cost}"))["cost"], cost);
        }
    }
}
