//! Random traces: limits, charges and times.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use weir::engine::algorithms::algorithm::{Algorithm, Aligned};
use weir::engine::algorithms::calendar::{Calendar, Unit};
use weir::engine::algorithms::charge::{
    Bucket, Charge, ChargeOrigin, Dated, Elevated, Input, Mode, NUMBERS_OF_THE_CALL, Role, Slot,
};
use weir::engine::algorithms::micros::{EXACT, Micros};
use weir::engine::algorithms::numbers::Numbers;
use weir::engine::algorithms::sliding_window;
use weir::engine::algorithms::tag::Tag;
use weir::engine::algorithms::windows::Windows;

/// The ids of a trace, and their sets of numbers.
const IDS: u128 = 4;
const NUMBERS: usize = 3;

/// Names of slots, and no slot.
const SLOTS: u128 = 4;

/// The longest trace. After fewer steps a bucket has hardly a past, and 10 000 longer ones take a minute.
const MOST_STEPS: usize = 9;

/// An instant in 2025.
pub(super) const START: u64 = 1_760_000_000_000_000;

/// Limits and requests.
#[derive(Clone, Debug)]
pub(super) struct Trace {
    allowed: Vec<Allowed>,
    steps: Vec<Step>,
}

/// Numbers, and others that switch on by themselves.
type Allowed = (Numbers, Option<Arc<Elevated>>);

/// A request for the stores.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) charges: Vec<Charge>,
    pub(super) effective_from: u64,
    pub(super) now: u64,
}

/// A charge relative to its numbers.
#[derive(Clone, Debug)]
struct AskedCharge {
    id: u128,
    numbers: usize,
    cost: Cost,
    mode: Mode,
    role: Role,
    /// The slot's name, if there is one.
    slot: Option<Slot>,
    /// The age of the numbers, or the time of this call, if they did not take effect with the rules.
    changed: Option<Result<u64, u64>>,
    /// The request that took the tokens of a refund, counted back from this one, or any instant. A spend asks for its instant.
    taken: Option<Result<usize, u64>>,
}

/// A cost relative to the burst.
#[derive(Clone, Debug)]
enum Cost {
    Exactly(u64),
    /// This many 64ths of the burst.
    Share(u64),
    /// The burst and this much more.
    Above(u64),
}

#[derive(Clone, Debug)]
enum Clocked {
    /// Neither the clock nor the rules have changed: such requests share a call.
    Still,
    /// This many 64ths of the time that fills a bucket, and some microseconds more or less.
    Share(usize, u64, i64),
    Back(u64),
    To(u64),
}

#[derive(Clone, Debug)]
struct Step {
    clock: Clocked,
    /// Before now, or since an arbitrary instant.
    effective_from: Result<u64, u64>,
    asks: Vec<AskedCharge>,
}

pub(super) fn traces() -> impl Strategy<Value = Trace> {
    (vec(allowed(), NUMBERS), vec(step(), 1..=MOST_STEPS)).prop_map(|(allowed, steps)| Trace { allowed, steps })
}

impl Trace {
    /// The trace's requests. The trace's number keeps its buckets apart from others'.
    pub(super) fn requests(&self, number: u64) -> Vec<Request> {
        let (mut now, mut effective_from) = (START, START);
        let mut requests = Vec::with_capacity(self.steps.len());
        for step in &self.steps {
            if !matches!(step.clock, Clocked::Still) {
                now = step.clock.advance(now, &self.allowed);
                effective_from = step.effective_from.map_or_else(|at| at, |ago| now.saturating_sub(ago));
            }
            let charges = self.charges(step, number, now, &requests);
            requests.push(Request { charges, effective_from, now });
        }
        requests
    }

    fn charges(&self, step: &Step, number: u64, now: u64, earlier: &[Request]) -> Vec<Charge> {
        // Pseudo-random, as the store expects of fingerprints.
        let scattered = (number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut charges: Vec<Charge> = Vec::new();
        for AskedCharge { id, numbers: limit, cost, mode, role, slot, changed, taken } in &step.asks {
            let (numbers, mut elevated) = self.allowed[*limit].clone();
            if let Some(quota) = elevated.as_mut().and_then(|elevated| Arc::make_mut(elevated).quota.as_mut()) {
                *quota = format!("{number}{quota}").into();
            }
            let (mark, place) = state(&numbers);
            // Far apart, so that each bucket has its own shard: a sweep would forget a full bucket, which may not be
            // full after the clock has stepped back.
            let shard = ((place * IDS + id) * (u128::MAX / (STATES * IDS))) >> 64 << 64;
            let fingerprint = shard | u128::from(scattered);
            // The last id shares no quota with the others.
            let tag = Tag::Fixed((id + 1 == IDS).into());
            let bucket = Bucket { key: format!("{number}:{id}{mark}"), fingerprint, tag };
            let most = elevated.as_ref().map_or(0, |elevated| elevated.numbers.burst()).max(numbers.burst());
            let cost = cost.of(most);
            if charges.iter().all(|charge| charge.bucket != bucket) {
                let slot = slot.filter(|_| numbers.is_slots()).map(Input::Slot);
                let is_dated = matches!(
                    numbers.algorithm(),
                    Algorithm::FixedWindow(_) | Algorithm::SlidingLog | Algorithm::SlidingWindow { .. }
                );
                // Looks are for tokens.
                let mode = if numbers.is_slots() && *mode == Mode::Look { Mode::Check } else { *mode };
                let dated = match (taken.filter(|_| is_dated), mode) {
                    (None, _) => Dated::No,
                    (Some(Ok(back)), Mode::Refund) => {
                        Dated::At(Micros(earlier.iter().rev().nth(back).map_or(now, |it| it.now)))
                    }
                    (Some(Err(taken)), Mode::Refund) => Dated::At(Micros(taken)),
                    (Some(_), _) => Dated::Reserved,
                };
                let input = slot.or(elevated.map(Input::Elevated)).map(Box::new);
                let changed = changed.map_or(0, |changed| changed.map_or_else(|at| at, |ago| now.saturating_sub(ago)));
                let group = if mode == Mode::SpendOnly { NUMBERS + charges.len() } else { *limit };
                let origin =
                    ChargeOrigin { role: *role, group: u32::try_from(group).unwrap(), ..ChargeOrigin::new(0, true) };
                charges.push(Charge {
                    origin,
                    input,
                    dated,
                    changed: Micros(changed),
                    ..Charge::new(bucket, numbers, cost, mode)
                });
            }
        }
        charges
    }
}

/// The kinds of state that an id's bucket may have.
const STATES: u128 = 4;

/// The kind's mark in the key, and its number.
fn state(numbers: &Numbers) -> (&'static str, u128) {
    let kind = numbers.algorithm();
    let place = match kind {
        Algorithm::Gcra | Algorithm::FixedWindow(_) => 0,
        Algorithm::SlidingLog => 1,
        Algorithm::SlidingWindow { .. } => 2,
        Algorithm::Concurrency => 3,
        Algorithm::Queue | Algorithm::Script => panic!("no trace has {kind:?}"),
    };
    (kind.key_suffix(), place)
}

/// Roughly the time that fills an empty bucket.
fn time_to_fill(numbers: &Numbers) -> u64 {
    match numbers.algorithm() {
        Algorithm::SlidingLog | Algorithm::Concurrency => return numbers.span(),
        Algorithm::SlidingWindow { .. } => return 2 * numbers.span(),
        _ => {}
    }
    let period = match numbers.windows() {
        None => return numbers.time_for(numbers.capacity()).map_or(1_000_000, |full| full.0),
        Some(Windows::First(period) | Windows::Clock(period)) => period,
        Some(Windows::Calendar(calendar)) => calendar.length(400),
    };
    period * numbers.windows_to_fill()
}

impl Clocked {
    fn advance(&self, now: u64, allowed: &[Allowed]) -> u64 {
        let next = match *self {
            Self::Still => now,
            Self::Share(place, share, more) => {
                (now + time_to_fill(&allowed[place].0) / 64 * share).saturating_add_signed(more)
            }
            Self::Back(span) => now.saturating_sub(span),
            Self::To(instant) => instant,
        };
        // Elevated numbers that switch on in the clock's last microsecond would end with it and be forgotten.
        next.min(EXACT - 2)
    }
}

impl Cost {
    fn any() -> impl Strategy<Value = Self> {
        prop_oneof![
            3 => any_length(3).prop_map(Self::Exactly),
            3 => (0..=64u64).prop_map(Self::Share),
            1 => any_length(64).prop_map(Self::Exactly),
            1 => (0..2u64).prop_map(Self::Above),
        ]
    }

    fn of(&self, burst: u64) -> u64 {
        match *self {
            Self::Exactly(cost) => cost,
            Self::Share(share) => (u128::from(burst) * u128::from(share) / 64).try_into().unwrap(),
            Self::Above(more) => burst + more,
        }
    }
}

/// Any integer of up to `bits` bits, each length equally likely.
fn any_length(bits: u32) -> impl Strategy<Value = u64> {
    (0..=bits, any::<u64>()).prop_map(|(bits, random)| random.checked_shr(64 - bits).unwrap_or(0))
}

/// Numbers of any algorithm.
fn numbers() -> impl Strategy<Value = Numbers> {
    prop_oneof![9 => even(), 6 => windows(), 1 => fixed(), 4 => logs(), 6 => sliding_windows(), 4 => slots()]
}

/// Some evenly refilling limits have elevated numbers, with a higher burst or one that is not, as after a change of
/// rules. They last for a part of the time that fills a bucket, so that the clock meets their end, or for any time.
fn allowed() -> impl Strategy<Value = Allowed> {
    let more = prop_oneof![8 => any_length(6), 1 => any_length(50)];
    let span = prop_oneof![3 => (1..300u64).prop_map(Ok), 1 => any_length(53).prop_map(Err)];
    let activations = prop_oneof![4 => 1..4u64, 1 => any_length(52)];
    let quota = proptest::option::of(prop_oneof![Just("a"), Just("b")]);
    let elevated = (prop_oneof![6 => even(), 1 => fixed()], more, any::<bool>(), span, activations, quota);
    (numbers(), proptest::option::weighted(0.6, elevated)).prop_map(|(base, elevated)| {
        let is_even = base.algorithm() == Algorithm::Gcra;
        let elevated = elevated.filter(|_| is_even).map(|(other, more, is_related, span, activations, quota)| {
            let burst = base.burst().saturating_add(more);
            let related = Numbers::new(burst, other.count().max(1), other.period().max(1)).ok().filter(|_| is_related);
            let span = span.map_or_else(|any| any, |share| time_to_fill(&base) / 64 * share).clamp(1, EXACT - 1);
            let activations_per_month = activations.max(1);
            let (numbers, quota) = (related.unwrap_or(other), quota.map(Into::into));
            Arc::new(Elevated { numbers, span, activations_per_month, quota })
        });
        (base, elevated)
    })
}

fn everyday() -> impl Strategy<Value = (u64, u64, u64)> {
    (1..100u64, 1..100u64, 1..100u64).prop_map(|(burst, count, seconds)| (burst, count, seconds * 1_000_000_000))
}

fn even() -> impl Strategy<Value = Numbers> {
    // The largest countable burst or a part of it: levels reach 2^53.
    let extreme = (any_length(40), any_length(62), any_length(10)).prop_map(|(count, period, part)| {
        let (count, period) = (count + 1, period + 1);
        let token = Numbers::new(1, count, period).map_or(EXACT, |numbers| numbers.token());
        (((EXACT - 1) / token / (part + 1)).max(1), count, period)
    });
    // A level per microsecond, so that no division hides a rounded sum.
    let plain = (1..8u64, any_length(53)).prop_map(|(burst, token)| (burst, 1, token.saturating_mul(1_000)));
    // One request per period.
    let limiter = (1..100u64).prop_map(|seconds| (1, 1, seconds * 1_000_000_000));
    prop_oneof![2 => everyday(), 2 => extreme, 2 => plain, 1 => limiter]
        .prop_filter_map("not countable", |(burst, count, period)| Numbers::new(burst, count, period).ok())
}

fn fixed() -> impl Strategy<Value = Numbers> {
    any_length(53).prop_filter_map("empty", |burst| Numbers::fixed(burst).ok())
}

/// Fixed windows with few tokens or the most countable, in one window or in several that add up to the burst.
fn windows() -> impl Strategy<Value = Numbers> {
    let aligned = prop_oneof![Just(Aligned::First), Just(Aligned::Clock)];
    let extreme = (any_length(53), any_length(53), any_length(50))
        .prop_map(|(burst, count, micros)| (burst.max(1), count.max(1), micros.max(1) * 1_000));
    let spans = (prop_oneof![2 => everyday(), 1 => extreme], aligned)
        .prop_filter_map("too long", |((burst, count, period), aligned)| {
            Numbers::fixed_window(burst, count, period, aligned).ok()
        });
    let unit = prop_oneof![Just(Unit::Month(1)), Just(Unit::Month(31)), Just(Unit::Year)];
    let zone = prop_oneof![Just("UTC"), Just("Europe/Berlin")];
    let calendars = (1..100u64, 1..40u64, unit, zone).prop_filter_map("too many", |(burst, count, unit, zone)| {
        Numbers::calendar_window(burst, count, Calendar::find(unit, zone).unwrap()).ok()
    });
    prop_oneof![3 => spans, 1 => calendars]
}

fn logs() -> impl Strategy<Value = Numbers> {
    (1..100u64, prop_oneof![1..1_000u64, any_length(52)])
        .prop_filter_map("no time", |(count, micros)| Numbers::sliding_log(count, micros * 1_000).ok())
}

/// Few slots, so that a trace takes all of them, or any number, for a second to most of a day.
fn slots() -> impl Strategy<Value = Numbers> {
    let capacity = prop_oneof![4 => 1..5u64, 1 => any_length(13).prop_map(|more| 1 + more)];
    (capacity, any_length(36))
        .prop_map(|(capacity, more)| Numbers::concurrency(capacity, (1_000_000 + more) * 1_000).unwrap())
}

/// Windows with few tokens, or with so many that their share falls in ticks longer than a microsecond.
fn sliding_windows() -> impl Strategy<Value = Numbers> {
    let everyday = everyday().prop_map(|(_, count, period)| (count, period));
    let brief = (1..100u64, 1..1_000u64).prop_map(|(count, micros)| (count, micros * 1_000));
    let extreme = (any_length(52), any_length(12)).prop_map(|(micros, part)| {
        let micros = micros.clamp(1, sliding_window::LONGEST_PERIOD);
        ((sliding_window::largest_count(micros) / (part + 1)).max(1), micros * 1_000)
    });
    (prop_oneof![2 => everyday, 1 => brief, 2 => extreme], any::<bool>())
        .prop_filter_map("not countable", |((count, period), denied)| {
            Numbers::sliding_window(count, period, denied).ok()
        })
}

fn step() -> impl Strategy<Value = Step> {
    let mode = prop_oneof![
        6 => Just(Mode::Spend),
        1 => Just(Mode::Check),
        1 => Just(Mode::Look),
        2 => Just(Mode::SpendOnly),
        1 => Just(Mode::SpendUpTo),
        2 => Just(Mode::Refund),
        1 => Just(Mode::Reset),
    ];
    let slot = (0..=SLOTS).prop_map(|name| (name > 0).then_some(Slot(name)));
    // Numbers since a while before now, or brought by the call.
    let changed = prop_oneof![2 => any_length(45).prop_map(Ok), 3 => Just(Err(NUMBERS_OF_THE_CALL.0))];
    let changed = proptest::option::weighted(0.25, changed);
    let taken = prop_oneof![4 => (0..MOST_STEPS).prop_map(Ok), 1 => any_length(53).prop_map(Err)];
    let role = prop_oneof![
        4 => Just(Role::Enforced),
        2 => Just(Role::Shadow),
        2 => (0..4_u8).prop_map(Role::Candidate),
        1 => Just(Role::Strike),
    ];
    let asked = (0..IDS, 0..NUMBERS, Cost::any(), (mode, role), slot, changed, proptest::option::of(taken));
    let ask = asked.prop_map(|(id, numbers, cost, (mode, role), slot, changed, taken)| AskedCharge {
        id,
        numbers,
        cost,
        mode: if role == Role::Strike { Mode::Spend } else { mode },
        role,
        slot,
        changed,
        taken,
    });
    let clock = prop_oneof![
        3 => Just(Clocked::Still),
        6 => (0..NUMBERS, 0..=70u64, -1..=1i64).prop_map(|(numbers, share, more)| Clocked::Share(numbers, share, more)),
        2 => any_length(40).prop_map(Clocked::Back),
        1 => any_length(53).prop_map(Clocked::To),
    ];
    let effective_from = prop_oneof![4 => any_length(45).prop_map(Ok), 1 => any_length(64).prop_map(Err)];
    (clock, effective_from, vec(ask, 1..=6)).prop_map(|(clock, effective_from, asks)| Step {
        clock,
        effective_from,
        asks,
    })
}
