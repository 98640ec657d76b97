//! Clients that leave early, upstreams that do not answer, and a lost store.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use super::{ALGORITHMS, answering, at, left, on_both, on_redis, settled, settles, setup, start, tokens};
use crate::support::frames::{DATA, END_HEADERS, END_STREAM, Frames, HEADERS, RST_STREAM, frame, request};
use crate::support::injector::{Injector, Trouble};
use crate::support::process::free_port;
use crate::support::redis::RedisServer;
use crate::support::server::Weir;
use crate::support::upstream::Upstream;
use crate::support::{becomes, eventually};

/// An upstream whose responses the test decides.
pub(super) struct Held {
    pub(super) upstream: Upstream,
    say: Sender<String>,
    arrived: Arc<AtomicU64>,
}

impl Held {
    pub(super) fn start() -> Self {
        let ((say, said), arrived) = (channel::<String>(), Arc::<AtomicU64>::default());
        let (said, seen) = (parking_lot::Mutex::new(said), arrived.clone());
        let upstream = Upstream::start(move |wire, _| {
            while wire.head().is_some() {
                seen.fetch_add(1, Ordering::Relaxed);
                let Ok(answer) = said.lock().recv() else { return };
                // The client may have gone.
                let _ = wire.stream.write_all(answer.as_bytes());
            }
        });
        Self { upstream, say, arrived }
    }

    /// Waits for a request, which gets no answer until [`Self::answer`].
    #[track_caller]
    pub(super) fn has_one(&self) {
        self.has(1);
    }

    /// Waits for this many requests.
    #[track_caller]
    fn has(&self, count: u64) {
        becomes("the requests have arrived", count, || self.arrived.load(Ordering::Relaxed));
        self.arrived.store(0, Ordering::Relaxed);
    }

    pub(super) fn answer(&self, tokens: u64) {
        let body = "content-length: 5\r\n\r\nhello";
        self.say.send(format!("HTTP/1.1 200 OK\r\nx-tokens-used: {tokens}\r\n{body}")).unwrap();
    }
}

/// Waits until the proxy has noticed that its only client is gone.
#[track_caller]
fn is_alone(weir: &Weir) {
    becomes("the client is gone", 0, || weir.metric("weir_http_requests_in_flight"));
}

#[test]
fn a_client_that_does_not_wait_pays_all_the_same() {
    for numbers in ALGORITHMS {
        let held = Held::start();
        on_both(&tokens(numbers), &held.upstream, |weir| {
            let mut client = weir.connect();
            client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
            held.has_one();
            drop(client);
            is_alone(weir);
            assert_eq!(left(weir, "Tokens"), 90, "nothing is settled yet");
            held.answer(33);
            settles(weir, "Tokens", 67);

            let mut client = Frames::connect(weir.proxy);
            client.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, &request("GET", "/", &[])));
            held.has_one();
            client.send(frame(RST_STREAM, 0, 1, &8u32.to_be_bytes()));
            is_alone(weir);
            held.answer(7);
            settles(weir, "Tokens", 60);
        });
    }
}

/// All keys of a server with their values.
fn content(server: &RedisServer) -> String {
    server.cli(&[
        "EVAL",
        "local all = redis.call('KEYS', '*')
        for place, key in ipairs(all) do
          local is_list = redis.call('TYPE', key).ok == 'list'
          all[place] = key .. ' ' .. (is_list and table.concat(redis.call('LRANGE', key, 0, -1), ' ') or redis.call('GET', key))
        end
        table.sort(all)
        return table.concat(all, '; ')",
        "0",
    ])
}

/// Sends a request whose client leaves while Redis decides, and returns whether what it has taken is back. It is not if Redis was
/// faster than the client's end, or if its connection was given up meanwhile: then nobody knows what it has decided.
#[track_caller]
fn abandon(weir: &Weir, server: &RedisServer, is_http2: bool) -> bool {
    let writes = || ["set", "rpush", "ltrim"].map(|command| server.calls(command)).iter().sum::<u64>();
    let (before, written) = (content(server), writes());
    server.freeze();
    let (mut client, mut frames) = (weir.connect(), Frames::connect(weir.proxy));
    if is_http2 {
        frames.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, &request("GET", "/header/10", &[])));
        becomes("the request has come", 1, || weir.metric("weir_http_requests_in_flight"));
        frames.send(frame(RST_STREAM, 0, 1, &8u32.to_be_bytes()));
    } else {
        client.send("GET /header/10 HTTP/1.1\r\nhost: a\r\n\r\n");
        becomes("the request has come", 1, || weir.metric("weir_http_requests_in_flight"));
        drop(client);
        is_alone(weir);
    }
    server.thaw();
    // The charge and the refund.
    (0..200).any(|_| writes() >= written + 2 && content(server) == before)
}

#[test]
fn a_client_that_leaves_while_redis_decides_gets_back_what_it_has_reserved() {
    let server = RedisServer::plain();
    for rules in ALGORITHMS.map(tokens) {
        server.cli(&["FLUSHALL"]);
        let upstream = answering();
        let weir = start(on_redis(&rules, &server), &upstream);
        assert_eq!(weir.connect().get("/header/10").status(), 200);
        for is_http2 in [false, true] {
            assert!(
                (0..5).any(|_| abandon(&weir, &server, is_http2)),
                "{rules}, HTTP/2: {is_http2}: {}",
                content(&server)
            );
        }
    }
}

/// A limit that reserves, and one that counts only some answers. A settlement is dated by the time that has passed since its request,
/// so nothing must refill within the seconds that a busy machine takes.
const BOTH: &str = "limits:\n  Tokens: { by: global, count: 10000, period: 365d, cost_from_response: { header: x-tokens-used }, reserve: 10 }\n  \
     Logins: { by: global, count: 1000, period: 365d, spend_when: { status: 401 } }\n";

#[test]
fn a_client_that_cuts_its_body_short_pays_for_what_was_sent() {
    let held = Held::start();
    on_both(BOTH, &held.upstream, |weir| {
        let mut client = Frames::connect(weir.proxy);
        client.send(frame(HEADERS, END_HEADERS, 1, &request("POST", "/", &[("content-length", "2")])));
        client.send(frame(DATA, 0, 1, b"hi"));
        held.has_one();
        client.send(frame(RST_STREAM, 0, 1, &8u32.to_be_bytes()));
        settles(weir, "Logins", 999);

        let mut client = weir.connect();
        client.send("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n");
        held.has_one();
        drop(client);
        settles(weir, "Logins", 998);
        assert_eq!(left(weir, "Tokens"), 9_980);
        assert_eq!(["Tokens", "Logins"].map(|limit| settled(weir, limit, "unanswered")), [2, 2]);
    });
}

#[test]
fn more_clients_than_can_be_waited_for_pay_at_once() {
    const CLIENTS: u64 = 200;
    let held = Held::start();
    on_both(BOTH, &held.upstream, |weir| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| weir.connect()).collect();
        for client in &clients {
            (&client.stream).write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
        }
        held.has(CLIENTS);
        drop(clients);
        is_alone(weir);
        for _ in 0..CLIENTS {
            held.say.send("HTTP/1.1 401 No\r\nx-tokens-used: 10\r\ncontent-length: 0\r\n\r\n".to_owned()).unwrap();
        }
        settles(weir, "Logins", 1_000 - CLIENTS);
        assert_eq!(left(weir, "Tokens"), 10_000 - 10 * CLIENTS);
        let unanswered = settled(weir, "Logins", "unanswered");
        assert!((CLIENTS - 128..CLIENTS).contains(&unanswered), "{unanswered} of {CLIENTS}");
    });
}

#[test]
fn a_body_that_nobody_reads_to_its_end_changes_nothing() {
    // It continues until nobody listens.
    let upstream = Upstream::start(|wire, _| {
        let Some(request) = wire.request() else { return };
        let header = if request.start.contains("/header") { "x-tokens-used: 20" } else { "trailer: x-tokens-used" };
        wire.send(format!("HTTP/1.1 200 OK\r\n{header}\r\ntransfer-encoding: chunked\r\n\r\n"));
        while wire.stream.write_all(b"2\r\nhi\r\n").is_ok() {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    on_both(&tokens(ALGORITHMS[0]), &upstream, |weir| {
        for (path, then) in [("/header", 80), ("/trailer", 70)] {
            let mut client = weir.connect();
            client.send(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n"));
            assert_eq!(client.head().unwrap().status(), 200);
            settles(weir, "Tokens", then);
            drop(client);
        }
        becomes("the trailers never come", 1, || settled(weir, "Tokens", "absent"));
        assert_eq!(left(weir, "Tokens"), 70);
    });
}

#[test]
fn what_was_sent_and_not_answered_costs_the_reserve_and_what_was_not_sent_costs_nothing() {
    let closing = Upstream::start(|wire, _| drop(wire.request()));
    on_both(BOTH, &closing, |weir| {
        assert_eq!(weir.connect().get("/").status(), 502);
        settles(weir, "Logins", 999);
        assert_eq!(left(weir, "Tokens"), 9_990);
        assert_eq!(["Tokens", "Logins"].map(|limit| settled(weir, limit, "unanswered")), [1, 1]);
    });
    let gone = free_port();
    let server = RedisServer::plain();
    for setup in [setup(BOTH), on_redis(BOTH, &server)] {
        // Nothing listens on the first; this test answers the others.
        let weir = setup.start(&format!("a.example=http://127.0.0.1:{gone}"));
        becomes("the store is connected", 1, || weir.metric("weir_store_connections"));
        let mut client = weir.connect();
        for (request, status) in [
            ("GET / HTTP/1.1\r\nhost: a.example", 502),
            ("GET / HTTP/1.1\r\nhost: b.example", 404),
            ("OPTIONS / HTTP/1.1\r\nhost: a.example\r\nmax-forwards: 0", 204),
        ] {
            client.send(format!("{request}\r\n\r\n"));
            assert_eq!(client.response().status(), status, "{request}");
        }
        settles(&weir, "Tokens", 10_000);
        assert_eq!((left(&weir, "Logins"), settled(&weir, "Tokens", "refunded")), (1_000, 3));
    }
}

#[test]
fn a_request_that_is_sent_twice_is_settled_once() {
    // The first connection is closed after its answer, so the third request takes another one.
    let upstream = Upstream::start(|wire, _| {
        wire.request();
        wire.send("HTTP/1.1 200 OK\r\nx-tokens-used: 15\r\ncontent-length: 0\r\n\r\n");
        wire.request();
    });
    on_both(&tokens(ALGORITHMS[0]), &upstream, |weir| {
        let mut client = weir.connect();
        for then in [85, 70] {
            assert_eq!(client.get("/").status(), 200);
            settles(weir, "Tokens", then);
        }
        assert_eq!((settled(weir, "Tokens", "charged"), weir.metric("weir_upstream_retries_total")), (2, 1));
    });
}

#[test]
fn what_was_charged_locally_is_settled_there() {
    let upstream = answering();
    let mut server = RedisServer::plain();
    let rules = tokens("count: 100, period: 1h, on_store_error: local");
    let weir = start(on_redis(&rules, &server), &upstream);
    server.kill();
    eventually("Redis is missed", || {
        weir.connect().get("/header/10");
        let errors = weir.metric("weir_store_errors_total{kind=\"down\"}");
        if errors > 0 { Ok(()) } else { Err(errors) }
    });
    let mut client = weir.connect();
    let response = client.get("/header/60");
    assert_eq!(response.status(), 200);
    assert_eq!(client.get("/header/0").status(), 200, "some thirty are left, whatever came before");
    assert_eq!(client.get("/header/60").status(), 200);
    assert_eq!(client.get("/header/0").status(), 429);
    assert_eq!(settled(&weir, "Tokens", "failed"), 0);
}

#[test]
fn a_settlement_that_redis_does_not_take_is_counted() {
    let (held, mut server) = (Held::start(), RedisServer::plain());
    let weir = start(on_redis(&tokens(ALGORITHMS[0]), &server), &held.upstream);
    let mut client = weir.connect();
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    held.has_one();
    server.kill();
    becomes("Redis is missed", 0, || weir.metric("weir_store_connections"));
    held.answer(33);
    assert_eq!(client.response().status(), 200, "the client does not wait for it");
    becomes("the failure", 1, || settled(&weir, "Tokens", "failed"));
    assert_eq!(lost(&weir, "settlement"), 1);
}

/// The charges of a kind that were not made.
fn lost(weir: &Weir, kind: &str) -> u64 {
    weir.metric(&format!("weir_store_reports_dropped_total{{kind=\"{kind}\"}}"))
}

#[test]
fn what_redis_has_no_memory_to_give_back_is_counted() {
    let (upstream, server) = (answering(), RedisServer::plain());
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    let injector = Injector::to(&server.address());
    let url = format!("redis://{}", injector.address);
    let weir = start(at(&url, setup(&tokens(ALGORITHMS[0]))), &upstream);
    // A bucket that a refund makes full is deleted, which needs no memory.
    assert_eq!(weir.connect().get("/header/10").status(), 200);
    eventually("a refund is lost", || {
        let (charged, settlements) = (server.calls("set"), lost(&weir, "settlement"));
        injector.set(Trouble::Delay(Duration::from_secs(1)));
        let mut client = weir.connect();
        client.send("GET /header/10 HTTP/1.1\r\nhost: a\r\n\r\n");
        becomes("it is charged", true, || server.calls("set") > charged);
        server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
        drop(client);
        is_alone(&weir);
        injector.set(Trouble::None);
        // If the reply was there before the client was gone, the request is settled instead.
        becomes("one is lost", true, || lost(&weir, "refund") + lost(&weir, "settlement") > settlements);
        server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
        if lost(&weir, "refund") == 1 { Ok(()) } else { Err(lost(&weir, "settlement")) }
    });
}

#[test]
fn a_drain_waits_for_what_is_to_be_settled() {
    let held = Held::start();
    let weir = start(setup(&tokens(ALGORITHMS[0])), &held.upstream);
    let mut client = weir.connect();
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    held.has_one();
    drop(client);
    is_alone(&weir);
    let shared = weir.shared.clone();
    weir.stop();
    held.answer(33);
    weir.join();
    let text = String::from_utf8(shared.metrics().render().unwrap()).unwrap();
    assert!(text.contains("weir_settlements_total{limit=\"Tokens\",result=\"charged\"} 1"), "{text}");
}
