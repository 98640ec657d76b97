//! `GET /top?limit=NAME&n=20`: the ids that limits denied most in the last 5 to 10 minutes.
//!
//! `limits` has denials, `shadow` those of limits in shadow, and `candidates` what candidates would have denied. Ids are in clear, because
//! who may read them may look at any bucket; `hash` is what the log shows for one. `denied` is at most `error` too high.

use serde_json::{Map, Value, json};

use super::Admin;
use super::buckets::json_reply;
use super::change::Rejection;
use crate::engine::text::quote::quoted;
use crate::message::percent::decode;
use crate::message::reply::Reply;
use crate::telemetry::most_denied::{DenialKind, MOST_IDS};

/// The ids of a list, unless the request says how many.
const DEFAULT_IDS: usize = 20;

/// The parameters of a request.
#[derive(Debug, PartialEq, Eq)]
struct Parameters {
    limit: Option<String>,
    ids: usize,
}

impl Admin {
    pub(super) fn top(&self, query: Option<&str>) -> Reply {
        self.most_denied(query).unwrap_or_else(Rejection::reply)
    }

    fn most_denied(&self, query: Option<&str>) -> Result<Reply, Rejection> {
        let Parameters { limit, ids } = parse(query.unwrap_or("")).map_err(Rejection::bad)?;
        let mut kinds: [Map<String, Value>; DenialKind::ALL.len()] = Default::default();
        for list in self.operator.top(limit.as_deref(), ids)? {
            let ids = list
                .ids
                .iter()
                .map(|id| json!({ "id": id.id, "hash": id.hash, "denied": id.denied, "error": id.error }));
            kinds[list.kind as usize].insert(list.limit, ids.collect());
        }
        let [limits, shadow, candidates] = kinds;
        Ok(json_reply(&json!({ "limits": limits, "shadow": shadow, "candidates": candidates })))
    }
}

fn parse(query: &str) -> Result<Parameters, String> {
    let mut parameters = Parameters { limit: None, ids: DEFAULT_IDS };
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = decode(value);
        match name {
            "limit" => parameters.limit = Some(value.into_owned()),
            "n" => {
                let ids = value.parse().ok().filter(|ids| (1..=MOST_IDS).contains(ids));
                parameters.ids =
                    ids.ok_or_else(|| format!("`n` must be a number from 1 to {MOST_IDS}, found {}", quoted(&value)))?;
            }
            _ => return Err(format!("unknown parameter {}; there are `limit` and `n`", quoted(name))),
        }
    }
    Ok(parameters)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_optional_and_checked() {
        let all = |limit: Option<&str>, ids| Ok(Parameters { limit: limit.map(str::to_owned), ids });
        for (query, expected) in [
            ("", all(None, 20)),
            ("limit=a%2Fb&n=64", all(Some("a/b"), 64)),
            ("n=1&", all(None, 1)),
            ("n=65", Err("`n` must be a number from 1 to 64, found `65`".to_owned())),
            ("n=0", Err("`n` must be a number from 1 to 64, found `0`".to_owned())),
            ("n", Err("`n` must be a number from 1 to 64, found ``".to_owned())),
            ("limits=a", Err("unknown parameter `limits`; there are `limit` and `n`".to_owned())),
        ] {
            assert_eq!(parse(query), expected, "{query}");
        }
    }
}
