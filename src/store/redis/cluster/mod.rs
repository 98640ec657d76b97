//! A Redis Cluster: the buckets are spread over its nodes by their tags.
//!
//! Each node has a connection, a breaker and a queue of its own. The map says which node has which tag. A node that no longer has
//! a tag redirects the call without executing it, so the call is made again at the right one (`follow`), and the map is read
//! again (`refresh`). Replicas are never asked.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use redis::{Cmd, RedisResult, Value};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use self::map::Map;
use super::diagnosis::Diagnosis;
use super::keys::KeyStarts;
use super::node::{Line, NodeCounts, NodeHandle, Route};
use super::request::Request;
use super::target::StoreTarget;
use super::unclaimed::Unclaimed;
use crate::engine::algorithms::decision::Decisions;
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::script::ScriptSource;
use crate::engine::algorithms::tag::tag_of;
use crate::store::{Batch, Fault, Health, StoreAnswer, StoreError};

mod across;
mod follow;
mod map;
mod refresh;
mod reports;

pub(super) struct Cluster {
    nodes: Arc<Nodes>,
    /// Ends with the store.
    _refresher: AbortOnDropHandle<()>,
}

/// The nodes, for requests and for the task that finds them.
struct Nodes {
    target: StoreTarget,
    key_starts: KeyStarts,
    timeout: Duration,
    map: ArcSwap<Map>,
    /// Wakes the task that reads the map.
    stale: Notify,
    /// Why the map could not be read last.
    diagnosis: Mutex<Option<Diagnosis>>,
    /// The counts of all nodes, also of those that have left, and of requests across hash slots.
    counts: Arc<NodeCounts>,
    /// Requests across hash slots, which go on if their clients leave. Each ends within a few of the store's timeouts.
    tasks: TaskTracker,
}

impl Cluster {
    /// Starts to look for the nodes and returns at once. Call it inside the tokio runtime that will ask.
    pub(super) fn start(target: &StoreTarget) -> Self {
        let diagnosis = Diagnosis::new(Fault::Unreachable, "not connected yet");
        let nodes = Arc::new(Nodes {
            target: target.clone(),
            key_starts: KeyStarts::spread(&target.prefix),
            timeout: target.timeout,
            map: ArcSwap::from_pointee(Map::default()),
            stale: Notify::new(),
            diagnosis: Mutex::new(Some(diagnosis)),
            counts: Arc::default(),
            tasks: TaskTracker::new(),
        });
        let refresher = tokio::spawn(refresh::run(nodes.clone()));
        Self { nodes, _refresher: AbortOnDropHandle::new(refresher) }
    }

    /// Decides the charges of one request. If their tags are in one hash slot, as one call; see [`across`] for others.
    pub(super) async fn decide(
        &self,
        line: Line,
        batch: &Batch<'_>,
        now: Option<Micros>,
    ) -> Result<Decisions, StoreError> {
        let Some(first) = batch.charges.first() else { return Ok(Decisions::default()) };
        let tag = tag_of(&first.bucket);
        for charge in batch.charges {
            let route = Route::new(tag_of(&charge.bucket), line);
            self.nodes.node(route.tag).map_or(Ok(()), |node| node.admit(route))?;
        }
        if batch.charges.iter().all(|charge| tag_of(&charge.bucket) == tag) {
            match self.nodes.decide(Route::new(tag, line), batch, now).await {
                Err(error) if follow::is_split(&error, batch.charges) => {}
                decided => return decided,
            }
        }
        self.decide_across(line, batch, now).wait().await
    }

    /// As [`Self::decide`], without waiting for the answer. The caller bounds the number of requests at a time.
    pub(super) fn ask(&self, batch: &Batch<'_>, now: Option<Micros>) -> StoreAnswer {
        let tag = batch.charges.first().map_or(0, |charge| tag_of(&charge.bucket));
        if batch.charges.iter().any(|charge| tag_of(&charge.bucket) != tag) {
            return self.decide_across(Line::of(batch.charges), batch, now);
        }
        // It is sent before anything that is asked later.
        let route = Route::new(tag, Line::of(batch.charges));
        let answer = self.nodes.ask(route, batch, now);
        let (nodes, request) = (Arc::clone(&self.nodes), Request::new(batch, now));
        // The node gives back what nobody takes.
        self.answer_of(
            None,
            now,
            async move { nodes.follow(answer, route, &request.batch(), now, nodes.timeout).await },
        )
    }

    fn decide_across(&self, line: Line, batch: &Batch<'_>, now: Option<Micros>) -> StoreAnswer {
        let (nodes, request) = (Arc::clone(&self.nodes), Request::new(batch, now));
        self.answer_of(Unclaimed::of(batch), now, async move { across::decide(&nodes, line, &request).await })
    }

    /// Runs a request to its end, whether or not anybody waits for the answer.
    fn answer_of(
        &self,
        unclaimed: Option<Box<Unclaimed>>,
        now: Option<Micros>,
        deciding: impl Future<Output = Result<Decisions, StoreError>> + Send + 'static,
    ) -> StoreAnswer {
        let (answer, receiver) = oneshot::channel();
        let nodes = Arc::clone(&self.nodes);
        self.nodes.tasks.spawn(async move {
            let (Err(unsent), Some(unclaimed)) = (answer.send(deciding.await), unclaimed) else { return };
            // Some nodes may have charged the request while another one was silent.
            let decisions = match unsent {
                Ok(decisions) => Some(decisions),
                Err(StoreError::Partial(partial)) => Some(partial.decisions),
                Err(_) => None,
            };
            if let Some(decisions) = decisions {
                let refunds = unclaimed.refunds(&decisions);
                let asked = refunds.iter().map(|refund| {
                    let batch = unclaimed.batch(std::slice::from_ref(refund));
                    nodes.ask(Route::new(tag_of(&refund.bucket), Line::of(batch.charges)), &batch, now)
                });
                for answer in asked.collect::<Vec<_>>() {
                    nodes.counts.count_lost(u64::from(answer.wait().await.is_err()));
                }
            }
        });
        StoreAnswer::Pending(receiver)
    }

    /// Has the nodes compile user scripts.
    pub(super) fn check_scripts(&self, scripts: &[Arc<ScriptSource>]) {
        for node in self.nodes.map.load().nodes() {
            node.check_scripts(scripts.to_vec());
        }
    }

    pub(super) fn is_overloaded(&self) -> bool {
        let now = Instant::now();
        self.nodes.map.load().nodes().any(|node| node.is_overloaded(now))
    }

    /// The node with this tag.
    pub(super) fn node(&self, tag: u8) -> Result<Arc<NodeHandle>, StoreError> {
        self.nodes.node(tag)
    }

    /// Replaces a reply that sends a command with this tag's keys elsewhere; see [`follow`].
    pub(super) async fn follow_command(&self, tag: u8, command: &Cmd, reply: &mut Value) -> RedisResult<()> {
        self.nodes.follow_command(tag, command, reply).await
    }

    /// The state of all nodes: they are connected if each tag's is.
    pub(super) fn health(&self) -> Health {
        let map = self.nodes.map.load();
        let mut health = Health { connected: map.is_complete(), ..Health::default() };
        self.nodes.counts.tell(&mut health);
        for (name, node) in map.named() {
            let of_node = node.health();
            health.connected &= of_node.connected;
            health.breaker_open |= of_node.breaker_open;
            if health.fault.is_none() && (of_node.fault.is_some() || health.last_error.is_none()) {
                health.fault = of_node.fault;
                health.last_error = of_node.last_error.map(|error| format!("node {name}: {error}"));
            }
        }
        if health.fault.is_none()
            && let Some(Diagnosis { fault, text }) = self.nodes.diagnosis.lock().clone()
        {
            (health.fault, health.last_error) = (Some(fault), Some(text));
        }
        health
    }
}

impl Nodes {
    fn node(&self, tag: u8) -> Result<Arc<NodeHandle>, StoreError> {
        self.map.load().of_tag(tag).ok_or(StoreError::Down)
    }

    /// A node at `host:port`, which begins to connect.
    fn open(&self, host: &str, port: u16, tag: u8) -> Result<NodeHandle, String> {
        Ok(NodeHandle::start(&self.target.node(host, port, tag)?, self.key_starts.clone(), self.counts.clone()))
    }
}
