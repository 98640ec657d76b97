//! The cost of each algorithm: the processor time of Redis for a request with one charge, with four, and with four in separate
//! calls; and the memory store's for one and four.
//!
//! Requests are made one after the other, so that each is a call: sharing one would hide its cost. The figures are processor
//! time, which other processes affect less than durations; each is the minimum of several rounds. They vary least under
//! `taskset -c 1`, which keeps both processes on one core: otherwise the kernel's time to wake a sleeping core counts as the
//! server's, and was up to twice the cost of a call.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "a benchmark stops where it cannot go on, and reports"
)]

use std::hint::black_box;
use std::sync::Arc;

use tokio::runtime::{Builder, Runtime};
use weir::engine::algorithms::algorithm::Aligned;
use weir::engine::algorithms::charge::{Charge, Input, Mode, Slot};
use weir::engine::algorithms::micros::Micros;
use weir::engine::algorithms::numbers::Numbers;
use weir::engine::limit::fingerprint::Fingerprinter;
use weir::engine::limit::key::opaque;
use weir::store::Batch;
use weir::store::memory::MemoryStore;
use weir::store::redis::RedisStore;

#[path = "numbered.rs"]
mod numbered;
#[path = "server.rs"]
mod server;

use numbered::{fingerprint, mix};
use server::{Server, processor_time};

/// The highest cost of a request with four charges, relative to one with one.
const REDIS_TARGET: f64 = 1.8;
const MEMORY_TARGET: f64 = 3.0;

/// The number of charges in a request with many.
const MANY: usize = 4;

const ROUNDS: usize = 5;

/// The buckets of each charge. Requests use them in turn.
const BUCKETS: u64 = 1_000;

fn main() {
    let measuring = std::env::args().any(|argument| argument == "--bench");
    let requests = if measuring { 20_000 } else { 50 };
    let server = Server::start();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let store = server.connect(&runtime);
    let redis = Redis { server, runtime, store };
    eprintln!("time in us               Redis: one    four  ratio   alone  ratio   memory: one   four  ratio");
    // `cargo bench --bench algorithms -- gcra` measures the algorithms with that in their name.
    let wanted = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let is_wanted = |name: &str| wanted.as_ref().is_none_or(|wanted| name.contains(wanted.as_str()));
    for (name, algorithm) in algorithms().into_iter().filter(|(name, _)| is_wanted(name)) {
        let one = redis.cost(name, &algorithm, 1, false, requests);
        let four = redis.cost(name, &algorithm, MANY, false, requests);
        let alone = redis.cost(name, &algorithm, MANY, true, requests);
        let keys = if measuring { 1_000_000 } else { 1_000 };
        let [fast, slow] = [1, MANY].map(|charges| in_memory(&algorithm, charges, keys));
        let verdict = |ratio: f64, target| if ratio <= target { "" } else { " MISS" };
        eprintln!(
            "{name:<28} {one:8.2} {four:7.2} {:6.2}{} {alone:7.2} {:6.2} {fast:13.3} {slow:6.3} {:6.2}{}",
            four / one,
            verdict(four / one, REDIS_TARGET),
            four / alone,
            slow / fast,
            verdict(slow / fast, MEMORY_TARGET),
        );
    }
}

/// The numbers of a request's charges, in their order.
type Algorithm = Vec<Numbers>;

/// Each algorithm with enough tokens for all requests, and with none left.
fn algorithms() -> Vec<(&'static str, Algorithm)> {
    const HOUR: u64 = 3_600_000_000_000;
    let gcra = |count| Numbers::new(count, count, HOUR).unwrap();
    let fixed = |count| Numbers::fixed_window(count, count, HOUR, Aligned::Clock).unwrap();
    let log = |count| Numbers::sliding_log(count, HOUR).unwrap();
    let sliding = |count, denied| Numbers::sliding_window(count, HOUR, denied).unwrap();
    let slots = |count| Numbers::concurrency(count, HOUR).unwrap();
    vec![
        ("gcra", vec![gcra(1_000_000)]),
        ("gcra, denied", vec![gcra(1)]),
        ("fixed_window", vec![fixed(1_000_000)]),
        ("fixed_window, denied", vec![fixed(1)]),
        ("sliding_log", vec![log(10_000)]),
        ("sliding_log, denied", vec![log(1)]),
        ("sliding_window", vec![sliding(1_000_000, false)]),
        ("sliding_window, denied", vec![sliding(1, false)]),
        ("sliding_window, count_denied", vec![sliding(100_000, true)]),
        ("concurrency", vec![slots(10_000)]),
        ("concurrency, denied", vec![slots(1)]),
        ("all of them, mixed", vec![gcra(1_000_000), fixed(1_000_000), log(10_000), sliding(1_000_000, false)]),
    ]
}

/// The charges of a request. Requests have different buckets.
fn charges(name: &str, algorithm: &Algorithm, count: usize, request: u64) -> Vec<Charge> {
    let bucket = |place: usize, numbers: &Numbers| {
        let number = request % BUCKETS * MANY as u64 + place as u64;
        let short = format!("{}{}", name.replace([' ', ','], ""), numbers.algorithm().key_suffix());
        opaque(&short, &number.to_string(), &Fingerprinter::new((1, 2)))
    };
    let numbers = algorithm.iter().cycle().take(count).enumerate();
    let charge = |(place, numbers): (usize, &Numbers)| {
        let slot = Slot(u128::from(request) * MANY as u128 + place as u128);
        let input = numbers.is_slots().then(|| Box::new(Input::Slot(slot)));
        Charge { input, ..Charge::new(bucket(place, numbers), numbers.clone(), 1, Mode::Spend) }
    };
    numbers.map(charge).collect()
}

struct Redis {
    server: Server,
    runtime: Runtime,
    store: Arc<RedisStore>,
}

impl Redis {
    /// The server's time for a request, in microseconds; with `alone` each charge is a separate request.
    fn cost(&self, name: &str, algorithm: &Algorithm, count: usize, alone: bool, requests: u64) -> f64 {
        let name = format!("{name}{count}{alone}");
        let requests: Vec<Vec<Charge>> =
            (0..requests).map(|request| charges(&name, algorithm, count, request)).collect();
        let ask = async |charges: &[Charge]| {
            let batch = Batch { charges, effective_from: Micros(0), now: Micros(0) };
            self.store.decide(&batch).await.expect("Redis answers");
        };
        let round = || {
            let before = processor_time(&self.server.pid());
            self.runtime.block_on(async {
                for charges in &requests {
                    let part = if alone { 1 } else { charges.len() };
                    for charges in charges.chunks(part) {
                        ask(charges).await;
                    }
                }
            });
            #[expect(clippy::cast_precision_loss, reason = "thousands")]
            let requests = requests.len() as f64;
            (processor_time(&self.server.pid()) - before) / requests
        };
        // The first round creates the buckets.
        round();
        (0..ROUNDS).map(|_| round()).fold(f64::INFINITY, f64::min)
    }
}

/// The time of a request in memory, in microseconds, with `keys` buckets. Buckets are chosen at random, so they are as cold in the
/// caches as those of real requests. The charges are built once; only their fingerprints change.
fn in_memory(algorithm: &Algorithm, count: usize, keys: u64) -> f64 {
    let store = MemoryStore::new(usize::try_from(keys + keys / 10).unwrap());
    let mut request = charges("memory", algorithm, count, 0);
    let part = keys / count as u64;
    let mut random = 1;
    let mut round = |next: &mut dyn FnMut(u64) -> u64| {
        let before = processor_time("self");
        for number in 0..part {
            for (place, charge) in (0..).zip(&mut request) {
                charge.bucket.fingerprint = fingerprint(place * part + next(number) % part);
            }
            let batch = Batch { charges: black_box(&request), effective_from: Micros(0), now: Micros(1 << 50) };
            black_box(store.decide(&batch).unwrap());
        }
        #[expect(clippy::cast_precision_loss, reason = "millions")]
        let requests = part as f64;
        (processor_time("self") - before) / requests
    };
    // The first round creates the buckets.
    round(&mut |number| number);
    let mut any = |_| {
        random = mix(random);
        random
    };
    (0..ROUNDS).map(|_| round(&mut any)).fold(f64::INFINITY, f64::min)
}
