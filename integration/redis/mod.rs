//! The Redis store on real servers.

mod cluster;
mod company;
mod connecting;
mod crowds;
mod deciding;
mod delays;
mod floods;
mod inspection;
mod leases;
mod model;
mod outages;
mod quotas;
mod sentinel;
mod servers;

use std::borrow::Borrow;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use weir::clock::Clock;
use weir::engine::algorithms::charge::{Bucket, Charge, Mode};
use weir::engine::algorithms::decision::{Decision, Decisions};
use weir::engine::algorithms::micros::Micros;
use weir::engine::algorithms::numbers::Numbers;
use weir::store::redis::{RedisOptions, RedisStore};
use weir::store::{Batch, Health, StoreError};

use crate::support::eventually_async;
use crate::support::redis::RedisServer;

/// A busy machine may keep a process waiting for tens of milliseconds.
const TIMEOUT: Duration = Duration::from_millis(200);

fn options(url: &str) -> RedisOptions {
    RedisOptions { timeout: TIMEOUT, ..RedisOptions::new(url, Clock::machine()) }
}

/// A store on this server whose clock is set by hand, and the clock. The server knows the script.
fn on_set_clock(server: &RedisServer) -> (Runtime, Arc<RedisStore>, Arc<AtomicU64>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let time = Arc::new(AtomicU64::new(0));
    let clock = Clock::Set(time.clone());
    // A trace is sent at once, and other tests need the processor, too.
    let options = RedisOptions { clock, timeout: Duration::from_secs(10), ..options(&server.url()) };
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

/// Spends 1 of a bucket of 1 000 000 that never refills; asserts that the call ends soon, with any result.
async fn spend(store: &RedisStore) -> Result<Decision, StoreError> {
    let start = Instant::now();
    let answer = decide(store, &[charge("A:1", fixed(1_000_000), 1, Mode::Spend)]).await;
    // The deadline, and much more for a busy machine.
    assert!(start.elapsed() < 10 * TIMEOUT, "{answer:?} after {:?}", start.elapsed());
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
