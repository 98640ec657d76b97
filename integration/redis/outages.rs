//! Redis is killed, frozen, restarted, full, demoted, or not there yet.

use std::io::Write;
use std::sync::{Arc, Mutex};

use tokio::task::JoinSet;
use weir::engine::charge::Mode;
use weir::store::StoreError;
use weir::store::redis::{Breaker, RedisStore};

use super::{charge, connected, decide, fixed, last_error, options, resumes, spend};
use crate::support::eventually_async;
use crate::support::redis::{RedisConfig, RedisServer, free_port};

#[tokio::test]
async fn a_killed_server_fails_at_once_and_a_restarted_one_is_found() {
    let mut server = RedisServer::plain();
    let store = connected(&options(&server.url())).await;
    spend(&store).await.unwrap();
    server.kill();
    for _ in 0..20 {
        assert_eq!(spend(&store).await, Err(StoreError::Down));
    }
    eventually_async("the status says why", async || last_error(&store, "refused")).await;
    server.restart();
    resumes(&store).await;
    assert_eq!(store.status().last_error, None);
}

#[tokio::test]
async fn a_frozen_server_opens_the_breaker_and_a_thawed_one_closes_it() {
    let server = RedisServer::plain();
    let store = connected(&options(&server.url())).await;
    spend(&store).await.unwrap();
    server.freeze();
    let mut late = 0;
    while store.status().breaker == Breaker::Closed {
        let end = spend(&store).await;
        late += u32::from(matches!(end, Err(StoreError::Late(_))));
        assert!(matches!(end, Err(StoreError::Late(_) | StoreError::Down)), "{end:?}");
    }
    // The owner's own probe may have been first.
    assert!(late <= 5, "{late} calls waited");
    assert_eq!(spend(&store).await, Err(StoreError::Down));
    assert!(!store.status().connected);
    server.thaw();
    resumes(&store).await;
    assert_eq!(store.status().breaker, Breaker::Closed);
}

#[tokio::test]
async fn an_idle_store_notices_a_frozen_server() {
    let server = RedisServer::plain();
    let store = connected(&options(&server.url())).await;
    server.freeze();
    eventually_async("the probe fails", async || last_error(&store, "PING")).await;
    server.thaw();
    resumes(&store).await;
}

#[tokio::test]
async fn the_store_starts_without_its_server() {
    let port = free_port();
    let store = RedisStore::connect(&options(&format!("redis://127.0.0.1:{port}")).target().unwrap());
    assert_eq!(spend(&store).await, Err(StoreError::Down));
    assert!(!store.status().connected);
    eventually_async("the status says why", async || last_error(&store, "refused")).await;
    let _server = RedisServer::on_port(port);
    resumes(&store).await;
}

#[tokio::test]
async fn a_full_server_refuses_spends_until_it_has_room() {
    let server = RedisServer::plain();
    let store = connected(&options(&server.url())).await;
    spend(&store).await.unwrap();
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    for _ in 0..10 {
        let Err(StoreError::Refused(text)) = spend(&store).await else { panic!("there is no room") };
        assert!(text.starts_with("OOM "), "{text}");
    }
    // What writes nothing is answered, so limits that are used up still hold.
    let over = decide(&store, &[charge("A:1", fixed(1_000_000), 1_000_000, Mode::Spend)]).await.unwrap();
    assert!(over[0].is_denied());
    assert_eq!((store.status().connected, store.status().breaker), (true, Breaker::Closed));
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    spend(&store).await.unwrap();
}

#[tokio::test]
async fn a_server_that_became_a_replica_is_left_until_it_is_a_master_again() {
    let server = RedisServer::plain();
    let store = connected(&options(&server.url())).await;
    spend(&store).await.unwrap();
    server.cli(&["REPLICAOF", "127.0.0.1", &free_port().to_string()]);
    let Err(StoreError::Refused(text)) = spend(&store).await else { panic!("a replica takes no writes") };
    assert!(text.starts_with("READONLY "), "{text}");
    assert_eq!(spend(&store).await, Err(StoreError::Down));
    server.cli(&["REPLICAOF", "NO", "ONE"]);
    resumes(&store).await;
}

#[tokio::test]
async fn more_calls_than_the_bound_are_turned_away_at_once() {
    const BOUND: usize = 1_024;
    const CALLS: usize = BOUND + 100;
    let server = RedisServer::plain();
    let store = connected(&options(&server.url())).await;
    spend(&store).await.unwrap();
    server.freeze();
    let mut calls = JoinSet::new();
    for _ in 0..CALLS {
        let store = store.clone();
        calls.spawn(async move { spend(&store).await });
    }
    let ends = calls.join_all().await;
    let late = ends.iter().filter(|end| matches!(end, Err(StoreError::Late(_)))).count();
    let down = ends.iter().filter(|end| matches!(end, Err(StoreError::Down))).count();
    assert_eq!((late, down), (BOUND, CALLS - BOUND));
    server.thaw();
    resumes(&store).await;
}

/// A place for the log of a test.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn the_log_has_one_line_for_a_loss_and_one_for_the_return() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    // The runtime of the test has one thread, so this covers the store's task as well.
    let _guard = tracing::subscriber::set_default(subscriber);
    let mut server = RedisServer::start(&RedisConfig { password: Some("secret".into()), ..RedisConfig::default() });
    let store = connected(&options(&server.url())).await;
    server.kill();
    for _ in 0..20 {
        assert_eq!(spend(&store).await, Err(StoreError::Down));
    }
    eventually_async("several attempts fail", async || last_error(&store, "refused")).await;
    server.restart();
    resumes(&store).await;
    let log = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    let messages: Vec<&str> = log.lines().filter_map(|line| line.split_once("weir::")).map(|(_, line)| line).collect();
    let address = server.address();
    let connected = format!("store::redis::owner: connected to the store store=redis://***@{address}");
    assert_eq!((messages.len(), messages[0], messages[2]), (3, connected.as_str(), connected.as_str()), "{log}");
    assert!(messages[1].starts_with("store::redis::owner: no connection to the store, trying again"), "{log}");
    assert!(!log.contains("secret"), "{log}");
}
