//! Runs the process: workers, sockets, the admin listener, signals, reload and drain.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use socket2::Socket;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use self::control::Control;
use self::inherited::InheritedSockets;
use self::process::Signals;
use self::sockets::Sockets;
use self::worker::Worker;
use crate::clock::Clock;
use crate::engine::request::incoming::ReadingOptions;
use crate::http::{AcceptOptions, Admission};
use crate::limiter::Shared;
use crate::listeners::ListenerOptions;
use crate::listeners::admin::log::LogFilter;
use crate::listeners::admin::reload::{ReloadOutcome, ReloadRequest};
use crate::listeners::admin::tokens::Tokens;
use crate::listeners::admin::{AdminOptions, Readiness};
use crate::store::Store;
use crate::telemetry::access_log::AccessLog;
use crate::telemetry::metrics::ListenerKind;

pub(crate) mod collector;
pub mod compiler;
mod control;
pub mod descriptors;
mod error;
mod handover;
mod inherited;
mod keys;
mod listening_socket;
mod override_feed;
mod process;
pub mod reload;
mod runtime;
mod sockets;
mod supervisor;
mod webhook;
mod worker;
mod xds;

pub use error::ServerError;
pub use listening_socket::ListenAddress;
pub use override_feed::OverrideFeed;
pub use process::Process;
pub use webhook::Webhook;
pub use xds::{XdsClient, XdsOptions};

/// How often the files of rules and certificates are checked.
const RELOAD_INTERVAL: Duration = Duration::from_secs(2);

/// Makes a worker's store. Runs inside the worker's runtime.
pub type MakeStore = Arc<dyn Fn() -> Result<Store, String> + Send + Sync>;

/// Checks the files of rules and certificates and applies changes. The argument is true if a signal or an operator asked
/// for it. Runs on its own thread, so it may block.
pub type Reload = Box<dyn FnMut(bool) -> ReloadOutcome + Send>;

/// The options of [`start`].
#[derive(Clone, Debug)]
pub struct ServerOptions {
    pub listeners: Vec<(ListenAddress, ListenerOptions)>,
    pub admission: Arc<Admission>,
    pub access_log: Option<AccessLog>,
    pub admin_address: Option<SocketAddr>,
    /// The address and the path for the metrics alone, without TLS.
    pub metrics: Option<(SocketAddr, Arc<str>)>,
    pub admin_accept: AcceptOptions,
    /// The tokens that allow changes through the admin listener. Without tokens, it is read-only.
    pub admin_tokens: Tokens,
    /// Names of the admin listener in `Host`, in lower case, besides `localhost` and addresses.
    pub admin_hosts: Arc<[String]>,
    /// The log filter that the admin listener may change.
    pub log: Option<LogFilter>,
    /// The listeners' settings, for explanations.
    pub reading: ReadingOptions,
    pub clock: Clock,
    pub workers: NonZeroUsize,
    /// The time for which the process accepts connections after the signal to stop, while `/readyz` fails.
    pub drain_delay: Duration,
    /// Overrides that come by URL, after their first fetch.
    pub override_feeds: Vec<OverrideFeed>,
    /// The client of a management server.
    pub xds: Option<XdsClient>,
    /// The receiver of warnings.
    pub webhook: Option<Webhook>,
    /// How long requests in flight may take after that.
    pub grace: Duration,
}

/// A running server.
#[derive(Debug)]
pub struct RunningServer {
    pub listeners: Vec<(ListenerKind, ListenAddress)>,
    pub admin: Option<SocketAddr>,
    metrics: Option<SocketAddr>,
    control: JoinHandle<()>,
    stops: StopTokens,
}

/// The stages of a stop.
#[derive(Clone, Debug, Default)]
struct StopTokens {
    /// The process is leaving; the drain begins after [`ServerOptions::drain_delay`].
    leave: CancellationToken,
    /// Accept no new connections and finish requests in flight.
    drain: CancellationToken,
    /// Stop at once.
    quit: CancellationToken,
}

impl RunningServer {
    /// Tells the log, the supervisor and the process that hands over that the listeners are open.
    fn announce(&self, options: &ServerOptions, inherited: InheritedSockets) {
        let workers = options.workers;
        for ((listener, address), (_, opened)) in self.listeners.iter().zip(&options.listeners) {
            let (tls, redirects) = (opened.has_tls().then_some(true), opened.redirects().then_some(true));
            tracing::info!(listener = listener.label(), %address, tls, redirects, workers, "listening");
        }
        if let Some(address) = self.admin {
            tracing::info!(listener = "admin", %address, "listening");
            let scheme = if options.admin_accept.tls.is_some() { "https" } else { "http" };
            tracing::info!(url = format!("{scheme}://{}/", reachable(address)), "live page");
        }
        if let Some(address) = self.metrics {
            tracing::info!(listener = "metrics", %address, "listening");
        }
        let plain = self.plain_listeners(options);
        if !plain.is_empty() {
            tracing::info!(
                listeners = plain.join(", "),
                "other machines can reach these listeners without TLS; --tls-cert adds it to the proxy, --grpc-tls-cert, \
                 --check-tls-cert, --spoe-tls-cert and --admin-tls-cert to the others"
            );
        }
        if !inherited.is_handover() {
            supervisor::notify(supervisor::READY);
        }
        inherited.ready();
    }

    /// Returns the listeners without TLS on addresses that are not loopback. A proxy that has TLS elsewhere lacks it on purpose.
    fn plain_listeners(&self, options: &ServerOptions) -> Vec<&'static str> {
        let is_remote = |address: SocketAddr| !address.ip().to_canonical().is_loopback();
        let has_tls = |kind: ListenerKind| options.listeners.iter().any(|(_, of)| of.kind() == kind && of.has_tls());
        let plain =
            self.listeners.iter().filter(|(kind, address)| !has_tls(*kind) && address.tcp().is_some_and(is_remote));
        let admin = self.admin.filter(|address| options.admin_accept.tls.is_none() && is_remote(*address));
        let kinds = plain.map(|(kind, _)| *kind).chain(admin.map(|_| ListenerKind::Admin));
        let mut labels: Vec<_> = kinds.map(ListenerKind::label).collect();
        labels.dedup();
        labels
    }

    pub fn address(&self, kind: ListenerKind) -> Option<&ListenAddress> {
        self.listeners.iter().find(|(listener, _)| *listener == kind).map(|(_, address)| address)
    }

    /// Drains after the delay, within the grace period.
    pub fn stop(&self) {
        self.stops.leave.cancel();
    }

    /// Waits until the server has stopped.
    pub fn join(self) {
        if self.control.join().is_err() {
            tracing::error!("the control thread panicked");
        }
    }
}

/// Starts a server, which handles the signals of the process and uses what it inherited, if that is given. The listeners are open when it
/// returns; after an error, every thread that has started ends.
pub fn start(
    options: &ServerOptions,
    process: Option<Process>,
    shared: &Arc<Shared>,
    make_store: &MakeStore,
    readiness: &Arc<Readiness>,
    reload: Reload,
) -> Result<RunningServer, ServerError> {
    let workers = options.workers.get();
    shared.metrics().server.workers.set(i64::try_from(workers).unwrap_or(i64::MAX));
    let (mut signals, mut inherited): (Signals, InheritedSockets) =
        process.map(|process| (process.signals, process.inherited)).unwrap_or_default();
    let mut bound = BoundSockets::open(options, &mut inherited)?;
    let admin = bound.admin_socket.as_ref().map(TcpListener::local_addr).transpose()?;
    let metrics = bound.metrics_socket.as_ref().map(TcpListener::local_addr).transpose()?;

    let stops = StopTokens::default();
    let stop_on_error = [&stops.quit, &stops.drain, &stops.leave].map(|stop| stop.clone().drop_guard());
    let started = start_workers(options, shared, make_store, &stops)?;
    let (ask_reload, asked) = mpsc::channel();
    let reloader = spawn("reload", move || run_reload(reload, &asked))?;
    let shares = bound.shares(workers)?;
    let admin_options = AdminOptions {
        accept: options.admin_accept.clone(),
        readiness: readiness.clone(),
        shared: shared.clone(),
        stores: started.stores.into(),
        tokens: options.admin_tokens.clone(),
        log: options.log.clone(),
        listeners: bound.addresses.iter().map(|(kind, address)| (kind.label(), address.to_string())).collect(),
        hosts: options.admin_hosts.clone(),
        metrics_path: options.metrics.as_ref().map(|(_, path)| path.clone()).unwrap_or_default(),
        reloads: ask_reload.clone(),
        reading: options.reading.clone(),
        is_local: admin.is_some_and(|address| address.ip().is_loopback()),
    };
    // The process that hands over goes on.
    if inherited.is_handover() && signals.have_stopped()? {
        return Err(ServerError::Stopped);
    }
    let control = Control {
        sockets: bound.listeners,
        admin: bound.admin_socket.map(|socket| (socket, bound.metrics_socket, admin_options)),
        shared: shared.clone(),
        make_store: make_store.clone(),
        options: options.clone(),
        signals,
        readiness: readiness.clone(),
        stops: stops.clone(),
        ask_reload,
        workers: started.threads,
    };
    // Before the admin listener opens: after a hand-over, no probe may see that this process is only starting.
    readiness.serving();
    let control = start_control(control, reloader)?;
    for (opener, share) in started.openers.into_iter().zip(shares) {
        opener.send(share).map_err(|_| ServerError::Worker("its thread ended".into()))?;
    }
    for guard in stop_on_error {
        guard.disarm();
    }
    let running = RunningServer { listeners: bound.addresses, admin, metrics, control, stops };
    running.announce(options, inherited);
    Ok(running)
}

/// The sockets of all listeners.
struct BoundSockets {
    /// The workers' listeners in the order of the options, then the admin listener and that of the metrics.
    listeners: Vec<(ListenerKind, Sockets)>,
    /// The addresses of the workers' listeners.
    addresses: Vec<(ListenerKind, ListenAddress)>,
    admin_socket: Option<TcpListener>,
    metrics_socket: Option<TcpListener>,
}

impl BoundSockets {
    fn open(options: &ServerOptions, inherited: &mut InheritedSockets) -> Result<Self, ServerError> {
        let mut listeners = Vec::with_capacity(options.listeners.len() + 1);
        let mut addresses: Vec<(ListenerKind, ListenAddress)> = Vec::with_capacity(options.listeners.len());
        let configured: Vec<_> = options.listeners.iter().map(|(address, _)| address.clone()).collect();
        for (address, listener) in &options.listeners {
            let place = addresses.iter().filter(|(kind, _)| *kind == listener.kind()).count();
            let handed_over = inherited.of_listener(listener.kind(), place, address, &configured);
            let sockets = open(listener.kind(), handed_over, address, options.workers.get())?;
            let address = sockets.address()?.unwrap_or_else(|| address.clone());
            addresses.push((listener.kind(), address));
            listeners.push((listener.kind(), sockets));
        }
        let mut of_control = [options.admin_address, options.metrics.as_ref().map(|(address, _)| *address)]
            .into_iter()
            .enumerate()
            .map(|(place, address)| {
                let Some(address) = address.map(ListenAddress::Tcp) else { return Ok(None) };
                let handed_over = inherited.of_listener(ListenerKind::Admin, place, &address, &configured);
                let sockets = open(ListenerKind::Admin, handed_over, &address, 1)?;
                listeners.push((ListenerKind::Admin, sockets));
                listeners.last().map(|(_, sockets)| one_tcp(sockets)).transpose()
            })
            .collect::<Result<Vec<_>, ServerError>>()?;
        let (metrics_socket, admin_socket) = (of_control.pop().flatten(), of_control.pop().flatten());
        Ok(Self { listeners, addresses, admin_socket, metrics_socket })
    }

    /// Gives each worker a socket of each of its listeners.
    fn shares(&mut self, workers: usize) -> Result<Vec<worker::Share>, ServerError> {
        let mut shares: Vec<_> = (0..workers).map(|_| Vec::with_capacity(self.addresses.len())).collect();
        for (place, (_, sockets)) in self.listeners.iter_mut().take(self.addresses.len()).enumerate() {
            sockets.widen(workers);
            for (share, sockets) in shares.iter_mut().zip(sockets.spread(workers)?) {
                share.extend(sockets.into_iter().map(|socket| (place, socket)));
            }
        }
        Ok(shares)
    }
}

/// Workers that have their stores and wait for their sockets.
struct StartedWorkers {
    threads: Vec<JoinHandle<()>>,
    openers: Vec<oneshot::Sender<worker::Share>>,
    stores: Vec<Store>,
}

fn start_workers(
    options: &ServerOptions,
    shared: &Arc<Shared>,
    make_store: &MakeStore,
    stops: &StopTokens,
) -> Result<StartedWorkers, ServerError> {
    let (reports, reported) = mpsc::channel();
    let (mut threads, mut openers) = (Vec::new(), Vec::new());
    for number in 0..options.workers.get() {
        let (opener, open) = oneshot::channel();
        openers.push(opener);
        let worker = Worker {
            open,
            options: options.clone(),
            shared: shared.clone(),
            make_store: make_store.clone(),
            drain: stops.drain.child_token(),
            quit: stops.quit.child_token(),
        };
        let reports = reports.clone();
        let run = move || worker.run(|store| drop(reports.send(store)));
        threads.push(spawn(&format!("worker-{number}"), run)?);
    }
    drop(reports);
    let store = || reported.recv().unwrap_or_else(|_| Err("its thread ended".into())).map_err(ServerError::Worker);
    let stores = threads.iter().map(|_| store()).collect::<Result<_, _>>()?;
    Ok(StartedWorkers { threads, openers, stores })
}

/// Starts the control thread and waits until it serves.
fn start_control(control: Control, reloader: JoinHandle<()>) -> Result<JoinHandle<()>, ServerError> {
    let (reports, report) = mpsc::channel();
    let control = spawn("control", move || control.run(reloader, |report| drop(reports.send(report))))?;
    report.recv().map_err(|_| ServerError::Worker("the control thread ended".into()))??;
    Ok(control)
}

/// Returns an address by which this machine reaches a listener on `address`.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// Uses the inherited sockets of a listener, or binds new ones.
fn open(
    listener: ListenerKind,
    handed_over: Vec<Socket>,
    address: &ListenAddress,
    workers: usize,
) -> Result<Sockets, ServerError> {
    if handed_over.is_empty() {
        let failed = |error| ServerError::Bind { listener: listener.label(), address: address.clone(), error };
        return Sockets::bind(address, workers).map_err(failed);
    }
    let sockets = Sockets::adopt(handed_over).map_err(|error| ServerError::Inherited(error.to_string()))?;
    tracing::info!(listener = listener.label(), "using inherited sockets; the configured address is ignored");
    Ok(sockets)
}

/// The admin listener's socket.
fn one_tcp(sockets: &Sockets) -> Result<TcpListener, ServerError> {
    let shares = sockets.spread(1)?;
    match (shares.first().map(Vec::as_slice), sockets.address()?) {
        (Some([socket]), Some(ListenAddress::Tcp(_))) => Ok(socket.try_clone()?.into()),
        _ => Err(ServerError::Inherited("the admin listener needs exactly one TCP socket".into())),
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, ServerError> {
    Ok(thread::Builder::new().name(name.to_owned()).spawn(run)?)
}

/// Reloads at intervals and on request, until all senders are dropped.
fn run_reload(mut reload: Reload, asked: &mpsc::Receiver<ReloadRequest>) {
    loop {
        match asked.recv_timeout(RELOAD_INTERVAL) {
            Ok(request) => {
                let outcome = reload(true);
                if let Some(waiting) = request {
                    // It may have given up.
                    let _ = waiting.send(outcome);
                }
            }
            Err(RecvTimeoutError::Timeout) => drop(reload(false)),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
