//! Limits with `delay`: requests that wait for their turn instead of being denied.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use weir::clock::Clock;
use weir::engine::algorithms::micros::Micros;
use weir::http::Timeouts;
use weir::limiter::DelayBounds;
use weir::store::Store;
use weir::store::redis::{RedisOptions, RedisStore};

use crate::support::frames::{DATA, END_HEADERS, END_STREAM, Frames, HEADERS, RST_STREAM, frame, request};
use crate::support::redis::{RedisServer, STORE_TIMEOUT};
use crate::support::server::{Setup, Weir};
use crate::support::upstream::{Upstream, ok};
use crate::support::wire::Wire;
use crate::support::{NEVER, becomes};

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

/// An operator who looks at a bucket sees that requests wait for it.
#[test]
fn a_bucket_says_when_the_next_request_has_its_turn() {
    let rules = "limits: { Slow: { by: { header: x-account }, burst: 1, count: 1, period: 60s, delay: 10m } }";
    let weir = standing(rules).start("echo");
    let bucket = || -> serde_json::Value { serde_json::from_str(weir.page("/buckets/Slow:a").text()).unwrap() };
    let window = |name: &str| bucket()["windows"][0][name].as_u64();
    assert_eq!((window("retry_after_ms"), window("delay_ms")), (Some(0), None));
    assert_eq!(send(&weir, "a").response().status(), 200);
    assert_eq!((window("retry_after_ms"), window("delay_ms")), (Some(60_000), Some(60_000)));
    let _held: Vec<Wire> = (0..5).map(|_| send(&weir, "a")).collect();
    waiting(&weir, 5);
    assert_eq!((window("retry_after_ms"), window("delay_ms")), (Some(360_000), Some(360_000)));
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
}

/// Sends a request that has to wait, and returns how its client leaves.
type Arrival = fn(&Weir) -> Box<dyn FnOnce()>;

fn upload(weir: &Weir, rest: &str) -> Box<dyn FnOnce()> {
    let mut client = weir.connect();
    client.send(format!("POST / HTTP/1.1\r\nhost: a\r\n{rest}"));
    Box::new(move || drop(client))
}

/// The timeouts for clients and upstreams are for those who are waited for. Here nobody is.
#[test]
fn a_delay_may_be_longer_than_every_timeout() {
    let upstream = Upstream::saying("hello");
    let rules = "limits: { Queue: { by: global, burst: 1, count: 1, period: 1s, delay: 60s } }";
    let mut setup = standing(rules);
    let timeout = Duration::from_millis(900);
    setup.timeouts = Timeouts { body: timeout, response: timeout, ..Timeouts::default() };
    let weir = setup.start(&format!("http://{}", upstream.address));
    assert_eq!(weir.connect().get("/").status(), 200);
    let mut get = send(&weir, "a");
    waiting(&weir, 1);
    let mut stream = Frames::connect(weir.proxy);
    stream.get(1, "/");
    waiting(&weir, 2);
    let mut post = weir.connect();
    post.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello");
    waiting(&weir, 3);
    let mut uploading = Frames::connect(weir.proxy);
    uploading.send(frame(HEADERS, END_HEADERS, 1, &request("POST", "/", &[])));
    uploading.send(frame(DATA, END_STREAM, 1, b"hello"));
    assert_eq!(get.response().text(), "hello");
    assert_eq!(stream.stream(1)[0].status(), 200);
    assert_eq!(post.response().text(), "hello");
    assert_eq!(uploading.stream(1)[0].status(), 200);
    assert_eq!(weir.metric("weir_http_listener_limits_total{limit=\"body_timeout\"}"), 0);
    assert_eq!(upstream.requests().len(), 5);
}

#[test]
fn a_client_that_leaves_is_noticed_and_has_used_its_tokens() {
    // Its delay is the longest there is: only one client at a time can have it.
    let leave: [(&str, Arrival); 8] = [
        ("a connection", |weir| {
            let client = send(weir, "a");
            Box::new(move || drop(client))
        }),
        ("a short body", |weir| upload(weir, "content-length: 5\r\n\r\nhello")),
        ("a body that is not whole", |weir| upload(weir, "content-length: 9\r\n\r\nhello")),
        ("chunks", |weir| upload(weir, "transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")),
        ("a body that waits for a `100 Continue`", |weir| {
            upload(weir, "expect: 100-continue\r\ncontent-length: 5\r\n\r\n")
        }),
        ("a long body", |weir| upload(weir, &format!("content-length: 100000\r\n\r\n{}", "x".repeat(100_000)))),
        ("another request behind it", |weir| {
            let next = format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 100000\r\n\r\n{}", "x".repeat(100_000));
            upload(weir, &format!("content-length: 5\r\n\r\nhello{next}"))
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
        let weir = standing(ONE).start("echo");
        assert_eq!(weir.connect().get("/").status(), 200);
        let leave = arrive(&weir);
        waiting(&weir, 1);
        assert_eq!(weir.connect().get("/").status(), 429, "{name}: its place is taken");
        leave();
        waiting(&weir, 0);
        assert_eq!(weir.connect().get("/").status(), 429, "{name}: and stays booked");
    }
}

#[test]
fn requests_that_wait_are_answered_before_the_server_ends() {
    let mut setup = Setup::new("limits: { Queue: { by: global, burst: 1, count: 1, period: 2s, delay: 6s } }");
    setup.grace = NEVER;
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
    let rules = "limits: { L: { by: { header: x-account }, burst: 1, count: 1, period: 60s, delay: 10m } }";
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
    let rules = "limits: { L: { by: { header: x-account }, burst: 1, count: 1, period: 4s, delay: 60s }, \
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

/// A request that finds no slot after its wait is denied by that limit alone, and counted once.
#[test]
fn a_request_denied_after_its_wait_is_counted_as_denied() {
    let rules = "limits: { L: { match: { path: /a }, by: global, burst: 1, count: 1, period: 5s, delay: 6s }, \
                 S: { by: global, algorithm: concurrency, capacity: 1 } }";
    let (go, told) = mpsc::channel::<()>();
    let told = Mutex::new(told);
    let upstream = Upstream::start(move |wire, _| {
        while let Some(head) = wire.head() {
            if head.start.starts_with("GET /slow") {
                let _ = told.lock().recv();
            }
            wire.send(ok("hello"));
        }
    });
    let weir = standing(rules).start(&format!("http://{}", upstream.address));
    assert_eq!(weir.connect().get("/a").status(), 200);
    becomes("it gives its slot back", 0, || weir.metric("weir_slots_held"));
    let mut held = weir.connect();
    held.send("GET /a HTTP/1.1\r\nhost: a.example\r\n\r\n");
    waiting(&weir, 1);
    let mut slow = weir.connect();
    slow.send("GET /slow HTTP/1.1\r\nhost: a.example\r\n\r\n");
    becomes("it holds the slot", 1, || weir.metric("weir_slots_held"));
    assert_eq!(held.response().status(), 429);
    go.send(()).unwrap();
    assert_eq!(slow.response().status(), 200);
    for (limit, result, expected) in [
        ("L", "allowed", 1),
        ("L", "delayed", 0),
        ("L", "uncharged", 1),
        ("S", "allowed", 2),
        ("S", "denied", 1),
        ("S", "uncharged", 0),
    ] {
        becomes(&format!("{limit} {result}"), expected, || decisions(&weir, limit, result));
    }
}

#[test]
fn requests_pass_in_the_order_of_their_arrival() {
    let rules = "limits: { Queue: { by: global, burst: 1, count: 4, period: 1s, delay: 2s } }";
    let upstream = Upstream::saying("hello");
    let weir = standing(rules).start(&format!("http://{}", upstream.address));
    let mut clients: Vec<Wire> = Vec::new();
    for number in 0..=8 {
        clients.push(send(&weir, &number.to_string()));
        becomes("it has its place", number, || decisions(&weir, "Queue", "delayed"));
        becomes("it is decided", 1, || decisions(&weir, "Queue", "allowed"));
    }
    for client in &mut clients {
        assert_eq!(client.response().status(), 200);
    }
    let order: Vec<String> = upstream.requests().iter().map(|head| head.header("x-account").unwrap().into()).collect();
    assert_eq!(order, (0..=8).map(|number| number.to_string()).collect::<Vec<_>>());
}

/// A request whose store goes away while it waits passes in time. Those that follow wait by `on_store_error: local`.
#[test]
fn what_waits_passes_in_time_although_the_store_fails() {
    let rules = "limits: { Queue: { by: global, burst: 1, count: 1, period: 5s, delay: 15s, on_store_error: local }, \
                 Slots: { by: global, algorithm: concurrency, capacity: 8, on_store_error: local } }";
    let mut redis = RedisServer::plain();
    let mut setup = standing(rules);
    let options = RedisOptions { timeout: STORE_TIMEOUT, ..RedisOptions::new(redis.url(), setup.clock.clone()) };
    let target = options.target().unwrap();
    setup.store = Some(Arc::new(move || Ok(Store::Redis(RedisStore::connect(&target)))));
    let weir = setup.start("echo");
    becomes("the store is connected", 1, || weir.metric("weir_store_connections"));
    assert_eq!(send(&weir, "a").response().status(), 200);
    let mut held = send(&weir, "a");
    waiting(&weir, 1);
    redis.kill();
    becomes("the store is away", 0, || weir.metric("weir_store_connections"));
    assert_eq!(held.response().status(), 200);
    becomes("the slot is given back", 0, || weir.metric("weir_slots_held"));
    // Locally, the bucket is full.
    assert_eq!(send(&weir, "a").response().status(), 200);
    let mut clients = Vec::new();
    for number in 1..=3 {
        clients.push(send(&weir, "a"));
        waiting(&weir, number);
    }
    assert_eq!(send(&weir, "a").response().status(), 429);
    drop(clients);
    waiting(&weir, 0);
    assert_eq!(send(&weir, "a").response().status(), 429);
    for (limit, result, expected) in [
        ("Queue", "allowed", 2),
        ("Queue", "delayed", 1 + 3),
        ("Queue", "denied", 2),
        ("Slots", "allowed", 3 + 3),
        ("Slots", "error_allowed", 0),
    ] {
        becomes(&format!("{limit} {result}"), expected, || decisions(&weir, limit, result));
    }
}
