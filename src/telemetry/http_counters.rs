//! A worker's metrics of one HTTP listener.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use http::StatusCode;

use crate::message::connection::EndpointState;
use crate::telemetry::metrics::{ListenerKind, LocalTimer, Metrics, PerLabel, RequestCode, Tally};

/// Requests share these through an `Rc`: the count of an `Arc` would move from core to core.
#[derive(Debug)]
pub(crate) struct Counters {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) listener: ListenerKind,
    requests: PerLabel<RequestCode, Tally>,
    in_flight: Rc<Tally>,
    /// Upgraded connections that are open.
    pub(crate) tunnels: Tally,
    pub(crate) upstream_seconds: LocalTimer,
    /// This worker's share of `weir_upstream_endpoints`.
    endpoints: Cell<[i64; EndpointState::ALL.len()]>,
}

impl Counters {
    pub(crate) fn new(metrics: Arc<Metrics>, listener: ListenerKind) -> Rc<Self> {
        let requests = metrics.request_tallies(listener);
        let in_flight = Rc::new(metrics.gauge_tally(&metrics.http.requests_in_flight));
        let tunnels = metrics.gauge_tally(&metrics.http.tunnels);
        let upstream_seconds = metrics.upstreams.seconds.local();
        Rc::new(Self { metrics, listener, requests, in_flight, tunnels, upstream_seconds, endpoints: Cell::default() })
    }

    /// Counts a response; `is_own` if it is Weir's and not the upstream's.
    pub(crate) fn answered(&self, status: StatusCode, is_own: bool) {
        let code = match status.as_u16() {
            429 if is_own => RequestCode::TooManyRequests,
            503 if is_own => RequestCode::Unavailable,
            100..200 => RequestCode::Informational,
            200..300 => RequestCode::Successful,
            300..400 => RequestCode::Redirection,
            400..500 => RequestCode::ClientError,
            _ => RequestCode::ServerError,
        };
        self.requests[code].inc();
    }

    /// Counts a request as in flight until the guard is dropped.
    pub(crate) fn in_flight(&self) -> InFlight {
        self.in_flight.inc();
        InFlight(self.in_flight.clone())
    }

    /// Sets this worker's number of endpoints of each state, in the order of [`EndpointState::ALL`].
    pub(crate) fn set_endpoints(&self, counts: [i64; EndpointState::ALL.len()]) {
        let before = self.endpoints.replace(counts);
        for (((_, gauge), count), before) in self.metrics.upstreams.endpoints.iter().zip(counts).zip(before) {
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

/// A request in flight.
#[derive(Debug)]
pub(crate) struct InFlight(Rc<Tally>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.dec();
    }
}
