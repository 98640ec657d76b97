//! What a worker's listener that speaks HTTP counts.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use prometheus::local::LocalHistogram;

use crate::telemetry::metrics::{ENDPOINT_STATES, HttpLimit, HttpListener, Metrics, REQUEST_CODES, Tally};

/// The handles of a worker. Requests share them through an `Rc`: the count of an `Arc` would go from core to core.
#[derive(Debug)]
pub(crate) struct Counters {
    metrics: Arc<Metrics>,
    requests: [Tally; REQUEST_CODES.len()],
    in_flight: Rc<Tally>,
    tunnels: Rc<Tally>,
    /// What this worker has timed since [`Self::flush`].
    upstream_seconds: LocalHistogram,
}

impl Counters {
    pub(crate) fn new(metrics: Arc<Metrics>, listener: HttpListener) -> Rc<Self> {
        let requests = metrics.request_tallies(listener);
        let (in_flight, tunnels) = (Rc::new(metrics.in_flight_tally()), Rc::new(metrics.tunnel_tally()));
        let upstream_seconds = metrics.upstream_seconds.local();
        Rc::new(Self { metrics, requests, in_flight, tunnels, upstream_seconds })
    }

    /// Counts an answer, by its place in [`REQUEST_CODES`]; `is_refusal` if it is ours and not the upstream's.
    pub(crate) fn answered(&self, status: StatusCode, is_refusal: bool) {
        let code = match status.as_u16() {
            429 if is_refusal => 5,
            503 if is_refusal => 6,
            100..200 => 0,
            200..300 => 1,
            300..400 => 2,
            400..500 => 3,
            _ => 4,
        };
        self.requests[code].inc();
    }

    /// Counts a client that came up against a limit of the listener.
    pub(crate) fn limited(&self, limit: HttpLimit) {
        self.metrics.listener_limit(limit);
    }

    /// Counts a connection as upgraded for as long as the value lives.
    pub(crate) fn tunnel(&self) -> Open {
        Open::new(self.tunnels.clone())
    }

    /// Counts a request as in flight, from its headers until the last byte of its answer was handed over.
    pub(crate) fn in_flight(&self) -> Open {
        Open::new(self.in_flight.clone())
    }

    /// Counts an upstream's response and the time until its headers.
    pub(crate) fn upstream_answered(&self, span: Duration) {
        self.upstream_seconds.observe(span.as_secs_f64());
    }

    /// Adds what was timed to the metrics.
    pub(crate) fn flush(&self) {
        self.upstream_seconds.flush();
    }

    /// Counts an endpoint that is left alone for a while.
    pub(crate) fn upstream_ejected(&self) {
        self.metrics.upstream_ejections.inc();
    }

    /// Counts a request that is sent a second time.
    pub(crate) fn upstream_retried(&self) {
        self.metrics.upstream_retries.inc();
    }

    /// Counts a lookup of an upstream's name that gave no address.
    pub(crate) fn upstream_unresolved(&self) {
        self.metrics.upstream_resolve_errors.inc();
    }

    /// Adds to the endpoints of each state, in the order of [`crate::telemetry::metrics::ENDPOINT_STATES`].
    pub(crate) fn add_endpoints(&self, changes: [i64; ENDPOINT_STATES.len()]) {
        for (gauge, change) in self.metrics.upstream_endpoints().iter().zip(changes) {
            if change != 0 {
                gauge.add(change);
            }
        }
    }

    /// Counts an upstream's failure; `reason` is one of [`crate::telemetry::metrics::UPSTREAM_ERRORS`].
    pub(crate) fn upstream_failed(&self, reason: &'static str) {
        self.metrics.upstream_error(reason);
    }
}

/// Counts something as open for as long as it lives.
#[derive(Debug)]
pub(crate) struct Open {
    gauge: Rc<Tally>,
}

impl Open {
    fn new(gauge: Rc<Tally>) -> Self {
        gauge.inc();
        Self { gauge }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.gauge.dec();
    }
}
