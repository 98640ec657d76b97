//! The task that owns the connection: it opens it, probes it, and replaces it.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Value};
use tokio::time::{Instant, sleep, timeout};

use super::options::Target;
use super::{Breaker, Live, MAX_IN_FLIGHT, Shared, describe};

/// How long opening a connection may take, name lookup, TLS and AUTH included. With the longest pause it stays below
/// the 2 s within which limiting resumes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// How often an idle connection is asked whether it is there.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// How long a probe of the current connection may take. Longer than a request waits: a probe has nobody waiting for it,
/// and a stall that requests survive is no reason to reconnect.
const PROBE_TIMEOUT: Duration = Duration::from_millis(250);

/// The pause before the first attempt to reconnect. It doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The longest pause between attempts.
const LONGEST_PAUSE: Duration = Duration::from_millis(400);

/// A connection that lasted this long was a good one: what happens next is a new trouble, told from the start.
const SETTLED: Duration = Duration::from_secs(10);

/// Keeps `shared` supplied with a connection to `target`, until it is aborted.
pub(super) async fn run(shared: Arc<Shared>, target: Target) {
    let mut log = Log { target: target.to_string(), said: Said::Nothing, reported: None };
    let mut pause = FIRST_PAUSE;
    loop {
        match open(&target).await {
            Ok(connection) => {
                let opened = Instant::now();
                let live = Arc::new(Live { connection, failures: AtomicU32::new(0) });
                *shared.state.lock() = (Breaker::Closed, None);
                shared.live.store(Some(live.clone()));
                log.connected();
                watch(&shared, &live).await;
                if opened.elapsed() >= SETTLED {
                    pause = FIRST_PAUSE;
                    log.reported = None;
                }
            }
            Err(reason) => shared.state.lock().1 = Some(reason),
        }
        let reason = shared.state.lock().1.clone();
        log.lost(reason);
        sleep(jittered(pause)).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// A connection whose server has answered a PING as fast as a request needs.
async fn open(target: &Target) -> Result<MultiplexedConnection, String> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        // Each call and each probe brings its own deadline; a second timer for each would buy nothing.
        .set_response_timeout(None)
        // The library's 50 would make requests wait for a place in the queue.
        .set_pipeline_buffer_size(MAX_IN_FLIGHT);
    let mut connection = timeout(CONNECT_TIMEOUT, target.client.get_multiplexed_async_connection_with_config(&config))
        .await
        .map_err(|_| format!("no connection within {CONNECT_TIMEOUT:?}"))?
        .map_err(|error| describe(&error))?;
    ping(&mut connection, target.timeout).await?;
    Ok(connection)
}

/// Returns when `live` is no longer what requests use.
async fn watch(shared: &Shared, live: &Arc<Live>) {
    let mut connection = live.connection.clone();
    while shared.live.load().as_ref().is_some_and(|current| Arc::ptr_eq(current, live)) {
        // A request that gives up before this is polled leaves its permit in `lost`; one that is left over from an
        // earlier connection costs a turn of the loop.
        if timeout(PROBE_INTERVAL, shared.lost.notified()).await.is_err()
            && let Err(reason) = ping(&mut connection, PROBE_TIMEOUT).await
        {
            shared.give_up(live, Breaker::Closed, reason);
        }
    }
}

async fn ping(connection: &mut MultiplexedConnection, deadline: Duration) -> Result<(), String> {
    let mut ping = Cmd::new();
    ping.arg("PING");
    let answer = timeout(deadline, connection.send_packed_command(&ping))
        .await
        .map_err(|_| format!("PING had no answer within {deadline:?}"))?;
    match answer.and_then(Value::extract_error) {
        Ok(_) => Ok(()),
        Err(error) => Err(describe(&error)),
    }
}

/// Between half of `pause` and all of it, so that gateways that lost one server do not all come back at once.
fn jittered(pause: Duration) -> Duration {
    // The keys of a new `RandomState` differ from the last one's, so the hash of nothing is a random number.
    let random = RandomState::new().hash_one(()) % 1_000;
    pause / 2 + pause / 2 * u32::try_from(random).unwrap_or(0) / 1_000
}

/// One line when the connection is lost and one when it is back, however often it is tried in between.
struct Log {
    target: String,
    said: Said,
    /// The trouble that was reported last. A server that takes connections and then refuses to serve, such as a
    /// replica, would otherwise fill the log with losses and returns.
    reported: Option<String>,
}

/// What the last line says.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Said {
    Nothing,
    Connected,
    Lost,
}

impl Log {
    fn connected(&mut self) {
        if self.said != Said::Connected {
            tracing::info!(store = %self.target, "connected to the store");
            self.said = Said::Connected;
        }
    }

    fn lost(&mut self, reason: Option<String>) {
        if self.said == Said::Lost || self.reported == reason {
            return;
        }
        tracing::warn!(store = %self.target, reason = reason.as_deref(), "no connection to the store, trying again");
        self.said = Said::Lost;
        self.reported = reason;
    }
}
