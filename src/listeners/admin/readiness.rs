//! The readiness of the process, which `/readyz` and the health service report.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::watch;

/// The phase of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// The listeners are not up yet.
    #[default]
    Starting,
    /// Connections are taken.
    Serving,
    /// New connections are no longer taken, or soon will not be.
    Draining,
}

/// The readiness of the process.
#[derive(Debug, Default)]
pub struct Readiness {
    phase: watch::Sender<Phase>,
    reload_error: Mutex<Option<String>>,
    certificate_error: Mutex<Option<String>>,
    routes_error: Mutex<Option<String>>,
    keys_missing: Mutex<Vec<String>>,
    xds_error: Mutex<Option<String>>,
    /// The first configuration of a management server has not come.
    awaits_configuration: AtomicBool,
    /// The start does not wait for it.
    is_configuration_optional: AtomicBool,
    /// The listeners are open.
    is_open: AtomicBool,
    /// The start also waits for rules with a domain of descriptors, and begins again when the last one goes.
    needs_domain: bool,
    has_domain: AtomicBool,
}

impl Readiness {
    pub fn new(needs_domain: bool) -> Self {
        Self { needs_domain, ..Self::default() }
    }

    /// The listeners are open, which ends the start unless a configuration is awaited.
    pub fn serving(&self) {
        self.is_open.store(true, Ordering::Release);
        self.update();
    }

    /// Prolongs the start until [`Self::configured`], unless the configuration is optional.
    pub fn await_configuration(&self, is_optional: bool) {
        self.is_configuration_optional.store(is_optional, Ordering::Release);
        self.awaits_configuration.store(true, Ordering::Release);
    }

    pub fn awaits_configuration(&self) -> bool {
        self.awaits_configuration.load(Ordering::Acquire)
    }

    /// A management server's configuration is in force.
    pub fn configured(&self) {
        self.awaits_configuration.store(false, Ordering::Release);
        self.update();
    }

    /// Rules are in force. If they need a domain and have none, the process is as before its start.
    pub fn ruled(&self, has_domain: bool) {
        self.has_domain.store(has_domain, Ordering::Release);
        self.update();
    }

    /// Ends the start if all is there. A process that drains already stays in that phase.
    fn update(&self) {
        let lacks_domain = self.needs_domain && !self.has_domain.load(Ordering::Acquire);
        let waits = self.awaits_configuration() && !self.is_configuration_optional.load(Ordering::Acquire);
        let is_ready = self.is_open.load(Ordering::Acquire) && !waits && !lacks_domain;
        self.phase.send_if_modified(|phase| {
            let next = match *phase {
                Phase::Draining => Phase::Draining,
                _ if is_ready => Phase::Serving,
                _ => Phase::Starting,
            };
            std::mem::replace(phase, next) != next
        });
    }

    pub fn draining(&self) {
        self.phase.send_replace(Phase::Draining);
    }

    pub fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Follows the phase.
    pub fn phases(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    pub fn reload_error(&self) -> Option<String> {
        self.reload_error.lock().clone()
    }

    /// Sets the result of the last reload of the rules: the error, if any.
    pub fn reloaded(&self, error: Option<String>) {
        *self.reload_error.lock() = error;
    }

    /// The token issuers whose keys have never been fetched, for a message.
    pub fn keys_error(&self) -> Option<String> {
        let missing = self.keys_missing.lock();
        (!missing.is_empty()).then(|| format!("the keys of {} have not been fetched", missing.join(", ")))
    }

    /// Sets the names of the token issuers whose keys have never been fetched.
    pub fn keys_missing(&self, names: Vec<String>) {
        *self.keys_missing.lock() = names;
    }

    /// Why the management server's configuration is missing, or may not be the newest.
    pub fn xds_error(&self) -> Option<String> {
        self.xds_error.lock().clone()
    }

    /// Sets what is wrong with the management server or its configuration, if anything.
    pub fn xds(&self, error: Option<String>) {
        *self.xds_error.lock() = error;
    }

    /// Why the routes on disk are not in force.
    pub fn routes_error(&self) -> Option<String> {
        self.routes_error.lock().clone()
    }

    /// Sets the result of the last reload of the routes: the error, if any.
    pub fn routes_reloaded(&self, error: Option<String>) {
        *self.routes_error.lock() = error;
    }

    /// Why the certificate files on disk are not in use.
    pub fn certificate_error(&self) -> Option<String> {
        self.certificate_error.lock().clone()
    }

    /// Sets the errors in the certificate files on disk, if any.
    pub fn certificates_reloaded(&self, error: Option<String>) {
        *self.certificate_error.lock() = error;
    }
}
