//! More requests than a worker or its server can serve, through the proxy: they are denied or rejected, and no limit is
//! switched off. With `--no-capture` each flood prints its row of the table in `docs/redis.md`.

#![expect(clippy::print_stdout, reason = "the rows of a table")]

use std::thread;
use std::time::{Duration, Instant};

use tokio::net::TcpStream;

use crate::support::becomes;
use crate::support::cluster::RedisCluster;
use crate::support::injector::{Injector, Trouble};
use crate::support::redis::RedisServer;
use crate::support::sentinel::SentinelGroup;
use crate::support::weir::Weir;

/// The streams of a burst and their connections.
const STREAMS: usize = 2_000;
const CONNECTIONS: usize = 20;

/// The flooded limit's numbers.
const BURST: u64 = 20;
const A_SECOND: u64 = 10;

/// The rules: one limit, or a pair of limits that a cluster keeps in two hash slots.
fn rules(policy: &str, is_pair: bool, has_lease: bool) -> String {
    let lease = if has_lease { ", lease: { tokens: 5, for: 100ms }" } else { "" };
    let flooded = format!("by: global, burst: {BURST}, count: {A_SECOND}, period: 1s, on_store_error: {policy}{lease}");
    let beside = format!(", Beside: {{ by: ip, burst: 100000, on_store_error: {policy} }}");
    format!("limits: {{ Flooded: {{ {flooded} }}{} }}", if is_pair { &beside } else { "" })
}

fn serve(rules: &str, url: &str, more: &[&str]) -> Weir {
    // All streams come from one address.
    let streams = ["--streams-per-address", "4096"];
    let flags = [&["--workers", "1", "--store", url], &streams[..], more].concat();
    let weir = Weir::serve(rules, &flags);
    becomes("the store is connected", 1, || weir.metric("weir_store_connections"));
    weir
}

/// Sends requests at once and counts the answers: 200, 429 and 503.
fn burst(weir: &Weir, streams: usize, connections: usize) -> [u64; 3] {
    let statuses = statuses(weir, &vec!["one".into(); streams], connections);
    [200, 429, 503].map(|status| statuses.iter().filter(|answer| **answer == status).count() as u64)
}

/// Sends requests with these ids at once and returns the statuses of the answers.
fn statuses(weir: &Weir, ids: &[String], connections: usize) -> Vec<u16> {
    let asking = async {
        let mut clients = Vec::new();
        for _ in 0..connections {
            let socket = TcpStream::connect(weir.proxy).await.unwrap();
            let (client, connection) = h2::client::handshake(socket).await.unwrap();
            tokio::spawn(connection);
            clients.push(client);
        }
        let mut answers = Vec::new();
        for (number, id) in ids.iter().enumerate() {
            let request = http::Request::get("http://a.example/").header("x-id", id).body(()).unwrap();
            let client = &mut clients[number % connections];
            let (answer, _) = client.send_request(request, true).unwrap();
            answers.push(tokio::spawn(async move { answer.await.unwrap().status().as_u16() }));
        }
        let mut statuses = Vec::new();
        for answer in answers {
            statuses.push(answer.await.unwrap());
        }
        statuses
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let statuses = runtime.block_on(asking);
    assert!(statuses.iter().all(|status| [200, 429, 503].contains(status)), "other statuses among {statuses:?}");
    statuses
}

/// Floods the limit under each policy, alone and in a pair, with and without leases. `empty` empties the buckets.
fn flood(topology: &str, url: &str, empty: impl Fn()) {
    // Few enough and too many to be taken for overload, and a crowd.
    const BURSTS: [usize; 3] = [200, 300, STREAMS];
    println!("\n| store | limits | leases | on_store_error | 200 | 429 | 503 | at most |");
    for number in 0..12 {
        let (policy, is_pair, has_lease) = (["allow", "deny", "local"][number % 3], number / 3 % 2 == 1, number >= 6);
        empty();
        let weir = serve(&rules(policy, is_pair, has_lease), url, &[]);
        let start = Instant::now();
        let mut sum = [0; 3];
        for streams in BURSTS {
            let statuses = burst(&weir, streams, CONNECTIONS);
            sum = [sum[0] + statuses[0], sum[1] + statuses[1], sum[2] + statuses[2]];
        }
        let most = BURST + A_SECOND * (start.elapsed().as_secs() + 1);
        let errors =
            ["down", "late", "broken"].map(|kind| weir.metric(&format!("weir_store_errors_total{{kind=\"{kind}\"}}")));
        let ([passed, denied, rejected], leases) = (sum, if has_lease { "yes" } else { "no" });
        let row = format!(
            "| {topology} | {} | {leases} | {policy} | {passed} | {denied} | {rejected} | {most} |",
            1 + u8::from(is_pair)
        );
        println!("{row}");
        // A worker may still have a lease.
        let least = if has_lease { 1 } else { BURST };
        assert!((least..=most).contains(&passed), "{row}; errors: {errors:?}");
        assert_eq!(errors, [0; 3], "{row}");
        assert_eq!(weir.metric("weir_decisions_total{limit=\"Flooded\",result=\"rejected\"}"), rejected, "{row}");
    }
}

#[test]
fn a_burst_passes_what_its_limit_allows_whatever_the_policy() {
    let redis = RedisServer::plain();
    flood("server", &redis.url(), || drop(redis.cli(&["FLUSHALL"])));
}

#[test]
fn a_burst_passes_what_its_limit_allows_under_sentinels() {
    let group = SentinelGroup::plain();
    flood("Sentinel", &group.url(), || drop(group.servers[group.master()].cli(&["FLUSHALL"])));
}

#[test]
fn a_burst_passes_what_its_limit_allows_in_a_cluster() {
    let cluster = RedisCluster::start(3, 0);
    flood("cluster", &cluster.url(), || cluster.nodes.iter().for_each(|node| drop(node.cli(&["FLUSHALL"]))));
}

#[test]
fn what_finds_no_room_in_the_queue_is_turned_away_under_every_policy() {
    for policy in ["allow", "deny", "local"] {
        let redis = RedisServer::plain();
        // Nothing leaves the queue during the test.
        let rules = format!("limits: {{ Ids: {{ by: {{ header: x-id }}, burst: 1, on_store_error: {policy} }} }}");
        let weir = serve(&rules, &redis.url(), &["--store-queue", "10"]);
        redis.freeze();
        let statuses = thread::scope(|scope| {
            let flood = scope.spawn(|| statuses(&weir, &(0..200).map(|id| format!("id{id}")).collect::<Vec<_>>(), 2));
            becomes("190 are turned away", 190, || {
                weir.metric("weir_decisions_total{limit=\"Ids\",result=\"rejected\"}")
            });
            let rejected = weir.get("/", &[("x-id", "late")]);
            assert_eq!((rejected.status(), rejected.header("retry-after")), (503, Some("1")), "{policy}");
            assert!(rejected.text().contains("Too many requests are waiting"), "{}", rejected.text());
            redis.thaw();
            flood.join().unwrap()
        });
        let with = |status: u16| statuses.iter().filter(|answer| **answer == status).count();
        assert_eq!((with(200), with(503)), (10, 190), "{policy}");
        assert_eq!(weir.metric("weir_store_errors_total{kind=\"busy\"}"), 191, "{policy}");
        weir.until_logged("rejecting requests: too many requests are waiting for the store");
    }
}

/// The others ask after the flood, which takes 32 round trips: two calls of 32 requests each time.
#[test]
fn a_flood_of_one_id_delays_no_other_at_a_server_far_away() {
    let redis = RedisServer::plain();
    let injector = Injector::to(&redis.address());
    let rates = [1, 2, 3, 4].map(|hours| format!("{{ count: 100000, period: {hours}h }}")).join(", ");
    let limits = format!("limits: {{ Ids: {{ by: {{ header: x-id }}, rates: [{rates}], on_store_error: deny }} }}");
    let weir = serve(&limits, &format!("redis://{}", injector.address), &["--store-timeout", "800ms"]);
    injector.set(Trouble::Delay(Duration::from_millis(100)));
    let flood = std::iter::repeat_n(String::from("flood"), STREAMS);
    let ids: Vec<String> = flood.chain((0..40).map(|id| format!("other{id}"))).collect();
    let statuses = statuses(&weir, &ids, CONNECTIONS + 2);
    assert_eq!(statuses[STREAMS..], [200; 40], "of {statuses:?}");
}
