//! Random requests in small stores against a map of buckets, which knows neither slots nor sweeps.
//!
//! A full bucket may be gone or not. That decides nothing but whether it takes room, so the map asks the store which buckets it
//! keeps, and knows everything else by itself. The same happens to a bucket that was in use when its numbers changed, once it is
//! full by the old ones and has been kept for as long again.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::engine::algorithms::activations::Activations;
use crate::engine::algorithms::algorithm::{Algorithm, Aligned};
use crate::engine::algorithms::calendar::{Calendar, Unit};
use crate::engine::algorithms::charge::{Bucket, ChargeOrigin, Dated, Elevated, Input, Mode, Role, Slot};
use crate::engine::algorithms::decision::{Attempt, Decision, Detail, Outcome};
use crate::engine::algorithms::delay::Delay;
use crate::engine::algorithms::numbers::Numbers;
use crate::engine::algorithms::reservation::{LONGEST_HOLD, Reservation, ReservationId};
use crate::engine::algorithms::state::{self, BucketState, Edit};
use crate::store::memory::shard::low_half;

/// 2024-03-31T23:00:00Z, an hour before a month ends.
const START: Micros = Micros(1_711_926_000_000_000);
const SECOND: u64 = 1_000_000_000;

#[derive(Clone, Debug)]
struct Trace {
    shards: usize,
    max_keys: usize,
    /// By limit, as the rules have them in turn.
    limits: Vec<[Terms; 2]>,
    has_shares: bool,
    /// By limit.
    ids: usize,
    /// The first shard gets more than half of the buckets.
    is_uneven: bool,
    steps: Vec<Step>,
}

/// A limit in the rules.
#[derive(Clone, Debug)]
struct Terms {
    numbers: Numbers,
    elevated: Option<Arc<Elevated>>,
    delay: Option<Delay>,
    max_keys: Option<u64>,
}

#[derive(Clone, Debug)]
enum Step {
    /// A call to the store after a while.
    Call(Wait, Vec<Vec<AskedCharge>>),
    /// The other rules take effect.
    Reload,
    RemoveLimit(usize),
    Clear,
}

#[derive(Clone, Copy, Debug)]
enum Wait {
    Micros(u64),
    /// The clock steps back.
    Back(u64),
    /// So many quarters of the time until one of the last request's buckets is full, and as many microseconds more or less.
    UntilFull(usize, u64, i64),
}

#[derive(Clone, Debug)]
struct AskedCharge {
    bucket: usize,
    mode: Mode,
    role: Role,
    cost: u64,
    slot: u128,
    /// The instant of the tokens that a refund gives back, counted from [`START`]; and whether the answer to a spend tells it.
    taken: Option<u64>,
    is_patient: bool,
    /// The reservation that it makes for some microseconds, or settles.
    reservation: Option<(u128, Option<u64>)>,
    /// The limit's elevated numbers do not hold for it.
    is_plain: bool,
}

/// A bucket that a trace may charge.
#[derive(Clone)]
struct Known {
    limit: usize,
    shard: usize,
    bucket: Bucket,
}

impl Trace {
    /// All buckets, those of one id side by side.
    fn known(&self) -> Vec<Known> {
        let count = self.ids * self.limits.len();
        let known = |number: usize| {
            let (limit, id) = (number % self.limits.len(), number / self.limits.len());
            let home = (number as u128 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) & u128::from(u64::MAX);
            let chance = (home >> 40) as usize % (2 * self.shards);
            let shard = if self.is_uneven { chance.saturating_sub(self.shards) } else { number % self.shards };
            let high = ((2 * shard as u128 + 1) * (u128::MAX / (2 * self.shards as u128))) & !u128::from(u64::MAX);
            let suffix = self.limits[limit][0].numbers.algorithm().key_suffix();
            Known { limit, shard, bucket: Bucket::new(format!("L{limit}:{id}{suffix}"), high | home) }
        };
        (0..count).map(known).collect()
    }

    fn limit_keys(&self, rules: usize) -> Vec<LimitKeys> {
        let keys = |(limit, terms): (usize, &[Terms; 2])| LimitKeys {
            short: format!("L{limit}"),
            max_keys: terms[rules].max_keys,
            reserve: Reserve::Share,
            limited: Arc::default(),
        };
        let limits = self.limits.iter().enumerate().map(keys);
        if self.has_shares { limits.collect() } else { Vec::new() }
    }
}

/// What the buckets hold, and the rules in force.
struct Map<'t> {
    trace: &'t Trace,
    known: Vec<Known>,
    rules: usize,
    effective_from: Micros,
    /// By key, those that are not full. Ids without room share the key of their limit and algorithm.
    buckets: HashMap<String, BucketState>,
    quotas: HashMap<(u8, Arc<str>), Activations>,
}

/// Whose bucket a charge is made to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    Id,
    Limit,
    /// A slot is given back where it was taken.
    LimitOfSlot,
}

/// The buckets that a store keeps, full ones included, by their place among the known ones.
struct Kept {
    states: HashMap<usize, BucketState>,
    quotas: usize,
}

impl Kept {
    fn by(store: &MemoryStore, known: &[Known]) -> Self {
        let mut shards: Vec<_> = store.shards.iter().map(Mutex::lock).collect();
        let find = |(place, known): (usize, &Known)| {
            let shard = &mut shards[known.shard];
            let fingerprint = low_half(&known.bucket);
            let level = shard.table.find(fingerprint).map(|level| BucketState::Level(*level));
            Some((place, level.or_else(|| shard.states.get(fingerprint).cloned())?))
        };
        let states: HashMap<usize, BucketState> = known.iter().enumerate().filter_map(find).collect();
        assert_eq!(shards.iter().map(|shard| shard.len()).sum::<usize>(), states.len());
        assert!(shards.iter().all(|shard| shard.len() <= store.keys_per_shard));
        let quotas = store.quotas.lock().len();
        assert_eq!(shards[0].shares.held(), (states.len() + quotas) as u64);
        Self { states, quotas }
    }
}

fn shared_key(key: &str) -> String {
    let (limit, rest) = key.split_once(':').unwrap();
    format!("{limit}{}", rest.find('#').map_or("", |mark| &rest[mark..]))
}

impl Map<'_> {
    fn charge(&self, ask: &AskedCharge) -> (usize, Charge) {
        let place = ask.bucket % self.known.len();
        let Known { limit, bucket, .. } = &self.known[place];
        let Terms { numbers, elevated, delay, .. } = &self.trace.limits[*limit][self.rules];
        let input = match (elevated, delay) {
            (Some(elevated), _) if !(ask.is_plain && elevated.numbers == *numbers) => {
                Some(Input::Elevated(elevated.clone()))
            }
            (_, Some(delay)) if ask.mode == Mode::Spend => {
                Some(Input::Delay(Delay { patience: if ask.is_patient { delay.most } else { Micros(0) }, ..*delay }))
            }
            _ if numbers.algorithm() == Algorithm::Concurrency => Some(Input::Slot(Slot(ask.slot))),
            _ => None,
        };
        let reservation = ask
            .reservation
            .filter(|_| numbers.algorithm().keeps_level() && elevated.is_none() && ask.role != Role::Strike);
        let (input, mode) = match reservation {
            None => (input, ask.mode),
            Some((id, Some(span))) => {
                (Some(Input::Reservation(Reservation::Reserve(ReservationId(id), Micros(span)))), Mode::Spend)
            }
            Some((id, None)) => (Some(Input::Reservation(Reservation::Commit(ReservationId(id)))), Mode::SpendUpTo),
        };
        let dated = match (ask.taken.filter(|_| numbers.is_dated()), mode) {
            (None, _) => Dated::No,
            (Some(taken), Mode::Refund) => Dated::At(START.after(Micros(taken))),
            (Some(_), _) => Dated::Reserved,
        };
        let charge = Charge::new(bucket.clone(), numbers.clone(), ask.cost, mode);
        let group = if mode == Mode::SpendOnly { self.known.len() + place } else { *limit };
        let group = u32::try_from(group).unwrap();
        let origin = ChargeOrigin { role: ask.role, group, ..ChargeOrigin::new(0, true) };
        (place, Charge { input: input.map(Box::new), dated, origin, ..charge })
    }

    /// The charges of a request, none to the same bucket, and their places among the known buckets.
    fn charges(&self, asks: &[AskedCharge]) -> (Vec<usize>, Vec<Charge>) {
        let mut seen = HashSet::new();
        asks.iter().map(|ask| self.charge(ask)).filter(|(place, _)| seen.insert(*place)).unzip()
    }

    /// Compares what the store keeps, and forgets what it has dropped although the bucket is not full by new numbers.
    fn compare(&mut self, store: &MemoryStore, kept: &Kept, now: Micros) -> Result<(), TestCaseError> {
        let is_over = |state: &BucketState| state.is_over(now, self.effective_from);
        for (place, known) in self.known.iter().enumerate() {
            let (own, kept) = (self.buckets.get(&known.bucket.key), kept.states.get(&place));
            match kept {
                Some(kept) if own != Some(kept) => {
                    prop_assert!(own.is_none() && is_over(kept), "{kept:?}, not {own:?}");
                }
                None if own.is_some_and(is_over) => drop(self.buckets.remove(&known.bucket.key)),
                None => prop_assert!(own.is_none(), "lost {own:?} of {}", known.bucket.key),
                Some(_) => {}
            }
        }
        let overflow = store.overflow.lock();
        for known in &self.known[..self.trace.limits.len()] {
            let key = shared_key(&known.bucket.key);
            let (own, kept) = (self.buckets.get(&key), overflow.get(&known.bucket));
            match kept {
                Some(kept) if own != Some(kept) => {
                    prop_assert!(own.is_none() && is_over(kept), "{kept:?}, not {own:?}");
                }
                None if own.is_some_and(is_over) => drop(self.buckets.remove(&key)),
                None => prop_assert!(own.is_none(), "lost {own:?} of {key}"),
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// Finds each charge's bucket. Where a new one has no room, the full buckets of its shard leave, and all are found again.
    fn owners(
        &mut self,
        (places, charges): (&[usize], &[Charge]),
        kept: &mut Kept,
        bound: usize,
        now: Micros,
    ) -> Vec<Owner> {
        let owners = self.found(places, charges, kept, bound, now);
        let crowded: HashSet<usize> = std::iter::zip(places, &owners)
            .filter_map(|(place, owner)| (*owner == Owner::Limit).then_some(self.known[*place].shard))
            .collect();
        if crowded.is_empty() {
            return owners;
        }
        let (known, buckets, changed) = (&self.known, &mut self.buckets, self.effective_from);
        kept.states.retain(|place, state| {
            let stays = !crowded.contains(&known[*place].shard) || !state.is_over(now, changed);
            if !stays {
                buckets.remove(&known[*place].bucket.key);
            }
            stays
        });
        self.found(places, charges, kept, bound, now)
    }

    fn found(&self, places: &[usize], charges: &[Charge], kept: &Kept, bound: usize, now: Micros) -> Vec<Owner> {
        let terms = || self.trace.limits.iter().map(|terms| &terms[self.rules]);
        // Half of the table is reserved for the limits, in even shares.
        let even = (self.trace.max_keys / 2 / self.trace.limits.len()) as u64;
        let most = |terms: &Terms| terms.max_keys.filter(|_| self.trace.has_shares).unwrap_or(u64::MAX);
        let reserved = |terms: &Terms| if self.trace.has_shares { even.min(most(terms)) } else { 0 };
        let open = self.trace.max_keys as u64 - terms().map(reserved).sum::<u64>();
        let count =
            |is: &dyn Fn(&Known) -> bool| kept.states.keys().filter(|place| is(&self.known[**place])).count() as u64;
        let held: Vec<u64> = (0..terms().len()).map(|limit| count(&|known| known.limit == limit)).collect();
        let above = std::iter::zip(&held, terms()).map(|(held, terms)| held.saturating_sub(reserved(terms)));
        let open_held = above.sum::<u64>() + kept.quotas as u64;
        let mut new: Vec<&Known> = Vec::new();
        let mut find = |(place, charge): (&usize, &Charge)| {
            let known = &self.known[*place];
            let holds = |key: &str, slot| self.buckets.get(key).is_some_and(|state| state.holds(slot, now));
            let returned = charge.slot().filter(|_| matches!(charge.mode, Mode::Refund | Mode::SpendOnly));
            let is_elsewhere = |slot| !holds(&known.bucket.key, slot) && holds(&shared_key(&known.bucket.key), slot);
            if returned.is_some_and(is_elsewhere) {
                return Owner::LimitOfSlot;
            }
            if kept.states.contains_key(place) {
                return Owner::Id;
            }
            let terms = &self.trace.limits[known.limit][self.rules];
            let held = held[known.limit] + new.iter().filter(|other| other.limit == known.limit).count() as u64;
            let is_open = open_held + (new.len() as u64) < open;
            let in_shard = new.iter().filter(|other| other.shard == known.shard).count() as u64
                + count(&|other| other.shard == known.shard);
            if held < most(terms) && (held < reserved(terms) || is_open) && in_shard < bound as u64 {
                new.push(known);
                Owner::Id
            } else {
                Owner::Limit
            }
        };
        std::iter::zip(places, charges).map(&mut find).collect()
    }

    /// Decides a request: every charge as if it came after those before it, and by the rule of taking.
    fn decide(&mut self, charges: &[Charge], owners: &[Owner], now: Micros) -> Decisions {
        let key = |(charge, owner): (&Charge, &Owner)| match owner {
            Owner::Id => charge.bucket.key.clone(),
            Owner::Limit | Owner::LimitOfSlot => shared_key(&charge.bucket.key),
        };
        let keys: Vec<String> = charges.iter().zip(owners).map(key).collect();
        let own = charges.iter().map(|charge| &charge.bucket.key);
        for key in keys.iter().chain(own) {
            self.buckets.entry(key.clone()).and_modify(|state| state.redate(now));
        }
        let before = (self.buckets.clone(), self.quotas.clone());
        let mut attempts = Vec::new();
        for (charge, key) in charges.iter().zip(&keys) {
            let quota = charge.quota().map(|(tag, name)| self.activations(tag, name));
            let own = std::iter::zip(charges, owners).filter(|(own, _)| own.origin.group == charge.origin.group);
            let attempt = if charge.origin.is_strike() && own.into_iter().any(|(_, owner)| *owner != Owner::Id) {
                Attempt::new(Decision::unknown(charge.numbers.burst()), None)
            } else {
                state::decide(self.buckets.get(key), charge, quota, now, self.effective_from).unwrap()
            };
            self.make(charge, key, &attempt, true);
            attempts.push(attempt);
        }
        (self.buckets, self.quotas) = before;
        // Whether charges that can be short fit: those of a group in shadow, or of one of its candidates, and those of any enforced group but one.
        let fits = |is_asked: &dyn Fn(&Charge) -> bool| {
            charges.iter().zip(&attempts).all(|(charge, attempt)| !is_asked(charge) || !attempt.decision.is_short())
        };
        let takes: Vec<bool> = charges
            .iter()
            .map(|charge| {
                let ChargeOrigin { group, role, .. } = charge.origin;
                let can_be_short = matches!(charge.mode, Mode::Spend | Mode::Check | Mode::SpendOnly);
                let is_mate = |other: &Charge| {
                    let same_kind = other.origin.role.candidate() == role.candidate();
                    other.origin.group == group && same_kind && !other.can_deny() && !other.origin.is_strike()
                };
                let is_own =
                    |other: &Charge| charge.origin.is_candidate() && can_be_short && other.origin.group == group;
                let is_other = |other: &Charge| other.can_deny() && !is_own(other);
                if charge.origin.is_strike() {
                    return !fits(&|other: &Charge| other.origin.group == group && !other.origin.is_beside());
                }
                fits(&is_other) && (charge.can_deny() || !can_be_short || fits(&is_mate))
            })
            .collect();
        let mut decisions = Decisions::default();
        for (index, attempt) in attempts.iter().enumerate() {
            let (charge, key) = (&charges[index], &keys[index]);
            let is_undone = !takes[index] && attempt.decision.outcome == Outcome::Allowed;
            let mut detail = attempt.detail.clone();
            let is_told = detail.as_mut().is_some_and(|detail| !is_undone || detail.undo());
            decisions.details.extend(detail.filter(|_| is_told).map(|detail| (index, detail)));
            if is_undone && attempt.counts_denied {
                let wait = attempt.decision.retry_after.filter(|wait| *wait > Micros(0));
                decisions.details.extend(wait.map(|wait| (index, Detail::Counted(wait))));
            }
            decisions.push(match (is_undone, attempt.counts_denied) {
                (false, _) => attempt.decision,
                (true, true) => {
                    Decision { outcome: Outcome::Unchanged, retry_after: Some(Micros(0)), ..attempt.decision }
                }
                (true, false) => state::peek(self.buckets.get(key), charge, now, self.effective_from).unwrap(),
            });
        }
        for (index, attempt) in attempts.iter().enumerate() {
            if takes[index] || attempt.counts_denied {
                self.make(&charges[index], &keys[index], attempt, false);
            }
        }
        decisions
    }

    fn activations(&self, tag: u8, name: &Arc<str>) -> Activations {
        self.quotas.get(&(tag, name.clone())).copied().unwrap_or_default()
    }

    /// Makes the edit of an attempt. A check uses an activation only for the charges behind it.
    fn make(&mut self, charge: &Charge, key: &str, attempt: &Attempt<Edit>, counts_checks: bool) {
        if let (Some(instant), Some((tag, name))) = (attempt.from_quota, charge.quota())
            && (counts_checks || attempt.edit.is_some())
        {
            let counted = self.activations(tag, name).with_one(instant);
            self.quotas.insert((tag, name.clone()), counted);
        }
        let Some(edit) = &attempt.edit else { return };
        if let Some(state) = BucketState::edited(self.buckets.remove(key), edit) {
            self.buckets.insert(key.to_owned(), state);
        }
    }

    fn remove_limit(&mut self, limit: usize) {
        let (own, shared) = (format!("L{limit}:"), format!("L{limit}"));
        let has_tag = self.trace.has_shares;
        self.buckets.retain(|key, _| {
            let is_own = key.starts_with(&own);
            !(is_own && has_tag || !is_own && key.split('#').next() == Some(&shared))
        });
    }
}

/// Plays a trace in a store, in another one that gets the requests of a call one by one, and in the map. Returns the charges
/// beyond the bound.
fn play(trace: &Trace) -> Result<u64, TestCaseError> {
    let stores = [0, 1].map(|_| MemoryStore::with_shards(trace.max_keys, trace.shards));
    let [store, one_by_one] = &stores;
    let (mut now, mut shared) = (START, 0);
    let mut map = Map {
        trace,
        known: trace.known(),
        rules: 0,
        effective_from: Micros(0),
        buckets: HashMap::new(),
        quotas: HashMap::new(),
    };
    for store in &stores {
        store.set_limits(&trace.limit_keys(0), map.effective_from);
    }
    let mut last = Decisions::default();
    for step in &trace.steps {
        let (wait, requests) = match step {
            Step::Call(wait, requests) => (*wait, requests),
            Step::Reload => {
                (map.rules, map.effective_from) = (1 - map.rules, now);
                for store in &stores {
                    store.set_limits(&trace.limit_keys(map.rules), now);
                }
                continue;
            }
            Step::RemoveLimit(limit) => {
                let limit = limit % trace.limits.len();
                for store in &stores {
                    store.remove_limit(&format!("L{limit}"));
                }
                map.remove_limit(limit);
                continue;
            }
            Step::Clear => {
                stores.iter().for_each(MemoryStore::clear);
                (map.buckets, map.quotas) = (HashMap::new(), HashMap::new());
                continue;
            }
        };
        now = match wait {
            Wait::Micros(span) => now.after(Micros(span)),
            Wait::Back(span) => now.before(Micros(span)),
            Wait::UntilFull(place, quarters, more) => {
                let full = last.get(place).and_then(|decision| decision.reset_after).unwrap_or_default();
                now.max(Micros((now.0 + full.0.min(4_000 * SECOND) / 4 * quarters).saturating_add_signed(more)))
            }
        };
        let requests: Vec<_> = requests.iter().map(|asks| map.charges(asks)).collect();
        let effective_from = map.effective_from;
        let batch = |charges| Batch { charges, effective_from, now };
        let batches: Vec<Batch<'_>> = requests.iter().map(|(_, charges)| batch(charges.as_slice())).collect();
        let decided = match &batches[..] {
            [batch] => vec![store.decide(batch).unwrap()],
            batches => store.decide_in_turn(batches).unwrap(),
        };
        for (((places, charges), batch), decided) in requests.iter().zip(&batches).zip(&decided) {
            let mut kept = Kept::by(one_by_one, &map.known);
            map.compare(one_by_one, &kept, now)?;
            let owners = map.owners((places, charges), &mut kept, one_by_one.keys_per_shard, now);
            let expected = map.decide(charges, &owners, now);
            prop_assert_eq!(&one_by_one.decide(batch).unwrap(), &expected, "at {:?}, {:?}", now, charges);
            prop_assert_eq!(decided, &expected, "in turn, at {:?}, {:?}", now, charges);
            shared += owners.iter().filter(|owner| **owner == Owner::Limit).count() as u64;
        }
        // A sweep drops what is full, which it may not be after a step back.
        map.compare(one_by_one, &Kept::by(one_by_one, &map.known), now)?;
        for store in &stores {
            prop_assert_eq!(store.usage().overflowed, shared);
        }
        last = decided.into_iter().next_back().unwrap_or_default();
    }
    for store in &stores {
        map.compare(store, &Kept::by(store, &map.known), now)?;
    }
    Ok(shared)
}

fn even() -> impl Strategy<Value = Numbers> {
    (1..6u64, 1..6u64, 1..5u64).prop_map(|(burst, count, period)| Numbers::new(burst, count, period * SECOND).unwrap())
}

fn window() -> impl Strategy<Value = Numbers> {
    let aligned = prop_oneof![Just(Aligned::First), Just(Aligned::Clock)];
    let spans = (1..6u64, 1..6u64, 1..5u64, aligned).prop_map(|(burst, count, period, aligned)| {
        Numbers::fixed_window(burst, count, period * SECOND, aligned).unwrap()
    });
    let month = Calendar::find(Unit::Month(1), "UTC").unwrap();
    let months = (1..6u64).prop_map(move |burst| Numbers::calendar_window(burst, burst, month.clone()).unwrap());
    prop_oneof![4 => spans, 1 => months]
}

fn terms(numbers: Numbers) -> Terms {
    Terms { numbers, elevated: None, delay: None, max_keys: None }
}

/// The terms of a limit that keeps levels.
fn levels() -> impl Strategy<Value = Terms> {
    let fixed = (1..6u64).prop_map(|burst| Numbers::fixed(burst).unwrap());
    let plain = prop_oneof![6 => even(), 3 => window(), 1 => fixed].prop_map(terms);
    let elevated = (even(), proptest::option::of(even()), 1..5_000_000u64, 1..3u64, any::<bool>()).prop_map(
        |(numbers, other, span, activations_per_month, has_quota)| {
            let quota = has_quota.then(|| "quota".into());
            let elevated = Elevated { numbers: other.unwrap_or(numbers.clone()), span, activations_per_month, quota };
            Terms { elevated: Some(Arc::new(elevated)), ..terms(numbers) }
        },
    );
    let delayed = (prop_oneof![even(), window()], 1..5_000_000u64)
        .prop_map(|(numbers, most)| Terms { delay: Some(Delay::new(Micros(most))), ..terms(numbers) });
    prop_oneof![4 => plain, 2 => elevated, 1 => delayed]
}

/// A limit before and after a reload. Its algorithm changes only where it keeps its buckets.
fn limit() -> impl Strategy<Value = [Terms; 2]> {
    fn twice<S: Strategy<Value = Numbers> + Clone>(numbers: S) -> impl Strategy<Value = (Terms, Terms)> {
        let changed = proptest::option::of(numbers.clone().prop_map(terms));
        (numbers.prop_map(terms), changed).prop_map(|(one, other)| (one.clone(), other.unwrap_or(one)))
    }
    // A shard of n keys merges the entries of logs beyond 8 n.
    let log = (1..6u64, 1..5u64).prop_map(|(count, period)| Numbers::sliding_log(count, period * SECOND).unwrap());
    let sliding = (1..6u64, 1..5u64, any::<bool>())
        .prop_map(|(count, period, denied)| Numbers::sliding_window(count, period * SECOND, denied).unwrap());
    let slots = (1..3u64, 1..5u64).prop_map(|(slots, lease)| Numbers::concurrency(slots, lease * SECOND).unwrap());
    let level = (levels(), levels());
    let terms = prop_oneof![10 => level, 2 => twice(log), 2 => twice(sliding), 1 => twice(slots)];
    (terms, proptest::option::of(0..9u64), any::<bool>()).prop_map(|((one, other), max_keys, is_changed)| {
        let other = Terms { max_keys: max_keys.map(|most| if is_changed { 8 - most } else { most }), ..other };
        [Terms { max_keys, ..one }, other]
    })
}

fn ask() -> impl Strategy<Value = AskedCharge> {
    let role = prop_oneof![
        4 => Just(Role::Enforced),
        2 => Just(Role::Shadow),
        2 => (0..3_u8).prop_map(Role::Candidate),
        1 => Just(Role::Strike),
    ];
    let mode = prop_oneof![
        8 => Just(Mode::Spend),
        1 => Just(Mode::Check),
        1 => Just(Mode::SpendOnly),
        1 => Just(Mode::SpendUpTo),
        1 => Just(Mode::Refund),
        1 => Just(Mode::Reset),
    ];
    let cost = prop_oneof![4 => Just(1u64), 2 => 0..7u64];
    let taken = proptest::option::of(prop_oneof![Just(0u64), 0..5_000_000u64]);
    let span = prop_oneof![Just(1u64), 0..5_000_000u64, Just(LONGEST_HOLD.0)];
    let reservation = (1..4u128, proptest::option::of(span));
    let flags = (proptest::option::weighted(0.2, reservation), any::<bool>(), any::<bool>());
    (any::<u16>(), (mode, role), cost, 1..5u128, taken, flags).prop_map(
        |(bucket, (mode, role), cost, slot, taken, (reservation, is_patient, is_plain))| AskedCharge {
            bucket: bucket.into(),
            mode: if role == Role::Strike { Mode::Spend } else { mode },
            role,
            cost,
            slot,
            taken,
            is_patient,
            reservation,
            is_plain,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let wait = prop_oneof![
        4 => Just(Wait::Micros(0)),
        3 => (0..1_000_000u64).prop_map(Wait::Micros),
        1 => Just(Wait::Micros(3_600_000_000)),
        1 => prop_oneof![0..3_000_000u64, 0..4_000_000_000u64].prop_map(Wait::Back),
        4 => (0..6usize, 0..=5u64, -1..=1i64).prop_map(|(place, quarters, more)| Wait::UntilFull(place, quarters, more)),
    ];
    let request = || vec(ask(), 1..=6);
    let requests = prop_oneof![4 => vec(request(), 1), 1 => vec(request(), 2..=3)];
    prop_oneof![
        30 => (wait, requests).prop_map(|(wait, requests)| Step::Call(wait, requests)),
        2 => Just(Step::Reload),
        1 => (0..4usize).prop_map(Step::RemoveLimit),
        1 => Just(Step::Clear),
    ]
}

/// Traces whose limits have buckets for `crowd` times as many ids as the store has room for.
fn traces(crowd: usize) -> impl Strategy<Value = Trace> {
    let rest = (1..=3usize, 4..=64usize, any::<bool>(), any::<bool>(), vec(step(), 1..60));
    (vec(limit(), 1..=4), rest).prop_map(move |(mut limits, (shards, max_keys, has_shares, is_uneven, steps))| {
        // Without room a quota counts as exhausted.
        let mut has_quota = false;
        let elevated = limits.iter_mut().flatten().filter_map(|terms| terms.elevated.as_mut());
        for elevated in elevated.map(Arc::make_mut) {
            elevated.quota = elevated.quota.take().filter(|_| crowd == 1 && !has_shares);
            has_quota |= elevated.quota.is_some();
        }
        let buckets = max_keys * crowd / if has_quota { 2 } else { 1 };
        limits.truncate(buckets);
        let ids = buckets / limits.len();
        Trace { shards, max_keys, limits, has_shares, ids, is_uneven: is_uneven && crowd > 1, steps }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn with_room_for_all_every_bucket_is_that_of_a_map(trace in traces(1)) {
        let shared = play(&trace)?;
        prop_assert!(shared == 0 || trace.has_shares, "{shared} charges beyond the bound");
    }

    #[test]
    fn beyond_the_bound_ids_share_and_no_charge_is_lost(trace in traces(3)) {
        play(&trace)?;
    }
}
