//! The cost of a scrape: `Metrics::render` with many limits, each with every result on both workers.
//!
//! The admin thread renders the page, so requests do not wait for it, but a slow scrape delays probes.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "a benchmark stops where it cannot go on, and reports")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::Criterion;
use weir::telemetry::metrics::{DecisionResult, LimitTallies, Metrics};

/// The target for a thousand limits.
const TARGET: Duration = Duration::from_millis(10);

const WORKERS: usize = 2;

const ROUNDS: usize = 50;

fn main() {
    // `cargo bench` passes --bench. Otherwise each benchmark runs once, as a test.
    let measuring = std::env::args().any(|argument| argument == "--bench");
    let count = if measuring { 1_000 } else { 10 };
    let mut criterion = Criterion::default().configure_from_args();
    for (name, settle) in [("render/limits", false), ("render/limits that settle", true)] {
        let process = Process::new(count, settle);
        let page = process.metrics.render().unwrap();
        let line = format!("weir_decisions_total{{limit=\"Requests-0\",result=\"allowed\"}} {WORKERS}\n");
        assert!(String::from_utf8_lossy(&page).contains(&line), "{line}");
        criterion.bench_function(name, |bencher| bencher.iter(|| black_box(process.metrics.render().unwrap())));
        if measuring {
            report(name, count, &process.metrics);
        }
    }
    criterion.final_summary();
}

/// A process' metrics and its workers' tallies.
struct Process {
    metrics: Metrics,
    _tallies: Vec<LimitTallies>,
}

impl Process {
    fn new(count: usize, settle: bool) -> Self {
        let metrics = Metrics::new().unwrap();
        let mut all = Vec::new();
        for number in 0..count {
            let name = format!("Requests-{number}");
            let limit = metrics.limit(&name);
            for _ in 0..WORKERS {
                let tallies = LimitTallies::default();
                for result in DecisionResult::ALL {
                    tallies.count(&metrics, &limit, result);
                }
                all.push(tallies);
            }
            if settle {
                metrics.settlements(&name);
            }
        }
        Self { metrics, _tallies: all }
    }
}

/// The median of some pages, beside the target.
fn report(name: &str, limits: usize, metrics: &Metrics) {
    let render = || {
        let start = Instant::now();
        let bytes = black_box(metrics.render().unwrap()).len();
        (start.elapsed(), bytes)
    };
    let mut rounds: Vec<_> = (0..ROUNDS).map(|_| render()).collect();
    rounds.sort();
    let (median, bytes) = rounds[ROUNDS / 2];
    let verdict = if median <= TARGET { "within" } else { "OVER" };
    eprintln!("{name}: {limits} limits, {bytes} bytes in {median:.2?}, {verdict} {TARGET:?}");
}
