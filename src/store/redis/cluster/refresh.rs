//! The task that reads the map of the cluster: at the start, after redirects, when a node fails, and from time to time.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::super::diagnosis::Diagnosis;
use super::Nodes;
use super::map::Range;
use super::reports::{Report, believed};
use crate::store::Fault;

/// The time between two looks at the map while nothing seems wrong.
const INTERVAL: Duration = Duration::from_secs(5);

/// The same while a tag has no connected node, as during a failover. No request wakes the task more often: a hundred gateways
/// with four workers each ask for the map 2,000 times per second then.
const PAUSE: Duration = Duration::from_millis(200);

/// Tells the operator, once, that reports are only counted.
const LACKS_STATE: &str = "the user may not call CLUSTER INFO, so a node that is cut off from its cluster is recognized only by the \
                           others' answers: give the user `+cluster|info`";

/// Keeps the map current until it is aborted.
pub(super) async fn run(nodes: Arc<Nodes>) {
    let (mut reported, mut is_hinted) = (None, false);
    loop {
        let report = believed(&nodes).await;
        if report.as_ref().is_ok_and(Report::lacks_state) && !std::mem::replace(&mut is_hinted, true) {
            tracing::warn!(store = %nodes.target.shown, "{LACKS_STATE}");
        }
        match report.and_then(|report| apply(&nodes, &report.ranges)) {
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
