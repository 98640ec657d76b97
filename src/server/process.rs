//! The signals of the process, and what it inherited.

use std::future::poll_fn;
use std::io;
use std::task::Poll;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::timeout;

use super::ServerError;
use super::inherited::InheritedSockets;
use super::runtime::build_runtime;

/// Time enough for a signal that has come to be seen.
const DELIVERY: Duration = Duration::from_millis(5);

/// The signals of the process, and what it inherited. From [`Self::take`] on, no signal ends the process by itself: SIGTERM and SIGINT drain, a
/// second one quits, SIGHUP reloads, SIGUSR1 reopens the access log, SIGUSR2 hands over to a new process.
#[derive(Debug)]
pub struct Process {
    pub(super) signals: Signals,
    pub(super) inherited: InheritedSockets,
}

impl Process {
    /// Takes what there is for this process, once.
    pub fn take() -> Result<Self, ServerError> {
        let inherited = InheritedSockets::take()?;
        // Only the registration needs a runtime; those of all threads deliver.
        let signals = build_runtime()?.block_on(async { Signals::new() })?;
        Ok(Self { signals, inherited })
    }

    /// Waits for a signal to stop, during the start.
    pub async fn stopped(&mut self) {
        self.signals.stopped().await;
    }

    /// Returns the pushed configuration of the Weir that hands over, if it has one.
    pub fn inherited_configuration(&mut self) -> Option<io::Result<Vec<u8>>> {
        self.inherited.configuration()
    }
}

/// A change of the whole process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transition {
    /// Drain; a second signal cuts off what is left.
    Stop,
    HandOver,
}

/// The action for a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SignalAction {
    End(Transition),
    /// Reload the rules and reopen the access log.
    Reload,
    /// Reopen the access log.
    Reopen,
}

#[derive(Debug, Default)]
pub(super) struct Signals(Vec<(Signal, SignalAction)>);

impl Signals {
    fn new() -> io::Result<Self> {
        let actions = [
            (SignalKind::terminate(), SignalAction::End(Transition::Stop)),
            (SignalKind::interrupt(), SignalAction::End(Transition::Stop)),
            (SignalKind::hangup(), SignalAction::Reload),
            (SignalKind::user_defined1(), SignalAction::Reopen),
            (SignalKind::user_defined2(), SignalAction::End(Transition::HandOver)),
        ];
        actions.into_iter().map(|(kind, action)| Ok((signal(kind)?, action))).collect::<io::Result<_>>().map(Self)
    }

    /// Waits for a signal to stop, during the start.
    pub(super) async fn stopped(&mut self) {
        loop {
            match self.next().await {
                SignalAction::End(Transition::Stop) => return,
                SignalAction::End(Transition::HandOver) => tracing::warn!("ignoring SIGUSR2: this process is starting"),
                // The files are read again at the end of the start, and the access log is not open yet.
                SignalAction::Reload | SignalAction::Reopen => {}
            }
        }
    }

    /// Returns true if a signal to stop has come during the start.
    pub(super) fn have_stopped(&mut self) -> io::Result<bool> {
        // The runtime delivers what has come while it waits.
        let stopped = async { timeout(DELIVERY, self.stopped()).await.is_ok() };
        Ok(build_runtime()?.block_on(stopped))
    }

    /// Waits for the next signal; forever if none is handled.
    pub(super) async fn next(&mut self) -> SignalAction {
        poll_fn(|cx| {
            let arrived =
                self.0.iter_mut().find_map(|(signal, action)| signal.poll_recv(cx).is_ready().then_some(*action));
            arrived.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}
