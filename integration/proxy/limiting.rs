//! Limits as clients see them.

use sfv::{BareItem, Item, List, ListEntry, Parser};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use weir::clock::Clock;
use weir::store::Store;

use crate::support::PATIENCE;
use crate::support::server::{Setup, WIDE, Weir};
use crate::support::upstream::{Upstream, ok};
use crate::support::wire::{Message, Wire};

const FIVE: &str = "limits: { Five: { burst: 5, count: 5, period: 1h } }";

/// A header's value, read by another parser of structured fields.
#[track_caller]
fn members(response: &Message, name: &str) -> Vec<Item> {
    let list: List = Parser::new(&response.all(name).join(", ")).parse().unwrap();
    let item = |entry| match entry {
        ListEntry::Item(item) => item,
        ListEntry::InnerList(list) => panic!("{list:?}"),
    };
    list.into_iter().map(item).collect()
}

#[track_caller]
fn check_member(item: &Item, name: &str, parameters: &[(&str, std::ops::RangeInclusive<i64>)]) {
    assert_eq!(item.bare_item.as_string().map(sfv::StringRef::as_str), Some(name));
    assert_eq!(item.params.len(), parameters.len(), "{item:?}");
    for (key, range) in parameters {
        let Some(BareItem::Integer(value)) = item.params.get(*key) else { panic!("{key} of {item:?}") };
        let value = i64::from(*value);
        assert!(range.contains(&value), "{key}={value} is not in {range:?}");
    }
}

fn weir(rules: &str, upstream: &Upstream) -> Weir {
    Setup::new(rules).start(&format!("http://{}", upstream.address))
}

#[test]
fn the_client_is_told_where_it_stands() {
    let upstream = Upstream::answering(|_| {
        "HTTP/1.1 200 OK\r\nratelimit-policy: \"theirs\";q=9;w=60\r\nratelimit: \"theirs\";r=8\r\ncontent-length: 0\r\n\r\n"
            .to_owned()
    });
    let weir = weir(FIVE, &upstream);
    let mut client = weir.connect();
    for left in (0..5).rev() {
        let response = client.get("/");
        assert_eq!(response.status(), 200);
        let (policies, states) = (members(&response, "ratelimit-policy"), members(&response, "ratelimit"));
        check_member(&policies[0], "theirs", &[("q", 9..=9), ("w", 60..=60)]);
        check_member(&policies[1], "Five", &[("q", 5..=5), ("w", 3600..=3600)]);
        check_member(&states[0], "theirs", &[("r", 8..=8)]);
        check_member(&states[1], "Five", &[("r", left..=left), ("t", 700..=3600)]);
    }
    let denial = client.get("/");
    assert_eq!(denial.status(), 429);
    assert_eq!(denial.header("content-type"), Some("application/problem+json"));
    assert_eq!(denial.header("retry-after"), Some("720"));
    check_member(&members(&denial, "ratelimit")[0], "Five", &[("r", 0..=0), ("t", 720..=720)]);
    let problem: serde_json::Value = serde_json::from_str(denial.text()).unwrap();
    assert_eq!(problem["violated-policies"], serde_json::json!(["Five"]));
    assert_eq!(client.get("/").status(), 429, "the connection stays");
    assert_eq!(upstream.requests().len(), 5, "denied requests do not reach the upstream");
    assert_eq!(weir.metric("weir_http_requests_total{code=\"429\",listener=\"proxy\"}"), 2);
    assert_eq!(weir.metric("weir_decisions_total{limit=\"Five\",result=\"denied\"}"), 2);
}

#[test]
fn a_denial_reads_alike_whoever_was_denied_before() {
    let upstream = Upstream::saying("hello");
    let weir = weir("limits: { None: { deny: true } }", &upstream);
    let first = weir.connect().get("/");
    let length = first.header("content-length").map(ToOwned::to_owned);
    assert_eq!((first.status(), length), (429, Some(first.body.len().to_string())));
    let mut client = weir.connect();
    for (method, version, connection) in
        [("HEAD", "1.1", None), ("GET", "1.0", Some("keep-alive")), ("HEAD", "1.1", None), ("GET", "1.1", None)]
    {
        client.send(format!("{method} / HTTP/{version}\r\nhost: a\r\nconnection: keep-alive\r\n\r\n"));
        let mut given = client.head().unwrap();
        if method == "GET" {
            client.body(&mut given, false);
            assert_eq!(given.text(), first.text(), "{method} by {version}");
        }
        assert_eq!((&given.start, given.header("connection")), (&first.start, connection), "{method} by {version}");
        assert!(given.header("date").is_some());
        let others = |message: &Message| {
            let others = message.headers.iter().filter(|(name, _)| name != "date" && name != "connection");
            others.cloned().collect::<Vec<_>>()
        };
        assert_eq!(others(&given), others(&first), "{method} by {version}");
    }
}

#[test]
fn a_grpc_request_is_denied_in_its_own_words() {
    let upstream = Upstream::saying("hello");
    let weir = weir("limits: { None: { deny: true } }", &upstream);
    let mut client = weir.connect();
    client.send(
        "POST /s/m HTTP/1.1\r\nhost: a\r\ncontent-type: application/grpc+proto\r\ncontent-length: 5\r\n\r\nhello",
    );
    let response = client.response();
    assert_eq!((response.status(), response.header("grpc-status"), response.text()), (200, Some("8"), ""));
}

#[test]
fn a_cost_that_is_not_a_number_is_denied_and_costs_nothing() {
    let upstream = Upstream::saying("hello");
    let weir = weir("limits: { Costly: { cost: { header: x-cost }, burst: 3 } }", &upstream);
    let mut client = weir.connect();
    client.send("GET / HTTP/1.1\r\nhost: a\r\nx-cost: many\r\n\r\n");
    let response = client.response();
    assert_eq!((response.status(), response.header("retry-after")), (429, None));
    assert!(response.text().contains("Costly"), "{}", response.text());
    client.send("GET / HTTP/1.1\r\nhost: a\r\nx-cost: 3\r\n\r\n");
    assert_eq!(client.response().status(), 200);
}

#[test]
fn a_denied_client_that_waits_to_send_its_body_never_sends_it() {
    let upstream = Upstream::saying("hello");
    let weir = weir("limits: { One: { burst: 1 } }", &upstream);
    let request = "POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n";
    let mut client = weir.connect();
    client.send(request);
    assert_eq!(client.head().unwrap().start, "HTTP/1.1 100 Continue");
    client.send("abc");
    assert_eq!(client.response().text(), "hello");
    assert_eq!(upstream.requests()[0].header("expect"), None);
    client.send(request);
    let response = client.response();
    assert_eq!((response.status(), response.header("connection")), (429, Some("close")));
    client.expect_end();
}

#[test]
fn a_denied_clients_body_is_not_taken_for_its_next_request() {
    let upstream = Upstream::saying("hello");
    let weir = weir("limits: { None: { deny: true } }", &upstream);
    let mut client = weir.connect();
    // The body is complete, so the connection stays open.
    for _ in 0..2 {
        client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 14\r\n\r\nGET / HTTP/1.1");
        let response = client.response();
        assert_eq!((response.status(), response.header("connection")), (429, None));
    }
    // The rest may not come: the connection ends after the client could read why.
    client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\nGET / HTTP/1.1");
    let piece = [b'x'; 10_000];
    for _ in 0..50 {
        client.send(piece);
    }
    let response = client.response();
    assert_eq!((response.status(), response.header("connection")), (429, Some("close")));
    client.expect_end();
}

#[test]
fn a_request_is_charged_once_whatever_becomes_of_it() {
    // The first connection is closed after its answer, so the second request takes another one.
    let (upstream, ended) = Upstream::closing(|number| (number < 2).then(|| ok("")));
    let weir = weir("limits: { Ten: { burst: 10 } }", &upstream);
    let mut client = weir.connect();
    for (left, status) in [(9, 200), (8, 200), (7, 502)] {
        let response = client.get("/");
        assert_eq!(response.status(), status);
        check_member(&members(&response, "ratelimit")[0], "Ten", &[("r", left..=left)]);
        ended.recv_timeout(PATIENCE).unwrap();
    }
}

#[test]
fn many_connections_on_two_workers_share_one_bucket_exactly() {
    let upstream = Upstream::saying("");
    let mut setup = Setup::new("limits: { Thousand: { by: global, burst: 1000 } }");
    setup.workers = 2;
    let weir = setup.start("echo");
    drop(upstream);
    let passed = Arc::new(AtomicUsize::new(0));
    let clients: Vec<_> = (0..64)
        .map(|_| {
            let (passed, mut client) = (passed.clone(), weir.connect());
            std::thread::spawn(move || {
                for _ in 0..25 {
                    match client.get("/").status() {
                        200 => passed.fetch_add(1, Ordering::Relaxed),
                        429 => 0,
                        other => panic!("{other}"),
                    };
                }
            })
        })
        .collect();
    for client in clients {
        client.join().unwrap();
    }
    assert_eq!(passed.load(Ordering::Relaxed), 1000);
    assert_eq!(weir.metric("weir_http_requests_total{code=\"2xx\",listener=\"proxy\"}"), 1000);
    assert_eq!(weir.metric("weir_http_requests_total{code=\"429\",listener=\"proxy\"}"), 600);
}

#[test]
fn idle_time_banks_no_more_than_the_burst() {
    for burst in [10, 20, 100] {
        for pause_seconds in [0, 1, 59, 3600, 1_000_000] {
            let clock = Arc::new(AtomicU64::new(1_800_000_000_000_000));
            let mut setup = Setup::new(&format!("limits: {{ L: {{ burst: {burst}, count: {burst}, period: 1m }} }}"));
            setup.clock = Clock::Set(clock.clone());
            let weir = setup.start("echo");
            let mut client = weir.connect();
            assert_eq!(client.get("/").status(), 200);
            clock.fetch_add(pause_seconds * 1_000_000, Ordering::Relaxed);
            let passed = (0..burst * 10).filter(|_| client.get("/").status() == 200).count();
            let refilled = usize::try_from(pause_seconds).unwrap() * burst / 60;
            let expected = (burst - 1 + refilled).min(burst);
            assert_eq!(passed, expected, "burst {burst} after {pause_seconds} s");
        }
    }
}

/// New ids of one limit make the store sweep, while the bucket of the other is full again each second and stands beside theirs.
#[test]
fn a_limit_counts_every_request_beside_one_with_ever_new_ids() {
    const RULES: &str = "limits:
  PerKey: { by: { header: x-key }, count: 5, period: 1s }
  Once: { by: { header: x-account }, count: 1, period: 1s }";
    let clock = Arc::new(AtomicU64::new(1_800_000_000_000_000));
    let memory = Arc::new(weir::store::memory::MemoryStore::new(1_000));
    let mut setup = Setup::new(RULES);
    setup.clock = Clock::Set(clock.clone());
    setup.store = Some(Arc::new(move || Ok(Store::Memory(memory.clone()))));
    let weir = setup.start("echo");
    let mut client = weir.connect();
    let passed = (0..4_000).filter(|key| {
        let response = client.get_with("/", &[("x-key", &format!("{key}")), ("x-account", "a")]);
        clock.fetch_add(10_000, Ordering::Relaxed);
        response.status() == 200
    });
    assert_eq!(passed.count(), 40, "one a second for 40 s");
}

#[test]
fn connections_are_spread_over_the_workers() {
    let stores = Arc::new(AtomicUsize::new(0));
    let mut setup = Setup::new(WIDE);
    setup.workers = 4;
    let made = stores.clone();
    let memory = Arc::new(weir::store::memory::MemoryStore::new(1_000));
    setup.store = Some(Arc::new(move || {
        made.fetch_add(1, Ordering::Relaxed);
        Ok(Store::Memory(memory.clone()))
    }));
    let weir = setup.start("echo");
    assert_eq!(stores.load(Ordering::Relaxed), 5, "each worker has a store of its own, and so has the operator");
    let clients: Vec<Wire> = (0..64).map(|_| weir.connect()).collect();
    for mut client in clients {
        assert_eq!(client.get("/").status(), 200);
    }
}

#[test]
fn the_built_in_upstream_says_what_it_received() {
    let weir = Setup::new(WIDE).start("echo");
    let mut client = weir.connect();
    client.send("POST /a?b HTTP/1.1\r\nhost: a\r\nx-y: z\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n");
    let response = client.response();
    let echo: serde_json::Value = serde_json::from_str(response.text()).unwrap();
    assert_eq!((&echo["method"], &echo["target"], &echo["body_bytes"]), (&"POST".into(), &"/a?b".into(), &3.into()));
    assert!(echo["headers"].as_array().unwrap().contains(&serde_json::json!(["x-y", "z"])), "{echo}");
}
