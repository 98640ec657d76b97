//! The cost of a decision in memory with a million buckets, their memory, and the cost of a decision in Redis for this
//! process and the server.
//!
//! In memory this measures `MemoryStore::decide` alone, at a given time. One charge is made beforehand, and each
//! decision only overwrites its fingerprint with a hash of a pseudo-random number below a million: a request's charge
//! is fresh in the cache, and reading a million prepared ones would add cache misses that no request has. The bucket
//! itself is as cold as chance makes it.
//!
//! In Redis, tasks on one thread ask one after the other, as a worker's connections do. The figures are processor time,
//! which depends less on other processes than durations do.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "a benchmark stops where it cannot go on, and reports"
)]

use std::fmt::Write;
use std::hint::black_box;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion};
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use weir::engine::algorithms::charge::{Bucket, Charge, Mode};
use weir::engine::algorithms::decision::Decisions;
use weir::engine::algorithms::micros::Micros;
use weir::engine::algorithms::numbers::Numbers;
use weir::store::Batch;
use weir::store::memory::MemoryStore;
use weir::store::redis::RedisStore;

#[path = "numbered.rs"]
mod numbered;
#[path = "random.rs"]
mod random;
#[path = "server.rs"]
mod server;

use numbered::fingerprint;
use random::Random;
use server::{Server, processor_time};

/// The target for a million buckets in MiB.
const MEMORY_TARGET: u64 = 64;

fn main() {
    // `cargo bench` passes --bench. Otherwise each benchmark runs once, as a test, and needs no million.
    let measuring = std::env::args().any(|argument| argument == "--bench");
    let keys: u64 = if measuring { 1_000_000 } else { 1_000 };
    if measuring {
        // First, while the allocator has nothing to return.
        report_memory(keys);
    }
    report_redis(if measuring { 200_000 } else { 640 });
    let mut criterion = Criterion::default().configure_from_args();
    held(&mut criterion, "decide/allowed", keys);
    // The same with buckets that fit into a core's cache: the difference is the cost of memory.
    held(&mut criterion, "decide/allowed, few keys", 1_000);
    denied(&mut criterion, keys);
    together(&mut criterion, keys);
    two_threads(&mut criterion, keys);
    new_ids(&mut criterion, keys);
    criterion.final_summary();
}

/// Prints this process' growth by `keys` buckets.
fn report_memory(keys: u64) {
    let before = resident_kib();
    let store = filled(keys, ample());
    let grown = resident_kib() - before;
    let held = store.usage().keys;
    let mib = grown.div_ceil(1024);
    let verdict = if mib <= MEMORY_TARGET { "hit" } else { "MISS" };
    eprintln!("{held} buckets held in {mib} MiB of resident memory (at most {MEMORY_TARGET}: {verdict})\n");
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// Prints the processor time of a decision in Redis, for this process and a new server, by concurrency.
fn report_redis(decisions: u32) {
    let server = Server::start();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let store = server.connect(&runtime);
    eprintln!("decisions in Redis, processor time in us     here  server");
    let once = Numbers::fixed(1).unwrap();
    for (name, keys, numbers) in [
        ("one bucket, allowed", 1, ample()),
        ("one bucket, denied", 1, once.clone()),
        ("100,000 buckets, allowed", 100_000, ample()),
        ("100,000 buckets, denied", 100_000, once),
    ] {
        for tasks in [1, 8, 64] {
            // The first run fills the buckets and does not count.
            runtime.block_on(ask(&store, (name, tasks), keys, &numbers, decisions.min(100_000)));
            let pids = ["self".to_owned(), server.pid()];
            let before = pids.each_ref().map(|pid| processor_time(pid));
            runtime.block_on(ask(&store, (name, tasks), keys, &numbers, decisions));
            let [here, there] =
                [0, 1].map(|place| (processor_time(&pids[place]) - before[place]) / f64::from(decisions));
            eprintln!("{name:>28}, {tasks:>2} at once   {here:6.2}  {there:6.2}");
        }
    }
    eprintln!();
}

/// Makes `decisions` decisions on buckets below `keys` in concurrent tasks.
async fn ask(store: &Arc<RedisStore>, (name, tasks): (&str, u32), keys: u64, numbers: &Numbers, decisions: u32) {
    let mut asking = JoinSet::new();
    for task in 0..tasks {
        let (store, mut charge, mut random) = (store.clone(), charge(numbers.clone()), Random(task.into()));
        let prefix = format!("{}{tasks}", name.replace([' ', ','], ""));
        asking.spawn(async move {
            for _ in 0..decisions / tasks {
                charge.bucket.key.clear();
                write!(charge.bucket.key, "{prefix}:192.0.2.1-{:05}", random.below(keys)).unwrap();
                let batch = Batch { charges: std::slice::from_ref(&charge), effective_from: Micros(0), now: NOW };
                store.decide(&batch).await.unwrap();
            }
        });
    }
    asking.join_all().await;
}

/// A charge on a bucket that has enough left: a read and a write.
fn held(criterion: &mut Criterion, name: &str, keys: u64) {
    let store = filled(keys, ample());
    let (mut random, mut charge) = (Random(1), charge(ample()));
    criterion.bench_function(name, |bencher| {
        bencher.iter(|| {
            charge.bucket.fingerprint = fingerprint(random.below(keys));
            decide(&store, std::slice::from_ref(&charge))
        });
    });
    assert!(!decide(&store, std::slice::from_ref(&charge))[0].is_denied());
}

/// A charge on an exhausted bucket: a read.
fn denied(criterion: &mut Criterion, keys: u64) {
    let once = Numbers::fixed(1).unwrap();
    let store = filled(keys, once.clone());
    let (mut random, mut charge) = (Random(2), charge(once));
    criterion.bench_function("decide/denied", |bencher| {
        bencher.iter(|| {
            charge.bucket.fingerprint = fingerprint(random.below(keys));
            decide(&store, std::slice::from_ref(&charge))
        });
    });
    assert!(decide(&store, std::slice::from_ref(&charge))[0].is_denied());
}

/// Several charges of one request, all or nothing; the time is that of the whole request.
fn together(criterion: &mut Criterion, keys: u64) {
    let store = filled(keys, ample());
    let mut random = Random(3);
    for count in [2, 4] {
        let mut charges = vec![charge(ample()); count];
        for (place, charge) in (0..).zip(&mut charges) {
            charge.bucket.fingerprint = fingerprint(place);
        }
        criterion.bench_with_input(BenchmarkId::new("decide/charges", count), &count, |bencher, &count| {
            bencher.iter(|| {
                // A request's keys differ: each comes from its own part.
                let part = keys / count as u64;
                for (place, charge) in (0..).zip(&mut charges) {
                    charge.bucket.fingerprint = fingerprint(place * part + random.below(part));
                }
                decide(&store, &charges)
            });
        });
        assert!(decide(&store, &charges).iter().all(|decision| !decision.is_denied()));
    }
}

/// Two threads on the same buckets; the time is that of one decision in one thread.
fn two_threads(criterion: &mut Criterion, keys: u64) {
    let store = filled(keys, ample());
    criterion.bench_function("decide/two threads", |bencher| {
        bencher.iter_custom(|iterations| {
            let start = Barrier::new(2);
            let work = |seed| {
                let (mut random, mut charge) = (Random(seed), charge(ample()));
                start.wait();
                let begun = Instant::now();
                for _ in 0..iterations {
                    charge.bucket.fingerprint = fingerprint(random.below(keys));
                    black_box(decide(&store, std::slice::from_ref(&charge)));
                }
                begun.elapsed()
            };
            std::thread::scope(|scope| {
                let other = scope.spawn(|| work(4));
                let own = work(5);
                let both: Duration = own + other.join().unwrap();
                both / 2
            })
        });
    });
}

/// A charge on a new id, beside full buckets that make room, and in a table at its bound where none is full.
/// bound where none of them ever is.
fn new_ids(criterion: &mut Criterion, keys: u64) {
    let brief = Numbers::new(1_000, 1_000, 1_000_000).unwrap();
    for (name, numbers) in
        [("decide/new id", brief), ("decide/new id at the bound", Numbers::fixed(1_000_000).unwrap())]
    {
        let bound = keys - keys / 10;
        let store = MemoryStore::new(usize::try_from(bound).unwrap());
        fill(&store, keys, numbers.clone());
        let (mut next, mut charge) = (keys, charge(numbers));
        criterion.bench_function(name, |bencher| {
            bencher.iter(|| {
                next += 1;
                charge.bucket.fingerprint = fingerprint(next);
                decide(&store, std::slice::from_ref(&charge))
            });
        });
    }
}

/// A store with `keys` buckets, each charged once.
fn filled(keys: u64, numbers: Numbers) -> MemoryStore {
    let store = MemoryStore::new(usize::try_from(keys).unwrap());
    fill(&store, keys, numbers);
    assert_eq!(store.usage().keys, keys);
    store
}

fn fill(store: &MemoryStore, keys: u64, numbers: Numbers) {
    let mut charge = charge(numbers);
    for key in 0..keys {
        charge.bucket.fingerprint = fingerprint(key);
        decide(store, std::slice::from_ref(&charge));
    }
}

/// A listener reads the clock once for each request, so that is not part of a decision.
const NOW: Micros = Micros(1_700_000_000_000_000);

fn decide(store: &MemoryStore, charges: &[Charge]) -> Decisions {
    store.decide(&Batch { charges: black_box(charges), effective_from: Micros(0), now: NOW }).unwrap()
}

/// Numbers of a bucket that neither runs dry nor fills up during the measurement.
fn ample() -> Numbers {
    Numbers::new(100_000_000, 1, 60_000_000_000).unwrap()
}

fn charge(numbers: Numbers) -> Charge {
    let bucket = Bucket::new("PerAddress:192.0.2.1", fingerprint(0));
    Charge::new(bucket, numbers, 1, Mode::Spend)
}
