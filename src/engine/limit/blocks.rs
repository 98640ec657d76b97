//! Ids that an operator has blocked for some time, or a limit has banned, whatever their limits allow.

use std::collections::HashMap;
use std::sync::Arc;

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

/// All blocks. Immutable: a change makes a new value, which shares the blocks that stay.
#[derive(Debug, Default)]
pub struct Blocks {
    list: Vec<Arc<Block>>,
    /// By the fingerprint of the key.
    ends: HashMap<u128, Micros>,
    /// The number of those that limits have made.
    bans: usize,
}

impl Blocks {
    /// The keys must be unique.
    pub fn new(list: Vec<Block>, fingerprinter: &Fingerprinter) -> Self {
        let ends = list.iter().map(|block| (fingerprint_of(&block.key, fingerprinter), block.until)).collect();
        let bans = list.iter().filter(|block| block.is_ban).count();
        Self { list: list.into_iter().map(Arc::new).collect(), ends, bans }
    }

    /// Returns the same blocks and one more, in the place of an earlier one of its id.
    #[must_use]
    pub fn with(&self, block: Block, fingerprinter: &Fingerprinter) -> Self {
        let Self { mut list, mut ends, mut bans } = Self { list: self.list.clone(), ends: self.ends.clone(), ..*self };
        bans += usize::from(block.is_ban);
        let is_known = ends.insert(fingerprint_of(&block.key, fingerprinter), block.until).is_some();
        let known = if is_known { list.iter_mut().find(|known| known.key == block.key) } else { None };
        match known {
            Some(known) => {
                bans -= usize::from(known.is_ban);
                *known = Arc::new(block);
            }
            None => list.push(Arc::new(block)),
        }
        Self { list, ends, bans }
    }

    /// The end of the block of exactly this id or beginning.
    pub fn end_of(&self, key: &str, fingerprinter: &Fingerprinter) -> Option<Micros> {
        self.ends.get(&fingerprint_of(key, fingerprinter)).copied()
    }

    /// The number of bans among them, ended ones included.
    pub const fn bans(&self) -> usize {
        self.bans
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub fn list(&self) -> &[Arc<Block>] {
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
        let covers = |block: &&Arc<Block>| {
            let rest = key.strip_prefix(block.key.as_str());
            // A key without an id is the only bucket of a `by: global` limit, and not a prefix.
            let begins = |rest: &str| rest.starts_with(':') && block.key.contains(':');
            block.until > now && rest.is_some_and(|rest| rest.is_empty() || begins(rest))
        };
        self.list.iter().filter(covers).max_by_key(|block| block.until).map(|block| &**block)
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

    #[test]
    fn one_more_is_as_if_all_were_new() {
        let ban = |key: &str, until: u64| Block { is_ban: true, ..block(key, until) };
        let mut all: Vec<Block> = Vec::new();
        let mut grown = Blocks::default();
        for one in [block("L:a", 10), ban("L:b", 20), ban("L:a", 30), ban("L:b", 40), block("L:b", 50), ban("L:c", 5)] {
            grown = grown.with(one.clone(), &HASH);
            all.retain(|known| known.key != one.key);
            all.push(one);
            let new = Blocks::new(all.clone(), &HASH);
            assert_eq!((grown.bans(), &grown.ends, grown.list.len()), (new.bans(), &new.ends, new.list.len()));
            assert!(new.list.iter().all(|block| grown.list.contains(block)));
        }
        assert_eq!(grown.end_of("L:b", &HASH), Some(Micros(50)));
    }
}
