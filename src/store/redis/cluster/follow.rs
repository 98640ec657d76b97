//! One call's way through the cluster: to the node that has its tag, and on to others as the replies say.
//!
//! A redirected call was not executed, so making it again is safe. All of it happens within the request's deadline.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, RedisResult, Value};
use tokio::time::{Instant, sleep};

use super::super::call::describe;
use super::super::diagnosis::Diagnosis;
use super::super::node::{Migration, NodeHandle, Route, within};
use super::super::redirect::Redirect;
use super::super::url::host_and_port;
use super::Nodes;
use super::map;
use crate::engine::algorithms::charge::Charge;
use crate::engine::algorithms::decision::Decisions;
use crate::engine::algorithms::micros::Micros;
use crate::store::{Batch, Fault, StoreAnswer, StoreError};

/// The longest time for which a command is repeated that no request waits for.
const COMMAND_TIMEOUT: Duration = Duration::from_millis(500);

/// The pause before a call is made again to a cluster that cannot serve it at the moment.
const PAUSE: Duration = Duration::from_millis(2);

/// Returns true if the call failed because its keys are at two nodes, so that its charges must be decided one by one.
pub(super) fn is_split(error: &StoreError, charges: &[Charge]) -> bool {
    charges.len() > 1 && redirect_of(error) == Some(Redirect::TryAgain)
}

fn redirect_of(error: &StoreError) -> Option<Redirect> {
    match error {
        StoreError::Failed(text) => Redirect::of_reply(text),
        _ => None,
    }
}

impl Nodes {
    /// Decides charges of one tag.
    pub(super) async fn decide(
        self: &Arc<Self>,
        route: Route,
        batch: &Batch<'_>,
        now: Option<Micros>,
    ) -> Result<Decisions, StoreError> {
        let answer = self.ask(route, batch, now);
        self.follow(answer, route, batch, now, self.timeout).await
    }

    /// Asks the node that has the tag by the map.
    pub(super) fn ask(&self, route: Route, batch: &Batch<'_>, now: Option<Micros>) -> StoreAnswer {
        match self.node(route.tag) {
            Ok(node) => node.ask(route, batch, now),
            Err(error) => StoreAnswer::Ready(Err(error)),
        }
    }

    /// Waits for an answer, and asks again where the reply says, until `span` has passed since now.
    pub(super) async fn follow(
        self: &Arc<Self>,
        answer: StoreAnswer,
        route: Route,
        batch: &Batch<'_>,
        now: Option<Micros>,
        span: Duration,
    ) -> Result<Decisions, StoreError> {
        let begun = Instant::now();
        // The node bounds the wait for the first answer.
        let mut answered = answer.wait().await;
        if let Err(StoreError::Down | StoreError::Broken | StoreError::Late(_)) = answered {
            // A replica may have taken the place of the node.
            self.stale.notify_one();
        }
        while let Err(error) = &answered
            && let Some(redirect) = redirect_of(error)
            && !is_split(error, batch.charges)
        {
            let left = span.saturating_sub(begun.elapsed());
            if left.is_zero() {
                break;
            }
            let again = async {
                let (node, migration) = self.next(route.tag, redirect).await?;
                node.ask(Route { migration, ..route }, batch, now).wait().await
            };
            match within(left, pin!(again)).await {
                Some(next) => answered = next,
                None => break,
            }
        }
        if let Err(error) = &answered {
            self.note_unserved(route.tag, error, batch.charges);
        }
        answered
    }

    /// Sends a command again where the reply says, for [`COMMAND_TIMEOUT`]. Then the last reply stays.
    pub(super) async fn follow_command(self: &Arc<Self>, tag: u8, command: &Cmd, reply: &mut Value) -> RedisResult<()> {
        let begun = Instant::now();
        while let Value::ServerError(error) = reply
            && let Some(redirect) = Redirect::of_reply(&describe(&error.clone().into()))
            && begun.elapsed() < COMMAND_TIMEOUT
        {
            // Without another node, the reply says why.
            let Ok((node, migration)) = self.next(tag, redirect).await else { break };
            let Ok(live) = node.awaited_connection().await else { break };
            *reply = match migration {
                Some(Migration::Destination) => live.reply_when_asking(command.clone()).await?,
                _ => live.reply(command).await?,
            };
        }
        Ok(())
    }

    /// Notes that no node has decided a call until its time was up.
    fn note_unserved(&self, tag: u8, error: &StoreError, charges: &[Charge]) {
        if let (StoreError::Failed(text), Some(redirect)) = (error, redirect_of(error))
            && !is_split(error, charges)
        {
            self.note(tag, format!("{text}: {}", redirect.hint()));
        }
    }

    fn note(&self, tag: u8, text: String) {
        if let Ok(node) = self.node(tag) {
            node.note_failure(Diagnosis::new(Fault::Cluster, text));
        }
    }

    /// The error of a request whose answer has not come, by its node.
    pub(super) fn late(&self, tag: u8, begun: Instant, waiting: usize) -> StoreError {
        self.node(tag).map_or(StoreError::Late(self.timeout), |node| node.late(begun, waiting))
    }

    /// The number of requests that wait for the node with this tag.
    pub(super) fn waiting(&self, tag: u8) -> usize {
        self.node(tag).map_or(0, |node| node.waiting())
    }

    /// The node to ask after a redirect, and how.
    async fn next(
        self: &Arc<Self>,
        tag: u8,
        redirect: Redirect,
    ) -> Result<(Arc<NodeHandle>, Option<Migration>), StoreError> {
        match redirect {
            Redirect::Moved { slot, node } => {
                let (name, found) = self.named(&node, tag)?;
                self.map.rcu(|map| map.with_slot(slot, &name, &found));
                self.stale.notify_one();
                Ok((found, None))
            }
            Redirect::Ask { node } => {
                let (name, found) = self.named(&node, tag)?;
                self.map.rcu(|map| map.with_node(&name, &found));
                Ok((found, Some(Migration::Destination)))
            }
            Redirect::TryAgain => {
                sleep(PAUSE).await;
                Ok((self.node(tag)?, Some(Migration::Source)))
            }
            Redirect::Down => {
                self.stale.notify_one();
                sleep(PAUSE).await;
                Ok((self.node(tag)?, None))
            }
        }
    }

    /// The node that a redirect names, and its name. Begins to connect to one that is not in the map.
    fn named(&self, named: &str, tag: u8) -> Result<(String, Arc<NodeHandle>), StoreError> {
        let map = self.map.load();
        let unusable = || {
            let text = format!("a node of the cluster named another one `{named}`");
            self.note(tag, text.clone());
            StoreError::Failed(text)
        };
        let (host, port) = map::split(named).ok_or_else(unusable)?;
        // A node that does not know its own address means its host.
        let own = map.name_of(tag).and_then(map::split);
        let host = if host.is_empty() { own.ok_or_else(unusable)?.0 } else { host };
        let name = host_and_port(host, port);
        let node = match map.node(&name) {
            Some(node) => node,
            None => Arc::new(self.open(host, port, tag).map_err(StoreError::Failed)?),
        };
        Ok((name, node))
    }
}
