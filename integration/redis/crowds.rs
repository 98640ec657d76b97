//! More requests than a worker or its server can serve, through the proxy: they are denied or rejected, and no limit is
//! switched off.

use std::thread;
use std::time::Instant;

use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::support::becomes;
use crate::support::cluster::RedisCluster;
use crate::support::redis::RedisServer;
use crate::support::weir::Weir;

/// The streams of a burst and their connections.
const STREAMS: usize = 2_000;
const CONNECTIONS: usize = 20;

/// The flooded limit's numbers.
const BURST: u64 = 20;
const A_SECOND: u64 = 10;

/// A limit, and another one beside it if there are to be two: in a cluster, it is in another hash slot.
fn rules(policy: &str, is_pair: bool) -> String {
    let flooded =
        format!("Flooded: {{ by: global, burst: {BURST}, count: {A_SECOND}, period: 1s, on_store_error: {policy} }}");
    let beside = format!("Beside: {{ by: ip, burst: 100000, on_store_error: {policy} }}");
    format!("limits: {{ {flooded}{} }}", if is_pair { format!(", {beside}") } else { String::new() })
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
    let asking = async {
        let mut clients = Vec::new();
        for _ in 0..connections {
            let socket = TcpStream::connect(weir.proxy).await.unwrap();
            let (client, connection) = h2::client::handshake(socket).await.unwrap();
            tokio::spawn(connection);
            clients.push(client);
        }
        let mut answers = JoinSet::new();
        for number in 0..streams {
            let request = http::Request::get("http://a.example/").body(()).unwrap();
            let client = &mut clients[number % connections];
            let (answer, _) = client.send_request(request, true).unwrap();
            answers.spawn(async move { answer.await.unwrap().status().as_u16() });
        }
        answers.join_all().await
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let answers = runtime.block_on(asking);
    let counts = [200, 429, 503].map(|status| answers.iter().filter(|answer| **answer == status).count() as u64);
    assert_eq!(counts.iter().sum::<u64>(), streams as u64, "other statuses among {answers:?}");
    counts
}

/// Floods the limit under each policy, with and without another limit beside it. `empty` empties the buckets.
fn flood(topology: &str, url: &str, empty: impl Fn()) {
    for (policy, is_pair) in ["allow", "deny", "local"].into_iter().flat_map(|policy| [(policy, false), (policy, true)])
    {
        empty();
        let case = format!("{topology}, {policy}, {} limits", 1 + u8::from(is_pair));
        let weir = serve(&rules(policy, is_pair), url, &[]);
        let start = Instant::now();
        let mut sum = [0; 3];
        for _ in 0..3 {
            let statuses = burst(&weir, STREAMS, CONNECTIONS);
            sum = [sum[0] + statuses[0], sum[1] + statuses[1], sum[2] + statuses[2]];
        }
        let most = BURST + A_SECOND * (start.elapsed().as_secs() + 1);
        let errors =
            ["down", "late", "broken"].map(|kind| weir.metric(&format!("weir_store_errors_total{{kind=\"{kind}\"}}")));
        assert!((BURST..=most).contains(&sum[0]), "{case}: {sum:?} pass, {most} may; errors: {errors:?}");
        assert_eq!((sum.iter().sum::<u64>(), errors), (3 * STREAMS as u64, [0; 3]), "{case}: {sum:?}");
        assert_eq!(weir.metric("weir_decisions_total{limit=\"Flooded\",result=\"rejected\"}"), sum[2], "{case}");
    }
}

#[test]
fn a_burst_passes_what_its_limit_allows_whatever_the_policy() {
    let redis = RedisServer::plain();
    flood("a server", &redis.url(), || drop(redis.cli(&["FLUSHALL"])));
}

#[test]
fn a_burst_passes_what_its_limit_allows_in_a_cluster() {
    let cluster = RedisCluster::start(3, 0);
    flood("a cluster", &cluster.url(), || cluster.nodes.iter().for_each(|node| drop(node.cli(&["FLUSHALL"]))));
}

#[test]
fn what_finds_no_room_in_the_queue_is_turned_away_under_every_policy() {
    for policy in ["allow", "deny", "local"] {
        let redis = RedisServer::plain();
        // Nothing leaves the queue during the test.
        let weir = serve(&rules(policy, false), &redis.url(), &["--store-queue", "10"]);
        redis.freeze();
        let statuses = thread::scope(|scope| {
            let flood = scope.spawn(|| burst(&weir, 200, 2));
            becomes("190 are turned away", 190, || {
                weir.metric("weir_decisions_total{limit=\"Flooded\",result=\"rejected\"}")
            });
            let rejected = weir.get("/", &[]);
            assert_eq!((rejected.status(), rejected.header("retry-after")), (503, Some("1")), "{policy}");
            assert!(rejected.text().contains("Too many requests are waiting"), "{}", rejected.text());
            redis.thaw();
            flood.join().unwrap()
        });
        assert_eq!(statuses, [10, 0, 190], "{policy}");
        assert_eq!(weir.metric("weir_store_errors_total{kind=\"busy\"}"), 191, "{policy}");
        weir.until_logged("rejecting requests: too many requests are waiting for the store");
    }
}
