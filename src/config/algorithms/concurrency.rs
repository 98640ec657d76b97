//! `algorithm: concurrency`: requests in flight, each of which holds a slot. Keys: `capacity`, `lease`.

use super::super::mapping::Mapping;
use super::super::problem::{Findings, Reported};
use super::super::scalars::{positive, text};
use super::super::yaml::Node;
use super::{DEFAULT_LEASE, Entry, Settings, reject_token_keys};
use crate::engine::algorithms::concurrency::{LONGEST_LEASE, SHORTEST_LEASE};
use crate::engine::algorithms::numbers::{Numbers, NumbersError};
use crate::engine::rules::component::{Component, ComponentSource};
use crate::engine::rules::duration;
use crate::engine::rules::identity::Fallback;
use crate::engine::rules::limit::{Cost, Limit};

pub(super) const ENTRY: Entry = Entry {
    words: &["concurrency"],
    settings: Settings::Concurrency { lease: DEFAULT_LEASE },
    keys: &["capacity", "lease"],
    override_keys: &["capacity", "lease"],
};

pub(super) fn read(map: &Mapping<'_>, inherited: u64, findings: &mut Findings) -> Result<Settings, Reported> {
    Ok(Settings::Concurrency { lease: map.read("lease", findings, lease)?.unwrap_or(inherited) })
}

/// Reads how long a slot is held unless it is renewed, in nanoseconds.
fn lease(node: &Node, findings: &mut Findings) -> Result<u64, Reported> {
    let help = "leases of live requests are renewed; the lease bounds how long a crashed process keeps its slots";
    match duration::parse(text(node, findings)?) {
        Ok(lease) if (SHORTEST_LEASE..=LONGEST_LEASE).contains(&lease) && lease.is_multiple_of(1_000) => Ok(lease),
        Ok(_) => Err(findings.error(node.place, NumbersError::Lease.to_string(), help)),
        Err((message, help)) => Err(findings.error(node.place, message, help)),
    }
}

/// Reads how many requests may be in flight; `None` if that is not set. `count` and `burst` are other names for `capacity`.
pub(super) fn numbers(map: &Mapping<'_>, lease: u64, findings: &mut Findings) -> Result<Option<Numbers>, Reported> {
    let help = "use `capacity`; to limit the rate as well, add another limit";
    map.reject(&["period", "rates"], "concurrency", help, findings)?;
    let given: Vec<_> = ["capacity", "count", "burst"].iter().filter_map(|name| map.get(name)).collect();
    let [(_, node)] = given[..] else {
        let [(first, _), (second, _), ..] = given[..] else { return Ok(None) };
        let message = format!("`{}` and `{}` both set the capacity", first.text, second.text);
        return Err(findings.error(second.place, message, "remove one of them"));
    };
    let help = "write `deny: true` to deny every request";
    let capacity = positive(node, NumbersError::Burst.to_string(), help, findings)?;
    Numbers::concurrency(capacity, lease)
        .map(Some)
        .map_err(|error| findings.error(node.place, error.to_string(), "limit the rate instead"))
}

/// Rejects what does not apply to requests in flight, and limits whose requests are not seen to end.
pub(super) fn check(map: &Mapping<'_>, limit: &Limit, findings: &mut Findings) {
    let cost = (limit.cost != Cost::Fixed(1), "a request takes one slot; remove `cost`");
    reject_token_keys(map, limit, "concurrency", cost, findings);
    let descriptor = |component: &Component| matches!(component.source, ComponentSource::Descriptor(_));
    let place = match (map.get("match"), map.get("by")) {
        (Some((key, _)), _) if limit.conditions.needs_descriptor() => key.place,
        (_, Some((key, _))) if limit.missing == Fallback::Skip && limit.by.iter().any(descriptor) => key.place,
        _ => return,
    };
    let message = "only decision services receive descriptors, and they do not see requests end";
    findings.error(place, message, "the proxy counts requests in flight; use a `match` and `by` that it can evaluate");
}
