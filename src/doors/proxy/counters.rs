//! What a worker's proxy door counts.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use prometheus::local::LocalHistogram;
use prometheus::{IntCounter, IntGauge};

use crate::metrics::{DoorLimit, ENDPOINT_STATES, Metrics, REQUEST_CODES};

/// The handles of a worker. Requests share them through an `Rc`: the count of an `Arc` would go from core to core.
#[derive(Debug)]
pub(super) struct Counters {
    metrics: Arc<Metrics>,
    requests: [IntCounter; REQUEST_CODES.len()],
    /// What this worker has timed since [`Self::flush`].
    upstream_seconds: LocalHistogram,
}

impl Counters {
    pub(super) fn new(metrics: Arc<Metrics>) -> Rc<Self> {
        let requests = metrics.request_counters();
        let upstream_seconds = metrics.upstream_seconds.local();
        Rc::new(Self { metrics, requests, upstream_seconds })
    }

    /// Counts an answer; `is_refusal` if it is ours and not the upstream's.
    pub(super) fn answered(&self, status: StatusCode, is_refusal: bool) {
        let code = match status.as_u16() {
            429 if is_refusal => "429",
            503 if is_refusal => "503",
            100..200 => "1xx",
            200..300 => "2xx",
            300..400 => "3xx",
            400..500 => "4xx",
            _ => "5xx",
        };
        if let Some(place) = REQUEST_CODES.iter().position(|known| *known == code) {
            self.requests[place].inc();
        }
    }

    /// Counts a client that came up against a limit of the door.
    pub(super) fn limited(&self, limit: DoorLimit) {
        self.metrics.door_limit(limit);
    }

    /// Counts a connection as upgraded for as long as the value lives.
    pub(super) fn tunnel(&self) -> Open {
        Open::new(self.metrics.tunnels.clone())
    }

    /// Counts a request as in flight, from its fields until the last byte of its answer was handed over.
    pub(super) fn in_flight(&self) -> Open {
        Open::new(self.metrics.requests_in_flight.clone())
    }

    /// Counts an upstream's response and the time until its fields.
    pub(super) fn upstream_answered(&self, span: Duration) {
        self.upstream_seconds.observe(span.as_secs_f64());
    }

    /// Adds what was timed to the metrics.
    pub(super) fn flush(&self) {
        self.upstream_seconds.flush();
    }

    /// Counts an endpoint that is left alone for a while.
    pub(super) fn upstream_ejected(&self) {
        self.metrics.upstream_ejections.inc();
    }

    /// Counts a request that is sent a second time.
    pub(super) fn upstream_retried(&self) {
        self.metrics.upstream_retries.inc();
    }

    /// Counts a lookup of an upstream's name that gave no address.
    pub(super) fn upstream_unresolved(&self) {
        self.metrics.upstream_resolve_errors.inc();
    }

    /// Adds to the endpoints of each state, in the order of [`crate::metrics::ENDPOINT_STATES`].
    pub(super) fn add_endpoints(&self, changes: [i64; ENDPOINT_STATES.len()]) {
        for (gauge, change) in self.metrics.upstream_endpoints().iter().zip(changes) {
            if change != 0 {
                gauge.add(change);
            }
        }
    }

    /// Counts an upstream's failure; `reason` is one of [`crate::metrics::UPSTREAM_ERRORS`].
    pub(super) fn upstream_failed(&self, reason: &'static str) {
        self.metrics.upstream_error(reason);
    }
}

/// Counts something as open for as long as it lives.
#[derive(Debug)]
pub(super) struct Open {
    gauge: IntGauge,
}

impl Open {
    fn new(gauge: IntGauge) -> Self {
        gauge.inc();
        Self { gauge }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.gauge.dec();
    }
}
