//! `delay` of limits with `algorithm: gcra` or `fixed_window`: how long a request may wait until it fits.

use super::mapping::Mapping;
use super::node::{Key, Node, Value};
use super::problem::{ReadResult, ReportedError};
use crate::engine::algorithms::delay::{LONGEST_DELAY, SHORTEST_DELAY};
use crate::engine::algorithms::micros::Micros;
use crate::engine::limit::Limit;
use crate::engine::limit::allowance::Allowance;

/// Reads the `delay` of a limit.
pub(super) fn read(map: &Mapping<'_>, limit: &mut Limit) {
    map.set("delay", &mut limit.delay, |node| delay(node).map(Some));
}

fn delay(node: &Node) -> ReadResult<Micros> {
    let nanoseconds = node.duration()?;
    let micros = nanoseconds / 1_000;
    if nanoseconds.is_multiple_of(1_000) && (SHORTEST_DELAY..=LONGEST_DELAY).contains(&micros) {
        return Ok(Micros(micros));
    }
    let help = "a client waits this long at most; 500ms is a start, and without `delay` it is denied at once";
    Err(node.error("a delay is 1ms to 10m long, in whole microseconds", help))
}

/// Rejects what a delay cannot be combined with.
pub(super) fn check(map: &Mapping<'_>, limit: &Limit) {
    let Some((key, _)) = map.get("delay") else { return };
    let (Ok(()) | Err(ReportedError)) = combined(map, limit, key);
}

fn combined(map: &Mapping<'_>, limit: &Limit, key: &Key) -> ReadResult<()> {
    for (other, why) in [
        ("lease", "a gateway with leased tokens decides alone, and could not keep the order of arrival"),
        ("elevated", "elevated numbers switch on when the bucket is empty, which a delay prevents"),
        ("cost_from_response", "requests behind it would be charged before its cost is known"),
        ("spend_when", "requests behind it would be charged before its cost is known"),
        ("drain_over_limit", "it takes what is left instead of waiting"),
        ("unlimited", "there is nothing to wait for"),
        ("deny", "there is nothing to wait for"),
    ] {
        let is_set = map
            .get(other)
            .is_some_and(|(_, node)| !matches!(&node.value, Value::Scalar { text, .. } if text == "false"));
        if is_set {
            return Err(
                key.error(format!("`delay` and `{other}` cannot be combined"), format!("remove one of them; {why}"))
            );
        }
    }
    let windows = if let Allowance::Windows(windows) = &limit.allowance { &windows[..] } else { &[] };
    if windows.iter().any(|numbers| numbers.count() == 0) {
        return Err(key.error("`delay` needs tokens that come back", "add `count` and `period`, or remove `delay`"));
    }
    Ok(())
}

/// Rejects `delay` in an override.
pub(super) fn check_override(map: &Mapping<'_>) -> ReadResult<()> {
    let Some((key, _)) = map.get("delay") else { return Ok(()) };
    Err(key.error("an override cannot have a `delay`", "set it on the limit; ids with other numbers wait as long"))
}
