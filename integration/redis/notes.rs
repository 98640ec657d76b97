//! Notifications of changed notes: each change brings one, and a store without notifications knows that it has to poll.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;
use weir::store::redis::{RedisOptions, RedisStore};

use super::{hurried, last_error, options};
use crate::support::injector::{Injector, Trouble};
use crate::support::redis::{OTHER_SERVERS, RedisConfig, RedisServer};
use crate::support::{PATIENCE, eventually, eventually_async};

const NAME: &str = "blocked";
const KEYS: [&str; 2] = ["weir:{0}:!blocked", "weir:{0}:!blocked-notes"];

/// A connected store that watches notes.
async fn watching(options: &RedisOptions) -> Arc<RedisStore> {
    let store = RedisStore::connect(&options.target().unwrap());
    store.watch_notes();
    eventually_async("the store connects", async || store.note_versions([NAME]).await).await;
    store
}

/// Reads the version, makes a change, and waits for notifications until there is such a version.
async fn notifies(store: &RedisStore, what: &str, is_new: impl Fn(u64) -> bool, change: impl AsyncFnOnce()) -> u64 {
    // Earlier notifications are about earlier versions.
    let _ = timeout(Duration::from_millis(50), store.notes_changed()).await;
    store.note_versions([NAME]).await.unwrap();
    change().await;
    loop {
        assert!(timeout(PATIENCE, store.notes_changed()).await.is_ok(), "no notification: {what}");
        let [version] = eventually_async(what, async || store.note_versions([NAME]).await).await;
        if is_new(version) {
            return version;
        }
    }
}

/// Blocks an id by hand.
fn block(server: &RedisServer, id: &str) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/lua/blocks.lua");
    let member = format!("Wide:{id}");
    assert_eq!(server.cli(&["--eval", script, KEYS[0], KEYS[1], ",", "block", "10", "60000000", &member, "{}"]), "1");
}

#[tokio::test]
async fn each_change_brings_a_notification() {
    for other in OTHER_SERVERS.map(Some).into_iter().chain([None]) {
        let server = RedisServer::start(&RedisConfig { other, ..RedisConfig::default() });
        let store = watching(&options(&server.url())).await;
        assert!(store.is_notified_of_notes(), "{other:?}");
        let first = notifies(&store, "a first note", |version| version > 0, async || block(&server, "1")).await;
        notifies(&store, "another note", |version| version > first, async || block(&server, "2")).await;
        for change in [&["PEXPIRE", KEYS[0], "1"][..], &["DEL", KEYS[0]], &["FLUSHALL"]] {
            notifies(&store, change[0], |version| version == 0, async || drop(server.cli(change))).await;
            notifies(&store, "a note after that", |version| version > 0, async || block(&server, "1")).await;
        }
        let cut = async || drop(server.cli(&["CLIENT", "KILL", "TYPE", "normal"]));
        let last = notifies(&store, "another connection", |_| true, cut).await;
        assert!(store.is_notified_of_notes(), "{other:?}");
        notifies(&store, "a note after that", |version| version > last, async || block(&server, "3")).await;
    }
}

/// Reading works on a replica, so the store may stay there.
#[tokio::test]
async fn a_master_that_became_a_replica_notifies_of_the_new_ones_changes() {
    let [old, new] = [(); 2].map(|()| RedisServer::plain());
    let store = watching(&options(&old.url())).await;
    old.cli(&["REPLICAOF", "127.0.0.1", &new.port().to_string()]);
    eventually("the old master follows", || old.in_sync());
    notifies(&store, "a note", |version| version > 0, async || block(&new, "1")).await;
}

/// A dead connection looks alive until something is asked.
#[tokio::test]
async fn a_connection_that_says_nothing_any_more_is_replaced() {
    let server = RedisServer::plain();
    let injector = Injector::to(&server.address());
    let options = hurried(&format!("redis://{}", injector.address));
    let store = watching(&options).await;
    notifies(
        &store,
        "another connection",
        |_| true,
        async || {
            injector.set(Trouble::Drop);
            eventually_async("the silence is noticed", async || last_error(&store, "PING")).await;
            injector.set(Trouble::None);
        },
    )
    .await;
    assert!(store.is_notified_of_notes());
}

#[tokio::test]
async fn a_server_or_a_user_without_the_commands_sends_none_and_answers() {
    let rights = "~weir:{0}:* +evalsha +eval +get +set +del +pttl +pexpire +persist +time +ping +zscore +zadd +zcard \
                  +zrange +zrangebyscore +zrem +hset +hget +hdel";
    let user = |more| format!("user default on nopass resetchannels -@all {rights} +config +eval {more}");
    for (line, is_notified) in [
        ("rename-command HELLO \"\"".to_owned(), false),
        ("rename-command CLIENT \"\"".to_owned(), false),
        (user(""), false),
        (user("+hello +client|tracking"), true),
    ] {
        for other in OTHER_SERVERS.map(Some).into_iter().chain([None]) {
            let config = RedisConfig { other, lines: vec![line.clone()], ..RedisConfig::default() };
            let server = RedisServer::start(&config);
            let store = watching(&options(&server.url())).await;
            assert_eq!(store.is_notified_of_notes(), is_notified, "{line}, {other:?}");
            assert_eq!(store.note_versions([NAME]).await, Ok([0]));
            block(&server, "1");
            assert!(store.note_versions([NAME]).await.unwrap()[0] > 0, "{line}, {other:?}");
            assert_eq!(store.health().last_error, None);
        }
    }
}

/// Without its number, the reply to another question would be taken for the version.
#[tokio::test]
async fn a_lost_or_doubled_reply_shifts_no_version() {
    let server = RedisServer::plain();
    block(&server, "1");
    let injector = Injector::to(&server.address());
    let store = watching(&hurried(&format!("redis://{}", injector.address))).await;
    let names = [NAME, "overrides", "resets"];
    let versions = store.note_versions(names).await.unwrap();
    assert!(versions[0] > versions[1]);
    for trouble in [Trouble::DoubleOnce, Trouble::DropOnce] {
        injector.set(trouble);
        let mut asking = JoinSet::new();
        for number in 0..400 {
            let (store, mut names, mut expected) = (store.clone(), names, versions);
            names.rotate_left(number % 3);
            expected.rotate_left(number % 3);
            asking.spawn(async move {
                // There is no answer until the connection is replaced.
                if let Ok(read) = store.note_versions(names).await {
                    assert_eq!(read, expected, "{trouble:?}");
                }
            });
        }
        asking.join_all().await;
        assert!(injector.is_done(), "{trouble:?}");
        eventually_async("it is read again", async || store.note_versions([NAME]).await).await;
    }
}
