//! The control thread: the admin listener, signals, and the order of start and stop.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::handover::hand_over;
use super::inherited;
use super::keys::keep_keys;
use super::override_feed::OverrideFeed;
use super::process::{SignalAction, Signals, Transition};
use super::runtime::build_runtime;
use super::sockets::Sockets;
use super::webhook::tell_warnings;
use super::xds::{PushedConfiguration, XdsClient};
use super::{MakeStore, ServerOptions, StopTokens, supervisor};
use crate::limiter::Shared;
use crate::limiter::operator::Operator;
use crate::limiter::warnings::Warner;
use crate::listeners::admin::reload::ReloadSender;
use crate::listeners::admin::{Admin, AdminOptions, AdminPaths, Connections, Readiness};
use crate::telemetry::metrics::ListenerKind;

/// How often the clock is compared with the machine's wall clock.
const FOLLOW_INTERVAL: Duration = Duration::from_secs(1);

/// How long the last warnings may take at the end, for the store and the receiver of webhooks.
const LAST_WARNINGS: Duration = Duration::from_secs(10);

/// How long to wait before the next `accept` when the system is out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The control thread before it runs.
pub(super) struct Control {
    /// The sockets of each listener, for a hand-over.
    pub(super) sockets: Vec<(ListenerKind, Sockets)>,
    /// The sockets of the admin listener and of the metrics.
    pub(super) admin: Option<(std::net::TcpListener, Option<std::net::TcpListener>, AdminOptions)>,
    pub(super) shared: Arc<Shared>,
    /// Makes this thread's connection to the store.
    pub(super) make_store: MakeStore,
    pub(super) options: ServerOptions,
    pub(super) signals: Signals,
    pub(super) readiness: Arc<Readiness>,
    pub(super) stops: StopTokens,
    pub(super) ask_reload: ReloadSender,
    pub(super) workers: Vec<JoinHandle<()>>,
}

/// The reason that the process stops accepting.
enum End {
    Stop,
    HandedOver,
}

impl Control {
    /// Runs until the workers have ended. `report` gets the result of the start.
    pub(super) fn run(self, reloader: JoinHandle<()>, report: impl FnOnce(io::Result<()>)) {
        let access_log = self.options.access_log.clone();
        match build_runtime() {
            Ok(runtime) => runtime.block_on(self.serve(report)),
            Err(error) => report(Err(error)),
        }
        if let Some(access_log) = access_log {
            access_log.finish();
        }
        // The runtime owned the last sender of reload requests.
        if reloader.join().is_err() {
            tracing::error!("the reload thread panicked");
        }
    }

    async fn serve(mut self, report: impl FnOnce(io::Result<()>)) {
        let tasks = TaskTracker::new();
        let closing = CancellationToken::new();
        let store = match (self.make_store)() {
            Ok(store) => store,
            Err(error) => return report(Err(io::Error::other(error))),
        };
        let ending = CancellationToken::new();
        let webhook = self.options.webhook.take();
        let warnings = Warner::new(&self.shared, store.clone())
            .map(|warner| tell_warnings(warner, self.shared.clone(), webhook, ending.clone()))
            .map(|telling| AbortOnDropHandle::new(tokio::task::spawn_local(telling)));
        let operator = Rc::new(Operator::new(self.shared.clone(), store, self.options.clock.clone()));
        // Runs until the end of the drain, so that blocks apply to the requests in flight.
        let _notices = AbortOnDropHandle::new(tokio::task::spawn_local(sync_notices(operator.clone())));
        let _keys =
            AbortOnDropHandle::new(tokio::task::spawn_local(keep_keys(self.shared.clone(), self.readiness.clone())));
        let feeds = std::mem::take(&mut self.options.override_feeds);
        let run = |feed: OverrideFeed| {
            let running = feed.run(self.shared.clone(), self.ask_reload.clone());
            AbortOnDropHandle::new(tokio::task::spawn_local(running))
        };
        let _feeds: Vec<_> = feeds.into_iter().map(run).collect();
        let xds = self.options.xds.take();
        let pushed = xds.as_ref().map(XdsClient::in_force);
        let _xds = xds.map(|xds| {
            let running = xds.run(self.shared.clone(), self.readiness.clone(), self.ask_reload.clone());
            AbortOnDropHandle::new(tokio::task::spawn_local(running))
        });
        let started = self.admin.take().map_or(Ok(None), |(socket, metrics, admin)| {
            let admin = Admin::new(admin, operator);
            for (socket, paths) in [(Some(socket), AdminPaths::All), (metrics, AdminPaths::Metrics)] {
                let Some(socket) = socket else { continue };
                let socket = tokio::net::TcpListener::from_std(socket)?;
                tasks.spawn_local(serve_admin(socket, (admin.clone(), paths), tasks.clone(), closing.clone()));
            }
            Ok(Some(AbortOnDropHandle::new(tokio::task::spawn_local(admin.keep_history()))))
        });
        let _history = match started {
            Ok(history) => history,
            Err(error) => return report(Err(error)),
        };
        let mut signals = std::mem::take(&mut self.signals);
        report(Ok(()));
        match self.until_end(&mut signals, pushed.as_ref()).await {
            End::Stop => self.leave(&mut signals).await,
            // The new process owns the listener now; no probe may see that this one drains.
            End::HandedOver => closing.cancel(),
        }
        self.sockets.clear();
        self.stops.drain.cancel();
        tracing::info!("draining: no new connections are accepted");
        self.until_drained(&mut signals).await;
        ending.cancel();
        if let Some(warnings) = warnings
            && timeout(LAST_WARNINGS, warnings).await.is_err()
        {
            tracing::error!("the last warnings are lost, as the store did not answer in time");
        }
        tracing::info!("stopped");
    }

    /// Waits for a signal to stop or to hand over, and handles the others.
    async fn transition(&self, signals: &mut Signals) -> Transition {
        loop {
            let action = signals.next().await;
            if let SignalAction::End(transition) = action {
                return transition;
            }
            if let Some(access_log) = &self.options.access_log {
                access_log.reopen();
            }
            if action == SignalAction::Reload {
                // Cannot fail: the receiver lives until the last sender is dropped.
                let _ = self.ask_reload.send(None);
            }
        }
    }

    /// Handles signals until one ends the process.
    async fn until_end(&self, signals: &mut Signals, pushed: Option<&PushedConfiguration>) -> End {
        let mut following = interval(FOLLOW_INTERVAL);
        following.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let transition = tokio::select! {
                () = self.stops.leave.cancelled() => return End::Stop,
                _ = following.tick() => {
                    self.options.clock.follow();
                    continue;
                }
                transition = self.transition(signals) => transition,
            };
            if transition == Transition::Stop {
                return End::Stop;
            }
            if let Some(end) = self.hand_over(signals, pushed).await {
                return end;
            }
        }
    }

    /// Hands the sockets and a pushed configuration to a new process. Returns `None` if that fails; then this process goes on unchanged.
    async fn hand_over(&self, signals: &mut Signals, pushed: Option<&PushedConfiguration>) -> Option<End> {
        let mut sockets = Vec::new();
        for (number, (listener, of_listener)) in self.sockets.iter().enumerate() {
            let place = self.sockets.iter().take(number).filter(|(other, _)| other == listener).count();
            let name = inherited::name(*listener, place);
            match of_listener.descriptors() {
                Ok(descriptors) => sockets.extend(descriptors.into_iter().map(|descriptor| (name.clone(), descriptor))),
                Err(error) => {
                    tracing::error!("cannot hand over: {error}; this process goes on");
                    return None;
                }
            }
        }
        let configuration = pushed.and_then(PushedConfiguration::hand_over);
        tracing::info!("handing over to a new process");
        let mut handing = std::pin::pin!(hand_over(sockets, configuration));
        loop {
            let transition = tokio::select! {
                handed = &mut handing => match handed {
                    Ok(successor) => {
                        tracing::info!(successor, "handed over");
                        supervisor::notify(&supervisor::main_process(successor));
                        return Some(End::HandedOver);
                    }
                    Err(reason) => {
                        tracing::error!("the new process did not take over: {reason}; this process goes on");
                        if let Some(pushed) = pushed {
                            pushed.resume();
                        }
                        return None;
                    }
                },
                () = self.stops.leave.cancelled() => return Some(End::Stop),
                transition = self.transition(signals) => transition,
            };
            match transition {
                // Dropping `handing` ends the new process.
                Transition::Stop => return Some(End::Stop),
                Transition::HandOver => tracing::warn!("ignoring SIGUSR2: a new process is already starting"),
            }
        }
    }

    /// Reports that the process is leaving, and goes on accepting until load balancers notice.
    async fn leave(&self, signals: &mut Signals) {
        self.readiness.draining();
        supervisor::notify(supervisor::STOPPING);
        if self.options.drain_delay.is_zero() {
            return;
        }
        tracing::info!(delay = ?self.options.drain_delay, "leaving: accepting connections until load balancers take notice");
        let mut delay = std::pin::pin!(sleep(self.options.drain_delay));
        loop {
            let transition = tokio::select! {
                () = &mut delay => return,
                transition = self.transition(signals) => transition,
            };
            match transition {
                Transition::Stop => {
                    tracing::warn!("second signal to stop: draining now");
                    return;
                }
                Transition::HandOver => tracing::warn!("ignoring SIGUSR2: this process is leaving"),
            }
        }
    }

    /// Waits until the workers have drained.
    async fn until_drained(&mut self, signals: &mut Signals) {
        let workers = std::mem::take(&mut self.workers);
        let mut joined = tokio::task::spawn_blocking(|| {
            for worker in workers {
                if worker.join().is_err() {
                    tracing::error!("a worker's thread panicked");
                }
            }
        });
        loop {
            let transition = tokio::select! {
                joined = &mut joined => {
                    if joined.is_err() {
                        tracing::error!("cannot wait for the workers");
                    }
                    return;
                }
                transition = self.transition(signals) => transition,
            };
            match transition {
                Transition::Stop => {
                    tracing::warn!("second signal to stop: cutting off connections");
                    self.stops.quit.cancel();
                }
                Transition::HandOver => tracing::warn!("ignoring SIGUSR2: this process is draining"),
            }
        }
    }
}

/// Keeps the workers up to date with what operators post at other gateways.
async fn sync_notices(operator: Rc<Operator>) {
    loop {
        operator.keep_up().await;
    }
}

async fn serve_admin(
    socket: tokio::net::TcpListener,
    (admin, paths): (Rc<Admin>, AdminPaths),
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
                tasks.spawn_local(admin.clone().serve_connection(stream, paths, place, closing.clone()));
            }
            Err(error) => {
                tracing::warn!("cannot accept an admin connection: {error}");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
