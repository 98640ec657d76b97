//! The nodes' reports on the cluster, and the choice of the one to believe.
//!
//! All nodes are asked at once. A master that is cut off from the others may still be reachable from here, and then describes the
//! cluster as it was: with itself as the master of its hash slots, although a replica has been promoted. So a node that says that
//! the cluster works is believed before one that says it does not, then the one with the highest epoch, which each promotion
//! increases, then what most nodes say.

use std::time::Duration;

use redis::{Cmd, RedisResult, Value};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

use super::super::call::{describe, text};
use super::super::diagnosis::Diagnosis;
use super::super::session::Session;
use super::Nodes;
use super::map::{Range, read, split};
use crate::store::Fault;

/// The longest time for a report, connecting included.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

/// Once one node has answered, the others have this long from the start.
const OTHERS_TIMEOUT: Duration = Duration::from_millis(150);

/// A node's report on the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Report {
    state: ClusterState,
    /// `cluster_current_epoch`; 0 if the user may not ask.
    epoch: u64,
    pub(super) ranges: Vec<Range>,
}

/// `cluster_state` of a node: a master that cannot reach most masters says `fail` after `cluster-node-timeout`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ClusterState {
    Fail,
    /// The user may not ask.
    Unknown,
    Ok,
}

impl Report {
    /// True if the user may not call CLUSTER INFO, so that only the number of equal reports shows which one is current.
    pub(super) fn lacks_state(&self) -> bool {
        self.state == ClusterState::Unknown
    }
}

/// Reports, and how many nodes gave each.
#[derive(Default)]
struct Votes(Vec<(Report, usize)>);

impl Votes {
    fn add(&mut self, report: Report) {
        match self.0.iter_mut().find(|(other, _)| *other == report) {
            Some((_, count)) => *count += 1,
            None => self.0.push((report, 1)),
        }
    }

    /// True if more than half of `asked` nodes agree, and not on that the cluster fails.
    fn is_settled(&self, asked: usize) -> bool {
        self.0.iter().any(|(report, count)| report.state != ClusterState::Fail && *count > asked / 2)
    }

    fn best(self) -> Option<Report> {
        let best = self.0.into_iter().max_by_key(|(report, count)| (report.state, report.epoch, *count));
        best.map(|(report, _)| report)
    }
}

/// Asks the connected nodes, and those of the URL if none of them answers. The error is why the last one gave no report.
pub(super) async fn believed(nodes: &Nodes) -> Result<Report, Diagnosis> {
    let mut asked = JoinSet::new();
    for (name, node) in nodes.map.load().named() {
        let Some(connection) = node.connection() else { continue };
        let name = name.to_owned();
        asked.spawn(answer_of(name.clone(), async move {
            let (info, slots) = (info(), slots());
            let (info, slots) = tokio::join!(connection.reply(&info), connection.reply(&slots));
            let host = split(&name).map_or("", |(host, _)| host);
            report(info.and_then(Value::extract_error), slots.and_then(Value::extract_error), host)
        }));
    }
    let connected = count(asked).await;
    if connected.is_ok() {
        return connected;
    }
    let mut asked = JoinSet::new();
    for address in nodes.target.seeds() {
        let (address, credentials) = (address.clone(), nodes.target.credentials.clone());
        asked.spawn(answer_of(address.to_string(), async move {
            let named =
                |diagnosis: Diagnosis| Diagnosis { text: format!("{address}: {}", diagnosis.text), ..diagnosis };
            let session = Session::log_in(&address, &credentials).await.map_err(named)?;
            let host = address.host().unwrap_or_default();
            report(session.ask(&info()).await, session.ask(&slots()).await, host).map_err(named)
        }));
    }
    count(asked).await
}

/// A node's answer in time.
async fn answer_of(
    name: String,
    answering: impl Future<Output = Result<Report, Diagnosis>>,
) -> Result<Report, Diagnosis> {
    let silent = |_| Diagnosis::new(Fault::Silent, format!("{name} does not answer"));
    timeout(ANSWER_TIMEOUT, answering).await.map_err(silent)?
}

/// Collects the answers until it is clear which report to believe.
async fn count(mut asked: JoinSet<Result<Report, Diagnosis>>) -> Result<Report, Diagnosis> {
    let (start, number) = (Instant::now(), asked.len());
    let mut votes = Votes::default();
    let mut last = Diagnosis::new(Fault::Unreachable, "no node answers");
    while !votes.is_settled(number) {
        // Each ends within its own timeout, with a reason.
        let patience = if votes.0.is_empty() { ANSWER_TIMEOUT * 2 } else { OTHERS_TIMEOUT };
        match timeout_at(start + patience, asked.join_next()).await {
            Ok(Some(Ok(Ok(report)))) => votes.add(report),
            Ok(Some(Ok(Err(diagnosis)))) => last = diagnosis,
            // A task that panicked.
            Ok(Some(Err(_))) => {}
            Ok(None) | Err(_) => break,
        }
    }
    votes.best().ok_or(last)
}

fn info() -> Cmd {
    let mut command = redis::cmd("CLUSTER");
    command.arg("INFO");
    command
}

fn slots() -> Cmd {
    let mut command = redis::cmd("CLUSTER");
    command.arg("SLOTS");
    command
}

/// Reads the replies of the node at `asked`.
fn report(info: RedisResult<Value>, slots: RedisResult<Value>, asked: &str) -> Result<Report, Diagnosis> {
    let (state, epoch) = info.ok().as_ref().and_then(text).map_or((ClusterState::Unknown, 0), state_of);
    let mut ranges = ranges_of(slots, asked)?;
    // Redis 6.2 lists them by node, in any order.
    ranges.sort_by_key(|range| range.first);
    Ok(Report { state, epoch, ranges })
}

/// Reads the reply to CLUSTER INFO.
fn state_of(info: &str) -> (ClusterState, u64) {
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
    let state = match field("cluster_state") {
        Some("ok") => ClusterState::Ok,
        Some(_) => ClusterState::Fail,
        None => ClusterState::Unknown,
    };
    (state, field("cluster_current_epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or(0))
}

fn ranges_of(reply: RedisResult<Value>, asked: &str) -> Result<Vec<Range>, Diagnosis> {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A report with the port of the node that has all hash slots.
    fn report(state: ClusterState, epoch: u64, port: u16) -> Report {
        Report { state, epoch, ranges: vec![Range { first: 0, last: 16_383, host: "h".into(), port }] }
    }

    /// Counts these reports; returns the port of the one to believe, and whether it was clear before all had answered.
    fn believed(reports: &[(ClusterState, u64, u16)], asked: usize) -> (u16, bool) {
        let mut votes = Votes::default();
        for (state, epoch, port) in reports {
            votes.add(report(*state, *epoch, *port));
        }
        let is_settled = votes.is_settled(asked);
        (votes.best().unwrap().ranges[0].port, is_settled)
    }

    #[test]
    fn the_node_is_believed_whose_cluster_works_then_the_newest_then_the_most() {
        use ClusterState::{Fail, Ok, Unknown};
        for (reports, asked, expected) in [
            (&[(Fail, 3, 1), (Ok, 4, 2), (Ok, 4, 2)][..], 3, (2, true)),
            (&[(Fail, 3, 1), (Ok, 4, 2)], 3, (2, false)),
            // A replica that stands for election without any votes increases its epoch again and again.
            (&[(Fail, 9, 1), (Ok, 4, 2)], 3, (2, false)),
            (&[(Ok, 3, 1), (Ok, 3, 1), (Ok, 4, 2)], 5, (2, false)),
            (&[(Ok, 4, 2), (Ok, 4, 1), (Ok, 4, 1)], 5, (1, false)),
            // While the failure of a master is known and its replica not promoted, all say so.
            (&[(Fail, 3, 1), (Fail, 3, 1), (Fail, 3, 1)], 3, (1, false)),
            (&[(Unknown, 0, 1), (Unknown, 0, 2), (Unknown, 0, 2)], 3, (2, true)),
            (&[(Fail, 3, 1), (Unknown, 0, 2)], 3, (2, false)),
        ] {
            assert_eq!(believed(reports, asked), expected, "{reports:?}");
        }
    }

    #[test]
    fn the_state_and_the_epoch_are_read_from_cluster_info() {
        let info =
            "cluster_state:ok\r\ncluster_slots_assigned:16384\r\ncluster_current_epoch:7\r\ncluster_my_epoch:2\r\n";
        assert_eq!(state_of(info), (ClusterState::Ok, 7));
        assert_eq!(state_of("cluster_state:fail\r\ncluster_current_epoch:6\r\n"), (ClusterState::Fail, 6));
        assert_eq!(state_of(""), (ClusterState::Unknown, 0));
    }
}
