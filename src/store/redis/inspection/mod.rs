//! Looks at the servers of a store for `weir check --store`: decisions, rights, settings and timing.
//!
//! Decisions are asked of a store that is connected as `weir serve` does it. Everything else has connections of its own. Whatever
//! the user has no right to ask for stays unknown. Nothing is written but one key that no limit has, which is deleted at once.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use self::facts::{Inspection, RoundTrips, Sentinel, Server, Watch};
use self::info::NodeLine;
use self::rights::Trial;
use self::server::Questions;
use super::RedisStore;
use super::credentials::Credentials;
use super::hash_slots::SLOTS;
use super::keys::KeyStarts;
use super::sentinel::{Sentinels, Watching};
use super::stream::Address;
use super::target::{StoreTarget, Topology};
use super::url::{SentinelLogin, host_and_port};
use crate::engine::algorithms::charge::{Bucket, Charge, Mode};
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::numbers::Numbers;
use crate::engine::algorithms::tag::{TAGS, Tag};
use crate::store::Batch;

pub mod facts;
mod info;
mod rights;
mod server;
mod timing;

/// The timeout of connecting. One attempt takes up to a second.
const CONNECT_PATIENCE: Duration = Duration::from_secs(2);

/// A reason that is the same for this long is the one.
const SETTLED: Duration = Duration::from_millis(500);

/// The pause between two looks at the store's health.
const PAUSE: Duration = Duration::from_millis(5);

/// The timeout of a decision, so that slow ones are measured instead of given up.
const DECISION_TIMEOUT: Duration = Duration::from_secs(1);

/// The key of all trials. No limit's name begins with `!`.
const TRIAL: &str = "!trial";

/// The most nodes of a cluster that are looked at.
const MOST_NODES: usize = 100;

/// Looks at a store. Ends within some seconds for each server.
pub async fn inspect(target: &StoreTarget) -> Inspection {
    let (fault, decisions) = decide(target).await;
    let mut found = Inspection { url: target.shown.clone(), fault, decisions, ..Inspection::default() };
    match &target.topology {
        Topology::Single(address) | Topology::Node(address, _) => found.servers.push(single(target, address).await),
        Topology::Sentinel { sentinels, master, login } => {
            for address in sentinels {
                found.sentinels.push(sentinel(address, login, master).await);
            }
            let named = match Sentinels::of(target) {
                Some(sentinels) => sentinels.masters().await.ok(),
                None => None,
            };
            // `weir serve` asks this one first.
            if let Some((host, port)) = named.and_then(|masters| masters.into_iter().next())
                && let Ok(address) = Address::tcp(host, port, target.tls.as_ref())
            {
                found.servers.push(single(target, &address).await);
            }
        }
        Topology::Cluster(seeds) => {
            found.is_cluster = true;
            found.servers = nodes(target, seeds).await;
        }
    }
    found
}

/// Connects as `weir serve` does and times decisions. Returns the reason if there is no decision.
async fn decide(target: &StoreTarget) -> (Option<String>, Option<RoundTrips>) {
    let store = RedisStore::connect(&StoreTarget { timeout: DECISION_TIMEOUT, ..target.clone() });
    if let Err(reason) = connected(&store).await {
        return (Some(reason), None);
    }
    let Ok(numbers) = Numbers::fixed(1) else { return (None, None) };
    let (mut error, mut next) = (None, 0);
    let taken = timing::round_trips(async || {
        let bucket = Bucket { key: TRIAL.into(), fingerprint: 0, tag: Tag::Fixed(next) };
        next = (next + 1) % TAGS;
        // Nothing is written for a reset of an unused bucket.
        let charges = [Charge::new(bucket, numbers.clone(), 0, Mode::Reset)];
        let decided = store.decide(&Batch { charges: &charges, effective_from: Micros(0), now: Micros(0) }).await;
        error = decided.err().map(|error| error.to_string());
        error.is_none()
    });
    let taken = taken.await;
    (error, taken)
}

/// Waits for the connection. The error says why there is no connection.
async fn connected(store: &RedisStore) -> Result<(), String> {
    let start = Instant::now();
    let (mut last, mut since) = (store.health().last_error, start);
    loop {
        let health = store.health();
        if health.connected {
            return Ok(());
        }
        if health.last_error != last {
            (last, since) = (health.last_error, Instant::now());
        }
        let is_settled = since > start && since.elapsed() >= SETTLED;
        if is_settled || start.elapsed() >= CONNECT_PATIENCE {
            return Err(last.unwrap_or_else(|| "not connected".into()));
        }
        sleep(PAUSE).await;
    }
}

/// The facts about a server that has all keys.
async fn single(target: &StoreTarget, address: &Address) -> Server {
    let trial = Trial::new(
        format!("{}{TRIAL}", KeyStarts::single(&target.prefix).of(0)),
        format!("{}*", KeyStarts::single(&target.prefix).of(0)),
        true,
    );
    look_at(address, &target.credentials, false, Some(&trial)).await
}

async fn look_at(address: &Address, credentials: &Credentials, is_spare: bool, trial: Option<&Trial>) -> Server {
    let facts = match Questions::open(address, credentials).await {
        Ok(questions) => Ok(questions.facts(credentials, trial).await),
        Err(reason) => Err(reason),
    };
    Server { address: address.to_string(), is_spare, facts }
}

/// The nodes of a cluster, as the first node that answers knows them.
async fn nodes(target: &StoreTarget, seeds: &[Address]) -> Vec<Server> {
    let mut silent = Vec::new();
    for seed in seeds {
        let known = match Questions::open(seed, &target.credentials).await {
            Ok(questions) => questions.nodes(seed.host().unwrap_or_default()).await,
            Err(reason) => {
                silent.push(Server { address: seed.to_string(), is_spare: false, facts: Err(reason) });
                continue;
            }
        };
        let Some(known) = known else { return vec![look_at(seed, &target.credentials, false, None).await] };
        let mut servers = Vec::new();
        for line in known.iter().take(MOST_NODES) {
            servers.push(node(target, line).await);
        }
        return servers;
    }
    silent
}

async fn node(target: &StoreTarget, line: &NodeLine) -> Server {
    let has = |slot: &u16| line.slots.iter().any(|(first, last)| (first..=last).contains(&slot));
    let tag = (0..TAGS).zip(SLOTS).find(|(_, slot)| has(slot)).map(|(tag, _)| tag);
    let key_starts = KeyStarts::spread(&target.prefix);
    let trial =
        tag.map(|tag| Trial::new(format!("{}{TRIAL}", key_starts.of(tag)), format!("{}:{{*", target.prefix), false));
    match Address::tcp(line.host.clone(), line.port, target.tls.as_ref()) {
        Ok(address) => look_at(&address, &target.credentials, line.is_replica, trial.as_ref()).await,
        Err(reason) => Server { address: line.host.clone(), is_spare: line.is_replica, facts: Err(reason) },
    }
}

/// Asks a Sentinel for the master.
async fn sentinel(address: &Address, login: &SentinelLogin, master: &str) -> Sentinel {
    let answer = match Watching::open(address, login, master).await {
        Ok(watching) => {
            let (host, port) = &watching.master;
            let no_failover = watching.no_failover(master).await;
            Ok(Watch { master: host_and_port(host, *port), no_failover })
        }
        Err(diagnosis) => Err(diagnosis.text),
    };
    Sentinel { address: address.to_string(), answer }
}
