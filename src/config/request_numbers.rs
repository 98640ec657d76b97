//! Reads numbers that requests bring: `count: { claim: /limits/rpm, at_most: 10000, default: 60 }`.

use super::by;
use super::jwt;
use super::mapping::Mapping;
use super::node::{Node, Value};
use super::problem::{ReadResult, ReportedError};
use crate::engine::algorithms::numbers::NumbersError;
use crate::engine::limit::Limit;
use crate::engine::limit::allowance::Allowance;
use crate::engine::limit::request_numbers::{NumberSource, RequestNumbers};

pub(super) const KEYS: [&str; 5] = ["header", "claim", "jwt", "at_most", "default"];

/// The keys of a limit that may name a part of the request.
const NUMBERS: [&str; 3] = ["burst", "count", "capacity"];

const EXAMPLE: &str = "write `{ claim: /limits/rpm, at_most: 10000, default: 60 }`";

/// Reads the limit's own number: the value, or the `default` beside the part of the request that has it.
pub(super) fn own(node: &Node, zero: NumbersError) -> ReadResult<u64> {
    const HELP: &str = "write `deny: true` to deny every request";
    if !matches!(node.value, Value::Map(_)) {
        return node.positive(zero.to_string(), HELP);
    }
    let map = Mapping::of(node, "a number of the request", &KEYS)?;
    let default = map.need("default", &format!("{EXAMPLE}; `default` is for requests without the number"));
    default?.positive(zero.to_string(), HELP)
}

/// Rejects numbers that requests bring where only a limit can have them.
pub(super) fn reject(map: &Mapping<'_>, what: &str) -> ReadResult<()> {
    for key in NUMBERS {
        if let Some((_, node)) = map.get(key).filter(|(_, node)| matches!(node.value, Value::Map(_))) {
            return Err(node.error(format!("{what} cannot have numbers of the request"), "write a whole number"));
        }
    }
    Ok(())
}

/// Reads the parts of requests that have a limit's numbers.
pub(super) fn read(map: &Mapping<'_>, limit: &mut Limit) {
    let (Ok(()) | Err(ReportedError)) = sources(map, limit);
}

fn sources(map: &Mapping<'_>, limit: &mut Limit) -> ReadResult<()> {
    let given = map.all(&NUMBERS).into_iter().filter(|(_, node)| matches!(node.value, Value::Map(_)));
    let mut found = RequestNumbers { burst_is_count: map.get("burst").is_none(), ..RequestNumbers::default() };
    let mut last = None;
    for (key, node) in given {
        let source = source(node)?;
        if key.text == "count" {
            found.count = Some(source);
        } else {
            found.burst = Some(source);
        }
        last = Some((key, node));
    }
    let Some((key, node)) = last else { return Ok(()) };
    let [own] = (if let Allowance::Windows(windows) = &limit.allowance { &windows[..] } else { &[] }) else {
        let help = "remove `elevated`, or write a whole number";
        return Err(key.error("numbers of the request need a limit with one window", help));
    };
    if limit.lease.is_some() {
        let help = "remove `lease`: a gateway leases tokens by the limit's own numbers";
        return Err(key.error("`lease` and numbers of the request cannot be combined", help));
    }
    if own.is_slots() {
        // `count` is another name for the capacity.
        found.burst = found.burst.take().or(found.count.take());
    }
    let (burst, count) = (found.burst.as_ref(), found.count.as_ref());
    let most = |source: Option<&NumberSource>| source.map(|source| source.at_most);
    let least = |source: Option<&NumberSource>| source.map(|_| 1);
    // What fits for the least and for the most fits for all between.
    let extremes = [(most(burst), most(count)), (most(burst), least(count)), (least(burst), most(count))];
    if extremes.into_iter().any(|(burst, count)| found.resized(own, burst, count).is_none()) {
        let help = "lower `at_most`, or choose a shorter period";
        return Err(node.error("the limit cannot have numbers from 1 to `at_most`", help));
    }
    limit.request_numbers = Some(Box::new(found));
    Ok(())
}

fn source(node: &Node) -> ReadResult<NumberSource> {
    let map = Mapping::of(node, "a number of the request", &KEYS)?;
    let jwt = map.read(jwt::KEY, |node| node.text().map(str::to_owned))?;
    let part = match map.all(&["header", "claim"])[..] {
        [(key, name)] if key.text == "claim" => by::named(key, name, jwt)?,
        _ if jwt.is_some() => return Err(map.lacks("`jwt` needs `claim`", "write `{ claim: NAME, jwt: NAME }`")),
        [(key, name)] => by::named(key, name, None)?,
        _ => return Err(map.lacks("a number of the request is in a `claim` or a `header`", EXAMPLE)),
    };
    let at_most = map.need("at_most", &format!("{EXAMPLE}; `at_most` bounds what a request can bring"))?;
    let bound = at_most.positive("`at_most` must be at least 1", EXAMPLE)?;
    let default = map.need("default", EXAMPLE)?.whole()?;
    if bound < default {
        return Err(at_most.error("`at_most` is less than `default`", "raise it"));
    }
    Ok(NumberSource { part, at_most: bound })
}
