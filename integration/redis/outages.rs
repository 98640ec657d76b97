//! Redis is killed, frozen, restarted, full, demoted, or not there yet.

use weir::engine::charge::Mode;
use weir::store::StoreError;
use weir::store::redis::{Breaker, RedisStore};

use super::{charge, connected, decide, fixed, last_error, options, resumes, spend};
use crate::support::eventually_async;
use crate::support::redis::{RedisServer, free_port};

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
