//! The activations of elevated numbers that buckets share under the name of a quota.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::MutexGuard;
use smallvec::SmallVec;

use super::MemoryStore;
use super::shares::{Shares, Tag};
use crate::engine::algorithms::activations::Activations;
use crate::engine::algorithms::charge::Charge;
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::taking::FEW;

/// Quotas belong to no limit, so nothing is reserved for them.
const NO_LIMIT: Tag = Tag(0);

/// The quotas that have counted. They count towards the bound of the table.
#[derive(Default)]
pub(super) struct Quotas {
    /// By hash tag and name: a cluster cannot share a count between tags, and moving to one must not change anything.
    held: HashMap<(u8, Arc<str>), Activations>,
}

/// The quotas of a request whose charges are being decided.
pub(super) struct RequestQuotas<'s> {
    quotas: MutexGuard<'s, Quotas>,
    shares: Arc<Shares>,
    charges: &'s [Charge],
    now: Micros,
    /// The buckets that the request may add.
    new: usize,
    /// The charges that use an activation, by index, and when.
    used: SmallVec<[(usize, Micros); FEW]>,
}

impl Quotas {
    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    /// Drops those whose month is over. By a clock that steps back it is not over any more, so they stay while there is room.
    fn make_room(&mut self, now: Micros, shares: &Shares) {
        self.held.retain(|_, activations| {
            let is_over = activations.is_over(now);
            if is_over {
                shares.free(NO_LIMIT);
            }
            !is_over
        });
    }
}

impl<'s> RequestQuotas<'s> {
    /// Locks the quotas if a charge has one.
    pub(super) fn of(
        store: &'s MemoryStore,
        shares: &Arc<Shares>,
        charges: &'s [Charge],
        now: Micros,
        new: usize,
    ) -> Option<Self> {
        if charges.iter().all(|charge| charge.quota().is_none()) {
            return None;
        }
        let quotas = store.quotas.lock();
        Some(Self { quotas, shares: Arc::clone(shares), charges, now, new, used: SmallVec::new() })
    }

    /// Returns the activations of a charge's quota, with those that earlier charges of the request use. If a new quota has no room, it
    /// is exhausted: what cannot be counted is not given.
    pub(super) fn find(&mut self, charge: &Charge) -> Option<Activations> {
        let (tag, name) = charge.quota()?;
        let held = self.quotas.held.get(&(tag, Arc::clone(name))).copied();
        let used = self.used.iter().filter(|(index, _)| self.charges[*index].quota() == Some((tag, name)));
        let used: SmallVec<[Micros; FEW]> = used.map(|(_, instant)| *instant).collect();
        let before = match held {
            Some(held) => held,
            None if !used.is_empty() || self.has_room() => Activations::default(),
            None => Activations::exhausted(self.now),
        };
        Some(used.into_iter().fold(before, Activations::with_one))
    }

    /// Returns whether a new quota has room, if need be in the place of one whose month is over.
    fn has_room(&mut self) -> bool {
        let new = (self.new + self.used.len()) as u64;
        if self.shares.has_room(NO_LIMIT, 0, new) {
            return true;
        }
        self.quotas.make_room(self.now, &self.shares);
        self.shares.has_room(NO_LIMIT, 0, new)
    }

    /// Notes that a charge uses an activation if its edit is made.
    pub(super) fn note(&mut self, index: usize, instant: Option<Micros>) {
        self.used.extend(instant.map(|instant| (index, instant)));
    }

    /// Counts the activation of a charge whose edit is made, if it uses one.
    pub(super) fn count(&mut self, index: usize) {
        let used = self.used.iter().find(|(other, _)| *other == index);
        if let (Some((_, instant)), Some((tag, name))) = (used, self.charges[index].quota()) {
            let activations = self.quotas.held.entry((tag, Arc::clone(name))).or_insert_with(|| {
                self.shares.take(NO_LIMIT);
                Activations::default()
            });
            *activations = activations.with_one(*instant);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::algorithms::charge::{Elevated, Input, Mode};
    use crate::engine::algorithms::decision::Detail;
    use crate::engine::algorithms::numbers::Numbers;
    use crate::engine::limit::fingerprint::Fingerprinter;
    use crate::engine::limit::key::opaque;
    use crate::store::Batch;

    /// 2024-03-31T23:00:00Z, an hour before a month ends.
    const START: Micros = Micros(1_711_926_000_000_000);
    const NEXT_MONTH: Micros = Micros(START.0 + 3_600_000_000);

    /// Charges 2 of a bucket of 1 that may be raised to 10, which never refills.
    fn charge(limit: &str, quota: &str, activations_per_month: u64) -> Charge {
        let numbers = Numbers::fixed(10).unwrap();
        let elevated = Elevated { numbers, span: 1_000_000, activations_per_month, quota: Some(quota.into()) };
        let bucket = opaque(limit, "id", &Fingerprinter::new((1, 2)));
        let input = Some(Box::new(Input::Elevated(Arc::new(elevated))));
        Charge { input, ..Charge::new(bucket, Numbers::fixed(1).unwrap(), 2, Mode::Spend) }
    }

    /// The activations left after each charge of one request; `None` unless it used one.
    fn switch_on(store: &MemoryStore, charges: &[Charge], now: Micros) -> Vec<Option<u64>> {
        let decisions = store.decide(&Batch { charges, effective_from: Micros(0), now }).unwrap();
        let left = |(_, detail): &(usize, Detail)| detail.elevation().and_then(|elevation| elevation.activations_left);
        decisions.details.iter().map(left).collect()
    }

    #[test]
    fn without_room_to_count_them_there_are_no_activations() {
        let store = MemoryStore::new(3);
        assert_eq!(switch_on(&store, &[charge("A", "t", 9)], START), [Some(8)]);
        assert_eq!(store.usage().keys, 2, "a bucket and a quota");
        assert_eq!(switch_on(&store, &[charge("B", "t", 9)], START), [Some(7)]);
        assert_eq!(switch_on(&store, &[charge("C", "other", 9)], START), [None]);
        assert_eq!(switch_on(&store, &[charge("C", "t", 9)], START), [Some(6)], "a bucket beyond the bound");
        assert_eq!(store.usage().keys, 4);
        // A bucket that is full by then makes room for one, and the quota of the last month for another.
        assert_eq!(switch_on(&store, &[charge("D", "other", 9)], NEXT_MONTH), [Some(8)]);
        assert_eq!(switch_on(&store, &[charge("E", "third", 9)], NEXT_MONTH), [Some(8)]);
        assert_eq!(switch_on(&store, &[charge("F", "fourth", 9)], NEXT_MONTH), [None]);
        store.clear();
        assert_eq!(store.usage().keys, 0);
        assert_eq!(
            switch_on(&store, &[charge("E", "third", 9), charge("F", "third", 9)], NEXT_MONTH),
            [Some(8), Some(7)]
        );
        assert_eq!(store.usage().keys, 3);
    }

    #[test]
    fn activations_still_count_when_the_clock_comes_back_to_their_month() {
        let store = MemoryStore::new(100);
        assert_eq!(switch_on(&store, &[charge("A", "t", 9)], START), [Some(8)]);
        let later = START.after(Micros(50 * 366 * 86_400_000_000));
        assert_eq!(switch_on(&store, &[charge("B", "other", 9)], later), [Some(8)]);
        assert_eq!(switch_on(&store, &[charge("C", "t", 9)], START), [Some(7)]);
    }

    #[test]
    fn of_eight_threads_exactly_as_many_switch_on_as_the_quota_has() {
        let store = MemoryStore::new(100_000);
        let used: usize = std::thread::scope(|scope| {
            let raise = |thread: usize| {
                let store = &store;
                scope.spawn(move || {
                    let used = (0..200).map(|number| {
                        let limits = [format!("A{thread}.{number}"), format!("B{thread}.{number}")];
                        let charges: Vec<Charge> =
                            limits.iter().take(1 + number % 2).map(|limit| charge(limit, "t", 999)).collect();
                        switch_on(store, &charges, START).into_iter().flatten().count()
                    });
                    used.sum::<usize>()
                })
            };
            let threads: Vec<_> = (0..8).map(raise).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(used, 999);
    }
}
