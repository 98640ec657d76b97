//! A request's way through a listener.

use std::cell::RefCell;
use std::time::Instant;

use crate::engine::rules::request;
use crate::http::Context;
use crate::http::Exchange;
use crate::http::message::Response;
use crate::limiter::{HeldSlots, Ruling};
use crate::telemetry::access_log::{Entry, UpstreamUse};
use crate::telemetry::http_counters::InFlight;
use crate::telemetry::metrics::DecisionListener;
use crate::telemetry::traces::Trace;

/// A request from its headers until the last byte of its response was handed over. It counts as in flight, and is logged
/// at the end.
#[derive(Debug)]
pub(crate) struct Passage {
    _in_flight: InFlight,
    pub(crate) trace: Trace,
    /// Boxed because it is large and usually absent.
    entry: Option<Box<Entry>>,
    /// The slots that it holds of concurrency limits.
    pub(crate) slots: RefCell<Option<Box<HeldSlots>>>,
}

impl Passage {
    pub(super) fn new(in_flight: InFlight, trace: Trace, entry: Option<Box<Entry>>) -> Self {
        Self { _in_flight: in_flight, trace, entry, slots: RefCell::default() }
    }

    /// Records a ruling that took from `start` on. `request` is what the limits saw of the request; `None` if only
    /// descriptors or ids.
    pub(crate) fn decided(&mut self, ruling: &Ruling, start: Instant, request: Option<&request::Request<'_>>) {
        let (rules, verdict) = (ruling.view.rules(), &ruling.verdict);
        // The log has one limit per line, and a call may ask for many.
        if let Some(entry) = self.entry.as_mut().filter(|_| ruling.listener != DecisionListener::RateLimit) {
            entry.record.judged(rules, verdict);
        }
        self.trace.judged(rules, verdict, ruling.listener, start, request);
        ruling.log_denials(request, self.trace.id());
    }
}

impl Exchange for Passage {
    fn answered(&mut self, context: &Context, response: &Response) {
        let received = self.entry.as_ref().map(|entry| entry.received()).or_else(|| self.trace.began());
        // Nobody asks without a log and a trace.
        let Some(received) = received else { return };
        let used = context.attempts.borrow().summary(received);
        let used = used.map(|(address, time, attempts)| UpstreamUse { address, time, attempts });
        self.trace.answered(response.status.as_u16(), response.body.is_upstreams(), used.as_ref());
        if let Some(entry) = &mut self.entry {
            entry.record.upstream = used;
            entry.record.status = response.status.as_u16();
        }
    }

    fn sent(&self, bytes: usize) {
        if let Some(entry) = &self.entry {
            entry.sent(bytes);
        }
    }

    fn ended(&self) {
        drop(self.slots.take());
    }
}
