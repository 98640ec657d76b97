//! A fault in the middle of a load, and what is checked of it.

use std::time::Duration;

use super::gateways::{Counters, Gateways};
use super::limits::{Bound, LIMITS};
use super::load::{Answer, Load, now};

/// The servers of a store.
pub(super) trait Servers {
    /// The value of `--store`.
    fn store(&self) -> String;

    /// Brings everything back that a fault has left broken, such as the old master.
    fn heal(&mut self) {}
}

/// Counting has resumed when the store has decided all requests for this long, in microseconds.
const RESUMED: u64 = 500_000;

/// The state of the buckets after a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Buckets {
    Kept,
    /// They start full again, which admits one more burst.
    Lost,
    /// [`Self::Lost`], and for up to a second the old master and the new one both decide, so buckets refill on both.
    Replaced,
}

/// The decisions on requests during a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Requests {
    /// The store decides nearly all of them.
    Decided,
    /// Some get no decision, at least until gateways have noticed.
    Undecided,
}

/// Something that happens to the servers `S`.
pub(super) struct Fault<S> {
    pub(super) name: &'static str,
    pub(super) begin: fn(&mut S),
    pub(super) lasts: Duration,
    /// Returns when the servers could decide again.
    pub(super) end: fn(&mut S),
    pub(super) requests: Requests,
    pub(super) buckets: Buckets,
}

/// Servers, and gateways that use them as their store.
pub(super) struct Stage<S> {
    servers: S,
    pub(super) gateways: Gateways,
    /// The load before a fault and after it.
    calm: Duration,
}

impl<S: Servers> Stage<S> {
    pub(super) fn new(servers: S, calm: Duration) -> Self {
        let gateways = Gateways::start(&servers.store());
        let started = now();
        let load = Load::start(&gateways.all);
        load.until_decided(started);
        load.stop();
        Self { servers, gateways, calm }
    }

    /// Lets one fault happen after the other.
    pub(super) fn survive_all(&mut self, faults: &[Fault<S>]) {
        println!("\n| fault | lasts | without a decision | before: p99 / max | meanwhile: p99 / max | ends after |");
        for fault in faults {
            self.survive(fault);
        }
        let leased = self.gateways.counters().get("weir_leased_decisions_total").copied();
        assert!(leased > Some(0), "leases served {leased:?} charges");
    }

    /// Runs the load with the fault in its middle, and checks everything.
    pub(super) fn survive(&mut self, fault: &Fault<S>) {
        self.servers.heal();
        let counted = self.gateways.counters();
        self.gateways.most_in_flight();
        let started = now();
        let load = Load::start(&self.gateways.all);
        load.until_decided(started);
        std::thread::sleep(self.calm);
        let begun = now();
        (fault.begin)(&mut self.servers);
        std::thread::sleep(fault.lasts);
        (fault.end)(&mut self.servers);
        let ended = now();
        load.until_decided(ended);
        std::thread::sleep(self.calm);
        let answers = load.stop();
        println!("{}", row(fault.name, &answers, begun, ended));
        check_limits(fault, &answers, self.gateways.most_in_flight());
        check_counters(fault.name, &answers, &counted, &self.gateways.counters());
        let undecided = answers.iter().filter(|answer| !answer.is_decided()).count();
        if fault.requests == Requests::Undecided {
            assert!(undecided > 0, "{}: the store decided every request", fault.name);
        }
    }
}

fn check_limits<S>(fault: &Fault<S>, answers: &[Answer], most_in_flight: u64) {
    let check = |limit: &str, bound: Bound, admitted: &[Answer]| {
        let more = match fault.buckets {
            Buckets::Kept => 0,
            Buckets::Lost => bound.burst(),
            Buckets::Replaced => bound.burst() + bound.refill_per_second(),
        };
        let excess = match bound {
            Bound::InFlight(capacity) => most_in_flight.saturating_sub(capacity),
            bound => bound.excess(admitted),
        };
        assert!(excess <= more, "{}: {limit} admitted {excess} too many: {admitted:?}", fault.name);
    };
    for (limit, kind) in LIMITS.iter().enumerate() {
        let of_limit = || answers.iter().filter(|answer| answer.limit == limit).copied();
        let admitted: Vec<Answer> = of_limit().filter(|answer| answer.status == 200).collect();
        for id in 0..kind.ids {
            let of_id: Vec<Answer> = admitted.iter().filter(|answer| answer.id == id).copied().collect();
            check(kind.name, kind.bound, &of_id);
        }
        if let Some(shared) = &kind.shared {
            check(shared.name, shared.bound, &admitted);
        }
    }
    // A busy machine sends too few requests for most limits.
    assert!(answers.iter().any(|answer| answer.status == 429), "{}: too few requests to be denied", fault.name);
}

/// The decisions by limit and result, and the errors of the store, are those that clients were answered with.
fn check_counters(name: &str, answers: &[Answer], before: &Counters, after: &Counters) {
    let grown = |counter: &str| {
        let value = |counters: &Counters| counters.get(counter).copied().unwrap_or(0);
        value(after) - value(before)
    };
    for (limit, kind) in LIMITS.iter().enumerate() {
        let answered =
            |status| answers.iter().filter(|answer| (answer.limit, answer.status) == (limit, status)).count() as u64;
        let shared = kind.shared.as_ref().map(|shared| shared.name);
        for limit in [Some(kind.name), shared].into_iter().flatten() {
            let decided = |results: &[&str]| -> u64 {
                let counter = |result| format!("weir_decisions_total{{limit=\"{limit}\",result=\"{result}\"}}");
                results.iter().map(|result| grown(&counter(result))).sum()
            };
            let counted = [&["allowed"][..], &["denied", "uncharged"], &["error_denied", "rejected"]].map(decided);
            let answers = [200, 429, 503].map(answered);
            if shared.is_none() {
                assert_eq!(counted, answers, "{name}: {limit}");
                continue;
            }
            // The one may deny, or be undecided, without the other.
            assert_eq!(counted[0], answers[0], "{name}: {limit}");
            assert_eq!(counted[1] + counted[2], answers[1] + answers[2], "{name}: {limit}");
        }
        let of_limit = answers.iter().filter(|answer| answer.limit == limit);
        assert!(of_limit.clone().all(|answer| [200, 429, 503].contains(&answer.status)), "{name}: {}", kind.name);
    }
    let errors: u64 = after
        .keys()
        .filter(|counter| counter.starts_with("weir_store_errors_total{"))
        .map(|counter| grown(counter))
        .sum();
    let undecided = answers.iter().filter(|answer| !answer.is_decided()).count() as u64;
    // Where one limit of a pair denies, the other may be undecided.
    let is_half = |answer: &&Answer| LIMITS[answer.limit].shared.is_some() && answer.status == 429;
    let most = undecided + answers.iter().filter(is_half).count() as u64;
    assert!((undecided..=most).contains(&errors), "{name}: {errors} errors of the store, {undecided} undecided");
    assert_eq!(after.get("weir_panics_total"), Some(&0), "{name}");
}

/// A row of the table in `docs/redis.md`.
fn row(name: &str, answers: &[Answer], begun: u64, ended: u64) -> String {
    let calm = times(answers.iter().filter(|answer| answer.answered < begun));
    let meanwhile = times(answers.iter().filter(|answer| answer.answered >= begun));
    let undecided = || answers.iter().filter(|answer| answer.answered >= begun && !answer.is_decided());
    let mut late: Vec<u64> = undecided().map(|answer| answer.answered).filter(|at| *at > ended).collect();
    late.sort_unstable();
    // What fails later is the machine's fault.
    let last = late.iter().fold(ended, |last, at| if at - last < RESUMED { *at } else { last });
    format!(
        "| {name} | {} ms | {} of {} | {calm} | {meanwhile} | {} ms |",
        (ended - begun) / 1_000,
        undecided().count(),
        answers.iter().filter(|answer| (begun..ended).contains(&answer.sent)).count(),
        (last - ended) / 1_000,
    )
}

/// The 99th percentile and the maximum, in milliseconds. Requests that the upstream holds are left out.
fn times<'a>(answers: impl Iterator<Item = &'a Answer>) -> String {
    let is_held = |answer: &Answer| matches!(LIMITS[answer.limit].bound, Bound::InFlight(_)) && answer.status == 200;
    let mut times: Vec<u64> = answers.filter(|answer| !is_held(answer)).map(Answer::took).collect();
    times.sort_unstable();
    let milliseconds = |time: u64| format!("{}.{}", time / 1_000, time % 1_000 / 100);
    let p99 = times.get(times.len() * 99 / 100).copied().unwrap_or(0);
    format!("{} / {}", milliseconds(p99), milliseconds(times.last().copied().unwrap_or(0)))
}
