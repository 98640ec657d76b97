//! The control thread: admin door, signals, and the order in which things end.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Semaphore;
use tokio::time::sleep;
use tokio_util::task::TaskTracker;

use super::{Stops, build_runtime};
use crate::doors::admin::{Admin, Readiness};

/// Connections to the admin door at once: a few scrapers and probes.
const MAX_CONNECTIONS: usize = 64;

/// How long to wait before another `accept` when the system has no descriptor to give.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What the control thread is made of.
pub(super) struct Control {
    pub(super) admin: Option<(TcpListener, Admin)>,
    pub(super) readiness: Arc<Readiness>,
    pub(super) stops: Stops,
    pub(super) handle_signals: bool,
    pub(super) ask_reload: Sender<()>,
    pub(super) workers: Vec<JoinHandle<()>>,
}

impl Control {
    /// Runs until the workers have ended. `report` is told whether it could start.
    pub(super) fn run(self, reloader: JoinHandle<()>, report: impl FnOnce(io::Result<()>)) {
        match build_runtime() {
            Ok(runtime) => runtime.block_on(self.serve(report)),
            Err(error) => report(Err(error)),
        }
        // With the runtime the last one who could ask for a reload is gone.
        if reloader.join().is_err() {
            tracing::error!("the reload thread panicked");
        }
    }

    async fn serve(self, report: impl FnOnce(io::Result<()>)) {
        let tasks = TaskTracker::new();
        let started = self.admin.map_or(Ok(()), |(listener, admin)| {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            tasks.spawn_local(serve_admin(listener, admin, tasks.clone()));
            Ok(())
        });
        let signals = if self.handle_signals { Signals::new().map(Some) } else { Ok(None) };
        let signals = match started.and(signals) {
            Ok(signals) => signals,
            Err(error) => return report(Err(error)),
        };
        report(Ok(()));
        if let Some(signals) = signals {
            tasks.spawn_local(signals.handle(self.stops.clone(), self.ask_reload.clone()));
        }
        self.stops.drain.cancelled().await;
        // First of all, so that a load balancer that asks learns it before it is refused.
        self.readiness.draining();
        tracing::info!("draining: no new connections are taken");
        let joined = tokio::task::spawn_blocking(|| {
            for worker in self.workers {
                if worker.join().is_err() {
                    tracing::error!("a worker's thread panicked");
                }
            }
        });
        if joined.await.is_err() {
            tracing::error!("cannot wait for the workers");
        }
        tracing::info!("stopped");
    }
}

async fn serve_admin(listener: tokio::net::TcpListener, admin: Admin, tasks: TaskTracker) {
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        // Never closed, so this ends only with a permit.
        let permit = permits.clone().acquire_owned().await;
        match listener.accept().await {
            Ok((stream, _)) => {
                let admin = admin.clone();
                tasks.spawn_local(async move {
                    let _permit = permit;
                    admin.serve_connection(stream).await;
                });
            }
            Err(error) => {
                tracing::warn!("cannot accept an admin connection: {error}");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// The signals that the process listens to.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    async fn handle(mut self, stops: Stops, ask_reload: Sender<()>) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => stop(&stops),
                _ = self.interrupt.recv() => stop(&stops),
                _ = self.hang_up.recv() => {
                    // The receiver ends after the last sender, and this is one.
                    let _ = ask_reload.send(());
                }
            }
        }
    }
}

/// The first time what runs is finished, the second time it is dropped.
fn stop(stops: &Stops) {
    if stops.drain.is_cancelled() {
        tracing::warn!("told to stop again: what runs is cut off");
        stops.quit.cancel();
    }
    stops.drain.cancel();
}
