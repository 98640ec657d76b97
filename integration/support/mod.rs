//! Shared by the areas: processes, servers, wires, and waiting.

pub(crate) mod binary;
pub(crate) mod bus;
pub(crate) mod certificates;
pub(crate) mod checkout;
pub(crate) mod cluster;
pub(crate) mod crowd;
pub(crate) mod frames;
pub(crate) mod injector;
pub(crate) mod process;
pub(crate) mod programs;
pub(crate) mod redis;
pub(crate) mod saying;
pub(crate) mod sentinel;
pub(crate) mod server;
pub(crate) mod upstream;
pub(crate) mod weir;
pub(crate) mod wire;

use std::fmt::Debug;
use std::time::{Duration, Instant};

/// The only deadline of whatever a test waits for: an answer, a failover, the end of a process. It ends a test that hangs.
/// It is not a bound on how fast anything is, so no test has a tighter one.
pub(crate) const PATIENCE: Duration = Duration::from_mins(2);

/// A timeout of Weir's that must not be what ends something: beyond [`PATIENCE`], so that a test which waits for it fails.
pub(crate) const NEVER: Duration = Duration::from_hours(1);

/// Asks until there is an answer; fails with the last state.
#[track_caller]
pub(crate) fn eventually<T, E: Debug>(what: &str, mut ask: impl FnMut() -> Result<T, E>) -> T {
    let start = Instant::now();
    loop {
        match ask() {
            Ok(answer) => return answer,
            Err(state) => assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}; {state:?}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Asks until a value, such as a metric, is the expected one.
#[track_caller]
pub(crate) fn becomes<T: PartialEq + Debug + Copy>(what: &str, expected: T, mut look: impl FnMut() -> T) {
    eventually(what, || match look() {
        value if value == expected => Ok(()),
        other => Err(other),
    });
}

/// Like [`eventually`], on a runtime.
pub(crate) async fn eventually_async<T, E: Debug>(what: &str, mut ask: impl AsyncFnMut() -> Result<T, E>) -> T {
    let start = Instant::now();
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(state) => assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}; {state:?}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
