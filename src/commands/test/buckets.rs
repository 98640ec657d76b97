//! The buckets of tests and scenarios, in a store that may outlive the run.

use std::time::{Duration, Instant};

use crate::engine::algorithms::charge::{Charge, Mode};
use crate::engine::algorithms::micros::Micros;
use crate::store::{Batch, Store};

/// The deadline for connecting to a store.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Waits until the store is connected.
pub(super) async fn connected(store: Store) -> Result<Store, String> {
    let deadline = Instant::now() + CONNECT_TIMEOUT;
    while let Err(error) = store.ready() {
        if Instant::now() > deadline {
            return Err(error);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(store)
}

/// Removes the buckets of these charges.
pub(super) async fn forget(store: &Store, mut used: Vec<Charge>) {
    used.sort_by(|a, b| a.bucket.key.cmp(&b.bucket.key));
    used.dedup_by(|a, b| a.bucket == b.bucket);
    for charge in &mut used {
        charge.mode = Mode::Reset;
        if charge.elevated().is_some() {
            // Without elevated numbers, the reset also removes their state.
            charge.input = None;
        }
    }
    // Of a store that fails now, the buckets expire.
    let _ = store.decide(&Batch { charges: &used, effective_from: Micros(0), now: Micros(0) }).await;
}
