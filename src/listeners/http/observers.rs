//! Observers of [`crate::http`] that count and log its events.

use std::error::Error;
use std::fmt::Display;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::http::observer::{Observer, UpstreamObserver};
use crate::message::connection::{ConnectionFailure, HttpLimit, Unbuffered, UpstreamFailure};
use crate::telemetry::http_counters::Counters;
use crate::telemetry::metrics::{Handshake, ListenerKind, Metrics, TooMany};
use crate::telemetry::throttle::Throttle;

impl Observer for Counters {
    fn limit_reached(&self, limit: HttpLimit) {
        self.metrics.http.limits[limit].inc();
    }

    fn connection_failed(&self, failure: ConnectionFailure) {
        self.metrics.http.connections_failed[failure].inc();
    }

    fn connection_rejected(&self) {
        self.metrics.server.connections_rejected[TooMany::Address].inc();
    }

    fn tls_handshake(&self, is_resumed: bool) {
        let kind = if is_resumed { Handshake::Resumed } else { Handshake::Full };
        self.metrics.http.tls_handshakes[self.listener][kind].inc();
    }

    fn tunnel(&self, is_open: bool) {
        if is_open { self.tunnels.inc() } else { self.tunnels.dec() }
    }
}

/// Observes the connections of a listener up to their first request.
pub(crate) struct ConnectionObserver {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) listener: ListenerKind,
}

impl Observer for ConnectionObserver {
    fn limit_reached(&self, limit: HttpLimit) {
        self.metrics.http.limits[limit].inc();
    }

    fn connection_failed(&self, failure: ConnectionFailure) {
        self.metrics.http.connections_failed[failure].inc();
    }

    fn connection_rejected(&self) {
        self.metrics.server.connections_rejected[TooMany::Address].inc();
    }

    fn tls_handshake(&self, is_resumed: bool) {
        let kind = if is_resumed { Handshake::Resumed } else { Handshake::Full };
        self.metrics.http.tls_handshakes[self.listener][kind].inc();
    }

    fn tunnel(&self, _: bool) {}
}

/// Observes a route and its servers.
#[derive(Debug)]
pub(super) struct RouteObserver {
    counters: Rc<Counters>,
    log: Throttle,
}

impl RouteObserver {
    pub(super) fn new(counters: Rc<Counters>) -> Rc<Self> {
        Rc::new(Self { counters, log: Throttle::default() })
    }
}

impl UpstreamObserver for RouteObserver {
    fn answered(&self, time: Duration) {
        self.counters.upstream_seconds.observe(time);
    }

    fn failed(&self, server: Option<&dyn Display>, reason: UpstreamFailure, error: &dyn Error) {
        self.counters.metrics.upstreams.errors[reason].inc();
        if let Some(suppressed) = self.log.pass() {
            let upstream = server.map(tracing::field::display);
            tracing::warn!(upstream, reason = reason.label(), suppressed, "upstream failed: {error}");
        }
    }

    fn unbuffered(&self, reason: Unbuffered) {
        self.counters.metrics.upstreams.unbuffered[reason].inc();
    }

    fn retried(&self) {
        self.counters.metrics.upstreams.retries.inc();
    }

    fn ejected(&self) {
        self.counters.metrics.upstreams.ejections.inc();
    }

    fn unresolved(&self) {
        self.counters.metrics.upstreams.resolve_errors.inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::metrics::ListenerKind;

    #[test]
    fn events_are_counted() {
        let metrics = Arc::new(Metrics::new().unwrap());
        let counters = Counters::new(metrics.clone(), ListenerKind::Proxy);
        let observer: &dyn Observer = &*counters;
        observer.connection_rejected();
        observer.connection_rejected();
        observer.connection_failed(ConnectionFailure::ALL[1]);
        observer.limit_reached(HttpLimit::ALL[1]);
        observer.tls_handshake(true);
        let text = String::from_utf8(metrics.render().unwrap()).unwrap();
        for line in [
            "weir_http_connections_rejected_total{reason=\"address\"} 2".to_owned(),
            "weir_http_connections_rejected_total{reason=\"total\"} 0".to_owned(),
            format!("weir_http_connections_failed_total{{reason=\"{}\"}} 1", ConnectionFailure::LABELS[1]),
            format!("weir_http_listener_limits_total{{limit=\"{}\"}} 1", HttpLimit::LABELS[1]),
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
    }

    #[test]
    fn nothing_expires_without_tls() {
        const SERIES: &str = "weir_tls_certificate_expiry_timestamp_seconds";
        let metrics = Metrics::new().unwrap();
        let text = || String::from_utf8(metrics.render().unwrap()).unwrap();
        assert!(!text().contains(SERIES), "a date of 0 would fire every alert");
        metrics.server.set_tls_expiry(2_524_608_000);
        assert!(text().contains(&format!("{SERIES} 2524608000")), "{}", text());
    }
}
