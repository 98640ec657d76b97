//! What a request costs that its response tells: `cost_from_response`, `reserve` and `spend_when` of a limit.

use std::sync::Arc;

use super::by;
use super::mapping::{Mapping, all, one_or_more};
use super::problem::{Findings, Reported, quoted};
use super::scalars::{positive, text};
use super::yaml::{Key, Node};
use crate::engine::rules::component::ComponentSource;
use crate::engine::rules::identity::Fallback;
use crate::engine::rules::limit::{Cost, Limit};
use crate::engine::rules::matching::DescriptorMatch;
use crate::engine::rules::response_cost::{ResponseCost, Statuses};

/// The fields of `cost_from_response`.
pub(super) const COST_KEYS: [&str; 2] = ["header", "reserve"];

/// The fields of `spend_when`.
pub(super) const WHEN_KEYS: [&str; 1] = ["status"];

/// Algorithms that keep no tokens which a response could give back or take.
const WITHOUT_TOKENS: [&str; 3] = ["concurrency", "queue", "script"];

const POSITIVE: &str = "use 1 to let requests pass while any tokens are left";

/// Reads what the response tells. What is wrong has been reported, and the limit is as without it.
pub(super) fn read(fields: &Mapping<'_>, limit: &mut Limit, findings: &mut Findings) {
    let from_response = fields.read("cost_from_response", findings, from_response);
    let when = fields.read("spend_when", findings, when);
    let reserve = fields.read("reserve", findings, reserve);
    let Some(key) = ["cost_from_response", "spend_when"].iter().find_map(|name| fields.get(name).map(|(key, _)| key))
    else {
        if let Some((key, _)) = fields.get("reserve") {
            let help = "add `cost_from_response: { header: NAME }`, or use `cost`";
            findings.error(key.place, "`reserve` needs `cost_from_response`", help);
        }
        return;
    };
    let (Ok(from_response), Ok(when), Ok(reserve)) = (from_response, when, reserve) else { return };
    let (field, inner) = from_response.unzip();
    let reserve = match (inner.flatten(), reserve) {
        (Some(_), Some(_)) => {
            findings.error(key.place, "`reserve` is set twice", "remove one of them");
            return;
        }
        (inner, outer) => inner.or(outer),
    };
    if let (Some((reserve_key, _)), true) = (fields.get("reserve"), field.is_none()) {
        let help = "use `cost`, which is charged if the status matches";
        findings.error(reserve_key.place, "`reserve` needs `cost_from_response`", help);
        return;
    }
    if check(fields, limit, key, findings).is_err() {
        return;
    }
    if let Some(reserve) = reserve {
        if let Some((key, _)) = fields.get("cost") {
            findings.warning(key.place, "`cost` has no effect with `reserve`", "remove one of them");
        }
        limit.cost = Cost::Fixed(reserve);
    }
    if limit.cost == Cost::Fixed(0) {
        findings.error(key.place, "with a cost of 0 before the response, the limit never denies anything", POSITIVE);
        return;
    }
    limit.response_cost = Some(Arc::new(ResponseCost { header: field, when }));
}

/// Refuses limits that nothing can be settled with, or that no response is ever seen of.
fn check(fields: &Mapping<'_>, limit: &Limit, key: &Key, findings: &mut Findings) -> Result<(), Reported> {
    let name = &key.text;
    if let Some((_, node)) = fields.get("algorithm")
        && let Ok(algorithm) = text(node, &mut Findings::new(""))
        && WITHOUT_TOKENS.contains(&algorithm)
    {
        let message = format!("`{name}` does not apply to `algorithm: {algorithm}`");
        let help = "it has no tokens to settle later; use gcra, fixed_window, sliding_log or sliding_window";
        return Err(findings.error(key.place, message, help));
    }
    let conditions = &limit.conditions;
    let asks_descriptor = limit.by.iter().any(|component| matches!(component.source, ComponentSource::Descriptor(_)));
    let has_entries = match &conditions.descriptor {
        DescriptorMatch::Each(entries) | DescriptorMatch::Whole(entries) => {
            entries.iter().any(|entry| entry.test.needs_entry())
        }
    };
    let reason = if !conditions.domains.is_empty() {
        "`match: { domain }`"
    } else if has_entries {
        "`match: { descriptor }`"
    } else if asks_descriptor && limit.missing != Fallback::Shared {
        "`by: { descriptor }`"
    } else {
        return Ok(());
    };
    let message = format!("`{name}` needs the response, and a limit with {reason} never sees one");
    let help = "only the proxy sees responses; remove it, and let the caller report the cost";
    Err(findings.error(key.place, message, help))
}

fn from_response(node: &Node, findings: &mut Findings) -> Result<(http::HeaderName, Option<u64>), Reported> {
    let fields = Mapping::of(node, "`cost_from_response`", &COST_KEYS, findings)?;
    let header = fields.read("header", findings, by::header_name);
    let reserve = fields.read("reserve", findings, reserve);
    if let Some(header) = header? {
        return Ok((header, reserve?));
    }
    let help = "write `cost_from_response: { header: x-tokens-used }`; a trailer with that name also counts";
    Err(findings.error(node.place, "`cost_from_response` needs `header`", help))
}

/// What is taken before.
fn reserve(node: &Node, findings: &mut Findings) -> Result<u64, Reported> {
    positive(node, "with a reserve of 0, the limit never denies anything", POSITIVE, findings)
}

fn when(node: &Node, findings: &mut Findings) -> Result<Statuses, Reported> {
    let fields = Mapping::of(node, "`spend_when`", &WHEN_KEYS, findings)?;
    let Some((_, codes)) = fields.get("status") else {
        let help = "write `spend_when: { status: [401, 403] }`";
        return Err(findings.error(node.place, "`spend_when` needs `status`", help));
    };
    all(one_or_more(codes, findings)?.iter().map(|code| status(code, findings))).map(Statuses)
}

/// A code, or a class of them.
fn status(node: &Node, findings: &mut Findings) -> Result<(u16, u16), Reported> {
    let given = text(node, findings)?;
    let class =
        given.strip_suffix("xx").and_then(|class| class.parse::<u16>().ok()).filter(|class| (2..=5).contains(class));
    let code = given.parse::<u16>().ok().filter(|code| given.len() == 3 && matches!(code, 101 | 200..=599));
    match (class, code) {
        (Some(class), _) if given.len() == 3 => Ok((class * 100, class * 100 + 99)),
        (_, Some(code)) => Ok((code, code)),
        _ => {
            let help = "use 101, a code from 200 to 599, or a class such as 4xx";
            Err(findings.error(node.place, format!("invalid status code {}", quoted(given)), help))
        }
    }
}
