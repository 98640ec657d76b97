//! The task that reads the map of the cluster: at the start, after redirects, when a node fails, and from time to time.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::time::{sleep, timeout};

use super::super::call::describe;
use super::super::diagnosis::Diagnosis;
use super::super::session::Session;
use super::super::stream::Address;
use super::Nodes;
use super::map::{Map, Range, read, split};
use crate::store::Fault;

/// The time between two looks at the map while nothing seems wrong.
const INTERVAL: Duration = Duration::from_secs(5);

/// The same while a tag has no connected node, as during a failover. No request wakes the task more often: a hundred gateways
/// with four workers each ask for the map 2,000 times per second then.
const PAUSE: Duration = Duration::from_millis(200);

/// How long a node may take to describe the cluster, connecting included. The next one is asked then.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

/// Keeps the map current until it is aborted.
pub(super) async fn run(nodes: Arc<Nodes>) {
    let mut reported = None;
    loop {
        match ranges(&nodes).await.and_then(|ranges| apply(&nodes, &ranges)) {
            Ok(()) => {
                *nodes.diagnosis.lock() = None;
                if reported.take().is_some() {
                    tracing::info!(store = %nodes.target.shown, "the cluster's nodes are known again");
                }
            }
            Err(diagnosis) => {
                if reported.as_ref() != Some(&diagnosis.text) {
                    let reason = &diagnosis.text;
                    tracing::warn!(store = %nodes.target.shown, reason, "cannot read the cluster's nodes, trying again");
                    reported = Some(diagnosis.text.clone());
                }
                *nodes.diagnosis.lock() = Some(diagnosis);
            }
        }
        let map = nodes.map.load_full();
        let is_whole = map.is_complete() && map.nodes().all(|node| node.health().connected);
        // Gateways that see one failure do not all ask at once.
        let jitter = rand::random_range(0.75..=1.0);
        sleep(PAUSE.mul_f64(jitter)).await;
        if is_whole {
            let _ = timeout(INTERVAL.mul_f64(jitter), nodes.stale.notified()).await;
        }
    }
}

/// Replaces the map, if it has changed.
fn apply(nodes: &Arc<Nodes>, ranges: &[Range]) -> Result<(), Diagnosis> {
    let failing = |reason| Diagnosis::new(Fault::Cluster, reason);
    let map = nodes.map.load();
    let map = map.by_ranges(ranges, |host, port, tag| nodes.open(host, port, tag)).map_err(failing)?;
    let is_complete = map.is_complete();
    nodes.map.store(Arc::new(map));
    if is_complete {
        Ok(())
    } else {
        Err(failing("some hash slots have no node: check `redis-cli --cluster check`".into()))
    }
}

/// Asks the connected nodes in turn, then those of the URL. Returns the first answer, or why the last one failed.
async fn ranges(nodes: &Nodes) -> Result<Vec<Range>, Diagnosis> {
    let mut last = Diagnosis::new(Fault::Unreachable, "no node answers");
    let map: Arc<Map> = nodes.map.load_full();
    for (name, node) in map.named() {
        let Some(connection) = node.connection() else { continue };
        let host = split(name).map_or("", |(host, _)| host);
        match timeout(ANSWER_TIMEOUT, connection.reply(&question())).await {
            Ok(reply) => match ranges_of(reply.and_then(Value::extract_error), host) {
                Ok(ranges) => return Ok(ranges),
                Err(diagnosis) => last = diagnosis,
            },
            Err(_) => last = Diagnosis::new(Fault::Silent, format!("{name} does not answer")),
        }
    }
    for address in nodes.target.seeds() {
        let asked = timeout(ANSWER_TIMEOUT, ask_seed(nodes, address)).await;
        match asked.unwrap_or_else(|_| Err(Diagnosis::new(Fault::Silent, format!("{address} does not answer")))) {
            Ok(ranges) => return Ok(ranges),
            Err(diagnosis) => last = diagnosis,
        }
    }
    Err(last)
}

async fn ask_seed(nodes: &Nodes, address: &Address) -> Result<Vec<Range>, Diagnosis> {
    let named = |diagnosis: Diagnosis| Diagnosis { text: format!("{address}: {}", diagnosis.text), ..diagnosis };
    let session = Session::open(address, &nodes.target.login).await.map_err(named)?;
    ranges_of(session.ask(&question()).await, address.host().unwrap_or_default()).map_err(named)
}

fn question() -> Cmd {
    let mut command = redis::cmd("CLUSTER");
    command.arg("SLOTS");
    command
}

fn ranges_of(reply: redis::RedisResult<Value>, asked: &str) -> Result<Vec<Range>, Diagnosis> {
    match reply {
        Ok(reply) => read(&reply, asked)
            .filter(|ranges| !ranges.is_empty())
            .ok_or_else(|| Diagnosis::new(Fault::Cluster, "the node is not part of a cluster that has hash slots yet")),
        Err(error) => {
            let text = describe(&error);
            if text.contains("cluster support disabled") {
                return Err(Diagnosis::new(Fault::Cluster, format!("{text}: write `redis://` for a single server")));
            }
            if error.code() == Some("NOPERM") {
                return Err(Diagnosis::new(Fault::Permission, format!("{text}: give the user `+cluster|slots`")));
            }
            let diagnosis = error.code().and_then(|_| Diagnosis::of_reply(&text));
            Err(diagnosis.unwrap_or_else(|| Diagnosis::new(Fault::Unreachable, text)))
        }
    }
}
