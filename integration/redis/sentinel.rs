//! Masters that Sentinels watch.

use weir::store::redis::{RedisOptions, RedisStore};

use super::connecting::{install_provider, stays_down};
use super::{connected, options, resumes, spend};
use crate::support::eventually_async;
use crate::support::redis::{RedisConfig, RedisServer};
use crate::support::sentinel::{SentinelConfig, SentinelGroup};

fn group(servers: RedisConfig, sentinels: RedisConfig) -> SentinelGroup {
    SentinelGroup::start(&SentinelConfig { servers, sentinels, replicas: 0, ..SentinelConfig::default() })
}

fn with_password(password: &str) -> RedisConfig {
    RedisConfig { password: Some(password.into()), ..RedisConfig::default() }
}

/// Spends until this server has decided.
async fn is_decided_by(store: &RedisStore, server: &RedisServer) {
    server.cli(&["CONFIG", "RESETSTAT"]);
    eventually_async("the server decides", async || {
        let taken = spend(store).await;
        if taken.is_ok() && server.calls("evalsha") > 0 { Ok(()) } else { Err((taken, store.health())) }
    })
    .await;
}

#[tokio::test]
async fn a_new_master_decides_and_the_old_one_does_not() {
    let mut group = SentinelGroup::plain();
    let store = connected(&options(&group.url())).await;
    is_decided_by(&store, &group.servers[0]).await;
    group.servers[0].kill();
    assert_eq!(group.until_replaced(0), 1);
    is_decided_by(&store, &group.servers[1]).await;

    group.servers[0].restart();
    group.until_whole();
    resumes(&store).await;
    assert_eq!(group.servers[0].calls("evalsha"), 0);
    // The master runs on as a replica.
    assert_eq!(group.fail_over(), 0);
    is_decided_by(&store, &group.servers[0]).await;
    group.until_whole();
    group.servers[1].cli(&["CONFIG", "RESETSTAT"]);
    resumes(&store).await;
    assert_eq!(group.servers[1].calls("evalsha"), 0);
}

/// The old master still answers, and does not know that it was replaced.
#[tokio::test]
async fn a_master_that_most_sentinels_have_replaced_is_left() {
    let (group, new) = (group(RedisConfig::default(), RedisConfig::default()), RedisServer::plain());
    let store = connected(&options(&group.url())).await;
    is_decided_by(&store, &group.servers[0]).await;
    let port = new.port().to_string();
    for sentinel in &group.sentinels[1..] {
        sentinel.cli(&["SENTINEL", "REMOVE", SentinelGroup::NAME]);
        sentinel.cli(&["SENTINEL", "MONITOR", SentinelGroup::NAME, "127.0.0.1", &port, "2"]);
    }
    is_decided_by(&store, &new).await;
}

#[tokio::test]
async fn dead_sentinels_are_skipped_and_faults_are_named() {
    let mut group = group(RedisConfig::default(), RedisConfig::default());
    let unknown = group.url().replace("/main", "/other");
    stays_down(&options(&unknown), "watches no master `other`; it watches `main`").await;
    let none = format!("redis+sentinel://{}/main", group.servers[0].address());
    stays_down(&options(&none), "this is not a Sentinel; their default port is 26379").await;

    group.sentinels[0].kill();
    group.sentinels[1].kill();
    let store = connected(&options(&group.url())).await;
    spend(&store).await.unwrap();
    group.sentinels[2].kill();
    let silent = format!("no Sentinel answers: {}: Connection refused", group.sentinels[0].address());
    stays_down(&options(&group.url()), &silent).await;
    spend(&store).await.unwrap();
}

#[tokio::test]
async fn a_master_that_is_gone_is_named() {
    let mut group = group(RedisConfig::default(), RedisConfig::default());
    group.servers[0].kill();
    let reason = format!("the master {}, as the Sentinels name it: Connection refused", group.servers[0].address());
    stays_down(&options(&group.url()), &reason).await;
}

#[tokio::test]
async fn sentinels_with_the_same_password_another_one_or_none() {
    for (password, parameters) in
        [(Some("secret"), ""), (Some("other-secret"), "?sentinel_password=other-secret"), (None, "")]
    {
        let sentinels = RedisConfig { password: password.map(str::to_owned), ..RedisConfig::default() };
        let group = group(with_password("secret"), sentinels);
        let url = group.url().replace("://", "://:secret@");
        spend(&*connected(&options(&format!("{url}{parameters}"))).await).await.unwrap();
        if !parameters.is_empty() {
            stays_down(&options(&url), "give the Sentinels' password as `?sentinel_password=...`").await;
        }
    }
}

#[tokio::test]
async fn sentinels_and_their_master_with_tls() {
    install_provider();
    let tls = RedisConfig { tls: true, ..RedisConfig::default() };
    let group = group(tls.clone(), tls);
    let server = &group.servers[0];
    let url = group.url().replace("redis+", "rediss+");
    let ours = RedisOptions {
        ca_file: Some(server.ca_file()),
        cert_file: Some(server.client_cert_file()),
        key_file: Some(server.client_key_file()),
        ..options(&url)
    };
    spend(&*connected(&ours).await).await.unwrap();
    stays_down(&RedisOptions { ca_file: None, ..ours }, "set --store-ca-file to the authority that signed it").await;
}
