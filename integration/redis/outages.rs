//! Redis is killed, frozen, restarted, full, demoted, or not there yet.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use weir::engine::algorithms::charge::Mode;
use weir::store::redis::{RedisOptions, RedisStore};
use weir::store::{Fault, StoreError};

use super::{TIMEOUT, charge, connected, decide, fixed, hurried, last_error, options, resumes, spend};
use crate::support::eventually_async;
use crate::support::injector::{Injector, Trouble};
use crate::support::process::free_port;
use crate::support::redis::{RedisConfig, RedisServer};

#[tokio::test]
async fn a_killed_server_fails_at_once_and_a_restarted_one_is_found() {
    let mut server = RedisServer::plain();
    let store = connected(&options(&server.url())).await;
    spend(&store).await.unwrap();
    server.kill();
    // It may have been sent before the end of the connection was noticed.
    assert!(matches!(spend(&store).await, Err(StoreError::Down | StoreError::Broken)));
    for _ in 0..20 {
        assert_eq!(spend(&store).await, Err(StoreError::Down));
    }
    eventually_async("the status says why", async || last_error(&store, "refused")).await;
    server.restart();
    resumes(&store).await;
    assert_eq!(store.health().last_error, None);
}

#[tokio::test]
async fn a_frozen_server_opens_the_breaker_and_a_thawed_one_closes_it() {
    let server = RedisServer::plain();
    let store = connected(&hurried(&server.url())).await;
    resumes(&store).await;
    server.freeze();
    let mut late = 0;
    while !store.health().breaker_open {
        let end = spend(&store).await;
        late += u32::from(matches!(end, Err(StoreError::Late(_))));
        assert!(matches!(end, Err(StoreError::Late(_) | StoreError::Down)), "{end:?}");
    }
    // The owner's probe may have been first.
    assert!(late <= 5, "{late} calls waited");
    assert_eq!(spend(&store).await, Err(StoreError::Down));
    assert!(!store.health().connected);
    server.thaw();
    resumes(&store).await;
    assert!(!store.health().breaker_open);
}

#[tokio::test]
async fn an_idle_store_notices_a_frozen_server() {
    let server = RedisServer::plain();
    let store = connected(&hurried(&server.url())).await;
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
    assert!(!store.health().connected);
    eventually_async("the status says why", async || last_error(&store, "refused")).await;
    let _server = RedisServer::on_port(port);
    resumes(&store).await;
}

#[tokio::test]
async fn a_full_server_refuses_spends_until_it_has_room_and_is_not_said_to_be_well() {
    let server = RedisServer::plain();
    let store = connected(&options(&server.url())).await;
    spend(&store).await.unwrap();
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    for _ in 0..10 {
        let Err(StoreError::Failed(text)) = spend(&store).await else { panic!("there is no room") };
        assert!(text.starts_with("OOM "), "{text}");
        let status = store.health();
        assert_eq!(
            (status.connected, status.fault, status.last_error.as_deref()),
            (true, Some(Fault::Failing), Some(&*text))
        );
    }
    // Requests that write nothing are answered, so exhausted limits still hold.
    let over = decide(&store, &[charge("A:1", fixed(1_000_000), 1_000_000, Mode::Spend)]).await.unwrap();
    assert!(over[0].is_denied());
    assert_eq!(store.health().fault, None);
    assert_eq!((store.health().connected, store.health().breaker_open), (true, false));
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    spend(&store).await.unwrap();
}

#[tokio::test]
async fn a_server_that_became_a_replica_is_left_until_it_is_a_master_again() {
    let server = RedisServer::plain();
    let store = connected(&options(&server.url())).await;
    spend(&store).await.unwrap();
    server.cli(&["REPLICAOF", "127.0.0.1", &free_port().to_string()]);
    let Err(StoreError::Failed(text)) = spend(&store).await else { panic!("a replica takes no writes") };
    assert!(text.starts_with("READONLY "), "{text}");
    assert_eq!(spend(&store).await, Err(StoreError::Down));
    eventually_async("the status says what it is", async || last_error(&store, "this server is a read-only replica"))
        .await;
    assert_eq!((store.health().connected, store.health().fault), (false, Some(Fault::Replica)));
    server.cli(&["REPLICAOF", "NO", "ONE"]);
    resumes(&store).await;
}

#[tokio::test]
async fn more_requests_than_the_queue_takes_are_turned_away_at_once() {
    const BOUND: usize = 1_000;
    const CALLS: usize = BOUND + 100;
    let server = RedisServer::plain();
    let store = connected(&RedisOptions { queue: BOUND, ..hurried(&server.url()) }).await;
    resumes(&store).await;
    server.freeze();
    let mut calls = JoinSet::new();
    for _ in 0..CALLS {
        let store = store.clone();
        calls.spawn(async move { spend(&store).await });
    }
    let ends = calls.join_all().await;
    let late = ends.iter().filter(|end| matches!(end, Err(StoreError::Late(_)))).count();
    let busy = ends.iter().filter(|end| matches!(end, Err(StoreError::Busy { .. }))).count();
    // A process that was held up itself does not blame the server.
    assert!(late + busy == CALLS && busy >= CALLS - BOUND, "{late} late, {busy} busy");
    server.thaw();
    resumes(&store).await;
}

/// Replies come all the time, so that requests which wait for their turn see that the server lives.
#[tokio::test]
async fn a_server_that_answers_nothing_in_time_is_late_and_not_busy() {
    let server = RedisServer::plain();
    let injector = Injector::to(&server.address());
    let store = connected(&hurried(&format!("redis://{}", injector.address))).await;
    resumes(&store).await;
    injector.set(Trouble::Delay(3 * TIMEOUT));
    let mut calls = JoinSet::new();
    for number in 0..100 {
        let store = store.clone();
        let charge = charge(&format!("A:{number}"), fixed(10), 1, Mode::Spend);
        calls.spawn(async move { decide(&store, &[charge]).await });
        tokio::time::sleep(TIMEOUT / 10).await;
    }
    let mut ends = calls.join_all().await;
    ends.retain(|end| !matches!(end, Err(StoreError::Late(_))));
    assert_eq!(ends, []);
    injector.set(Trouble::None);
    resumes(&store).await;
}

/// Connections that the server has accepted, without the one that asks.
fn connections(server: &RedisServer) -> u64 {
    let statistics = server.cli(&["INFO", "stats"]);
    let line = statistics.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
    line.unwrap().trim().parse::<u64>().unwrap()
}

#[tokio::test]
async fn a_new_connection_has_longer_for_its_first_answer_than_a_request() {
    let server = RedisServer::plain();
    eventually_async("the server thaws in time", async || {
        let before = connections(&server);
        server.freeze();
        let begun = Instant::now();
        let store = RedisStore::connect(&hurried(&server.url()).target().unwrap());
        tokio::time::sleep(2 * TIMEOUT).await;
        server.thaw();
        let frozen = begun.elapsed();
        resumes(&store).await;
        let opened = connections(&server) - before;
        // That of the store and that of the question.
        if opened == 2 {
            return Ok(());
        }
        // A busy machine may freeze it for longer than the second that a connection has for its first answer.
        assert!(frozen > Duration::from_millis(900), "{opened} connections were opened in {frozen:?}");
        Err(frozen)
    })
    .await;
}

#[tokio::test]
async fn a_worker_that_is_held_up_takes_the_reply_that_has_come_meanwhile() {
    let server = RedisServer::plain();
    let timeout = Duration::from_secs(1);
    let store = connected(&RedisOptions { timeout, ..options(&server.url()) }).await;
    let before = connections(&server);
    for _ in 0..3 {
        let asking = {
            let store = store.clone();
            tokio::spawn(async move { spend(&store).await })
        };
        for _ in 0..10 {
            // The call is on its way when the runtime's only thread stops for longer than a decision may take.
            tokio::task::yield_now().await;
        }
        std::thread::sleep(timeout + timeout / 4);
        asking.await.unwrap().unwrap();
    }
    assert_eq!((store.health().breaker_open, connections(&server)), (false, before + 1));
}

#[tokio::test]
async fn a_connection_that_is_cut_is_replaced_at_once_and_requests_wait_for_that() {
    let server = RedisServer::plain();
    let store = connected(&options(&server.url())).await;
    spend(&store).await.unwrap();
    for _ in 0..10 {
        // A connection that ends sooner is not replaced at once.
        tokio::time::sleep(Duration::from_millis(120)).await;
        server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        // A sleep would take as long as the replacement.
        for _ in 0..10_000 {
            if !store.health().connected {
                break;
            }
            tokio::task::yield_now().await;
        }
        assert!(!store.health().connected, "the end is not noticed");
        spend(&store).await.unwrap();
    }
}

#[tokio::test]
async fn a_reply_that_is_lost_or_doubled_answers_no_other_call() {
    let server = RedisServer::plain();
    for trouble in [Trouble::DropOnce, Trouble::DoubleOnce] {
        let injector = Injector::to(&server.address());
        let store = connected(&hurried(&format!("redis://{}", injector.address))).await;
        let key = format!("{trouble:?}");
        let one = |bucket: u64| charge(&format!("{key}:{bucket}"), fixed(1_000 * bucket), 1, Mode::Spend);
        resumes(&store).await;
        injector.set(trouble);
        let (mut right, mut ends) = (0, Vec::new());
        for number in 0..200 {
            let bucket = 1 + number % 7;
            match decide(&store, &[one(bucket)]).await {
                Ok(decisions) => {
                    let taken = 1_000 * bucket - decisions[0].remaining;
                    // The bucket of another call has thousands more or less.
                    assert!((1..=200).contains(&taken), "{trouble:?}: call {number} was told {decisions:?}");
                    right += 1;
                }
                Err(error) => ends.push(error),
            }
            if ends.len() > 20 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert!(injector.is_done() && right > 100, "{trouble:?}: {right} were answered, the others {ends:?}");
        let is_told = |error: &StoreError| matches!(error, StoreError::Late(_) | StoreError::Broken | StoreError::Down);
        assert!(ends.iter().all(is_told), "{ends:?}");
    }
}

/// Collects a test's log.
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
async fn the_log_has_one_line_for_each_reason_and_one_for_the_return() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    // The test's runtime has one thread, so this covers the store's task, too.
    let _guard = tracing::subscriber::set_default(subscriber);
    let mut server = RedisServer::start(&RedisConfig { password: Some("secret".into()), ..RedisConfig::default() });
    let store = connected(&options(&server.url())).await;
    // A connection that ends sooner is a failure with its own reason.
    tokio::time::sleep(Duration::from_millis(120)).await;
    server.kill();
    assert!(matches!(spend(&store).await, Err(StoreError::Down | StoreError::Broken)));
    for _ in 0..20 {
        assert_eq!(spend(&store).await, Err(StoreError::Down));
    }
    eventually_async("several attempts fail", async || last_error(&store, "refused")).await;
    // It returns with another password, which is another reason.
    server.restart_with(RedisConfig { password: Some("other".into()), ..RedisConfig::default() });
    eventually_async("the password is wrong", async || last_error(&store, "user or password")).await;
    server.cli(&["CONFIG", "SET", "requirepass", "secret"]);
    resumes(&store).await;
    let log = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    let messages: Vec<&str> = log.lines().filter_map(|line| line.split_once("weir::")).map(|(_, line)| line).collect();
    let address = server.address();
    let connected = format!("store::redis::node::owner: connected to the store store=redis://***@{address}");
    assert_eq!((messages.len(), messages[0], messages[3]), (4, connected.as_str(), connected.as_str()), "{log}");
    for (message, reason) in [(messages[1], "refused"), (messages[2], "the server rejects the user or password")] {
        assert!(message.starts_with("store::redis::node::owner: no connection to the store, trying again"), "{log}");
        assert!(message.contains(reason), "{log}");
    }
    assert!(!log.contains("secret"), "{log}");
}
