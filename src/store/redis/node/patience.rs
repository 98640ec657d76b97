//! Waiting for a server without counting our own delays.

use std::pin::Pin;
use std::time::Duration;

use tokio::time::timeout;

/// The parts of a wait. Between two of them the event loop reads every socket, and finds a reply that has arrived. A loop that stalls
/// for seconds uses up one part; a silent server uses up all of them.
pub(super) const PARTS: u32 = 4;

/// The remaining time of a wait.
pub(super) struct Patience {
    part: Duration,
    left: u32,
}

impl Patience {
    pub(super) fn of(span: Duration) -> Self {
        Self { part: span / PARTS, left: PARTS }
    }

    /// Waits for `future`; `None` if the time is used up.
    pub(super) async fn wait<F: Future>(&mut self, mut future: Pin<&mut F>) -> Option<F::Output> {
        while self.left > 0 {
            if let Ok(output) = timeout(self.part, future.as_mut()).await {
                return Some(output);
            }
            self.left -= 1;
        }
        None
    }
}

/// Waits for `future` for `span`.
pub(in crate::store::redis) async fn within<F: Future>(span: Duration, future: Pin<&mut F>) -> Option<F::Output> {
    Patience::of(span).wait(future).await
}
