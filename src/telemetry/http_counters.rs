//! What a worker's listener that speaks HTTP counts.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use prometheus::local::LocalHistogram;

use crate::telemetry::metrics::{ENDPOINT_STATES, HttpListener, Metrics, REQUEST_CODES, Tally};

/// The handles of a worker. Requests share them through an `Rc`: the count of an `Arc` would go from core to core.
#[derive(Debug)]
pub(crate) struct Counters {
    metrics: Arc<Metrics>,
    requests: [Tally; REQUEST_CODES.len()],
    in_flight: Rc<Tally>,
    tunnels: Tally,
    /// What this worker has timed since [`Self::flush`].
    upstream_seconds: LocalHistogram,
    /// What this worker has added to `weir_upstream_endpoints`.
    endpoints: Cell<[i64; ENDPOINT_STATES.len()]>,
}

impl Counters {
    pub(crate) fn new(metrics: Arc<Metrics>, listener: HttpListener) -> Rc<Self> {
        let requests = metrics.request_tallies(listener);
        let (in_flight, tunnels) = (Rc::new(metrics.in_flight_tally()), metrics.tunnel_tally());
        let upstream_seconds = metrics.upstream_seconds.local();
        Rc::new(Self { metrics, requests, in_flight, tunnels, upstream_seconds, endpoints: Cell::default() })
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

    /// The metrics of the process.
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Counts a connection that was upgraded as open, or as closed.
    pub(crate) fn tunnel(&self, is_open: bool) {
        if is_open {
            self.tunnels.inc();
        } else {
            self.tunnels.dec();
        }
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

    /// Sets this worker's number of endpoints of each state, in the order of [`ENDPOINT_STATES`].
    pub(crate) fn set_endpoints(&self, counts: [i64; ENDPOINT_STATES.len()]) {
        let before = self.endpoints.replace(counts);
        for ((gauge, count), before) in self.metrics.upstream_endpoints().iter().zip(counts).zip(before) {
            if count != before {
                gauge.add(count - before);
            }
        }
    }
}

impl Drop for Counters {
    fn drop(&mut self) {
        self.set_endpoints(Default::default());
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
