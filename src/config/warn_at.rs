//! Reads `warn_at`: the shares of what a limit allows at which it warns.

use super::mapping::Mapping;
use super::node::{Key, Node, Value};
use super::problem::{ReadResult, ReportedError, quoted};
use crate::engine::algorithms::algorithm::Algorithm;
use crate::engine::limit::Limit;
use crate::engine::limit::warning::{MOST_SHARES, WarnAt};

const EXAMPLE: &str = "write whole percentages from 1% to 100%, such as `warn_at: [80%, 100%]`";

/// Reads the `warn_at` of a limit.
pub(super) fn read(map: &Mapping<'_>, limit: &mut Limit) {
    map.set("warn_at", &mut limit.warn_at, |node| shares(node).map(Some));
    let Some((key, _)) = map.get("warn_at") else { return };
    let (Ok(()) | Err(ReportedError)) = check(map, key, limit);
}

fn shares(node: &Node) -> ReadResult<WarnAt> {
    let items = if let Value::List(items) = &node.value { &items[..] } else { std::slice::from_ref(node) };
    if items.is_empty() || items.len() > MOST_SHARES {
        return Err(node.error(format!("`warn_at` has 1 to {MOST_SHARES} percentages"), EXAMPLE));
    }
    let mut shares: Vec<u8> = Vec::with_capacity(items.len());
    for item in items {
        let text = item.text()?;
        let share = text.strip_suffix('%').filter(|digits| !digits.starts_with(['+', '0']));
        match share.and_then(|digits| digits.parse().ok()).filter(|share| *share <= 100) {
            Some(share) if shares.last().is_none_or(|last| *last < share) => shares.push(share),
            Some(_) => return Err(item.error("the percentages of `warn_at` must ascend", EXAMPLE)),
            None => return Err(item.error(format!("invalid percentage {}", quoted(text)), EXAMPLE)),
        }
    }
    Ok(WarnAt::new(shares))
}

/// Rejects what has no usage to warn of.
fn check(map: &Mapping<'_>, key: &Key, limit: &Limit) -> ReadResult<()> {
    let is_set = |other: &str| {
        map.get(other).is_some_and(|(_, node)| !matches!(&node.value, Value::Scalar { text, .. } if text == "false"))
    };
    let (other, why) = match limit.algorithm {
        Algorithm::Queue => ("`algorithm: queue`", "a full queue says nothing about who adds to it"),
        Algorithm::Script => ("`algorithm: script`", "only the script knows how much is used"),
        _ if limit.lease.is_some() => ("`lease`", "no gateway knows what the others have used of their leased tokens"),
        _ if is_set("unlimited") => ("`unlimited`", "nothing can be used up"),
        _ if is_set("deny") => ("`deny`", "nothing can be used up"),
        _ => return Ok(()),
    };
    Err(key.error(format!("`warn_at` and {other} cannot be combined"), why))
}
