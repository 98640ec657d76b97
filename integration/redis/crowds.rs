//! More requests than a worker or its server can serve, through the proxy: they are denied or rejected, and no limit is
//! switched off. `faults` floods all combinations of limits beside a steady load.

use std::thread;
use std::time::Duration;

use crate::support::becomes;
use crate::support::crowd::ask_at_once;
use crate::support::injector::{Injector, Trouble};
use crate::support::redis::RedisServer;
use crate::support::weir::Weir;

fn serve(rules: &str, url: &str, more: &[&str]) -> Weir {
    // All streams come from one address.
    let streams = ["--streams-per-address", "4096"];
    let flags = [&["--workers", "1", "--store", url], &streams[..], more].concat();
    let weir = Weir::serve(rules, &flags);
    becomes("the store is connected", 1, || weir.metric("weir_store_connections"));
    weir
}

/// Sends requests with these ids at once and returns the statuses of the answers.
fn statuses(weir: &Weir, ids: &[String]) -> Vec<u16> {
    let request = |id| http::Request::get("http://a.example/").header("x-id", id).body(()).unwrap();
    let answers = ask_at_once(weir.proxy, ids.iter().map(request).collect());
    let statuses: Vec<u16> = answers.iter().map(|answer| answer.head.status().as_u16()).collect();
    assert!(statuses.iter().all(|status| [200, 429, 503].contains(status)), "other statuses among {statuses:?}");
    statuses
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
            let flood = scope.spawn(|| statuses(&weir, &(0..200).map(|id| format!("id{id}")).collect::<Vec<_>>()));
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
    injector.set(Trouble::Delay(Duration::from_millis(100)));
    let weir = serve(&limits, &format!("redis://{}", injector.address), &["--store-timeout", "800ms"]);
    let flood = std::iter::repeat_n(String::from("flood"), 2_000);
    let ids: Vec<String> = flood.chain((0..40).map(|id| format!("other{id}"))).collect();
    let statuses = statuses(&weir, &ids);
    assert_eq!(statuses[2_000..], [200; 40], "of {statuses:?}");
}
