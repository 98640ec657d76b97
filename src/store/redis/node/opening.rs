//! Opens a connection to a server that can decide.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::aio::{MultiplexedConnection, SendError};
use redis::{AsyncConnectionConfig, ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo, Value};
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::Node;
use super::connection::Connection;
use crate::engine::algorithms::charge::{Bucket, Charge, Mode};
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::numbers::Numbers;
use crate::store::redis::call::{Requests, describe, text};
use crate::store::redis::diagnosis::Diagnosis;
use crate::store::redis::redirect::Redirect;
use crate::store::redis::sentinel::Sentinels;
use crate::store::redis::session::on_opening;
use crate::store::redis::stream::{Address, Stream};
use crate::store::redis::target::{StoreTarget, Topology};
use crate::store::redis::url::{HostPort, host_and_port};
use crate::store::{Batch, Fault};

/// How long opening a connection may take, including name lookup, TLS, AUTH and the trial. With the longest pause this stays below
/// the 2 s within which limiting resumes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// The part of it for the master that Sentinels name, after they have.
const MASTER_TIMEOUT: Duration = Duration::from_millis(750);

/// The commands that the library queues until they are written. Calls are fewer (`calls`), other commands rare.
const COMMANDS_KEPT: usize = 64;

/// The bucket of the trial call. No limit's name begins with `!`.
const TRIAL: &str = "!trial";

/// Opens a connection to a server that can decide. A server that rejects the password may have a new one that is about to come.
pub(super) async fn open(node: &Arc<Node>, target: &StoreTarget) -> Result<Connection, Diagnosis> {
    loop {
        let changes = target.credentials.changes();
        match open_now(node, target).await {
            Err(rejected) if rejected.fault == Fault::Authentication && target.credentials.changed(changes).await => {}
            opened => return opened,
        }
    }
}

async fn open_now(node: &Arc<Node>, target: &StoreTarget) -> Result<Connection, Diagnosis> {
    let opened = timeout(CONNECT_TIMEOUT, async {
        match &target.topology {
            Topology::Single(address) | Topology::Node(address, _) => open_at(node, target, address).await,
            Topology::Sentinel { .. } => open_master(node, target).await,
            Topology::Cluster(_) => Err(Diagnosis::new(Fault::Cluster, "a cluster is more than one server")),
        }
    });
    let silent = |_| Diagnosis::new(Fault::Silent, format!("no connection within {CONNECT_TIMEOUT:?}"));
    opened.await.map_err(silent)?
}

async fn open_at(node: &Arc<Node>, target: &StoreTarget, address: &Address) -> Result<Connection, Diagnosis> {
    let connect = |login| connect(node, login, address);
    let ((live, protocol), password) = target.credentials.log_in(connect).await?;
    identify(&live, protocol, target, address).await?;
    let is_tracking = protocol == ProtocolVersion::RESP3 && track(&live).await;
    try_out(&live, node, address, target).await?;
    Ok(Connection { is_tracking, password, ..live })
}

/// Opens a connection to the master that the Sentinels name, and has them watched for another one.
async fn open_master(node: &Arc<Node>, target: &StoreTarget) -> Result<Connection, Diagnosis> {
    let Some(sentinels) = Sentinels::of(target) else { return Err(Diagnosis::new(Fault::Sentinel, "no Sentinel")) };
    let masters = sentinels.masters().await?;
    // A failover that is not known to all Sentinels yet leaves two candidates.
    let patience = if masters.len() == 1 { MASTER_TIMEOUT } else { MASTER_TIMEOUT / 2 };
    let mut first = None;
    for master in masters {
        let name = shown(&master);
        let opened = timeout(patience, async {
            let invalid = |reason| Diagnosis::new(Fault::Tls, reason);
            let address = Address::tcp(master.0.clone(), master.1, target.tls.as_ref()).map_err(invalid)?;
            open_at(node, target, &address).await
        });
        let silent = |_| Err(Diagnosis::new(Fault::Silent, format!("no connection within {patience:?}")));
        match opened.await.unwrap_or_else(silent) {
            Ok(live) => return Ok(watched(live, node, sentinels, master)),
            Err(diagnosis) => {
                let text = format!("the master {name}, as the Sentinels name it: {}", diagnosis.text);
                first.get_or_insert(Diagnosis { text, ..diagnosis });
            }
        }
    }
    Err(first.unwrap_or_else(|| Diagnosis::new(Fault::Sentinel, "the Sentinels name no master")))
}

/// Has the connection given up when the Sentinels name another master: this one may not know that it was replaced.
fn watched(live: Connection, node: &Arc<Node>, sentinels: Sentinels, master: HostPort) -> Connection {
    let (node, has_ended) = (Arc::downgrade(node), live.has_ended.clone());
    let watcher = tokio::spawn(async move {
        let new = sentinels.until_moved(&master).await;
        let Some(node) = node.upgrade() else { return };
        if let Some(live) = node.connection().filter(|live| Arc::ptr_eq(&live.has_ended, &has_ended)) {
            let text = format!("the Sentinels name {} as the master instead of {}", shown(&new), shown(&master));
            node.give_up(&live, Diagnosis::new(Fault::Unreachable, text));
        }
    });
    Connection { _watcher: Some(AbortOnDropHandle::new(watcher)), ..live }
}

fn shown((host, port): &HostPort) -> String {
    host_and_port(host, *port)
}

/// Opens a connection and logs in. Notifications need RESP3. If the server or the user lacks that, or the login fails, RESP2 follows.
async fn connect(
    node: &Arc<Node>,
    login: RedisConnectionInfo,
    address: &Address,
) -> Result<(Connection, ProtocolVersion), Diagnosis> {
    // A node of a cluster sends no notification when it loses the hash slot of a key that does not exist.
    if node.is_watching.load(Ordering::Relaxed) && !node.is_in_cluster {
        let waiting = Arc::downgrade(node);
        let take = move |push: PushInfo| {
            if let (PushKind::Invalidate, Some(node)) = (push.kind, waiting.upgrade()) {
                node.changed.notify_one();
            }
            Ok::<(), SendError>(())
        };
        let login = login.clone().set_protocol(ProtocolVersion::RESP3);
        let stream = address.open().await?;
        if let Ok(live) = log_in(node, address, &login, config().set_push_sender(take), stream).await {
            return Ok((live, ProtocolVersion::RESP3));
        }
    }
    let stream = address.open().await?;
    let live = log_in(node, address, &login, config(), stream).await?;
    Ok((live, ProtocolVersion::RESP2))
}

fn config() -> AsyncConnectionConfig {
    // Each call and each probe has its own deadline.
    AsyncConnectionConfig::new().set_response_timeout(None).set_pipeline_buffer_size(COMMANDS_KEPT)
}

async fn log_in(
    node: &Arc<Node>,
    address: &Address,
    login: &RedisConnectionInfo,
    config: AsyncConnectionConfig,
    stream: Box<dyn Stream>,
) -> Result<Connection, Diagnosis> {
    let opened = MultiplexedConnection::new_with_config(login, stream, config).await;
    let (client, driver) = opened.map_err(|error| on_opening(address, &error))?;
    let has_ended = Arc::new(AtomicBool::new(false));
    let (node, ended) = (Arc::downgrade(node), has_ended.clone());
    let driver = AbortOnDropHandle::new(tokio::spawn(async move {
        driver.await;
        ended.store(true, Ordering::Relaxed);
        if let Some(node) = node.upgrade() {
            node.lost.notify_one();
        }
    }));
    let (heard, shortest, overdue) = (AtomicU64::new(0), AtomicU64::new(u64::MAX), AtomicU32::new(0));
    let (opened, is_tracking, password) = (Instant::now(), false, None);
    Ok(Connection {
        client,
        opened,
        is_tracking,
        password,
        heard,
        shortest,
        overdue,
        has_ended,
        driver,
        _watcher: None,
    })
}

/// Tells the server this client's name and asks for its mode and role. What it does not let the user ask is left to the trial.
async fn identify(
    live: &Connection,
    protocol: ProtocolVersion,
    target: &StoreTarget,
    address: &Address,
) -> Result<(), Diagnosis> {
    let version = if protocol == ProtocolVersion::RESP3 { 3 } else { 2 };
    let mut hello = redis::cmd("HELLO");
    let (mode, role) = match live.reply(hello.arg(version).arg("SETNAME").arg(client_name())).await {
        Ok(Value::Array(values)) => (text_of(&values, "mode"), text_of(&values, "role")),
        Ok(Value::Map(pairs)) => {
            let values: Vec<Value> = pairs.into_iter().flat_map(|(name, value)| [name, value]).collect();
            (text_of(&values, "mode"), text_of(&values, "role"))
        }
        _ => (String::new(), role(live).await),
    };
    if mode == "cluster" && matches!(target.topology, Topology::Single(_)) {
        let masters = masters_of_cluster(live).await;
        if masters > 1 {
            let scheme = if address.has_tls() { "rediss+cluster" } else { "redis+cluster" };
            let right = format!("write the store as `{scheme}://{address}`");
            let text = format!("this server is a node of a cluster of {masters} masters: {right}");
            return Err(Diagnosis::new(Fault::Cluster, text));
        }
    }
    Diagnosis::of_kind(&mode, &role).map_or(Ok(()), Err)
}

/// Asks the server for notifications of changes of the keys that are read on the connection. Returns false if it refuses.
async fn track(live: &Connection) -> bool {
    matches!(live.reply(redis::cmd("CLIENT").arg("TRACKING").arg("ON")).await, Ok(Value::Okay))
}

/// The role, for a user without `+hello`. The name is worth no error.
async fn role(live: &Connection) -> String {
    let _ = live.reply(redis::cmd("CLIENT").arg("SETNAME").arg(client_name())).await;
    let Ok(Value::Array(parts)) = live.reply(&redis::cmd("ROLE")).await else { return String::new() };
    parts.first().and_then(text).unwrap_or_default().to_owned()
}

/// The number of masters that have hash slots; 0 if the user may not ask.
async fn masters_of_cluster(live: &Connection) -> usize {
    let reply = live.reply(redis::cmd("CLUSTER").arg("INFO")).await;
    let info = reply.ok().as_ref().and_then(text).unwrap_or_default().to_owned();
    info.lines().find_map(|line| line.strip_prefix("cluster_size:")?.trim().parse().ok()).unwrap_or(0)
}

/// The name in `CLIENT LIST`: `weir-HOST`, in a pod the name of the pod.
fn client_name() -> &'static str {
    static NAME: LazyLock<String> = LazyLock::new(|| {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host: String =
            host.trim().chars().filter(|letter| letter.is_ascii_alphanumeric() || ".-_".contains(*letter)).collect();
        if host.is_empty() { "weir".into() } else { format!("weir-{host}") }
    });
    &NAME
}

/// The value after this name.
fn text_of(values: &[Value], name: &str) -> String {
    let found = values.chunks(2).find(|pair| text(&pair[0]) == Some(name));
    found.and_then(|pair| text(pair.get(1)?)).unwrap_or_default().to_owned()
}

/// Makes a call that needs the usual permissions and leaves nothing behind: a reset of an unused bucket.
async fn try_out(live: &Connection, node: &Node, address: &Address, target: &StoreTarget) -> Result<(), Diagnosis> {
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
        Err(error) => Diagnosis::of_call(&describe(&error), &node.key_starts),
        Ok(value) => match requests.reply(value) {
            Ok(reply) => {
                reply.answers.iter().find_map(|answer| Diagnosis::of_call(answer.as_ref().err()?, &node.key_starts))
            }
            Err(reply) => {
                return Err(Diagnosis::new(Fault::Failing, format!("unexpected reply to a script call: {reply:?}")));
            }
        },
    };
    diagnosis.map_or(Ok(()), Err)
}
