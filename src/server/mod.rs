//! The process that serves: workers, sockets, the admin listener, signals, reload and drain.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::runtime::{Builder, LocalOptions, LocalRuntime};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use self::control::Control;
use self::inherited::Inherited;
use self::listening_socket::ListeningSocket;
use self::sockets::Sockets;
use self::worker::Worker;
use crate::clock::Clock;
use crate::http::Admission;
use crate::limiter::Shared;
use crate::listeners::admin::log::LogFilter;
use crate::listeners::admin::tokens::Tokens;
use crate::listeners::admin::{AdminOptions, Readiness};
use crate::listeners::{ListenerKind, ListenerOptions};
use crate::store::Store;
use crate::telemetry::access_log::AccessLog;

mod control;
pub mod descriptors;
mod handover;
mod inherited;
mod listening_socket;
pub mod reload;
mod sockets;
mod supervisor;
mod worker;

pub use listening_socket::ListenAddress;

/// How often the files of rules and certificates are looked at.
const RELOAD_INTERVAL: Duration = Duration::from_secs(2);

/// Makes a worker's store, inside the worker's runtime.
pub type MakeStore = Arc<dyn Fn() -> Result<Store, String> + Send + Sync>;

/// Looks at the files of rules and certificates and puts new ones in force; `true` if asked to by a signal. It runs on
/// a thread of its own, so it may take its time.
pub type Reload = Box<dyn FnMut(bool) + Send>;

/// How the process serves.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The listeners of the workers, and where they listen.
    pub listeners: Vec<(ListenAddress, ListenerOptions)>,
    /// The connections of all workers and listeners.
    pub admission: Arc<Admission>,
    /// Where requests are logged, if they are.
    pub access_log: Option<AccessLog>,
    /// Where the admin listener listens, if there is to be one.
    pub admin_address: Option<SocketAddr>,
    /// Who may change buckets at the admin listener; nobody if there are none.
    pub admin_tokens: Tokens,
    /// What the process logs, if that can be changed at the admin listener.
    pub log: Option<LogFilter>,
    /// The clock of the listeners.
    pub clock: Clock,
    /// Worker threads.
    pub workers: NonZeroUsize,
    /// How long connections are still taken after the process was told to stop, while it says that it is not ready.
    pub drain_delay: Duration,
    /// How long what runs may go on after that.
    pub grace: Duration,
    /// Whether this server is the process: SIGTERM and SIGINT drain, twice quit, SIGHUP reloads, SIGUSR1 opens the access
    /// log again, SIGUSR2 hands over; and sockets that the process was started with are taken.
    pub handle_signals: bool,
}

/// Why the process could not start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// An address cannot be listened on.
    #[error("cannot listen on {address} ({listener}): {error}")]
    Bind {
        /// The name of a [`ListenerKind`].
        listener: &'static str,
        /// The address.
        address: ListenAddress,
        /// Why.
        #[source]
        error: io::Error,
    },
    /// The sockets that the process was started with are no good.
    #[error("cannot take the sockets that were handed over: {0}")]
    Inherited(String),
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
    /// Where the listeners of the workers listen.
    pub listeners: Vec<(ListenerKind, ListenAddress)>,
    /// Where the admin listener listens.
    pub admin: Option<SocketAddr>,
    control: JoinHandle<()>,
    stops: Stops,
}

/// The ways to stop.
#[derive(Clone, Debug, Default)]
struct Stops {
    /// The process leaves: the drain comes after the delay.
    leave: CancellationToken,
    /// No new connections; what runs is finished.
    drain: CancellationToken,
    /// Nothing is finished.
    quit: CancellationToken,
}

impl Running {
    /// Where a listener listens, if it is open.
    pub fn address(&self, kind: ListenerKind) -> Option<&ListenAddress> {
        self.listeners.iter().find(|(listener, _)| *listener == kind).map(|(_, address)| address)
    }

    /// Begins the end: after the delay, what runs is finished within the grace period.
    pub fn stop(&self) {
        self.stops.leave.cancel();
    }

    /// Waits until the server has stopped, for a signal or after [`Self::stop`].
    pub fn join(self) {
        if self.control.join().is_err() {
            tracing::error!("the control thread panicked");
        }
    }
}

/// Starts a server: when it returns, the listeners are open. After an error, what had been started ends by itself.
pub fn start(
    options: &ServerOptions,
    shared: &Arc<Shared>,
    make_store: &MakeStore,
    readiness: &Arc<Readiness>,
    reload: Reload,
) -> Result<Running, ServerError> {
    let workers = options.workers.get();
    shared.metrics().workers.set(i64::try_from(workers).unwrap_or(i64::MAX));
    let mut inherited = if options.handle_signals { Inherited::take()? } else { Inherited::default() };
    let mut listeners = Vec::with_capacity(options.listeners.len());
    let mut addresses = Vec::with_capacity(options.listeners.len());
    for (address, listener) in &options.listeners {
        let sockets = open(listener.kind(), &mut inherited, address, workers)?;
        let address = sockets.address().map_err(ServerError::System)?.unwrap_or_else(|| address.clone());
        addresses.push((listener.kind(), address));
        listeners.push((listener.kind(), sockets));
    }
    let admin_address = options.admin_address.map(ListenAddress::Tcp);
    let admins = admin_address.map(|address| open(ListenerKind::Admin, &mut inherited, &address, 1)).transpose()?;
    let admin_listener = admins.as_ref().map(one_tcp).transpose()?;
    let admin = admin_listener.as_ref().map(std::net::TcpListener::local_addr).transpose();
    let admin = admin.map_err(ServerError::System)?;
    let is_local = admin.is_some_and(|address| address.ip().is_loopback());

    let stops = Stops::default();
    // Whatever fails from here on, the threads that have started end.
    let on_error = stops.quit.clone().drop_guard();
    let drain_on_error = stops.drain.clone().drop_guard();
    let leave_on_error = stops.leave.clone().drop_guard();
    let (reports, stores) = mpsc::channel();
    let mut threads = Vec::with_capacity(workers);
    let mut openers = Vec::with_capacity(workers);
    for number in 0..workers {
        let (opener, open) = oneshot::channel();
        openers.push(opener);
        let worker = Worker {
            open,
            listeners: options.listeners.iter().map(|(_, listener)| listener.clone()).collect(),
            admission: options.admission.clone(),
            shared: shared.clone(),
            make_store: make_store.clone(),
            drain: stops.drain.child_token(),
            quit: stops.quit.child_token(),
            grace: options.grace,
        };
        let reports = reports.clone();
        let run = move || worker.run(|store| drop(reports.send(store)));
        threads.push(spawn(&format!("worker-{number}"), run)?);
    }
    drop(reports);
    let mut worker_stores = Vec::with_capacity(workers);
    for _ in &threads {
        let report = stores.recv().unwrap_or_else(|_| Err("its thread ended".into()));
        worker_stores.push(report.map_err(ServerError::Worker)?);
    }

    let (ask_reload, asked) = mpsc::channel();
    let reloader = spawn("reload", move || run_reload(reload, &asked))?;
    let is_handover = inherited.is_handover();
    let mut shares: Vec<_> = (0..workers).map(|_| Vec::with_capacity(listeners.len())).collect();
    for (place, (_, sockets)) in listeners.iter_mut().enumerate() {
        sockets.widen(workers);
        for (share, sockets) in shares.iter_mut().zip(sockets.spread(workers).map_err(ServerError::System)?) {
            share.extend(sockets.into_iter().map(|socket| (place, socket)));
        }
    }
    let control = Control {
        sockets: listeners.into_iter().chain(admins.map(|admin| (ListenerKind::Admin, admin))).collect(),
        admin: admin_listener
            .map(|socket| (socket, admin_options(options, shared, readiness, worker_stores, is_local))),
        shared: shared.clone(),
        make_store: make_store.clone(),
        clock: options.clock.clone(),
        access_log: options.access_log.clone(),
        readiness: readiness.clone(),
        stops: stops.clone(),
        drain_delay: options.drain_delay,
        handle_signals: options.handle_signals,
        ask_reload,
        workers: threads,
    };
    // Before the admin listener opens: at one that was handed over, nobody may learn that this process is only starting.
    readiness.serving();
    let (reports, started) = mpsc::channel();
    let control = spawn("control", move || control.run(reloader, |report| drop(reports.send(report))))?;
    match started.recv() {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return Err(ServerError::System(error)),
        Err(_) => return Err(ServerError::Worker("the control thread ended".into())),
    }
    for (opener, share) in openers.into_iter().zip(shares) {
        if opener.send(share).is_err() {
            return Err(ServerError::Worker("its thread ended".into()));
        }
    }
    on_error.disarm();
    drain_on_error.disarm();
    leave_on_error.disarm();
    for (listener, address) in &addresses {
        tracing::info!(listener = listener.name(), %address, workers = options.workers, "listening");
    }
    if let Some(address) = admin {
        tracing::info!(listener = "admin", %address, "listening");
    }
    inherited.ready();
    if !is_handover {
        supervisor::notify(supervisor::READY);
    }
    Ok(Running { listeners: addresses, admin, control, stops })
}

/// The sockets of a listener: those that were handed over, or else new ones.
fn open(
    listener: ListenerKind,
    inherited: &mut Inherited,
    address: &ListenAddress,
    workers: usize,
) -> Result<Sockets, ServerError> {
    let handed_over = inherited.of_listener(listener);
    if handed_over.is_empty() {
        let failed = |error| ServerError::Bind { listener: listener.name(), address: address.clone(), error };
        return Sockets::bind(address, workers).map_err(failed);
    }
    let sockets = Sockets::adopt(handed_over).map_err(|error| ServerError::Inherited(error.to_string()))?;
    tracing::info!(
        listener = listener.name(),
        "sockets were handed over, and the address that is configured is not looked at"
    );
    Ok(sockets)
}

/// What the admin listener is made of.
fn admin_options(
    options: &ServerOptions,
    shared: &Arc<Shared>,
    readiness: &Arc<Readiness>,
    stores: Vec<Store>,
    is_local: bool,
) -> AdminOptions {
    let (readiness, shared) = (readiness.clone(), shared.clone());
    let (tokens, log) = (options.admin_tokens.clone(), options.log.clone());
    AdminOptions { readiness, shared, stores: stores.into(), tokens, log, is_local }
}

/// The admin listener's socket.
fn one_tcp(sockets: &Sockets) -> Result<std::net::TcpListener, ServerError> {
    let wrong = || ServerError::Inherited("the admin listener takes one TCP socket".into());
    let shares = sockets.spread(1).map_err(ServerError::System)?;
    match shares.first().map(Vec::as_slice) {
        Some([ListeningSocket::Tcp(socket)]) => socket.try_clone().map_err(ServerError::System),
        _ => Err(wrong()),
    }
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
