//! The denials of a verdict that are to be logged, and their ids.

use std::time::Instant;

use super::{LimiterVerdict, View};
use crate::engine::algorithms::charge::Charge;
use crate::engine::algorithms::micros::Micros;
use crate::engine::deciding::verdict::{LimitDecision, Verdict};
use crate::engine::request::Request;
use crate::message::trace_context::TraceContext;
use crate::telemetry::denials::{DenialLine, IdFormat};
use crate::telemetry::metrics::DecisionResult;

/// A denial that gets a line.
#[derive(Debug)]
pub(super) struct Denial {
    limit: u32,
    result: DecisionResult,
    /// Denials without a line before this one.
    suppressed: u64,
    /// The id in the bucket's key, if ids are logged in clear and a bucket was asked.
    id: Option<String>,
}

impl View {
    /// Returns a denial at `start` if it may have a line.
    pub(super) fn sample_denial(&self, limit: u32, result: DecisionResult, start: Instant) -> Option<Denial> {
        let suppressed = self.snapshot.denials.pass(limit, start, self.suppressed.get(limit as usize)?)?;
        Some(Denial { limit, result, suppressed, id: None })
    }

    /// Adds the ids of the buckets, if ids are logged in clear.
    pub(super) fn name_ids(&self, denials: &mut [Denial], verdict: &Verdict, charges: &[Charge]) {
        if self.snapshot.denials.ids() != IdFormat::Clear {
            return;
        }
        for denial in denials {
            let fingerprint = answer(verdict, denial).and_then(|answer| answer.fingerprint);
            let charge = charges.iter().find(|charge| Some(charge.bucket.fingerprint) == fingerprint);
            let id = |charge: &Charge| {
                let short = &self.rules().limit(denial.limit)?.short;
                Some(charge.bucket.key.strip_prefix(short)?.strip_prefix(':')?.to_owned())
            };
            denial.id = charge.and_then(id);
        }
    }

    /// Publishes this worker's counts, and logs the number of denials without a line.
    pub(super) fn flush_denials(&self, at_end: bool) {
        self.snapshot.denials.add(&self.suppressed);
        self.snapshot.denials.flush(self.rules().names(), at_end);
    }

    fn denial_id(
        &self,
        denial: &Denial,
        answer: Option<&LimitDecision>,
        request: Option<&Request<'_>>,
    ) -> Option<String> {
        let fingerprint = answer.and_then(|answer| answer.fingerprint);
        let id = self.snapshot.denials.ids().id(|| self.rules().id_of(denial.limit, request?), fingerprint);
        id.or_else(|| denial.id.clone())
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.snapshot.denials.add(&self.suppressed);
    }
}

impl LimiterVerdict {
    /// Logs the denials that get a line. `trace_id` is the request's, if its headers do not have it.
    pub fn log_denials(&self, request: Option<&Request<'_>>, trace_id: Option<u128>) {
        if !self.denials.is_empty() {
            self.write_denials(request, trace_id);
        }
    }

    #[cold]
    fn write_denials(&self, request: Option<&Request<'_>>, trace_id: Option<u128>) {
        let request = request.map(|request| Request { claims: &self.claims, ..*request });
        let request = request.as_ref();
        let trace_id = trace_id.or_else(|| Some(TraceContext::of(request?.headers)?.trace_id));
        let trace_id = trace_id.map(|id| format!("{id:032x}"));
        for denial in &self.denials {
            let Some(limit) = self.view.rules().limit(denial.limit) else { continue };
            let answer = answer(&self.verdict, denial);
            let line = DenialLine {
                limit: &limit.name,
                result: denial.result,
                listener: self.listener,
                request,
                id: self.view.denial_id(denial, answer, request),
                retry_after: answer.and_then(|answer| self.verdict.wait_by(answer)).map(Micros::ceil_seconds),
                suppressed: denial.suppressed,
                trace_id: trace_id.as_deref(),
            };
            self.view.snapshot.denials.write(&line);
        }
    }
}

/// The answer that a line is about.
fn answer<'a>(verdict: &'a Verdict, denial: &Denial) -> Option<&'a LimitDecision> {
    let mut answers = verdict.answers.iter().filter(|answer| answer.limit == denial.limit);
    let first = answers.clone().next();
    answers.find(|answer| answer.is_short()).or(first)
}
