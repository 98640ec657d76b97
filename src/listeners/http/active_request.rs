//! A request from its headers to the end of its response.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::engine::deciding::{DecisionSubject, InvalidSubject};
use crate::engine::request::Request;
use crate::http::activity::Activity;
use crate::http::failure::UpstreamError;
use crate::http::message::Response;
use crate::http::{Context, Exchange};
use crate::limiter::{DecisionRequest, HeldSlots, Limiter, LimiterVerdict};
use crate::message::connection::Cut;
use crate::telemetry::access_log::{AccessLogEntry, UpstreamUse, parts};
use crate::telemetry::http_counters::InFlight;
use crate::telemetry::metrics::DecisionListener;
use crate::telemetry::traces::Trace;

/// A request until the last byte of its response was handed over. It counts as in flight, holds its slots, and is logged
/// at the end.
#[derive(Debug)]
pub(crate) struct ActiveRequest {
    _in_flight: InFlight,
    pub(crate) trace: Trace,
    /// Boxed because it is large and usually absent.
    entry: Option<Box<AccessLogEntry>>,
    slots: RefCell<Option<Box<HeldSlots>>>,
    activity: Rc<Activity>,
    /// True once the last of the response was handed over.
    has_ended: Cell<bool>,
}

impl ActiveRequest {
    pub(super) fn new(
        in_flight: InFlight,
        trace: Trace,
        entry: Option<Box<AccessLogEntry>>,
        context: &Context,
    ) -> Self {
        let activity = context.activity.clone();
        Self { _in_flight: in_flight, trace, entry, slots: RefCell::default(), activity, has_ended: Cell::new(false) }
    }

    /// The request has this id, whatever its client has sent.
    pub(crate) fn named(&mut self, id: &str) {
        if let Some(entry) = &mut self.entry {
            entry.record.request_id = Some(id.as_bytes().into());
        }
    }

    /// No upstream answered.
    pub(crate) fn upstream_failed(&mut self, error: &UpstreamError) {
        if let Some(entry) = &mut self.entry {
            entry.record.upstream_error = error.reason();
        }
    }

    /// Decides the request and records the verdict in the access log, the trace and the log of denials. Returns when the
    /// answer may be sent.
    pub(crate) async fn decide(
        &mut self,
        limiter: &Limiter,
        asked: DecisionRequest<'_>,
        context: &Context,
    ) -> Result<LimiterVerdict, InvalidSubject> {
        let mut decided = limiter.decide(asked).await?;
        self.decided(limiter, &asked, context, &mut decided).await;
        Ok(decided)
    }

    /// Records a verdict in the access log, the trace and the log of denials. Returns when the answer may be sent.
    pub(crate) async fn decided(
        &mut self,
        limiter: &Limiter,
        asked: &DecisionRequest<'_>,
        context: &Context,
        decided: &mut LimiterVerdict,
    ) {
        self.slots = decided.slots.take().into();
        let request = if let DecisionSubject::Request(request) = asked.subject { Some(request) } else { None };
        self.record(decided, asked, request);
        context.ready_to_answer().await;
        if decided.must_wait() {
            // Boxed because it is rare.
            context.activity.hold();
            Box::pin(limiter.hold(decided)).await;
            context.activity.resume();
            self.slots = decided.slots.take().into();
            if decided.verdict.is_allowed() {
                decided.log_denials(request, self.trace.id());
            } else {
                self.record(decided, asked, request);
            }
        }
    }

    fn record(&mut self, decided: &LimiterVerdict, asked: &DecisionRequest<'_>, request: Option<&Request<'_>>) {
        let (rules, verdict) = (decided.view.rules(), &decided.verdict);
        // The log has one limit per line, and a call may ask for many.
        if let Some(entry) = self.entry.as_mut().filter(|_| asked.listener != DecisionListener::RateLimit) {
            entry.record.decided(rules, verdict);
            if let Some(request) = request.filter(|_| entry.has_parts()) {
                entry.record.headers = parts::of(rules, request);
            }
        }
        self.trace.decided(rules, verdict, asked.listener, asked.start, request);
        decided.log_denials(request, self.trace.id());
    }
}

impl Exchange for ActiveRequest {
    fn answered(&mut self, context: &Context, response: &Response) {
        let received = self.entry.as_ref().map(|entry| entry.received()).or_else(|| self.trace.began());
        // Without a log and a trace nobody needs the rest.
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
        self.has_ended.set(true);
        drop(self.slots.take());
    }
}

impl Drop for ActiveRequest {
    /// Adds to the log what ended the exchange early. Without a response, the status says that the client left.
    fn drop(&mut self) {
        let Some(entry) = &mut self.entry else { return };
        let is_cut = !self.has_ended.get() && entry.record.status != 0;
        let cut = self.activity.cut().filter(|cut| entry.record.status != 0 || *cut == Cut::Timeout);
        entry.record.cut = cut.or(is_cut.then_some(Cut::Client));
        entry.record.upstream_error = entry.record.upstream_error.or(self.activity.upstream_error());
    }
}
