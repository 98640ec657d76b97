//! `lease` of limits with `algorithm: gcra` or `fixed_window`: the tokens that a worker takes ahead of use.

use super::mapping::Mapping;
use super::node::{Node, Value};
use super::problem::ReadResult;
use crate::engine::algorithms::lease::{LONGEST_LEASE, LeaseTerms, SHORTEST_LEASE};
use crate::engine::limit::Limit;

pub(super) const KEYS: [&str; 2] = ["tokens", "for"];

const EXAMPLE: &str = "write `lease: { tokens: 50, for: 100ms }`";

/// Reads the `lease` of a limit.
pub(super) fn read(map: &Mapping<'_>, limit: &mut Limit) {
    map.set("lease", &mut limit.lease, |node| terms(node).map(Some));
}

fn terms(node: &Node) -> ReadResult<LeaseTerms> {
    if !matches!(node.value, Value::Map(_)) {
        let message = format!("`lease` must be a map, found {}", node.kind());
        return Err(node.error(message, format!("{EXAMPLE}; a duration needs `algorithm: concurrency`")));
    }
    let map = Mapping::of(node, "`lease`", &KEYS)?;
    let tokens = map.need("tokens", EXAMPLE).and_then(tokens);
    let span = map.need("for", EXAMPLE).and_then(span);
    Ok(LeaseTerms { tokens: tokens?, span: span? })
}

fn tokens(node: &Node) -> ReadResult<u32> {
    let tokens =
        node.positive("a lease must have at least 1 token", "remove `lease` to charge each request in Redis")?;
    u32::try_from(tokens).map_err(|_| node.error("a lease has too many tokens", format!("use at most {}", u32::MAX)))
}

/// Reads the length of a lease, in microseconds.
fn span(node: &Node) -> ReadResult<u32> {
    let nanoseconds = node.duration()?;
    let span = u32::try_from(nanoseconds / 1_000).ok().filter(|span| {
        nanoseconds.is_multiple_of(1_000) && (SHORTEST_LEASE..=LONGEST_LEASE).contains(&u64::from(*span))
    });
    span.ok_or_else(|| {
        let help = "a gateway that dies takes its tokens along until then; 100ms is a start";
        node.error("a lease of tokens is 1ms to 10s long, in whole microseconds", help)
    })
}

/// Rejects what leases cannot be combined with.
pub(super) fn check(map: &Mapping<'_>, limit: &Limit) {
    if let Some((key, _)) = map.get("lease").filter(|_| limit.allowance.elevated().is_some()) {
        let help = "remove one of them; elevated numbers switch on when the bucket is empty, which a lease would hide";
        key.error("`lease` and `elevated` cannot be combined", help);
    }
}

/// Rejects `lease` in an override.
pub(super) fn check_override(map: &Mapping<'_>) -> ReadResult<()> {
    let Some((key, _)) = map.get("lease") else { return Ok(()) };
    let help = "set it on the limit; ids with other numbers lease by the same terms";
    Err(key.error("an override cannot have a `lease` of tokens", help))
}
