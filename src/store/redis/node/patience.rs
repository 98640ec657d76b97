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
        Self::rest(span, PARTS)
    }

    /// The last `left` parts of the time `span`.
    pub(super) fn rest(span: Duration, left: u32) -> Self {
        Self { part: span / PARTS, left }
    }

    pub(super) const fn left(&self) -> u32 {
        self.left
    }

    /// Waits for `future`; `None` if the time is used up.
    pub(super) async fn wait<F: Future>(&mut self, mut future: Pin<&mut F>) -> Option<F::Output> {
        while self.left > 0 {
            if let Some(output) = self.wait_for_a_part(future.as_mut()).await {
                return Some(output);
            }
        }
        None
    }

    /// Waits for `future`; `None` if that takes longer than a part of the time.
    pub(super) async fn wait_for_a_part<F: Future>(&mut self, future: Pin<&mut F>) -> Option<F::Output> {
        let output = timeout(self.part, future).await.ok();
        if output.is_none() {
            self.left -= 1;
        }
        output
    }
}

/// Waits for `future` for `span`.
pub(in crate::store::redis) async fn within<F: Future>(span: Duration, future: Pin<&mut F>) -> Option<F::Output> {
    Patience::of(span).wait(future).await
}
