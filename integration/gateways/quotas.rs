//! Envoys that limit by themselves: real ones, with uneven loads that move.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use super::example::{Change, Example, Ports, examples};
use crate::support::becomes;
use crate::support::process::free_port;
use crate::support::programs::Program;
use crate::support::upstream::Upstream;
use crate::support::weir::Weir;
use crate::support::wire::Wire;

/// Timeouts for a busy machine, and nothing passes without an assignment.
const CHANGES: [Change; 2] = [
    ("connect_timeout: 1s\n    typed", "connect_timeout: 60s\n    typed"),
    ("fallback_rate_limit: { blanket_rule: ALLOW_ALL }", "fallback_rate_limit: { blanket_rule: DENY_ALL }"),
];

/// A client that sends at most this many requests per second through an Envoy.
struct Load {
    rate: Arc<AtomicU64>,
    passed: Arc<AtomicU64>,
    ends: Arc<AtomicBool>,
    client: Option<JoinHandle<()>>,
}

impl Load {
    fn start(envoy: &Example, rate: u64) -> Self {
        let (rate, passed) = (Arc::new(AtomicU64::new(rate)), Arc::new(AtomicU64::new(0)));
        let ends = Arc::new(AtomicBool::new(false));
        let mut wire = Wire::connect(envoy.address);
        let (goal, counted, is_over) = (rate.clone(), passed.clone(), ends.clone());
        let client = spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                let answer = wire.get_with("/", &[("x-api-key", "one")]);
                match answer.status() {
                    200 => _ = counted.fetch_add(1, Ordering::Relaxed),
                    status => assert_eq!(status, 429),
                }
                sleep(Duration::from_secs(1) / u32::try_from(goal.load(Ordering::Relaxed)).unwrap());
            }
        });
        Self { rate, passed, ends, client: Some(client) }
    }

    fn passed(&self) -> u64 {
        self.passed.load(Ordering::Relaxed)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let ended = self.client.take().unwrap().join();
        assert!(std::thread::panicking() || ended.is_ok(), "a client failed");
    }
}

/// Returns the requests of both clients that pass in some seconds. Checks all the time that those since the start are not more than the
/// limit.
#[track_caller]
fn watch(loads: &[Load; 2], start: Instant, seconds: u64) -> [u64; 2] {
    let before = loads.each_ref().map(Load::passed);
    let until = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < until {
        sleep(Duration::from_millis(100));
        let passed: u64 = loads.iter().map(Load::passed).sum();
        let elapsed = u64::try_from(start.elapsed().as_millis()).unwrap();
        assert!(passed <= 100 + elapsed / 10, "{passed} passed in {elapsed} ms");
    }
    [0, 1].map(|place| loads[place].passed() - before[place])
}

#[test]
fn shares_of_two_envoys_follow_the_load_and_are_never_more_than_the_limit() {
    let application = Upstream::answering(|_| "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_owned());
    let listener = format!("127.0.0.1:{}", free_port());
    let rules = std::fs::read_to_string(examples().join("envoy-rlqs/limits.yaml")).unwrap();
    let weir = Weir::serve(&rules, &["--workers", "2", "--grpc", &listener]);
    let ports = Ports { application: application.address.port(), listener: weir.listener("grpc").port() };
    let envoys = [(); 2].map(|()| Example::start(Program::Envoy, "envoy-rlqs", &CHANGES, ports));
    let start = Instant::now();
    let loads = [Load::start(&envoys[0], 400), Load::start(&envoys[1], 10)];
    watch(&loads, start, 15);
    let [first, second] = watch(&loads, start, 5);
    assert!(second > 0 && first > 3 * second, "{first} and {second}");
    loads[0].rate.store(10, Ordering::Relaxed);
    loads[1].rate.store(400, Ordering::Relaxed);
    watch(&loads, start, 15);
    let [first, second] = watch(&loads, start, 5);
    assert!(second > 3 * first, "{first} and {second}");
    assert_eq!(weir.metric("weir_rate_limit_quota_streams"), 2);
    drop(loads);
    drop(envoys);
    becomes("the streams have ended", 0, || weir.metric("weir_rate_limit_quota_streams"));
}
