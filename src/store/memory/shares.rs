//! Each limit's share of a table.
//!
//! Half of the table is reserved for the limits, in even shares. The other half is open: first come, first served. A client that
//! makes up ids for one limit fills that limit's share and the open half; all other limits keep their shares. Shares must be
//! reserved, because buckets cannot be taken back: only a full bucket may leave.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::engine::algorithms::charge::Charge;
use crate::engine::algorithms::micros::Micros;

/// The number of tags. The first one is that of all limits without a tag of their own.
const MOST_TAGS: usize = 1 << TAG_BITS;

/// The bits of a [`Tag`] in an entry.
pub(super) const TAG_BITS: u32 = 12;

/// The buckets reserved for a limit with a single id: room for its windows.
const WINDOWS: u64 = 16;

/// The number of a limit in its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag(pub(super) u16);

/// A limit, as a table needs to know it.
#[derive(Clone, Debug)]
pub struct LimitKeys {
    /// The limit's name in keys.
    pub short: String,
    /// The most buckets that it may hold; `None` if only the table bounds them.
    pub max_keys: Option<u64>,
    pub reserve: Reserve,
    /// Counts charges to the bucket that its ids share beyond the bound.
    pub limited: Arc<AtomicU64>,
}

/// The part of a table that is reserved for a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserve {
    /// An even share of one half.
    Share,
    /// The buckets of one id: the limit has no others.
    OneId,
    Nothing,
}

/// The shares of all limits. Replaced as a whole while all shards are locked.
pub(super) struct Shares {
    tags: BTreeMap<Box<str>, Tag>,
    /// By tag. The first share is that of all limits without a tag of their own; nothing is reserved for them.
    limits: Vec<Share>,
    /// The number of buckets that are not reserved.
    open: u64,
    /// The number of those that limits hold, beyond what is reserved for them.
    open_held: AtomicU64,
    /// The instant at which the rules took effect.
    pub(super) changed: Micros,
}

struct Share {
    held: AtomicU64,
    reserved: u64,
    most: u64,
    limited: Arc<AtomicU64>,
}

impl Shares {
    /// The shares of a table without limits: all of it is open.
    pub(super) fn of_none(max_keys: usize) -> Self {
        Self {
            tags: BTreeMap::new(),
            limits: vec![Share::unbounded(0)],
            open: max_keys as u64,
            open_held: AtomicU64::new(0),
            changed: Micros(0),
        }
    }

    /// The shares of `limits`, of rules that took effect at `changed`, with what each holds now. A removed limit keeps its buckets
    /// until they are full.
    pub(super) fn renewed(&self, limits: &[LimitKeys], max_keys: usize, changed: Micros) -> Self {
        let held = |tag: usize| self.limits[tag].held.load(Ordering::Relaxed);
        let mut shares: Vec<Share> = (0..self.limits.len()).map(|tag| Share::unbounded(held(tag))).collect();
        let mut is_taken = vec![false; shares.len()];
        let mut tags = self.tags.clone();
        tags.retain(|short, tag| {
            let tag = usize::from(tag.0);
            is_taken[tag] = held(tag) > 0 || limits.iter().any(|limit| *limit.short == **short);
            is_taken[tag]
        });
        let mut vacant = (1..shares.len()).filter(|tag| !is_taken[*tag]).collect::<Vec<_>>();
        let sharing = limits.iter().filter(|limit| limit.reserve == Reserve::Share).count().max(1);
        let even = (max_keys / 2 / sharing) as u64;
        for limit in limits {
            let known = tags.get(&*limit.short).map(|tag| usize::from(tag.0));
            let Some(tag) = known.or_else(|| vacant.pop()).or((shares.len() < MOST_TAGS).then_some(shares.len()))
            else {
                continue;
            };
            if tag == shares.len() {
                shares.push(Share::unbounded(0));
            }
            let Ok(number) = u16::try_from(tag) else { continue };
            tags.insert(limit.short.as_str().into(), Tag(number));
            let most = limit.max_keys.unwrap_or(u64::MAX);
            let share = &mut shares[tag];
            share.reserved = match limit.reserve {
                Reserve::Share => even.min(most),
                Reserve::OneId => even.min(WINDOWS),
                Reserve::Nothing => 0,
            };
            share.most = most;
            share.limited = limit.limited.clone();
        }
        let reserved: u64 = shares.iter().map(|share| share.reserved).sum();
        let above = |share: &Share| share.held.load(Ordering::Relaxed).saturating_sub(share.reserved);
        let open_held = AtomicU64::new(shares.iter().map(above).sum());
        Self { tags, limits: shares, open: (max_keys as u64).saturating_sub(reserved), open_held, changed }
    }

    /// Notes that the table is empty.
    pub(super) fn clear(&self) {
        let held = self.limits.iter().map(|share| &share.held);
        held.chain([&self.open_held]).for_each(|held| held.store(0, Ordering::Relaxed));
    }

    /// The tag of a charge's limit.
    pub(super) fn tag(&self, charge: &Charge) -> Tag {
        self.tags.get(short_of(&charge.bucket.key)).copied().unwrap_or(Tag(0))
    }

    /// The tag of a limit, given its name in keys; `None` if it shares one with others.
    pub(super) fn tag_of(&self, short: &str) -> Option<Tag> {
        self.tags.get(short).copied()
    }

    /// Returns whether a limit may have another bucket. The request has already found room for `new` buckets, `same` of them of
    /// this limit.
    pub(super) fn has_room(&self, tag: Tag, same: u64, new: u64) -> bool {
        let share = self.share(tag);
        let held = share.held.load(Ordering::Relaxed) + same;
        let is_open = || self.open_held.load(Ordering::Relaxed) + new < self.open;
        held < share.most && (held < share.reserved || is_open())
    }

    /// Counts a new bucket of a limit. Threads that find room at the same moment can each exceed a bound by one.
    pub(super) fn take(&self, tag: Tag) {
        let share = self.share(tag);
        if share.held.fetch_add(1, Ordering::Relaxed) >= share.reserved {
            self.open_held.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a bucket that is gone.
    pub(super) fn free(&self, tag: Tag) {
        let share = self.share(tag);
        if share.held.fetch_sub(1, Ordering::Relaxed) > share.reserved {
            self.open_held.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The number of buckets and quotas that are counted.
    #[cfg(test)]
    pub(super) fn held(&self) -> u64 {
        self.limits.iter().map(|share| share.held.load(Ordering::Relaxed)).sum()
    }

    /// Counts a charge to the bucket that a limit's ids share.
    pub(super) fn limited(&self, tag: Tag) {
        self.share(tag).limited.fetch_add(1, Ordering::Relaxed);
    }

    fn share(&self, tag: Tag) -> &Share {
        self.limits.get(usize::from(tag.0)).unwrap_or(&self.limits[0])
    }
}

impl Share {
    fn unbounded(held: u64) -> Self {
        Self { held: AtomicU64::new(held), reserved: 0, most: u64::MAX, limited: Arc::default() }
    }
}

/// The name of the limit in a bucket's key.
pub(super) fn short_of(key: &str) -> &str {
    key.split([':', '#']).next().unwrap_or(key)
}
