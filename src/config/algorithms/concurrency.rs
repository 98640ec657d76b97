//! `algorithm: concurrency`: requests in flight, each of which holds a slot. Keys: `capacity`, `lease`.

use super::super::node::Value;
use super::super::request_numbers;
use super::{Algorithm, AlgorithmEntry, Limit, Mapping, Node, Numbers, ReadResult, Settings, reject_token_keys};
use crate::engine::algorithms::concurrency::{DEFAULT_LEASE, LONGEST_LEASE, SHORTEST_LEASE};
use crate::engine::algorithms::numbers::NumbersError;
use crate::engine::limit::Cost;
use crate::engine::limit::identity::Fallback;

pub(super) const ENTRY: AlgorithmEntry = AlgorithmEntry {
    words: &["concurrency"],
    settings: || Box::new(Concurrency { lease: DEFAULT_LEASE }),
    keys: &["capacity", "lease"],
    override_keys: &["capacity", "lease"],
};

struct Concurrency {
    /// The time that a slot is held unless it is renewed, in nanoseconds.
    lease: u64,
}

impl Settings for Concurrency {
    fn algorithm(&self) -> Algorithm {
        Algorithm::Concurrency
    }

    fn read(&self, map: &Mapping<'_>) -> ReadResult<Box<dyn Settings>> {
        Ok(Box::new(Self { lease: map.read("lease", lease)?.unwrap_or(self.lease) }))
    }

    /// `count` and `burst` are other names for `capacity`.
    fn numbers(&self, map: &Mapping<'_>) -> ReadResult<Vec<Numbers>> {
        let help = "use `capacity`; to limit the rate as well, add another limit";
        map.reject(&["period", "rates"], "concurrency", help)?;
        match map.all(&["capacity", "count", "burst"])[..] {
            [] => Ok(Vec::new()),
            [(_, node)] => {
                let capacity = request_numbers::own(node, NumbersError::Burst)?;
                Numbers::concurrency(capacity, self.lease)
                    .map(|numbers| vec![numbers])
                    .map_err(|error| node.error(error.to_string(), "limit the rate instead"))
            }
            [(first, _), (second, _), ..] => {
                let message = format!("`{}` and `{}` both set the capacity", first.text, second.text);
                Err(second.error(message, "remove one of them"))
            }
        }
    }

    fn number_keys(&self) -> &'static str {
        "`capacity`"
    }

    /// Rejects what does not apply to requests in flight, and limits on requests whose end nobody sees.
    fn check(&self, map: &Mapping<'_>, limit: &mut Limit) {
        reject_token_keys(map, limit, (limit.cost != Cost::Fixed(1), "a request takes one slot; remove `cost`"));
        let key = match (map.get("match"), map.get("by")) {
            (Some((key, _)), _) if limit.conditions.needs_descriptor() => key,
            (_, Some((key, _))) if limit.missing == Fallback::Skip && limit.is_by_entry() => key,
            _ => return,
        };
        let help = "the proxy counts requests in flight; use a `match` and `by` that it can evaluate";
        key.error("only decision services receive descriptors, and they do not see requests end", help);
    }
}

fn lease(node: &Node) -> ReadResult<u64> {
    if matches!(node.value, Value::Map(_)) {
        let help = "write a duration such as 60s; tokens are leased with `algorithm: gcra` or `fixed_window`";
        return Err(node.error("the `lease` of a slot must be a duration, found a map", help));
    }
    let lease = node.duration()?;
    if (SHORTEST_LEASE..=LONGEST_LEASE).contains(&lease) && lease.is_multiple_of(1_000) {
        return Ok(lease);
    }
    let help = "leases of live requests are renewed; the lease bounds how long a crashed process keeps its slots";
    Err(node.error(NumbersError::Lease.to_string(), help))
}
