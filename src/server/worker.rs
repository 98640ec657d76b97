//! A worker: one thread with a runtime, sockets, pool and store of its own.

use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::listening_socket::{AsyncSocket, ListeningSocket};
use super::{MakeStore, build_runtime};
use crate::http::{Admission, Place, Stream};
use crate::limiter::{Limiter, Shared};
use crate::listeners::{Listener, ListenerOptions};
use crate::store::Store;
use crate::telemetry::metrics::Metrics;

/// Connections that are accepted in a row. The tasks of those that were accepted wait meanwhile, and so do all others.
const ACCEPT_BATCH: u32 = 16;

/// How long to wait before another `accept` when the system has no descriptor to give.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How often a failure to accept is logged: with no descriptor left, each attempt fails for as long as that lasts.
const SAID_EVERY: Duration = Duration::from_secs(1);

/// How often idle connections to upstreams are looked at.
const REAP_INTERVAL: Duration = Duration::from_secs(1);

/// What a worker is made of.
pub(super) struct Worker {
    /// Gives the sockets when connections are to be taken: when nothing can fail any more that would lose them.
    /// Each is for one of `listeners`, by its place there.
    pub(super) open: oneshot::Receiver<Vec<(usize, ListeningSocket)>>,
    pub(super) listeners: Vec<ListenerOptions>,
    /// The connections of all workers and listeners.
    pub(super) admission: Arc<Admission>,
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
    /// Runs until drained. `report` is told of the store, or of what went wrong.
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
        let store = match (self.make_store)() {
            Ok(store) => store,
            Err(error) => return report(Err(error)),
        };
        report(Ok(store.clone()));
        // Without sockets the server did not start.
        let Ok(sockets) = self.open.await else { return };
        let metrics = self.shared.metrics().clone();
        let limiter = Rc::new(Limiter::new(self.shared, store));
        let listeners: Vec<_> = self.listeners.iter().map(|options| Listener::new(limiter.clone(), options)).collect();
        let mut sockets = AcceptLoop::new(sockets, &listeners);
        let tasks = TaskTracker::new();
        let mut reaping = interval(REAP_INTERVAL);
        reaping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut drained = pin!(self.drain.cancelled());
        let mut said = None;
        loop {
            let accepted = tokio::select! {
                () = &mut drained => break,
                _ = reaping.tick() => {
                    limiter.flush();
                    listeners.iter().for_each(Listener::reap);
                    continue;
                }
                accepted = poll_fn(|cx| sockets.poll_accept(cx)) => accepted,
            };
            match accepted {
                Ok((listener, stream, peer)) => {
                    // Whoever is too many is told at once, which lets a load balancer try another process, and leaves
                    // the system's queue to those who come when there is room again.
                    let Ok(place) = self.admission.enter() else { continue };
                    let drain = self.drain.clone();
                    let open = Open::new(metrics.clone(), place);
                    tasks.spawn_local(async move {
                        let _open = open;
                        listener.serve_connection(stream, peer, drain).await;
                    });
                }
                Err(error) => pause(&error, &metrics, &mut said).await,
            }
            if sockets.has_had_its_turn() {
                yield_now().await;
            }
        }
        drop(sockets);
        tasks.close();
        let finished = async {
            tokio::select! {
                () = async {
                    tasks.wait().await;
                    limiter.settled().await;
                } => true,
                () = self.quit.cancelled() => false,
            }
        };
        if !matches!(timeout(self.grace, finished).await, Ok(true)) {
            tracing::warn!(connections = tasks.len(), "connections were cut off");
        }
        limiter.close().await;
    }
}

/// A worker's sockets, which take turns.
struct AcceptLoop {
    all: Vec<(Listener, AsyncSocket)>,
    next: usize,
    in_a_row: u32,
}

impl AcceptLoop {
    fn new(sockets: Vec<(usize, ListeningSocket)>, listeners: &[Listener]) -> Self {
        let sockets = sockets.into_iter().filter_map(|(place, socket)| {
            // The runtime has its descriptors, and so has the socket: what is wrong here is the system's memory.
            let socket = socket.into_async().inspect_err(|error| tracing::error!("a socket is deaf: {error}")).ok()?;
            Some((listeners.get(place)?.clone(), socket))
        });
        Self { all: sockets.collect(), next: 0, in_a_row: 0 }
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<(Listener, Stream, IpAddr)>> {
        let (first, second) = self.all.split_at(self.next);
        let mut place = self.next;
        for (listener, socket) in second.iter().chain(first) {
            place = if place + 1 < self.all.len() { place + 1 } else { 0 };
            if let Poll::Ready(accepted) = socket.poll_accept(cx) {
                self.next = place;
                self.in_a_row += 1;
                return Poll::Ready(accepted.map(|(stream, peer)| (listener.clone(), stream, peer)));
            }
        }
        self.in_a_row = 0;
        Poll::Pending
    }

    /// Whether it is time for others to run.
    fn has_had_its_turn(&mut self) -> bool {
        let is_over = self.in_a_row >= ACCEPT_BATCH;
        if is_over {
            self.in_a_row = 0;
        }
        is_over
    }
}

/// Waits if an `accept` failed for want of something that takes time to come back.
async fn pause(error: &io::Error, metrics: &Metrics, said: &mut Option<Instant>) {
    // The peer gave up while it waited: nothing is wrong here.
    if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
        return;
    }
    metrics.accept_errors.inc();
    if said.is_none_or(|said| said.elapsed() > SAID_EVERY) {
        *said = Some(Instant::now());
        tracing::warn!("cannot accept a connection: {error}");
    }
    sleep(ACCEPT_PAUSE).await;
}

/// Counts a connection as open, and a panic that ends it.
struct Open {
    metrics: Arc<Metrics>,
    _place: Place,
}

impl Open {
    fn new(metrics: Arc<Metrics>, place: Place) -> Self {
        metrics.connections.inc();
        Self { metrics, _place: place }
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
    use crate::http::ConnectionLimits;

    #[test]
    fn a_panic_is_counted_and_the_connection_is_not_open_any_more() {
        let metrics = Arc::new(Metrics::new().unwrap());
        let admission = Admission::new(ConnectionLimits::default(), &metrics);
        let open = Open::new(metrics.clone(), admission.enter().unwrap());
        assert_eq!((metrics.connections.get(), metrics.panics.get()), (1, 0));
        let panicked = std::thread::spawn(move || {
            let _open = open;
            panic!("on purpose");
        });
        assert!(panicked.join().is_err());
        assert_eq!((metrics.connections.get(), metrics.panics.get()), (0, 1));
    }
}
