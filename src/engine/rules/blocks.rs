//! Ids that an operator has shut out for a time, whatever their limits allow.

use std::collections::HashMap;

use super::fingerprint::Fingerprinter;
use super::key::fingerprint_of;
use crate::engine::algorithms::numbers::Micros;

/// The ids that may be blocked at once. A million are no matter for people to list, and whom nobody looks at any more an
/// override with `deny: true` shuts out for good.
pub const MOST_BLOCKS: usize = 10_000;

/// How long a block may last: 366 days.
pub const LONGEST_BLOCK: Micros = Micros(366 * 86_400 * 1_000_000);

/// An id that is blocked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The beginning of its buckets' keys: `<short>:<id>`, of which the last components may be missing.
    pub key: String,
    /// Until when, by this machine's clock.
    pub until: Micros,
    /// What the operator reads: `Name:id`.
    pub bucket: String,
    /// Why, in the operator's words. No client is told.
    pub reason: Option<String>,
    /// Who has blocked it.
    pub by: String,
}

/// All that is blocked. It never changes; who blocks another id makes a new one.
#[derive(Debug, Default)]
pub struct Blocks {
    list: Vec<Block>,
    /// The ends, by the fingerprint of the key.
    ends: HashMap<u128, Micros>,
}

impl Blocks {
    /// These blocks, each of another key.
    pub fn new(list: Vec<Block>, fingerprinter: &Fingerprinter) -> Self {
        let ends = list.iter().map(|block| (fingerprint_of(&block.key, fingerprinter), block.until)).collect();
        Self { list, ends }
    }

    /// Whether nothing is blocked.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// All of them.
    pub fn list(&self) -> &[Block] {
        &self.list
    }

    /// For how long yet an id is blocked, by its fingerprint and those of its first one, two, ... components; the longest
    /// if several blocks cover it.
    pub fn left(&self, whole: u128, prefixes: &[u128], now: Micros) -> Option<Micros> {
        let ends = prefixes.iter().chain([&whole]).filter_map(|fingerprint| self.ends.get(fingerprint));
        ends.copied().max().filter(|end| *end > now).map(|end| end.since(now))
    }

    /// The block that [`Self::left`] goes by, with the key of the whole id.
    pub fn covering(&self, key: &str, now: Micros) -> Option<&Block> {
        let covers = |block: &&Block| {
            let rest = key.strip_prefix(block.key.as_str());
            // The key of all ids of a limit is that of its only bucket, if it has one, and no beginning.
            let begins = |rest: &str| rest.starts_with(':') && block.key.contains(':');
            block.until > now && rest.is_some_and(|rest| rest.is_empty() || begins(rest))
        };
        self.list.iter().filter(covers).max_by_key(|block| block.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: Fingerprinter = Fingerprinter::new((3, 4));

    fn block(key: &str, until: u64) -> Block {
        Block { key: key.into(), until: Micros(until), bucket: key.into(), reason: None, by: "me".into() }
    }

    #[test]
    fn a_block_covers_the_ids_that_begin_so_until_it_ends() {
        let blocks = Blocks::new(vec![block("L:a", 10), block("L:a:b", 20), block("L", 5), block("G", 7)], &HASH);
        let left = |components: &[&str], now: u64| {
            let keys: Vec<String> = (2..=components.len()).map(|length| components[..length].join(":")).collect();
            let prefixes: Vec<u128> = keys.iter().map(|key| fingerprint_of(key, &HASH)).collect();
            let key = components.join(":");
            let left = blocks.left(fingerprint_of(&key, &HASH), &prefixes, Micros(now)).map(|left| left.0);
            let covering = blocks.covering(&key, Micros(now));
            assert_eq!(covering.map(|block| block.until.0 - now), left, "{key} at {now}");
            left
        };
        for (components, now, expected) in [
            (&["L", "a", "b"][..], 3, Some(17)),
            (&["L", "a", "c"], 3, Some(7)),
            (&["L", "a"], 9, Some(1)),
            (&["L", "a"], 10, None),
            (&["L", "a", "b"], 19, Some(1)),
            (&["L", "ab"], 3, None),
            (&["L"], 3, Some(2)),
            (&["M", "a"], 3, None),
            (&["G"], 3, Some(4)),
        ] {
            assert_eq!(left(components, now), expected, "{components:?} at {now}");
        }
        assert!(!blocks.is_empty() && Blocks::default().is_empty());
    }
}
