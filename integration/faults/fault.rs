//! A fault in the middle of a load.

use std::sync::Arc;
use std::time::{Duration, Instant};

use weir::engine::algorithms::tag::TAGS;

use super::checks::{Shares, check_counters, check_limits};
use super::gateways::Gateways;
use super::limits::{Bound, Ids, KINDS};
use super::load::{Answer, Load, now};
use crate::support::injector::Injector;
use crate::support::redis::RedisServer;

/// The time that a fault lasts which servers do not notice of each other.
pub(super) const SHORT: Duration = Duration::from_millis(400);

/// The load before a fault and after it. A soak has a fault every ten seconds.
const CALM: Duration = Duration::from_millis(100);
const CALM_OF_SOAK: Duration = Duration::from_secs(4);

/// The most that a gateway may grow in the faults after the first ones, in KiB. What a connection or a bucket leaves behind at each fault
/// would be less than that in a short run; a long one prints what it measures.
const GROWTH: u64 = 16 * 1_024;
const FIRST: usize = 3;

/// Counting has resumed when the store has decided all requests for this long, in microseconds.
const RESUMED: u64 = 500_000;

/// The servers of a store.
pub(super) trait Servers {
    /// The value of `--store`.
    fn store(&self) -> String;

    /// Brings everything back that a fault has left broken, such as the old master. The next fault is about the master of a hash slot,
    /// if that is given and there are several.
    fn heal(&mut self, _hash_slot: Option<u16>) {}

    /// The master that the fault is about, and what gateways pass to it.
    fn master(&mut self) -> &mut RedisServer;
    fn injector(&self) -> &Injector;

    /// The state of the buckets if another server has taken the master's place. On a busy machine, a short fault may last long enough for
    /// that.
    fn replaced(&self) -> Buckets {
        Buckets::Kept
    }

    /// Tags that the fault happens to, and others if there are any.
    fn tags(&self) -> [Vec<u8>; 2] {
        [(0..TAGS).collect(), (0..TAGS).collect()]
    }
}

/// The state of the buckets after a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Buckets {
    Kept,
    /// They start full again, which admits one more burst.
    Lost,
    /// [`Self::Lost`], and for up to a second the old master and the new one both decide, so buckets refill on both.
    Replaced,
}

impl Buckets {
    /// The tokens that a bucket may admit beyond its limit.
    pub(super) const fn more(self, bound: Bound) -> u64 {
        match self {
            Self::Kept => 0,
            Self::Lost => bound.burst(),
            Self::Replaced => bound.burst() + bound.refill_per_second(),
        }
    }
}

/// The decisions on requests during a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Requests {
    /// The store decides nearly all of them.
    Decided,
    /// Some get no decision, until gateways have noticed or the fault has ended by itself.
    SomeUndecided,
    /// Some of each combination get none. The fault lasts until then.
    Undecided,
}

/// Something that happens to the servers `S`.
pub(super) struct Fault<S> {
    pub(super) name: &'static str,
    pub(super) begin: fn(&mut S),
    /// The time until `end` is called, at least.
    pub(super) lasts: Duration,
    /// Returns when the servers could decide again.
    pub(super) end: fn(&mut S),
    pub(super) requests: Requests,
    pub(super) buckets: Buckets,
    /// The fault is about the master of this hash slot.
    pub(super) hash_slot: Option<u16>,
    /// The requests of a flood on each combination, which come at once, flood by flood.
    pub(super) floods: &'static [usize],
}

impl<S> Fault<S> {
    /// Leaves some requests undecided while it lasts, and keeps the buckets.
    pub(super) const fn new(name: &'static str, begin: fn(&mut S), end: fn(&mut S)) -> Self {
        let (requests, buckets) = (Requests::Undecided, Buckets::Kept);
        Self { name, begin, lasts: SHORT, end, requests, buckets, hash_slot: None, floods: &[] }
    }

    /// Happens at an instant, and no request has to notice.
    pub(super) const fn unnoticed(name: &'static str, begin: fn(&mut S)) -> Self {
        Self { requests: Requests::Decided, lasts: Duration::ZERO, ..Self::new(name, begin, |_| ()) }
    }
}

/// Servers, and gateways that use them as their store.
pub(super) struct Stage<S> {
    servers: S,
    gateways: Gateways,
    calm: Duration,
    /// The number of loads so far.
    runs: usize,
}

impl<S: Servers> Stage<S> {
    /// Lets one fault happen after the other: each once, or for `WEIR_SOAK_SECONDS`. Gateways must not grow by that.
    pub(super) fn survive(topology: &str, servers: S, faults: &[Fault<S>]) {
        let soak = std::env::var("WEIR_SOAK_SECONDS").ok();
        let soak = soak.map(|text| Duration::from_secs(text.parse().expect("a number of seconds")));
        let gateways = Gateways::start(&servers.store());
        let calm = if soak.is_some() { CALM_OF_SOAK } else { CALM };
        let mut stage = Self { servers, gateways, calm, runs: 0 };
        let started = Instant::now();
        let is_due = |runs: usize| soak.map_or(runs < faults.len(), |soak| started.elapsed() < soak);
        let mut first = Vec::new();
        println!(
            "\n| {topology} | lasts | undecided | counting resumes after | deny | allow | local | answers: p99 / max |"
        );
        while is_due(stage.runs) {
            stage.suffer(&faults[stage.runs % faults.len()]);
            if stage.runs == FIRST {
                first = stage.gateways.resident();
            }
            if soak.is_some() {
                println!("{topology}: {:?} KiB after {:?}", stage.gateways.resident(), started.elapsed());
            }
        }
        let last = stage.gateways.resident();
        println!("{topology}: from {first:?} to {last:?} KiB in {:?}, {} faults", started.elapsed(), stage.runs);
        let has_grown = first.iter().zip(&last).any(|(first, last)| *last > first + GROWTH);
        assert!(!has_grown, "{topology}: from {first:?} to {last:?} KiB");
        let leased = stage.gateways.counters().get("weir_leased_decisions_total").copied();
        assert!(leased > Some(0), "{topology}: leases served {leased:?} charges");
    }

    /// Runs the load with the fault in its middle, and checks everything.
    fn suffer(&mut self, fault: &Fault<S>) {
        self.servers.heal(fault.hash_slot);
        self.runs += 1;
        let ids = Arc::new(Ids::new(self.runs, &self.servers.tags()));
        if !fault.floods.is_empty() {
            self.gateways.await_flood();
        }
        let counted = self.gateways.counters();
        self.gateways.most_in_flight();
        let started = now();
        let load = Load::start(&self.gateways.all, &ids);
        load.until_decided(started);
        std::thread::sleep(self.calm);
        let begun = now();
        (fault.begin)(&mut self.servers);
        let flooded = self.gateways.flood(fault.floods, &ids);
        std::thread::sleep(fault.lasts);
        if fault.requests == Requests::Undecided {
            load.until_undecided(begun);
        }
        (fault.end)(&mut self.servers);
        let ended = now();
        load.until_decided(ended);
        std::thread::sleep(self.calm);
        let answers = [load.stop(), flooded].concat();
        let buckets = fault.buckets.max(self.servers.replaced());
        if buckets != fault.buckets {
            println!("{}: the master was replaced", fault.name);
        }
        let shares = check_limits((fault.name, buckets), &answers, self.gateways.most_in_flight());
        println!("{}", row(fault.name, &answers, [begun, ended], &shares));
        check_counters(fault.name, &answers, &counted, &self.gateways.counters());
        if fault.requests == Requests::SomeUndecided {
            let is_decided = answers.iter().all(Answer::is_decided);
            assert!(!is_decided, "{}: the store decided every request", fault.name);
        }
    }
}

/// A row of the table in `docs/redis-faults.md`, for one kind of store.
fn row(name: &str, answers: &[Answer], [begun, ended]: [u64; 2], shares: &Shares) -> String {
    let meanwhile = times(answers.iter().filter(|answer| answer.answered >= begun));
    let undecided = || answers.iter().filter(|answer| answer.answered >= begun && !answer.is_decided());
    let mut late: Vec<u64> = undecided().map(|answer| answer.answered).filter(|at| *at > ended).collect();
    late.sort_unstable();
    // What fails later is the machine's fault.
    let last = late.iter().fold(ended, |last, at| if at - last < RESUMED { *at } else { last });
    let last = undecided().map(|answer| answer.answered).filter(|at| *at <= last).max().unwrap_or(begun);
    let [deny, allow, local] = shares.map(|share| format!("{} %", share.percent()));
    format!(
        "| {name} | {} ms | {} of {} | {} ms | {deny} | {allow} | {local} | {meanwhile} |",
        (ended - begun) / 1_000,
        undecided().count(),
        answers.iter().filter(|answer| (begun..ended).contains(&answer.sent)).count(),
        (last - begun) / 1_000,
    )
}

/// The 99th percentile and the maximum, in milliseconds. Requests that the upstream holds are left out.
fn times<'a>(answers: impl Iterator<Item = &'a Answer>) -> String {
    let is_held =
        |answer: &Answer| matches!(KINDS[answer.kind].limits[0].bound, Bound::InFlight(_)) && answer.status == 200;
    let mut times: Vec<u64> = answers.filter(|answer| !is_held(answer)).map(Answer::took).collect();
    times.sort_unstable();
    let milliseconds = |time: u64| format!("{}.{}", time / 1_000, time % 1_000 / 100);
    let p99 = times.get(times.len() * 99 / 100).copied().unwrap_or(0);
    format!("{} / {}", milliseconds(p99), milliseconds(times.last().copied().unwrap_or(0)))
}
