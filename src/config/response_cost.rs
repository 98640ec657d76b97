//! Reads `cost_from_response`, `reserve` and `spend_when`: costs that are known when the response has come.

use std::sync::Arc;

use super::lints::Lint;
use super::mapping::{Mapping, all};
use super::node::{Key, Node, Value};
use super::pointer::pointer;
use super::problem::{ReadResult, quoted};
use super::scalars::{decimal, one_of};
use crate::engine::limit::identity::Fallback;
use crate::engine::limit::response_cost::{CostSource, ResponseCost, Statuses};
use crate::engine::limit::{Cost, Limit};
use crate::engine::request::body_cost::BodyCost;
use crate::engine::request::token_usage::{TokenKind, TokenWeights, Usage};

/// The keys of `cost_from_response`.
pub(super) const COST_KEYS: [&str; 6] = ["header", "json", "usage", "bytes", "weights", "reserve"];

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
    if let (Some((weights, _)), false) = (map.get("weights"), key.text == "usage") {
        return Err(weights.error("`weights` needs `usage`", "only the usage of a model's API has kinds of tokens"));
    }
    let source = match key.text.as_str() {
        "header" => CostSource::Header(value.header_name()?),
        "json" => CostSource::Body(BodyCost::Json(pointer(value)?)),
        "usage" => {
            let usage = one_of(&USAGES)(value)?;
            CostSource::Body(BodyCost::Usage(usage, map.read("weights", |node| weights(node, usage))?))
        }
        _ => one_of(&BYTES)(value)?,
    };
    Ok((source, reserve?))
}

/// Reads the weights of kinds of tokens. Not every API reports all kinds.
fn weights(node: &Node, usage: Usage) -> ReadResult<TokenWeights> {
    let map = Mapping::of(node, "`weights`", &TokenKind::LABELS)?;
    let given = all(TokenKind::LABELS.iter().map(|kind| map.read(kind, weight)))?;
    let weights = TokenWeights::new(|kind| given.get(kind as usize).copied().flatten());
    if map.keys().next().is_none() {
        return Err(map.lacks("`weights` has no kinds of tokens", "write `{ input: 1, cached_input: 0.1, output: 4 }`"));
    }
    if weights.are_free() {
        return Err(node.error("with weights of 0, no token costs anything", "use more than 0 for at least one kind"));
    }
    if weights == TokenWeights::EQUAL {
        node.warning(Lint::NoEffect, "weights of 1 have no effect", "remove `weights`");
    }
    for kind in TokenKind::ALL.into_iter().filter(|kind| !usage.reports(*kind)) {
        let Some((key, _)) = map.get(kind.label()) else { continue };
        let message = format!("`{}` does not report `{}` tokens", usage.label(), kind.label());
        key.warning(Lint::NoEffect, message, "remove the weight");
    }
    Ok(weights)
}

/// Reads a weight in thousandths.
fn weight(node: &Node) -> ReadResult<u32> {
    let given = node.text()?;
    let is_number = matches!(node.value, Value::Scalar { plain: true, .. });
    let is_octal = given.starts_with('0') && given.len() > 1 && !given.starts_with("0.");
    let parsed = decimal(given, 3).filter(|weight| is_number && !is_octal && *weight <= TokenWeights::LARGEST);
    parsed.ok_or_else(|| {
        let help = "use a number from 0 to 1000 with up to three decimals, such as 0.125";
        node.error(format!("invalid weight {}", quoted(given)), help)
    })
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
