//! The control thread: admin listener, signals, and the order in which things begin and end.

use std::future;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::handover::hand_over;
use super::sockets::Sockets;
use super::{MakeStore, Stops, build_runtime, supervisor};
use crate::clock::Clock;
use crate::limiter::Shared;
use crate::limiter::operator::Operator;
use crate::listeners::ListenerKind;
use crate::listeners::admin::{Admin, AdminOptions, Connections, Readiness};
use crate::telemetry::access_log::AccessLog;

/// How often the clock is compared with the machine's.
const FOLLOW_INTERVAL: Duration = Duration::from_secs(1);

/// How long to wait before another `accept` when the system has no descriptor to give.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What the control thread is made of.
pub(super) struct Control {
    /// The sockets of each listener, for a process that takes over.
    pub(super) sockets: Vec<(ListenerKind, Sockets)>,
    pub(super) admin: Option<(std::net::TcpListener, AdminOptions)>,
    /// What the workers share: this thread tells them what is blocked.
    pub(super) shared: Arc<Shared>,
    /// Makes this thread's own connection to the store.
    pub(super) make_store: MakeStore,
    pub(super) clock: Clock,
    pub(super) access_log: Option<AccessLog>,
    pub(super) readiness: Arc<Readiness>,
    pub(super) stops: Stops,
    /// From the first word of the end until new connections are refused.
    pub(super) drain_delay: Duration,
    pub(super) handle_signals: bool,
    pub(super) ask_reload: Sender<()>,
    pub(super) workers: Vec<JoinHandle<()>>,
}

/// Why no more connections are taken.
enum End {
    /// The process was told to stop.
    Stop,
    /// Another process takes them.
    HandedOver,
}

impl Control {
    /// Runs until the workers have ended. `report` is told whether it could start.
    pub(super) fn run(self, reloader: JoinHandle<()>, report: impl FnOnce(io::Result<()>)) {
        let access_log = self.access_log.clone();
        match build_runtime() {
            Ok(runtime) => runtime.block_on(self.serve(report)),
            Err(error) => report(Err(error)),
        }
        if let Some(access_log) = access_log {
            access_log.finish();
        }
        // With the runtime the last one who could ask for a reload is gone.
        if reloader.join().is_err() {
            tracing::error!("the reload thread panicked");
        }
    }

    async fn serve(mut self, report: impl FnOnce(io::Result<()>)) {
        let tasks = TaskTracker::new();
        let closing = CancellationToken::new();
        let operator = match (self.make_store)() {
            Ok(store) => Rc::new(Operator::new(self.shared.clone(), store, self.clock.clone())),
            Err(error) => return report(Err(io::Error::other(error))),
        };
        // To the end of the drain: what is blocked stays so for the requests that still run.
        let _keeping_up = AbortOnDropHandle::new(tokio::task::spawn_local(keep_up(operator.clone())));
        let started = self.admin.take().map_or(Ok(()), |(socket, admin)| {
            let socket = tokio::net::TcpListener::from_std(socket)?;
            tasks.spawn_local(serve_admin(socket, Admin::new(admin, operator), tasks.clone(), closing.clone()));
            Ok(())
        });
        let signals = if self.handle_signals { Signals::new().map(Some) } else { Ok(None) };
        let mut signals = match started.and(signals) {
            Ok(signals) => signals,
            Err(error) => return report(Err(error)),
        };
        report(Ok(()));
        match self.until_end(&mut signals).await {
            End::Stop => self.leave(&mut signals).await,
            // The listener is the other process' now: nobody may learn from this one that it drains.
            End::HandedOver => closing.cancel(),
        }
        self.sockets.clear();
        self.stops.drain.cancel();
        tracing::info!("draining: no new connections are taken");
        self.until_drained(&mut signals).await;
        tracing::info!("stopped");
    }

    /// Does what signals say until one says that it is the end.
    async fn until_end(&self, signals: &mut Option<Signals>) -> End {
        let mut following = interval(FOLLOW_INTERVAL);
        following.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let wish = tokio::select! {
                () = self.stops.leave.cancelled() => return End::Stop,
                _ = following.tick() => {
                    self.clock.follow();
                    continue;
                }
                wish = Signals::next(signals) => wish,
            };
            match wish {
                Wish::Stop => return End::Stop,
                Wish::HandOver => {
                    if let Some(end) = self.hand_over(signals).await {
                        return end;
                    }
                }
                Wish::Reload | Wish::Reopen => self.refresh(wish),
            }
        }
    }

    /// Hands the listeners to a new process. `None` if it can't: then everything stays as it is.
    async fn hand_over(&self, signals: &mut Option<Signals>) -> Option<End> {
        tracing::info!("handing over to a new process");
        let mut sockets = Vec::new();
        for (listener, of_listener) in &self.sockets {
            match of_listener.descriptors() {
                Ok(descriptors) => sockets.extend(descriptors.into_iter().map(|descriptor| (*listener, descriptor))),
                Err(error) => {
                    tracing::error!("cannot hand over: {error}; this process goes on");
                    return None;
                }
            }
        }
        let mut handing = std::pin::pin!(hand_over(sockets));
        loop {
            let wish = tokio::select! {
                handed = &mut handing => match handed {
                    Ok(successor) => {
                        tracing::info!(successor, "handed over");
                        supervisor::notify(&supervisor::main_process(successor));
                        return Some(End::HandedOver);
                    }
                    Err(reason) => {
                        tracing::error!("the new process did not take over: {reason}; this process goes on");
                        return None;
                    }
                },
                () = self.stops.leave.cancelled() => return Some(End::Stop),
                wish = Signals::next(signals) => wish,
            };
            match wish {
                // The new process ends with this one's patience for it.
                Wish::Stop => return Some(End::Stop),
                Wish::HandOver => tracing::warn!("told to hand over again: a new process is starting already"),
                Wish::Reload | Wish::Reopen => self.refresh(wish),
            }
        }
    }

    /// Says that this process leaves, and takes connections for as long as it takes others to notice.
    async fn leave(&self, signals: &mut Option<Signals>) {
        self.readiness.draining();
        supervisor::notify(supervisor::STOPPING);
        if self.drain_delay.is_zero() {
            return;
        }
        tracing::info!(delay = ?self.drain_delay, "leaving: connections are taken until load balancers have noticed");
        let mut delay = std::pin::pin!(sleep(self.drain_delay));
        loop {
            let wish = tokio::select! {
                () = &mut delay => return,
                wish = Signals::next(signals) => wish,
            };
            match wish {
                Wish::Stop => {
                    tracing::warn!("told to stop again: the delay is cut short");
                    return;
                }
                Wish::HandOver => tracing::warn!("told to hand over: this process is leaving"),
                Wish::Reload | Wish::Reopen => self.refresh(wish),
            }
        }
    }

    /// Waits until what runs has been finished.
    async fn until_drained(&mut self, signals: &mut Option<Signals>) {
        let workers = std::mem::take(&mut self.workers);
        let mut joined = tokio::task::spawn_blocking(|| {
            for worker in workers {
                if worker.join().is_err() {
                    tracing::error!("a worker's thread panicked");
                }
            }
        });
        loop {
            let wish = tokio::select! {
                joined = &mut joined => {
                    if joined.is_err() {
                        tracing::error!("cannot wait for the workers");
                    }
                    return;
                }
                wish = Signals::next(signals) => wish,
            };
            match wish {
                Wish::Stop => {
                    tracing::warn!("told to stop again: what runs is cut off");
                    self.stops.quit.cancel();
                }
                Wish::HandOver => tracing::warn!("told to hand over: this process takes no connections any more"),
                Wish::Reload | Wish::Reopen => self.refresh(wish),
            }
        }
    }

    /// Opens the access log again, and looks at the rules if that is wished.
    fn refresh(&self, wish: Wish) {
        if let Some(access_log) = &self.access_log {
            access_log.reopen();
        }
        if wish == Wish::Reload {
            // The receiver ends after the last sender, and this is one.
            let _ = self.ask_reload.send(());
        }
    }
}

/// Tells the workers what other gateways have blocked, and what is blocked no longer.
async fn keep_up(operator: Rc<Operator>) {
    loop {
        sleep(operator.keep_up().await).await;
    }
}

async fn serve_admin(
    socket: tokio::net::TcpListener,
    admin: Rc<Admin>,
    tasks: TaskTracker,
    closing: CancellationToken,
) {
    let connections = Rc::new(Connections::default());
    loop {
        let accepted = tokio::select! {
            () = closing.cancelled() => return,
            accepted = socket.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                let place = connections.enter(peer.ip());
                tasks.spawn_local(admin.clone().serve_connection(stream, place, closing.clone()));
            }
            Err(error) => {
                tracing::warn!("cannot accept an admin connection: {error}");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    /// SIGTERM, SIGINT: the first time what runs is finished, the second time it is dropped.
    Stop,
    /// SIGHUP: the rules are read again, and the access log is opened again.
    Reload,
    /// SIGUSR1: the access log is opened again.
    Reopen,
    /// SIGUSR2: a new process takes over.
    HandOver,
}

/// The signals that the process listens to.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
    first_of_user: Signal,
    second_of_user: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
            first_of_user: signal(SignalKind::user_defined1())?,
            second_of_user: signal(SignalKind::user_defined2())?,
        })
    }

    /// The next wish; never, if there are no signals.
    async fn next(signals: &mut Option<Self>) -> Wish {
        let Some(signals) = signals else { return future::pending().await };
        tokio::select! {
            _ = signals.terminate.recv() => Wish::Stop,
            _ = signals.interrupt.recv() => Wish::Stop,
            _ = signals.hang_up.recv() => Wish::Reload,
            _ = signals.first_of_user.recv() => Wish::Reopen,
            _ = signals.second_of_user.recv() => Wish::HandOver,
        }
    }
}
