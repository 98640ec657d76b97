//! The certificates of all listeners, and their reloads.

use crate::http::ServerTlsReloader;
use crate::telemetry::metrics::Metrics;

/// The certificates of the listeners that use TLS.
pub(super) struct Certificates {
    listeners: Vec<ListenerCertificates>,
}

struct ListenerCertificates {
    reloader: ServerTlsReloader,
    /// The error in the files on disk. Previous certificates are in use then.
    error: Option<String>,
}

impl Certificates {
    pub(super) fn new(reloaders: Vec<ServerTlsReloader>) -> Self {
        let listeners = reloaders.into_iter().map(|reloader| ListenerCertificates { reloader, error: None });
        Self { listeners: listeners.collect() }
    }

    /// Reloads the files that have changed. `is_asked` is true after a request such as SIGHUP. Returns whether there was
    /// anything to reload.
    pub(super) fn reload(&mut self, is_asked: bool, metrics: &Metrics) -> bool {
        let mut has_changed = false;
        for listener in &mut self.listeners {
            let Some(result) = listener.reloader.reload(is_asked) else { continue };
            metrics.server.tls_reloaded(result.is_ok());
            listener.error = result.err().map(|error| error.to_string());
            has_changed = true;
        }
        if has_changed && let Some(seconds) = self.expiry() {
            metrics.server.set_tls_expiry(seconds);
        }
        has_changed
    }

    /// Returns when the first certificate in use expires, in seconds since the Unix epoch.
    pub(super) fn expiry(&self) -> Option<i64> {
        self.listeners.iter().filter_map(|listener| listener.reloader.expiry()).min()
    }

    /// Returns the errors in the files on disk, one per line.
    pub(super) fn errors(&self) -> Option<String> {
        let errors: Vec<&str> = self.listeners.iter().filter_map(|listener| listener.error.as_deref()).collect();
        if errors.is_empty() { None } else { Some(errors.join("\n")) }
    }
}
