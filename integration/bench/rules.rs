//! Limits and overrides that cannot apply cost nothing: `Plan::of_request` with few rules and with many.
//!
//! The same request is looked up each time: on one path, from a thousand clients in turn. Exactly one limit covers it,
//! by address. It is the only limit, or there are 9,999 more on other paths and one on another path with a million
//! overrides; or the limit itself has a million overrides for other addresses.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "a benchmark stops where it cannot go on, and reports")]

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::Criterion;
use weir::engine::algorithms::micros::Micros;
use weir::engine::algorithms::numbers::Numbers;
use weir::engine::charging::plan::Plan;
use weir::engine::limit::Limit;
use weir::engine::limit::allowance::Allowance;
use weir::engine::limit::fingerprint::Fingerprinter;
use weir::engine::limit::ids::Id;
use weir::engine::limit::overrides::{Override, OverrideOrigin};
use weir::engine::limit::rules::Rules;
use weir::engine::request::path_condition::PathCondition;
use weir::engine::request::path_pattern::PathPattern;
use weir::engine::request::{Body, Request};
use weir::message::headers::Headers;

/// The numbers of limits and overrides in the large case.
#[derive(Clone, Copy)]
struct Scale {
    limits: u32,
    overrides: u32,
}

const FINGERPRINTER: Fingerprinter = Fingerprinter::new((0x0123_4567_89AB_CDEF, 0xFEDC_BA98_7654_3210));

fn main() {
    // `cargo bench` passes --bench. Otherwise each benchmark runs once, as a test, and needs no million.
    let measuring = std::env::args().any(|argument| argument == "--bench");
    let scale = if measuring {
        Scale { limits: 10_000, overrides: 1_000_000 }
    } else {
        Scale { limits: 100, overrides: 1_000 }
    };
    let alone = rules(vec![limit(0)]);
    let among_many = rules(many(scale));
    let overridden = rules(vec![with_overrides(limit(0), scale.overrides)]);
    let mut criterion = Criterion::default().configure_from_args();
    for (name, rules) in [
        ("charges/1 limit", &alone),
        ("charges/among many", &among_many),
        ("charges/overridden for others", &overridden),
    ] {
        let mut requests = Requests::new();
        criterion.bench_function(name, |bencher| bencher.iter(|| requests.next(rules)));
        assert_eq!(requests.next(rules).charges.len(), 1, "{name}");
    }
    criterion.final_summary();
    if measuring {
        report_ratio("10,000 limits and 1,000,000 overrides on another", &among_many, &alone);
        report_ratio("1,000,000 overrides for other clients", &overridden, &alone);
    }
}

/// Prints how much longer a request takes with `rules` than `alone`: the median over alternating rounds, so that a
/// slower machine slows both.
fn report_ratio(name: &str, rules: &Rules, alone: &Rules) {
    const ROUNDS: usize = 41;
    let mut requests = Requests::new();
    let mut turn = |rules: &Rules| -> Duration {
        let begun = Instant::now();
        for _ in 0..50_000 {
            black_box(requests.next(rules));
        }
        begun.elapsed()
    };
    let mut ratios: Vec<f64> = (0..ROUNDS).map(|_| turn(rules).as_secs_f64() / turn(alone).as_secs_f64()).collect();
    ratios.sort_unstable_by(f64::total_cmp);
    eprintln!("{name}: {:.3} times the time of 1 limit", ratios[ROUNDS / 2]);
}

fn rules(limits: Vec<Limit>) -> Rules {
    Rules::new(limits, FINGERPRINTER, Micros(0), Vec::new())
}

/// The limit that covers the request, others on as many paths, and one with overrides.
fn many(scale: Scale) -> Vec<Limit> {
    let mut limits: Vec<Limit> = (0..scale.limits).map(limit).collect();
    limits.push(with_overrides(limit(scale.limits), scale.overrides));
    limits
}

fn limit(number: u32) -> Limit {
    let mut limit = Limit::new(&format!("Limit{number}"));
    let pattern = PathPattern::parse(&format!("/api/{number}/orders/{{order}}")).unwrap();
    limit.conditions.paths = vec![PathCondition::Pattern(pattern)];
    limit.allowance = allowance(20);
    limit
}

/// Overrides for the first addresses in 10.0.0.0/8, which no client here has.
fn with_overrides(mut limit: Limit, count: u32) -> Limit {
    let other = allowance(40);
    for number in 0..count {
        let address = Ipv4Addr::from_bits(Ipv4Addr::new(10, 0, 0, 0).to_bits() + number);
        let id = Id::parse(&limit.by, &address.to_string()).unwrap();
        let given = Override { allowance: other.clone(), until: None, origin: OverrideOrigin::default() };
        limit.overrides.add_id(id.parts.len(), id.fingerprint(&limit.short, &FINGERPRINTER), given).unwrap();
    }
    limit.overrides.finish().unwrap();
    limit
}

fn allowance(burst: u64) -> Allowance {
    Allowance::Windows(Arc::new([Numbers::new(burst, burst, 1_000_000_000).unwrap()]))
}

/// Requests on the path of limit 0 with typical headers.
struct Requests {
    headers: Headers,
    client: u8,
    number: u8,
}

impl Requests {
    fn new() -> Self {
        let headers = [
            ("host", "api.example.com"),
            ("user-agent", "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"),
            ("accept", "application/json"),
            ("accept-encoding", "gzip, deflate, br"),
            ("authorization", "Bearer 0123456789abcdef0123456789abcdef"),
            ("x-account-id", "12345678"),
            ("cookie", "session=0123456789abcdef"),
        ]
        .into_iter()
        .collect();
        Self { headers, client: 0, number: 0 }
    }

    fn next(&mut self, rules: &Rules) -> Plan {
        self.client = self.client.wrapping_add(1);
        self.number = if self.client == 0 { (self.number + 1) % 4 } else { self.number };
        let request = Request {
            method: "GET",
            host: "api.example.com",
            path: "/api/0/orders/7",
            query: None,
            headers: &self.headers,
            client: Some(IpAddr::V4(Ipv4Addr::new(192, 0, self.number, self.client))),
            tls_subject: None,
            claims: &[],
            body: Body::Absent,
            domain: None,
            descriptor: &[],
            now: Micros(1_800_000_000_000_000),
        };
        Plan::of_request(rules, black_box(&request), None).unwrap()
    }
}
