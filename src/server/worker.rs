//! A worker: one thread with a runtime, listener, pool and store of its own.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::listener::Listener;
use super::{MakeStore, build_runtime};
use crate::doors::proxy::{Proxy, ProxyOptions};
use crate::gate::{Gate, Shared};
use crate::metrics::Metrics;
use crate::store::Store;

/// Connections of clients that a worker holds at once. More wait in the system's queue. At 64 KiB of buffers each way
/// this is the most that a worker's clients can make it hold: 2 GiB, if every one of them is as slow as can be.
const MAX_CONNECTIONS: usize = 16_384;

/// How long to wait before another `accept` when the system has no descriptor to give.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How often idle connections to upstreams are looked at.
const REAP_INTERVAL: Duration = Duration::from_secs(1);

/// What a worker is made of.
pub(super) struct Worker {
    pub(super) listener: Listener,
    pub(super) proxy: ProxyOptions,
    pub(super) shared: Arc<Shared>,
    pub(super) make_store: MakeStore,
    /// Cancelled when no new connection is to be taken.
    pub(super) drain: CancellationToken,
    /// Cancelled when what still runs is to be dropped.
    pub(super) quit: CancellationToken,
    /// From the beginning of the drain until what still runs is dropped.
    pub(super) grace: Duration,
}

impl Worker {
    /// Runs until drained. `report` is told of the store, or of what went wrong, before the first connection is taken.
    pub(super) fn run(self, report: impl FnOnce(Result<Store, String>)) {
        let runtime = match build_runtime() {
            Ok(runtime) => runtime,
            Err(error) => return report(Err(format!("no runtime: {error}"))),
        };
        runtime.block_on(self.serve(report));
        // Drops what is left. A name that is being resolved is not waited for: that can take the resolver half a minute.
        runtime.shutdown_background();
    }

    async fn serve(self, report: impl FnOnce(Result<Store, String>)) {
        let listener = self.listener.into_async().map_err(|error| error.to_string());
        let (listener, store) = match listener.and_then(|listener| Ok((listener, (self.make_store)()?))) {
            Ok(started) => started,
            Err(error) => return report(Err(error)),
        };
        report(Ok(store.clone()));
        let metrics = self.shared.metrics().clone();
        let proxy = Proxy::new(Gate::new(self.shared, store), &self.proxy);
        let tasks = TaskTracker::new();
        let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let mut reaping = interval(REAP_INTERVAL);
        reaping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let accepting = async {
                // Never closed, so this ends only with a permit.
                let permit = permits.clone().acquire_owned().await;
                (listener.accept().await, permit)
            };
            let (accepted, permit) = tokio::select! {
                () = self.drain.cancelled() => break,
                _ = reaping.tick() => {
                    proxy.reap();
                    continue;
                }
                accepted = accepting => accepted,
            };
            match accepted {
                Ok((stream, peer)) => {
                    let (proxy, drain) = (proxy.clone(), self.drain.clone());
                    let open = Open::new(metrics.clone());
                    tasks.spawn_local(async move {
                        let _open = open;
                        let _permit = permit;
                        proxy.serve_connection(stream, peer, drain).await;
                    });
                }
                Err(error) => pause(&error).await,
            }
        }
        drop(listener);
        tasks.close();
        let finished = async {
            tokio::select! {
                () = tasks.wait() => true,
                () = self.quit.cancelled() => false,
            }
        };
        if !matches!(timeout(self.grace, finished).await, Ok(true)) {
            tracing::warn!(connections = tasks.len(), "connections were cut off");
        }
    }
}

/// Waits if an `accept` failed for want of something that takes time to come back.
async fn pause(error: &io::Error) {
    // The peer gave up while it waited: nothing is wrong here.
    if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
        return;
    }
    tracing::warn!("cannot accept a connection: {error}");
    sleep(ACCEPT_PAUSE).await;
}

/// Counts a connection as open, and a panic that ends it.
struct Open {
    metrics: Arc<Metrics>,
}

impl Open {
    fn new(metrics: Arc<Metrics>) -> Self {
        metrics.connections.inc();
        Self { metrics }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.metrics.connections.dec();
        // tokio catches the panic at the edge of the task; the others go on.
        if std::thread::panicking() {
            self.metrics.panics.inc();
            tracing::error!("a connection's task panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_counted_and_the_connection_is_not_open_any_more() {
        let metrics = Arc::new(Metrics::new().unwrap());
        let open = Open::new(metrics.clone());
        assert_eq!((metrics.connections.get(), metrics.panics.get()), (1, 0));
        let panicked = std::thread::spawn(move || {
            let _open = open;
            panic!("on purpose");
        });
        assert!(panicked.join().is_err());
        assert_eq!((metrics.connections.get(), metrics.panics.get()), (0, 1));
    }
}
