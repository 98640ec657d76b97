//! `Retry-After` keeps its promise: a client that is alone and waits that long passes, and one that waits a microsecond less does
//! not.
//!
//! Random rules, requests, calls with their own numbers and changes of the rules, in memory and in Redis. Each denied request is repeated after the wait that the
//! denial gave, and just before, each time by an id with the same history. So only the time differs.

use std::cell::Cell;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRunner};
use tokio::runtime::Runtime;
use weir::config;
use weir::engine::algorithms::algorithm::Algorithm;
use weir::engine::algorithms::charge::Mode;
use weir::engine::algorithms::micros::Micros;
use weir::engine::algorithms::numbers::Numbers;
use weir::engine::answer::headers::Generations;
use weir::engine::answer::problem::denial;
use weir::engine::charging::call_numbers::CallNumbers;
use weir::engine::charging::named::NamedCharge;
use weir::engine::charging::plan::Plan;
use weir::engine::deciding::verdict::Verdict;
use weir::engine::limit::Limit;
use weir::engine::limit::fingerprint::Fingerprinter;
use weir::engine::limit::named_id::GivenId;
use weir::engine::limit::rules::Rules;
use weir::engine::request::{Body, Request};
use weir::message::headers::Headers;
use weir::store::Batch;
use weir::store::memory::MemoryStore;
use weir::store::redis::RedisStore;

use super::on_set_clock;
use crate::support::redis::RedisServer;

const TRACES: u32 = 500;

/// 2025-10-31T23:59:00Z, so that traces meet the end of a month.
const START: u64 = 1_761_955_140_000_000;

const SECOND: u64 = 1_000_000;

/// Rules and requests.
#[derive(Clone, Debug)]
struct Trace {
    /// The numbers of each limit.
    limits: Vec<String>,
    steps: Vec<Step>,
}

#[derive(Clone, Debug)]
struct Step {
    /// In microseconds.
    wait: u64,
    change: Option<Change>,
    cost: u64,
    /// The burst, the count and the period in seconds that the request brings itself.
    call: Option<(u64, u64, u64)>,
}

#[derive(Clone, Debug)]
enum Change {
    /// The limit at this place gets other numbers.
    Limit(usize, String),
    /// An override of the first limit begins, and ends by itself after some seconds.
    Override(String, u64),
    /// It is removed.
    NoOverride,
}

/// A request with the rules of its time.
struct Asked<'t> {
    rules: &'t Rules,
    cost: u64,
    call: Option<(u64, u64, u64)>,
    now: u64,
    /// The end of the override that may apply to it.
    until: Option<u64>,
}

fn numbers() -> impl Strategy<Value = String> {
    let period = || prop_oneof![Just("1s"), Just("7s"), Just("1m"), Just("1h")];
    let plain = || {
        (1..=6u64, 1..=6u64, period())
            .prop_map(|(burst, count, period)| format!("burst: {burst}, count: {count}, period: {period}"))
    };
    let spans = || (1..=6u64, period()).prop_map(|(count, period)| format!("count: {count}, period: {period}"));
    let aligned = prop_oneof![Just("first"), Just("clock")];
    let delay = prop_oneof![Just(""), Just(", delay: 2s"), Just(", delay: 1m")];
    let delay = || delay.clone();
    let denied = prop_oneof![Just(""), Just(", count_denied: true")];
    let denied = || denied.clone();
    let elevated = (7..=12u64, period(), prop_oneof![Just("1s"), Just("20s"), Just("15m")], 1..=2u64).prop_map(
        |(count, period, span, most)| {
            format!("elevated: {{ count: {count}, period: {period}, for: {span}, activations_per_month: {most} }}")
        },
    );
    prop_oneof![
        4 => (plain(), delay()).prop_map(|(plain, delay)| format!("{plain}{delay}")),
        1 => (1..=6u64).prop_map(|burst| format!("burst: {burst}")),
        3 => (plain(), aligned, delay()).prop_map(|(plain, aligned, delay)| format!("algorithm: fixed_window, aligned: {aligned}, {plain}{delay}")),
        1 => (1..=6u64).prop_map(|count| format!("algorithm: fixed_window, count: {count}, period: month")),
        3 => spans().prop_map(|spans| format!("algorithm: sliding_log, {spans}")),
        3 => (spans(), denied()).prop_map(|(spans, denied)| format!("algorithm: sliding_window, {spans}{denied}")),
        2 => (plain(), plain()).prop_map(|(one, other)| format!("rates: [{{ {one} }}, {{ {other} }}]")),
        3 => (vec(spans(), 2..=3), denied()).prop_map(|(spans, denied)| {
            format!("algorithm: sliding_window{denied}, rates: [{{ {} }}]", spans.join(" }, { "))
        }),
        3 => (spans(), elevated).prop_map(|(spans, elevated)| format!("{spans}, {elevated}")),
    ]
}

fn traces() -> impl Strategy<Value = Trace> {
    let wait = prop_oneof![
        3 => Just(0u64),
        2 => 0..2 * SECOND,
        2 => 0..70 * SECOND,
        1 => 0..4_000 * SECOND,
    ];
    let of_override = (1..=8u64, 1..=8u64, prop_oneof![Just("1s"), Just("7s"), Just("1h")])
        .prop_map(|(burst, count, period)| format!("burst: {burst}, count: {count}, period: {period}"));
    let change = prop_oneof![
        3 => (0..3usize, numbers()).prop_map(|(place, numbers)| Change::Limit(place, numbers)),
        2 => (of_override, 1..100u64).prop_map(|(numbers, seconds)| Change::Override(numbers, seconds)),
        1 => Just(Change::NoOverride),
    ];
    let cost = prop_oneof![4 => Just(1u64), 2 => 1..=6u64];
    let call =
        proptest::option::weighted(0.3, (1..=6u64, 1..=6u64, prop_oneof![Just(1u64), Just(7), Just(60), Just(3_600)]));
    let step = (wait, proptest::option::weighted(0.25, change), cost, call);
    let step = step.prop_map(|(wait, change, cost, call)| Step { wait, change, cost, call });
    (vec(numbers(), 1..=3), vec(step, 4..=14)).prop_map(|(limits, steps)| Trace { limits, steps })
}

/// Rules in force since `now`; `None` if the numbers cannot be combined.
fn rules(limits: &[String], given: Option<&(String, u64)>, now: u64) -> Option<Rules> {
    // A limit whose elevated numbers end does not know how long another denies.
    let alone = limits.iter().position(|numbers| numbers.contains("elevated")).map(|place| place..place + 1);
    let named: Vec<String> = (0..)
        .zip(limits.get(alone.unwrap_or(0..limits.len())).unwrap())
        .map(|(place, numbers)| format!("  L{place}: {{ by: [{{ header: x-who }}, {{ header: x-id }}], per_call: true, cost: {{ header: x-cost }}, {numbers} }}\n"))
        .collect();
    let given = given.map_or_else(String::new, |(numbers, until)| {
        let until = jiff::Timestamp::from_microsecond(i64::try_from(*until).unwrap()).unwrap();
        format!("overrides:\n  \"L0:a\": {{ {numbers}, until: \"{until}\" }}\n")
    });
    let source = config::Source { name: "limits.yaml".into(), text: format!("limits:\n{}{given}", named.concat()) };
    let sources = config::Sources { limits: Some(source), ..config::Sources::default() };
    config::load(&sources, Fingerprinter::new((1, 2)), Micros(now)).rules
}

/// The plan of a call with its own numbers for each limit.
fn plan_of_call(asked: &Asked<'_>, (burst, count, seconds): (u64, u64, u64), id: &str, now: Micros) -> Plan {
    let window = Numbers::new(burst, count, seconds * 1_000_000_000).unwrap();
    let charge = |limit: &Limit| NamedCharge {
        limit: limit.name.clone(),
        id: GivenId::Parts(vec!["a".to_owned(), id.to_owned()]),
        cost: Some(asked.cost),
        // A call cannot change the period of a log.
        numbers: (limit.algorithm != Algorithm::SlidingLog)
            .then(|| CallNumbers { window: Some(window.clone()), ..CallNumbers::default() }),
        fields: Vec::new(),
        entry: None,
    };
    let charges: Vec<NamedCharge> = asked.rules.limits().iter().map(charge).collect();
    Plan::of_named(asked.rules, &charges, Mode::Spend, now, None).unwrap()
}

/// A store, and the ids that have asked it.
struct World {
    store: Stored,
    ids: Cell<u64>,
    kept: Cell<u64>,
    never: Cell<u64>,
}

enum Stored {
    Memory(MemoryStore),
    Redis(Runtime, Arc<RedisStore>, Arc<AtomicU64>),
}

impl World {
    fn ask(&self, id: u64, asked: &Asked<'_>, now: u64) -> Verdict {
        let (id, cost) = (id.to_string(), asked.cost.to_string());
        let headers = Headers::from_iter([("x-who", "a"), ("x-id", id.as_str()), ("x-cost", cost.as_str())]);
        let now = Micros(now);
        let request = Request {
            method: "GET",
            host: "a",
            path: "/",
            query: None,
            headers: &headers,
            client: Some(IpAddr::from([192, 0, 2, 7])),
            tls_subject: None,
            claims: &[],
            body: Body::Absent,
            domain: None,
            descriptor: &[],
            now,
        };
        let plan = match asked.call {
            None => Plan::of_request(asked.rules, &request, None).unwrap(),
            Some(numbers) => plan_of_call(asked, numbers, &id, now),
        };
        let batch = Batch { charges: &plan.charges, effective_from: asked.rules.effective_from, now };
        let decisions = match &self.store {
            Stored::Memory(store) => store.decide(&batch),
            Stored::Redis(runtime, store, time) => {
                time.store(now.0, Ordering::Relaxed);
                runtime.block_on(store.decide(&batch))
            }
        };
        Verdict::decided(&plan, &decisions.unwrap())
    }

    /// Asks for a new id all that was asked until then, and returns the id and the last answer.
    fn replay(&self, asked: &[Asked<'_>]) -> (u64, Option<Verdict>) {
        let id = self.ids.replace(self.ids.get() + 1);
        let answers = asked.iter().map(|asked| self.ask(id, asked, asked.now));
        (id, answers.last())
    }

    /// The answer to the same request `wait` after the last one.
    fn after(&self, asked: &[Asked<'_>], wait: u64) -> Verdict {
        let (id, _) = self.replay(asked);
        let last = asked.last().unwrap();
        self.ask(id, last, last.now + wait)
    }

    /// Checks the last answer, if it is a denial.
    fn check(&self, asked: &[Asked<'_>]) -> Result<(), TestCaseError> {
        let (Some(last), (_, Some(verdict))) = (asked.last(), self.replay(asked)) else { return Ok(()) };
        if verdict.is_allowed() {
            return Ok(());
        }
        let header = denial(last.rules, &verdict, Generations::default(), false);
        let header = header.headers.text("retry-after").map(|seconds| seconds.parse::<u64>().unwrap());
        let Some(Micros(wait)) = verdict.wait() else {
            prop_assert_eq!(header, None);
            if last.until.is_none() {
                self.never.set(self.never.get() + 1);
                prop_assert!(
                    !self.after(asked, 400 * 86_400 * SECOND).is_allowed(),
                    "it passes after all: {:?}",
                    verdict
                );
            }
            return Ok(());
        };
        prop_assert_eq!(header, Some(wait.div_ceil(SECOND).max(1)));
        // Which numbers follow, the limit does not know.
        if last.until.is_some_and(|until| until <= last.now + wait) {
            return Ok(());
        }
        self.kept.set(self.kept.get() + 1);
        prop_assert!(self.after(asked, wait).is_allowed(), "denied after {} us: {:?}", wait, verdict);
        // Within its delay a request may pass earlier, and wait then.
        let before = self.after(asked, wait.checked_sub(1).expect("a denial takes time"));
        let is_at_once = before.is_allowed() && before.delay() == Micros(0);
        prop_assert!(!is_at_once, "passes before {} us: {:?}", wait, verdict);
        Ok(())
    }
}

fn play(trace: &Trace, worlds: &[World]) -> Result<(), TestCaseError> {
    let (mut limits, mut given, mut now) = (trace.limits.clone(), None, START);
    let mut in_force: Vec<(usize, Rules, Option<u64>)> = Vec::new();
    for (place, step) in trace.steps.iter().enumerate() {
        now += step.wait;
        let before = (limits.clone(), given.clone());
        match &step.change {
            Some(Change::Limit(of, numbers)) => {
                let of = of % limits.len();
                limits[of].clone_from(numbers);
            }
            Some(Change::Override(numbers, seconds)) => given = Some((numbers.clone(), now + seconds * SECOND)),
            Some(Change::NoOverride) => given = None,
            None if place > 0 => continue,
            None => {}
        }
        if let Some(rules) = rules(&limits, given.as_ref(), now) {
            in_force.push((place, rules, given.as_ref().map(|(_, until)| *until)));
        } else {
            (limits, given) = before;
        }
    }
    let mut now = START;
    let mut asked = Vec::new();
    for (place, step) in trace.steps.iter().enumerate() {
        now += step.wait;
        let Some((_, rules, until)) = in_force.iter().rev().find(|(from, ..)| *from <= place) else { return Ok(()) };
        asked.push(Asked { rules, cost: step.cost, call: step.call, now, until: until.filter(|until| *until > now) });
        for world in worlds {
            world.check(&asked)?;
        }
    }
    Ok(())
}

/// The activation of the month is spent, a call brings numbers of its own, and the month ends before the next call fits.
fn when_a_month_ends() -> Trace {
    let step = |wait, cost, call| Step { wait, change: None, cost, call };
    let elevated = "elevated: { count: 7, period: 1s, for: 1s, activations_per_month: 1 }";
    Trace {
        limits: vec![format!("count: 1, period: 1s, {elevated}")],
        steps: vec![step(0, 1, None), step(0, 1, None), step(SECOND, 4, Some((4, 1, 1))), step(0, 4, Some((4, 1, 60)))],
    }
}

#[test]
fn who_waits_as_told_passes_and_who_waits_a_microsecond_less_does_not() {
    let server = RedisServer::plain();
    let (runtime, redis, time) = on_set_clock(&server);
    let stores = [Stored::Memory(MemoryStore::new(200_000)), Stored::Redis(runtime, redis, time)];
    let worlds = stores.map(|store| World { store, ids: Cell::new(0), kept: Cell::new(0), never: Cell::new(0) });
    let config = Config {
        cases: TRACES,
        rng_algorithm: RngAlgorithm::XorShift,
        failure_persistence: None,
        max_shrink_iters: 500,
        ..Config::default()
    };
    play(&when_a_month_ends(), &worlds).unwrap();
    TestRunner::new(config).run(&traces(), |trace| play(&trace, &worlds)).unwrap();
    for world in &worlds {
        let (kept, never) = (world.kept.get(), world.never.get());
        assert!(kept > u64::from(TRACES) && never > u64::from(TRACES) / 10, "{kept} waits, {never} that never end");
    }
}
