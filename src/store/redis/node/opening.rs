//! Opens a connection to a server that can decide.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Value};
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::Node;
use super::connection::Connection;
use crate::engine::algorithms::charge::{Bucket, Charge, Mode};
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::numbers::Numbers;
use crate::store::redis::call::{Requests, describe};
use crate::store::redis::diagnosis::Diagnosis;
use crate::store::redis::redirect::Redirect;
use crate::store::redis::session::on_opening;
use crate::store::redis::stream::Address;
use crate::store::redis::target::{Target, Topology};
use crate::store::{Batch, Fault};

/// How long opening a connection may take, including name lookup, TLS, AUTH and the trial. With the longest pause this stays below
/// the 2 s within which limiting resumes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// The commands that the library queues until they are written. Calls are fewer (`calls`), other commands rare.
const COMMANDS_KEPT: usize = 64;

/// The bucket of the trial call. No limit's name begins with `!`.
const TRIAL: &str = "!trial";

/// Opens a connection to a server that can decide.
pub(super) async fn open(node: &Arc<Node>, target: &Target) -> Result<Connection, Diagnosis> {
    let opened = timeout(CONNECT_TIMEOUT, async {
        let address = address(target)?;
        let live = connect(node, target, address).await?;
        identify(&live).await?;
        try_out(&live, node, address, target).await?;
        Ok(live)
    });
    let silent = |_| Diagnosis::new(Fault::Silent, format!("no connection within {CONNECT_TIMEOUT:?}"));
    opened.await.map_err(silent)?
}

/// Returns the address of the server that decides.
fn address(target: &Target) -> Result<&Address, Diagnosis> {
    match &target.topology {
        Topology::Single(address) | Topology::Node(address, _) => Ok(address),
        Topology::Cluster(_) => Err(Diagnosis::new(Fault::Cluster, "clusters are not in this version")),
        Topology::Sentinel { .. } => Err(Diagnosis::new(Fault::Sentinel, "Sentinels are not in this version")),
    }
}

/// Opens a connection and logs in.
async fn connect(node: &Arc<Node>, target: &Target, address: &Address) -> Result<Connection, Diagnosis> {
    let stream = address.open().await?;
    let config = AsyncConnectionConfig::new()
        // Each call and each probe has its own deadline.
        .set_response_timeout(None)
        .set_pipeline_buffer_size(COMMANDS_KEPT);
    let opened = MultiplexedConnection::new_with_config(&target.login, stream, config).await;
    let (client, driver) = opened.map_err(|error| on_opening(address, &error))?;
    let has_ended = Arc::new(AtomicBool::new(false));
    let (node, ended) = (node.clone(), has_ended.clone());
    let driver = AbortOnDropHandle::new(tokio::spawn(async move {
        driver.await;
        ended.store(true, Ordering::Relaxed);
        node.lost.notify_one();
    }));
    let (heard, overdue) = (AtomicU64::new(0), AtomicU32::new(0));
    Ok(Connection { client, opened: Instant::now(), heard, overdue, has_ended, driver })
}

/// Asks the server for its mode and role. For a user without `+hello` the trial and errors reveal them.
async fn identify(live: &Connection) -> Result<(), Diagnosis> {
    let mut hello = Cmd::new();
    hello.arg("HELLO");
    let Ok(Value::Array(values)) = live.reply(&hello).await else { return Ok(()) };
    let value_of = |name: &[u8]| {
        let (names, texts) = (values.iter().step_by(2), values.iter().skip(1).step_by(2));
        names.zip(texts).find_map(|pair| match pair {
            (Value::BulkString(found), Value::BulkString(value)) if found == name => str::from_utf8(value).ok(),
            _ => None,
        })
    };
    match Diagnosis::of_kind(value_of(b"mode").unwrap_or_default(), value_of(b"role").unwrap_or_default()) {
        Some(diagnosis) => Err(diagnosis),
        None => Ok(()),
    }
}

/// Makes a call that needs the usual permissions and leaves nothing behind: a reset of an unused bucket.
async fn try_out(live: &Connection, node: &Node, address: &Address, target: &Target) -> Result<(), Diagnosis> {
    let Ok(numbers) = Numbers::fixed(1) else { return Ok(()) };
    let charge = Charge::new(Bucket::new(TRIAL, 0), numbers, 0, Mode::Reset);
    let batch = Batch { charges: &[charge], effective_from: Micros(0), now: Micros(0) };
    let tag = if let Topology::Node(_, tag) = target.topology { tag } else { 0 };
    let mut requests = Requests::new(&batch, None, node.number(), node.key_starts.of(tag));
    requests.push(batch.charges, batch.now);
    let diagnosis = match live.ask(&requests, false).await {
        Err(error) if error.code().is_none() => Some(on_opening(address, &error)),
        // The node may have handed the key over.
        Err(error) if node.is_in_cluster && Redirect::of_reply(&describe(&error)).is_some() => None,
        Err(error) => Diagnosis::of_call(&describe(&error)),
        Ok(value) => match requests.reply(value) {
            Ok(reply) => reply.answers.iter().find_map(|answer| Diagnosis::of_call(answer.as_ref().err()?)),
            Err(reply) => {
                return Err(Diagnosis::new(Fault::Failing, format!("unexpected reply to a script call: {reply:?}")));
            }
        },
    };
    diagnosis.map_or(Ok(()), Err)
}
