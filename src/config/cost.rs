//! Reads `cost`: a number, or the part of a request that has it.

use super::jwt;
use super::mapping::Mapping;
use super::node::{Node, Value};
use super::pointer::pointer;
use super::problem::ReadResult;
use crate::engine::rules::claims::ClaimRef;
use crate::engine::rules::limit::Cost;

/// The keys of a `cost` that the request carries.
pub(super) const COST_KEYS: [&str; 5] = ["header", "query", "claim", "jwt", "body"];

const COST_SOURCES: [&str; 4] = ["header", "query", "claim", "body"];

pub(super) fn cost(node: &Node) -> ReadResult<Cost> {
    if !matches!(node.value, Value::Map(_)) {
        return node.whole().map(Cost::Fixed);
    }
    let map = Mapping::of(node, "`cost`", &COST_KEYS)?;
    let jwt = map.read("jwt", |node| node.text().map(str::to_owned))?;
    match map.all(&COST_SOURCES)[..] {
        [(key, name)] if key.text == "claim" => jwt::claim(name).map(|path| Cost::Claim(ClaimRef::new(jwt, path))),
        _ if jwt.is_some() => Err(node.error("`jwt` needs `claim`", "write `{ claim: NAME, jwt: NAME }`")),
        [(key, name)] if key.text == "header" => name.header_name().map(Cost::Header),
        [(key, name)] if key.text == "body" => pointer(name).map(Cost::Body),
        [(_, name)] => name.text().map(|name| Cost::Query(name.to_owned())),
        _ => {
            let help = "write a number, `{ header: NAME }`, `{ query: NAME }`, `{ claim: NAME }` or `{ body: /NAME }`";
            Err(node.error("`cost` needs exactly one source", help))
        }
    }
}
