//! Observers of [`crate::http`] that count and log its events.

use std::error::Error;
use std::fmt::Display;
use std::rc::Rc;
use std::time::Duration;

use crate::http::observer::{ConnectionFailure, HttpLimit, Observer, UpstreamObserver};
use crate::telemetry::http_counters::Counters;
use crate::telemetry::throttle::Throttle;

impl Observer for Counters {
    fn limit_reached(&self, limit: HttpLimit) {
        self.metrics.http.limits.inc(limit.label());
    }

    fn connection_failed(&self, failure: ConnectionFailure) {
        self.metrics.http.connections_failed.inc(failure.label());
    }

    fn connection_rejected(&self) {
        self.metrics.server.connections_rejected.inc("address");
    }

    fn tls_handshake(&self, is_resumed: bool) {
        self.metrics.http.tls_handshakes[usize::from(is_resumed)].inc();
    }

    fn tunnel(&self, is_open: bool) {
        self.tunnel(is_open);
    }
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
        self.counters.upstream_answered(time);
    }

    fn failed(&self, server: Option<&dyn Display>, reason: &'static str, error: &dyn Error) {
        self.counters.metrics.upstreams.errors.inc(reason);
        if let Some(suppressed) = self.log.pass() {
            let upstream = server.map(tracing::field::display);
            tracing::warn!(upstream, reason, suppressed, "upstream failed: {error}");
        }
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
    use crate::telemetry::metrics::{CONNECTION_FAILURES, HTTP_LIMITS};

    #[test]
    fn every_label_is_announced() {
        assert_eq!(HttpLimit::ALL.map(HttpLimit::label), HTTP_LIMITS);
        assert_eq!(ConnectionFailure::ALL.map(ConnectionFailure::label), CONNECTION_FAILURES);
    }
}
