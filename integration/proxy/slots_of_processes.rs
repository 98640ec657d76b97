//! Requests in flight of processes that share a Redis, end, die and take over.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::support::binary;
use crate::support::process::kill;
use crate::support::redis::RedisServer;
use crate::support::upstream::{Upstream, ok};
use crate::support::weir::Weir;
use crate::support::wire::Wire;
use crate::support::{becomes, eventually};

/// One request at a time, with the shortest lease.
const ONE: &str = "limits: { One: { algorithm: concurrency, capacity: 1, by: global, lease: 1s } }";
const LEASE: Duration = Duration::from_secs(1);
const KEY: &str = "weir:{0}:One#slots";

/// An upstream that answers `/wait` on a signal and everything else at once.
fn upstream() -> (Upstream, mpsc::Sender<()>) {
    let (go, told) = mpsc::channel::<()>();
    let told = parking_lot::Mutex::new(told);
    let upstream = Upstream::start(move |wire, _| {
        while let Some(request) = wire.request() {
            if request.start.contains("/wait") && told.lock().recv().is_err() {
                return;
            }
            wire.send(ok("done"));
        }
    });
    (upstream, go)
}

/// A process with its buckets in this Redis.
fn process(redis: &RedisServer, upstream: &Upstream, flags: &[&str]) -> Weir {
    let (store, upstream) = (redis.url(), format!("http://{}", upstream.address));
    // A late answer on a busy machine would be an allowance.
    let common = ["--store", &store, "--upstream", &upstream, "--workers", "1"];
    let weir = Weir::serve(ONE, &[&common[..], flags].concat());
    becomes("the store is connected", 1, || weir.metric("weir_store_connections"));
    weir
}

/// A request that holds the only slot.
fn held(weir: &Weir, redis: &RedisServer) -> Wire {
    let mut client = weir.connect();
    client.send("GET /wait HTTP/1.1\r\nhost: a\r\n\r\n");
    becomes("the slot is held", 1, || redis.cli(&["ZCARD", KEY]).parse().unwrap());
    client
}

fn status(weir: &Weir) -> u16 {
    weir.get("/", &[]).status()
}

#[track_caller]
fn passes(what: &str, weir: &Weir) {
    eventually(what, || match status(weir) {
        200 => Ok(()),
        other => Err(other),
    });
}

#[test]
fn processes_share_one_count_and_a_lease_is_renewed_while_its_request_lives() {
    let (redis, (upstream, go)) = (RedisServer::plain(), upstream());
    let (one, other) = (process(&redis, &upstream, &[]), process(&redis, &upstream, &[]));
    let mut client = held(&one, &redis);
    let begin = Instant::now();
    while begin.elapsed() < LEASE * 2 + LEASE / 2 {
        assert_eq!((status(&one), status(&other)), (429, 429), "after {:?}", begin.elapsed());
        std::thread::sleep(Duration::from_millis(50));
    }
    go.send(()).unwrap();
    assert_eq!(client.response().text(), "done");
    passes("the slot is given back", &other);
    becomes("nothing is left", 0, || redis.cli(&["EXISTS", KEY]).parse().unwrap());
}

#[test]
fn the_slots_of_a_process_that_was_killed_come_back_with_their_lease() {
    let (redis, (upstream, _go)) = (RedisServer::plain(), upstream());
    let (mut one, other) = (process(&redis, &upstream, &[]), process(&redis, &upstream, &[]));
    let client = held(&one, &redis);
    one.signal("KILL");
    one.wait();
    passes("the lease ends", &other);
    drop(client);
}

#[test]
fn a_process_that_stops_gives_its_slots_back_and_does_not_wait_for_leases() {
    let (redis, (upstream, _go)) = (RedisServer::plain(), upstream());
    let mut one = process(&redis, &upstream, &["--grace", "100ms"]);
    let client = held(&one, &redis);
    one.signal("TERM");
    assert!(one.wait().success());
    assert_eq!(redis.cli(&["EXISTS", KEY]), "0");
    drop(client);
}

#[test]
fn a_request_that_outlives_a_hand_over_keeps_its_slot() {
    let (redis, (upstream, go)) = (RedisServer::plain(), upstream());
    let weir = process(&redis, &upstream, &["--grace", "60s"]);
    let mut client = held(&weir, &redis);
    let successor = weir.hand_over();
    becomes("its store is connected", 1, || weir.metric("weir_store_connections"));
    let begin = Instant::now();
    while begin.elapsed() < LEASE + LEASE / 2 {
        assert_eq!(status(&weir), 429, "the successor counts it too");
        std::thread::sleep(Duration::from_millis(50));
    }
    go.send(()).unwrap();
    assert_eq!(client.response().text(), "done");
    passes("the slot is given back", &weir);
    assert!(kill("0", successor));
}

#[test]
fn without_a_proxy_nobody_sees_a_request_end() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("limits.yaml"), ONE).unwrap();
    let serve = binary::run_in(folder.path(), &["serve", "--check", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    assert_eq!(serve.code, Some(1), "{}", serve.err);
    for part in ["error: `One` counts requests in flight", " --> limits.yaml", "open the proxy with `--upstream`"] {
        assert!(serve.err.contains(part), "{part} is not in\n{}", serve.err);
    }
}
