//! What several tests need.

pub(crate) mod redis;

use std::time::{Duration, Instant};

/// How long [`eventually`] waits: longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(5);

/// Asks until there is an answer, and gives up loudly.
#[track_caller]
pub(crate) fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// As [`eventually`], and lets the runtime work in between.
pub(crate) async fn eventually_async<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
