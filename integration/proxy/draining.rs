//! Start and stop.

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use weir::http::{
    AcceptOptions, Admission, ConnectionLimits, HttpLimits, HttpOptions, Routes, Timeouts, UpstreamOptions,
};
use weir::listeners::ListenerOptions;
use weir::listeners::admin::Readiness;
use weir::listeners::admin::reload::ReloadOutcome;
use weir::listeners::http::FrontendOptions;
use weir::listeners::proxy::{AddedHeaders, ProxyOptions};
use weir::server::{MakeStore, ServerError, ServerOptions, start};

use crate::support::server::{Setup, WIDE, Weir};
use crate::support::upstream::{Upstream, ok};
use crate::support::weir::Weir as Process;
use crate::support::{NEVER, PATIENCE, becomes, eventually};

/// An upstream that answers on a signal.
fn held() -> (Upstream, mpsc::Sender<()>) {
    let (go, told) = mpsc::channel();
    let told = parking_lot::Mutex::new(told);
    let upstream = Upstream::start(move |wire, _| {
        while wire.request().is_some() {
            if told.lock().recv().is_err() {
                return;
            }
            wire.send(ok("at last"));
        }
    });
    (upstream, go)
}

fn weir(upstream: &Upstream, grace: Duration) -> Weir {
    let mut setup = Setup::new(WIDE);
    setup.grace = grace;
    // A connection that sends nothing ends by this.
    setup.timeouts.first_byte = Duration::from_secs(2);
    setup.start(&format!("http://{}", upstream.address))
}

/// Waits for the end of a drain that has nothing to wait for.
#[track_caller]
fn join(weir: Weir) {
    let (told, ended) = mpsc::channel();
    std::thread::spawn(move || {
        weir.join();
        let _ = told.send(());
    });
    ended.recv_timeout(PATIENCE).expect("the drain ends");
}

#[track_caller]
fn wait_until_refused(weir: &Weir) {
    eventually("new connections are refused", || match TcpStream::connect(weir.proxy) {
        Ok(_) => Err("accepted"),
        Err(_) => Ok(()),
    });
}

#[test]
fn what_runs_is_answered_and_nothing_after_it() {
    let (upstream, go) = held();
    let weir = weir(&upstream, NEVER);
    let (mut busy, mut idle, mut fresh) = (weir.connect(), weir.connect(), weir.connect());
    idle.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    go.send(()).unwrap();
    assert_eq!(idle.response().text(), "at last");
    busy.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    becomes("the request is under way", 1, || weir.metric("weir_http_requests_in_flight"));
    weir.stop();
    idle.expect_end();
    fresh.expect_end();
    wait_until_refused(&weir);
    let ready = weir.page("/readyz");
    assert_eq!(ready.status(), 503);
    assert!(ready.text().contains("draining"), "{}", ready.text());
    assert_eq!(weir.page("/healthz").status(), 200);
    go.send(()).unwrap();
    let response = busy.response();
    assert_eq!((response.text(), response.header("connection")), ("at last", Some("close")));
    busy.expect_end();
    drop(busy);
    // It ends when the last request has, and not after the grace.
    join(weir);
}

#[test]
fn connections_are_taken_until_load_balancers_have_noticed() {
    let mut weir = Process::serve(WIDE, &["--drain-delay", "60s", "--workers", "1"]);
    let mut before = weir.connect();
    assert_eq!(before.get("/").status(), 200);
    weir.signal("TERM");
    eventually("it is not ready any more", || match weir.admin("/readyz") {
        page if page.status() == 503 && page.text().contains("draining") => Ok(()),
        page => Err(page),
    });
    let response = before.get("/");
    assert_eq!((response.status(), response.header("connection")), (200, None), "the delay is for those who come too");
    assert_eq!(weir.get("/", &[]).status(), 200);
    weir.signal("TERM");
    assert!(weir.wait().success());
    assert!(weir.log().contains("second signal to stop: draining now"), "{}", weir.log());
    assert!(TcpStream::connect(weir.proxy).is_err());
}

#[test]
fn the_delay_ends_by_itself() {
    let (upstream, go) = held();
    let mut setup = Setup::new(WIDE);
    (setup.drain_delay, setup.grace) = (Duration::from_millis(50), NEVER);
    let weir = setup.start(&format!("http://{}", upstream.address));
    let mut busy = weir.connect();
    busy.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    becomes("the request is under way", 1, || weir.metric("weir_http_requests_in_flight"));
    weir.stop();
    wait_until_refused(&weir);
    go.send(()).unwrap();
    assert_eq!(busy.response().text(), "at last");
    join(weir);
}

#[test]
fn what_outlasts_the_grace_is_cut_off() {
    let (upstream, _go) = held();
    let grace = Duration::from_millis(300);
    let weir = weir(&upstream, grace);
    let mut client = weir.connect();
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    becomes("the request is under way", 1, || weir.metric("weir_http_requests_in_flight"));
    let start = Instant::now();
    weir.stop();
    weir.join();
    let took = start.elapsed();
    assert!(took >= grace, "took {took:?}");
    client.expect_end();
}

fn options(proxy: &str) -> ServerOptions {
    let admission = Admission::new(ConnectionLimits::default());
    let http = HttpOptions {
        accept: AcceptOptions::default(),
        trusted_proxies: weir::message::client_address::TrustedProxies::default(),
        client_headers: weir::message::client_headers::ClientHeaders::default(),
        timeouts: Timeouts::default(),
        limits: HttpLimits::default(),
        admission: admission.clone(),
    };
    let clock = weir::clock::Clock::machine();
    let generations = weir::engine::answer::headers::Generations::default();
    let front = FrontendOptions { http, clock, generations, access_log: None, traces: None };
    let upstream = UpstreamOptions::new(Routes::parse(&["echo"]).unwrap());
    let options = ProxyOptions { front, upstream, added: AddedHeaders::default(), redirect_port: None };
    ServerOptions {
        listeners: vec![(proxy.parse().unwrap(), ListenerOptions::Proxy(options))],
        admission,
        access_log: None,
        admin_address: None,
        metrics: None,
        admin_accept: AcceptOptions::default(),
        admin_tokens: weir::listeners::admin::tokens::Tokens::default(),
        admin_hosts: Arc::default(),
        log: None,
        reading: weir::engine::request::incoming::ReadingOptions::default(),
        clock: weir::clock::Clock::machine(),
        workers: 2.try_into().unwrap(),
        drain_delay: Duration::ZERO,
        override_feeds: Vec::new(),
        xds: None,
        webhook: None,
        grace: Duration::from_millis(100),
    }
}

#[test]
fn an_address_in_use_is_known_before_anything_starts() {
    let other = Setup::new(WIDE).start("echo");
    let make_store: MakeStore = Arc::new(|| panic!("no worker is started"));
    let error = start(
        &options(&other.proxy.to_string()),
        None,
        &other.shared,
        &make_store,
        &Arc::new(Readiness::default()),
        Box::new(|_| ReloadOutcome::default()),
    )
    .unwrap_err();
    assert!(
        matches!(error, ServerError::Bind { listener: "proxy", ref address, .. } if address.tcp() == Some(other.proxy))
    );
    assert!(error.to_string().contains(&format!("cannot listen on {} (proxy)", other.proxy)), "{error}");
}

#[test]
fn a_store_that_cannot_be_made_is_known_at_the_start() {
    let other = Setup::new(WIDE).start("echo");
    let make_store: MakeStore = Arc::new(|| Err("no such store".to_owned()));
    let readiness = Arc::new(Readiness::default());
    let error = start(
        &options("127.0.0.1:0"),
        None,
        &other.shared,
        &make_store,
        &readiness,
        Box::new(|_| ReloadOutcome::default()),
    );
    assert!(matches!(error, Err(ServerError::Worker(reason)) if reason == "no such store"));
}

#[test]
fn the_rules_are_looked_at_now_and_then() {
    let (told, looks) = mpsc::channel();
    let other = Setup::new(WIDE).start("echo");
    let memory = Arc::new(weir::store::memory::MemoryStore::new(10));
    let make_store: MakeStore = Arc::new(move || Ok(weir::store::Store::Memory(memory.clone())));
    let reload = Box::new(move |forced| {
        told.send(forced).unwrap();
        ReloadOutcome::default()
    });
    let running = start(&options("127.0.0.1:0"), None, &other.shared, &make_store, &Arc::default(), reload).unwrap();
    assert!(!looks.recv_timeout(PATIENCE).unwrap(), "no signal asked for it");
    running.stop();
    running.join();
    // Nobody is left to look at the files.
    while looks.recv_timeout(PATIENCE).is_ok() {}
    assert_eq!(looks.try_recv(), Err(mpsc::TryRecvError::Disconnected));
}

#[test]
fn a_second_signal_does_not_wait_for_what_runs() {
    let (upstream, go) = held();
    let mut weir = Process::serve(
        WIDE,
        &["--upstream", &format!("http://{}", upstream.address), "--grace", "60s", "--first-byte-timeout", "2s"],
    );
    let (mut busy, mut idle) = (weir.connect(), weir.connect());
    busy.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    becomes("the request is under way", 1, || weir.metric("weir_http_requests_in_flight"));
    weir.signal("TERM");
    idle.expect_end();
    weir.signal("INT");
    assert!(weir.wait().success());
    assert!(weir.log().contains("connections were cut off"), "{}", weir.log());
    busy.expect_end();
    drop(go);
}
