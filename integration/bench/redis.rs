//! The cost of a decision in Redis: one EVALSHA each, as most clients do it, against the calls of a store; and how many decisions a
//! second a server makes when 256 requests are always under way.
//!
//! All rows are of one run. The figures are processor time of the server and of this process, which other processes affect less
//! than durations do. The server's time is a decision's share of its capacity: a core makes 1,000,000 / us decisions per second.
//! A ratio compares a row with one EVALSHA each for the same requests. The client is one thread, so the rate of the cheapest rows is the
//! client's.
//!
//! `cargo bench --bench redis -- zipf` runs the loads with that in their name.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "a benchmark stops where it cannot go on, and reports"
)]

use std::fmt::Write;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Value;
use redis::aio::MultiplexedConnection;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use weir::engine::algorithms::charge::{Bucket, Charge, Mode};
use weir::engine::algorithms::lease::LeaseTerms;
use weir::engine::algorithms::micros::Micros;
use weir::engine::algorithms::numbers::Numbers;
use weir::store::Batch;
use weir::store::redis::RedisStore;

#[path = "nodes.rs"]
mod nodes;
#[path = "numbered.rs"]
mod numbered;
#[path = "random.rs"]
mod random;
#[path = "server.rs"]
mod server;
#[path = "zipf.rs"]
mod zipf;

use nodes::Nodes;
use numbered::fingerprint;
use random::Random;
use server::{Server, connect, processor_time};
use zipf::Zipf;

/// The requests under way at a time.
const TASKS: u64 = 256;

const IDS: u64 = 100_000;

/// The ids of a flood.
const FLOODING: u64 = 100;

const ROUNDS: usize = 5;

/// The most that a row may cost the server, relative to one EVALSHA each.
const BATCHED_TARGET: f64 = 0.3;
const FLOOD_TARGET: f64 = 0.2;
const LEASED_TARGET: f64 = 0.1;

/// The least that a cluster of three decides on a core of each, relative to one server on a core.
const CLUSTER_TARGET: f64 = 2.2;

/// The requests under way at a time in a cluster and at the server that it is compared with.
const CROWD: u64 = 1_024;

/// The most that the p99 of a decision may be, relative to that of a GET.
const ALONE_TARGET: f64 = 1.3;

/// GCRA in the fewest words, as other libraries have it: a theoretical arrival time for each key, one limit in a call.
const SHORTEST: &str = "
    local time = redis.call('TIME')
    local now = time[1] * 1000000 + time[2]
    local interval, burst, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
    local arrival = math.max(tonumber(redis.call('GET', KEYS[1])) or now, now)
    local next_arrival = arrival + interval * cost
    local allowed_at = next_arrival - interval * burst
    if allowed_at > now then
      return { 0, 0, allowed_at - now, arrival - now }
    end
    redis.call('SET', KEYS[1], string.format('%.0f', next_arrival), 'PX', math.ceil((next_arrival - now) / 1000))
    return { 1, math.floor((now - allowed_at) / interval), 0, next_arrival - now }";

fn main() {
    // `cargo bench` passes --bench. Otherwise each load runs once, as a test.
    let measuring = std::env::args().any(|argument| argument == "--bench");
    let wanted = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let requests = if measuring { 25_600 } else { 640 };
    let bench = Bench::start();
    eprintln!("requests, {TASKS} at a time; time in us             server   here  ratio  per second");
    for load in loads() {
        if wanted.as_ref().is_none_or(|wanted| load.name.contains(wanted.as_str())) {
            bench.compare(&load, requests);
        }
    }
    if wanted.as_ref().is_none_or(|wanted| "cluster".contains(wanted.as_str())) {
        bench.report_cluster(if measuring { 51_200 } else { CROWD });
    }
    bench.report_alone(if measuring { 5_000 } else { 50 });
}

/// The requests of a measurement.
struct Load {
    name: &'static str,
    ids: Ids,
    /// The charges of a request.
    limits: u64,
    lease: Option<LeaseTerms>,
    /// The highest ratio for the store's calls, if there is a goal.
    target: Option<f64>,
}

#[derive(Clone)]
enum Ids {
    Uniform,
    Zipf(Arc<Zipf>),
    /// 95 of 100 requests are of ids without any tokens left.
    Flood,
}

fn loads() -> Vec<Load> {
    let zipf = |exponent| Ids::Zipf(Arc::new(Zipf::new(IDS, exponent)));
    let load = |name, ids, limits, target| Load { name, ids, limits, lease: None, target };
    let leased = |name, span, target| {
        let lease = Some(LeaseTerms { tokens: 50, span });
        Load { lease, ..load(name, zipf(1.1), 1, Some(target)) }
    };
    vec![
        load("uniform", Ids::Uniform, 1, Some(BATCHED_TARGET)),
        load("zipf 1.0", zipf(1.0), 1, Some(BATCHED_TARGET)),
        load("zipf 1.1", zipf(1.1), 1, Some(BATCHED_TARGET)),
        leased("zipf 1.1, leases of 100 ms", 100_000, LEASED_TARGET),
        leased("zipf 1.1, leases of 1 s", 1_000_000, LEASED_TARGET),
        load("flood, 95 % denied", Ids::Flood, 1, Some(FLOOD_TARGET)),
        load("uniform, 4 limits", Ids::Uniform, 4, None),
    ]
}

/// A request: its charges, and the words that a call has for each of them.
struct Requests {
    random: Random,
    ids: Ids,
    /// The first part of the buckets' names.
    name: String,
    charges: Vec<Charge>,
}

impl Requests {
    fn new(load: &Load, seed: u64) -> Self {
        let charges = (0..load.limits).map(|_| Charge { lease: load.lease, ..charge(ample()) }).collect();
        let name = load.name.chars().filter(char::is_ascii_alphanumeric).collect();
        Self { random: Random(seed), ids: load.ids.clone(), name, charges }
    }

    /// Makes the charges those of the next request.
    fn next(&mut self) {
        let (mut id, mut is_flooding) = (self.random.below(IDS), false);
        match &self.ids {
            Ids::Uniform => {}
            Ids::Zipf(zipf) => id = zipf.id(self.random.next()),
            Ids::Flood => is_flooding = self.random.below(100) < 95,
        }
        if is_flooding {
            id = IDS + id % FLOODING;
        }
        for (place, charge) in (0..).zip(&mut self.charges) {
            charge.bucket.key.clear();
            write!(charge.bucket.key, "{}{place}:192.0.2.1-{id:06}", self.name).unwrap();
            charge.bucket.fingerprint = fingerprint(id * 8 + place);
            charge.numbers = match charge.lease {
                _ if is_flooding => spent(),
                Some(_) => leased(),
                None => ample(),
            };
        }
    }
}

/// Numbers of a bucket that neither runs dry nor fills up during the measurement: a token in 60 s.
fn ample() -> Numbers {
    Numbers::new(100_000_000, 1, 60_000_000_000).unwrap()
}

/// The numbers beside `lease` in the documentation: 10,000 a second.
fn leased() -> Numbers {
    Numbers::new(10_000, 10_000, 1_000_000_000).unwrap()
}

/// Numbers of a bucket that is empty after its first request: a token in an hour.
fn spent() -> Numbers {
    Numbers::new(1, 1, 3_600_000_000_000).unwrap()
}

fn charge(numbers: Numbers) -> Charge {
    Charge::new(Bucket::new("", 0), numbers, 1, Mode::Spend)
}

/// A way to have requests decided.
#[derive(Clone)]
enum Way {
    /// A call of Weir's script for each request.
    Each(MultiplexedConnection, Arc<str>),
    /// A call of the shortest script for each charge.
    Shortest(MultiplexedConnection, Arc<str>),
    /// The store's calls.
    Store(Arc<RedisStore>),
}

impl Way {
    async fn decide(&self, charges: &[Charge]) {
        match self {
            Self::Store(store) => {
                let batch = Batch { charges, effective_from: Micros(0), now: NOW };
                store.decide(&batch).await.expect("Redis decides");
            }
            Self::Each(connection, hash) => {
                let mut call = redis::cmd("EVALSHA");
                call.arg(&**hash).arg(charges.len());
                let mut words = String::new();
                for Charge { bucket, numbers, .. } in charges {
                    call.arg(format!("weir:{{0}}:{}", bucket.key));
                    let separator = if words.is_empty() { "" } else { " " };
                    let (burst, token, drain) = (numbers.burst(), numbers.weight(), numbers.drain());
                    write!(words, "{separator}{burst} {token} {drain} 1 spend").unwrap();
                }
                call.arg("").arg(0).arg(words).arg("#1a2b3c4d5e6f7a8b");
                ask(connection, &call).await;
            }
            Self::Shortest(connection, hash) => {
                for Charge { bucket, numbers, .. } in charges {
                    let mut call = redis::cmd("EVALSHA");
                    call.arg(&**hash).arg(1).arg(format!("shortest:{}", bucket.key));
                    call.arg(numbers.weight() / numbers.drain()).arg(numbers.burst()).arg(1);
                    ask(connection, &call).await;
                }
            }
        }
    }
}

async fn ask(connection: &MultiplexedConnection, call: &redis::Cmd) {
    let reply = connection.clone().send_packed_command(call).await.expect("Redis answers");
    assert!(!matches!(reply, Value::ServerError(_)), "{reply:?}");
}

/// A listener reads the clock once for each request, so that is not part of a decision.
const NOW: Micros = Micros(1_700_000_000_000_000);

struct Bench {
    server: Server,
    runtime: Runtime,
    connection: MultiplexedConnection,
    each: Way,
    shortest: Way,
    store: Way,
}

/// The cost of a request: microseconds of the busiest server and of this process, and in all.
#[derive(Clone, Copy)]
struct Cost {
    server: f64,
    here: f64,
    duration: f64,
}

impl Bench {
    fn start() -> Self {
        let server = Server::start();
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let store = Way::Store(server.connect(&runtime));
        let connection = runtime.block_on(async {
            let client = redis::Client::open(server.url()).unwrap();
            client.get_multiplexed_async_connection().await.unwrap()
        });
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/lua");
        let assembled = Command::new("./assemble").arg("decide.lua").current_dir(folder).output().unwrap();
        let load = |script: &str| -> Arc<str> {
            let mut command = redis::cmd("SCRIPT");
            let hash = runtime.block_on(async {
                command.arg("LOAD").arg(script).query_async::<String>(&mut connection.clone()).await.unwrap()
            });
            hash.into()
        };
        let each = Way::Each(connection.clone(), load(&String::from_utf8(assembled.stdout).unwrap()));
        let shortest = Way::Shortest(connection.clone(), load(SHORTEST));
        Self { server, runtime, connection, each, shortest, store }
    }

    /// Prints what the requests cost by each way. The ways take turns, and the medians count.
    fn compare(&self, load: &Load, requests: u64) {
        let ways = [
            ("the shortest script, a call each", &self.shortest, None),
            ("a call each", &self.each, None),
            ("the store", &self.store, load.target),
        ];
        let pids = [self.server.pid()];
        let [shortest, each, store] =
            self.measure(ways.map(|(_, way, _)| (way, pids.as_slice())), load, TASKS, requests);
        for ((name, _, target), cost) in ways.into_iter().zip([shortest, each, store]) {
            let ratio = cost.server / each.server;
            let verdict = target.map_or(String::new(), |target| verdict(ratio, target));
            let Cost { server, here, duration } = cost;
            let name = format!("{}, {name}", load.name);
            eprintln!("{name:<50} {server:6.2} {here:6.2} {ratio:6.2} {:9.0}  {verdict}", 1e6 / duration);
        }
    }

    /// The medians of several rounds, in which the ways take turns.
    fn measure<const N: usize>(
        &self,
        ways: [(&Way, &[String]); N],
        load: &Load,
        tasks: u64,
        requests: u64,
    ) -> [Cost; N] {
        let mut rounds = ways.map(|_| Vec::new());
        // The first round makes the buckets.
        for round in 0..=ROUNDS {
            for ((way, pids), costs) in ways.iter().zip(&mut rounds) {
                let cost = self.run(way, pids, load, tasks, requests);
                costs.extend((round > 0).then_some(cost));
            }
        }
        rounds.map(|costs| median(&costs))
    }

    /// The cost of `requests` requests, as many at a time as there are tasks.
    fn run(&self, way: &Way, pids: &[String], load: &Load, tasks: u64, requests: u64) -> Cost {
        let spent = || -> Vec<f64> { pids.iter().map(|pid| processor_time(pid)).collect() };
        let (before, before_here, begun) = (spent(), processor_time("self"), Instant::now());
        self.runtime.block_on(async {
            let mut asking = JoinSet::new();
            for task in 0..tasks {
                let (way, mut made) = (way.clone(), Requests::new(load, task));
                asking.spawn(async move {
                    for _ in 0..requests / tasks {
                        made.next();
                        way.decide(&made.charges).await;
                    }
                });
            }
            asking.join_all().await;
        });
        let requests = f64::from(u32::try_from(requests).unwrap());
        let duration = begun.elapsed().as_secs_f64() * 1e6 / requests;
        let here = (processor_time("self") - before_here) / requests;
        let busiest = spent().iter().zip(before).map(|(after, before)| after - before).fold(0.0, f64::max);
        Cost { server: busiest / requests, here, duration }
    }

    /// Prints what a decision costs a server, and the busiest of three masters.
    fn report_cluster(&self, requests: u64) {
        let nodes = [1, 3].map(Nodes::start);
        let stores = nodes.each_ref().map(|nodes| Way::Store(connect(&self.runtime, nodes.url())));
        let pids = nodes.each_ref().map(Nodes::pids);
        eprintln!("\na server and a cluster of three; time in us         busiest   here  ratio");
        for tasks in [TASKS, CROWD] {
            let load = Load { name: "cluster", ids: Ids::Uniform, limits: 1, lease: None, target: None };
            let [one, three] =
                self.measure([0, 1].map(|place| (&stores[place], &*pids[place])), &load, tasks, requests);
            for (name, cost) in [("one server", one), ("three masters", three)] {
                let name = format!("{name}, {tasks} at a time");
                eprintln!("{name:<50} {:6.2} {:6.2} {:6.2}", cost.server, cost.here, cost.server / one.server);
            }
            let times = one.server / three.server;
            let verdict = if times >= CLUSTER_TARGET { "hit" } else { "MISS" };
            eprintln!("{:<50} decide {times:.2} times as much  at least {CLUSTER_TARGET}: {verdict}", "three masters");
        }
    }

    /// Prints how long one request at a time takes, against a GET between the same two processes.
    fn report_alone(&self, requests: usize) {
        let mut took = [const { Vec::new() }; 3];
        let mut made =
            Requests::new(&Load { name: "alone", ids: Ids::Uniform, limits: 1, lease: None, target: None }, 1);
        self.runtime.block_on(async {
            for _ in 0..requests {
                made.next();
                let mut get = redis::cmd("GET");
                get.arg(&made.charges[0].bucket.key);
                took[0].push(timed(ask(&self.connection, &get)).await);
                took[1].push(timed(self.each.decide(&made.charges)).await);
                took[2].push(timed(self.store.decide(&made.charges)).await);
            }
        });
        eprintln!("\none request at a time; time in us                   p50    p99");
        let [get, each, store] = took.map(|mut took| {
            took.sort_unstable();
            [50, 99].map(|percent| took[(took.len() - 1) * percent / 100].as_secs_f64() * 1e6)
        });
        for (name, [p50, p99]) in [("GET", get), ("a call each", each), ("the store", store)] {
            eprintln!("{name:<50} {p50:6.1} {p99:6.1}");
        }
        eprintln!(
            "the store's p99 is {:.2} times that of GET  {}",
            store[1] / get[1],
            verdict(store[1] / get[1], ALONE_TARGET)
        );
        eprintln!(
            "a batch of one takes {:.2} times a call (p50), {:.2} times (p99)",
            store[0] / each[0],
            store[1] / each[1]
        );
    }
}

async fn timed(work: impl Future<Output = ()>) -> Duration {
    let begun = Instant::now();
    work.await;
    begun.elapsed()
}

fn median(rounds: &[Cost]) -> Cost {
    let middle = |of: fn(&Cost) -> f64| {
        let mut values: Vec<f64> = rounds.iter().map(of).collect();
        values.sort_unstable_by(f64::total_cmp);
        values[values.len() / 2]
    };
    Cost { server: middle(|cost| cost.server), here: middle(|cost| cost.here), duration: middle(|cost| cost.duration) }
}

fn verdict(ratio: f64, target: f64) -> String {
    format!("at most {target}: {}", if ratio <= target { "hit" } else { "MISS" })
}
