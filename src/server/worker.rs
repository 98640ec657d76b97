//! A worker: a thread with its own runtime, sockets, upstream connections and store.

use std::future::poll_fn;
use std::hint::black_box;
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use socket2::Socket;
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::listening_socket::AsyncSocket;
use super::runtime::build_runtime;
use super::{MakeStore, ServerOptions};
use crate::http::{ConnectionPermit, Stream, serve};
use crate::limiter::{Limiter, Shared};
use crate::listeners::Listener;
use crate::store::Store;
use crate::telemetry::metrics::{Metrics, TooMany};

/// Connections to accept in a row. The worker's other tasks wait meanwhile.
const ACCEPT_BATCH: u32 = 16;

/// How long to wait before the next `accept` when the system is out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How often failures to accept are logged. Without a free descriptor, every attempt fails.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// How often idle connections to upstreams are closed.
const REAP_INTERVAL: Duration = Duration::from_secs(1);

/// A block of this size is a page by itself for mimalloc. Nobody writes to it, so hardly any memory is behind it.
const HAS_ITS_OWN_PAGE: usize = 1024 * 1024;

/// The sockets of one worker, each with its listener's index.
pub(super) type Share = Vec<(usize, Socket)>;

/// A worker that has not started.
pub(super) struct Worker {
    /// Delivers the sockets when the start can no longer fail: a failure would lose accepted connections.
    pub(super) open: oneshot::Receiver<Share>,
    pub(super) options: ServerOptions,
    pub(super) shared: Arc<Shared>,
    pub(super) make_store: MakeStore,
    /// Cancelled to stop accepting connections.
    pub(super) drain: CancellationToken,
    /// Cancelled to drop the connections that are left.
    pub(super) quit: CancellationToken,
}

impl Worker {
    /// Runs until drained. `report` gets the store, or the error.
    pub(super) fn run(self, report: impl FnOnce(Result<Store, String>)) {
        let runtime = match build_runtime() {
            Ok(runtime) => runtime,
            Err(error) => return report(Err(format!("no runtime: {error}"))),
        };
        runtime.block_on(self.serve(report));
        // Does not wait for the resolver, which can take half a minute.
        runtime.shutdown_background();
    }

    async fn serve(mut self, report: impl FnOnce(Result<Store, String>)) {
        let store = match (self.make_store)() {
            Ok(store) => store,
            Err(error) => return report(Err(error)),
        };
        report(Ok(store.clone()));
        // The sender is dropped if the server fails to start.
        let Ok(sockets) = (&mut self.open).await else { return };
        let limiter = Rc::new(Limiter::new(self.shared.clone(), store));
        let listeners = Listener::all(&limiter, self.options.listeners.iter().map(|(_, options)| options));
        let tasks = TaskTracker::new();
        self.accept(sockets, &listeners, &limiter, &tasks).await;
        tasks.close();
        let finished = async {
            tasks.wait().await;
            limiter.settled().await;
        };
        let in_time = timeout(self.options.grace, self.quit.run_until_cancelled(finished)).await;
        if !matches!(in_time, Ok(Some(()))) {
            tracing::warn!(connections = tasks.len(), "connections were cut off");
        }
        // Until here, because listeners continue exchanges whose clients have left.
        drop(listeners);
        limiter.close().await;
    }

    /// Accepts connections and serves each in a task of its own, until the drain begins.
    async fn accept(&self, sockets: Share, listeners: &[Listener], limiter: &Limiter, tasks: &TaskTracker) {
        let metrics = self.shared.metrics();
        let mut sockets = AcceptLoop::new(sockets, listeners);
        let mut reaping = interval(REAP_INTERVAL);
        reaping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut drained = pin!(self.drain.cancelled());
        let mut logged = None;
        loop {
            let accepted = tokio::select! {
                () = &mut drained => return,
                _ = reaping.tick() => {
                    limiter.flush();
                    listeners.iter().for_each(Listener::reap);
                    return_memory();
                    continue;
                }
                accepted = poll_fn(|cx| sockets.poll_accept(cx)) => accepted,
            };
            match accepted {
                Ok((listener, stream, peer)) => {
                    // An excess connection is closed at once, so a load balancer can try another process and the
                    // system's queue stays free for connections that come when there is room again.
                    let Some(permit) = self.options.admission.admit() else {
                        metrics.server.connections_rejected[TooMany::Total].inc();
                        continue;
                    };
                    let opening = listener.open(stream, peer, self.drain.clone());
                    tasks.spawn_local(OpenConnection::new(metrics.clone(), permit).run(serve(opening)));
                }
                Err(error) => pause(&error, metrics, &mut logged).await,
            }
            if sockets.should_yield() {
                yield_now().await;
            }
        }
    }
}

/// Has the allocator return to the system what was freed more than a second ago. mimalloc only looks for it when it frees
/// a page, and after a crowd has gone nothing else may free one.
fn return_memory() {
    drop(black_box(Vec::<u8>::with_capacity(HAS_ITS_OWN_PAGE)));
}

/// Accepts from the sockets of a worker in turns.
struct AcceptLoop {
    all: Vec<(Listener, AsyncSocket)>,
    next: usize,
    in_a_row: u32,
}

impl AcceptLoop {
    fn new(sockets: Share, listeners: &[Listener]) -> Self {
        let sockets = sockets.into_iter().filter_map(|(place, socket)| {
            // Fails only if the system is out of memory: the descriptors exist already.
            let socket = AsyncSocket::new(socket).inspect_err(|error| tracing::error!("cannot poll a socket: {error}"));
            Some((listeners.get(place)?.clone(), socket.ok()?))
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

    /// Returns true if other tasks should run before the next `accept`.
    fn should_yield(&mut self) -> bool {
        let is_over = self.in_a_row >= ACCEPT_BATCH;
        if is_over {
            self.in_a_row = 0;
        }
        is_over
    }
}

/// Waits if `accept` failed because a resource is exhausted.
async fn pause(error: &io::Error, metrics: &Metrics, logged: &mut Option<Instant>) {
    // The peer closed the connection while it was in the queue.
    if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
        return;
    }
    metrics.server.accept_errors.inc();
    if logged.is_none_or(|logged| logged.elapsed() > LOG_INTERVAL) {
        *logged = Some(Instant::now());
        tracing::warn!("cannot accept a connection: {error}");
    }
    sleep(ACCEPT_PAUSE).await;
}

/// Counts an open connection, and a panic that ends it.
struct OpenConnection {
    metrics: Arc<Metrics>,
    _permit: ConnectionPermit,
}

impl OpenConnection {
    fn new(metrics: Arc<Metrics>, permit: ConnectionPermit) -> Self {
        metrics.server.connections.inc();
        Self { metrics, _permit: permit }
    }

    /// Runs the connection and counts it until its end.
    async fn run(self, connection: impl Future<Output = ()>) {
        connection.await;
        drop(self);
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.metrics.server.connections.dec();
        // tokio catches the panic in the task, so other connections continue.
        if std::thread::panicking() {
            self.metrics.server.panics.inc();
            tracing::error!("a connection's task panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::{Admission, ConnectionLimits};

    #[test]
    fn a_panic_is_counted_and_the_connection_is_not_open_any_more() {
        let metrics = Arc::new(Metrics::new().unwrap());
        let admission = Admission::new(ConnectionLimits::default());
        let open = OpenConnection::new(metrics.clone(), admission.admit().unwrap());
        assert_eq!((metrics.server.connections.get(), metrics.server.panics.get()), (1, 0));
        let panicked = std::thread::spawn(move || {
            let _open = open;
            panic!("on purpose");
        });
        assert!(panicked.join().is_err());
        assert_eq!((metrics.server.connections.get(), metrics.server.panics.get()), (0, 1));
    }
}
