//! The Redis store on real servers.

mod cluster;
mod company;
mod connecting;
mod credentials;
mod crowds;
mod deciding;
mod delays;
mod floods;
mod inspection;
mod leased_requests;
mod leases;
mod model;
mod notes;
mod outages;
mod promises;
mod quotas;
mod remembered_denials;
mod sentinel;
mod servers;
mod told;

use std::borrow::Borrow;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tokio::runtime::Runtime;
use weir::clock::Clock;
use weir::engine::algorithms::charge::{Bucket, Charge, Mode};
use weir::engine::algorithms::decision::{Decision, Decisions};
use weir::engine::algorithms::micros::Micros;
use weir::engine::algorithms::numbers::Numbers;
use weir::store::redis::{RedisOptions, RedisStore};
use weir::store::{Batch, Health, StoreError};

use crate::support::redis::{RedisServer, STORE_TIMEOUT};
use crate::support::{PATIENCE, eventually_async};

/// The store's timeout in tests of servers that do not answer. A busy machine may keep one that is well for as long.
const TIMEOUT: Duration = Duration::from_millis(200);

/// A store that waits for its answers, however busy the machine is.
fn options(url: &str) -> RedisOptions {
    RedisOptions { timeout: STORE_TIMEOUT, ..RedisOptions::new(url, Clock::machine()) }
}

fn hurried(url: &str) -> RedisOptions {
    RedisOptions { timeout: TIMEOUT, ..options(url) }
}

/// A store on this server whose clock is set by hand, and the clock. The server knows the script.
fn on_set_clock(server: &RedisServer) -> (Runtime, Arc<RedisStore>, Arc<AtomicU64>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let time = Arc::new(AtomicU64::new(0));
    let clock = Clock::Set(time.clone());
    let options = RedisOptions { clock, ..options(&server.url()) };
    let store = runtime.block_on(connected(&options));
    runtime.block_on(decide(&store, &[charge("A:1", fixed(1), 1, Mode::Check)])).unwrap();
    (runtime, store, time)
}

/// A connected store.
async fn connected(options: &RedisOptions) -> Arc<RedisStore> {
    let store = RedisStore::connect(&options.target().unwrap());
    eventually_async("the store connects", async || {
        let status = store.health();
        if status.connected { Ok(()) } else { Err(status) }
    })
    .await;
    store
}

fn fixed(burst: u64) -> Numbers {
    Numbers::fixed(burst).unwrap()
}

fn charge(key: &str, numbers: impl Borrow<Numbers>, cost: u64, mode: Mode) -> Charge {
    let fingerprint = key.bytes().fold(0, |sum: u128, byte| sum.wrapping_mul(257) + u128::from(byte));
    Charge::new(Bucket::new(key, fingerprint), numbers.borrow().clone(), cost, mode)
}

async fn decide(store: &RedisStore, charges: &[Charge]) -> Result<Decisions, StoreError> {
    store.decide(&Batch { charges, effective_from: Micros(0), now: Micros(0) }).await
}

/// Spends 1 of a bucket of 1 000 000 that never refills. The call ends by itself, with any result.
async fn spend(store: &RedisStore) -> Result<Decision, StoreError> {
    let charges = [charge("A:1", fixed(1_000_000), 1, Mode::Spend)];
    let answer = tokio::time::timeout(PATIENCE, decide(store, &charges)).await.expect("the call ends");
    answer.map(|decisions| decisions[0])
}

/// Waits until a spend passes again.
async fn resumes(store: &RedisStore) {
    eventually_async("limiting resumes", async || spend(store).await).await;
}

/// Checks the status' reason for having no connection.
fn last_error(store: &RedisStore, reason: &str) -> Result<String, Health> {
    let status = store.health();
    let found = status.last_error.as_ref().filter(|last_error| last_error.contains(reason)).cloned();
    found.ok_or(status)
}
