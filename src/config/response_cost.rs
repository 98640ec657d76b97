//! Reads `cost_from_response`, `reserve` and `spend_when`: costs that are known when the response has come.

use std::sync::Arc;

use super::lints::Lint;
use super::mapping::Mapping;
use super::node::{Key, Node};
use super::pointer::pointer;
use super::problem::{ReadResult, quoted};
use super::scalars::one_of;
use crate::engine::limit::identity::Fallback;
use crate::engine::limit::response_cost::{CostSource, ResponseCost, Statuses};
use crate::engine::limit::{Cost, Limit};
use crate::engine::request::body_cost::{BodyCost, Usage};

/// The keys of `cost_from_response`.
pub(super) const COST_KEYS: [&str; 5] = ["header", "json", "usage", "bytes", "reserve"];

/// The keys of `cost_from_response` that select its source.
const SOURCES: [&str; 4] = ["header", "json", "usage", "bytes"];

pub(super) const USAGES: [(&str, Usage); 3] =
    [(Usage::LABELS[0], Usage::OpenAi), (Usage::LABELS[1], Usage::Anthropic), (Usage::LABELS[2], Usage::Gemini)];

/// The messages whose bytes may be counted here.
pub(super) const BYTES: [(&str, CostSource); 1] = [("response", CostSource::Bytes)];

/// The keys of `spend_when`.
pub(super) const WHEN_KEYS: [&str; 1] = ["status"];

const POSITIVE: &str = "use 1 to let requests pass while any tokens are left";

/// Reads the three keys. A mistake in them leaves the limit as it is.
pub(super) fn read(map: &Mapping<'_>, limit: &mut Limit) -> ReadResult<()> {
    let from_response = map.read("cost_from_response", from_response);
    let when = map.read("spend_when", when);
    let reserve = map.read("reserve", reserve);
    if let (Cost::Bytes { .. }, Some((key, _))) = (&limit.cost, map.get("cost")) {
        if let Some((key, _)) = map.get("cost_from_response") {
            let help = "remove one of them, or write two limits";
            return Err(key.error("`cost: { bytes: request }` and `cost_from_response` are two costs", help));
        }
        let (when, reserve) = (when?, reserve?);
        check(limit, key, "the body")?;
        limit.cost = Cost::Bytes { reserve: reserve.unwrap_or(1) };
        limit.response_cost = Some(Arc::new(ResponseCost { source: Some(CostSource::RequestBytes), when }));
        return Ok(());
    }
    let Some((key, _)) = map.first(&["cost_from_response", "spend_when"]) else {
        let Some((key, _)) = map.get("reserve") else { return Ok(()) };
        let help = "add `cost_from_response: { header: NAME }`, or use `cost`";
        return Err(key.error("`reserve` needs `cost_from_response`", help));
    };
    let ((source, inner), when, reserve) = (from_response?.unzip(), when?, reserve?);
    let inner = inner.flatten();
    if inner.is_some() && reserve.is_some() {
        return Err(key.error("`reserve` is set twice", "remove one of them"));
    }
    if let (Some((key, _)), None) = (map.get("reserve"), &source) {
        let help = "use `cost`, which is charged if the status matches";
        return Err(key.error("`reserve` needs `cost_from_response`", help));
    }
    check(limit, key, "the response")?;
    if let Some(reserve) = inner.or(reserve) {
        if let Some((key, _)) = map.get("cost") {
            key.warning(Lint::NoEffect, "`cost` has no effect with `reserve`", "remove one of them");
        }
        limit.cost = Cost::Fixed(reserve);
    }
    if limit.cost == Cost::Fixed(0) {
        return Err(key.error("with a cost of 0 before the response, the limit never denies anything", POSITIVE));
    }
    limit.response_cost = Some(Arc::new(ResponseCost { source, when }));
    Ok(())
}

/// Rejects limits without tokens to settle, and limits that never see `what`.
fn check(limit: &Limit, key: &Key, what: &str) -> ReadResult<()> {
    let name = &key.text;
    if !limit.algorithm.has_tokens() {
        let message = format!("`{name}` does not apply to `algorithm: {}`", limit.algorithm.name());
        let help = "it has no tokens to settle later; use an algorithm that counts tokens, such as gcra";
        return Err(key.error(message, help));
    }
    let conditions = &limit.conditions;
    let reason = if !conditions.domains.is_empty() {
        "`match: { domain }`"
    } else if conditions.needs_descriptor() {
        "`match: { descriptor }`"
    } else if limit.is_by_entry() && limit.missing != Fallback::Shared {
        "`by: { descriptor }`"
    } else {
        return Ok(());
    };
    let message = format!("`{name}` needs {what}, and a limit with {reason} never sees one");
    Err(key.error(message, "only the proxy sees responses and bodies; remove it, and let the caller report the cost"))
}

fn from_response(node: &Node) -> ReadResult<(CostSource, Option<u64>)> {
    let map = Mapping::of(node, "`cost_from_response`", &COST_KEYS)?;
    let reserve = map.read("reserve", reserve);
    let [(key, value)] = map.all(&SOURCES)[..] else {
        let help = "write `{ header: x-tokens-used }`, `{ json: /usage/total_tokens }`, `{ usage: openai }` or \
                    `{ bytes: response }`";
        return Err(map.lacks("`cost_from_response` needs exactly one source", help));
    };
    let source = match key.text.as_str() {
        "header" => CostSource::Header(value.header_name()?),
        "json" => CostSource::Body(BodyCost::Json(pointer(value)?)),
        "usage" => CostSource::Body(BodyCost::Usage(one_of(&USAGES)(value)?)),
        _ => one_of(&BYTES)(value)?,
    };
    Ok((source, reserve?))
}

/// Reads the tokens that are taken before the response.
fn reserve(node: &Node) -> ReadResult<u64> {
    node.positive("with a reserve of 0, the limit never denies anything", POSITIVE)
}

fn when(node: &Node) -> ReadResult<Statuses> {
    let map = Mapping::of(node, "`spend_when`", &WHEN_KEYS)?;
    map.need("status", "write `spend_when: { status: [401, 403] }`")?.each(status).map(Statuses)
}

/// Reads a code or a class of codes, as the first and the last code.
fn status(node: &Node) -> ReadResult<(u16, u16)> {
    let given = node.text()?;
    let code = |text: &str| text.parse::<u16>().ok().filter(|_| given.len() == 3);
    match (given.strip_suffix("xx").and_then(code), code(given)) {
        (Some(class @ 2..=5), _) => Ok((class * 100, class * 100 + 99)),
        (_, Some(code @ (101 | 200..=599))) => Ok((code, code)),
        _ => {
            let help = "use 101, a code from 200 to 599, or a class such as 4xx";
            Err(node.error(format!("invalid status code {}", quoted(given)), help))
        }
    }
}
