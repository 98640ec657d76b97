//! Random requests in small stores against a map of buckets, which knows neither slots nor sweeps nor bounds.
//!
//! Time only moves forward. A bucket that is full may be gone or not: that decides nothing. Beyond the bound a store counts
//! charges to shared buckets, but does not tell which. The model then follows every world that explains the decisions so far.

use std::collections::HashMap;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::engine::algorithms::activations::Activations;
use crate::engine::algorithms::algorithm::{Algorithm, Aligned};
use crate::engine::algorithms::calendar::{Calendar, Unit};
use crate::engine::algorithms::charge::{Bucket, Elevated, Input, Mode, Slot};
use crate::engine::algorithms::decision::{Attempt, Decision, Outcome};
use crate::engine::algorithms::delay::Delay;
use crate::engine::algorithms::numbers::Numbers;
use crate::engine::algorithms::state::{self, State};
use crate::store::memory::shard::low_half;

/// 2024-03-31T23:00:00Z, an hour before a month ends.
const START: Micros = Micros(1_711_926_000_000_000);
const SECOND: u64 = 1_000_000_000;
const RULES_TOOK_EFFECT: Micros = Micros(0);

/// The most worlds that are followed. A trace with more ends there.
const MOST_WORLDS: usize = 16;

#[derive(Clone, Debug)]
struct Trace {
    shards: usize,
    max_keys: usize,
    /// By limit.
    terms: Vec<Terms>,
    /// The most buckets of each limit; empty if the limits have no shares.
    max_limit_keys: Vec<Option<u64>>,
    /// By limit.
    ids: usize,
    steps: Vec<Step>,
}

#[derive(Clone, Debug)]
struct Terms {
    numbers: Numbers,
    elevated: Option<Arc<Elevated>>,
    delay: Option<Delay>,
}

/// A call to the store.
#[derive(Clone, Debug)]
struct Step {
    wait: Wait,
    requests: Vec<Vec<Ask>>,
}

#[derive(Clone, Copy, Debug)]
enum Wait {
    Micros(u64),
    /// So many quarters of the time until one of the last request's buckets is full, and as many microseconds more or less.
    UntilFull(usize, u64, i64),
}

#[derive(Clone, Debug)]
struct Ask {
    bucket: usize,
    mode: Mode,
    cost: u64,
    slot: u128,
    taken_ago: Option<u64>,
    is_patient: bool,
    /// The limit's elevated numbers do not hold for it.
    is_plain: bool,
}

impl Trace {
    fn charge(&self, ask: &Ask) -> Charge {
        let limit = ask.bucket % self.terms.len();
        let id = ask.bucket / self.terms.len() % self.ids;
        let Terms { numbers, elevated, delay } = &self.terms[limit];
        let suffix = numbers.algorithm().key_suffix();
        // Buckets are spread over the shards evenly, and over a shard by chance.
        let shard = ((id * self.terms.len() + limit) % self.shards) as u128;
        let home =
            ((id * self.terms.len() + limit + 1) as u128).wrapping_mul(0x9e37_79b9_7f4a_7c15) & u128::from(u64::MAX);
        let fingerprint = (((2 * shard + 1) << 120) / self.shards as u128 * 128) & !u128::from(u64::MAX) | home;
        let bucket = Bucket::new(format!("L{limit}:{id}{suffix}"), fingerprint);
        let input = match (elevated, delay) {
            (Some(elevated), _) if !(ask.is_plain && elevated.numbers == *numbers) => {
                Some(Input::Elevated(elevated.clone()))
            }
            (_, Some(delay)) if ask.mode == Mode::Spend => {
                Some(Input::Delay(Delay { patience: if ask.is_patient { delay.most } else { Micros(0) }, ..*delay }))
            }
            _ if numbers.algorithm() == Algorithm::Concurrency => Some(Input::Slot(Slot(ask.slot))),
            _ => ask.taken_ago.filter(|_| ask.mode == Mode::Refund).map(|ago| Input::TakenAgo(Micros(ago))),
        };
        Charge { input: input.map(Box::new), ..Charge::new(bucket, numbers.clone(), ask.cost, ask.mode) }
    }

    /// The charges of a request, none to the same bucket.
    fn charges(&self, asks: &[Ask]) -> Vec<Charge> {
        let mut charges: Vec<Charge> = Vec::new();
        for charge in asks.iter().map(|ask| self.charge(ask)) {
            if charges.iter().all(|other| other.bucket != charge.bucket) {
                charges.push(charge);
            }
        }
        charges
    }
}

/// What the buckets may hold.
#[derive(Clone, Debug, Default, PartialEq)]
struct World {
    /// By key, those that are not full. Ids beyond the bound share the key of their limit and algorithm.
    buckets: HashMap<String, State>,
    quotas: HashMap<(u8, Arc<str>), Activations>,
    /// Charges of the call that found no room for a bucket of their own.
    overflowed: u64,
}

/// Whose bucket a charge may have been made to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    Id,
    Limit,
    /// A slot is given back where it was taken.
    LimitOfSlot,
}

fn shared_key(charge: &Charge) -> String {
    let (limit, rest) = charge.bucket.key.split_once(':').unwrap();
    format!("{limit}{}", rest.find('#').map_or("", |mark| &rest[mark..]))
}

impl World {
    /// The ways in which the charges can be made: a bucket that is not full stays its id's.
    fn owners(&self, charges: &[Charge], now: Micros, has_room: bool) -> Vec<Vec<Owner>> {
        let mut all = vec![Vec::new()];
        for charge in charges {
            let holds = |key: &str, slot| self.buckets.get(key).is_some_and(|state| state.holds(slot, now));
            let returns = matches!(charge.mode, Mode::Refund | Mode::SpendOnly);
            let possible: &[Owner] = match charge.slot().filter(|_| returns) {
                Some(slot) if !holds(&charge.bucket.key, slot) && holds(&shared_key(charge), slot) => {
                    &[Owner::LimitOfSlot]
                }
                _ if has_room || self.buckets.contains_key(&charge.bucket.key) => &[Owner::Id],
                _ => &[Owner::Id, Owner::Limit],
            };
            let with = |owners: Vec<Owner>| possible.iter().map(move |owner| [owners.clone(), vec![*owner]].concat());
            all = all.into_iter().flat_map(with).collect();
        }
        all
    }

    /// Decides a request: every charge as if it came after those before it, and all or nothing.
    fn decide(mut self, charges: &[Charge], owners: &[Owner], now: Micros) -> (Self, Decisions) {
        let key = |(charge, owner): (&Charge, &Owner)| match owner {
            Owner::Id => charge.bucket.key.clone(),
            Owner::Limit | Owner::LimitOfSlot => shared_key(charge),
        };
        let keys: Vec<String> = charges.iter().zip(owners).map(key).collect();
        self.overflowed += owners.iter().filter(|owner| **owner == Owner::Limit).count() as u64;
        let mut asked = self.clone();
        let mut attempts = Vec::new();
        for (charge, key) in charges.iter().zip(&keys) {
            let quota = charge.quota().map(|(tag, name)| asked.activations(tag, name));
            let attempt = state::decide(asked.buckets.get(key), charge, quota, now, RULES_TOOK_EFFECT).unwrap();
            asked.make(charge, key, &attempt, true);
            attempts.push(attempt);
        }
        let is_denied = attempts.iter().any(|attempt| attempt.decision.is_denied());
        let mut decisions = Decisions::default();
        for (index, attempt) in attempts.iter().enumerate() {
            let (charge, key) = (&charges[index], &keys[index]);
            let is_undone = is_denied && attempt.decision.outcome == Outcome::Allowed;
            let mut detail = attempt.detail.clone();
            let is_told = detail.as_mut().is_some_and(|detail| !is_undone || detail.undo());
            decisions.details.extend(detail.filter(|_| is_told).map(|detail| (index, detail)));
            decisions.push(match (is_undone, attempt.counts_denied) {
                (false, _) => attempt.decision,
                (true, true) => {
                    Decision { outcome: Outcome::Unchanged, retry_after: Some(Micros(0)), ..attempt.decision }
                }
                (true, false) => state::peek(self.buckets.get(key), charge, now, RULES_TOOK_EFFECT).unwrap(),
            });
        }
        for (index, attempt) in attempts.iter().enumerate() {
            if !is_denied || attempt.counts_denied {
                self.make(&charges[index], &keys[index], attempt, false);
            }
        }
        (self, decisions)
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
        if let Some(state) = State::edited(self.buckets.remove(key), edit) {
            self.buckets.insert(key.to_owned(), state);
        }
    }

    fn forget_full(&mut self, now: Micros) {
        self.buckets.retain(|_, state| !state.is_over(now, RULES_TOOK_EFFECT));
        self.quotas.retain(|_, activations| !activations.is_over(now));
        self.overflowed = 0;
    }
}

/// Plays a trace in a store and in the model. Returns the charges beyond the bound.
fn play(trace: &Trace, has_room: bool) -> Result<u64, TestCaseError> {
    let store = MemoryStore::with_shards(trace.max_keys, trace.shards);
    if !trace.max_limit_keys.is_empty() {
        let keys = |(limit, max_keys): (usize, &Option<u64>)| LimitKeys {
            short: format!("L{limit}"),
            max_keys: *max_keys,
            reserve: Reserve::Share,
            limited: Arc::default(),
        };
        let limits: Vec<LimitKeys> = trace.max_limit_keys.iter().enumerate().map(keys).collect();
        store.set_limits(&limits, RULES_TOOK_EFFECT);
    }
    let (mut now, mut worlds) = (START, vec![World::default()]);
    let mut last = Decisions::default();
    for step in &trace.steps {
        now = match step.wait {
            Wait::Micros(span) => now.after(Micros(span)),
            Wait::UntilFull(place, quarters, more) => {
                let full = last.get(place).and_then(|decision| decision.reset_after).unwrap_or_default();
                now.max(Micros((now.0 + full.0.min(4_000 * SECOND) / 4 * quarters).saturating_add_signed(more)))
            }
        };
        let charges: Vec<Vec<Charge>> = step.requests.iter().map(|asks| trace.charges(asks)).collect();
        let batch = |charges| Batch { charges, effective_from: RULES_TOOK_EFFECT, now };
        let batches: Vec<Batch<'_>> = charges.iter().map(|charges| batch(charges.as_slice())).collect();
        let before = store.usage().overflowed;
        let decided = match &batches[..] {
            [batch] => vec![store.decide(batch).unwrap()],
            batches => store.decide_in_turn(batches).unwrap(),
        };
        let overflowed = store.usage().overflowed - before;
        for world in &mut worlds {
            world.forget_full(now);
        }
        for (charges, decided) in charges.iter().zip(&decided) {
            let mut next: Vec<World> = Vec::new();
            let mut otherwise = Vec::new();
            for world in worlds {
                let unexplained = overflowed - world.overflowed;
                let is_possible = |owners: &Vec<Owner>| {
                    let shared = owners.iter().filter(|owner| **owner == Owner::Limit).count() as u64;
                    shared == unexplained || shared < unexplained && batches.len() > 1
                };
                for owners in world.owners(charges, now, has_room).into_iter().filter(is_possible) {
                    let (after, decisions) = world.clone().decide(charges, &owners, now);
                    if decisions != *decided {
                        otherwise.push(decisions);
                    } else if !next.contains(&after) {
                        next.push(after);
                    }
                }
            }
            prop_assert!(!next.is_empty(), "{now:?}, {charges:?}\nstore {decided:?}\nmodel {otherwise:?}");
            worlds = next;
        }
        worlds.retain(|world| world.overflowed == overflowed);
        prop_assert!(!worlds.is_empty(), "{overflowed} charges beyond the bound, {charges:?}\nstore {decided:?}");
        check_kept(&store, &worlds, charges.iter().flatten(), now)?;
        if worlds.len() > MOST_WORLDS {
            break;
        }
        last = decided.into_iter().next_back().unwrap_or_default();
    }
    Ok(store.usage().overflowed)
}

/// Checks that the store keeps the buckets of these charges as one of the worlds has them, and counts what it keeps.
fn check_kept<'c>(
    store: &MemoryStore,
    worlds: &[World],
    charges: impl Iterator<Item = &'c Charge>,
    now: Micros,
) -> Result<(), TestCaseError> {
    for charge in charges {
        let mut shard = store.shards[store.shard_number(charge)].lock();
        let in_table = shard.table.find(low_half(charge)).map(|level| State::Level(*level));
        let kept = in_table.or_else(|| shard.states.get(low_half(charge)).cloned());
        let live = kept.filter(|state| !state.is_over(now, RULES_TOOK_EFFECT));
        let expected = |world: &World| world.buckets.get(&charge.bucket.key) == live.as_ref();
        prop_assert!(worlds.iter().any(expected), "{charge:?}\nleft {live:?}, none of {worlds:?}");
    }
    let shards: Vec<_> = store.shards.iter().map(Mutex::lock).collect();
    let held: usize = shards.iter().map(|shard| shard.len()).sum();
    prop_assert!(shards.iter().all(|shard| shard.len() <= store.keys_per_shard));
    prop_assert_eq!(shards[0].shares.held(), (held + store.quotas.lock().len()) as u64);
    Ok(())
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

fn terms() -> impl Strategy<Value = Terms> {
    let plain = prop_oneof![
        6 => even(),
        3 => window(),
        1 => (1..6u64).prop_map(|burst| Numbers::fixed(burst).unwrap()),
        // A shard of n keys merges the entries of logs beyond 8 n.
        2 => (1..6u64, 1..5u64).prop_map(|(count, period)| Numbers::sliding_log(count, period * SECOND).unwrap()),
        2 => (1..6u64, 1..5u64, any::<bool>()).prop_map(|(count, period, denied)| {
            Numbers::sliding_window(count, period * SECOND, denied).unwrap()
        }),
        1 => (1..3u64, 1..5u64).prop_map(|(slots, lease)| Numbers::concurrency(slots, lease * SECOND).unwrap()),
    ]
    .prop_map(|numbers| Terms { numbers, elevated: None, delay: None });
    let elevated = (even(), proptest::option::of(even()), 1..5_000_000u64, 1..3u64, any::<bool>()).prop_map(
        |(numbers, other, span, activations_per_month, has_quota)| {
            let quota = has_quota.then(|| "quota".into());
            let elevated = Elevated { numbers: other.unwrap_or(numbers.clone()), span, activations_per_month, quota };
            Terms { numbers, elevated: Some(Arc::new(elevated)), delay: None }
        },
    );
    let delayed = (prop_oneof![even(), window()], 1..5_000_000u64).prop_map(|(numbers, most)| Terms {
        numbers,
        elevated: None,
        delay: Some(Delay::new(Micros(most))),
    });
    prop_oneof![6 => plain, 2 => elevated, 1 => delayed]
}

fn ask() -> impl Strategy<Value = Ask> {
    let mode = prop_oneof![
        8 => Just(Mode::Spend),
        1 => Just(Mode::Check),
        1 => Just(Mode::SpendOnly),
        1 => Just(Mode::SpendUpTo),
        1 => Just(Mode::Refund),
        1 => Just(Mode::Reset),
    ];
    let cost = prop_oneof![4 => Just(1u64), 2 => 0..7u64];
    let taken_ago = proptest::option::of(0..5_000_000u64);
    (any::<u16>(), mode, cost, 1..5u128, taken_ago, any::<bool>(), any::<bool>()).prop_map(
        |(bucket, mode, cost, slot, taken_ago, is_patient, is_plain)| Ask {
            bucket: bucket.into(),
            mode,
            cost,
            slot,
            taken_ago,
            is_patient,
            is_plain,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let wait = prop_oneof![
        4 => Just(Wait::Micros(0)),
        3 => (0..1_000_000u64).prop_map(Wait::Micros),
        1 => Just(Wait::Micros(3_600_000_000)),
        4 => (0..6usize, 0..=5u64, -1..=1i64).prop_map(|(place, quarters, more)| Wait::UntilFull(place, quarters, more)),
    ];
    let request = || vec(ask(), 1..=6);
    let requests = prop_oneof![4 => vec(request(), 1), 1 => vec(request(), 2..=3)];
    (wait, requests).prop_map(|(wait, requests)| Step { wait, requests })
}

/// Traces whose limits have buckets for this many times as many ids as the store has room for.
fn traces(crowd: f64) -> impl Strategy<Value = Trace> {
    let has_room = crowd <= 1.0;
    let limits = vec((terms(), proptest::option::of(0..9u64)), 1..=4);
    let rest = (1..=3usize, 4..=64usize, any::<bool>(), vec(step(), 1..60));
    (limits, rest).prop_map(move |(limits, (shards, max_keys, has_shares, steps))| {
        let (mut terms, max_limit_keys): (Vec<Terms>, Vec<Option<u64>>) = limits.into_iter().unzip();
        let mut has_quota = false;
        for elevated in terms.iter_mut().filter_map(|terms| terms.elevated.as_mut().map(Arc::make_mut)) {
            // Without room a quota counts as exhausted.
            elevated.quota = elevated.quota.take().filter(|_| has_room);
            has_quota |= elevated.quota.is_some();
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "small"
        )]
        let buckets = (max_keys as f64 * crowd) as usize / if has_quota { 2 } else { 1 };
        terms.truncate(buckets.max(1));
        let ids = (buckets / terms.len()).max(1);
        let max_limit_keys = if has_shares && !has_room { max_limit_keys } else { Vec::new() };
        Trace { shards, max_keys, terms, max_limit_keys, ids, steps }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn with_room_for_all_every_bucket_is_that_of_a_map(trace in traces(1.0)) {
        prop_assert_eq!(play(&trace, true)?, 0);
    }

    #[test]
    fn beyond_the_bound_ids_share_and_no_charge_is_lost(trace in traces(3.0)) {
        play(&trace, false)?;
    }
}
