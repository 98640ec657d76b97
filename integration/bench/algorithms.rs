//! What each algorithm costs: the processor time of Redis for a request with one charge, with four, and with four in
//! calls of their own, and that of the memory store for one and four.
//!
//! Requests are made one after the other, so that each is a call: company in a call would hide what a call costs. The
//! figures are processor time, which other processes change less than they change a duration; each is the least of
//! several rounds. `taskset -c 1` keeps both on one core, and then they vary least: what the kernel spends to wake a core
//! that sleeps would be counted as the server's, and was up to twice what a call costs.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "a benchmark stops where it cannot go on, and reports"
)]

use std::hint::black_box;
use std::sync::Arc;

use tokio::runtime::{Builder, Runtime};
use weir::engine::algorithms::charge::{Charge, Mode};
use weir::engine::algorithms::details::{Slot, Terms};
use weir::engine::algorithms::numbers::{Aligned, Micros, Numbers};
use weir::engine::rules::fingerprint::Fingerprinter;
use weir::engine::rules::key::opaque;
use weir::store::Batch;
use weir::store::memory::MemoryStore;
use weir::store::redis::RedisStore;

#[path = "numbered.rs"]
mod numbered;
#[path = "server.rs"]
mod server;

use numbered::{fingerprint, mix};
use server::{Server, processor_time};

/// What four charges of one request may cost at most, in costs of one.
const REDIS_TARGET: f64 = 1.8;
const MEMORY_TARGET: f64 = 3.0;

/// The charges of a request with many.
const MANY: usize = 4;

const ROUNDS: usize = 5;

/// Buckets of each charge, which requests go through in turn.
const BUCKETS: u64 = 1_000;

fn main() {
    let measuring = std::env::args().any(|argument| argument == "--bench");
    let requests = if measuring { 20_000 } else { 50 };
    let server = Server::start();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let store = server.connect(&runtime);
    let redis = Redis { server, runtime, store };
    eprintln!("time in us               Redis: one    four  ratio   alone  ratio   memory: one   four  ratio");
    // `cargo bench --bench algorithms -- gcra` measures what has that in its name.
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

/// The numbers that the charges of a request have, one after the other.
type Algorithm = Vec<Numbers>;

/// Each algorithm with enough for all requests, and with nothing left.
fn algorithms() -> Vec<(&'static str, Algorithm)> {
    const HOUR: u64 = 3_600_000_000_000;
    let gcra = |count| Numbers::new(count, count, HOUR).unwrap();
    let fixed = |count| Numbers::windows(count, count, HOUR, Aligned::Clock).unwrap();
    let log = |count| Numbers::sliding_log(count, HOUR).unwrap();
    let sliding = |count, denied| Numbers::sliding_window(count, HOUR, denied).unwrap();
    let slots = |count| Numbers::slots(count, HOUR).unwrap();
    vec![
        ("gcra", vec![gcra(1_000_000)]),
        ("gcra, refused", vec![gcra(1)]),
        ("fixed_window", vec![fixed(1_000_000)]),
        ("fixed_window, refused", vec![fixed(1)]),
        ("sliding_log", vec![log(10_000)]),
        ("sliding_log, refused", vec![log(1)]),
        ("sliding_window", vec![sliding(1_000_000, false)]),
        ("sliding_window, refused", vec![sliding(1, false)]),
        ("sliding_window, count_denied", vec![sliding(100_000, true)]),
        ("concurrency", vec![slots(10_000)]),
        ("concurrency, refused", vec![slots(1)]),
        ("all of them, mixed", vec![gcra(1_000_000), fixed(1_000_000), log(10_000), sliding(1_000_000, false)]),
    ]
}

/// The charges of a request, of buckets of which each request has others.
fn charges(name: &str, algorithm: &Algorithm, count: usize, request: u64) -> Vec<Charge> {
    let bucket = |place: usize, numbers: &Numbers| {
        let number = request % BUCKETS * MANY as u64 + place as u64;
        let short = format!("{}{}", name.replace([' ', ','], ""), numbers.refill().kind().mark());
        opaque(&short, &number.to_string(), &Fingerprinter::new((1, 2)))
    };
    let numbers = algorithm.iter().cycle().take(count).enumerate();
    let charge = |(place, numbers): (usize, &Numbers)| {
        let slot = Slot(u128::from(request) * MANY as u128 + place as u128);
        let terms = numbers.is_slots().then(|| Box::new(Terms::Slot(slot)));
        Charge { terms, ..Charge::new(bucket(place, numbers), *numbers, 1, Mode::Spend) }
    };
    numbers.map(charge).collect()
}

struct Redis {
    server: Server,
    runtime: Runtime,
    store: Arc<RedisStore>,
}

impl Redis {
    /// The server's time for a request, in microseconds; with `alone` each charge is a request of its own.
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
        // The first round makes the buckets.
        round();
        (0..ROUNDS).map(|_| round()).fold(f64::INFINITY, f64::min)
    }
}

/// The time of a request in memory, in microseconds, with so many buckets held. As buckets of real requests they are as
/// cold as chance makes them; the charges are made once, and only their fingerprints are other ones for each request.
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
    // The first round makes the buckets.
    round(&mut |number| number);
    let mut any = |_| {
        random = mix(random);
        random
    };
    (0..ROUNDS).map(|_| round(&mut any)).fold(f64::INFINITY, f64::min)
}
