//! The process that serves: workers, listeners, the admin door, signals, reload and drain.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::runtime::{Builder, LocalOptions, LocalRuntime};
use tokio_util::sync::CancellationToken;

use self::control::Control;
use self::listener::Listener;
use self::worker::Worker;
use crate::doors::admin::{Admin, Readiness};
use crate::doors::proxy::ProxyOptions;
use crate::gate::Shared;
use crate::store::Store;

mod control;
mod listener;
pub mod reload;
mod worker;

pub use listener::ListenAddress;

/// How often the files of the rules are looked at.
const RELOAD_INTERVAL: Duration = Duration::from_secs(2);

/// Makes a worker's store, inside the worker's runtime.
pub type MakeStore = Arc<dyn Fn() -> Result<Store, String> + Send + Sync>;

/// Looks at the files of the rules and puts new ones in force; `true` if asked to by a signal. It runs on a thread of
/// its own, so it may take its time.
pub type Reload = Box<dyn FnMut(bool) + Send>;

/// How the process serves.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Where the proxy listens.
    pub proxy_address: ListenAddress,
    /// How the proxy is set up.
    pub proxy: ProxyOptions,
    /// Where the admin door listens, if there is to be one.
    pub admin_address: Option<SocketAddr>,
    /// Worker threads.
    pub workers: NonZeroUsize,
    /// How long what runs may go on after the process was told to stop.
    pub grace: Duration,
    /// Whether SIGTERM and SIGINT drain, twice quit, and SIGHUP reloads.
    pub handle_signals: bool,
}

/// Why the process could not start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// An address cannot be listened on.
    #[error("cannot listen on {address} ({door}): {error}")]
    Bind {
        /// `proxy` or `admin`.
        door: &'static str,
        /// The address.
        address: ListenAddress,
        /// Why.
        #[source]
        error: io::Error,
    },
    /// A thread, a runtime or a signal handler cannot be had.
    #[error("cannot start the server: {0}")]
    System(#[source] io::Error),
    /// A worker's store cannot be made.
    #[error("cannot start a worker: {0}")]
    Worker(String),
}

/// A server that runs.
#[derive(Debug)]
pub struct Running {
    /// Where the proxy listens.
    pub proxy: ListenAddress,
    /// Where the admin door listens.
    pub admin: Option<SocketAddr>,
    control: JoinHandle<()>,
    stops: Stops,
}

/// The two ways to stop.
#[derive(Clone, Debug, Default)]
struct Stops {
    /// No new connections; what runs is finished.
    drain: CancellationToken,
    /// Nothing is finished.
    quit: CancellationToken,
}

impl Running {
    /// Begins the drain: what runs is finished within the grace period.
    pub fn stop(&self) {
        self.stops.drain.cancel();
    }

    /// Waits until the server has stopped, for a signal or after [`Self::stop`].
    pub fn join(self) {
        if self.control.join().is_err() {
            tracing::error!("the control thread panicked");
        }
    }
}

/// Starts a server: when it returns, the doors are open. After an error, what had been started ends by itself.
pub fn start(
    options: &ServerOptions,
    shared: &Arc<Shared>,
    make_store: &MakeStore,
    readiness: &Arc<Readiness>,
    reload: Reload,
) -> Result<Running, ServerError> {
    let failed = |door, address: ListenAddress| move |error| ServerError::Bind { door, address, error };
    let proxies = listener::bind(&options.proxy_address, options.workers.get())
        .map_err(failed("proxy", options.proxy_address.clone()))?;
    let admin_listener = match options.admin_address {
        Some(address) => listener::bind_tcp(address, 1).map_err(failed("admin", ListenAddress::Tcp(address)))?.pop(),
        None => None,
    };
    let proxy = proxies.first().map(Listener::address).transpose().map_err(ServerError::System)?;
    let proxy = proxy.unwrap_or_else(|| options.proxy_address.clone());
    let admin = admin_listener.as_ref().map(std::net::TcpListener::local_addr).transpose();
    let admin = admin.map_err(ServerError::System)?;

    let stops = Stops::default();
    // Whatever fails from here on, the threads that have started end.
    let on_error = stops.quit.clone().drop_guard();
    let drain_on_error = stops.drain.clone().drop_guard();
    let (reports, stores) = mpsc::channel();
    let mut workers = Vec::with_capacity(proxies.len());
    for (number, listener) in proxies.into_iter().enumerate() {
        let worker = Worker {
            listener,
            proxy: options.proxy.clone(),
            shared: shared.clone(),
            make_store: make_store.clone(),
            drain: stops.drain.child_token(),
            quit: stops.quit.child_token(),
            grace: options.grace,
        };
        let reports = reports.clone();
        let run = move || worker.run(|store| drop(reports.send(store)));
        workers.push(spawn(&format!("worker-{number}"), run)?);
    }
    drop(reports);
    let mut worker_stores = Vec::with_capacity(workers.len());
    for _ in &workers {
        let report = stores.recv().unwrap_or_else(|_| Err("its thread ended".into()));
        worker_stores.push(report.map_err(ServerError::Worker)?);
    }

    let (ask_reload, asked) = mpsc::channel();
    let reloader = spawn("reload", move || run_reload(reload, &asked))?;
    let admin_door =
        Admin { readiness: readiness.clone(), metrics: shared.metrics().clone(), stores: worker_stores.into() };
    let control = Control {
        admin: admin_listener.map(|listener| (listener, admin_door)),
        readiness: readiness.clone(),
        stops: stops.clone(),
        handle_signals: options.handle_signals,
        ask_reload,
        workers,
    };
    let (reports, started) = mpsc::channel();
    let control = spawn("control", move || control.run(reloader, |report| drop(reports.send(report))))?;
    match started.recv() {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return Err(ServerError::System(error)),
        Err(_) => return Err(ServerError::Worker("the control thread ended".into())),
    }
    on_error.disarm();
    drain_on_error.disarm();
    readiness.serving();
    tracing::info!(door = "proxy", address = %proxy, workers = options.workers, "listening");
    if let Some(address) = admin {
        tracing::info!(door = "admin", %address, "listening");
    }
    Ok(Running { proxy, admin, control, stops })
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, ServerError> {
    thread::Builder::new().name(name.to_owned()).spawn(run).map_err(ServerError::System)
}

/// Threads that resolve the names of upstreams for one runtime. tokio would start 512 if the resolver hung.
const MAX_BLOCKING_THREADS: usize = 8;

/// A runtime whose tasks stay on this thread, so they share what they share without locks.
fn build_runtime() -> io::Result<LocalRuntime> {
    let mut builder = Builder::new_current_thread();
    builder.enable_all().max_blocking_threads(MAX_BLOCKING_THREADS).build_local(LocalOptions::default())
}

/// Looks at the rules now and then and when asked, until nobody can ask any more.
fn run_reload(mut reload: Reload, asked: &mpsc::Receiver<()>) {
    loop {
        match asked.recv_timeout(RELOAD_INTERVAL) {
            Ok(()) => reload(true),
            Err(RecvTimeoutError::Timeout) => reload(false),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
