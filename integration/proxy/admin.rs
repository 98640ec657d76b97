//! The admin listener.

use std::io::Write;
use std::sync::Arc;

use weir::clock::Clock;
use weir::store::Store;
use weir::store::redis::{RedisOptions, RedisStore};

use crate::support::server::{Setup, WIDE};
use crate::support::wire::Wire;

#[test]
fn the_pages_are_there_and_nothing_else() {
    let weir = Setup::new(WIDE).start("echo");
    weir.connect().get("/");
    let metrics = weir.page("/metrics");
    assert_eq!(metrics.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    for series in [
        "weir_decisions_total{limit=\"Wide\",result=\"allowed\"} 1",
        "weir_keys 1",
        "weir_store_connections 1",
        "weir_http_requests_total{code=\"2xx\",listener=\"proxy\"} 1",
        "weir_build_info{",
    ] {
        assert!(metrics.text().contains(series), "{series} is not in {}", metrics.text());
    }
    assert_eq!(weir.page("/healthz").text(), "ok\n");
    assert_eq!(weir.page("/nothing").status(), 404);
    let mut client = Wire::connect(weir.admin);
    client.send("POST /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n");
    let rejected = client.response();
    assert_eq!((rejected.status(), rejected.header("allow")), (405, Some("GET, HEAD")));
    client.send("HEAD /healthz HTTP/1.1\r\nhost: a\r\n\r\n");
    assert_eq!(client.head().unwrap().header("content-length"), Some("3"));
    assert_eq!(client.get("/healthz").status(), 200, "a HEAD has no body");
}

/// Idle connections: silent, with half a request, and after a request.
#[test]
fn idle_connections_keep_nobody_out() {
    let weir = Setup::new(WIDE).start("echo");
    let silent: Vec<Wire> = (0..100).map(|_| Wire::connect(weir.admin)).collect();
    assert_eq!(weir.page("/readyz").status(), 200);
    let mut begun: Vec<Wire> = (0..100).map(|_| Wire::connect(weir.admin)).collect();
    for client in &mut begun {
        let _ = client.stream.write_all(b"GET /metrics HT");
    }
    assert_eq!(weir.page("/readyz").status(), 200);
    let idle: Vec<Wire> = (0..100)
        .map(|_| {
            let mut client = Wire::connect(weir.admin);
            assert_eq!(client.page("/healthz").status(), 200);
            client
        })
        .collect();
    assert_eq!(weir.page("/metrics").status(), 200);
    drop((silent, begun, idle));
}

#[test]
fn a_connection_without_a_request_is_closed() {
    let weir = Setup::new(WIDE).start("echo");
    let mut half = Wire::connect(weir.admin);
    half.send("GET /healthz HTTP/1.1\r\n");
    let mut silent = Wire::connect(weir.admin);
    let mut idle = Wire::connect(weir.admin);
    assert_eq!(idle.page("/healthz").status(), 200);
    silent.expect_end();
    half.expect_end();
    assert_eq!(idle.page("/healthz").status(), 200, "a scraper may keep its connection");
}

/// A page in a local browser may resolve its own name to 127.0.0.1.
#[test]
fn a_listener_on_loopback_answers_to_this_machines_names() {
    let weir = Setup::new(WIDE).start("echo");
    for (host, path, status) in [
        ("localhost:9090", "/metrics", 200),
        ("127.0.0.1", "/metrics", 200),
        ("[::1]:9090", "/metrics", 200),
        ("weir.localhost", "/metrics", 200),
        ("rebound.example", "/metrics", 421),
        ("rebound.example:9090", "/buckets", 421),
        ("0.0.0.0:9090", "/blocks", 421),
        ("localhost.example", "/log", 421),
        ("pod.example", "/healthz", 200),
        ("10.1.2.3:9090", "/readyz", 200),
    ] {
        assert_eq!(Wire::connect(weir.admin).get_from(host, path, &[]).status(), status, "{host} {path}");
    }
}

#[test]
fn readiness_tells_of_broken_rules_and_stays() {
    let weir = Setup::new(WIDE).start("echo");
    let page = || {
        let page = weir.page("/readyz");
        (page.status(), serde_json::from_str::<serde_json::Value>(page.text()).unwrap())
    };
    assert_eq!(page(), (200, serde_json::json!({"status": "ready", "store": "up", "config": "ok"})));
    weir.readiness.reloaded(Some("limits.yaml:1:1: \"x\"".into()));
    let (status, body) = page();
    assert_eq!((status, &body["status"], &body["config"]), (200, &"degraded".into(), &"error".into()));
    assert_eq!(body["config_error"], "limits.yaml:1:1: \"x\"");
    weir.readiness.reloaded(None);
    assert_eq!(page().1["status"], "ready");
}

#[test]
fn a_store_that_is_away_is_told_and_requests_are_answered() {
    let mut setup = Setup::new(WIDE);
    setup.workers = 2;
    setup.store = Some(Arc::new(|| {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let options = RedisOptions::new(format!("redis://{free}"), Clock::machine());
        Ok(Store::Redis(RedisStore::connect(&options.target().unwrap())))
    }));
    let weir = setup.start("echo");
    assert_eq!(weir.connect().get("/").status(), 200);
    let page = weir.page("/readyz");
    assert_eq!(page.status(), 200);
    assert!(page.text().contains("\"store\":\"down\"") && page.text().contains("store_error"), "{}", page.text());
    assert_eq!(weir.metric("weir_store_connections"), 0);
    assert_eq!(weir.metric("weir_store_errors_total{kind=\"down\"}"), 1);
}
