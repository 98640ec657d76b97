//! Ids that an operator has blocked for some time, or a limit has banned, whatever their limits allow.

use std::collections::HashMap;

use crate::engine::algorithms::micros::Micros;
use crate::engine::limit::fingerprint::Fingerprinter;
use crate::engine::limit::key::fingerprint_of;

/// The longest block: 366 days. An override with `deny: true` is for permanent ones.
pub const LONGEST_BLOCK: Micros = Micros(366 * 86_400 * 1_000_000);

/// A blocked id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The prefix of its buckets' keys: `<short>:<id>`, where the last parts may be missing.
    pub key: String,
    /// The end, by this machine's clock.
    pub until: Micros,
    /// `Name:id`, for operators.
    pub bucket: String,
    /// Clients do not see it.
    pub reason: Option<String>,
    /// The operator, or the limit that bans.
    pub by: String,
    /// True if a limit has made it, by its `ban`.
    pub is_ban: bool,
}

/// All blocks. Immutable: a change makes a new value.
#[derive(Debug, Default)]
pub struct Blocks {
    list: Vec<Block>,
    /// By the fingerprint of the key.
    ends: HashMap<u128, Micros>,
}

impl Blocks {
    /// The keys must be unique.
    pub fn new(list: Vec<Block>, fingerprinter: &Fingerprinter) -> Self {
        let ends = list.iter().map(|block| (fingerprint_of(&block.key, fingerprinter), block.until)).collect();
        Self { list, ends }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub fn list(&self) -> &[Block] {
        &self.list
    }

    /// The time left of the block that covers an id, given the fingerprints of the id and of its first one, two, ...
    /// parts. The longest if several blocks cover it.
    pub fn left(&self, whole: u128, prefixes: &[u128], now: Micros) -> Option<Micros> {
        let ends = prefixes.iter().chain([&whole]).filter_map(|fingerprint| self.ends.get(fingerprint));
        ends.copied().max().filter(|end| *end > now).map(|end| end.since(now))
    }

    /// The block whose time [`Self::left`] gives, by the key of the id.
    pub fn covering(&self, key: &str, now: Micros) -> Option<&Block> {
        let covers = |block: &&Block| {
            let rest = key.strip_prefix(block.key.as_str());
            // A key without an id is the only bucket of a `by: global` limit, and not a prefix.
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
        Block {
            key: key.into(),
            until: Micros(until),
            bucket: key.into(),
            reason: None,
            by: "me".into(),
            is_ban: false,
        }
    }

    #[test]
    fn a_block_covers_the_ids_that_begin_so_until_it_ends() {
        let blocks = Blocks::new(vec![block("L:a", 10), block("L:a:b", 20), block("L", 5), block("G", 7)], &HASH);
        let left = |parts: &[&str], now: u64| {
            let keys: Vec<String> = (2..=parts.len()).map(|length| parts[..length].join(":")).collect();
            let prefixes: Vec<u128> = keys.iter().map(|key| fingerprint_of(key, &HASH)).collect();
            let key = parts.join(":");
            let left = blocks.left(fingerprint_of(&key, &HASH), &prefixes, Micros(now)).map(|left| left.0);
            let covering = blocks.covering(&key, Micros(now));
            assert_eq!(covering.map(|block| block.until.0 - now), left, "{key} at {now}");
            left
        };
        for (parts, now, expected) in [
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
            assert_eq!(left(parts, now), expected, "{parts:?} at {now}");
        }
        assert!(!blocks.is_empty() && Blocks::default().is_empty());
    }
}
