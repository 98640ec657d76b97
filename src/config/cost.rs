//! Reads `cost`: a number, or the part of a request that has it.

use super::by;
use super::mapping::Mapping;
use super::node::{Node, Value};
use super::problem::ReadResult;
use super::scalars::one_of;
use crate::engine::limit::{Cost, Limit};

/// The keys of a `cost` that the request carries.
pub(super) const COST_KEYS: [&str; 9] =
    ["header", "query", "claim", "jwt", "body", "bytes", "default", "missing", "malformed"];

/// The values of `missing` and `malformed` of a cost: whether they deny.
pub(super) const FALLBACKS: [(&str, bool); 2] = [("default", false), ("deny", true)];

/// The messages whose bytes may be counted here. A request that does not announce them takes at least one token before it passes.
pub(super) const BYTES: [(&str, Cost); 1] = [("request", Cost::Bytes { reserve: 1 })];

const COST_SOURCES: [&str; 5] = ["header", "query", "claim", "body", "bytes"];

/// Reads `cost` into a limit. What has a mistake keeps its default.
pub(super) fn read(node: &Node, limit: &mut Limit) -> ReadResult<()> {
    if !matches!(node.value, Value::Map(_)) {
        limit.cost = Cost::Fixed(node.whole()?);
        return Ok(());
    }
    let map = Mapping::of(node, "`cost`", &COST_KEYS)?;
    let fallback = &mut limit.cost_fallback;
    map.set("default", &mut fallback.default, Node::whole);
    map.set("missing", &mut fallback.denies_missing, one_of(&FALLBACKS));
    map.set("malformed", &mut fallback.denies_malformed, one_of(&FALLBACKS));
    limit.cost = source(&map)?;
    if let (Cost::Bytes { .. }, Some((key, _))) = (&limit.cost, map.first(&["default", "missing", "malformed"])) {
        let help = "remove it; `reserve` is the cost until the length of the body is known";
        return Err(key.error(format!("`{}` does not apply to `bytes`", key.text), help));
    }
    Ok(())
}

fn source(map: &Mapping<'_>) -> ReadResult<Cost> {
    let jwt = map.read("jwt", |node| node.text().map(str::to_owned))?;
    match map.all(&COST_SOURCES)[..] {
        [(key, name)] if key.text == "claim" => by::named(key, name, jwt).map(Cost::Part),
        _ if jwt.is_some() => Err(map.lacks("`jwt` needs `claim`", "write `{ claim: NAME, jwt: NAME }`")),
        [(key, name)] if key.text == "bytes" => bytes(name),
        [(key, name)] => by::named(key, name, None).map(Cost::Part),
        _ => {
            let help = "write a number, `{ header: NAME }`, `{ query: NAME }`, `{ claim: NAME }`, `{ body: /NAME }` or \
                        `{ bytes: request }`";
            Err(map.lacks("`cost` needs exactly one source", help))
        }
    }
}

fn bytes(node: &Node) -> ReadResult<Cost> {
    if node.text()? == "response" {
        let help = "write `cost_from_response: { bytes: response }`";
        return Err(node.error("the bytes of the response are not known before it comes", help));
    }
    one_of(&BYTES)(node)
}
