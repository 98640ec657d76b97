//! The way from a request to its verdict in memory: `Limiter::decide`, with and without a candidate, for requests that pass and for
//! requests that are denied, whose ids are counted. Then its parts, and the rate limit headers that follow it.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "a benchmark stops where it cannot go on, and reports")]

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::Criterion;
use tokio::runtime::{Builder, Runtime};
use weir::engine::algorithms::micros::Micros;
use weir::engine::algorithms::numbers::Numbers;
use weir::engine::answer::headers::{Generations, add_headers};
use weir::engine::charging::plan::Plan;
use weir::engine::deciding::DecisionSubject;
use weir::engine::deciding::verdict::Verdict;
use weir::engine::limit::Limit;
use weir::engine::limit::allowance::Allowance;
use weir::engine::limit::candidate::Candidate;
use weir::engine::limit::fingerprint::Fingerprinter;
use weir::engine::limit::rules::Rules;
use weir::engine::request::{Body, Request};
use weir::limiter::{DecisionRequest, Limiter, Shared};
use weir::message::headers::Headers;
use weir::store::memory::MemoryStore;
use weir::store::{Batch, Store};
use weir::telemetry::metrics::{DecisionListener, Metrics};

const ROUNDS: usize = 41;

/// Clients of a flood, more than a sketch has counters.
const CROWD: u32 = 1_000;

fn main() {
    // `cargo bench` passes --bench. Otherwise each benchmark runs once, as a test.
    let measuring = std::env::args().any(|argument| argument == "--bench");
    let many = u64::from(u32::MAX);
    let mut cases = [
        ("decide/passes", Case::new(many, &[], CROWD)),
        ("decide/passes beside a candidate", Case::new(many, &[many], CROWD)),
        ("decide/passes beside four candidates", Case::new(many, &[many; 4], CROWD)),
        ("decide/passes, its candidate would deny", Case::new(many, &[1], CROWD)),
        ("decide/denied, one client", Case::new(1, &[], 1)),
        ("decide/denied, a crowd", Case::new(1, &[], CROWD)),
    ];
    let mut criterion = Criterion::default().configure_from_args();
    for (name, case) in &mut cases {
        (0..2 * CROWD).for_each(|_| case.decide());
        criterion.bench_function(name, |bencher| bencher.iter(|| case.decide()));
    }
    parts(&mut criterion);
    criterion.final_summary();
    if measuring {
        report(&mut cases);
    }
}

/// Prints what each case takes: the median over alternating rounds, so that a slower machine slows all.
fn report(cases: &mut [(&str, Case)]) {
    let mut rounds: Vec<Vec<Duration>> = cases.iter().map(|_| Vec::new()).collect();
    for _ in 0..ROUNDS {
        for ((_, case), durations) in cases.iter_mut().zip(&mut rounds) {
            let begun = Instant::now();
            (0..20_000).for_each(|_| case.decide());
            durations.push(begun.elapsed() / 20_000);
        }
    }
    for ((name, _), durations) in cases.iter().zip(&mut rounds) {
        durations.sort_unstable();
        eprintln!("{name}: {:?}", durations[ROUNDS / 2]);
    }
}

/// The parts of a decision about one limit, on a table that holds a crowd's buckets.
fn parts(criterion: &mut Criterion) {
    let (rules, store, mut headers) = (rules(u64::from(u32::MAX), &[]), MemoryStore::new(100_000), Headers::new());
    let (sent, mut turn) = (Headers::from_iter([("host", "api.example.com")]), 0);
    let mut plan = || {
        turn = (turn + 1) % CROWD;
        Plan::of_request(&rules, &request(&sent, turn), None).unwrap()
    };
    let ask = |plan: &Plan| {
        let now = Micros(1_800_000_000_000_000);
        store.decide(&Batch { charges: &plan.charges, effective_from: Micros(0), now }).unwrap()
    };
    (0..CROWD).for_each(|_| drop(ask(&plan())));
    let planned = plan();
    let decisions = ask(&planned);
    let verdict = Verdict::decided(&planned, &decisions);
    criterion.bench_function("parts/the charges", |bencher| bencher.iter(|| black_box(plan())));
    criterion.bench_function("parts/the store", |bencher| bencher.iter(|| black_box(ask(&planned))));
    criterion.bench_function("parts/the verdict", |bencher| {
        bencher.iter(|| black_box(Verdict::decided(&planned, &decisions)));
    });
    criterion.bench_function("parts/the headers", |bencher| {
        bencher.iter(|| {
            headers.clear();
            add_headers(&rules, black_box(&verdict), Generations::default(), &mut headers);
        });
    });
}

/// Rules of one limit by address.
fn rules(burst: u64, candidates: &[u64]) -> Rules {
    let allowance = |burst| Allowance::Windows([Numbers::fixed(burst).unwrap()].into());
    let candidate = |(place, burst): (usize, &u64)| Candidate {
        name: Some(place.to_string().into()),
        allowance: allowance(*burst),
        enforce_for: 0,
    };
    let candidates = candidates.iter().enumerate().map(candidate).collect();
    let limit = Limit { allowance: allowance(burst), candidates, ..Limit::new("Requests") };
    Rules::new(vec![limit], Fingerprinter::new((1, 2)), Micros(0), Vec::new())
}

/// The request of a client.
fn request(headers: &Headers, client: u32) -> Request<'_> {
    Request {
        method: "GET",
        host: "api.example.com",
        path: "/orders/7",
        query: None,
        headers,
        client: Some(IpAddr::V4(Ipv4Addr::from_bits(Ipv4Addr::new(10, 0, 0, 0).to_bits() + client))),
        tls_subject: None,
        claims: &[],
        body: Body::Absent,
        domain: None,
        descriptor: &[],
        now: Micros(1_800_000_000_000_000),
    }
}

/// A limiter with one limit by address, and clients that ask it in turn.
struct Case {
    runtime: Runtime,
    limiter: Limiter,
    headers: Headers,
    clients: u32,
    turn: u32,
}

impl Case {
    fn new(burst: u64, candidates: &[u64], clients: u32) -> Self {
        let store = || MemoryStore::new(100_000);
        let shared = Arc::new(Shared::new(rules(burst, candidates), Arc::new(Metrics::new().unwrap()), store()));
        let runtime = Builder::new_current_thread().build().unwrap();
        let limiter = Limiter::new(shared, Store::Memory(Arc::new(store())));
        Self { runtime, limiter, headers: Headers::from_iter([("host", "api.example.com")]), clients, turn: 0 }
    }

    fn decide(&mut self) {
        self.turn = (self.turn + 1) % self.clients;
        let request = request(&self.headers, self.turn);
        let asked = DecisionRequest::new(DecisionSubject::Request(&request), DecisionListener::Proxy, Instant::now());
        black_box(self.runtime.block_on(self.limiter.decide(asked)).unwrap());
    }
}
