//! Limits with `delay`: requests that wait for their turn instead of being denied.

use std::time::{Duration, Instant};

use weir::clock::Clock;
use weir::engine::algorithms::micros::Micros;
use weir::limiter::DelayBounds;

use crate::support::becomes;
use crate::support::frames::{Frames, RST_STREAM, frame};
use crate::support::server::{Setup, Weir};
use crate::support::wire::Wire;

/// Twenty a second by account, and at most four that wait.
const QUEUE: &str = "limits: { Queue: { by: { header: x-account }, burst: 2, count: 20, period: 1s, delay: 200ms } }";

/// One a minute, and one that waits.
const ONE: &str = "limits: { One: { by: global, burst: 1, count: 1, period: 60s, delay: 60s } }";

/// A server whose buckets do not refill: its clock stands.
fn standing(rules: &str) -> Setup {
    let mut setup = Setup::new(rules);
    setup.clock = Clock::set(Micros(1_800_000_000_000_000));
    setup
}

fn send(weir: &Weir, account: &str) -> Wire {
    let mut client = weir.connect();
    client.send(format!("GET / HTTP/1.1\r\nhost: a.example\r\nx-account: {account}\r\n\r\n"));
    client
}

fn decisions(weir: &Weir, limit: &str, result: &str) -> u64 {
    weir.metric(&format!("weir_decisions_total{{limit=\"{limit}\",result=\"{result}\"}}"))
}

fn waiting(weir: &Weir, expected: u64) {
    becomes("requests wait", expected, || weir.metric("weir_delayed_requests"));
}

#[test]
fn a_flood_of_one_id_passes_at_its_rate_and_holds_up_no_other() {
    let weir = standing(QUEUE).start("echo");
    let start = Instant::now();
    let flood: Vec<Wire> = (0..200).map(|_| send(&weir, "flood")).collect();
    let others: Vec<Wire> = (0..100).map(|id| send(&weir, &format!("other-{id}"))).collect();
    for mut other in others {
        assert_eq!(other.response().status(), 200);
    }
    let statuses: Vec<u16> = flood.into_iter().map(|mut client| client.response().status()).collect();
    let passed = statuses.iter().filter(|status| **status == 200).count();
    let denied = statuses.iter().filter(|status| **status == 429).count();
    // The burst, and those whose turn comes within 200 ms: after 50, 100, 150 and 200 ms.
    assert_eq!((passed, denied), (2 + 4, 194));
    assert!(start.elapsed() >= Duration::from_millis(200), "the last one waits for its turn");
    for (result, expected) in [("allowed", 2 + 100), ("delayed", 4), ("denied", 194)] {
        assert_eq!(decisions(&weir, "Queue", result), expected, "{result}");
    }
    waiting(&weir, 0);
    becomes("the delays are in the histogram", 4, || weir.metric("weir_delay_seconds_count"));
    assert_eq!(weir.metric("weir_delay_seconds_bucket{le=\"0.25\"}"), 4);
}

/// Sends a request that has to wait, and returns how its client leaves.
type Arrival = fn(&Weir) -> Box<dyn FnOnce()>;

#[test]
fn the_place_of_a_client_that_leaves_goes_to_the_next() {
    let weir = standing(ONE).start("echo");
    assert_eq!(weir.connect().get("/").status(), 200);
    // Its delay is the longest there is: only one client at a time can have it.
    let leave: [(&str, Arrival); 2] = [
        ("a connection", |weir| {
            let client = send(weir, "a");
            Box::new(move || drop(client))
        }),
        ("a stream", |weir| {
            let mut client = Frames::connect(weir.proxy);
            client.get(1, "/");
            Box::new(move || {
                client.send(frame(RST_STREAM, 0, 1, &[0, 0, 0, 8]));
                // The connection stays open until the server has seen it.
                std::mem::forget(client);
            })
        }),
    ];
    for (name, arrive) in leave {
        let leave = arrive(&weir);
        waiting(&weir, 1);
        assert_eq!(weir.connect().get("/").status(), 429, "{name}: its place is taken");
        leave();
        waiting(&weir, 0);
    }
    let last = send(&weir, "a");
    waiting(&weir, 1);
    drop(last);
}

#[test]
fn requests_that_wait_are_answered_before_the_server_ends() {
    let mut setup = Setup::new("limits: { Queue: { by: global, burst: 1, count: 1, period: 300ms, delay: 1s } }");
    setup.grace = Duration::from_secs(30);
    let weir = setup.start("echo");
    let mut clients: Vec<Wire> = (0..3).map(|_| send(&weir, "a")).collect();
    waiting(&weir, 2);
    weir.stop();
    for client in &mut clients {
        assert_eq!(client.response().status(), 200);
    }
    drop(clients);
    weir.join();
}

/// A worker holds eight requests, two of them for one id.
#[test]
fn beyond_its_bounds_a_worker_denies_as_without_a_delay() {
    let rules = "limits: { L: { by: { header: x-account }, burst: 1, count: 1, period: 1s, delay: 60s } }";
    let mut setup = standing(rules);
    setup.delays = DelayBounds { most: 8, ..DelayBounds::default() };
    let weir = setup.start("echo");
    let mut held = Vec::new();
    for account in ["a", "b", "c", "d", "e"] {
        assert_eq!(send(&weir, account).response().status(), 200, "{account}");
        if account == "e" {
            assert_eq!(send(&weir, account).response().status(), 429, "all eight places are taken");
            continue;
        }
        for _ in 0..2 {
            held.push(send(&weir, account));
            waiting(&weir, held.len() as u64);
        }
        assert_eq!(send(&weir, account).response().status(), 429, "{account} has its share");
    }
    held.pop();
    waiting(&weir, 7);
    // One is left for the id that has a place.
    held.push(send(&weir, "e"));
    waiting(&weir, 8);
}

/// A request that waits must not keep others from a slot.
#[test]
fn a_slot_is_taken_only_after_the_wait() {
    let rules = "limits: { L: { by: { header: x-account }, burst: 1, count: 1, period: 1s, delay: 60s }, \
                 S: { by: global, algorithm: concurrency, capacity: 1 } }";
    let weir = standing(rules).start("echo");
    assert_eq!(send(&weir, "a").response().status(), 200);
    let mut held = send(&weir, "a");
    waiting(&weir, 1);
    becomes("it holds no slot", 0, || weir.metric("weir_slots_held"));
    assert_eq!(send(&weir, "b").response().status(), 200);
    assert_eq!(held.response().status(), 200, "the slot is free when it has waited");
    becomes("it gives the slot back", 0, || weir.metric("weir_slots_held"));
}
