//! The age of gRPC connections.
//!
//! gRPC clients keep a connection for as long as they can, so a process that joins later would get no calls. Therefore a
//! connection ends at some age: the client is told to open another one, which the load balancer may give to another
//! process.

use std::time::Duration;

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// The deviation of ages, up or down, so that connections opened together are not closed together. The same as in gRPC's
/// own servers (proposal A9).
const JITTER_PERCENT: u32 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionAge {
    /// `None` if connections may live forever.
    pub most: Option<Duration>,
    /// For calls to end after that.
    pub grace: Duration,
}

impl Default for ConnectionAge {
    fn default() -> Self {
        Self { most: Some(Duration::from_mins(30)), grace: Duration::from_secs(10) }
    }
}

impl ConnectionAge {
    /// Runs a connection until it, or its age and grace, ends. The token for `serve` is cancelled with `drain` and at the
    /// end of the age.
    pub(super) async fn limit<F: Future<Output = ()>>(
        self,
        drain: &CancellationToken,
        serve: impl FnOnce(CancellationToken) -> F,
    ) {
        let over = drain.child_token();
        // Boxed, or its 10 KB would be moved with every future around it.
        let mut serving = Box::pin(serve(over.clone()));
        let Some(most) = self.most else { return serving.await };
        if timeout(jittered(most, rand::random_range(0..=JITTER_PARTS)), &mut serving).await.is_err() {
            over.cancel();
            let _ = timeout(self.grace, serving).await;
        }
    }
}

/// The steps of the jitter.
const JITTER_PARTS: u32 = 2_000;

/// Returns the span less the jitter, plus 0 to [`JITTER_PARTS`] parts of twice the jitter.
fn jittered(span: Duration, parts: u32) -> Duration {
    let jitter = span / 100 * JITTER_PERCENT;
    span.saturating_sub(jitter) + jitter / (JITTER_PARTS / 2) * parts
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, sleep};

    use super::*;

    #[test]
    fn ages_differ_by_a_tenth_at_most() {
        let span = Duration::from_secs(100);
        assert_eq!(jittered(span, 0), Duration::from_secs(90));
        assert_eq!(jittered(span, 1_000), span);
        assert_eq!(jittered(span, 2_000), Duration::from_secs(110));
        assert!(jittered(Duration::MAX / 2, 2_000) > Duration::MAX / 2);
    }

    /// Returns the life of a connection that ends this long after it is told to.
    async fn live(options: ConnectionAge, after: Duration) -> Duration {
        let start = Instant::now();
        let drain = CancellationToken::new();
        let serve = |over: CancellationToken| async move {
            over.cancelled().await;
            sleep(after).await;
        };
        options.limit(&drain, serve).await;
        start.elapsed()
    }

    #[tokio::test]
    async fn a_connection_is_told_and_then_cut_off() {
        let (most, grace) = (Duration::from_millis(50), Duration::from_millis(20));
        let options = ConnectionAge { most: Some(most), grace };
        assert!(live(options, Duration::ZERO).await >= most * 9 / 10);
        // It would go on for a day.
        assert!(live(options, Duration::from_hours(24)).await >= most * 9 / 10 + grace);
        let forever = live(ConnectionAge { most: None, grace }, Duration::ZERO);
        assert!(timeout(most * 3, forever).await.is_err());
    }

    #[tokio::test]
    async fn a_drain_is_told_at_once() {
        let (drain, options) = (CancellationToken::new(), ConnectionAge::default());
        drain.cancel();
        let told = options.limit(&drain, |over| async move { over.cancelled().await });
        // Without the drain it is told after half an hour.
        assert!(timeout(Duration::from_secs(10), told).await.is_ok());
    }
}
