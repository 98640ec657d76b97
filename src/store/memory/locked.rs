//! Decisions about several charges, whose shards are locked together.

use std::borrow::Cow;

use parking_lot::MutexGuard;
use smallvec::SmallVec;

use super::overflow::{self, Overflow};
use super::quotas::RequestQuotas;
use super::shard::{BucketPlace, Shard, low_half};
use super::shares::Tag;
use super::{Batch, MemoryStore, StoreError};
use crate::engine::algorithms::charge::{Charge, Mode, Slot};
use crate::engine::algorithms::decision::{Attempt, Decision, Decisions};
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::state::{self, BucketState, Edit, NeedsRedis};
use crate::engine::algorithms::taking::{Edits, FEW, decide_all};

type Few<T> = SmallVec<[T; FEW]>;

/// The shards of some charges.
pub(super) struct Locked<'s> {
    store: &'s MemoryStore,
    numbers: Few<usize>,
    /// By `numbers`.
    shards: Few<MutexGuard<'s, Shard>>,
    /// Locked when it is needed.
    overflow: Option<MutexGuard<'s, Overflow>>,
}

impl<'s> Locked<'s> {
    /// Locks the shards in ascending order, and the overflow after them, so that no two requests wait for each other.
    pub(super) fn of<'c>(store: &'s MemoryStore, charges: impl Iterator<Item = &'c Charge>) -> Self {
        let mut numbers: Few<usize> = charges.map(|charge| store.shard_number(charge)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let shards = numbers.iter().map(|number| store.shards[*number].lock()).collect();
        Self { store, numbers, shards, overflow: None }
    }

    /// Returns the index of a charge's shard among those that are locked.
    fn index(&self, charge: &Charge) -> usize {
        let number = self.store.shard_number(charge);
        self.numbers.partition_point(|other| *other < number)
    }

    /// Decides the charges of one request, all or nothing.
    pub(super) fn decide(&mut self, batch: &Batch<'_>) -> Result<Decisions, StoreError> {
        let (now, effective_from) = (batch.now, batch.effective_from);
        let in_shards: Few<usize> = batch.charges.iter().map(|charge| self.index(charge)).collect();
        let places = self.places(batch.charges, &in_shards, now);
        let state = |index: usize, charge: &Charge| {
            self.shards[in_shards[index]].state(places[index], charge, self.overflow.as_deref())
        };
        let mut shared: Few<(&Charge, Edit)> = Few::new();
        let new = places.iter().filter(|place| matches!(place, BucketPlace::New(_))).count();
        let shares = self.shards.first().map(|shard| &shard.shares);
        let mut quotas = shares.and_then(|shares| RequestQuotas::of(self.store, shares, batch.charges, now, new));
        let mut edits = Edits::new();
        let decided = decide_all(
            batch.charges,
            |index, charge| {
                if charge.origin.is_strike() && is_any_shared(batch.charges, &places, charge) {
                    return Ok(Attempt::new(Decision::unknown(charge.numbers.burst()), None));
                }
                let quota = quotas.as_mut().and_then(|quotas| quotas.find(charge));
                let is_shared = places[index].is_overflow();
                let state = if is_shared { after(state(index, charge), charge, &shared) } else { state(index, charge) };
                let attempt = state::decide(state.as_deref(), charge, quota, now, effective_from)?;
                if is_shared {
                    shared.extend(attempt.edit.map(|edit| (&batch.charges[index], edit)));
                }
                if let Some(quotas) = &mut quotas {
                    quotas.note(index, attempt.from_quota);
                }
                Ok(attempt)
            },
            |index, charge| state::peek(state(index, charge).as_deref(), charge, now, effective_from),
            &mut edits,
        );
        let decisions = decided.map_err(|error: NeedsRedis| StoreError::Failed(error.to_string()))?;
        let mut grown: Few<usize> = Few::new();
        for (index, edit) in edits {
            let charge = &batch.charges[index];
            if let Some(quotas) = &mut quotas {
                quotas.count(index);
            }
            match &mut self.overflow {
                Some(overflow) if places[index].is_overflow() => overflow.apply(&charge.bucket, &edit),
                _ => {
                    let shard = in_shards[index];
                    if self.shards[shard].apply(places[index], charge, &edit) {
                        grown.push(shard);
                    }
                }
            }
        }
        self.tidy(&grown, now);
        Ok(decisions)
    }

    /// Drops full buckets where buckets were added, when all edits have been made: a bucket that was found for the request must not
    /// be gone before its own edit.
    fn tidy(&mut self, grown: &[usize], now: Micros) {
        for shard in grown {
            self.shards[*shard].tidy(now);
        }
        if let (Some(overflow), Some(shard)) = (&mut self.overflow, self.shards.first()) {
            overflow.tidy(now, shard.shares.changed);
        }
    }

    /// Finds the places of all charges, and dates the overflow buckets among them. `in_shards` are the indices of their shards. After a
    /// sweep all are found again: it may have dropped a bucket that was there.
    fn places(&mut self, charges: &[Charge], in_shards: &[usize], now: Micros) -> Few<BucketPlace> {
        let has_room = |place: &BucketPlace| !matches!(place, BucketPlace::Overflow);
        let mut places = Few::new();
        self.find_places(charges, in_shards, now, &mut places);
        if !places.iter().all(has_room) {
            for (index, _) in in_shards.iter().zip(&places).filter(|(_, place)| !has_room(place)) {
                self.shards[*index].make_room(now);
            }
            self.find_places(charges, in_shards, now, &mut places);
        }
        let all = charges.iter().zip(in_shards).zip(&places);
        for ((charge, index), place) in all.filter(|(_, place)| place.is_overflow()) {
            if !has_room(place) {
                self.shards[*index].count_overflow(charge);
            }
            self.lock_overflow().redate(&charge.bucket, now);
        }
        places
    }

    fn find_places(&mut self, charges: &[Charge], in_shards: &[usize], now: Micros, places: &mut Few<BucketPlace>) {
        places.clear();
        if charges.len() > 1 {
            // With a million buckets each is a cache miss, and one look after the other would wait for each in turn.
            let all = charges.iter().zip(in_shards);
            let touched = all.map(|(charge, index)| self.shards[*index].table.touch(low_half(&charge.bucket)));
            std::hint::black_box(touched.fold(0, u64::wrapping_add));
        }
        // With the index of the shard.
        let mut new: Few<(usize, Tag)> = Few::new();
        for (charge, index) in charges.iter().zip(in_shards.iter().copied()) {
            let in_shard = new.iter().filter(|(shard, _)| *shard == index).count();
            let bound = self.store.keys_per_shard.saturating_sub(in_shard);
            let mut place = self.shards[index].place(charge, now, bound, &new);
            if let Some(slot) = held_slot(charge)
                && !self.shards[index].states.get(low_half(&charge.bucket)).is_some_and(|state| state.holds(slot, now))
                && self.lock_overflow().holds(&charge.bucket, slot, now)
            {
                place = BucketPlace::OverflowSlot;
            }
            if let BucketPlace::New(tag) = place {
                new.push((index, tag));
            }
            places.push(place);
        }
    }

    fn lock_overflow(&mut self) -> &mut Overflow {
        self.overflow.get_or_insert_with(|| self.store.overflow.lock())
    }
}

/// Returns whether ids share the bucket of a strike, or a bucket of its limit. No id is banned for the requests of others.
fn is_any_shared(charges: &[Charge], places: &[BucketPlace], strike: &Charge) -> bool {
    let mut own = charges.iter().zip(places).filter(|(charge, _)| charge.origin.group == strike.origin.group);
    own.any(|(_, place)| place.is_overflow())
}

/// Returns the state of an overflow bucket after the edits of other charges of the request that share it.
fn after<'s>(
    state: Option<Cow<'s, BucketState>>,
    charge: &Charge,
    edits: &[(&Charge, Edit)],
) -> Option<Cow<'s, BucketState>> {
    let of_bucket = edits.iter().filter(|(other, _)| overflow::is_same(&other.bucket, &charge.bucket));
    of_bucket.fold(state, |state, (_, edit)| BucketState::edited(state.map(Cow::into_owned), edit).map(Cow::Owned))
}

/// Returns the slot that a charge frees or renews. It may have been taken from the overflow bucket although its bucket has
/// room by now.
fn held_slot(charge: &Charge) -> Option<Slot> {
    charge.slot().filter(|_| matches!(charge.mode, Mode::Refund | Mode::SpendOnly))
}
