//! Requests in flight: each holds its slot exactly until it ends, however it ends.

use std::io::Read;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use parking_lot::Mutex;
use weir::clock::Clock;
use weir::http::{Routes, Timeouts, UpstreamOptions};
use weir::server::MakeStore;
use weir::store::Store;
use weir::store::memory::MemoryStore;
use weir::store::redis::{RedisOptions, RedisStore};

use crate::support::frames::{DATA, END_HEADERS, Frames, HEADERS, RST_STREAM, frame, request};
use crate::support::injector::{Injector, Trouble};
use crate::support::redis::{RedisServer, STORE_TIMEOUT};
use crate::support::server::{Setup, Weir};
use crate::support::upstream::{Upstream, ok};
use crate::support::wire::Wire;
use crate::support::{NEVER, becomes, eventually};

/// One request at a time, with leases longer than any test.
const ONE: &str = "limits: { One: { algorithm: concurrency, capacity: 1, by: global } }";

/// The bucket's key.
const KEY: &str = "weir:{0}:One#slots";

/// A proxy, its upstream, and the signal for it.
struct Stage {
    weir: Weir,
    upstream: Upstream,
    go: mpsc::Sender<()>,
    redis: Option<RedisServer>,
}

/// Answers by path: at once, on the signal, in halves, or never.
fn upstream() -> (Upstream, mpsc::Sender<()>) {
    let (go, told) = mpsc::channel::<()>();
    let told = Mutex::new(told);
    let upstream = Upstream::start(move |wire, _| {
        while let Some(head) = wire.head() {
            let path = head.start.split(' ').nth(1).unwrap().to_owned();
            let wait = || {
                let _ = told.lock().recv();
            };
            match path.as_str() {
                "/now" | "/few" => wire.send(ok("now")),
                "/wait" => {
                    wait();
                    let body = if head.start.starts_with("HEAD") { "" } else { "0123456789" };
                    wire.send(format!("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n{body}"));
                }
                "/gone" => return wait(),
                "/half-gone" => {
                    wire.send("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n01234");
                    return wait();
                }
                "/half" => {
                    wire.send("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n01234");
                    return wire.expect_end();
                }
                "/upgrade" => {
                    wire.send("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n");
                    return wire.expect_end();
                }
                "/upgrade-gone" => {
                    wire.send("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n");
                    return wait();
                }
                "/upload" => return drop(wire.stream.read_to_end(&mut Vec::new())),
                _ => return wire.expect_end(),
            }
        }
    });
    (upstream, go)
}

/// A store on the test's own Redis.
fn on_redis(server: &RedisServer, timeout: Duration) -> MakeStore {
    let target = RedisOptions { timeout, ..RedisOptions::new(server.url(), Clock::machine()) }.target().unwrap();
    Arc::new(move || Ok(Store::Redis(RedisStore::connect(&target))))
}

/// A proxy with two workers and its buckets in memory or in Redis.
fn with_store(mut setup: Setup, is_redis: bool, upstream: UpstreamOptions) -> (Weir, Option<RedisServer>) {
    let redis = is_redis.then(RedisServer::plain);
    setup.workers = 2;
    if let Some(redis) = &redis {
        // A late answer on a busy machine would be an allowance.
        setup.store = Some(on_redis(redis, STORE_TIMEOUT));
    }
    let weir = setup.start_with(upstream);
    becomes("the stores are connected", 2, || weir.metric("weir_store_connections"));
    (weir, redis)
}

fn stage(setup: Setup, is_redis: bool) -> Stage {
    let (upstream, go) = upstream();
    let routes = Routes::parse(&[format!("http://{}", upstream.address)]).unwrap();
    let (weir, redis) = with_store(setup, is_redis, UpstreamOptions::new(routes));
    Stage { weir, upstream, go, redis }
}

impl Stage {
    /// Sends a request on a new connection.
    fn send(&self, method: &str, path: &str, rest: &str) -> Wire {
        let mut client = self.weir.connect();
        client.send(format!("{method} {path} HTTP/1.1\r\nhost: a.example\r\n{rest}\r\n"));
        client
    }

    fn go(&self) {
        self.go.send(()).unwrap();
    }

    /// Waits until exactly one slot is held.
    #[track_caller]
    fn is_held(&self, what: &str) {
        becomes(what, 1, || self.weir.metric("weir_slots_held"));
        let denial = self.weir.connect().get("/now");
        assert_eq!(denial.status(), 429, "{what}");
        assert_eq!(denial.header("retry-after"), Some("1"), "{what}");
        assert_eq!(denial.header("ratelimit"), Some("\"One\";r=0;t=1"), "{what}");
        assert_eq!(denial.header("ratelimit-policy"), Some("\"One\";q=1;qu=\"concurrent-requests\""), "{what}");
        assert!(denial.text().contains("One allows 1 at once; retry after 1 s"), "{what}: {}", denial.text());
    }

    /// Waits until no slot is held.
    #[track_caller]
    fn is_free(&self, what: &str) {
        self.holds_none(what);
        let passed = self.weir.connect().get("/now");
        assert_eq!(passed.status(), 200, "{what}");
        assert_eq!(passed.header("ratelimit"), Some("\"One\";r=0;t=1"), "{what}");
        self.holds_none(what);
    }

    /// Waits until no slot is held, not even by the request that asks.
    #[track_caller]
    fn holds_none(&self, what: &str) {
        becomes(what, 0, || self.weir.metric("weir_slots_held"));
        if let Some(redis) = &self.redis {
            becomes(what, 0, || redis.cli(&["EXISTS", KEY]).parse().unwrap());
        }
    }

    /// Starts a request, sees its slot, ends it and sees the slot come back.
    #[track_caller]
    fn check(&self, what: &str, begin: Begin) {
        let end = begin(self);
        self.is_held(what);
        end(self);
        self.is_free(what);
    }
}

/// Starts a request that its answer ends.
type Begin = fn(&Stage) -> Box<dyn FnOnce(&Stage)>;

const UPGRADE: &str = "connection: upgrade\r\nupgrade: x\r\n";

/// The ways in which a request ends.
const WAYS: [(&str, Begin); 14] = [
    ("it is answered", |stage| {
        let mut client = stage.send("GET", "/wait", "");
        Box::new(move |stage| {
            stage.go();
            assert_eq!(client.response().text(), "0123456789");
        })
    }),
    ("a HEAD is answered", |stage| {
        let mut client = stage.send("HEAD", "/wait", "");
        Box::new(move |stage| {
            stage.go();
            assert_eq!(client.head().unwrap().status(), 200);
        })
    }),
    ("the client goes before there is an answer", |stage| {
        let client = stage.send("GET", "/silent", "");
        Box::new(move |_| drop(client))
    }),
    ("the client goes in the middle of the answer", |stage| {
        let mut client = stage.send("GET", "/half", "");
        client.head().unwrap();
        Box::new(move |_| drop(client))
    }),
    ("the client goes in the middle of its upload", |stage| {
        let mut client = stage.send("POST", "/upload", "content-length: 10\r\n");
        client.send("012");
        Box::new(move |_| drop(client))
    }),
    ("the upstream goes before it answers", |stage| {
        let mut client = stage.send("POST", "/gone", "content-length: 0\r\n");
        Box::new(move |stage| {
            stage.go();
            assert_eq!(client.response().status(), 502);
        })
    }),
    ("the upstream goes in the middle of its answer", |stage| {
        let mut client = stage.send("GET", "/half-gone", "");
        client.head().unwrap();
        Box::new(move |stage| {
            stage.go();
            assert_eq!(client.exactly(5), b"01234");
            client.expect_end();
        })
    }),
    ("the client leaves its tunnel", |stage| {
        let mut client = stage.send("GET", "/upgrade", UPGRADE);
        assert_eq!(client.head().unwrap().status(), 101);
        Box::new(move |_| drop(client))
    }),
    ("the upstream leaves the tunnel", |stage| {
        let mut client = stage.send("GET", "/upgrade-gone", UPGRADE);
        assert_eq!(client.head().unwrap().status(), 101);
        Box::new(move |stage| {
            stage.go();
            client.expect_end();
            drop(client);
        })
    }),
    ("a stream is answered", |stage| {
        let mut client = Frames::connect(stage.weir.proxy);
        client.get(1, "/wait");
        Box::new(move |stage| {
            stage.go();
            let frames = client.stream(1);
            assert_eq!((frames[0].status(), &frames[1].payload[..]), (200, &b"0123456789"[..]));
        })
    }),
    ("a stream is reset before there is an answer", |stage| {
        let mut client = Frames::connect(stage.weir.proxy);
        client.get(1, "/silent");
        Box::new(move |stage| {
            client.send(frame(RST_STREAM, 0, 1, &[0, 0, 0, 8]));
            // The connection stays open, so its end does not return the slot.
            stage.is_free("a stream is reset");
            drop(client);
        })
    }),
    ("a stream is reset in the middle of the answer", |stage| {
        let mut client = Frames::connect(stage.weir.proxy);
        client.get(1, "/half");
        assert_eq!(client.next_of(HEADERS).status(), 200);
        Box::new(move |stage| {
            client.send(frame(RST_STREAM, 0, 1, &[0, 0, 0, 8]));
            stage.is_free("a stream is reset");
            drop(client);
        })
    }),
    ("a stream is reset in the middle of its upload", |stage| {
        let mut client = Frames::connect(stage.weir.proxy);
        client.send(frame(HEADERS, END_HEADERS, 1, &request("POST", "/upload", &[("content-length", "10")])));
        client.send(frame(DATA, 0, 1, b"012"));
        Box::new(move |stage| {
            client.send(frame(RST_STREAM, 0, 1, &[0, 0, 0, 8]));
            stage.is_free("a stream is reset");
            drop(client);
        })
    }),
    ("the connection of a stream is lost", |stage| {
        let mut client = Frames::connect(stage.weir.proxy);
        client.get(1, "/silent");
        Box::new(move |_| drop(client))
    }),
];

#[test]
fn a_slot_is_held_until_the_request_ends_however_it_does() {
    for is_redis in [false, true] {
        let stage = stage(Setup::new(ONE), is_redis);
        stage.is_free("nothing has begun");
        for (what, begin) in WAYS {
            stage.check(&format!("{what}, {}", if is_redis { "Redis" } else { "memory" }), begin);
        }
        assert!(stage.upstream.accepted() > 0);
        assert_eq!(stage.weir.metric("weir_decisions_total{limit=\"One\",result=\"error_allowed\"}"), 0);
    }
}

#[test]
fn a_slot_is_given_back_when_somebody_takes_too_long() {
    for is_redis in [false, true] {
        // Long enough to see the slot.
        let soon = Duration::from_secs(2);
        let timeouts =
            Timeouts { response: soon, body: soon, upstream_body: soon, tunnel: soon, ..Timeouts::default() };
        let stage = stage(Setup { timeouts, ..Setup::new(ONE) }, is_redis);
        stage.check("the upstream does not answer", |stage| {
            let mut client = stage.send("GET", "/silent", "");
            Box::new(move |_| assert_eq!(client.response().status(), 504))
        });
        stage.check("the upstream does not go on", |stage| {
            let mut client = stage.send("GET", "/half", "");
            client.head().unwrap();
            Box::new(move |_| {
                client.exactly(5);
                client.expect_end();
            })
        });
        stage.check("the client does not go on", |stage| {
            let mut client = stage.send("POST", "/upload", "content-length: 10\r\n");
            Box::new(move |_| assert_eq!(client.response().status(), 408))
        });
        stage.check("the tunnel is silent", |stage| {
            let mut client = stage.send("GET", "/upgrade", UPGRADE);
            client.head().unwrap();
            Box::new(move |_| client.expect_end())
        });
    }
}

#[test]
fn a_request_that_is_sent_twice_holds_one_slot() {
    for is_redis in [false, true] {
        let bad = Upstream::start(|wire, _| drop(wire.request()));
        let (good, go) = upstream();
        let urls = format!("http://{},http://{}", bad.address, good.address);
        let options = UpstreamOptions::new(Routes::parse(&[urls]).unwrap());
        let (weir, redis) = with_store(Setup { workers: 1, ..Setup::new(ONE) }, is_redis, options);
        let stage = Stage { weir, upstream: good, go, redis };
        stage.check("it was sent to another server", |stage| {
            let mut client = stage.send("GET", "/wait", "");
            becomes("it is sent again", 1, || stage.weir.metric("weir_upstream_retries_total"));
            Box::new(move |stage| {
                stage.go();
                assert_eq!(client.response().status(), 200);
            })
        });
        drop(bad);
    }
}

#[test]
fn who_is_denied_by_another_limit_holds_nothing_and_who_is_only_counted_passes() {
    let rules = "limits:\n  One: { algorithm: concurrency, capacity: 3, by: global }\n  \
                 Few: { match: { path: /few }, by: global, burst: 1 }\n  \
                 Shadow: { algorithm: concurrency, capacity: 1, by: global, mode: shadow }\n";
    for is_redis in [false, true] {
        let stage = stage(Setup::new(rules), is_redis);
        let mut client = stage.send("GET", "/wait", "");
        becomes("one of each is held", 2, || stage.weir.metric("weir_slots_held"));
        assert_eq!(stage.send("GET", "/few", "").response().status(), 200);
        for _ in 0..5 {
            assert_eq!(stage.send("GET", "/few", "").response().status(), 429);
        }
        becomes("only the first is held", 2, || stage.weir.metric("weir_slots_held"));
        if let Some(redis) = &stage.redis {
            becomes("only the first is held", 1, || redis.cli(&["ZCARD", KEY]).parse().unwrap());
        }
        assert_eq!(stage.weir.metric("weir_decisions_total{limit=\"Shadow\",result=\"shadow_denied\"}"), 6);
        stage.go();
        assert_eq!(client.response().status(), 200);
        becomes("nothing is held", 0, || stage.weir.metric("weir_slots_held"));
    }
}

#[test]
fn a_drain_gives_back_what_it_waits_for_and_what_it_cuts_off() {
    for (is_cut_off, is_redis) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut setup = Setup::new(ONE);
        setup.grace = if is_cut_off { Duration::from_millis(100) } else { NEVER };
        let Stage { weir, upstream, go, redis } = stage(setup, is_redis);
        let mut client = weir.connect();
        client.send("GET /wait HTTP/1.1\r\nhost: a\r\n\r\n");
        becomes("a slot is held", 1, || weir.metric("weir_slots_held"));
        if let Some(redis) = &redis {
            assert_eq!(redis.cli(&["ZCARD", KEY]), "1");
        }
        weir.stop();
        if !is_cut_off {
            go.send(()).unwrap();
            assert_eq!(client.response().text(), "0123456789");
        }
        weir.join();
        if let Some(redis) = &redis {
            assert_eq!(redis.cli(&["EXISTS", KEY]), "0", "cut off: {is_cut_off}");
        }
        drop((client, upstream, go));
    }
}

#[test]
fn one_client_that_asks_one_after_the_other_is_never_in_its_own_way() {
    for is_redis in [false, true] {
        let stage = stage(Setup::new(ONE), is_redis);
        let mut client = stage.weir.connect();
        for _ in 0..200 {
            assert_eq!(client.get("/now").status(), 200);
        }
    }
}

#[test]
fn decision_listeners_are_told_whether_there_is_room_and_take_none() {
    let setup = Setup { check: true, ..Setup::new(ONE) };
    let stage = stage(setup, false);
    let ask = || {
        let mut gateway = stage.weir.connect_check();
        gateway.send("GET /envoy/ HTTP/1.1\r\nhost: a.example\r\nx-forwarded-for: 192.0.2.1\r\n\r\n");
        gateway.response().status()
    };
    assert_eq!([ask(), ask(), ask()], [200; 3]);
    let mut client = stage.send("GET", "/wait", "");
    stage.is_held("a request is under way");
    assert_eq!([ask(), ask()], [429; 2]);
    stage.go();
    assert_eq!(client.response().status(), 200);
    stage.is_free("it has ended");
    assert_eq!(ask(), 200);
}

#[test]
fn what_redis_grants_too_late_is_given_back() {
    let redis = RedisServer::plain();
    let (upstream, go) = upstream();
    // Redis is late after the freeze, and on a busy machine perhaps before it.
    let store = Some(on_redis(&redis, Duration::from_millis(100)));
    let weir = Setup { store, ..Setup::new(ONE) }.start(&format!("http://{}", upstream.address));
    becomes("the store is connected", 1, || weir.metric("weir_store_connections"));
    eventually("the script is loaded", || match weir.connect().get("/now") {
        response if response.header("ratelimit").is_some() => Ok(()),
        other => Err(other),
    });
    redis.freeze();
    assert_eq!(weir.connect().get("/now").status(), 200, "it passes by `on_store_error`");
    // A client that left while Redis was asked for its slot.
    let mut gone = weir.connect();
    gone.send("GET /silent HTTP/1.1\r\nhost: a\r\n\r\n");
    drop(gone);
    redis.thaw();
    becomes("nothing is held", 0, || weir.metric("weir_slots_held"));
    becomes("nothing is left", 0, || redis.cli(&["EXISTS", KEY]).parse().unwrap());
    drop(go);
}

#[test]
fn what_redis_grants_on_a_connection_that_breaks_is_given_back() {
    let redis = RedisServer::plain();
    let injector = Injector::to(&redis.address());
    let (upstream, go) = upstream();
    let target = RedisOptions {
        timeout: STORE_TIMEOUT,
        ..RedisOptions::new(format!("redis://{}", injector.address), Clock::machine())
    };
    let target = target.target().unwrap();
    let rules = "limits: { One: { algorithm: concurrency, capacity: 10, by: global } }";
    let store: Option<MakeStore> = Some(Arc::new(move || Ok(Store::Redis(RedisStore::connect(&target)))));
    let weir = Setup { store, ..Setup::new(rules) }.start(&format!("http://{}", upstream.address));
    becomes("the store is connected", 1, || weir.metric("weir_store_connections"));
    for round in 1..=4 {
        injector.set(Trouble::Drop);
        let mut client = weir.connect();
        client.send("GET /now HTTP/1.1\r\nhost: a\r\n\r\n");
        becomes("the slot is taken", 1, || redis.cli(&["EXISTS", KEY]).parse().unwrap());
        injector.set(Trouble::None);
        injector.cut();
        assert_eq!(client.response().status(), 200, "it passes by `on_store_error`");
        becomes("nothing is held", 0, || weir.metric("weir_slots_held"));
        becomes("nothing is left", 0, || redis.cli(&["EXISTS", KEY]).parse().unwrap());
        assert_eq!(weir.metric("weir_store_errors_total{kind=\"broken\"}"), round);
        becomes("the store is connected again", 1, || weir.metric("weir_store_connections"));
    }
    drop(go);
}

#[test]
fn without_redis_slots_are_taken_from_memory_and_given_back_there() {
    let mut redis = RedisServer::plain();
    let (upstream, go) = upstream();
    let rules = "limits: { One: { algorithm: concurrency, capacity: 1, by: global, on_store_error: local } }";
    let store = Some(on_redis(&redis, STORE_TIMEOUT));
    let weir = Setup { store, ..Setup::new(rules) }.start(&format!("http://{}", upstream.address));
    becomes("the store is connected", 1, || weir.metric("weir_store_connections"));
    redis.kill();
    let stage = Stage { weir, upstream, go, redis: None };
    becomes("the store is away", 0, || stage.weir.metric("weir_store_connections"));
    for (what, begin) in WAYS {
        stage.check(what, begin);
    }
}

#[test]
fn a_slot_that_ids_share_in_a_full_table_comes_back() {
    let (upstream, go) = upstream();
    let memory = Arc::new(MemoryStore::new(1));
    let store: MakeStore = Arc::new(move || Ok(Store::Memory(memory.clone())));
    let rules = "limits: { One: { algorithm: concurrency, capacity: 1, by: { header: x-id } } }";
    let weir = Setup { store: Some(store), ..Setup::new(rules) }.start(&format!("http://{}", upstream.address));
    let begin = |path: &str, id: &str| {
        let mut client = weir.connect();
        client.send(format!("GET {path} HTTP/1.1\r\nhost: a.example\r\nx-id: {id}\r\n\r\n"));
        client
    };
    let holds = |count| becomes("the slots", count, || weir.metric("weir_slots_held"));
    let own = begin("/silent", "a");
    holds(1);
    let mut sharing = begin("/wait", "b");
    holds(2);
    // When the second request ends, its bucket fits.
    drop(own);
    holds(1);
    go.send(()).unwrap();
    assert_eq!(sharing.response().status(), 200);
    holds(0);
    let _own = begin("/silent", "c");
    holds(1);
    assert_eq!(begin("/now", "d").response().status(), 200, "the slot that they share is free");
}
