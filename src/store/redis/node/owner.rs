//! The task that owns the connection: opens it (`opening`), probes it, and replaces it.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::connection::Connection;
use super::opening::open;
use super::patience::within;
use super::probing::{LOOK_INTERVAL, Silence};
use super::{Node, NodeState};
use crate::store::Fault;
use crate::store::redis::diagnosis::Diagnosis;
use crate::store::redis::target::StoreTarget;

/// The pause before the second attempt to reconnect. It doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The longest pause between attempts.
const LONGEST_PAUSE: Duration = Duration::from_millis(400);

/// After a connection that lasted this long, pauses and logged reasons start over.
const SETTLED: Duration = Duration::from_secs(10);

/// Keeps `node` supplied with a connection to `target`, until it is aborted.
pub(super) async fn run(node: Arc<Node>, target: StoreTarget) {
    let mut log = Log { target: target.shown.clone(), is_connected: false, reported: Vec::new(), cut: None };
    let mut pause = FIRST_PAUSE;
    loop {
        match open_for_waiting_requests(&node, &target).await {
            Ok(live) => {
                let live = Arc::new(live);
                *node.state.lock() = NodeState::new(None);
                node.live.store(Some(live.clone()));
                // The server tracks only the keys that are read on the new connection.
                node.changed.notify_one();
                release_waiting(&node);
                log.connected();
                watch(&node, &live, &target).await;
                if live.opened.elapsed() >= SETTLED {
                    pause = FIRST_PAUSE;
                    log.reported.clear();
                }
                let diagnosis = node.state.lock().diagnosis.clone();
                if node.is_returning.load(Ordering::Relaxed) {
                    log.cut = diagnosis.map(|diagnosis| diagnosis.text);
                    continue;
                }
                log.lost(diagnosis);
            }
            Err(diagnosis) => {
                node.state.lock().diagnosis = Some(diagnosis.clone());
                release_waiting(&node);
                log.lost(Some(diagnosis));
            }
        }
        sleep(jittered(pause)).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Opens a connection. Requests wait for it no longer than the store's timeout.
async fn open_for_waiting_requests(node: &Arc<Node>, target: &StoreTarget) -> Result<Connection, Diagnosis> {
    let mut opened = pin!(open(node, target));
    if node.is_returning.load(Ordering::Relaxed) {
        if let Some(opened) = within(node.timeout, opened.as_mut()).await {
            return opened;
        }
        release_waiting(node);
    }
    opened.await
}

/// Wakes the requests that wait for a connection, and lets no more wait.
fn release_waiting(node: &Node) {
    node.is_returning.store(false, Ordering::Relaxed);
    node.returned.notify_waiters();
}

/// Returns when requests no longer use `live`.
async fn watch(node: &Node, live: &Arc<Connection>, target: &StoreTarget) {
    let (mut silence, mut password) = (Silence::default(), live.password.clone());
    while node.live.load().as_ref().is_some_and(|current| Arc::ptr_eq(current, live)) {
        // A connection that is given up before this is polled leaves a permit in `lost`; a permit from an earlier connection
        // costs a turn of the loop.
        let diagnosis = if live.has_ended.load(Ordering::Relaxed) {
            Some(Diagnosis::new(Fault::Unreachable, "the connection was cut"))
        } else if timeout(LOOK_INTERVAL, node.lost.notified()).await.is_err() {
            node.renew(live, target, &mut password).await;
            if silence.is_probe_due(live, node) { node.probe(live).await.err() } else { None }
        } else {
            None
        };
        if let Some(diagnosis) = diagnosis {
            node.give_up(live, diagnosis);
        }
    }
}

/// Between half of `pause` and all of it, so that gateways that lost one server do not all reconnect at once.
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(rand::random_range(0.5..=1.0))
}

/// The most reasons that are logged per outage.
const MOST_REASONS: usize = 8;

/// Logs a line for each reason why there is no connection and one when it is back, however many attempts there are.
struct Log {
    target: String,
    /// True if the last line says so.
    is_connected: bool,
    /// Reasons logged since the last good connection. A server that accepts connections and then fails would otherwise fill the
    /// log.
    reported: Vec<String>,
    /// The reason for the end of the connection that is being replaced.
    cut: Option<String>,
}

impl Log {
    fn connected(&mut self) {
        if !std::mem::replace(&mut self.is_connected, true) {
            tracing::info!(store = %self.target, "connected to the store");
        } else if let Some(reason) = self.cut.take()
            && self.is_new(&reason)
        {
            tracing::info!(store = %self.target, reason, "replaced the connection to the store");
        }
    }

    /// Notes a reason; false if it was logged before or there are too many.
    fn is_new(&mut self, reason: &str) -> bool {
        let is_new = self.reported.len() < MOST_REASONS && self.reported.iter().all(|reported| reported != reason);
        if is_new {
            self.reported.push(reason.to_owned());
        }
        is_new
    }

    fn lost(&mut self, diagnosis: Option<Diagnosis>) {
        self.cut = None;
        let reason = diagnosis.map(|diagnosis| diagnosis.text).unwrap_or_default();
        if self.is_new(&reason) {
            tracing::warn!(store = %self.target, reason, "no connection to the store, trying again");
            self.is_connected = false;
        }
    }
}
